"""Section 11: cancel."""

import asyncio
from datetime import timedelta

import apsw
import pytest
from tests.signals import Gate, attempt_states, watched
from tests.support import Callback, async_test, definition, lifecycle, started, step_of

from workerflow import RunStep, WorkflowCancelledError
from workerflow.testing import SimulatedEngine


@definition
async def Sleeper(self):
    await self.sleep("hour", 3600)


@pytest.mark.spec(129)
@async_test
async def test_cancelling_ends_the_workflow_and_the_log_carries_the_reason():
    async with started(Sleeper) as (_, handle):
        await handle.cancel("customer left")

        assert await handle.status() == "cancelled"
        events = await handle.events()
        assert [event.type for event in events] == ["created", "started", "cancelled"]
        assert [event.cancellation_reason for event in events] == [None, None, "customer left"]
        with pytest.raises(WorkflowCancelledError) as cancelled:
            await handle.result(timeout=5)
        assert cancelled.value.reason == "customer left"


@pytest.mark.spec(130)
@async_test
async def test_a_pending_workflow_can_be_cancelled_without_a_reason():
    async with SimulatedEngine([Sleeper]) as engine:
        handle = engine.get(Sleeper, "instance-1")
        await handle.cancel()

        assert await handle.status() == "cancelled"
        events = await handle.events()
        assert [(event.type, event.cancellation_reason) for event in events] == [("created", None), ("cancelled", None)]

        await handle.create()
        await engine.run_until_idle()
        assert await handle.status() == "cancelled"
        assert await handle.steps() == []


@pytest.mark.spec(131)
@async_test
async def test_cancelling_a_running_workflow_leaves_no_alarm():
    async with started(Sleeper) as (engine, handle):
        assert (await handle.info()).alarm_at is not None
        await handle.cancel()
        assert (await handle.info()).alarm_at is None

        await engine.advance(timedelta(hours=2))
        assert await handle.status() == "cancelled"
        assert await lifecycle(handle) == ["created", "started", "cancelled"]


@pytest.mark.spec(131)
@async_test
async def test_a_paused_workflow_can_be_cancelled():
    async with started(Sleeper) as (_, handle):
        await handle.pause()
        await handle.cancel()
        assert await handle.status() == "cancelled"
        assert (await handle.info()).alarm_at is None
        assert await lifecycle(handle) == ["created", "started", "paused", "cancelled"]


@pytest.mark.spec(131)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_cancelling_a_workflow_that_has_ended_changes_nothing(end):
    @definition
    async def Ending(self):
        if await self.wait("how", "how") == "failed":
            raise ValueError

    async with started(Ending) as (engine, handle):
        await (handle.cancel("first") if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()
        before = await handle.events()

        await handle.cancel("second")

        assert await handle.status() == end
        assert await handle.events() == before


@pytest.mark.spec(132)
@async_test
async def test_cancelling_cancels_the_callbacks_in_flight_and_ends_their_attempts_at_once():
    gate, after = Gate(), Callback()

    @definition
    async def InFlight(self):
        await self.run("call", gate)
        await self.run("after", after)

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await gate.begun()

        await handle.cancel()

        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert (attempt.state, attempt.next_attempt_at) == ("failed", None)
        assert "cancelled" in str(attempt.error_message)
        await engine.run_until_idle()
        assert (gate.calls, gate.cancellations, after.calls) == (1, 1, 0)
        assert await handle.status() == "cancelled"


@pytest.mark.spec(132)
@async_test
async def test_a_late_result_of_a_callback_that_will_not_be_cancelled_is_refused():
    gate = Gate()

    @definition
    async def Stubborn(self):
        async def call():
            try:
                await gate()
            except asyncio.CancelledError:
                return "late"

        await self.run("call", call, returns=str)

    async with SimulatedEngine([Stubborn]) as engine:
        handle = engine.get(Stubborn, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.cancel()
        before = await handle.steps()
        await engine.run_until_idle()

        assert gate.cancellations == 1
        assert await handle.steps() == before
        assert attempt_states(before) == {"call": ["failed"]}


@pytest.mark.spec(132)
@async_test
async def test_a_cancelled_workflow_stays_so_over_a_crash_with_its_callback_still_in_flight():
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    runtime = watched(InFlight)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.cancel()
        await engine.crash()

        assert await handle.status() == "cancelled"
        assert gate.calls == 1
        assert runtime.statuses == ["running", "cancelled"]


@pytest.mark.spec(133)
@async_test
async def test_the_database_lets_only_a_cancellation_hold_a_reason():
    async with started(Sleeper) as (engine, handle):
        await handle.pause()
        database = apsw.Connection(engine.url)
        insert = (
            "insert into lifecycle_events (instance_key, number, type, recorded_at, reason) "
            "select instance_key, 9, ?, updated_at, ? from instances"
        )
        with pytest.raises(apsw.ConstraintError):
            database.execute(insert, ("resumed", "because"))
        # The same row without its reason: it was the reason that was refused.
        database.execute(insert, ("resumed", None))
        database.close()
