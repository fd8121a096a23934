"""Verbs in a status in which they have nothing to do."""

import apsw
import pytest
from tests.support import async_test, definition, lifecycle, query, started

from workerflow import WorkflowStateError
from workerflow.testing import SimulatedEngine


@definition
async def Ending(self):
    if await self.wait("how", "how") == "failed":
        raise ValueError("as asked")


async def initialized(engine):
    """An instance that is in the status between pending and running, in which no commit of an engine leaves one."""
    handle = engine.get(Ending, "instance-1")
    await handle.send("other")
    query(engine, "update instances set status = 'initialized'")
    await engine.crash()
    assert await handle.status() == "initialized"
    return handle


@pytest.mark.spec(122)
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
@async_test
async def test_resuming_an_ended_workflow_names_its_status_and_changes_nothing(status):
    async with started(Ending) as (engine, handle):
        await (handle.cancel() if status == "cancelled" else handle.send("how", status))
        await engine.run_until_idle()
        before = await handle.info()
        assert before.status == status
        await engine.advance(60)

        with pytest.raises(WorkflowStateError) as refused:
            await handle.resume()

        assert str(refused.value) == f"Cannot resume workflow: expected status 'paused' but got '{status}'."
        assert refused.value.status == status
        assert await handle.info() == before
        assert await lifecycle(handle) == ["created", "started", status]


@pytest.mark.spec(119)
@async_test
async def test_pausing_an_initialized_workflow_does_not_pause_it():
    async with SimulatedEngine([Ending]) as engine:
        handle = await initialized(engine)

        await handle.pause()
        await engine.run_until_idle()

        assert await handle.status() != "paused"
        assert "paused" not in await lifecycle(handle)


@pytest.mark.spec(131)
@async_test
async def test_an_initialized_workflow_can_be_cancelled():
    async with SimulatedEngine([Ending]) as engine:
        handle = await initialized(engine)

        await handle.cancel("too early")
        await engine.run_until_idle()

        assert await handle.status() == "cancelled"
        assert await lifecycle(handle) == ["created", "cancelled"]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(133)
@pytest.mark.parametrize("type_", ["created", "started", "paused", "resumed", "completed", "failed"])
@async_test
async def test_the_database_refuses_a_reason_on_every_event_but_a_cancellation(type_):
    insert = (
        "insert into lifecycle_events (instance_key, number, type, recorded_at, reason) "
        "select instance_key, ?, ?, updated_at, 'because' from instances"
    )
    async with started(Ending) as (engine, _):
        with pytest.raises(apsw.ConstraintError):
            query(engine, insert, 9, type_)

        query(engine, insert, 9, "cancelled")
        assert query(engine, "select type, reason from lifecycle_events where number = 9") == [("cancelled", "because")]
