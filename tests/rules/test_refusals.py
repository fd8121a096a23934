"""What the database does not take or give for a moment: nothing stops, nothing is lost, and no one else is touched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import (
    DatabaseUnavailableError,
    Engine,
    EngineClosedError,
    RunStep,
    Settings,
    SleepStep,
    WaitTimeoutError,
    WorkflowHeldError,
)
from workerflow.store.base import Batch, DeposedError, StoreBusyError
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine


async def turns(count: int) -> None:
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


def post(engine: Engine, workflow: str, name: str) -> None:
    """Put an event into the mail of every instance of a workflow, without a hint."""
    database = apsw.Connection(engine.url)
    database.execute(
        "insert into mail (instance_key, kind, name, sent_at) "
        "select instance_key, 'event', ?, created_at from instances where workflow = ?",
        (name, workflow),
    )
    assert database.changes() > 0
    database.close()


# Reads that fail.


class Reads:
    """Stands between engine and store: the reads of one kind fail, from the *first* on, *count* times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, first: int, count: int) -> None:
        self.seen = 0
        self.failed = 0
        self.is_on = False
        read = getattr(SqliteStore, name)

        def failing(store: SqliteStore, *arguments: Any) -> Any:
            if self.is_on:
                self.seen += 1
                if first <= self.seen < first + count:
                    self.failed += 1
                    raise DatabaseUnavailableError("the disk did not answer")
            return read(store, *arguments)

        monkeypatch.setattr(SqliteStore, name, failing)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        self.is_on = True
        yield
        self.is_on = False


@pytest.mark.parametrize("first", [1, 2, 5])
@pytest.mark.parametrize("read", ["untaken_mail", "untaken_mail_of", "due", "next_alarm", "load"])
@pytest.mark.parametrize("hibernate_after_s", [0, 3600])
@async_test
async def test_a_read_that_fails_for_a_moment_strands_no_timer_and_holds_no_instance(
    hibernate_after_s: float, read: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Callback("called")

    @definition
    async def Sleeping(self: Any) -> Any:
        await self.sleep("minute", 60)
        return await self.run("call", call)

    @definition
    async def Waiting(self: Any) -> Any:
        with contextlib.suppress(WaitTimeoutError):
            await self.wait("wait", "never", timeout=60)
        return await self.run("call", call)

    reads = Reads(monkeypatch, read, first, 2)
    async with SimulatedEngine([Sleeping, Waiting], settings=Settings(hibernate_after_s=hibernate_after_s)) as engine:
        handles = [engine.get(workflow, str(number)) for workflow in (Sleeping, Waiting) for number in range(4)]
        for handle in handles:
            await handle.create()
        await engine.run_until_idle()
        with reads.failing():
            await engine.advance(60)
            # Looked at again a moment later; and by the poll, which a simulated engine makes when it is advanced.
            await engine.advance(5)
            await engine.advance(5)
        assert [await handle.status() for handle in handles] == ["completed"] * 8
        assert [await handle.result(timeout=5) for handle in handles] == ["called"] * 8
        assert call.calls == 8


@async_test
async def test_reads_that_fail_for_long_are_not_tried_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @definition
    async def Sleeping(self: Any) -> str:
        await self.sleep("moment", 0.05)
        return "over"

    reads = Reads(monkeypatch, "due", 1, 10**9)
    settings = Settings(hibernate_after_s=0, stop_grace_s=0)
    async with Engine(tmp_path / "a.db", [Sleeping], settings=settings) as engine:
        handle = engine.get(Sleeping, "instance-1")
        with reads.failing():
            await handle.create()
            with pytest.raises(TimeoutError):
                await handle.result(timeout=0.5)
        assert 0 < reads.failed < 20
        assert await handle.result(timeout=10) == "over"


# Mail between a row and its commit.

ORPHANS = """
select instance_id, step_id from attempts join instances using (instance_key)
where state = 'started' and status = 'running' and owner is null
"""


@async_test
async def test_mail_that_comes_right_behind_the_commit_that_hibernates_leaves_no_attempt_without_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate("done")
    loop = asyncio.get_running_loop()
    commit = SqliteStore.commit
    posted: list[int] = []
    idling: list[asyncio.Task[None]] = []

    def in_a_thread(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        if busy_timeout_ms == 0:
            # The first try, on the loop: the second is made in a thread, while the loop goes on.
            raise StoreBusyError("another transaction is open")
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)
        if not posted and query(engine, "select 1 from instances where status = 'running' and owner is null"):
            posted.append(1)
            post(engine, "Falling", "go")
            asyncio.run_coroutine_threadsafe(look(), loop).result(20)

    async def look() -> None:
        # The first thing that it does is to look for mail.
        idling.append(asyncio.ensure_future(engine.run_until_idle()))
        await turns(20)

    @definition
    async def Falling(self: Any) -> Any:
        await self.wait("go", "go")
        return await self.run("call", gate)

    monkeypatch.setattr(SqliteStore, "commit", in_a_thread)
    async with SimulatedEngine([Falling], settings=Settings(hibernate_after_s=0)) as engine:
        handle = engine.get(Falling, "instance-1")
        await handle.create()
        assert await asyncio.wait_for(gate.begun(), 10) == 1
        assert query(engine, ORPHANS) == []
        await turns(20)
        assert query(engine, ORPHANS) == []
        for task in idling:
            task.cancel()
        await asyncio.gather(*idling, return_exceptions=True)
        monkeypatch.setattr(SqliteStore, "commit", commit)
        await engine.crash()
        gate.open()
        await engine.advance(60)
        assert await handle.result(timeout=5) == "done"
        assert gate.calls == 2


# Rows that are refused.

POISON = """
create trigger poison before insert on inbound_events when new.name = 'poison'
begin select raise(abort, 'poison is refused'); end
"""


class Refusals:
    """Counts the refusals, and takes the trigger away after each one if *is_once*."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_once: bool) -> None:
        self.count = 0
        commit = SqliteStore.commit

        def counted(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            if batch.refused:
                self.count += 1
                if is_once:
                    store._write_connection().raw.execute("drop trigger if exists poison")

        monkeypatch.setattr(SqliteStore, "commit", counted)


@async_test
async def test_refusals_count_towards_a_hold_in_a_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    @definition
    async def Listening(self: Any) -> None:
        for number in range(7):
            await self.wait(f"wait-{number}", "poison" if number % 2 else "good")

    refusals = Refusals(monkeypatch, is_once=True)
    async with started(Listening) as (engine, handle):
        for _ in range(3):
            await handle.send("good")
            query(engine, POISON)
            await handle.send("poison")
        assert refusals.count == 3
        assert (await handle.info()).held is None
        await handle.send("good")
        assert await handle.result(timeout=5) is None


@async_test
async def test_a_verb_whose_rows_are_refused_for_good_says_that_the_workflow_is_held_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @definition
    async def Listening(self: Any) -> None:
        await self.wait("wait", "good")

    refusals = Refusals(monkeypatch, is_once=False)
    async with started(Listening) as (engine, handle):
        query(engine, POISON)
        with pytest.raises(WorkflowHeldError, match="poison is refused"):
            await handle.send("poison")
        await engine.run_until_idle()
        assert refusals.count == 2
        assert "poison is refused" in str((await handle.info()).held)
        query(engine, "drop trigger poison")
        await handle.resume()
        await handle.send("good")
        assert await handle.result(timeout=5) is None


@async_test
async def test_a_workflow_whose_creation_was_refused_can_be_created_when_the_cause_is_mended() -> None:
    @definition
    async def Small(self: Any) -> str:
        return "done"

    async with SimulatedEngine([Small]) as engine:
        query(
            engine,
            "create trigger refused before insert on instances when new.instance_id = 'instance-1' "
            "begin select raise(abort, 'this one is refused'); end",
        )
        handle = engine.get(Small, "instance-1")
        with pytest.raises(WorkflowHeldError, match="this one is refused"):
            await handle.create()
        assert await engine.list() == []
        query(engine, "drop trigger refused")
        assert await handle.create() is True
        assert await handle.result(timeout=5) == "done"


@async_test
async def test_a_callback_that_has_returned_is_not_called_again_because_another_ones_outcome_was_refused() -> None:
    good, bad = Gate("good"), Gate("poison")

    @definition
    async def Both(self: Any) -> Any:
        return await asyncio.gather(self.run("good", good), self.run("bad", bad))

    async with SimulatedEngine([Both]) as engine:
        query(
            engine,
            "create trigger refused before update on attempts when new.result_json = '\"poison\"' "
            "begin select raise(abort, 'poison is refused'); end",
        )
        handle = engine.get(Both, "instance-1")
        await handle.create()
        await good.begun()
        await bad.begun()
        # Both outcomes are in one batch.
        good.open()
        bad.open()
        await engine.run_until_idle()
        assert "poison is refused" in str((await handle.info()).held)

        query(engine, "drop trigger refused")
        await handle.resume()
        await engine.advance(60)
        assert await handle.result(timeout=5) == ["good", "poison"]
        assert good.calls == 1


@async_test
async def test_a_nested_step_that_its_callback_cancelled_is_abandoned_though_the_rows_were_refused_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    @definition
    async def Nesting(self: Any) -> None:
        async def outer() -> None:
            nested = asyncio.ensure_future(self.sleep("nested", 3600))
            await gate()
            nested.cancel()
            await asyncio.gather(nested, return_exceptions=True)
            await self.wait("go", "go")

        await self.run("outer", outer)

    refusals = Refusals(monkeypatch, is_once=True)
    async with SimulatedEngine([Nesting]) as engine:
        handle = engine.get(Nesting, "instance-1")
        await handle.create()
        await gate.begun()
        query(
            engine,
            "create trigger poison before update on steps when new.abandoned_at is not null "
            "begin select raise(abort, 'poison is refused'); end",
        )
        gate.open()
        await engine.run_until_idle()

        assert refusals.count == 1
        assert (await step_of(handle, "nested", SleepStep)).abandoned_at is not None
        assert (await handle.info()).alarm_at is None
        await handle.send("go")
        assert await handle.result(timeout=5) is None
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


# The end of a workflow.


class Stubborn:
    """An async callback that is not impressed by being cancelled, until the ``with`` block is left."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()

    async def __aenter__(self) -> Stubborn:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over.set()

    async def __call__(self) -> None:
        self.begun.set()
        while not self.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.over.wait()


@pytest.mark.parametrize("seed", range(4))
@async_test
async def test_an_end_whose_rows_are_held_back_by_mail_comes_when_its_grace_is_over(seed: int) -> None:
    """The mail comes between the look for it and the commit; the seed says which of the two is driven first."""
    stubborn = Stubborn()

    @definition
    async def Poster(self: Any) -> None:
        await self.sleep("minute", 60)
        post(engine, "Ending", "other")

    @definition
    async def Ending(self: Any) -> str:
        # With a timeout: the virtual clock would wait for the callback otherwise.
        self.run("stubborn", stubborn, timeout=86_400)
        with contextlib.suppress(WaitTimeoutError):
            await self.wait("wait", "never", timeout=60)
        return "done"

    settings = Settings(hibernate_after_s=3600, finish_grace_s=2)
    async with (
        SimulatedEngine([Poster, Ending], seed, settings=settings) as engine,
        stubborn,
    ):
        await engine.get(Poster, "instance-1").create()
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await stubborn.begun.wait()
        await engine.advance(60)
        assert await handle.status() == "running"
        await engine.advance(2)
        assert await handle.result(timeout=5) == "done"
        assert [event.name for event in (await handle.info()).inbound_events] == ["other"]


@pytest.mark.parametrize("paused_s", [1, 60])
@async_test
async def test_a_workflow_paused_while_it_ends_ends_after_it_is_resumed(paused_s: float) -> None:
    stubborn = Stubborn()

    @definition
    async def Ending(self: Any) -> str:
        self.run("stubborn", stubborn, timeout=86_400)
        await self.wait("go", "go")
        return "done"

    async with (
        SimulatedEngine([Ending], settings=Settings(finish_grace_s=2)) as engine,
        stubborn,
    ):
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await stubborn.begun.wait()
        await handle.send("go")
        await handle.pause()
        await engine.advance(paused_s)
        assert await handle.status() == "paused"
        await handle.resume()
        await engine.advance(2)
        assert await handle.result(timeout=5) == "done"


@async_test
async def test_a_caller_whose_rows_are_refused_is_answered_also_when_the_engine_ends_before_the_hold_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.wait("go", "go")

    async with started(Waiting) as (engine, handle):
        query(
            engine,
            "create trigger unpausable before update of status on instances when new.status = 'paused' "
            "begin select raise(abort, 'no pause here'); end",
        )
        commit = SqliteStore.commit
        commits: list[int] = []

        def lose_the_hold(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
            commits.append(batch.number)
            if len(commits) == 3:  # Refused, refused again, and now the hold.
                raise DeposedError("the database is lost")
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)

        monkeypatch.setattr(SqliteStore, "commit", lose_the_hold)
        with pytest.raises(EngineClosedError):
            await asyncio.wait_for(handle.pause(), 10)
        assert len(commits) == 3
