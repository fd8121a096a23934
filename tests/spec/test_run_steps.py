"""Run steps that succeed: recorded once, never run again, the same value on the first execution and on replay."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import DefinitionError, NonRetryableStepError, RunStep, Settings, WorkflowFailedError
from workerflow.testing import SimulatedEngine


@dataclass
class Order:
    sku: str
    cents: int


@pytest.mark.spec(24)
@async_test
async def test_run_calls_its_callback_once_and_holds_the_succeeded_attempt() -> None:
    callback = Callback("reserved")

    @definition
    async def workflow(self: Any) -> Any:
        return await self.run("reserve", callback)

    async with started(workflow) as (engine, handle):
        step = await step_of(handle, "reserve", RunStep)
        (attempt,) = step.attempts

        assert callback.calls == 1
        assert (step.type, step.parent_step_id, step.max_attempts, step.created_at) == ("run", None, 3, engine.now())
        assert (attempt.step_id, attempt.number, attempt.state) == ("reserve", 1, "succeeded")
        assert (attempt.started_at, attempt.ended_at) == (engine.now(), engine.now())
        assert await handle.result(timeout=5) == "reserved"


@pytest.mark.spec(24)
@async_test
async def test_run_keeps_the_limit_of_attempts_that_it_was_given() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.run("charge", Callback(), max_attempts=7)

    async with started(workflow) as (_engine, handle):
        assert (await step_of(handle, "charge", RunStep)).max_attempts == 7


@pytest.mark.spec(25)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        ("x", '"x"'),
        ("", '""'),
        (False, "false"),
        ([], "[]"),
        ({"a": [1, True, None]}, '{"a":[1,true,null]}'),
    ],
)
@async_test
async def test_json_value_is_stored_as_its_exact_text(value: Any, text: str) -> None:
    @definition
    async def workflow(self: Any) -> Any:
        return await self.run("step", Callback(value))

    async with started(workflow) as (_engine, handle):
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.result_type, attempt.result_json) == ("succeeded", "json", text)
        assert await handle.result(timeout=5) == value


@pytest.mark.spec(26)
@async_test
async def test_none_is_stored_as_type_none_without_a_text() -> None:
    results = []

    @definition
    async def workflow(self: Any) -> None:
        results.append(await self.run("step", Callback(None)))

    async with started(workflow) as (_engine, handle):
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.result_type, attempt.result_json) == ("succeeded", "none", None)
        assert results == [None]


@pytest.mark.spec(27)
@pytest.mark.parametrize("value", [{"receipt": 1}, None, "x"])
@async_test
async def test_succeeded_step_is_not_run_again_and_gives_its_stored_value(value: Any) -> None:
    callback = Callback(value)
    results = []

    @definition
    async def workflow(self: Any) -> None:
        results.append(await self.run("step", callback))
        await self.wait("wait", "go")

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.status() == "completed"
        assert callback.calls == 1
        assert len(results) > 1
        assert all(result == value for result in results)


@pytest.mark.spec(28)
@async_test
async def test_started_attempt_is_durable_before_its_callback_begins() -> None:
    seen = []

    @definition
    async def workflow(self: Any) -> None:
        await self.run("first", look)
        await self.run("second", look)

    async def look() -> None:
        seen.append(query(engine, "select step_id, number, state from attempts order by step_id"))

    async with SimulatedEngine([workflow]) as engine:
        await engine.get(workflow, "instance-1").create()
        await engine.run_until_idle()

    assert seen == [[("first", 1, "started")], [("first", 1, "succeeded"), ("second", 1, "started")]]


@pytest.mark.spec(29)
@async_test
async def test_siblings_both_succeed_and_are_listed_in_creation_order() -> None:
    @definition
    async def workflow(self: Any) -> None:
        # Not in the order of the alphabet, in which a database might happen to give them.
        await self.run("step-b", Callback())
        await self.run("step-a", Callback())

    async with started(workflow) as (_engine, handle):
        steps = await handle.steps()

        assert await handle.status() == "completed"
        assert [(step.id, states(step)) for step in steps if isinstance(step, RunStep)] == [
            ("step-b", ["succeeded"]),
            ("step-a", ["succeeded"]),
        ]


@pytest.mark.spec(30)
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@async_test
async def test_always_replay_takes_one_pass_for_each_sequential_sibling(count: int) -> None:
    passes: list[Any] = []
    callbacks = [Callback(number) for number in range(count)]

    @definition
    async def workflow(self: Any) -> list[int]:
        passes.append(None)
        return [await self.run(f"step-{number}", callback) for number, callback in enumerate(callbacks)]

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.result(timeout=5) == list(range(count))
        assert len(passes) == count
        assert [callback.calls for callback in callbacks] == [1] * count


@pytest.mark.spec(30)
@async_test
async def test_always_replay_writes_the_next_sibling_without_an_attempt_before_the_next_pass() -> None:
    seen = []

    @definition
    async def workflow(self: Any) -> None:
        await self.run("first", Callback())
        await self.run("second", look)

    async def look() -> None:
        seen.append(query(engine, "select step_id, number, state from attempts order by step_id"))

    async with SimulatedEngine([workflow], always_replay=True) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await engine.run_until_idle()

        assert seen == [[("first", 1, "succeeded"), ("second", 1, "started")]]
        assert states(await step_of(handle, "second", RunStep)) == ["succeeded"]


@pytest.mark.spec(30)
@pytest.mark.normal_only("it counts the entries of execute()")
@async_test
async def test_normal_mode_takes_one_pass_whatever_the_number_of_siblings() -> None:
    passes: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        for number in range(8):
            await self.run(f"step-{number}", Callback())

    async with started(workflow) as (_engine, handle):
        assert await handle.status() == "completed"
        assert len(passes) == 1


@pytest.mark.spec(31)
@pytest.mark.parametrize(("inner_count", "after_count", "expected"), [(1, 0, 1), (2, 0, 2), (1, 1, 2), (2, 1, 3)])
@async_test
async def test_always_replay_counts_nested_levels_for_themselves(
    inner_count: int, after_count: int, expected: int
) -> None:
    passes: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)

        async def outer() -> None:
            for number in range(inner_count):
                await self.run(f"inner-{number}", Callback())

        await self.run("outer", outer)
        for number in range(after_count):
            await self.run(f"after-{number}", Callback())

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.status() == "completed"
        assert len(passes) == expected
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]


@pytest.mark.spec(32, 33)
@pytest.mark.parametrize("second", ["run", "sleep", "wait"])
@pytest.mark.parametrize("first", ["run", "sleep", "wait"])
@async_test
async def test_reusing_a_step_id_fails_the_workflow(first: str, second: str) -> None:
    def ask(self: Any, kind: str) -> Any:
        if kind == "run":
            return self.run("same-id", Callback())
        return self.sleep("same-id", 0) if kind == "sleep" else self.wait("same-id", "event")

    @definition
    async def workflow(self: Any) -> None:
        await ask(self, first)
        await ask(self, second)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.send("event")
        await handle.create()
        await engine.run_until_idle()

        assert await handle.status() == "failed"
        with pytest.raises(WorkflowFailedError, match=r"'same-id' was already used earlier in this execution"):
            await handle.result(timeout=5)
        (step,) = await handle.steps()
        assert (step.id, step.type) == ("same-id", first)


@pytest.mark.spec(33)
@async_test
async def test_success_of_the_first_step_stays_recorded_when_its_id_is_reused() -> None:
    first, second = Callback("first"), Callback("second")

    @definition
    async def workflow(self: Any) -> None:
        await self.run("same-id", first)
        await self.run("same-id", second)

    async with started(workflow) as (_engine, handle):
        (attempt,) = (await step_of(handle, "same-id", RunStep)).attempts

        assert (attempt.state, attempt.result_json) == ("succeeded", '"first"')
        assert (first.calls, second.calls) == (1, 0)
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(34)
@pytest.mark.parametrize("verb", ["run", "sleep", "wait"])
def test_verbs_of_a_definition_that_no_engine_runs_are_refused(verb: str) -> None:
    @definition
    async def workflow(self: Any) -> None:
        pass

    arguments: dict[str, Any] = {"run": Callback(), "sleep": 1, "wait": "event"}

    with pytest.raises(DefinitionError, match=r"workflow context is unavailable.*inside execute\(\)"):
        getattr(workflow(), verb)("step", arguments[verb])


@pytest.mark.spec(34)
@pytest.mark.parametrize("verb", ["run", "sleep", "wait"])
@async_test
async def test_verbs_of_a_running_definition_are_refused_outside_execute(verb: str) -> None:
    bodies = []
    arguments: dict[str, Any] = {"run": Callback(), "sleep": 1, "wait": "event"}

    @definition
    async def workflow(self: Any) -> None:
        bodies.append(self)
        await self.wait("wait", "go")

    async with started(workflow, settings=Settings(hibernate_after_s=3600)) as (engine, handle):
        with pytest.raises(DefinitionError, match=r"workflow context is unavailable.*inside execute\(\)"):
            getattr(bodies[0], verb)("step", arguments[verb])
        await engine.run_until_idle()

        assert [step.id for step in await handle.steps()] == ["wait"]
        assert await handle.status() == "running"


@pytest.mark.spec(35)
@async_test
async def test_limit_of_attempts_is_fixed_by_the_first_creation() -> None:
    limit = 2
    callback = Callback(always=RuntimeError("test"))

    @definition
    async def workflow(self: Any) -> None:
        await self.run("step", callback, max_attempts=limit)

    async with started(workflow) as (engine, handle):
        limit = 9
        await engine.crash()
        await engine.advance(60)

        step = await step_of(handle, "step", RunStep)
        assert (step.max_attempts, states(step)) == (2, ["failed", "failed"])
        assert await handle.status() == "failed"


@pytest.mark.spec(36)
@async_test
async def test_value_on_the_first_execution_is_the_stored_one_and_not_the_callbacks_object() -> None:
    kept = {"list": [1]}
    results = []

    @definition
    async def workflow(self: Any) -> None:
        value = await self.run("step", Callback(kept))
        kept["list"].append(2)
        results.append(value["list"])
        await self.wait("wait", "go")

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await handle.result(timeout=5)

        assert len(results) > 1
        assert all(result == [1] for result in results)


@pytest.mark.spec(36)
@pytest.mark.parametrize(
    "value",
    [-0.0, 0.1 + 0.2, 1e308, 2**53 + 1, 10**400, "é\U0001f375", [[], {}]],
    ids=["negative-zero", "sum", "huge-float", "beyond-53-bit", "400-digits", "text", "empty"],
)
@async_test
async def test_first_execution_and_replay_see_the_same_value(value: Any) -> None:
    results: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        results.append(await self.run("step", Callback(value)))
        await self.wait("wait", "go")

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await handle.result(timeout=5)

        first, *replayed = results
        assert first == value
        assert replayed
        # The text tells 0 from -0.0 and from 0.0.
        assert {repr(result) for result in replayed} == {repr(first)}


@pytest.mark.spec(36)
@async_test
async def test_first_execution_and_replay_see_the_declared_type() -> None:
    results: list[Any] = []

    async def reserve() -> Order:
        return Order("tea", 900)

    @definition
    async def workflow(self: Any) -> None:
        results.append(await self.run("step", reserve))
        await self.wait("wait", "go")

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await handle.result(timeout=5)

        assert len(results) > 1
        assert all(result == Order("tea", 900) for result in results)


@pytest.mark.spec(37)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, [1.0, math.nan], {"price": {"cents": [math.inf]}}],
    ids=["nan", "infinity", "minus-infinity", "in-list", "deep"],
)
@async_test
async def test_nan_or_infinity_anywhere_fails_the_step_without_a_retry(value: Any) -> None:
    callback = Callback(value)

    @definition
    async def workflow(self: Any) -> None:
        await self.run("step", callback)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError")
        assert attempt.next_attempt_at is None
        assert attempt.error_message is not None
        assert "NaN" in attempt.error_message
        assert "infinit" in attempt.error_message
        assert "not allowed" in attempt.error_message
        assert callback.calls == 1
        assert await handle.status() == "failed"
        assert (await handle.info()).alarm_at is None


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append({"self": value})
    return value


@pytest.mark.spec(38)
@pytest.mark.parametrize(
    "value",
    [cycle(), 10**5000, len, object(), {"inside": [lambda: None]}, {1, 2}, b"bytes", (1, 2), {1: "int key"}],
    ids=["cycle", "huge-integer", "function", "object", "deep", "set", "bytes", "tuple", "int-key"],
)
@async_test
async def test_result_that_cannot_be_stored_fails_the_step_without_a_retry(value: Any) -> None:
    callback = Callback(value)

    @definition
    async def workflow(self: Any) -> None:
        await self.run("step", callback)

    async with started(workflow) as (engine, handle):
        await engine.advance(60)
        (attempt,) = (await step_of(handle, "step", RunStep)).attempts

        assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError")
        assert attempt.next_attempt_at is None
        assert attempt.error_message is not None
        assert "result of step 'step'" in attempt.error_message
        assert callback.calls == 1
        assert await handle.status() == "failed"
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(38)
@pytest.mark.parametrize("value", [cycle(), len, object()], ids=["cycle", "function", "object"])
@async_test
async def test_message_of_a_result_without_a_json_form_says_so(value: Any) -> None:
    raised: list[BaseException] = []

    @definition
    async def workflow(self: Any) -> None:
        try:
            await self.run("step", Callback(value))
        except NonRetryableStepError as error:
            raised.append(error)

    async with started(workflow) as (_engine, handle):
        assert await handle.status() == "completed"
        (error,) = raised
        assert "cannot be durably serialized as JSON" in str(error)


@pytest.mark.spec(24, 27)
@async_test
async def test_plain_function_runs_once_and_its_value_is_stored() -> None:
    calls: list[Any] = []

    def reserve(sku: str) -> str:
        calls.append(sku)
        return f"hold for {sku}"

    @definition
    async def workflow(self: Any) -> Any:
        hold = await self.run("reserve", reserve, "tea")
        await self.wait("wait", "go")
        return hold

    async with started(workflow) as (engine, handle):
        await engine.crash()
        await handle.send("go")

        assert await handle.result(timeout=30) == "hold for tea"
        assert calls == ["tea"]


@pytest.mark.spec(30)
@async_test
async def test_always_replay_keeps_a_callback_in_flight_alive_while_another_branch_goes_on() -> None:
    entered: list[Any] = []
    gate = asyncio.Event()

    async def slow() -> str:
        entered.append(None)
        await gate.wait()
        return "slow"

    async def open_gate() -> None:
        gate.set()

    @definition
    async def workflow(self: Any) -> list[Any]:
        async def quick() -> str:
            await self.run("quick-1", Callback())
            await self.run("quick-2", Callback())
            await self.run("quick-3", open_gate)
            return "quick"

        return list(await asyncio.gather(self.run("slow", slow), quick()))

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.result(timeout=30) == ["slow", "quick"]
        assert len(entered) == 1
        assert states(await step_of(handle, "slow", RunStep)) == ["succeeded"]


@pytest.mark.spec(27)
@async_test
async def test_hibernated_instance_is_replayed_without_running_its_steps_again() -> None:
    passes: list[Any] = []
    callback = Callback({"receipt": 1})

    @definition
    async def workflow(self: Any) -> Any:
        passes.append(None)
        value = await self.run("step", callback)
        await self.wait("wait", "go")
        return value

    async with started(workflow, settings=Settings(hibernate_after_s=0)) as (_engine, handle):
        await handle.send("go")

        assert await handle.result(timeout=5) == {"receipt": 1}
        assert (len(passes), callback.calls) == (2, 1)


@pytest.mark.spec(28)
@async_test
async def test_started_attempt_of_a_plain_function_is_durable_before_the_function_begins() -> None:
    seen = []

    @definition
    async def workflow(self: Any) -> None:
        await self.run("first", look)

    def look() -> None:
        seen.append(query(engine, "select step_id, number, state from attempts"))

    async with SimulatedEngine([workflow]) as engine:
        await engine.get(workflow, "instance-1").create()
        await engine.run_until_idle()

    assert seen == [[("first", 1, "started")]]


@pytest.mark.spec(30)
@async_test
async def test_always_replay_runs_parallel_siblings_in_one_pass_and_the_next_one_in_another() -> None:
    passes: list[Any] = []
    callbacks = [Callback() for _ in range(3)]

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        await asyncio.gather(self.run("left", callbacks[0]), self.run("right", callbacks[1]))
        await self.run("after", callbacks[2])

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.status() == "completed"
        assert len(passes) == 2
        assert [callback.calls for callback in callbacks] == [1, 1, 1]


@pytest.mark.spec(34)
@async_test
async def test_verbs_are_refused_in_a_plain_function_because_it_runs_in_a_thread() -> None:
    @definition
    async def workflow(self: Any) -> None:
        def reach_for_self() -> None:
            self.run("inner", Callback())

        await self.run("outer", reach_for_self)

    async with started(workflow) as (_engine, handle):
        (attempt,) = (await step_of(handle, "outer", RunStep)).attempts

        assert (attempt.state, attempt.error_name) == ("failed", "DefinitionError")
        assert attempt.error_message is not None
        assert "workflow context is unavailable" in attempt.error_message
        assert [step.id for step in await handle.steps()] == ["outer"]


@pytest.mark.spec(34)
@async_test
async def test_verbs_are_refused_to_a_task_that_outlived_its_attempt() -> None:
    refused: list[DefinitionError] = []
    gate = asyncio.Event()
    tasks = []

    @definition
    async def workflow(self: Any) -> None:
        async def left_over() -> None:
            await gate.wait()
            try:
                self.run("inner", Callback())
            except DefinitionError as error:
                refused.append(error)

        async def outer() -> None:
            tasks.append(asyncio.create_task(left_over()))

        await self.run("outer", outer)
        await self.wait("wait", "go")

    async with started(workflow) as (engine, handle):
        gate.set()
        await asyncio.gather(*tasks)
        await engine.run_until_idle()

        assert len(refused) == 1
        assert [step.id for step in await handle.steps()] == ["outer", "wait"]


@pytest.mark.spec(31)
@async_test
async def test_always_replay_does_not_end_the_pass_at_a_nested_run_because_of_a_root_run() -> None:
    passes: list[Any] = []
    has_quick_ended = asyncio.Event()

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)

        async def outer() -> None:
            await has_quick_ended.wait()
            await self.run("inner", Callback())

        async def quick() -> None:
            await self.run("quick", Callback())
            has_quick_ended.set()

        await asyncio.gather(self.run("outer", outer), quick())

    async with started(workflow, always_replay=True) as (_engine, handle):
        assert await handle.status() == "completed"
        assert len(passes) == 1
        assert [step.id for step in await handle.steps()] == ["outer", "quick", "inner"]
