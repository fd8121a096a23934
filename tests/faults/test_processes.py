"""Signals, freezes, forks, closed loops, clocks that are set, and kills within an opening or a mail."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.faults import processes
from tests.faults.processes import elsewhere
from tests.faults.table import Budget, Row, show
from tests.signals import Gate
from tests.support import Callback, async_test, definition
from workerflow import Engine, RetryPolicy, Settings, WorkflowDefinition

pytestmark = pytest.mark.slow

HOUR_S = 3600
BOUND_S = 3.0

# Points: how many are taken here; the script takes all of them.
SWEEPS: dict[str, tuple[Callable[[Budget], list[Row]], int]] = {
    "SIGTERM, once and twice, under load": (processes.signals, 16),
    "SIGSTOP and SIGCONT": (processes.freezes, 8),
    "kills within the migration, then ten starts at once": (processes.openings, 12),
    "kills within a create by mail": (processes.mails, 12),
    "a fork with an open engine": (processes.forks, 1),
    "a disk that is full at start": (processes.full_disks, 8),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_process_may_be_struck_anywhere_and_nothing_is_lost_or_done_twice(
    name: str, request: pytest.FixtureRequest
) -> None:
    sweep, points = SWEEPS[name]
    seed = time.time_ns() % 10**6  # noqa: TID251  # other points in every run; printed on failure

    rows = elsewhere(sweep, Budget(points, seed, request.config.getoption("mode")))

    assert [row.problems for row in rows] == [[]] * len(rows), f"seed {seed}\n{show(rows)}"
    assert [row.lost for row in rows] == [row.duplicates for row in rows] == [0] * len(rows)
    assert all(row.points for row in rows)
    assert sum(row.points for row in rows) >= points


@pytest.mark.parametrize("is_collected", [False, True], ids=["closed on the new loop", "collected"])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_an_engine_that_its_closed_loop_left_open_can_be_followed_by_another(kind: str, is_collected: bool) -> None:
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    assert elsewhere(processes.loops, kind, is_collected) == ["result 5"]


# Clocks. The wall clock is set while the monotonic one goes on, as an operator or a time server does it.


class Clock:
    """What the engine knows of the module time."""

    def __init__(self) -> None:
        self.offset_s = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.offset_s * 10**9  # noqa: TID251  # the clock that is set

    def monotonic(self) -> float:
        return time.monotonic()  # noqa: TID251  # the one that nobody sets


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("workerflow.effects.time", clock)
    return clock


def sleeping(delay_s: float) -> type[WorkflowDefinition[Any, Any]]:
    @definition
    async def Sleeping(self: Any) -> str:
        await self.sleep("sleep", delay_s)
        return "over"

    return Sleeping


def waiting(delay_s: float) -> type[WorkflowDefinition[Any, Any]]:
    @definition
    async def Waiting(self: Any) -> str:
        try:
            await self.wait("wait", "never", timeout=delay_s)
        except TimeoutError:
            return "over"
        return "used"

    return Waiting


def retrying(delay_s: float) -> type[WorkflowDefinition[Any, Any]]:
    call = Callback("over", errors=[ValueError("the first try fails")])

    @definition
    async def Retrying(self: Any) -> Any:
        policy = RetryPolicy(initial=delay_s, maximum=delay_s)
        return await self.run("call", call, retry=policy)

    return Retrying


def timing_out(delay_s: float) -> type[WorkflowDefinition[Any, Any]]:
    call = Gate()

    @definition
    async def TimingOut(self: Any) -> str:
        try:
            await self.run("call", call, timeout=delay_s, max_attempts=1)
        except Exception:
            return "over"
        return "ended"

    return TimingOut


TIMERS = {"sleep": sleeping, "wait": waiting, "retry": retrying, "timeout of a callback": timing_out}


async def until_alarm(engine: Engine, workflow: type[WorkflowDefinition[Any, Any]]) -> None:
    """Return when the timer of the instance has been set."""
    handle = engine.get(workflow, "instance-1")
    await handle.create()
    while not await handle.steps() or ((await handle.info()).alarm_at is None and "TimingOut" not in workflow.__name__):
        await asyncio.to_thread(lambda: None)


@pytest.mark.parametrize("timer", TIMERS)
@async_test
async def test_a_timer_is_neither_early_nor_an_hour_late_when_the_clock_goes_back(
    timer: str, tmp_path: Path, clock: Clock
) -> None:
    workflow = TIMERS[timer](0.3)
    loop = asyncio.get_running_loop()
    async with Engine(tmp_path / "clock.db", [workflow], settings=Settings(stop_grace_s=0.1)) as engine:
        began_s = loop.time()
        await until_alarm(engine, workflow)
        clock.offset_s -= HOUR_S
        assert await engine.get(workflow, "instance-1").result(timeout=BOUND_S) == "over"
        assert loop.time() - began_s >= 0.3


@pytest.mark.parametrize("timer", [name for name in TIMERS if name != "timeout of a callback"])
@async_test
async def test_a_timer_of_an_hour_is_over_when_the_clock_goes_forward_an_hour(
    timer: str, tmp_path: Path, clock: Clock
) -> None:
    workflow = TIMERS[timer](HOUR_S)
    async with Engine(tmp_path / "clock.db", [workflow]) as engine:
        await until_alarm(engine, workflow)
        with pytest.raises(TimeoutError):
            await engine.get(workflow, "instance-1").result(timeout=0.1)
        clock.offset_s += HOUR_S
        assert await engine.get(workflow, "instance-1").result(timeout=BOUND_S) == "over"


@async_test
async def test_the_timeout_of_a_callback_is_not_over_when_the_clock_goes_forward_an_hour(
    tmp_path: Path, clock: Clock
) -> None:
    workflow = timing_out(HOUR_S / 2)
    async with Engine(tmp_path / "clock.db", [workflow], settings=Settings(stop_grace_s=0)) as engine:
        await until_alarm(engine, workflow)
        clock.offset_s += HOUR_S
        with pytest.raises(TimeoutError):
            await engine.get(workflow, "instance-1").result(timeout=0.7)


@definition
async def Listening(self: Any) -> Any:
    return await self.wait("wait", "go")


@async_test
async def test_mail_is_found_without_a_hint_after_the_clock_went_back(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "clock.db"
    async with Engine(path, [Listening]) as engine, Engine(path, [Listening], execute=False) as sender:
        await engine.get(Listening, "instance-1").create()
        os.unlink(f"{path}-hint")  # noqa: PTH108  # which ASYNC240 refuses here
        clock.offset_s -= HOUR_S
        await sender.get(Listening, "instance-1").send("go", 1)
        # The sender beside it polls for the result, by the same clock.
        assert await sender.get(Listening, "instance-1").result(timeout=BOUND_S) == 1


@async_test
async def test_a_commit_that_was_put_off_is_made_at_its_time_though_the_clock_went_back(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "clock.db"
    async with Engine(path, [Listening]) as engine:
        handle = engine.get(Listening, "instance-1")
        await handle.create()
        foreign = apsw.Connection(str(path))
        foreign.execute("begin immediate")
        sending = asyncio.ensure_future(handle.send("go", 1))
        while "waits for a foreign transaction" not in caplog.text:
            await asyncio.to_thread(lambda: None)
        clock.offset_s -= HOUR_S
        foreign.close()
        async with asyncio.timeout(BOUND_S):
            await sending
        assert await handle.result(timeout=BOUND_S) == 1


@async_test
async def test_a_graceful_stop_lasts_its_grace_though_the_clock_goes_back_meanwhile(
    tmp_path: Path, clock: Clock
) -> None:
    workflow = timing_out(HOUR_S)
    loop = asyncio.get_running_loop()
    engine = Engine(tmp_path / "clock.db", [workflow], settings=Settings(stop_grace_s=0.3))
    await engine.__aenter__()
    await until_alarm(engine, workflow)
    loop.call_later(0.1, lambda: setattr(clock, "offset_s", -HOUR_S))
    began_s = loop.time()
    await engine.__aexit__(None, None, None)
    assert 0.3 <= loop.time() - began_s < BOUND_S
