"""Sleeps: the wake time is fixed when the sleep is first reached."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import RunStep, SleepStep, StepError, WorkflowRuntimeContext
from workerflow.core.model import to_datetime, to_milliseconds

NOW = to_datetime(1_000)
LATER = to_datetime(61_000)


@definition
async def sleeper(self: Any) -> str:
    await self.sleep("hour", timedelta(hours=1))
    return "awake"


@pytest.mark.spec(54)
def test_new_sleep_is_waiting_and_has_its_wake_time() -> None:
    step = WorkflowRuntimeContext().get_or_create_sleep_step("sleep-1", LATER, now=NOW)

    assert step == SleepStep("sleep-1", None, NOW, "waiting", LATER)
    assert (step.type, step.resolved_at) == ("sleep", None)


@pytest.mark.spec(54)
@async_test
async def test_sleep_of_a_workflow_is_waiting_and_has_its_wake_time() -> None:
    async with started(sleeper) as (engine, handle):
        step = await step_of(handle, "hour", SleepStep)

        assert (step.type, step.state, step.parent_step_id, step.resolved_at) == ("sleep", "waiting", None, None)
        assert step.wake_at == engine.now() + timedelta(hours=1)


@pytest.mark.spec(55)
def test_sleep_asked_for_again_is_the_same_row_with_the_first_wake_time() -> None:
    context = WorkflowRuntimeContext()
    first = context.get_or_create_sleep_step("sleep-1", LATER, now=NOW)

    second = context.get_or_create_sleep_step("sleep-1", to_datetime(5), now=to_datetime(2_000))

    assert second == first
    assert context.steps() == [first]


@pytest.mark.spec(55)
@async_test
async def test_replay_that_asks_for_another_duration_keeps_the_first_wake_time() -> None:
    hours = 1

    @definition
    async def workflow(self: Any) -> None:
        await self.sleep("sleep", timedelta(hours=hours))

    async with started(workflow) as (engine, handle):
        before = await step_of(handle, "sleep", SleepStep)
        hours = 5
        await engine.crash()

        assert await step_of(handle, "sleep", SleepStep) == before
        await engine.advance(timedelta(hours=1))
        assert await handle.status() == "completed"


@pytest.mark.spec(56)
@async_test
async def test_wake_time_counts_from_first_reaching_the_sleep_and_not_from_replay() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.wait("wait", "go")
        await self.sleep("sleep", timedelta(minutes=10))

    async with started(workflow) as (engine, handle):
        await engine.advance(timedelta(minutes=3))
        reached = engine.now()
        await handle.send("go")
        await engine.advance(timedelta(minutes=4))
        await engine.crash()

        step = await step_of(handle, "sleep", SleepStep)
        assert (step.created_at, step.wake_at) == (reached, reached + timedelta(minutes=10))
        await engine.advance(timedelta(minutes=6))
        assert (await step_of(handle, "sleep", SleepStep)).resolved_at == reached + timedelta(minutes=10)
        assert await handle.status() == "completed"


@pytest.mark.spec(57)
@async_test
async def test_sleep_suspends_the_workflow_and_the_alarm_is_its_wake_time() -> None:
    after = Callback()

    @definition
    async def workflow(self: Any) -> None:
        await self.sleep("sleep", timedelta(hours=2))
        await self.run("after", after)

    async with started(workflow) as (engine, handle):
        wake_at = engine.now() + timedelta(hours=2)
        assert (await handle.status(), (await handle.info()).alarm_at) == ("running", wake_at)

        await engine.advance(timedelta(hours=2) - timedelta(milliseconds=1))

        assert (await step_of(handle, "sleep", SleepStep)).state == "waiting"
        assert (after.calls, (await handle.info()).alarm_at) == (0, wake_at)

        await engine.advance(timedelta(milliseconds=1))

        assert await handle.status() == "completed"
        assert (after.calls, (await handle.info()).alarm_at) == (1, None)


@pytest.mark.spec(58)
@async_test
async def test_sleep_reached_at_its_wake_time_elapses_and_the_following_pass_goes_beyond_it() -> None:
    passes: list[Any] = []
    beyond = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        await self.sleep("sleep", 0)
        beyond.append(len(passes))

    async with started(workflow, always_replay=True) as (engine, handle):
        step = await step_of(handle, "sleep", SleepStep)

        assert (step.state, step.resolved_at) == ("elapsed", engine.now())
        assert await handle.status() == "completed"
        assert (len(passes), beyond) == (2, [2])


@pytest.mark.spec(58)
@async_test
async def test_sleep_reached_after_its_wake_time_because_nothing_ran_elapses_at_once() -> None:
    @definition
    async def workflow(self: Any) -> str:
        await self.sleep_until("sleep", self.now() - timedelta(days=1))
        return "awake"

    async with started(workflow) as (engine, handle):
        step = await step_of(handle, "sleep", SleepStep)

        assert (step.state, step.resolved_at) == ("elapsed", engine.now())
        assert step.wake_at == engine.now() - timedelta(days=1)
        assert await handle.result(timeout=5) == "awake"


@pytest.mark.spec(59)
@pytest.mark.parametrize(("always_replay", "expected"), [(True, 2), (False, 1)])
@async_test
async def test_zero_length_sleep_in_a_callback_elapses_and_the_run_succeeds(always_replay: bool, expected: int) -> None:
    passes: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)

        async def outer() -> None:
            await self.sleep("sleep-inside", 0)

        await self.run("outer", outer)

    async with started(workflow, always_replay=always_replay) as (_engine, handle):
        sleep = await step_of(handle, "sleep-inside", SleepStep)

        assert await handle.status() == "completed"
        assert (sleep.state, sleep.parent_step_id) == ("elapsed", "outer")
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert len(passes) == expected


@pytest.mark.spec(59)
@async_test
async def test_run_before_a_zero_length_sleep_stays_succeeded() -> None:
    before = Callback()

    @definition
    async def workflow(self: Any) -> None:
        await self.run("before-sleep", before)
        await self.sleep("sleep-after-run", 0)

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.status() == "completed"
        assert (states(await step_of(handle, "before-sleep", RunStep)), before.calls) == (["succeeded"], 1)
        assert (await step_of(handle, "sleep-after-run", SleepStep)).state == "elapsed"


@pytest.mark.spec(60)
def test_waiting_sleep_marked_elapsed_has_its_resolution_time() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_sleep_step("sleep-1", NOW, now=NOW)

    marked = context.handle_sleep_step_elapsed("sleep-1", now=LATER)

    assert (marked.state, marked.resolved_at) == ("elapsed", LATER)
    assert context.get_or_create_sleep_step("sleep-1", NOW, now=LATER) == marked


@pytest.mark.spec(61)
def test_marking_a_sleep_elapsed_twice_is_refused_and_changes_nothing() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_sleep_step("sleep-1", LATER, now=NOW)
    marked = context.handle_sleep_step_elapsed("sleep-1", now=NOW)

    with pytest.raises(StepError, match="Expected 'waiting' but got elapsed"):
        context.handle_sleep_step_elapsed("sleep-1", now=LATER)

    assert context.steps() == [marked]


@pytest.mark.spec(62)
def test_marking_an_unknown_sleep_elapsed_is_refused() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("run-1", now=NOW)

    with pytest.raises(StepError, match="not found"):
        context.handle_sleep_step_elapsed("nonexistent", now=NOW)
    with pytest.raises(StepError, match="not found"):
        context.handle_sleep_step_elapsed("run-1", now=NOW)


@pytest.mark.spec(63)
def test_marking_a_sleep_elapsed_does_not_check_the_clock() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_sleep_step("sleep-1", LATER, now=NOW)

    assert context.handle_sleep_step_elapsed("sleep-1", now=NOW).state == "elapsed"


@pytest.mark.spec(64)
@async_test
async def test_elapsed_sleep_keeps_its_wake_time_in_storage() -> None:
    async with started(sleeper) as (engine, handle):
        wake_at = engine.now() + timedelta(hours=1)
        await engine.advance(timedelta(hours=3))

        assert await handle.result(timeout=5) == "awake"
        assert (await step_of(handle, "hour", SleepStep)).wake_at == wake_at
        assert query(engine, "select state, wake_at from steps") == [("elapsed", to_milliseconds(wake_at))]
