"""Section 12: the alarm, the one time at which an instance wants to be woken."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.signals import Gate, watched
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import RunStep, Settings, SleepStep, WorkflowRuntimeContext
from workerflow.core.journal import Journal
from workerflow.core.rows import WRITE_ORDER, Rows
from workerflow.testing import SimulatedEngine
from workerflow.worker.wake_ups import CLAIM_MAX

DAY = timedelta(days=1)


async def alarm_in(engine, handle):
    """How long until the alarm, or None."""
    at = (await handle.info()).alarm_at
    return None if at is None else at - engine.now()


@pytest.mark.spec(134, 135, 136)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_there_is_no_alarm_after_the_end_whatever_was_still_pending(end):
    @definition
    async def Ending(self):
        self.sleep("long", DAY)
        self.wait("never", "never", timeout=DAY / 2)
        if await self.wait("how", "how") == "failed":
            raise ValueError

    async with started(Ending) as (engine, handle):
        assert await alarm_in(engine, handle) == DAY / 2

        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()

        assert await handle.status() == end
        assert await alarm_in(engine, handle) is None
        await engine.advance(2 * DAY)
        assert await lifecycle(handle) == ["created", "started", end]


@pytest.mark.spec(134)
@async_test
async def test_there_is_no_alarm_after_a_workflow_whose_steps_had_all_ended():
    call = Callback(errors=[ConnectionError()])

    @definition
    async def Steps(self):
        await self.run("call", call)
        await self.sleep("minute", 60)

    async with started(Steps) as (engine, handle):
        await engine.advance(120)
        assert await handle.status() == "completed"
        assert await alarm_in(engine, handle) is None


@pytest.mark.spec(137, 67)
@async_test
async def test_a_workflow_that_only_an_event_can_wake_has_no_alarm():
    """No watchdog: it would replay every idle workflow twice an hour for ever."""
    bodies: list[object] = []

    @definition
    async def Listener(self):
        bodies.append(self)
        await self.wait("payment", "paid")

    async with started(Listener) as (engine, handle):
        assert await alarm_in(engine, handle) is None
        await engine.advance(DAY)
        assert await alarm_in(engine, handle) is None
        assert len(bodies) == 1


@pytest.mark.spec(137)
@async_test
async def test_no_alarm_is_kept_for_a_callback_in_flight():
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await gate.begun()
        assert await alarm_in(engine, handle) is None
        gate.open()


@pytest.mark.spec(138)
@async_test
async def test_an_alarm_while_a_callback_is_in_flight_starts_no_second_one():
    gate = Gate("called")

    @definition
    async def Side(self):
        sleep = asyncio.ensure_future(self.sleep("minute", 60))
        called = await self.run("call", gate, timeout=DAY, returns=str)
        await sleep
        return called

    async with SimulatedEngine([Side]) as engine:
        handle = engine.get(Side, "instance-1")
        await handle.create()
        await gate.begun()
        assert await alarm_in(engine, handle) == timedelta(seconds=60)

        await engine.advance(3600)
        assert gate.calls == 1
        assert states(await step_of(handle, "call", RunStep)) == ["started"]
        assert (await step_of(handle, "minute", SleepStep)).state == "elapsed"

        gate.open()
        assert await handle.result(timeout=5) == "called"
        assert gate.calls == 1


@pytest.mark.spec(138)
@async_test
async def test_an_alarm_drives_a_workflow_that_is_not_in_memory():
    @definition
    async def Sleeper(self):
        await self.sleep("day", DAY)

    async with started(Sleeper) as (engine, handle):
        await engine.crash()
        assert await alarm_in(engine, handle) == DAY
        await engine.advance(DAY - timedelta(milliseconds=1))
        assert await handle.status() == "running"
        await engine.advance(timedelta(milliseconds=1))
        assert await handle.status() == "completed"


@pytest.mark.spec(138)
@async_test
async def test_time_after_the_end_tells_hooks_nothing():
    @definition
    async def Sleeper(self):
        await self.sleep("day", DAY)

    runtime = watched(Sleeper)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.cancel()
        await engine.advance(2 * DAY)
        assert runtime.statuses == ["running", "cancelled"]


@pytest.mark.spec(139)
def test_the_step_store_never_touches_the_alarm():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    rows = Rows()
    context = WorkflowRuntimeContext(Journal(1, rows))

    for _ in range(2):
        context.get_or_create_sleep_step("night", now + DAY, now=now)
        context.get_or_create_wait_step("payment", "paid", now=now, timeout_at=now + DAY)
        context.get_or_create_run_step("call", now=now)
    context.handle_run_attempt_started("call", now=now)
    context.handle_run_attempt_failed("call", "Error: no", now=now)

    written = {name for name in WRITE_ORDER if getattr(rows, name)}
    assert written == {"step_insert", "attempt_start", "attempt_end"}


@pytest.mark.spec(140)
@async_test
async def test_the_alarm_is_the_earliest_of_all_pending_deadlines():
    failing = Callback(always=ConnectionError())

    @definition
    async def Several(self):
        await asyncio.gather(
            self.sleep("long", DAY),
            self.wait("payment", "paid", timeout=7200),
            self.sleep("short", 60),
            self.run("call", failing, max_attempts=2),
            return_exceptions=True,
        )
        await self.wait("end", "end")

    async with started(Several) as (engine, handle):
        assert await alarm_in(engine, handle) == timedelta(milliseconds=250)
        await engine.advance(1)
        assert await alarm_in(engine, handle) == timedelta(seconds=59)
        await engine.advance(59)
        assert await alarm_in(engine, handle) == timedelta(seconds=7140)
        await engine.advance(7140)
        assert await alarm_in(engine, handle) == DAY - timedelta(seconds=7200)
        await engine.advance(DAY)
        assert await alarm_in(engine, handle) is None
        assert await handle.status() == "running"


@pytest.mark.spec(140)
@async_test
async def test_deadlines_of_nested_steps_count_for_the_alarm():
    @definition
    async def Nesting(self):
        async def outer():
            await self.sleep("inner", 60)

        await asyncio.gather(self.run("outer", outer), self.sleep("long", DAY))

    async with started(Nesting) as (engine, handle):
        assert await alarm_in(engine, handle) == timedelta(seconds=60)
        await engine.advance(60)
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert await alarm_in(engine, handle) == DAY - timedelta(seconds=60)


@async_test
async def test_more_alarms_in_one_moment_than_are_taken_up_at_a_time_are_all_served():
    @definition
    async def Sleeping(self):
        await self.sleep("night", 3600)

    async with SimulatedEngine([Sleeping], settings=Settings(hibernate_after_s=0)) as engine:
        handles = [engine.get(Sleeping, f"s-{number}") for number in range(2 * CLAIM_MAX + 1)]
        await asyncio.gather(*(handle.create() for handle in handles))
        await engine.advance(3600)

        assert await engine.list(status="running") == []
        assert len(await engine.list(status="completed", limit=1000)) == 1000
