"""What an engine leaves behind when it stops: nothing stranded, nothing lost, and nothing done any more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, states, step_of

from workerflow import Engine, EngineClosedError, RunStep, Settings
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore


async def turns(count: int) -> None:
    """Let the loop turn, so that everything that is ready happens."""
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


# A graceful stop.


@pytest.mark.parametrize("following", ["async", "plain", "sleep", "retry"])
@async_test
async def test_what_follows_a_callback_that_ended_while_the_engine_stopped_is_done_by_the_next_engine(
    following: str, tmp_path: Path
) -> None:
    retried = following == "retry"
    first = Gate(error=ValueError("not yet") if retried else None)
    again, second = Callback(), Callback("second")
    plain_calls: list[int] = []

    def plain() -> str:
        plain_calls.append(1)
        return "second"

    @definition
    async def Two(self: Any) -> Any:
        # Another callback after the restart: the first one raises for ever.
        await self.run("first", again if second_engine else first, max_attempts=2)
        if following == "sleep":
            await self.sleep("moment", 0.001)
        return await self.run("second", plain if following == "plain" else second)

    second_engine = False
    async with Engine(tmp_path / "stop.db", [Two]) as engine:
        await engine.get(Two, "instance-1").create()
        await first.begun()
        # It ends when the engine is stopping already.
        asyncio.get_running_loop().call_soon(first.open)
    assert again.calls == second.calls == len(plain_calls) == 0

    second_engine = True
    async with Engine(tmp_path / "stop.db", [Two]) as engine:
        assert await engine.get(Two, "instance-1").result(timeout=10) == "second"
    assert (first.calls, again.calls) == (1, int(retried))


@async_test
async def test_a_callback_whose_start_is_being_written_when_the_engine_stops_has_its_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, is_written, written = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    commit = SqliteStore.commit
    calls: list[int] = []

    async def call() -> str:
        calls.append(1)
        # It takes longer than everything else that the engine does when it stops, and not as long as its grace.
        done: asyncio.Future[str] = loop.create_future()
        loop.call_later(0.2, done.set_result, "called")
        return await done

    def held(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        if batch.rows.attempt_start and threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(is_written.set)
            assert written.wait(20)
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)

    @definition
    async def Idle(self: Any) -> None:
        await self.wait("end", "end")

    @definition
    async def Once(self: Any) -> Any:
        return await self.run("call", call, at_most_once=True)

    # After the first commit, which took more than no time, the others are written in a thread.
    async with Engine(tmp_path / "stop.db", [Idle, Once], settings=Settings(inline_commit_ms=0)) as engine:
        await engine.get(Idle, "instance-1").create()
        monkeypatch.setattr(SqliteStore, "commit", held)
        creating = asyncio.ensure_future(engine.get(Once, "instance-1").create())
        await is_written.wait()
        loop.call_soon(written.set)
    assert await creating

    async with Engine(tmp_path / "stop.db", [Idle, Once]) as engine:
        handle = engine.get(Once, "instance-1")
        assert await handle.result(timeout=10) == "called"
        assert states(await step_of(handle, "call", RunStep)) == ["succeeded"]
    assert calls == [1]


@pytest.mark.parametrize("ends", ["within the grace", "never"])
@async_test
async def test_a_stop_with_steps_left_to_start_is_over_with_its_callbacks_and_reports_no_trouble(
    ends: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @definition
    async def Chain(self: Any) -> None:
        for number in range(5):
            await self.run(f"step-{number}", gate)

    settings = Settings(stop_grace_s=0 if ends == "never" else 4)
    async with Engine(tmp_path / "stop.db", [Chain], settings=settings) as engine:
        for number in range(10):
            await engine.get(Chain, str(number)).create()
            await gate.begun()
        if ends != "never":
            asyncio.get_running_loop().call_soon(gate.open)

    # Giving up on the database is logged; so is everything else that goes wrong on the way.
    assert [record.getMessage() for record in caplog.records if record.name == "workerflow"] == []
    assert gate.calls == 10
    assert gate.cancellations == (10 if ends == "never" else 0)
    steps = query(engine, "select step_id, state, counts, count(*) from attempts group by 1, 2, 3")
    assert steps == [("step-0", "failed", 0, 10) if ends == "never" else ("step-0", "succeeded", 1, 10)]


@pytest.mark.parametrize("hibernate_after_s", [0, 60])
@async_test
async def test_an_alarm_that_comes_while_the_engine_stops_is_left_to_the_next_one_and_holds_up_nothing(
    hibernate_after_s: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate, after = Gate(), Callback("woken")

    @definition
    async def Sleeping(self: Any) -> Any:
        await self.sleep("moment", 0.5)
        return await self.run("after", after)

    @definition
    async def Busy(self: Any) -> None:
        await self.run("call", gate)

    settings = Settings(hibernate_after_s=hibernate_after_s, stop_grace_s=4)
    async with Engine(tmp_path / "stop.db", [Sleeping, Busy], settings=settings) as engine:
        await engine.get(Busy, "instance-1").create()
        await gate.begun()
        await engine.get(Sleeping, "instance-1").create()
        # The engine waits for this callback; the alarm comes before it ends.
        asyncio.get_running_loop().call_later(0.8, gate.open)
    assert [record.getMessage() for record in caplog.records if record.name == "workerflow"] == []
    assert after.calls == 0

    async with Engine(tmp_path / "stop.db", [Sleeping, Busy]) as engine:
        assert await engine.get(Sleeping, "instance-1").result(timeout=10) == "woken"
        assert await engine.get(Busy, "instance-1").result(timeout=10) is None
    assert gate.calls == 1


@pytest.mark.slow
@async_test
async def test_an_engine_that_can_write_nothing_waits_once_when_it_stops_and_loses_only_what_it_had_not_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate("called")

    @definition
    async def Busy(self: Any) -> Any:
        return await self.run("call", gate)

    foreign = apsw.Connection(str(tmp_path / "stop.db"))
    try:
        async with Engine(tmp_path / "stop.db", [Busy], settings=Settings(stop_grace_s=0)) as engine:
            await engine.get(Busy, "instance-1").create()
            await gate.begun()
            foreign.execute("begin immediate")
            creating = asyncio.ensure_future(engine.get(Busy, "instance-2").create())
            await turns(5)
            assert not creating.done()
    finally:
        foreign.close()
    with pytest.raises(EngineClosedError):
        await creating
    # Giving up is told once: each more would be another wait of the same length.
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1

    gate.open()
    async with Engine(tmp_path / "stop.db", [Busy]) as engine:
        assert await engine.get(Busy, "instance-1").result(timeout=10) == "called"
        assert await engine.get(Busy, "instance-2").status() == "pending"


# An engine that has stopped in the middle.


@pytest.mark.parametrize("cause", ["another engine has the file", "keyboard interrupt"])
@async_test
async def test_an_engine_that_has_stopped_reads_and_drives_nothing_any_more(cause: str, tmp_path: Path) -> None:
    driven: list[str] = []
    call = Gate(error=KeyboardInterrupt())

    @definition
    async def Waiting(self: Any) -> None:
        driven.append("Waiting")
        await self.wait("go", "go")

    @definition
    async def Interrupted(self: Any) -> None:
        await self.run("call", call)

    workflows = [Waiting, Interrupted]
    async with (
        Engine(tmp_path / "stop.db", workflows, settings=Settings(poll_interval_ms=1)) as engine,
        Engine(tmp_path / "stop.db", workflows, execute=False) as client,
    ):
        await engine.get(Waiting, "instance-1").create()
        await engine.get(Interrupted, "instance-1").create()
        await call.begun()
        if cause == "keyboard interrupt":
            call.open()
        else:
            query(engine, "update workers set incarnation = incarnation + 1, batch_number = 0")
            with pytest.raises(EngineClosedError):
                await engine.get(Waiting, "instance-2").create()
        with pytest.raises(EngineClosedError):
            await engine.get(Waiting, "instance-1").result(timeout=10)
        driven.clear()

        # The hint of this mail is there when the sender has its receipt.
        await client.get(Waiting, "instance-1").send("go")
        await client.get(Waiting, "instance-3").create()
        await turns(50)

        assert driven == []
        assert query(engine, "select count(*) from mail where taken_at is null") == [(2,)]

    async with Engine(tmp_path / "stop.db", [Waiting]) as engine:
        assert await engine.get(Waiting, "instance-1").result(timeout=10) is None
