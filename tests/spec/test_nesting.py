"""Steps inside the callbacks of run steps: parents, suspension, failure."""

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
    SleepStep,
    WaitStep,
    WaitTimeoutError,
    WorkflowFailedError,
    WorkflowHeldError,
    WorkflowRuntimeContext,
)
from workerflow.core.model import to_datetime
from workerflow.testing import SimulatedEngine

NOW = to_datetime(1_000)
LATER = to_datetime(61_000)


@pytest.mark.spec(96)
@async_test
async def test_three_nested_runs_have_their_callers_as_parents_and_no_failed_attempt() -> None:
    @definition
    async def workflow(self: Any) -> Any:
        async def outermost() -> Any:
            return await self.run("level-1", middle)

        async def middle() -> Any:
            return await self.run("level-2", Callback("leaf"))

        return await self.run("level-0", outermost)

    async with started(workflow) as (_engine, handle):
        steps = [await step_of(handle, step_id, RunStep) for step_id in ("level-0", "level-1", "level-2")]

        assert await handle.result(timeout=5) == "leaf"
        assert [step.parent_step_id for step in steps] == [None, "level-0", "level-1"]
        assert [states(step) for step in steps] == [["succeeded"]] * 3


@pytest.mark.spec(97)
@async_test
async def test_root_run_after_a_nested_one_has_no_parent() -> None:
    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.run("nested-inner", Callback())

        await self.run("nested-outer", outer)
        await self.run("root-after", Callback())

    async with started(workflow) as (_engine, handle):
        root_after = await step_of(handle, "root-after", RunStep)

        assert await handle.status() == "completed"
        assert (root_after.parent_step_id, states(root_after)) == (None, ["succeeded"])
        assert (await step_of(handle, "nested-inner", RunStep)).parent_step_id == "nested-outer"


@pytest.mark.spec(97)
@async_test
async def test_root_run_beside_a_nested_one_has_no_parent() -> None:
    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.run("inner-1", Callback())
            await self.run("inner-2", Callback())

        await asyncio.gather(self.run("outer", outer), self.run("beside", Callback()))

    async with started(workflow) as (_engine, handle):
        parents = {step.id: step.parent_step_id for step in await handle.steps()}

        assert await handle.status() == "completed"
        assert parents == {"outer": None, "beside": None, "inner-1": "outer", "inner-2": "outer"}


@pytest.mark.spec(98)
@async_test
async def test_sleep_in_a_callback_has_the_run_as_parent() -> None:
    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.sleep("nap", 60)

        await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        nap = await step_of(handle, "nap", SleepStep)
        assert (nap.state, nap.parent_step_id) == ("waiting", "outer")
        assert (await handle.info()).alarm_at == engine.now() + timedelta(seconds=60)

        await engine.advance(60)

        nap = await step_of(handle, "nap", SleepStep)
        assert (nap.state, nap.parent_step_id) == ("elapsed", "outer")
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert await handle.status() == "completed"


@pytest.mark.spec(99, 101, 102)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_wait_in_a_callback_has_the_run_as_parent_before_and_after_its_event(has_crashed: bool) -> None:
    @definition
    async def workflow(self: Any) -> Any:
        async def outer() -> Any:
            return await self.wait("deep-wait", "deep-event")

        return await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        if has_crashed:
            await engine.crash()
        wait = await step_of(handle, "deep-wait", WaitStep)
        assert (wait.state, wait.parent_step_id) == ("waiting", "outer")
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]

        await handle.send("deep-event", {"ok": True})
        await engine.run_until_idle()

        wait = await step_of(handle, "deep-wait", WaitStep)
        assert (wait.state, wait.parent_step_id, wait.payload) == ("satisfied", "outer", {"ok": True})
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert await handle.result(timeout=5) == {"ok": True}


def parent_in_progress() -> WorkflowRuntimeContext:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("parent", now=NOW)
    context.handle_run_attempt_started("parent", now=NOW)
    return context


@pytest.mark.spec(100)
def test_run_without_children_has_no_work_in_progress() -> None:
    assert parent_in_progress().has_in_progress_child_steps("parent") is False


@pytest.mark.spec(100)
@pytest.mark.parametrize(
    ("state", "expected"),
    [("created", True), ("started", True), ("retrying", True), ("succeeded", True), ("failed for good", False)],
)
def test_child_run_is_work_in_progress_unless_it_failed_for_good(state: str, expected: bool) -> None:
    context = parent_in_progress()
    context.get_or_create_run_step("child", now=NOW, parent_step_id="parent", max_attempts=2)
    if state != "created":
        context.handle_run_attempt_started("child", now=NOW)
    if state == "succeeded":
        context.handle_run_attempt_succeeded("child", now=NOW)
    if state in ("retrying", "failed for good"):
        is_final = state == "failed for good"
        context.handle_run_attempt_failed("child", "x", now=NOW, is_non_retryable=is_final)

    assert context.has_in_progress_child_steps("parent") is expected


@pytest.mark.spec(100)
def test_child_run_that_used_up_its_attempts_is_no_work_in_progress() -> None:
    context = parent_in_progress()
    context.get_or_create_run_step("child", now=NOW, parent_step_id="parent", max_attempts=1)
    context.handle_run_attempt_started("child", now=NOW)
    context.handle_run_attempt_failed("child", "x", now=NOW)

    assert context.has_in_progress_child_steps("parent") is False


@pytest.mark.spec(100)
@pytest.mark.parametrize("is_elapsed", [False, True])
def test_child_sleep_is_work_in_progress(is_elapsed: bool) -> None:
    context = parent_in_progress()
    context.get_or_create_sleep_step("child", LATER, now=NOW, parent_step_id="parent")
    if is_elapsed:
        context.handle_sleep_step_elapsed("child", now=LATER)

    assert context.has_in_progress_child_steps("parent") is True


@pytest.mark.spec(100)
@pytest.mark.parametrize(("is_timed_out", "expected"), [(False, True), (True, False)])
def test_child_wait_is_work_in_progress_unless_it_timed_out(is_timed_out: bool, expected: bool) -> None:
    context = parent_in_progress()
    context.get_or_create_wait_step("child", "event", now=NOW, parent_step_id="parent")
    if is_timed_out:
        context.handle_wait_step_timed_out("child", now=LATER)

    assert context.has_in_progress_child_steps("parent") is expected


@pytest.mark.spec(100)
def test_only_direct_children_are_looked_at() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("grandparent", now=NOW)
    context.handle_run_attempt_started("grandparent", now=NOW)
    context.get_or_create_run_step("middle", now=NOW, parent_step_id="grandparent", max_attempts=1)
    context.get_or_create_run_step("leaf", now=NOW, parent_step_id="middle")

    assert context.has_in_progress_child_steps("grandparent") is True
    assert context.has_in_progress_child_steps("middle") is True
    assert context.has_in_progress_child_steps("leaf") is False

    context.handle_run_attempt_started("middle", now=NOW)
    context.handle_run_attempt_failed("middle", "x", now=NOW)

    # The leaf is still in progress, but it is a grandchild.
    assert context.has_in_progress_child_steps("grandparent") is False


@pytest.mark.spec(100)
def test_one_child_in_progress_among_failed_ones_is_enough() -> None:
    context = parent_in_progress()
    for step_id in ("failed", "created"):
        context.get_or_create_run_step(step_id, now=NOW, parent_step_id="parent", max_attempts=1)
    context.handle_run_attempt_started("failed", now=NOW)
    context.handle_run_attempt_failed("failed", "x", now=NOW)

    assert context.has_in_progress_child_steps("parent") is True


@pytest.mark.spec(101)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_retry_of_an_inner_step_leaves_the_outer_attempt_started(has_crashed: bool) -> None:
    inner = Callback("inner", errors=[RuntimeError("transient")])
    entries: list[Any] = []

    @definition
    async def workflow(self: Any) -> Any:
        async def outer() -> Any:
            entries.append(None)
            return await self.run("inner", inner)

        return await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        if has_crashed:
            await engine.crash()
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]
        assert states(await step_of(handle, "inner", RunStep)) == ["failed"]

        await engine.advance(1)

        assert inner.calls == 2
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert states(await step_of(handle, "inner", RunStep)) == ["failed", "succeeded"]
        assert len(entries) == (2 if has_crashed else 1)
        assert await handle.result(timeout=5) == "inner"


@pytest.mark.spec(101)
@async_test
async def test_callback_entered_again_after_a_crash_finds_its_finished_children() -> None:
    first = Callback("first")
    values = []

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            values.append(await self.run("first", first))
            await self.sleep("nap", 60)
            values.append(await self.run("last", Callback("last")))

        await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        for _ in range(3):
            await engine.crash()
        await engine.advance(60)

        assert await handle.status() == "completed"
        assert first.calls == 1
        assert values == ["first", "first", "first", "first", "last"]
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


@pytest.mark.spec(103)
@async_test
async def test_non_retryable_inner_error_fails_inner_and_outer_at_once() -> None:
    entries: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            entries.append(None)
            await self.run("inner", Callback(always=NonRetryableStepError("declined")))

        await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)

        for step_id in ("inner", "outer"):
            (attempt,) = (await step_of(handle, step_id, RunStep)).attempts
            assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError")
            assert attempt.error_message == "NonRetryableStepError: declined"
        assert len(entries) == 1
        assert await handle.status() == "failed"


@pytest.mark.spec(104)
@async_test
async def test_exhausted_inner_run_fails_the_outer_attempt_once() -> None:
    entries: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            entries.append(None)
            await self.run("the-inner-step", Callback(always=RuntimeError("always fail")), max_attempts=1)

        await self.run("outer", outer, max_attempts=5)

    async with started(workflow) as (engine, handle):
        await engine.advance(120)

        (inner,) = (await step_of(handle, "the-inner-step", RunStep)).attempts
        assert (inner.state, inner.error_name) == ("failed", "RuntimeError")
        assert inner.error_message == "RuntimeError: always fail"
        (outer_attempt,) = (await step_of(handle, "outer", RunStep)).attempts
        assert (outer_attempt.state, outer_attempt.error_name) == ("failed", "MaxAttemptsExceededError")
        assert outer_attempt.error_message is not None
        assert "the-inner-step" in outer_attempt.error_message
        assert outer_attempt.next_attempt_at is None
        assert len(entries) == 1
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(105)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_inner_wait_that_times_out_fails_the_outer_run_at_once(has_crashed: bool) -> None:
    entries: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            entries.append(None)
            await self.wait("inner-wait", "never", timeout=60)

        await self.run("outer", outer, max_attempts=5)

    async with started(workflow) as (engine, handle):
        if has_crashed:
            await engine.crash()
        await engine.advance(120)

        wait = await step_of(handle, "inner-wait", WaitStep)
        assert (wait.state, wait.parent_step_id) == ("timed_out", "outer")
        (attempt,) = (await step_of(handle, "outer", RunStep)).attempts
        assert (attempt.state, attempt.error_name, attempt.next_attempt_at) == ("failed", "WaitTimeoutError", None)
        assert len(entries) == (2 if has_crashed else 1)
        with pytest.raises(WorkflowFailedError):
            await handle.result(timeout=5)
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(106)
@pytest.mark.parametrize("kind", ["run", "sleep", "wait"])
@async_test
async def test_crash_just_after_a_nested_step_was_asked_for_does_not_fail_the_parent(kind: str) -> None:
    asked = asyncio.Event()
    gate = asyncio.Event()

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            # A recorded child explains the parent, whatever becomes of the request that follows.
            await self.run("recorded", Callback())
            nested = {
                "run": lambda: self.run("nested", gate.wait),
                "sleep": lambda: self.sleep("nested", 60),
                "wait": lambda: self.wait("nested", "event"),
            }[kind]()
            asked.set()
            await nested

        await self.run("outer", outer)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await asked.wait()
        gate.set()
        await engine.crash()
        await handle.send("event")
        await engine.advance(120)

        assert await handle.status() == "completed"
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


@pytest.mark.spec(32)
@async_test
async def test_reusing_an_id_in_one_entry_of_a_callback_fails_the_run_without_a_retry() -> None:
    inner = Callback("inner")

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.run("inner", inner)
            await self.run("inner", inner)

        await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)

        (attempt,) = (await step_of(handle, "outer", RunStep)).attempts
        assert (attempt.state, attempt.error_name) == ("failed", "DefinitionError")
        assert attempt.error_message is not None
        assert "'inner' was already used" in attempt.error_message
        assert states(await step_of(handle, "inner", RunStep)) == ["succeeded"]
        assert inner.calls == 1
        assert await handle.status() == "failed"


@pytest.mark.spec(33)
@async_test
async def test_id_of_a_root_step_asked_for_in_a_callback_holds_the_instance() -> None:
    second = Callback()

    @definition
    async def workflow(self: Any) -> None:
        async def outer() -> None:
            await self.run("same-id", second)

        await self.run("same-id", Callback())
        await self.run("outer", outer)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()

        with pytest.raises(WorkflowHeldError) as caught:
            await handle.result(timeout=5)
        try:
            # The callback that asked waits for a nested step, so nothing is under way.
            async with asyncio.timeout(5):
                await engine.run_until_idle()
        finally:
            # It drops the callback, or a failure here would keep the engine from closing.
            await engine.crash()

        assert "'same-id'" in caught.value.reason
        assert "'outer'" in caught.value.reason
        assert second.calls == 0
        assert await handle.status() == "running"


@pytest.mark.spec(103, 104, 105)
@pytest.mark.parametrize("kind", ["declined", "exhausted", "timed out"])
@async_test
async def test_inner_failure_may_be_caught_in_the_callback(kind: str) -> None:
    @definition
    async def workflow(self: Any) -> Any:
        async def outer() -> Any:
            try:
                if kind == "declined":
                    await self.run("inner", Callback(always=NonRetryableStepError("declined")))
                elif kind == "exhausted":
                    await self.run("inner", Callback(always=RuntimeError("broken")), max_attempts=2)
                else:
                    await self.wait("inner", "never", timeout=1)
            except (NonRetryableStepError, MaxAttemptsExceededError, WaitTimeoutError) as error:
                return await self.run("compensate", Callback(type(error).__name__))
            return "no error"

        return await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)

        expected = {
            "declined": "NonRetryableStepError",
            "exhausted": "MaxAttemptsExceededError",
            "timed out": "WaitTimeoutError",
        }
        assert await handle.result(timeout=5) == expected[kind]
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


@pytest.mark.spec(101)
@async_test
async def test_parallel_nested_steps_of_one_callback_all_recover_from_a_crash() -> None:
    @definition
    async def workflow(self: Any) -> Any:
        async def outer() -> list[Any]:
            return list(
                await asyncio.gather(
                    self.run("retrying", Callback("retried", errors=[RuntimeError("transient")])),
                    self.sleep("nap", 60),
                    self.wait("event", "event"),
                )
            )

        return await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await engine.advance(60)
        await handle.send("event", "came")
        await engine.run_until_idle()

        (result,) = [await handle.result(timeout=5)]
        assert result[1:] == [None, "came"]
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert [step.parent_step_id for step in await handle.steps()] == [None, "outer", "outer", "outer"]


@pytest.mark.spec(101)
@async_test
async def test_paused_instance_starts_no_nested_step_until_it_is_resumed() -> None:
    inner = Callback("inner")

    @definition
    async def workflow(self: Any) -> Any:
        async def outer() -> Any:
            await self.wait("gate", "go")
            return await self.run("inner", inner)

        return await self.run("outer", outer)

    async with started(workflow) as (engine, handle):
        await handle.pause()
        await handle.send("go")
        await engine.run_until_idle()
        assert inner.calls == 0
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]

        await handle.resume()

        assert await handle.result(timeout=5) == "inner"
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


@async_test
async def test_nested_step_that_its_callback_leaves_behind_is_abandoned() -> None:
    @definition
    async def Leaving(self: Any) -> Any:
        async def outer() -> str:
            self.sleep("left behind", 3600)
            done: str = await self.run("inner", Callback("done"), returns=str)
            return done

        return [await self.run("outer", outer), await self.wait("end", "end")]

    async with started(Leaving) as (engine, handle):
        assert (await step_of(handle, "left behind", SleepStep)).abandoned_at is not None
        assert (await handle.info()).alarm_at is None
        await engine.crash()
        await handle.send("end", 1)
        await engine.run_until_idle()
        assert await handle.result(timeout=5) == ["done", 1]
