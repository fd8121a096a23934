"""Section 10: pause and resume."""

import contextlib
from datetime import timedelta

import pytest
from tests.signals import Gate, watched
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import RunStep, SleepStep, WaitStep, WorkflowStateError
from workerflow.testing import SimulatedEngine


@definition
async def Sleeper(self):
    await self.sleep("hour", 3600)
    return "slept"


@definition
async def Listener(self):
    return await self.wait("payment", "paid", int)


@pytest.mark.spec(116)
@async_test
async def test_pausing_a_running_workflow_leaves_no_alarm_and_time_does_not_move_it():
    async with started(Sleeper) as (engine, handle):
        assert (await handle.info()).alarm_at == engine.now() + timedelta(hours=1)

        await handle.pause()
        assert await handle.status() == "paused"
        assert (await handle.info()).alarm_at is None

        await engine.advance(timedelta(hours=2))
        assert await handle.status() == "paused"
        assert (await step_of(handle, "hour", SleepStep)).state == "waiting"


@pytest.mark.spec(117)
@async_test
async def test_the_status_hook_is_told_of_pause_and_resume():
    runtime = watched(Listener)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.pause()
        assert runtime.statuses == ["running", "paused"]
        await handle.resume()
        assert runtime.statuses == ["running", "paused", "running"]


@pytest.mark.spec(118)
@async_test
async def test_pausing_twice_is_pausing_once():
    async with started(Listener) as (_, handle):
        await handle.pause()
        await handle.pause()
        assert await handle.status() == "paused"
        assert await lifecycle(handle) == ["created", "started", "paused"]


@pytest.mark.spec(119)
@async_test
async def test_pausing_a_pending_workflow_changes_nothing():
    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        await handle.send("other")
        await handle.pause()
        assert await handle.status() == "pending"
        assert await lifecycle(handle) == ["created"]


@pytest.mark.spec(119)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_pausing_a_workflow_that_has_ended_changes_nothing(end):
    @definition
    async def Ending(self):
        if await self.wait("how", "how") == "failed":
            raise ValueError

    async with started(Ending) as (engine, handle):
        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()
        log = await lifecycle(handle)

        await handle.pause()

        assert await handle.status() == end
        assert await lifecycle(handle) == log == ["created", "started", end]


@pytest.mark.spec(120)
@async_test
async def test_a_resumed_workflow_runs_on_and_completes():
    async with started(Listener) as (_, handle):
        await handle.pause()
        await handle.resume()
        assert await handle.status() == "running"

        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == 7


@pytest.mark.spec(121)
@async_test
async def test_a_running_workflow_cannot_be_resumed():
    async with started(Listener) as (_, handle):
        with pytest.raises(WorkflowStateError) as refused:
            await handle.resume()

        assert str(refused.value) == "Cannot resume workflow: expected status 'paused' but got 'running'."
        assert refused.value.status == "running"
        assert await lifecycle(handle) == ["created", "started"]


@pytest.mark.spec(122)
@async_test
async def test_a_pending_workflow_cannot_be_resumed():
    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        with pytest.raises(WorkflowStateError) as refused:
            await handle.resume()

        assert str(refused.value) == "Cannot resume workflow: expected status 'paused' but got 'pending'."
        assert await handle.status() == "pending"


@pytest.mark.spec(2, 122)
@pytest.mark.parametrize("verb", ["pause", "resume"])
@async_test
async def test_a_verb_that_an_unknown_workflow_cannot_follow_does_not_make_it(verb):
    """Only ``create``, an event, and a cancellation, which has to be remembered, are a first touch."""
    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        with contextlib.suppress(WorkflowStateError):
            await getattr(handle, verb)()
        await engine.run_until_idle()
        assert await engine.list() == []


@pytest.mark.spec(122)
@async_test
async def test_a_workflow_that_has_ended_cannot_be_resumed():
    async with started(Listener) as (_, handle):
        await handle.cancel()
        with pytest.raises(WorkflowStateError, match="expected status 'paused' but got 'cancelled'"):
            await handle.resume()
        assert await handle.status() == "cancelled"


@pytest.mark.spec(123)
@async_test
async def test_the_log_of_a_paused_workflow_is_created_started_paused():
    async with started(Listener) as (_, handle):
        await handle.pause()
        assert await lifecycle(handle) == ["created", "started", "paused"]


@pytest.mark.spec(124, 79)
@async_test
async def test_the_log_of_a_workflow_paused_resumed_and_completed_says_so():
    async with started(Listener) as (_, handle):
        await handle.pause()
        await handle.send("paid", 7)
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"

        await handle.resume()
        assert await handle.result(timeout=5) == 7
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]


@pytest.mark.spec(125)
@async_test
async def test_time_does_not_drive_a_paused_workflow_after_a_restart_either():
    async with started(Sleeper) as (engine, handle):
        await handle.pause()
        await engine.crash()
        await engine.advance(timedelta(hours=2))
        assert await handle.status() == "paused"
        assert (await step_of(handle, "hour", SleepStep)).state == "waiting"

        await handle.resume()
        assert await handle.result(timeout=5) == "slept"


@pytest.mark.spec(125)
@async_test
async def test_a_sleep_keeps_its_wake_time_over_a_pause():
    async with started(Sleeper) as (engine, handle):
        await engine.advance(timedelta(minutes=20))
        await handle.pause()
        await engine.advance(timedelta(minutes=20))
        await handle.resume()
        await engine.run_until_idle()
        assert (await handle.info()).alarm_at == engine.now() + timedelta(minutes=20)

        await engine.advance(timedelta(minutes=20) - timedelta(milliseconds=1))
        assert await handle.status() == "running"
        await engine.advance(timedelta(milliseconds=1))
        assert await handle.status() == "completed"


@pytest.mark.spec(126)
@async_test
async def test_a_callback_in_flight_at_pause_ends_and_is_recorded_and_the_next_step_waits_for_resume():
    first, second = Gate("first"), Callback("second")

    @definition
    async def TwoSteps(self):
        return [await self.run("first", first, returns=str), await self.run("second", second, returns=str)]

    async with SimulatedEngine([TwoSteps]) as engine:
        handle = engine.get(TwoSteps, "instance-1")
        await handle.create()
        await first.begun()
        await handle.pause()
        assert await handle.status() == "paused"
        assert states(await step_of(handle, "first", RunStep)) == ["started"]

        first.open()
        await engine.run_until_idle()
        assert states(await step_of(handle, "first", RunStep)) == ["succeeded"]
        assert [step.id for step in await handle.steps()] == ["first"]
        assert second.calls == 0

        await handle.resume()
        assert await handle.result(timeout=5) == ["first", "second"]
        assert (first.calls, first.cancellations, second.calls) == (1, 0, 1)


@pytest.mark.spec(127)
@async_test
async def test_a_retry_planned_while_paused_sets_no_alarm_until_the_resume():
    failing = Gate(error=ConnectionError("no answer"))

    @definition
    async def Retrying(self):
        await self.run("call", failing, max_attempts=2)

    async with SimulatedEngine([Retrying]) as engine:
        handle = engine.get(Retrying, "instance-1")
        await handle.create()
        await failing.begun()
        await handle.pause()
        failing.open()
        await engine.run_until_idle()
        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert attempt.next_attempt_at == engine.now() + timedelta(milliseconds=250)
        assert (await handle.info()).alarm_at is None

        await engine.advance(10)
        assert failing.calls == 1
        assert await handle.status() == "paused"

        await handle.resume()
        await engine.run_until_idle()
        assert failing.calls == 2
        assert await handle.status() == "failed"
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(127)
@async_test
async def test_a_nested_step_asked_for_while_paused_waits_for_the_resume_and_leaves_no_alarm():
    gate, inner = Gate(), Callback("inner")

    @definition
    async def Nesting(self):
        async def outer():
            await gate()
            await self.sleep("pause", 60)
            return await self.run("inner", inner, returns=str)

        return await self.run("outer", outer, returns=str)

    async with SimulatedEngine([Nesting]) as engine:
        handle = engine.get(Nesting, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.pause()
        gate.open()
        await engine.run_until_idle()
        assert [step.id for step in await handle.steps()] == ["outer"]
        assert (await handle.info()).alarm_at is None

        await handle.resume()
        await engine.advance(60)
        assert await handle.result(timeout=5) == "inner"
        assert inner.calls == 1
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(128)
@async_test
async def test_a_crash_right_after_a_resume_does_not_stall_the_workflow():
    gate = Gate()
    after = Callback("after")

    @definition
    async def TwoSteps(self):
        await self.run("first", gate)
        return await self.run("after", after, returns=str)

    async with SimulatedEngine([TwoSteps]) as engine:
        handle = engine.get(TwoSteps, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.pause()
        gate.open()
        await engine.run_until_idle()

        await handle.resume()
        await engine.crash()
        # The step after it may have been started and interrupted: then its next attempt is due after the back-off.
        await engine.advance(1)
        assert await handle.status() == "completed"
        assert (gate.calls, after.calls) == (1, 1)


@pytest.mark.spec(120)
@async_test
async def test_a_pause_taken_back_at_once_loses_nothing():
    gate = Gate("done")

    @definition
    async def OneStep(self):
        return await self.run("step", gate, returns=str)

    async with SimulatedEngine([OneStep]) as engine:
        handle = engine.get(OneStep, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.pause()
        await handle.resume()
        gate.open()
        assert await handle.result(timeout=5) == "done"
        assert gate.calls == 1
