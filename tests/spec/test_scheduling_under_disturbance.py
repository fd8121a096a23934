"""Section 15: what is due is done, and the alarm is there again, whatever happens around it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.signals import Gate
from tests.spec.test_scheduling import DAY, HOUR, alarm_after
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import DatabaseUnavailableError, RetryPolicy, RunStep, Settings, SleepStep
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine


@pytest.mark.spec(162, 164, 171)
@async_test
async def test_a_callback_in_flight_adds_no_alarm_of_its_own_to_the_one_of_a_later_step() -> None:
    """No watchdog: the sleep is further ahead than any time after which a callback could be called stuck."""
    gate = Gate()

    @definition
    async def InFlight(self: Any) -> None:
        await asyncio.gather(self.run("call", gate), self.sleep("nap", 2 * HOUR))

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await gate.begun()
        assert states(await step_of(handle, "call", RunStep)) == ["started"]
        assert await alarm_after(engine, handle) == timedelta(hours=2)

        gate.open()
        await engine.run_until_idle()
        assert await alarm_after(engine, handle) == timedelta(hours=2)


PENDING: list[tuple[str, str, float | None]] = [
    ("all-of-them", "", HOUR),
    ("sleep-and-wait", "call", 2 * HOUR),
    ("sleep", "call payment", 3 * HOUR),
    ("wait-without-deadline", "call payment nap", None),
]


@pytest.mark.spec(167, 171)
@pytest.mark.parametrize(("abandoned", "expected"), [row[1:] for row in PENDING], ids=[row[0] for row in PENDING])
@async_test
async def test_an_alarm_that_was_lost_is_set_again_when_the_steps_are_read_again(
    abandoned: str, expected: float | None
) -> None:
    @definition
    async def Pending(self: Any) -> None:
        steps = {
            "other": self.wait("other", "other"),
            "nap": self.sleep("nap", 3 * HOUR),
            "payment": self.wait("payment", "paid", timeout=2 * HOUR),
            "call": self.run("call", call, retry=RetryPolicy(initial=HOUR, maximum=HOUR)),
        }
        await self.run("parted", Callback())
        for step_id in abandoned.split():
            steps[step_id].cancel()
        await self.wait("end", "end")

    call = Callback(always=ConnectionError("no answer"))
    async with started(Pending) as (engine, handle):
        expected_alarm = None if expected is None else timedelta(seconds=expected)
        assert await alarm_after(engine, handle) == expected_alarm
        query(engine, "update instances set alarm_at = null")

        # The event makes every engine read it, the one that let it hibernate too.
        await engine.crash()
        await handle.send("nothing-waits-for-this")
        await engine.run_until_idle()
        assert await alarm_after(engine, handle) == expected_alarm


@pytest.mark.spec(166)
@pytest.mark.parametrize("order", [("go", "rest"), ("rest", "go")], ids=["go-first", "rest-first"])
@async_test
async def test_what_is_to_be_done_at_once_is_not_put_off_by_a_later_deadline_of_the_same_moment(
    order: tuple[str, str],
) -> None:
    call = Callback("called")

    @definition
    async def Branching(self: Any) -> Any:
        async def rest() -> None:
            await self.wait("rest", "rest")
            await self.sleep("long", DAY)

        resting = asyncio.ensure_future(rest())
        await self.wait("go", "go")
        called = await self.run("call", call, returns=str)
        await resting
        return called

    async with started(Branching) as (engine, handle):
        await asyncio.gather(*(handle.send(name) for name in order))
        # Acknowledged, and maybe nothing of what follows is done: the next engine must find it without an alarm.
        await engine.crash()
        await engine.advance(1)
        assert states(await step_of(handle, "call", RunStep))[-1] == "succeeded"
        assert (await step_of(handle, "long", SleepStep)).state == "waiting"
        await engine.advance(DAY)
        assert await handle.result(timeout=5) == "called"


@pytest.mark.spec(168)
@async_test
async def test_an_event_accepted_while_the_body_comes_to_its_wait_is_used_in_one_more_pass() -> None:
    passes: list[object] = []

    @definition
    async def Waiting(self: Any) -> Any:
        passes.append(self)
        return await self.wait("payment", "paid")

    async with SimulatedEngine([Waiting], always_replay=True) as engine:
        handle = engine.get(Waiting, "instance-1")
        await handle.create()
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == 7
        assert len(passes) == 2
        assert await alarm_after(engine, handle) is None


@pytest.mark.spec(169)
@async_test
async def test_a_parallel_run_that_succeeds_beside_a_sleep_is_followed_at_once_and_leaves_the_alarm_of_the_sleep() -> (
    None
):
    passes: list[object] = []
    gate, after = Gate(), Callback()

    @definition
    async def Parallel(self: Any) -> None:
        async def calls() -> None:
            await self.run("call", gate)
            await self.run("after", after)

        passes.append(self)
        await asyncio.gather(calls(), self.sleep("nap", HOUR))

    # Kept in memory: hibernation would cost passes of its own.
    async with SimulatedEngine([Parallel], always_replay=True, settings=Settings(hibernate_after_s=DAY)) as engine:
        handle = engine.get(Parallel, "instance-1")
        await handle.create()
        await gate.begun()
        assert len(passes) == 1
        gate.open()
        await engine.run_until_idle()
        assert len(passes) == 2
        assert (gate.calls, after.calls) == (1, 1)
        assert await alarm_after(engine, handle) == timedelta(hours=1)

        await engine.advance(HOUR)
        assert await handle.status() == "completed"
        assert len(passes) == 3


@pytest.mark.spec(170)
@async_test
async def test_a_pause_and_a_resume_while_the_body_ends_are_both_recorded_before_its_end() -> None:
    @definition
    async def Ending(self: Any) -> Any:
        return await self.run("last", last, returns=str)

    async def last() -> str:
        calls.append("last")
        await handle.pause()
        # The callback is over before the resume is: the body can end in between, and must not.
        resuming.append(asyncio.ensure_future(handle.resume()))
        return "over"

    calls: list[str] = []
    resuming: list[asyncio.Future[Any]] = []
    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        assert await handle.result(timeout=5) == "over"
        await asyncio.gather(*resuming)
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]
        assert calls == ["last"]
        assert await alarm_after(engine, handle) is None


@pytest.mark.spec(173)
@async_test
async def test_a_crash_while_an_alarm_is_served_loses_nothing_and_costs_no_wait_for_a_later_alarm() -> None:
    """The alarm goes in the commit that elapses the sleep; the owner that the same commit names stands for it."""
    gate = Gate("called")

    @definition
    async def Sleeping(self: Any) -> Any:
        await self.sleep("nap", HOUR)
        return await self.run("call", gate, returns=str, timeout=DAY)

    async with started(Sleeping) as (engine, handle):
        await engine.advance(HOUR)
        assert await gate.begun() == 1
        assert await alarm_after(engine, handle) is None
        await engine.crash()
        # Only the back-off of the attempt that the crash has interrupted.
        assert await alarm_after(engine, handle) == timedelta(milliseconds=250)
        gate.open()
        await engine.advance(0.25)
        assert await handle.result(timeout=5) == "called"
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "succeeded"]


@pytest.mark.spec(173)
@async_test
async def test_a_crash_before_anything_of_an_alarm_is_durable_leaves_the_alarm_and_it_fires_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @definition
    async def Sleeping(self: Any) -> Any:
        await self.sleep("nap", HOUR)
        return "over"

    failed = asyncio.Event()

    def fail(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        failed.set()
        raise DatabaseUnavailableError("the disk did not answer")

    async with started(Sleeping) as (engine, handle):
        await engine.advance(HOUR - 1)
        with monkeypatch.context() as patches:
            patches.setattr(SqliteStore, "commit", fail)
            advancing = asyncio.ensure_future(engine.advance(1))
            await failed.wait()
            assert (await handle.info()).alarm_at == engine.now()
            assert (await step_of(handle, "nap", SleepStep)).state == "waiting"
            advancing.cancel()
            await asyncio.gather(advancing, return_exceptions=True)

        await engine.crash()
        await engine.run_until_idle()
        assert await handle.result(timeout=5) == "over"
