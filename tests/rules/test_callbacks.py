"""The rules of callbacks: how often they run, what ends them, and what is told of the instance's end."""

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.signals import Gate, attempt_states, watched
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    CurrentAttempt,
    DefinitionError,
    Engine,
    Receipt,
    RunStep,
    Settings,
    SleepStep,
    WorkflowCancelledError,
    WorkflowCompletionEvent,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowRuntime,
    current_attempt,
)
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)


class Thread:
    """A plain callback: it says when it has begun and returns when it is let go."""

    def __init__(self, result=None):
        self.calls = 0
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.names = []
        self._result = result

    def __call__(self, *arguments):
        self.calls += 1
        self.names.append(threading.current_thread().name)
        self.begun.release()
        assert self.release.wait(30)
        return self._result

    async def has_begun(self):
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.acquire, True, 10)


# How often.


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


# What a callback knows of itself.


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


# Timeouts.


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


# Threads.


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


# Who may ask for steps.


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


# Cancel and the end of execute().


@async_test
async def test_cancel_does_not_wait_for_a_thread_and_refuses_its_late_result():
    call = Thread("late")

    @definition
    async def InFlight(self):
        return await self.run("call", call, returns=str)

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await call.has_begun()
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(timeout=5)
        before = await handle.steps()
        assert attempt_states(before) == {"call": ["failed"]}

        call.release.set()
        await engine.run_until_idle()
        assert await handle.steps() == before


@async_test
async def test_the_end_of_execute_abandons_pending_steps_and_cancels_async_callbacks():
    gate = Gate()

    @definition
    async def Ending(self):
        self.sleep("long", DAY)
        self.run("call", gate)
        await self.wait("go", "go")
        return "done"

    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.send("go")
        assert await handle.result(timeout=5) == "done"

        assert gate.cancellations == 1
        assert (await step_of(handle, "long", SleepStep)).abandoned_at is not None
        step = await step_of(handle, "call", RunStep)
        assert states(step) == ["failed"]
        assert "abandoned" in str(step.attempts[0].error_message)
        assert step.abandoned_at is not None
        assert (await handle.info()).alarm_at is None


@async_test
async def test_the_end_of_execute_waits_for_callbacks_to_clean_up_but_not_for_ever():
    cleaned = Gate()

    @definition
    async def Ending(self):
        async def call():
            try:
                await asyncio.Event().wait()
            finally:
                await cleaned()

        self.run("call", call, timeout=DAY)
        await self.wait("go", "go")
        return "done"

    async with started(Ending, settings=Settings(finish_grace_s=2)) as (engine, handle):
        await handle.send("go")
        await cleaned.begun()
        assert await handle.status() == "running"
        await engine.advance(1)
        assert await handle.status() == "running"
        await engine.advance(1)
        assert await handle.status() == "completed"
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]
        cleaned.open()


@async_test
async def test_a_callback_that_cleans_up_in_time_ends_the_grace():
    cleaned = Gate()

    @definition
    async def Ending(self):
        async def call():
            try:
                await asyncio.Event().wait()
            finally:
                await cleaned()

        self.run("call", call, timeout=DAY)
        await self.wait("go", "go")
        return "done"

    async with started(Ending) as (engine, handle):
        now = engine.now()
        await handle.send("go")
        await cleaned.begun()
        cleaned.open()
        assert await handle.result(timeout=5) == "done"
        assert engine.now() == now


@async_test
async def test_the_end_of_execute_does_not_wait_for_threads():
    call = Thread("late")

    @definition
    async def Ending(self):
        self.run("call", call, returns=str)
        await self.wait("go", "go")
        return "done"

    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await call.has_begun()
        await handle.send("go")
        assert await handle.result(timeout=5) == "done"
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]
        call.release.set()
        await engine.run_until_idle()
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]


@async_test
async def test_an_end_whose_grace_a_crash_cuts_short_is_reached_by_the_replay():
    begun, cleaned = Gate(), Gate()

    @definition
    async def Ending(self):
        async def call():
            try:
                await begun()
            finally:
                await cleaned()

        self.run("call", call)
        await self.wait("go", "go")
        return "done"

    async with SimulatedEngine([Ending]) as engine:
        handle = engine.get(Ending, "instance-1")
        await handle.create()
        await begun.begun()
        await handle.send("go")
        await cleaned.begun()
        cleaned.open()
        await engine.crash()
        assert await handle.result(timeout=5) == "done"
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.parametrize("verb", ["pause", "cancel"])
@async_test
async def test_a_verb_in_the_grace_of_an_ending_instance_counts(verb):
    cleaned = Gate()

    @definition
    async def Ending(self):
        async def call():
            try:
                await asyncio.Event().wait()
            finally:
                await cleaned()

        self.run("call", call, timeout=DAY)
        await self.wait("go", "go")
        return "done"

    async with started(Ending) as (engine, handle):
        await handle.send("go")
        await cleaned.begun()
        await getattr(handle, verb)()
        cleaned.open()
        await engine.advance(60)
        if verb == "pause":
            assert await handle.status() == "paused"
            await handle.resume()
            assert await handle.result(timeout=5) == "done"
            assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]
        else:
            assert await lifecycle(handle) == ["created", "started", "cancelled"]


@async_test
async def test_an_event_in_the_grace_of_an_ending_instance_is_recorded():
    cleaned = Gate()

    @definition
    async def Ending(self):
        async def call():
            try:
                await asyncio.Event().wait()
            finally:
                await cleaned()

        self.run("call", call, timeout=DAY)
        await self.wait("go", "go")
        return "done"

    async with started(Ending) as (_, handle):
        await handle.send("go")
        await cleaned.begun()
        assert await handle.send("late", 7) == Receipt.queued
        cleaned.open()
        assert await handle.result(timeout=5) == "done"
        assert [event.payload for event in (await handle.info()).inbound_events][1:] == [7]


@async_test
async def test_cancelling_a_paused_instance_cancels_its_callback_in_flight():
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    async with SimulatedEngine([InFlight]) as engine:
        handle = engine.get(InFlight, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.pause()
        await handle.cancel()
        await engine.run_until_idle()
        assert gate.cancellations == 1
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]
        assert await handle.status() == "cancelled"


@async_test
async def test_a_nested_step_that_its_callback_cancels_is_abandoned_and_leaves_no_alarm():
    @definition
    async def Nesting(self):
        async def outer():
            sleep = self.sleep("long", DAY)
            await self.run("quick", Callback())
            sleep.cancel()
            return await self.wait("payment", "paid", int)

        return await self.run("outer", outer, returns=int)

    async with started(Nesting) as (engine, handle):
        assert (await step_of(handle, "long", SleepStep)).abandoned_at == engine.now()
        assert (await handle.info()).alarm_at is None
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == 7


@async_test
async def test_a_nested_callback_is_cancelled_with_the_one_that_asked_for_it():
    inner = Gate()

    @definition
    async def Nesting(self):
        async def outer():
            await self.run("inner", inner)

        run = self.run("outer", outer)
        await self.wait("go", "go")
        run.cancel()
        await self.wait("end", "end")

    async with SimulatedEngine([Nesting]) as engine:
        handle = engine.get(Nesting, "instance-1")
        await handle.create()
        await inner.begun()
        await handle.send("go")
        await engine.run_until_idle()
        assert inner.cancellations == 1
        assert {step.id: step.abandoned_at is not None for step in await handle.steps()} == {
            "outer": True, "go": False, "inner": True, "end": False,
        }  # fmt: skip
        assert attempt_states(await handle.steps()) == {"outer": ["failed"], "inner": ["failed"]}


@async_test
async def test_a_callback_that_times_out_while_it_waits_for_a_nested_step_abandons_that_step_and_asks_again():
    entered: list[int] = []

    @definition
    async def Nesting(self):
        async def outer():
            entered.append(1)
            return await self.wait("payment", "paid", int)

        return await self.run("outer", outer, timeout=60, max_attempts=3, returns=int)

    async with started(Nesting) as (engine, handle):
        await engine.advance(60)
        assert len((await step_of(handle, "outer", RunStep)).attempts) == 1
        await engine.advance(1)
        assert len(entered) == 2
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == 7
        assert states(await step_of(handle, "outer", RunStep)) == ["failed", "succeeded"]


# What is told of the end.


def delivering(workflow, handler):
    """A runtime of *workflow* whose completion handler is *handler*."""

    async def completion(self, event):
        await handler(event)

    return type("Delivering", (WorkflowRuntime,), {"definition": workflow, "completion": completion})


@definition
async def Ends(self):
    if await self.wait("how", "how") == "failed":
        raise ValueError


@pytest.mark.spec(216, 217, 220)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_the_completion_is_delivered_once_with_all_that_names_it(end):
    events: list[WorkflowCompletionEvent] = []

    async def handler(event):
        events.append(event)

    runtime = delivering(Ends, handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await engine.advance(5)
        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()
        await handle.create()
        await engine.crash()
        await engine.advance(DAY)

        (event,) = events
        log = await handle.events()
        assert event.id == f"instance-1:{log[-1].id}"
        assert (event.status, event.finished_at) == (end, log[-1].recorded_at)
        assert (event.workflow, event.instance_id) == ("Delivering", "instance-1")
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(220)
@async_test
async def test_a_pending_instance_that_is_cancelled_is_delivered_too():
    events: list[str] = []

    async def handler(event):
        events.append(event.status)

    runtime = delivering(Ends, handler)
    async with SimulatedEngine([runtime]) as engine:
        await engine.get(runtime, "instance-1").cancel()
        await engine.run_until_idle()

    assert events == ["cancelled"]


@pytest.mark.spec(218)
@async_test
async def test_a_handler_that_raises_is_called_again_later_with_the_same_id(caplog):
    ids: list[str] = []
    times: list[timedelta] = []

    async def handler(event):
        ids.append(event.id)
        times.append(engine.now() - start)
        if len(ids) < 4:
            raise ConnectionError("no answer")

    runtime = delivering(Ends, handler)
    async with SimulatedEngine([runtime]) as engine:
        start = engine.now()
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.cancel()
        with caplog.at_level(logging.CRITICAL, "workerflow"):
            await engine.run_until_idle()
            assert await handle.status() == "cancelled"
            assert (await handle.info()).alarm_at == start + timedelta(seconds=1)
            await engine.crash()
            await engine.advance(DAY)
        assert (await handle.info()).alarm_at is None

    assert len(set(ids)) == 1
    # At the crash it is tried again at once, if not yet due then, with the back-off that its count of tries says.
    assert len(times) == 4
    assert times[-1] - times[-2] == timedelta(seconds=4)


@pytest.mark.spec(219)
@async_test
async def test_a_delivery_cut_by_a_crash_is_made_again_with_the_same_event():
    events: list[WorkflowCompletionEvent] = []
    gate = Gate()

    async def handler(event):
        events.append(event)
        await gate()

    runtime = delivering(Ends, handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.cancel()
        await gate.begun()
        # The try and its lease are durable before the handler runs.
        assert (await handle.info()).alarm_at == engine.now() + timedelta(minutes=30)
        gate.open()
        # The handler is cancelled before it can end.
        await engine.crash()
        await engine.run_until_idle()
        assert events == [events[0]] * 2
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(215)
@async_test
async def test_without_a_handler_nothing_is_delivered_and_no_alarm_is_left():
    runtime = watched(Ends)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.cancel()
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(221)
@async_test
async def test_a_delivery_whose_handler_is_gone_waits_for_one_to_come_back(tmp_path):
    called: asyncio.Queue[str] = asyncio.Queue()
    is_raising = True

    async def handler(event):
        called.put_nowait(event.id)
        if is_raising:
            raise ConnectionError("no answer")

    async def retried_from(engine, runtime, before):
        """Wait until another try is planned than the one of before."""
        while (planned := (await engine.get(runtime, "instance-1").info()).alarm_at) in (None, before):
            await asyncio.wait([asyncio.ensure_future(engine.get(runtime, "instance-1").status())])
        return planned

    with_handler = delivering(Ends, handler)
    without_handler = type(with_handler.__name__, (WorkflowRuntime,), {"definition": Ends})
    async with Engine(tmp_path / "end.db", [with_handler]) as engine:
        await engine.get(with_handler, "instance-1").cancel()
        first = await called.get()
        planned = await retried_from(engine, with_handler, None)
    async with Engine(tmp_path / "end.db", [without_handler]) as engine:
        await retried_from(engine, without_handler, planned)
        assert await engine.get(without_handler, "instance-1").status() == "cancelled"
    is_raising = False
    async with Engine(tmp_path / "end.db", [with_handler]) as engine:
        assert await asyncio.wait_for(called.get(), 10) == first
    assert called.empty()


@async_test
async def test_a_handler_sees_the_end_that_it_is_told_of():
    seen: list[object] = []

    class Reading(WorkflowRuntime[None, None]):
        definition = Ends

        async def completion(self, event):
            seen.append((self.instance_id, self.get_status(), self.get_workflow_events()[-1].type))

    async with SimulatedEngine([Reading]) as engine:
        handle = engine.get(Reading, "instance-1")
        await handle.create()
        await handle.send("how", "completed")
        await engine.run_until_idle()

    assert seen == [("instance-1", "completed", "completed")]


@async_test
async def test_a_handler_may_start_another_workflow():
    class Chained(WorkflowRuntime[None, None]):
        definition = Ends

        async def completion(self, event):
            await engine.get(Ends, "the next").create()

    async with SimulatedEngine([Chained, Ends]) as engine:
        await engine.get(Chained, "instance-1").cancel()
        await engine.run_until_idle()
        assert await engine.get(Ends, "the next").status() == "running"


@async_test
async def test_the_status_hook_is_called_when_the_status_is_durable_and_not_again_after_a_restart():
    seen: list[tuple[str, str]] = []

    class Reading(WorkflowRuntime[None, None]):
        definition = Ends

        def on_status_change(self, status):
            seen.append((status, self.get_status()))

    async with SimulatedEngine([Reading]) as engine:
        handle = engine.get(Reading, "instance-1")
        await handle.create()
        await handle.pause()
        await engine.crash()
        await handle.resume()
        await engine.crash()
        await handle.cancel()
        await engine.crash()

    assert seen == [(status, status) for status in ("running", "paused", "running", "cancelled")]


@async_test
async def test_a_status_hook_that_raises_is_logged_and_changes_nothing(caplog):
    class Raising(WorkflowRuntime[None, None]):
        definition = Ends

        def on_status_change(self, status):
            raise LookupError(status)

    async with SimulatedEngine([Raising]) as engine:
        handle = engine.get(Raising, "instance-1")
        await handle.create()
        await handle.cancel()
        assert await handle.status() == "cancelled"

    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("running",), ("cancelled",)]
