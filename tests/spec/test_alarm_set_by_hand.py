"""An alarm that nobody should have set: it moves nothing that must not move. And alarms beside callbacks in flight."""

import asyncio
from datetime import timedelta

import pytest
from tests.signals import Gate, watched
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import RunStep, Settings, WaitStep
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)


@definition
async def Ending(self):
    await self.sleep("nap", 60)
    if await self.wait("how", "how") == "failed":
        raise ValueError("as asked")


async def bring(engine, handle, status):
    """Take a running instance to this status."""
    if status == "paused":
        await handle.pause()
    elif status == "cancelled":
        await handle.cancel()
    else:
        await engine.advance(60)
        await handle.send("how", status)
    await engine.run_until_idle()


@pytest.mark.spec(116, 125, 134, 135, 136, 138)
@pytest.mark.parametrize("status", ["paused", "completed", "failed", "cancelled"])
@pytest.mark.parametrize("has_crashed", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
@async_test
async def test_an_alarm_forced_on_an_instance_that_must_not_move_does_nothing(status, has_crashed, is_kept):
    runtime = watched(Ending)
    settings = Settings(hibernate_after_s=1000 if is_kept else 0)
    async with SimulatedEngine([runtime], settings=settings) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        await bring(engine, handle, status)
        steps, log, told = await handle.steps(), await lifecycle(handle), list(runtime.statuses)
        now_ms = round(engine.now().timestamp() * 1000)
        query(engine, "update instances set alarm_at = ?", now_ms + 1)

        if has_crashed:
            await engine.crash()
        await engine.advance(DAY)

        assert await handle.status() == status
        assert await handle.steps() == steps
        assert await lifecycle(handle) == log
        assert runtime.statuses == told

        if status == "paused":
            await handle.resume()
            await handle.send("how", "completed")
            await engine.run_until_idle()
            assert await handle.status() == "completed"


@pytest.mark.spec(138)
@async_test
async def test_an_alarm_forced_on_a_running_instance_wakes_no_sleep_early():
    async with started(Ending, settings=Settings(hibernate_after_s=0)) as (engine, handle):
        wake_at = engine.now() + timedelta(seconds=60)
        query(engine, "update instances set alarm_at = 1")
        await engine.crash()
        await engine.advance(59)
        assert (await handle.info()).alarm_at == wake_at
        assert [step.id for step in await handle.steps()] == ["nap"]

        await engine.advance(1)
        assert [step.id for step in await handle.steps()] == ["nap", "how"]


@pytest.mark.spec(111)
@async_test
async def test_failing_fast_over_a_slow_run_and_a_wait_has_the_deadline_of_the_wait_as_its_alarm():
    slow = Gate("done")

    @definition
    async def FailFast(self):
        return await asyncio.gather(self.run("slow", slow, returns=str), self.wait("payment", "paid", int, timeout=DAY))

    async with SimulatedEngine([FailFast]) as engine:
        handle = engine.get(FailFast, "instance-1")
        await handle.create()
        await slow.begun()
        deadline = engine.now() + DAY

        assert states(await step_of(handle, "slow", RunStep)) == ["started"]
        assert (await handle.info()).alarm_at == deadline
        slow.open()
        await engine.run_until_idle()
        assert states(await step_of(handle, "slow", RunStep)) == ["succeeded"]
        assert (await handle.info()).alarm_at == deadline

        await engine.advance(DAY)
        assert (await step_of(handle, "payment", WaitStep)).state == "timed_out"
        assert await lifecycle(handle) == ["created", "started", "failed"]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(137)
@async_test
async def test_an_instance_in_mid_callback_is_taken_over_at_the_next_start_without_any_alarm():
    gate, after = Gate("called"), Callback("after")

    @definition
    async def InFlight(self):
        await self.run("call", gate, returns=str)
        return await self.run("after", after, returns=str)

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await gate.begun()
        assert (await handle.info()).alarm_at is None

        await engine.crash()
        gate.open()
        await engine.advance(0.25)

        assert await handle.result(timeout=5) == "after"
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "succeeded"]
