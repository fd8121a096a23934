"""Rules that a fault planted into the engine could break unseen, each with the test that sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import (
    DatabaseLockedError,
    DatabaseUnavailableError,
    Engine,
    EngineClosedError,
    RetryPolicy,
    RunStep,
    Settings,
    WaitStep,
    WaitTimeoutError,
    WorkflowDefinition,
    WorkflowHeldError,
    current_attempt,
)
from workerflow.core.execution import Execution
from workerflow.store.base import Batch
from workerflow.store.sqlite.file_lock import FileLock
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine
from workerflow.testing.virtual import VirtualEffects


class SlowDisk:
    """Every commit goes through the writer thread; while ``hold`` is under way, none of them ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._may_write = threading.Event()
        self._may_write.set()
        self.batches: list[Batch] = []
        commit = SqliteStore.commit

        def held(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
            self.batches.append(batch)
            assert self._may_write.wait(30)
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)

        monkeypatch.setattr(SqliteStore, "commit", held)

    def use(self, engine: Engine) -> None:
        """Have the engine write in its thread from now on."""
        assert engine._worker is not None
        engine._worker.committer._average_ms = 10**9

    def stop(self) -> None:
        """Let no commit end."""
        self._may_write.clear()

    def mend_after_refusal(self, statement: str) -> list[int]:
        """Run *statement* in the transaction that refuses rows; gives the numbers of such batches, as they come."""
        refused: list[int] = []
        write = SqliteStore._write_batch

        def mended(store: SqliteStore, raw: apsw.Connection, batch: Batch) -> dict[int, str]:
            outcome = write(store, raw, batch)
            if outcome:
                refused.append(batch.number)
                raw.execute(statement)
            return outcome

        self._monkeypatch.setattr(SqliteStore, "_write_batch", mended)
        return refused

    def go_on(self) -> None:
        """Let them end again."""
        self._may_write.set()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.go_on()


async def turns(count: int = 20) -> None:
    """Let the loop turn, so that what is ready happens."""
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


def poison(engine: Engine, text: str) -> None:
    """Have the database refuse every attempt with this result."""
    query(
        engine,
        f"create trigger {text} before update on attempts when new.result_json = '\"{text}\"' "
        f"begin select raise(abort, '{text} is refused'); end",
    )


# Batches.


@async_test
async def test_an_outcome_and_the_retry_at_once_that_follows_it_fit_into_one_batch(
    slow_disk: SlowDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate, again = Gate(error=ConnectionError()), Gate("again")

    class Retried(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            async def call() -> str:
                return str(await (gate if gate.calls == 0 else again)())

            return await self.run("call", call, retry=RetryPolicy(initial=0))

    async with Engine(tmp_path / "a.db", [Retried]) as engine:
        handle, other = engine.get(Retried, "instance-1"), engine.get(Retried, "instance-2")
        await handle.create()
        await gate.begun()
        slow_disk.use(engine)
        slow_disk.stop()
        sending = asyncio.ensure_future(other.send("note"))
        await turns()
        gate.open()
        await turns()
        assert engine._worker is not None
        # While the disk is slow the next batch fills up with the outcome and with what comes of it.
        async with asyncio.timeout(10):
            while not engine._worker.rows.attempt_start:
                await turns()
        assert engine._worker.rows.attempt_end
        slow_disk.go_on()
        again.open()

        assert await handle.result(timeout=10) == "again"
        await sending
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "succeeded"]
    assert "refused" not in caplog.text


@async_test
async def test_a_cancel_ends_an_attempt_that_began_in_the_same_batch(
    slow_disk: SlowDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call = Callback()

    class Cancelled(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            await self.run("call", call)

    async with Engine(tmp_path / "a.db", [Cancelled]) as engine:
        slow_disk.use(engine)
        slow_disk.stop()
        sending = asyncio.ensure_future(engine.get(Cancelled, "instance-2").send("note"))
        await turns()
        handle = engine.get(Cancelled, "instance-1")
        creating = asyncio.ensure_future(handle.create())
        await turns()
        assert engine._worker is not None
        assert engine._worker.rows.attempt_start
        cancelling = asyncio.ensure_future(handle.cancel())
        await turns()
        slow_disk.go_on()
        await asyncio.gather(sending, creating, cancelling)

        assert await lifecycle(handle) == ["created", "started", "cancelled"]
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]
        assert call.calls == 0
    assert "refused" not in caplog.text


@async_test
async def test_what_happened_during_a_commit_is_applied_again_when_the_next_one_is_refused(
    slow_disk: SlowDisk, tmp_path: Path
) -> None:
    gate = Gate("once")

    class Waiting(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            return await self.run("call", gate, returns=str)

    async with Engine(tmp_path / "a.db", [Waiting]) as engine:
        handle = engine.get(Waiting, "instance-1")
        await handle.create()
        await gate.begun()
        poison(engine, "once")
        slow_disk.use(engine)
        slow_disk.stop()
        sending = asyncio.ensure_future(handle.send("note"))
        await turns()
        gate.open()
        await turns()
        refused = slow_disk.mend_after_refusal("drop trigger once")
        slow_disk.go_on()

        assert await handle.result(timeout=10) == "once"
        await sending
        assert len(refused) == 1
        assert gate.calls == 1
        assert states(await step_of(handle, "call", RunStep)) == ["succeeded"]


@async_test
async def test_a_workflow_that_always_has_something_to_do_holds_up_no_commit_of_the_others(tmp_path: Path) -> None:
    count = 300
    slept: set[int] = set()

    class Restless(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            for number in range(count):
                await self.sleep(f"sleep-{number}", 0)
                slept.add(number)

    class Quick(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            pass

    async with Engine(tmp_path / "a.db", [Restless, Quick]) as engine:
        restless = asyncio.ensure_future(engine.get(Restless, "instance-1").create())
        await engine.get(Quick, "instance-2").create()
        assert len(slept) < count
        await restless
        await engine.get(Restless, "instance-1").result(timeout=20)
        assert len(slept) == count


# The body and its errors.


@async_test
async def test_a_keyboard_interrupt_of_a_callback_stops_the_engine_and_records_nothing(tmp_path: Path) -> None:
    class Interrupted(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            await self.run("call", interrupt, max_attempts=1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    async with Engine(tmp_path / "a.db", [Interrupted]) as engine:
        handle = engine.get(Interrupted, "instance-1")
        await handle.create()
        with pytest.raises(EngineClosedError, match="KeyboardInterrupt"):
            await handle.result(timeout=10)

    async with Engine(tmp_path / "a.db", [Interrupted], execute=False) as engine:
        handle = engine.get(Interrupted, "instance-1")
        assert await handle.status() == "running"
        assert states(await step_of(handle, "call", RunStep)) == ["started"]


@async_test
async def test_a_stored_input_that_no_longer_decodes_holds_the_instance_until_the_code_is_mended(
    tmp_path: Path,
) -> None:
    class Old(WorkflowDefinition[str, str]):
        name = "Order"

        async def execute(self) -> str:
            await self.wait("go", "go")
            return self.input

    class New(WorkflowDefinition[int, int]):
        name = "Order"

        async def execute(self) -> int:
            return self.input

    async with Engine(tmp_path / "a.db", [Old]) as old_engine:
        await old_engine.get(Old, "instance-1").create("tea")

    async with Engine(tmp_path / "a.db", [New]) as new_engine:
        new = new_engine.get(New, "instance-1")
        await new.send("go")
        info = await new.info()
        assert (info.status, "no longer decodes" in str(info.held)) == ("running", True)

    async with Engine(tmp_path / "a.db", [Old]) as old_engine:
        old = old_engine.get(Old, "instance-1")
        await old.resume()
        assert await old.result(timeout=10) == "tea"


@async_test
async def test_a_stored_result_that_no_longer_decodes_holds_the_instance_until_the_code_is_mended(
    tmp_path: Path,
) -> None:
    class Old(WorkflowDefinition[None, str]):
        name = "Order"

        async def execute(self) -> str:
            tea: str = await self.run("call", Callback("tea"), returns=str)
            await self.wait("go", "go")
            return tea

    class New(WorkflowDefinition[None, int]):
        name = "Order"

        async def execute(self) -> int:
            try:
                return await self.run("call", Callback(1), returns=int)
            except Exception:
                return 0

    async with Engine(tmp_path / "a.db", [Old]) as old_engine:
        await old_engine.get(Old, "instance-1").create()
        await old_engine.get(Old, "instance-1").send("note")

    async with Engine(tmp_path / "a.db", [New]) as new_engine:
        new = new_engine.get(New, "instance-1")
        await new.send("go")
        info = await new.info()
        assert (info.status, "no longer decodes" in str(info.held)) == ("running", True)

    async with Engine(tmp_path / "a.db", [Old]) as old_engine:
        old = old_engine.get(Old, "instance-1")
        await old.resume()
        assert await old.result(timeout=10) == "tea"


@async_test
async def test_a_dropped_body_that_asks_for_the_same_step_in_a_loop_does_not_spin() -> None:
    asked: list[str] = []

    @definition
    async def Clinging(self: Any) -> None:
        # Bounded, so that a spin is a failure of this test and not of the whole run.
        while len(asked) < 1000:
            try:
                asked.append("asked")
                await self.wait("wait", "never")
            except BaseException:
                continue

    async with started(Clinging) as (engine, _):
        await engine.crash()
        # One for the first body, at most one for each of the rounds that it is given, one for the second body.
        assert len(asked) <= 5
        asked.extend(["end"] * 1000)


@async_test
async def test_a_nested_sleep_that_its_callback_left_behind_sets_no_alarm() -> None:
    @definition
    async def Leaving(self: Any) -> None:
        async def outer() -> None:
            await asyncio.wait([self.sleep("inner", 3600)], timeout=0)

        await self.run("outer", outer)
        await self.wait("go", "go")

    async with started(Leaving) as (engine, handle):
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert (await handle.info()).alarm_at is None
        await engine.crash()
        assert (await handle.info()).alarm_at is None


@async_test
async def test_a_commit_in_the_writer_thread_whose_outcome_is_unknown_is_not_done_twice(
    slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = Callback("once")

    class Once(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            return await self.run("call", call, returns=str)

    async with Engine(tmp_path / "a.db", [Once]) as engine:
        slow_disk.use(engine)
        commit = SqliteStore.commit
        failed: list[int] = []

        def fail_once(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            if not failed:
                failed.append(batch.number)
                raise DatabaseUnavailableError("the disk did not answer")

        monkeypatch.setattr(SqliteStore, "commit", fail_once)
        handle = engine.get(Once, "instance-1")
        assert await handle.create()
        assert await handle.result(timeout=10) == "once"

    assert len(failed) == 1
    assert call.calls == 1
    # The first batch was found to be durable: nothing was written again.
    assert [batch.number for batch in slow_disk.batches] == list(range(1, 1 + len(slow_disk.batches)))


@pytest.mark.slow
@async_test
async def test_a_foreign_transaction_that_outlasts_the_patience_of_a_commit_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Quick(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            return await self.run("call", Callback("called"), returns=str)

    async with Engine(tmp_path / "a.db", [Quick], settings=Settings(busy_timeout_s=0.001)) as engine:
        foreign = apsw.Connection(engine.url)
        foreign.execute("begin immediate")
        handle = engine.get(Quick, "instance-1")
        creating = asyncio.ensure_future(handle.create())
        async with asyncio.timeout(20):
            while caplog.text.count("waits for a foreign transaction") < 2:
                await asyncio.wait({creating}, timeout=0.01)
        assert not creating.done()
        assert await handle.status() == "pending"
        foreign.execute("rollback")
        foreign.close()

        assert await creating
        assert await handle.result(timeout=10) == "called"
        assert await lifecycle(handle) == ["created", "started", "completed"]


@async_test
async def test_a_command_whose_rows_are_refused_is_not_acknowledged_and_its_caller_is_told() -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.wait("go", "go")

    async with started(Waiting) as (engine, handle):
        query(
            engine,
            "create trigger unpausable before update of status on instances when new.status = 'paused' "
            "begin select raise(abort, 'no pause here'); end",
        )
        with pytest.raises(WorkflowHeldError, match="no pause here"):
            await asyncio.wait_for(handle.pause(), 10)
        info = await handle.info()
        assert (info.status, "no pause here" in str(info.held)) == ("running", True)

        query(engine, "drop trigger unpausable")
        await handle.resume()
        await handle.pause()
        assert await lifecycle(handle) == ["created", "started", "paused"]


@async_test
async def test_a_commit_on_the_loop_waits_for_no_foreign_transaction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What waits for a lock must be in the writer thread, since a wait on the loop's own would stop it."""
    patience: list[tuple[bool, int]] = []
    commit = SqliteStore.commit

    def noted(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        patience.append((threading.current_thread() is threading.main_thread(), busy_timeout_ms))
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)

    monkeypatch.setattr(SqliteStore, "commit", noted)

    class Quick(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            pass

    async with Engine(tmp_path / "a.db", [Quick]) as engine:
        foreign = apsw.Connection(engine.url)
        foreign.execute("begin immediate")
        creating = asyncio.ensure_future(engine.get(Quick, "instance-1").create())
        try:
            async with asyncio.timeout(20):
                while len(patience) < 2:
                    await turns()
        finally:
            foreign.close()
        assert patience[0] == (True, 0)
        assert patience[1][0] is False
        assert await creating


def test_a_keyboard_interrupt_while_the_result_is_taken_stops_the_engine_and_records_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Quick(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            await self.run("call", Callback())
            return "result"

    async def main() -> tuple[str, list[str]]:
        async with Engine(tmp_path / "a.db", [Quick]) as engine:
            handle = engine.get(Quick, "instance-1")
            await handle.create()
            return await handle.result(timeout=10), await lifecycle(handle)

    def interrupt(execution: Execution) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # As if the signal came at this moment.
        patch.setattr(Execution, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())

    assert asyncio.run(main()) == ("result", ["created", "started", "completed"])


@async_test
async def test_what_happened_after_a_batch_that_is_refused_is_applied_once(
    slow_disk: SlowDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next batch has rows of the same instance already: they are taken back before it is built anew."""
    gate = Gate("once")

    class Waiting(WorkflowDefinition[None, list[Any]]):
        async def execute(self) -> list[Any]:
            return [await self.run("call", gate, returns=str), await self.wait("go", "go")]

    async with Engine(tmp_path / "a.db", [Waiting]) as engine:
        handle = engine.get(Waiting, "instance-1")
        await handle.create()
        await gate.begun()
        poison(engine, "once")
        slow_disk.use(engine)
        slow_disk.stop()
        written = len(slow_disk.batches)
        gate.open()
        async with asyncio.timeout(10):
            while len(slow_disk.batches) == written:
                await turns()
        sending = asyncio.ensure_future(handle.send("go", 1))
        await turns()
        refused = slow_disk.mend_after_refusal("drop trigger once")
        slow_disk.go_on()

        assert await handle.result(timeout=10) == ["once", 1]
        assert await sending == "used"
        assert len(refused) == 1
        assert gate.calls == 1
        assert len((await handle.info()).inbound_events) == 1
    assert caplog.text.count("refused the rows") == 1


# Recovery.


@definition
async def Parent(self: Any) -> Any:
    """Its callback is in flight for as long as its nested wait lasts, and is entered again after a crash."""

    async def outer() -> Any:
        inner = await self.wait("inner", "inner")
        if inner == "fail":
            raise ConnectionError
        more = await self.run("more", Callback("more"), returns=str) if inner == "run" else inner
        return [more, await self.wait("last", "last")]

    return await self.run("outer", outer, retry=RetryPolicy(max_attempts=9, initial=1, factor=1))


@async_test
async def test_an_instance_whose_callback_outlives_no_process_is_held_after_so_many_of_them() -> None:
    async with started(Parent, settings=Settings(recoveries_max=2)) as (engine, handle):
        for number in (1, 2):
            await engine.crash()
            info = await handle.info()
            assert (info.recoveries, info.held) == (number, None)
        await engine.crash()
        info = await handle.info()
        assert info.recoveries == 3
        assert "kills the process" in str(info.held)

        # A person has acted: it has as many lives as before.
        await handle.resume()
        await engine.run_until_idle()
        info = await handle.info()
        assert (info.recoveries, info.held) == (0, None)
        await engine.crash()
        assert (await handle.info()).held is None
        await handle.send("inner", 1)
        await handle.send("last", 2)
        assert await handle.result(timeout=5) == [1, 2]


@pytest.mark.parametrize("outcome", ["run", "fail"])
@async_test
async def test_an_outcome_of_a_callback_resets_the_recoveries(outcome: str) -> None:
    async with started(Parent, settings=Settings(recoveries_max=2)) as (engine, handle):
        await engine.crash()
        await engine.crash()
        assert (await handle.info()).recoveries == 2
        await handle.send("inner", outcome)
        await engine.run_until_idle()
        assert (await handle.info()).recoveries == 0


@async_test
async def test_an_interruption_is_no_outcome_that_resets_the_recoveries() -> None:
    gate = Gate()

    @definition
    async def Interrupted(self: Any) -> None:
        await self.run("call", gate, retry=RetryPolicy(max_attempts=9, initial=1, factor=1))

    async with SimulatedEngine([Interrupted], settings=Settings(recoveries_max=2)) as engine:
        handle = engine.get(Interrupted, "instance-1")
        await handle.create()
        await gate.begun()
        for _ in range(2):
            await engine.crash()
            advancing = asyncio.ensure_future(engine.advance(1))
            await asyncio.wait_for(gate.begun(), 10)
            advancing.cancel()
        await engine.crash()
        info = await handle.info()
        assert (info.recoveries, gate.calls) == (3, 3)
        assert "kills the process" in str(info.held)


@async_test
async def test_a_take_over_without_a_callback_in_flight_is_no_recovery() -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.run("call", Callback())
        await self.wait("go", "go")

    async with started(Waiting, settings=Settings(recoveries_max=1, hibernate_after_s=10**7)) as (engine, handle):
        for _ in range(3):
            await engine.crash()
        info = await handle.info()
        assert (info.recoveries, info.held) == (0, None)


@async_test
async def test_an_attempt_that_a_graceful_stop_ended_leaves_the_others_of_its_step(tmp_path: Path) -> None:
    gate = Gate("called")
    failing = Callback(errors=[ConnectionError()], result="called")

    class Stopped(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            async def call() -> str:
                return str(await (failing if gate.calls else gate)())

            return await self.run("call", call, retry=RetryPolicy(max_attempts=2, initial=0))

    async with Engine(tmp_path / "stop.db", [Stopped], settings=Settings(stop_grace_s=0)) as engine:
        await engine.get(Stopped, "instance-1").create()
        await gate.begun()

    async with Engine(tmp_path / "stop.db", [Stopped]) as engine:
        handle = engine.get(Stopped, "instance-1")
        assert await handle.result(timeout=10) == "called"
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "failed", "succeeded"]


@async_test
async def test_a_callback_that_waits_for_a_nested_step_goes_on_in_the_same_attempt_after_a_graceful_stop(
    tmp_path: Path,
) -> None:
    async with Engine(tmp_path / "stop.db", [Parent]) as engine:
        handle = engine.get(Parent, "instance-1")
        await handle.create()
        await handle.send("inner", "done")
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]

    async with Engine(tmp_path / "stop.db", [Parent]) as engine:
        handle = engine.get(Parent, "instance-1")
        await handle.send("last", "end")
        assert await handle.result(timeout=10) == ["done", "end"]
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


# Memory and ownership.


@async_test
async def test_an_idle_instance_stays_in_memory_when_its_alarm_is_near() -> None:
    @definition
    async def Sleeping(self: Any) -> None:
        await self.sleep("sleep", self.input)

    async with SimulatedEngine([Sleeping], settings=Settings(hibernate_after_s=10)) as engine:
        near, far = engine.get(Sleeping, "near"), engine.get(Sleeping, "far")
        await near.create(15)
        await far.create(3600)
        await engine.advance(11)
        assert (await near.info()).owner is not None
        assert (await far.info()).owner is None
        await engine.advance(3600)
        assert [await near.status(), await far.status()] == ["completed", "completed"]


@async_test
async def test_a_held_instance_has_no_owner_and_no_alarm() -> None:
    async def nothing() -> None:
        pass

    @definition
    async def Spinning(self: Any) -> None:
        self.sleep("sleep", 3600)
        await self.wait("go", "go")
        while True:
            await asyncio.create_task(nothing())

    settings = Settings(handles_per_drive_max=100, hibernate_after_s=10)
    async with started(Spinning, settings=settings) as (engine, handle):
        info = await handle.info()
        assert (info.owner is None, info.alarm_at is None, info.held) == (False, False, None)
        await handle.send("go")
        await engine.run_until_idle()
        info = await handle.info()
        assert (info.owner, info.alarm_at, info.held is None) == (None, None, False)


@async_test
async def test_a_file_has_one_engine_that_executes_and_any_number_that_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Engine(path, [Parent]):
        with pytest.raises(DatabaseLockedError, match="in use by another engine"):
            await Engine(path, [Parent]).__aenter__()
        async with Engine(path, [Parent], execute=False) as reader:
            assert await reader.list() == []
    async with Engine(path, [Parent]):
        pass


@async_test
async def test_an_engine_whose_file_was_taken_over_writes_nothing_more_and_stops(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Parent]) as engine:
        kept = engine.get(Parent, "kept")
        await kept.create()
        before = query(engine, "select count(*) from lifecycle_events")
        # As a later engine would on a file system whose locks do not hold.
        query(engine, "update workers set incarnation = incarnation + 1, batch_number = 0")
        with pytest.raises(EngineClosedError):
            await asyncio.wait_for(engine.get(Parent, "late").create(), 10)
        with pytest.raises(EngineClosedError):
            await kept.status()
        assert query(engine, "select count(*) from lifecycle_events") == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock, again = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.acquire()
    end_read, end_write = os.pipe()
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready_write, b"!")
        os.close(end_write)
        os.read(end_read, 1)
        os._exit(0)
    try:
        assert os.read(ready_read, 1) == b"!"
        assert not again.acquire()
        lock.release()
        assert again.acquire()
        again.release()
    finally:
        for descriptor in (end_write, end_read, ready_read, ready_write):
            os.close(descriptor)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_lock_shows_is_taken_back_by_its_holder_and_not_by_a_forked_child(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert other.shown() == []
    assert lock.acquire()
    lock.show([1, 2, 3, 4])
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert (other.shown(), other.is_held_by_another(), lock.is_held_by_another()) == ([1, 2, 3, 4], True, False)
    lock.release()
    assert (other.shown(), other.is_held_by_another()) == ([], False)


# Mail.


@async_test
async def test_mail_may_hold_back_the_batches_of_an_instance_any_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @definition
    async def Ending(self: Any) -> str:
        await self.run("call", Callback())
        return "ended"

    async with SimulatedEngine([Ending]) as engine:
        write = SqliteStore._write_batch
        sent: list[int] = []

        def send_first(store: SqliteStore, raw: apsw.Connection, batch: Batch) -> dict[int, str]:
            known = {key for (key,) in raw.execute("select instance_key from instances")}
            if batch.guarded & known and len(sent) < 3:
                # Another process would have committed this just before this transaction began.
                sent.extend(batch.guarded)
                insert = (
                    "insert into mail (instance_key, kind, name, payload, sent_at) values (?, 'event', 'go', '7', 1)"
                )
                raw.execute(insert, (sent[-1],))
            return write(store, raw, batch)

        monkeypatch.setattr(SqliteStore, "_write_batch", send_first)
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await engine.run_until_idle()

        assert len(sent) == 3
        assert await handle.result(timeout=5) == "ended"
        assert len((await handle.info()).inbound_events) == 3


@async_test
async def test_mail_whose_rows_are_refused_once_is_applied_all_the_same(slow_disk: SlowDisk) -> None:
    @definition
    async def Waiting(self: Any) -> Any:
        return await self.wait("go", "go")

    async with started(Waiting) as (engine, handle):
        query(
            engine,
            "create trigger unheard before insert on inbound_events begin select raise(abort, 'not heard'); end",
        )
        refused = slow_disk.mend_after_refusal("drop trigger unheard")
        query(
            engine,
            "insert into mail (instance_key, kind, name, payload, sent_at) "
            "select instance_key, 'event', 'go', '7', 0 from instances",
        )
        await engine.run_until_idle()
        await engine.run_until_idle()

        assert len(refused) == 1
        assert await handle.result(timeout=5) == 7


@async_test
async def test_a_command_by_mail_that_comes_too_late_is_refused_and_stops_nothing() -> None:
    @definition
    async def Waiting(self: Any) -> Any:
        return await self.wait("go", "go")

    async with started(Waiting) as (engine, handle):
        await handle.pause()
        # Two processes resume it in the same moment, and a third one sends an event.
        for columns, values in (("", ""), ("", ""), (", name, payload", ", 'go', '7'")):
            kind = "event" if columns else "resume"
            query(
                engine,
                f"insert into mail (instance_key, kind, sent_at{columns}) "
                f"select instance_key, '{kind}', 0{values} from instances",
            )
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == 7
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]
        outcomes = [outcome for (outcome,) in query(engine, "select outcome from mail order by mail_id")]
        assert outcomes[0] == "done"
        assert "Cannot resume" in outcomes[1]


@async_test
async def test_a_pause_found_in_the_mail_at_a_deadline_comes_before_what_the_deadline_would_bring() -> None:
    call = Callback("called")

    @definition
    async def Pausing(self: Any) -> str:
        async def send_pause() -> None:
            query(
                engine,
                "insert into mail (instance_key, kind, sent_at) select instance_key, 'pause', 0 from instances",
            )

        await self.run("pause", send_pause)
        # A wait that is too late looks for mail first.
        with contextlib.suppress(WaitTimeoutError):
            await self.wait("late", "never", deadline=self.now() - timedelta(days=1))
        return str(await self.run("call", call, returns=str))

    async with SimulatedEngine([Pausing]) as engine:
        handle = engine.get(Pausing, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        assert await lifecycle(handle) == ["created", "started", "paused"]
        assert (await step_of(handle, "late", WaitStep)).state == "waiting"
        assert call.calls == 0

        await handle.resume()
        assert await handle.result(timeout=5) == "called"
        assert (await step_of(handle, "late", WaitStep)).state == "timed_out"


# The virtual clock.


def test_a_virtual_timer_that_is_set_again_for_now_lets_the_loop_turn_first() -> None:
    """What the timer waits for may need a turn of the loop."""
    effects = VirtualEffects(0)
    fired: list[int] = []

    def again() -> None:
        fired.append(effects.now_ms())
        if len(fired) < 10:
            effects.call_at(effects.now_ms(), again)

    effects.call_at(effects.now_ms(), again)
    assert effects.fire_due()
    assert len(fired) == 1
    assert effects.fire_due()
    assert len(fired) == 2


# Threads.


@async_test
async def test_a_thread_that_is_free_again_takes_the_callback_of_another_instance() -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    def call() -> str:
        begun.release()
        assert release.wait(30)
        return "called"

    @definition
    async def Plain(self: Any) -> str:
        result: str = await self.run("call", call, returns=str)
        return result

    async with SimulatedEngine([Plain], settings=Settings(thread_count=1)) as engine:
        first, second = engine.get(Plain, "first"), engine.get(Plain, "second")
        await first.create()
        await second.create()
        assert await asyncio.get_running_loop().run_in_executor(None, begun.acquire, True, 10)
        assert states(await step_of(second, "call", RunStep)) == []

        release.set()
        assert await first.result(timeout=10) == "called"
        assert await second.result(timeout=10) == "called"


@async_test
async def test_the_idempotency_key_differs_between_two_instances_of_one_name() -> None:
    """As it must for one that was deleted and created anew: the key is made of more than names."""
    keys: list[str] = []

    @definition
    async def Keyed(self: Any) -> None:
        async def call() -> None:
            keys.append(current_attempt().idempotency_key)

        await self.run("call", call)

    for seed in (1, 2):
        async with SimulatedEngine([Keyed], seed=seed) as engine:
            await engine.get(Keyed, "instance-1").create()
            await engine.run_until_idle()

    assert len(set(keys)) == 2


@async_test
async def test_a_plain_callback_whose_workflow_is_cancelled_before_it_began_gives_its_thread_back(
    slow_disk: SlowDisk, tmp_path: Path
) -> None:
    calls: list[str] = []

    class Plain(WorkflowDefinition[str, None]):
        async def execute(self) -> None:
            await self.run("call", calls.append, self.input, returns=None)

    async with Engine(tmp_path / "a.db", [Plain], settings=Settings(thread_count=1)) as engine:
        slow_disk.use(engine)
        slow_disk.stop()
        sending = asyncio.ensure_future(engine.get(Plain, "other").send("note"))
        await turns()
        handle = engine.get(Plain, "instance-1")
        creating = asyncio.ensure_future(handle.create("cancelled"))
        await turns()
        cancelling = asyncio.ensure_future(handle.cancel())
        await turns()
        slow_disk.go_on()
        await asyncio.gather(sending, creating, cancelling)
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]

        next_one = engine.get(Plain, "instance-2")
        await next_one.create("next")
        await next_one.result(timeout=10)
    assert calls == ["next"]


@async_test
async def test_the_end_of_execute_cancels_every_callback_in_flight_at_once() -> None:
    gates = [Gate(), Gate(), Gate()]

    @definition
    async def Ending(self: Any) -> None:
        for number, gate in enumerate(gates):
            self.run(f"call-{number}", gate)
        await self.wait("end", "end")

    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        for gate in gates:
            await gate.begun()
        await handle.send("end")
        # The clock does not move: no callback is left to the end of the grace.
        await asyncio.wait_for(engine.run_until_idle(), 10)
        assert [gate.cancellations for gate in gates] == [1, 1, 1]
        assert await handle.status() == "completed"
