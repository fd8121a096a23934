"""The rules of callbacks: how often they run, what they know, and what ends them."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.signals import Gate, Thread, attempt_states
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import (
    CurrentAttempt,
    DefinitionError,
    Engine,
    RunStep,
    Settings,
    WorkflowDefinition,
    WorkflowFailedError,
    current_attempt,
)
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)


@pytest.mark.spec(52)
@async_test
async def test_a_callback_interrupted_by_a_crash_runs_again_up_to_its_attempts():
    gate = Gate()

    @definition
    async def Interrupted(self):
        await self.run("call", gate, max_attempts=2)

    async with SimulatedEngine([Interrupted]) as engine:
        handle = engine.get(Interrupted, "instance-1")
        await handle.create()
        await gate.begun()
        await engine.crash()
        advancing = asyncio.ensure_future(engine.advance(1))
        await gate.begun()
        advancing.cancel()
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "started"]
        await engine.crash()
        assert await handle.status() == "failed"
        assert gate.calls == 2


@async_test
async def test_a_callback_whose_outcome_is_durable_never_runs_again():
    calls = [Callback(number) for number in range(5)]

    @definition
    async def Several(self):
        for number, call in enumerate(calls):
            await self.run(f"call-{number}", call, returns=int)
        await self.wait("end", "end")

    async with started(Several) as (engine, handle):
        for _ in range(3):
            await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    assert [call.calls for call in calls] == [1] * 5


@async_test
async def test_an_at_most_once_callback_interrupted_by_a_crash_has_failed_and_is_not_run_again():
    gate = Gate()

    @definition
    async def Once(self):
        try:
            await self.run("call", gate, at_most_once=True, max_attempts=5)
        except Exception as error:
            return type(error).__name__

    async with SimulatedEngine([Once]) as engine:
        handle = engine.get(Once, "instance-1")
        await handle.create()
        await gate.begun()
        await engine.crash()
        await engine.advance(60)
        assert await handle.result(timeout=5) == "MaxAttemptsExceededError"
        assert gate.calls == 1
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]


@async_test
async def test_an_at_most_once_callback_has_no_nested_steps():
    @definition
    async def Once(self):
        async def outer():
            await self.run("inner", Callback())

        await self.run("outer", outer, at_most_once=True)

    async with started(Once) as (_, handle):
        (attempt,) = (await step_of(handle, "outer", RunStep)).attempts
        assert attempt.error_name == "DefinitionError"
        assert "at_most_once" in str(attempt.error_message)
        assert len(await handle.steps()) == 1


@pytest.mark.parametrize("at_most_once", [False, True])
@async_test
async def test_an_attempt_that_a_graceful_stop_ended_does_not_count_unless_it_may_run_once_only(tmp_path, at_most_once):
    gate = Gate("called")

    class Stopped(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            return await self.run("call", gate, max_attempts=1, at_most_once=at_most_once, returns=str)

    async with Engine(tmp_path / "stop.db", [Stopped], settings=Settings(stop_grace_s=0)) as engine:
        await engine.get(Stopped, "instance-1").create()
        await gate.begun()
    assert gate.cancellations == 1

    gate.open()
    async with Engine(tmp_path / "stop.db", [Stopped]) as engine:
        handle = engine.get(Stopped, "instance-1")
        if at_most_once:
            with pytest.raises(WorkflowFailedError):
                await handle.result(timeout=10)
        else:
            assert await handle.result(timeout=10) == "called"
        assert states(await step_of(handle, "call", RunStep)) == (
            ["failed"] if at_most_once else ["failed", "succeeded"]
        )
    assert gate.calls == (1 if at_most_once else 2)


@async_test
async def test_a_graceful_stop_waits_for_callbacks_in_flight(tmp_path):
    gate = Gate("called")

    class Patient(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            return await self.run("call", gate, returns=str)

    async with Engine(tmp_path / "stop.db", [Patient]) as engine:
        await engine.get(Patient, "instance-1").create()
        await gate.begun()
        asyncio.get_running_loop().call_soon(gate.open)
    assert (gate.calls, gate.cancellations) == (1, 0)

    async with Engine(tmp_path / "stop.db", [Patient]) as engine:
        assert await engine.get(Patient, "instance-1").result(timeout=10) == "called"
    assert gate.calls == 1


@async_test
async def test_closing_a_simulated_engine_does_not_wait_for_ever_for_a_callback_in_flight():
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    engine = SimulatedEngine([InFlight])
    await engine.__aenter__()
    await engine.get(InFlight, "instance-1").create()
    await gate.begun()
    closing = asyncio.ensure_future(engine.__aexit__(None, None, None))
    done, _ = await asyncio.wait([closing], timeout=15)
    gate.open()
    await closing
    assert done


@async_test
async def test_a_callback_knows_its_attempt_and_a_key_that_is_the_same_for_every_attempt():
    seen: list[CurrentAttempt] = []

    @definition
    async def Keyed(self):
        async def call():
            seen.append(current_attempt())
            if len(seen) < 3:
                raise ConnectionError

        await self.run("call", call, returns=None)
        await self.run("other", lambda: seen.append(current_attempt()), returns=None)

    async with started(Keyed) as (engine, handle):
        await engine.advance(10)
        assert await handle.status() == "completed"

    assert [(attempt.workflow, attempt.instance_id, attempt.step_id, attempt.number) for attempt in seen] == [
        ("Keyed", "instance-1", "call", 1),
        ("Keyed", "instance-1", "call", 2),
        ("Keyed", "instance-1", "call", 3),
        ("Keyed", "instance-1", "other", 1),
    ]
    assert len({attempt.idempotency_key for attempt in seen[:3]}) == 1
    assert seen[3].idempotency_key != seen[0].idempotency_key


@async_test
async def test_the_idempotency_key_survives_a_crash_and_differs_between_instances():
    seen: list[CurrentAttempt] = []
    gate = Gate()

    @definition
    async def Keyed(self):
        async def call():
            seen.append(current_attempt())
            await gate()

        await self.run("call", call)

    async with SimulatedEngine([Keyed]) as engine:
        for name in ("a", "b"):
            await engine.get(Keyed, name).create()
            await gate.begun()
        await engine.crash()
        gate.open()
        await engine.advance(1)

    keys = [(attempt.instance_id, attempt.idempotency_key) for attempt in seen]
    assert keys[:2] == keys[2:]
    assert keys[0][1] != keys[1][1]


def test_there_is_no_current_attempt_outside_a_callback():
    with pytest.raises(DefinitionError, match="callback"):
        current_attempt()


@async_test
async def test_there_is_no_current_attempt_in_execute():
    @definition
    async def Misplaced(self):
        current_attempt()

    async with started(Misplaced) as (_, handle):
        with pytest.raises(WorkflowFailedError, match="callback"):
            await handle.result(timeout=5)


@async_test
async def test_a_timeout_cancels_an_async_callback_and_its_attempt_fails_and_is_retried():
    gate = Gate("second")

    @definition
    async def Slow(self):
        return await self.run("call", gate, timeout=60, max_attempts=2, returns=str)

    async with started(Slow) as (engine, handle):
        await engine.advance(59)
        assert (gate.calls, gate.cancellations) == (1, 0)
        await engine.advance(1)
        assert (gate.calls, gate.cancellations) == (1, 1)
        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert (attempt.state, attempt.error_name) == ("failed", "TimeoutError")
        assert attempt.ended_at == engine.now()
        assert attempt.next_attempt_at == engine.now() + timedelta(milliseconds=250)

        gate.open()
        await engine.advance(1)
        assert await handle.result(timeout=5) == "second"


@async_test
async def test_a_callback_that_swallows_its_timeout_has_failed_nevertheless():
    @definition
    async def Stubborn(self):
        async def call():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "late"

        return await self.run("call", call, timeout=1, max_attempts=1, returns=str)

    async with started(Stubborn) as (engine, handle):
        await engine.advance(1)
        assert await handle.status() == "failed"
        assert (await step_of(handle, "call", RunStep)).attempts[0].error_name == "TimeoutError"


@async_test
async def test_the_late_result_of_a_thread_that_timed_out_is_refused():
    call = Thread("late")

    @definition
    async def Slow(self):
        return await self.run("call", call, timeout=1, max_attempts=1, returns=str)

    async with SimulatedEngine([Slow]) as engine:
        handle = engine.get(Slow, "instance-1")
        await handle.create()
        await call.has_begun()
        await engine.advance(1)
        before = await handle.steps()
        assert [attempt.error_name for attempt in (await step_of(handle, "call", RunStep)).attempts] == ["TimeoutError"]

        call.release.set()
        await engine.run_until_idle()
        assert await handle.steps() == before
        assert await handle.status() == "failed"


@async_test
async def test_a_callback_that_ends_in_time_leaves_no_timeout_behind():
    @definition
    async def Quick(self):
        await self.run("call", Callback(), timeout=60)
        await self.wait("end", "end")

    async with started(Quick) as (engine, handle):
        await engine.advance(120)
        assert states(await step_of(handle, "call", RunStep)) == ["succeeded"]
        assert await handle.status() == "running"


@async_test
async def test_plain_functions_run_in_threads_side_by_side():
    barrier = threading.Barrier(3, timeout=10)
    main = threading.get_ident()

    def call() -> bool:
        barrier.wait()
        return threading.get_ident() != main

    @definition
    async def Threads(self):
        return await asyncio.gather(*(self.run(f"call-{number}", call) for number in range(3)))

    async with started(Threads) as (_, handle):
        assert await handle.result(timeout=5) == [True] * 3


@async_test
async def test_an_attempt_is_started_only_when_a_thread_is_free():
    calls = [Thread(number) for number in range(2)]

    @definition
    async def Threads(self):
        return await asyncio.gather(
            *(self.run(f"call-{number}", call, returns=int) for number, call in enumerate(calls))
        )

    async with SimulatedEngine([Threads], settings=Settings(thread_count=1)) as engine:
        handle = engine.get(Threads, "instance-1")
        await handle.create()
        await calls[0].has_begun()
        assert attempt_states(await handle.steps()) == {"call-0": ["started"], "call-1": []}

        calls[0].release.set()
        await calls[1].has_begun()
        assert attempt_states(await handle.steps()) == {"call-0": ["succeeded"], "call-1": ["started"]}
        calls[1].release.set()
        assert await handle.result(timeout=5) == [0, 1]


@async_test
async def test_a_plain_callable_that_gives_a_coroutine_is_awaited_on_the_loop():
    loop = asyncio.get_running_loop()

    @definition
    async def Wrapped(self):
        async def call(value):
            assert asyncio.get_running_loop() is loop
            return value

        return await self.run("call", lambda: call("value"), returns=str)

    async with started(Wrapped) as (_, handle):
        assert await handle.result(timeout=5) == "value"


@async_test
async def test_an_error_of_a_thread_is_the_failure_of_its_attempt():
    def call() -> None:
        raise LookupError("no such thing")

    @definition
    async def Raising(self):
        await self.run("call", call, max_attempts=1)

    async with started(Raising) as (_, handle):
        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert (attempt.error_name, attempt.error_message) == ("LookupError", "LookupError: no such thing")


@async_test
async def test_a_task_left_over_by_an_ended_attempt_may_ask_for_nothing():
    asked: asyncio.Queue[BaseException] = asyncio.Queue()
    go = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @definition
    async def LeftOver(self):
        async def left_over():
            await go.wait()
            try:
                self.run("late", Callback())
            except BaseException as error:
                asked.put_nowait(error)

        async def call():
            tasks.append(asyncio.ensure_future(left_over()))

        await self.run("call", call)
        await self.wait("end", "end")

    async with started(LeftOver) as (_, handle):
        go.set()
        error = await asked.get()
        assert isinstance(error, DefinitionError)
        assert "'call'" in str(error)
        assert [step.id for step in await handle.steps()] == ["call", "end"]


@async_test
async def test_a_callback_may_not_ask_another_instance_for_steps():
    bodies: dict[str, WorkflowDefinition[Any, Any]] = {}

    @definition
    async def Meddling(self):
        bodies[self.input] = self
        await self.wait("go", "go")

        async def call():
            await bodies["victim"].run("foreign", Callback())

        await self.run("call", call)

    async with SimulatedEngine([Meddling]) as engine:
        victim, meddler = engine.get(Meddling, "victim"), engine.get(Meddling, "meddler")
        await victim.create("victim")
        await meddler.create("meddler")
        await engine.run_until_idle()
        await meddler.send("go")
        await engine.run_until_idle()
        (attempt,) = (await step_of(meddler, "call", RunStep)).attempts
        assert attempt.error_name == "DefinitionError"
        assert "its own instance" in str(attempt.error_message)
        assert [step.id for step in await victim.steps()] == ["go"]


@async_test
async def test_a_callback_in_a_thread_may_not_ask_for_steps():
    @definition
    async def Threaded(self):
        def call() -> None:
            self.run("nested", Callback())

        await self.run("call", call)

    async with started(Threaded) as (_, handle):
        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert attempt.error_name == "DefinitionError"
        assert "thread" in str(attempt.error_message)
        assert len(await handle.steps()) == 1


@async_test
async def test_a_callback_may_use_the_handles_of_its_own_and_of_other_instances():
    @definition
    async def Talking(self):
        async def talk():
            other = engine.get(Other, "other")
            await other.create()
            receipt = await engine.get(Talking, "instance-1").send("go", await other.result(timeout=5))
            return str(receipt)

        receipt = await self.run("talk", talk, returns=str)
        return [receipt, await self.wait("go", "go", str)]

    @definition
    async def Other(self):
        async def call():
            return current_attempt().instance_id

        return await self.run("call", call, returns=str)

    async with SimulatedEngine([Talking, Other]) as engine:
        handle = engine.get(Talking, "instance-1")
        await handle.create()
        assert await handle.result(timeout=5) == ["queued", "other"]


@async_test
async def test_a_callback_may_cancel_its_own_instance():
    after = Callback()

    @definition
    async def Ending(self):
        async def call():
            await handle.cancel("enough")

        await self.run("call", call)
        await self.run("after", after)

    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        assert await handle.status() == "cancelled"
        assert after.calls == 0
        assert attempt_states(await handle.steps()) == {"call": ["failed"]}
