"""Run steps that fail: retries, back-off, exhaustion, and the same error on every replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RunStep,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowRuntimeContext,
)
from workerflow.core.model import to_datetime
from workerflow.testing import SimulatedEngine

MILLISECOND = timedelta(milliseconds=1)
OFFSETS_MS = [250, 500, 1000, 2000, 4000, 8000, 10000, 10000, 10000]


def one_step(callback: Any, **options: Any) -> type[WorkflowDefinition[Any, Any]]:
    @definition
    async def workflow(self: Any) -> Any:
        return await self.run("step", callback, **options)

    return workflow


class Hanging:
    """A callback whose first calls never end; later ones return."""

    def __init__(self, hanging_calls: int) -> None:
        self.calls = 0
        self.has_entered = asyncio.Event()
        self._hanging_calls = hanging_calls

    async def __call__(self) -> str:
        self.calls += 1
        self.has_entered.set()
        if self.calls <= self._hanging_calls:
            await asyncio.Event().wait()
        return "done"


@pytest.mark.spec(39)
@async_test
async def test_non_retryable_error_ends_the_step_after_one_attempt() -> None:
    callback = Callback(always=NonRetryableStepError("card declined"))

    async with started(one_step(callback)) as (engine, handle):
        await engine.advance(60)
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError")
        assert attempt.error_message == "NonRetryableStepError: card declined"
        assert callback.calls == 1
        assert await handle.status() == "failed"


@pytest.mark.spec(40)
@async_test
async def test_error_at_every_attempt_exhausts_them_and_fails_the_workflow() -> None:
    callback = Callback(always=RuntimeError("test"))

    async with started(one_step(callback, max_attempts=2)) as (engine, handle):
        await engine.advance(60)
        first, second = (await step_of(handle, "step", RunStep)).attempts

        assert (first.number, first.state) == (1, "failed")
        assert (second.number, second.state) == (2, "failed")
        assert (second.error_name, second.error_message) == ("RuntimeError", "RuntimeError: test")
        assert callback.calls == 2
        assert await handle.status() == "failed"


@pytest.mark.spec(41)
@async_test
async def test_step_that_fails_once_and_then_succeeds_completes_the_workflow() -> None:
    callback = Callback("done", errors=[RuntimeError("transient")])

    async with started(one_step(callback)) as (engine, handle):
        assert await handle.status() == "running"
        await engine.advance(60)

        assert states(await step_of(handle, "step", RunStep)) == ["failed", "succeeded"]
        assert await handle.result(timeout=5) == "done"
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(42)
@pytest.mark.parametrize(("failures", "expected"), [(1, 2), (2, 3)])
@async_test
async def test_always_replay_takes_one_more_pass_for_each_retry(failures: int, expected: int) -> None:
    passes: list[Any] = []
    callback = Callback(errors=[RuntimeError("transient")] * failures)

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        await self.run("step", callback)

    async with started(workflow, always_replay=True) as (engine, handle):
        await engine.advance(60)

        assert await handle.status() == "completed"
        assert len(passes) == expected
        assert callback.calls == failures + 1


@pytest.mark.spec(42)
@pytest.mark.normal_only("it counts the entries of execute()")
@async_test
async def test_normal_mode_retries_without_another_pass() -> None:
    passes: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        await self.run("step", Callback(errors=[RuntimeError("transient")]))

    async with started(workflow) as (engine, handle):
        await engine.advance(1)

        assert await handle.status() == "completed"
        assert len(passes) == 1


@pytest.mark.spec(43)
@async_test
async def test_default_is_three_attempts() -> None:
    callback = Callback(always=RuntimeError("test"))

    async with started(one_step(callback)) as (engine, handle):
        await engine.advance(60)
        step = await step_of(handle, "step", RunStep)

        assert (step.max_attempts, states(step)) == (3, ["failed"] * 3)
        assert callback.calls == 3
        assert await handle.status() == "failed"
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(44)
@async_test
async def test_first_failure_plans_the_next_attempt_250_ms_later() -> None:
    async with started(one_step(Callback(always=RuntimeError("test")))) as (engine, handle):
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert attempt.next_attempt_at == engine.now() + 250 * MILLISECOND
        assert (await handle.info()).alarm_at == attempt.next_attempt_at


@pytest.mark.spec(44)
def test_step_store_plans_the_next_attempt_250_ms_after_the_failure() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("step", now=to_datetime(0))
    context.handle_run_attempt_started("step", now=to_datetime(10))

    attempt = context.handle_run_attempt_failed("step", "transient", now=to_datetime(1_000))

    assert (attempt.state, attempt.error_message) == ("failed", "transient")
    assert attempt.next_attempt_at == to_datetime(1_250)


@pytest.mark.spec(45)
@async_test
async def test_back_off_doubles_from_250_ms_up_to_10_s() -> None:
    callback = Callback(always=RuntimeError("test"))

    async with started(one_step(callback, max_attempts=10)) as (engine, handle):
        await engine.advance(120)
        attempts = (await step_of(handle, "step", RunStep)).attempts

        offsets = [
            (attempt.next_attempt_at - attempt.ended_at) / MILLISECOND
            for attempt in attempts
            if attempt.next_attempt_at is not None and attempt.ended_at is not None
        ]
        assert offsets == OFFSETS_MS
        assert [attempt.number for attempt in attempts] == list(range(1, 11))
        assert attempts[-1].next_attempt_at is None
        # Each retry began when it was due: neither early nor late.
        assert [attempt.started_at for attempt in attempts[1:]] == [
            attempt.next_attempt_at for attempt in attempts[:-1]
        ]
        assert await handle.status() == "failed"


@pytest.mark.spec(46)
@async_test
async def test_last_allowed_failure_plans_nothing() -> None:
    async with started(one_step(Callback(always=RuntimeError("test")), max_attempts=1)) as (_engine, handle):
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.next_attempt_at) == ("failed", None)
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(46)
@async_test
async def test_non_retryable_failure_plans_nothing_whatever_attempts_are_left() -> None:
    callback = Callback(always=NonRetryableStepError("x"))

    async with started(one_step(callback, max_attempts=10)) as (_engine, handle):
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.next_attempt_at) == ("failed", None)
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(46)
@pytest.mark.parametrize(("max_attempts", "is_non_retryable"), [(1, False), (10, True)])
def test_step_store_plans_nothing_after_a_final_failure(max_attempts: int, is_non_retryable: bool) -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("step", now=to_datetime(0), max_attempts=max_attempts)
    context.handle_run_attempt_started("step", now=to_datetime(0))

    attempt = context.handle_run_attempt_failed("step", "x", now=to_datetime(1), is_non_retryable=is_non_retryable)

    assert (attempt.state, attempt.next_attempt_at) == ("failed", None)


@pytest.mark.spec(47, 48)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_retry_runs_when_it_is_due_and_not_a_millisecond_before(has_crashed: bool) -> None:
    callback = Callback("done", errors=[RuntimeError("transient")])

    async with started(one_step(callback)) as (engine, handle):
        due_at = engine.now() + 250 * MILLISECOND
        if has_crashed:
            await engine.crash()
        await engine.advance(249 * MILLISECOND)

        assert callback.calls == 1
        assert states(await step_of(handle, "step", RunStep)) == ["failed"]
        assert (await handle.status(), (await handle.info()).alarm_at) == ("running", due_at)

        await engine.advance(MILLISECOND)

        assert callback.calls == 2
        _, second = (await step_of(handle, "step", RunStep)).attempts
        assert (second.number, second.state, second.started_at) == (2, "succeeded", due_at)
        assert await handle.result(timeout=5) == "done"


@pytest.mark.spec(49, 50)
@pytest.mark.parametrize(
    ("error", "caught_class"),
    [
        (NonRetryableStepError("declined", {"code": 51}), NonRetryableStepError),
        (RuntimeError("no answer"), MaxAttemptsExceededError),
    ],
)
@async_test
async def test_failure_for_good_may_be_caught_and_is_the_same_on_replay(
    error: Exception, caught_class: type[Exception]
) -> None:
    caught: list[Any] = []
    callback = Callback(always=error)

    @definition
    async def workflow(self: Any) -> str:
        try:
            await self.run("charge", callback, max_attempts=1)
        except Exception as problem:
            caught.append(problem)
        await self.wait("wait", "go")
        return "compensated"

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == "compensated"
        assert callback.calls == 1
        assert len(caught) >= 2
        assert {type(problem) for problem in caught} == {caught_class}
        assert len({str(problem) for problem in caught}) == 1
        for problem in caught:
            original = problem if caught_class is NonRetryableStepError else problem.__cause__
            assert (type(original), str(original)) == (type(error), str(error))
            assert getattr(original, "data", None) == getattr(error, "data", None)


@pytest.mark.spec(49)
@async_test
async def test_failure_for_good_fails_the_workflow_after_a_crash_without_running_the_callback() -> None:
    callback = Callback(always=NonRetryableStepError("declined"))

    @definition
    async def workflow(self: Any) -> None:
        charge = self.run("charge", callback)
        await self.wait("wait", "go")
        await charge

    async with started(workflow) as (engine, handle):
        assert await handle.status() == "running"
        await engine.crash()
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.status() == "failed"
        assert callback.calls == 1
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=5)
        assert (caught.value.error_name, caught.value.error_message) == ("NonRetryableStepError", "declined")


@pytest.mark.spec(50)
@async_test
async def test_exhaustion_raises_max_attempts_exceeded_error_that_names_the_step() -> None:
    caught: list[MaxAttemptsExceededError] = []

    @definition
    async def workflow(self: Any) -> None:
        try:
            await self.run("charge-card", Callback(always=ValueError("no answer")), max_attempts=2)
        except MaxAttemptsExceededError as error:
            caught.append(error)
            raise

    async with started(workflow) as (engine, handle):
        await engine.advance(1)

        (error,) = caught
        assert error.step_id == "charge-card"
        assert "charge-card" in str(error)
        assert (type(error.__cause__), str(error.__cause__)) == (ValueError, "no answer")
        failure = (await handle.info()).failure
        assert failure is not None
        assert failure.name == "MaxAttemptsExceededError"
        assert "charge-card" in failure.message


class OddlyNamedError(Exception):
    pass


OddlyNamedError.__name__ = ""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.spec(51)
@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (KeyError("missing"), "KeyError", "KeyError: 'missing'"),
        (ValueError(), "ValueError", "ValueError: "),
        (ExceptionGroup("both", [ValueError("a"), KeyError("b")]), "ExceptionGroup", None),
        (UnprintableError(), "UnprintableError", None),
        (OddlyNamedError("odd text"), None, None),
    ],
    ids=["text", "empty-text", "group", "unprintable", "empty-name"],
)
@async_test
async def test_stored_error_is_its_class_and_text_and_its_name_is_never_empty(
    error: Exception, name: str | None, message: str | None
) -> None:
    async with started(one_step(Callback(always=error), max_attempts=1)) as (_engine, handle):
        assert await handle.status() == "failed"
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert attempt.state == "failed"
        assert attempt.error_name != ""
        assert attempt.error_message
        if isinstance(error, OddlyNamedError):
            assert "odd text" in attempt.error_message
        if name is not None:
            assert attempt.error_name == name
        if message is not None:
            assert attempt.error_message.rstrip() == message.rstrip()


@pytest.mark.spec(51)
@pytest.mark.parametrize("error_name", [None, ""])
def test_step_store_never_stores_an_empty_error_name(error_name: str | None) -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("step", now=to_datetime(0))
    context.handle_run_attempt_started("step", now=to_datetime(0))

    attempt = context.handle_run_attempt_failed("step", "plain text", now=to_datetime(1), error_name=error_name)

    assert (attempt.error_name, attempt.error_message) == (None, "plain text")


@pytest.mark.spec(52)
@async_test
async def test_attempt_cut_by_a_crash_is_recorded_failed_and_is_retried_after_the_normal_back_off() -> None:
    callback = Hanging(hanging_calls=1)
    workflow = one_step(callback, max_attempts=2)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await callback.has_entered.wait()
        await engine.crash()

        (attempt,) = (await step_of(handle, "step", RunStep)).attempts
        assert (attempt.state, attempt.error_name) == ("failed", None)
        assert attempt.error_message is not None
        assert "interrupted" in attempt.error_message
        assert "durably recorded" in attempt.error_message
        assert attempt.next_attempt_at == engine.now() + 250 * MILLISECOND
        assert callback.calls == 1

        await engine.advance(0.25)

        assert states(await step_of(handle, "step", RunStep)) == ["failed", "succeeded"]
        assert await handle.result(timeout=5) == "done"
        assert callback.calls == 2


@pytest.mark.spec(52)
@async_test
async def test_interrupted_attempt_counts_against_the_limit() -> None:
    callback = Hanging(hanging_calls=1)
    workflow = one_step(callback, max_attempts=1)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await callback.has_entered.wait()
        await engine.crash()
        await engine.advance(60)

        (attempt,) = (await step_of(handle, "step", RunStep)).attempts
        assert (attempt.state, attempt.next_attempt_at) == ("failed", None)
        assert callback.calls == 1
        assert await handle.status() == "failed"
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(53)
@async_test
async def test_outer_callback_that_raises_after_its_inner_step_leaves_the_inner_success() -> None:
    inner = Callback("inner")

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.run("inner", inner)
            raise RuntimeError("outer-only failure")

        await self.run("outer", outer, max_attempts=1)

    async with started(workflow) as (_engine, handle):
        assert states(await step_of(handle, "inner", RunStep)) == ["succeeded"]
        outer_attempt = (await step_of(handle, "outer", RunStep)).attempts[-1]
        assert (outer_attempt.state, outer_attempt.error_message) == ("failed", "RuntimeError: outer-only failure")
        assert await handle.status() == "failed"


@pytest.mark.spec(53)
@async_test
async def test_retries_of_an_outer_callback_find_the_inner_success() -> None:
    inner = Callback("inner")
    values = []

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            values.append(await self.run("inner", inner))
            raise RuntimeError("outer-only failure")

        await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)

        assert states(await step_of(handle, "outer", RunStep)) == ["failed"] * 3
        assert states(await step_of(handle, "inner", RunStep)) == ["succeeded"]
        assert (inner.calls, values) == (1, ["inner"] * 3)
        assert await handle.status() == "failed"


@pytest.mark.spec(41, 44)
@async_test
async def test_plain_function_that_fails_is_retried() -> None:
    calls: list[Any] = []

    def charge() -> str:
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("transient")
        return "done"

    async with started(one_step(charge)) as (engine, handle):
        first = (await step_of(handle, "step", RunStep)).attempts[0]
        assert (first.state, first.error_message) == ("failed", "RuntimeError: transient")
        assert first.next_attempt_at == engine.now() + 250 * MILLISECOND

        await engine.advance(0.25)

        assert await handle.result(timeout=5) == "done"


@pytest.mark.spec(47)
@async_test
async def test_crashes_during_the_back_off_neither_run_the_callback_nor_move_the_retry() -> None:
    callback = Callback(errors=[RuntimeError("transient")])

    async with started(one_step(callback)) as (engine, handle):
        before = await handle.steps()
        for _ in range(5):
            await engine.crash()
            await engine.advance(10 * MILLISECOND)

        assert await handle.steps() == before
        assert callback.calls == 1


@pytest.mark.spec(52)
@async_test
async def test_interruption_of_one_branch_leaves_the_finished_branch_as_it_is() -> None:
    hanging, finished = Hanging(hanging_calls=1), Callback("finished")

    @definition
    async def workflow(self: Any) -> list[Any]:
        quick = self.run("quick", finished)
        slow = self.run("slow", hanging)
        return [await quick, await slow]

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await hanging.has_entered.wait()
        await engine.crash()
        await engine.advance(60)

        assert await handle.result(timeout=5) == ["finished", "done"]
        assert states(await step_of(handle, "slow", RunStep)) == ["failed", "succeeded"]
        quick_states = states(await step_of(handle, "quick", RunStep))
        assert quick_states[-1] == "succeeded"
        assert finished.calls == len(quick_states)
