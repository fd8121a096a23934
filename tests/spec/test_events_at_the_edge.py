"""Events at the edges of a wait: while its row is being written, and in the mailbox at its deadline."""

import asyncio
from datetime import UTC, datetime

import apsw
import pytest
from tests.bodies import next_turn
from tests.support import async_test, definition, query, step_of

from workerflow import Engine, WaitStep, WorkflowFailedError
from workerflow.testing import SimulatedEngine
from workerflow.worker import committer

DEADLINE_MS = 2000


@definition
async def Punctual(self):
    return await self.wait("payment", "paid", str, deadline=datetime.fromtimestamp(DEADLINE_MS / 1000, UTC))


@pytest.mark.spec(95)
@async_test
async def test_an_event_that_comes_while_the_row_of_its_wait_is_being_written_is_used(monkeypatch):
    # However slow the machine: the clock of the tries that would follow does not move by itself.
    monkeypatch.setattr(committer, "BUSY_WAIT_MS", 60_000)
    locked = asyncio.Event()

    async def lock():
        foreign.execute("begin immediate")
        locked.set()

    @definition
    async def Listener(self):
        await self.run("before", lock)
        return await self.wait("payment", "paid", int, timeout=3600)

    async with SimulatedEngine([Listener]) as engine:
        foreign = apsw.Connection(engine.url)
        foreign.set_busy_timeout(10_000)
        handle = engine.get(Listener, "instance-1")
        await handle.create()
        await locked.wait()
        for _ in range(20):
            await next_turn()
        # The wait is asked for, and nobody can see it yet.
        assert [step.id for step in await handle.steps()] == ["before"]
        sending = asyncio.ensure_future(handle.send("paid", 7))
        await next_turn()
        assert not sending.done()

        foreign.execute("rollback")
        foreign.close()

        assert await handle.result(timeout=5) == 7
        assert await sending == "used"
        assert (await step_of(handle, "payment", WaitStep)).state == "satisfied"
        assert query(engine, "select claimed_by from inbound_events") == [("payment",)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(93, 94)
@pytest.mark.parametrize(
    ("sent_ms", "is_used"), [(DEADLINE_MS - 1, True), (DEADLINE_MS, False), (DEADLINE_MS + 1, False)]
)
@async_test
async def test_mail_satisfies_a_wait_only_if_it_was_sent_before_the_deadline(tmp_path, sent_ms, is_used):
    async with Engine(tmp_path / "file.db", [Punctual], execute=False) as sender:
        await sender.get(Punctual, "instance-1").create()
        query(
            sender,
            "insert into mail (instance_key, kind, name, payload, sent_at) "
            "select instance_key, 'event', 'paid', '\"by mail\"', ? from instances",
            sent_ms,
        )

    async with Engine(tmp_path / "file.db", [Punctual]) as engine:
        handle = engine.get(Punctual, "instance-1")
        if is_used:
            assert await handle.result(timeout=10) == "by mail"
        else:
            with pytest.raises(WorkflowFailedError) as failed:
                await handle.result(timeout=10)
            assert failed.value.error_name == "WaitTimeoutError"
        (event,) = (await handle.info()).inbound_events
        assert event.claimed_by == ("payment" if is_used else None)
        state = (await step_of(handle, "payment", WaitStep)).state
        assert state == ("satisfied" if is_used else "timed_out")
