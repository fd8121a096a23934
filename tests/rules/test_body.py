"""The rules of a body: what ``execute()`` may do, and that a replay repeats it exactly."""

import asyncio
import contextvars
import gc
import logging
import random
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    DefinitionError,
    Engine,
    NonRetryableStepError,
    RunStep,
    Settings,
    SleepStep,
    WaitStep,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowHeldError,
    WorkflowRuntime,
)
from workerflow.testing import SimulatedEngine

HOUR = timedelta(hours=1)


AWAKE = Settings(hibernate_after_s=10**7)
"""A crash then finds the instance in memory, and it is replayed at once."""


class Traces:
    """What each body of a workflow did, body by body."""

    def __init__(self) -> None:
        self.bodies: list[list[Any]] = []
        self._ended = 0

    def begin(self) -> Callable[[Any], None]:
        """A new body begins; gives the function that notes what it does."""
        number = self._ended = len(self.bodies)
        self.bodies.append([])
        return lambda item: self.bodies[number].append(item) if number >= self._ended else None

    def end(self) -> None:
        """What the bodies of now do from here on, when they are dropped, is not noted."""
        self._ended = len(self.bodies)


async def failure_of(handle):
    with pytest.raises(WorkflowFailedError) as failed:
        await handle.result(timeout=5)
    return failed.value


# The order of outcomes.


@pytest.mark.parametrize("first", ["a", "b"])
@async_test
async def test_a_race_has_the_same_winner_after_a_crash(first):
    traces = Traces()
    gates = {"a": Gate("a"), "b": Gate("b")}

    @definition
    async def Race(self):
        note = traces.begin()
        runs = [asyncio.ensure_future(self.run(name, gates[name], returns=str)) for name in ("a", "b")]
        while runs:
            done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            for run in done:
                note(await run)
                runs.remove(run)
        await self.wait("end", "end")

    async with SimulatedEngine([Race]) as engine:
        handle = engine.get(Race, "instance-1")
        await handle.create()
        await gates["a"].begun()
        await gates["b"].begun()
        gates[first].open()
        await step_has_succeeded(handle, first)
        gates["a"].open()
        gates["b"].open()
        await engine.run_until_idle()
        for _ in range(3):
            await engine.crash()

    assert traces.bodies == [[first, "b" if first == "a" else "a"]] * 4


async def step_has_succeeded(handle, step_id):
    """Return when the only attempt of the step is recorded as succeeded."""
    while states(await step_of(handle, step_id, RunStep)) != ["succeeded"]:
        await next_turn()


async def next_turn():
    """Let the loop go round once."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


@async_test
async def test_outcomes_recorded_in_one_moment_are_delivered_in_the_same_order_on_every_replay():
    traces = Traces()
    numbers = list(range(30))
    random.Random(5).shuffle(numbers)

    @definition
    async def Crowd(self):
        note = traces.begin()

        async def branch(number):
            await self.run(f"run-{number}", Callback())
            note(number)
            await self.sleep(f"sleep-{number}", number % 3)
            note(-number)

        await asyncio.gather(*(branch(number) for number in numbers))
        await self.wait("end", "end")

    async with started(Crowd, settings=AWAKE) as (engine, _):
        await engine.advance(5)
        for _ in range(3):
            await engine.crash()

    assert len(traces.bodies[0]) == 60
    assert traces.bodies[1:] == traces.bodies[:1] * 3


@async_test
async def test_the_order_of_a_done_set_repeats():
    """asyncio keeps tasks in sets, which order by address unless the tasks say otherwise."""
    traces = Traces()

    @definition
    async def DoneSet(self):
        note = traces.begin()
        names = {self.run(f"run-{number}", Callback()): number for number in range(40)}
        done, _ = await asyncio.wait(names)
        note([names[future] for future in done])
        await self.wait("end", "end")

    async with started(DoneSet) as (engine, _):
        for _ in range(4):
            await engine.crash()

    assert len(traces.bodies) == 5
    assert len(traces.bodies[0][0]) == 40
    assert traces.bodies[1:] == traces.bodies[:1] * 4


@async_test
async def test_a_race_between_event_sleep_and_run_repeats():
    traces = Traces()
    call = Callback(errors=[ConnectionError(), ConnectionError()])

    @definition
    async def Race(self):
        note = traces.begin()
        futures = {
            "event": self.wait("event", "event"),
            "sleep": self.sleep("sleep", 60),
            "run": self.run("run", call),
        }
        for name, future in futures.items():
            future.add_done_callback(lambda _, name=name: note(name))
        await asyncio.wait(futures.values())
        await self.wait("end", "end")

    async with started(Race, settings=AWAKE) as (engine, handle):
        await engine.advance(59)
        await handle.send("event")
        await engine.advance(1)
        await engine.crash()
        await engine.run_until_idle()

    assert traces.bodies == [["run", "event", "sleep"]] * 2


# What asyncio offers, in execute().


async def with_gather(self, note):
    note(await asyncio.gather(*(self.run(f"run-{number}", Callback(number), returns=int) for number in range(5))))


async def with_task_group(self, note):
    async def branch(number):
        await self.sleep(f"sleep-{number}", 10 - number)
        note(number)
        return number

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(number)) for number in range(5)]
    note([task.result() for task in tasks])


async def with_a_task_group_of_steps(self, note):
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(self.run(f"run-{number}", Callback(number), returns=int), name=f"named-{number}")
            for number in range(3)
        ]
        sleep = group.create_task(self.sleep("sleep", 1))
    note([task.result() for task in tasks])
    note(sleep.result())


async def with_a_task_group_that_aborts(self, note):
    async def failing():
        await self.sleep("before", 1)
        raise ValueError("group")

    async def cancelled(number):
        try:
            await self.sleep(f"long-{number}", 1000)
        finally:
            note(number)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            for number in range(10):
                group.create_task(cancelled(number))
    except* ValueError as failures:
        note([repr(error) for error in failures.exceptions])


async def with_wait(self, note):
    sleeps = {self.sleep(f"sleep-{number}", number) for number in range(5)}
    while sleeps:
        done, sleeps = await asyncio.wait(sleeps, return_when=asyncio.FIRST_COMPLETED)
        note(len(done))
        note(self.now())


async def with_as_completed(self, note):
    async def branch(number):
        await self.sleep(f"sleep-{number}", 10 - number)
        return number

    for next_one in asyncio.as_completed([branch(number) for number in range(5)]):
        note(await next_one)


async def with_queue(self, note):
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)

    async def produce():
        for number in range(6):
            await self.run(f"run-{number}", Callback())
            await queue.put(number)

    async def consume(name):
        for index in range(3):
            note((name, await queue.get()))
            await self.sleep(f"{name}-{index}", 1 if name == "quick" else 3)

    await asyncio.gather(produce(), consume("quick"), consume("slow"))


async def with_lock_and_semaphore(self, note):
    lock, semaphore = asyncio.Lock(), asyncio.Semaphore(2)

    async def branch(number):
        async with semaphore:
            await self.sleep(f"sleep-{number}", 5 - number)
            async with lock:
                note(number)
                await self.run(f"run-{number}", Callback())
                note(number)

    await asyncio.gather(*(branch(number) for number in range(5)))


async def with_event_and_condition(self, note):
    event, condition = asyncio.Event(), asyncio.Condition()
    is_ready = False

    async def setter():
        nonlocal is_ready
        await self.sleep("sleep", 1)
        event.set()
        await self.run("run", Callback())
        async with condition:
            is_ready = True
            condition.notify_all()

    async def waiter(number):
        await event.wait()
        note(("event", number))
        async with condition:
            await condition.wait_for(lambda: is_ready)
        note(("condition", number))

    await asyncio.gather(setter(), *(waiter(number) for number in range(3)))


async def with_async_generator(self, note):
    async def ticks():
        try:
            for number in range(3):
                await self.sleep(f"tick-{number}", 1)
                yield number
        finally:
            note("closed")

    async for number in ticks():
        note(number)
        if number == 1:
            break
    await self.sleep("after", 1)


async def with_cancellation(self, note):
    async def branch():
        try:
            await self.sleep("long", 1000)
        except asyncio.CancelledError:
            note("cancelled")
            await self.run("cleanup", Callback())
            raise

    task = asyncio.create_task(branch())
    await self.sleep("short", 1)
    task.cancel("enough")
    note(repr(await asyncio.gather(task, return_exceptions=True)))


COMPOSITIONS = [
    with_gather, with_task_group, with_a_task_group_of_steps, with_a_task_group_that_aborts, with_wait,
    with_as_completed, with_queue, with_lock_and_semaphore, with_event_and_condition, with_async_generator,
    with_cancellation,
]  # fmt: skip


@pytest.mark.parametrize("composition", COMPOSITIONS)
@async_test
async def test_what_asyncio_offers_works_in_execute_and_replays_the_same(composition):
    traces = Traces()

    @definition
    async def Composed(self):
        note = traces.begin()
        await composition(self, note)
        note("over")
        return await self.wait("end", "end", str)

    async with started(Composed, settings=AWAKE) as (engine, handle):
        await engine.advance(30)
        assert traces.bodies[0][-1] == "over"
        steps = await handle.steps()

        traces.end()
        await engine.crash()
        await engine.run_until_idle()
        assert traces.bodies == [traces.bodies[0]] * 2
        assert await handle.steps() == steps

        await handle.send("end", "completed")
        assert await handle.result(timeout=5) == "completed"


@pytest.mark.parametrize("composition", COMPOSITIONS)
@async_test
async def test_what_asyncio_offers_goes_on_after_a_crash_at_any_moment(composition):
    traces = Traces()

    @definition
    async def Composed(self):
        note = traces.begin()
        await composition(self, note)
        note("over")
        await self.wait("end", "end")
        return "over"

    async with started(Composed, settings=AWAKE) as (engine, handle):
        for _ in range(15):
            traces.end()
            await engine.crash()
            await engine.advance(1)
        await handle.send("end")
        assert await handle.result(timeout=5) == "over"

    assert len(traces.bodies) == 16
    assert traces.bodies[-1][-1] == "over"
    for body in traces.bodies:
        assert traces.bodies[-1][: len(body)] == body


@async_test
async def test_a_step_may_be_awaited_by_several_tasks():
    traces = Traces()

    @definition
    async def Shared(self):
        note = traces.begin()
        call = self.run("call", Callback("value"), returns=str)

        async def reader(name):
            note((name, await asyncio.shield(call)))

        await asyncio.gather(reader("a"), reader("b"))
        await self.wait("end", "end")

    async with started(Shared) as (engine, _):
        await engine.crash()

    assert traces.bodies == [[("a", "value"), ("b", "value")]] * 2


@async_test
async def test_tasks_have_the_same_names_on_replay():
    traces = Traces()

    @definition
    async def Named(self):
        note = traces.begin()

        async def branch(number):
            await self.run(f"run-{number}", Callback())
            task = asyncio.current_task()
            assert task is not None
            note(task.get_name())

        await asyncio.gather(branch(0), branch(1), asyncio.create_task(branch(2), name="third"))
        await self.wait("end", "end")

    async with started(Named) as (engine, _):
        await engine.crash()

    assert traces.bodies[0] == traces.bodies[1]
    assert len(set(traces.bodies[0])) == 3
    assert "third" in traces.bodies[0]


@async_test
async def test_a_failure_that_the_body_does_not_look_at_harms_nothing(caplog):
    @definition
    async def Careless(self):
        self.run("call", Callback(always=NonRetryableStepError("declined")))
        await self.run("other", Callback())
        return await self.wait("end", "end", str)

    async with started(Careless) as (engine, handle):
        await engine.crash()
        await engine.run_until_idle()
        await handle.send("end", "done")
        assert await handle.result(timeout=5) == "done"
    gc.collect()
    # Named, for what other tests left behind may be collected here as well.
    assert [record.getMessage() for record in caplog.records if "Careless" in record.getMessage()] == []


# Contexts.

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


@async_test
async def test_body_and_callbacks_run_in_the_context_of_the_engine_not_of_the_caller():
    seen: dict[str, str] = {}

    async def on_the_loop() -> None:
        seen["callback"] = caller.get()

    def in_a_thread() -> None:
        seen["thread"] = caller.get()

    @definition
    async def Contexts(self):
        seen["begin"] = caller.get()
        await self.run("on-the-loop", on_the_loop)
        await self.run("in-a-thread", in_a_thread)
        await self.wait("go", "go")
        seen["after the event"] = caller.get()

    caller.set("engine")
    async with SimulatedEngine([Contexts]) as engine:
        caller.set("customer")
        handle = engine.get(Contexts, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        caller.set("another customer")
        await handle.send("go")
        await handle.result(timeout=5)

    assert seen == dict.fromkeys(["begin", "callback", "thread", "after the event"], "engine")


@async_test
async def test_hooks_run_in_the_context_of_the_engine_not_of_the_caller():
    seen: list[tuple[str, str]] = []

    @definition
    async def Contexts(self):
        await self.wait("go", "go")

    class Hooked(WorkflowRuntime[None, None]):
        definition = Contexts

        def on_status_change(self, status):
            seen.append((status, caller.get()))

        async def completion(self, event):
            seen.append(("delivery", caller.get()))

    caller.set("engine")
    async with SimulatedEngine([Hooked]) as engine:
        caller.set("customer")
        handle = engine.get(Hooked, "instance-1")
        await handle.create()
        await handle.pause()
        await handle.resume()
        await handle.send("go")
        await engine.run_until_idle()

    assert seen == [(name, "engine") for name in ("running", "paused", "running", "completed", "delivery")]


@async_test
async def test_what_the_body_sets_in_its_context_stays_in_its_instance():
    @definition
    async def Setter(self):
        before = caller.get()
        caller.set(self.input)
        await self.run("call", Callback())
        return [before, caller.get()]

    async with SimulatedEngine([Setter]) as engine:
        handles = [engine.get(Setter, name) for name in ("a", "b")]
        for handle in handles:
            await handle.create(handle.id)
        results = [await handle.result(timeout=5) for handle in handles]

    assert results == [["nobody", "a"], ["nobody", "b"]]


# Commands wait for replay.


def versions(*codes):
    """A definition whose code can be exchanged between two replays: ``code[0]`` is what ``execute()`` does."""
    code = list(codes)

    @definition
    async def Changing(self):
        return await code[0](self)

    return Changing, code


@async_test
async def test_a_replay_starts_no_callback_whose_step_the_body_goes_on_to_cancel():
    loser = Gate()

    @definition
    async def Race(self):
        run = self.run("loser", loser)
        await self.run("winner", Callback())
        run.cancel()
        await self.wait("end", "end")

    async with started(Race) as (engine, handle):
        assert loser.calls == 1
        await engine.crash()
        await engine.run_until_idle()
        assert loser.calls == 1
        assert states(await step_of(handle, "loser", RunStep)) == ["failed"]


@async_test
async def test_a_replay_claims_no_event_for_a_wait_that_the_body_goes_on_to_cancel():
    @definition
    async def Race(self):
        wait = self.wait("early", "message")
        await self.sleep("minute", 60)
        wait.cancel()
        await self.wait("go", "go")
        return await self.wait("late", "message", str)

    async with started(Race) as (engine, handle):
        await engine.advance(60)
        await handle.send("message", "hello")
        await engine.crash()
        await engine.run_until_idle()
        assert (await step_of(handle, "early", WaitStep)).state == "waiting"
        await handle.send("go")
        assert await handle.result(timeout=5) == "hello"


@async_test
async def test_a_replay_creates_no_step_that_the_body_goes_on_to_cancel():
    new = Callback()

    async def before(self):
        await self.run("old", Callback())
        await self.wait("end", "end")

    async def after(self):
        run = self.run("new", new)
        await self.run("old", Callback())
        run.cancel()
        await self.wait("end", "end")

    changing, code = versions(before)
    async with started(changing) as (engine, handle):
        code[0] = after
        await engine.crash()
        await engine.run_until_idle()
        assert [step.id for step in await handle.steps()] == ["old", "end"]
        assert new.calls == 0


@async_test
async def test_a_step_added_to_a_definition_runs_when_the_replay_is_over():
    order: list[str] = []

    async def before(self):
        await self.run("old", Callback())
        await self.wait("end", "end")

    async def after(self):
        async def new() -> None:
            order.append("new callback")

        run = self.run("new", new)
        await self.run("old", Callback())
        order.append("old delivered")
        await run
        await self.wait("end", "end")

    changing, code = versions(before)
    async with started(changing) as (engine, handle):
        code[0] = after
        await engine.crash()
        await engine.run_until_idle()
        assert order == ["old delivered", "new callback"]
        assert await handle.status() == "running"


# Abandoned steps.


@async_test
async def test_a_step_that_the_body_cancels_is_abandoned_and_holds_no_alarm():
    @definition
    async def Cancelling(self):
        sleep = self.sleep("long", 3600)
        await self.wait("go", "go")
        sleep.cancel()
        await self.wait("end", "end")

    async with started(Cancelling) as (engine, handle):
        assert (await handle.info()).alarm_at == engine.now() + HOUR
        await engine.advance(60)
        await handle.send("go")
        await engine.run_until_idle()

        sleep = await step_of(handle, "long", SleepStep)
        assert (sleep.state, sleep.abandoned_at) == ("waiting", engine.now())
        assert (await handle.info()).alarm_at is None
        await engine.advance(2 * HOUR)
        assert (await step_of(handle, "long", SleepStep)).state == "waiting"


@async_test
async def test_an_abandoned_wait_claims_no_event_and_leaves_it_to_the_next():
    @definition
    async def Cancelling(self):
        first = self.wait("first", "message", str)
        await self.wait("go", "go")
        first.cancel()
        return await self.wait("second", "message", str)

    async with started(Cancelling) as (engine, handle):
        await handle.send("go")
        await engine.run_until_idle()
        await handle.send("message", "hello")
        assert await handle.result(timeout=5) == "hello"
        assert (await step_of(handle, "first", WaitStep)).state == "waiting"


@async_test
async def test_an_abandoned_callback_is_cancelled_and_its_attempt_ends_with_the_outcome_that_caused_it():
    gate = Gate()

    @definition
    async def Cancelling(self):
        run = self.run("call", gate)
        await self.wait("go", "go")
        run.cancel()
        await self.run("next", Callback())
        await self.wait("end", "end")

    async with SimulatedEngine([Cancelling]) as engine:
        handle = engine.get(Cancelling, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.send("go")
        # The event is durable, and so is all that it caused.
        step = await step_of(handle, "call", RunStep)
        (attempt,) = step.attempts
        assert (attempt.state, attempt.next_attempt_at) == ("failed", None)
        assert "abandoned" in str(attempt.error_message)
        assert step.abandoned_at == engine.now()
        assert states(await step_of(handle, "next", RunStep)) == ["started"]

        await engine.run_until_idle()
        assert gate.cancellations == 1
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]


@async_test
async def test_a_step_that_a_changed_definition_no_longer_asks_for_is_abandoned_and_comes_back_with_its_first_time():
    async def asks(self):
        await asyncio.gather(self.sleep("nap", 3600), self.wait("end", "end"))
        return "woken"

    async def asks_not(self):
        await self.wait("end", "end")

    changing, code = versions(asks)
    async with started(changing, settings=AWAKE) as (engine, handle):
        first = await step_of(handle, "nap", SleepStep)

        await engine.advance(60)
        code[0] = asks_not
        await engine.crash()
        await engine.run_until_idle()
        assert (await step_of(handle, "nap", SleepStep)).abandoned_at == engine.now()
        assert (await handle.info()).alarm_at is None
        await engine.advance(60)

        code[0] = asks
        await engine.crash()
        await engine.run_until_idle()
        assert await step_of(handle, "nap", SleepStep) == first
        assert (await handle.info()).alarm_at == first.wake_at
        await engine.advance(3600 - 120)
        assert (await step_of(handle, "nap", SleepStep)).state == "elapsed"


@async_test
async def test_a_call_that_a_changed_definition_no_longer_asks_for_is_not_made():
    call = Callback(always=ConnectionError())

    async def asks(self):
        await self.run("call", call)

    async def asks_not(self):
        await self.wait("end", "end")

    changing, code = versions(asks)
    async with started(changing, settings=AWAKE) as (engine, handle):
        code[0] = asks_not
        await engine.crash()
        await engine.advance(3600)
        assert call.calls == 1
        assert (await step_of(handle, "call", RunStep)).abandoned_at is not None
        assert await handle.status() == "running"


@async_test
async def test_an_abandoned_run_that_is_asked_for_again_is_called_again():
    call = Callback("called", errors=[ConnectionError()])

    async def asks(self):
        return await self.run("call", call, returns=str)

    async def asks_not(self):
        await self.wait("end", "end")

    changing, code = versions(asks)
    async with started(changing, settings=AWAKE) as (engine, handle):
        for code[0] in (asks_not, asks):
            await engine.crash()
            await engine.advance(10)
        assert await handle.result(timeout=5) == "called"
        assert (await step_of(handle, "call", RunStep)).abandoned_at is None
        assert call.calls == 2


def named(name, execute):
    """A class of this name, as another version of the same program would have it."""
    return type(name, (WorkflowDefinition,), {"execute": execute, "name": name, "__module__": __name__})


@async_test
async def test_steps_may_be_reordered_added_and_removed_between_two_programs(tmp_path):
    calls: list[str] = []

    def note(name):
        async def callback():
            calls.append(name)
            return name

        return callback

    async def before(self):
        await self.run("a", note("a"))
        await self.run("b", note("b"))
        await self.run("removed", note("removed"))
        await self.wait("end", "end")

    async def after(self):
        results = [await self.run(name, note(name), returns=str) for name in ("added", "b", "a")]
        await self.wait("end", "end")
        return results

    before_class, after_class = named("Orders", before), named("Orders", after)
    async with Engine(tmp_path / "orders.db", [before_class]) as engine:
        handle = engine.get(before_class, "order-1")
        await handle.create()
        while len(await handle.steps()) < 4:
            await next_turn()
    async with Engine(tmp_path / "orders.db", [after_class]) as engine:
        handle = engine.get(after_class, "order-1")
        await handle.send("end")
        assert await handle.result(timeout=10) == ["added", "b", "a"]

    assert calls == ["a", "b", "removed", "added"]


@pytest.mark.parametrize("kind", ["kind", "parent"])
@async_test
async def test_a_step_that_changed_its_kind_or_parent_holds_the_instance_until_the_code_is_mended(tmp_path, kind):
    async def before(self):
        await self.run("step", Callback())
        await self.wait("end", "end")

    async def after(self):
        if kind == "kind":
            await self.sleep("step", 1)
        else:

            async def outer() -> None:
                await self.run("step", Callback())

            await self.run("outer", outer)
        await self.wait("end", "end")

    before_class, after_class = named("Orders", before), named("Orders", after)
    async with Engine(tmp_path / "orders.db", [before_class]) as engine:
        await engine.get(before_class, "order-1").create()
        while len(await engine.get(before_class, "order-1").steps()) < 2:
            await next_turn()
    async with Engine(tmp_path / "orders.db", [after_class]) as engine:
        handle = engine.get(after_class, "order-1")
        await handle.send("other")
        with pytest.raises(WorkflowHeldError) as held:
            await handle.result(timeout=10)
        assert await handle.status() == "running"
    for word in ("order-1", "'step'", "run", "sleep" if kind == "kind" else "'outer'"):
        assert word in str(held.value)
    async with Engine(tmp_path / "orders.db", [before_class]) as engine:
        handle = engine.get(before_class, "order-1")
        await handle.resume()
        await handle.send("end")
        await handle.result(timeout=10)
        assert await handle.status() == "completed"


@async_test
async def test_a_callback_whose_nested_step_holds_the_instance_keeps_the_engine_from_nothing():
    async def before(self):
        await self.run("step", Callback())
        await self.wait("end", "end")

    async def after(self):
        async def outer():
            await self.run("step", Callback())

        await self.run("outer", outer)
        await self.wait("end", "end")

    changing, code = versions(before)
    async with started(changing, settings=AWAKE) as (engine, handle):
        code[0] = after
        crash = asyncio.ensure_future(engine.crash())
        # It waits for what it has no word for: like a callback that waits for a nested step, it is not busy.
        done, _ = await asyncio.wait([crash], timeout=5)
        with pytest.raises(WorkflowHeldError, match="'step'"):
            await handle.result(timeout=5)
        crash.cancel()
        assert done


# Dropping a body.


@async_test
async def test_a_body_that_is_dropped_runs_its_finally_and_its_verbs_do_nothing():
    cleanup = Callback()
    trace: list[str] = []

    @definition
    async def Tidy(self):
        try:
            await self.wait("end", "end")
        finally:
            trace.append("finally")
            await self.run("cleanup", cleanup)
            trace.append("cleaned")

    async with started(Tidy) as (engine, handle):
        await engine.crash()
        await engine.run_until_idle()
        assert trace == ["finally"]
        assert [step.id for step in await handle.steps()] == ["end"]
        assert cleanup.calls == 0

        await handle.send("end")
        await handle.result(timeout=5)
        assert trace == ["finally", "finally", "cleaned"]
        assert cleanup.calls == 1


@async_test
async def test_a_dropped_body_that_catches_everything_in_a_loop_does_not_spin(caplog):
    asked: list[str] = []

    @definition
    async def Clinging(self):
        # An author's "while True", bounded so that a spin is a failure of this test and not of the whole run.
        while len(asked) < 1000:
            try:
                asked.append(f"wait-{len(asked)}")
                await self.wait(asked[-1], "never")
            except BaseException:
                continue

    async with started(Clinging) as (engine, handle):
        before = await handle.steps()
        with caplog.at_level(logging.WARNING, "workerflow"):
            await engine.crash()
            await engine.run_until_idle()
        # One for the first body, at most one for each of the rounds that it is given, one for the second body.
        assert len(asked) <= 5
        assert [step.id for step in await handle.steps() if step.abandoned_at is None] == [asked[-1]]
        assert {step.id for step in before} <= {step.id for step in await handle.steps()}
        assert await handle.status() == "running"

    # The collector closes what is left of a coroutine: one more exception that such a body catches.
    gc.collect()
    assert len(asked) <= 9
    assert any("CancelledError" in record.getMessage() for record in caplog.records)


@async_test
async def test_a_body_that_holds_a_half_used_generator_is_dropped_without_a_warning():
    @definition
    async def Holding(self):
        async def ticks():
            try:
                for number in range(3):
                    await self.sleep(f"tick-{number}", 1)
                    yield number
            finally:
                await self.run("tidy", Callback())

        generator = ticks()
        async for _ in generator:
            break
        await self.wait("end", "end")
        return [number async for number in generator]

    async with started(Holding) as (engine, handle):
        await engine.advance(1)
        await engine.crash()
        gc.collect()
        await handle.send("end")
        await engine.advance(5)
        assert await handle.result(timeout=5) == [1, 2]


@async_test
async def test_an_instance_with_an_entered_callback_does_not_hibernate():
    entered: list[int] = []

    @definition
    async def Nesting(self):
        async def outer():
            entered.append(1)
            return await self.wait("payment", "paid", int)

        return await self.run("outer", outer, returns=int)

    async with started(Nesting, settings=Settings(hibernate_after_s=0)) as (engine, handle):
        await engine.advance(3600)
        assert (await handle.info()).owner is not None
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == 7
        assert entered == [1]


@async_test
async def test_a_hibernating_body_is_dropped_and_goes_on_when_it_is_woken():
    traces = Traces()

    @definition
    async def Hibernating(self):
        note = traces.begin()
        try:
            for number in range(3):
                note(await self.wait(f"wait-{number}", "message", int))
        finally:
            note("finally")

    async with started(Hibernating, settings=Settings(hibernate_after_s=0)) as (engine, handle):
        for number in range(3):
            await handle.send("message", number)
            await engine.run_until_idle()
        await handle.result(timeout=5)

    assert traces.bodies == [
        ["finally"],
        [0, "finally"],
        [0, 1, "finally"],
        [0, 1, 2, "finally"],
    ]


# BaseExceptions.


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("foreign"), GeneratorExit("odd")])
@async_test
async def test_a_base_exception_of_a_callback_fails_its_attempt_and_nothing_else(error):
    @definition
    async def Raising(self):
        await self.run("call", Callback(always=error), max_attempts=1)

    @definition
    async def Other(self):
        return await self.run("call", Callback("fine"), returns=str)

    async with SimulatedEngine([Raising, Other]) as engine:
        try:
            handle, other = engine.get(Raising, "instance-1"), engine.get(Other, "instance-2")
            await asyncio.gather(handle.create(), other.create())
            assert (await failure_of(handle)).error_name == "MaxAttemptsExceededError"
            (attempt,) = (await step_of(handle, "call", RunStep)).attempts
            assert (attempt.state, attempt.error_name) == ("failed", type(error).__name__)
            assert await other.result(timeout=5) == "fine"
        finally:
            # An attempt without an outcome would keep the engine from closing.
            await engine.crash()


@async_test
async def test_a_system_exit_of_a_callback_in_a_thread_fails_its_attempt():
    def leave() -> None:
        raise SystemExit(3)

    @definition
    async def Raising(self):
        await self.run("call", leave, max_attempts=1)

    async with started(Raising) as (_, handle):
        assert (await failure_of(handle)).error_name == "MaxAttemptsExceededError"
        assert (await step_of(handle, "call", RunStep)).attempts[0].error_name == "SystemExit"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("foreign"), GeneratorExit("odd")])
@async_test
async def test_a_base_exception_that_leaves_execute_fails_the_instance_and_nothing_else(error):
    @definition
    async def Raising(self):
        await self.run("call", Callback())
        raise error

    @definition
    async def Other(self):
        return await self.run("call", Callback("fine"), returns=str)

    async with SimulatedEngine([Raising, Other]) as engine:
        handle = engine.get(Raising, "instance-1")
        await handle.create()
        assert (await failure_of(handle)).error_name == type(error).__name__

        other = engine.get(Other, "instance-2")
        await other.create()
        assert await other.result(timeout=5) == "fine"


@pytest.mark.parametrize("where", ["execute", "task"])
def test_a_keyboard_interrupt_stops_the_engine_and_records_nothing(tmp_path, where):
    async def interrupted(self):
        async def interrupt():
            raise KeyboardInterrupt

        await self.run("call", Callback())
        if where == "task":
            await asyncio.create_task(interrupt())
        await interrupt()

    async def mended(self):
        await self.run("call", Callback())
        return "mended"

    async def main(code):
        orders = named("Orders", code)
        async with Engine(tmp_path / "orders.db", [orders]) as engine:
            handle = engine.get(orders, "order-1")
            await handle.create()
            return await handle.result(timeout=10), await lifecycle(handle), await handle.steps()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main(interrupted))

    result, log, steps = asyncio.run(main(mended))
    assert result == "mended"
    assert log == ["created", "started", "completed"]
    # The interrupt came when the outcome was delivered, before the commit that would have recorded it, or after.
    assert states(steps[0])[-1] == "succeeded"


@async_test
async def test_one_error_in_a_group_that_may_not_be_retried_makes_the_group_so():
    call = Callback(always=ExceptionGroup("both", [ConnectionError(), NonRetryableStepError("declined")]))

    @definition
    async def Grouped(self):
        await self.run("call", call, max_attempts=5)

    async with started(Grouped) as (_, handle):
        assert await handle.status() == "failed"
        assert call.calls == 1


# Bodies that run away, stall, or can never go on.


@async_test
async def test_a_body_that_only_yields_is_held_and_the_others_go_on():
    @definition
    async def Runaway(self):
        await self.run("call", Callback())
        while True:  # noqa: ASYNC110  # the mistake that is to be found
            await asyncio.sleep(0)  # noqa: TID251  # the same

    @definition
    async def Other(self):
        return await self.run("call", Callback("fine"), returns=str)

    async with SimulatedEngine([Runaway, Other], settings=Settings(handles_per_drive_max=1000)) as engine:
        handle, other = engine.get(Runaway, "instance-1"), engine.get(Other, "instance-2")
        await asyncio.gather(handle.create(), other.create())

        with pytest.raises(WorkflowHeldError, match="1000"):
            await handle.result(timeout=5)
        assert await other.result(timeout=5) == "fine"
        info = await handle.info()
        assert (info.status, info.held_at, info.alarm_at) == ("running", engine.now(), None)


@async_test
async def test_a_body_that_does_not_yield_is_reported_with_its_instance_and_the_remedy():
    reported = threading.Event()
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # Another engine of this process may still have something to say.
            if "not yielded" in record.getMessage():
                messages.append(record.getMessage())
                reported.set()

    @definition
    async def Blocking(self):
        return reported.wait(30)

    listener = Listener(logging.WARNING)
    logging.getLogger("workerflow").addHandler(listener)
    try:
        async with started(Blocking, settings=Settings(body_stall_s=0.05)) as (_, handle):
            assert await handle.result(timeout=5) is True
    finally:
        logging.getLogger("workerflow").removeHandler(listener)
    assert "instance-1" in messages[0]
    assert "self.run" in messages[0]


def waits_for_an_event(self):
    return asyncio.Event().wait()


def waits_for_a_queue(self):
    return asyncio.Queue().get()


def waits_for_a_future(self):
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("waits", [waits_for_an_event, waits_for_a_queue, waits_for_a_future])
@async_test
async def test_a_body_that_nothing_can_wake_fails_and_says_so(waits):
    @definition
    async def Stuck(self):
        await self.run("call", Callback())
        await waits(self)

    async with started(Stuck) as (_, handle):
        failure = await failure_of(handle)
        assert failure.error_name == "DefinitionError"
        assert "nothing can wake it" in failure.error_message


@async_test
async def test_a_body_with_a_pending_step_beside_what_it_awaits_is_not_stuck():
    @definition
    async def NotStuck(self):
        event = asyncio.Event()
        self.sleep("minute", 60).add_done_callback(lambda _: event.set())
        await event.wait()
        return "woken"

    async with started(NotStuck) as (engine, handle):
        assert await handle.status() == "running"
        await engine.advance(60)
        assert await handle.result(timeout=5) == "woken"


@async_test
async def test_a_callback_that_wakes_the_body_past_the_engine_is_refused():
    @definition
    async def Sneaking(self):
        event = asyncio.Event()
        waiter = asyncio.ensure_future(event.wait())

        async def sneak() -> None:
            event.set()

        await self.run("sneak", sneak, max_attempts=1)
        await waiter

    async with started(Sneaking) as (_, handle):
        assert await handle.status() == "failed"
        (attempt,) = (await step_of(handle, "sneak", RunStep)).attempts
        assert attempt.error_name == "DefinitionError"
        assert "return a value from the callback" in str(attempt.error_message)


# What has no place in execute().


async def sleeps(self):
    await asyncio.sleep(1)  # noqa: TID251  # the mistake that is to be refused


async def sets_a_timeout(self):
    async with asyncio.timeout(1):
        await self.wait("never", "never")


async def waits_with_a_timeout(self):
    await asyncio.wait_for(self.wait("never", "never"), 1)


async def waits_for_several_with_a_timeout(self):
    await asyncio.wait([self.wait("never", "never")], timeout=1)


async def uses_a_thread(self):
    await asyncio.to_thread(print)


async def uses_an_executor(self):
    await asyncio.get_running_loop().run_in_executor(None, print)


async def connects(self):
    await asyncio.open_connection("localhost", 1)


async def serves(self):
    await asyncio.start_server(print, "localhost", 0)


async def starts_a_process(self):
    await asyncio.create_subprocess_exec("true")


async def resolves_a_name(self):
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def sets_a_timer(self):
    asyncio.get_running_loop().call_later(1, print)


async def reads_the_clock_of_the_loop(self):
    asyncio.get_running_loop().time()


TIMERS = [sleeps, sets_a_timeout, waits_with_a_timeout, waits_for_several_with_a_timeout, sets_a_timer,
          reads_the_clock_of_the_loop]  # fmt: skip
WORLD = [uses_a_thread, uses_an_executor, connects, serves, starts_a_process, resolves_a_name]


@pytest.mark.parametrize("mistake", TIMERS + WORLD)
@async_test
async def test_input_output_timers_and_threads_in_execute_are_refused_with_the_remedy(mistake):
    @definition
    async def Mistaken(self):
        await mistake(self)

    async with started(Mistaken) as (_, handle):
        failure = await failure_of(handle)
        assert failure.error_name == "DefinitionError"
        assert "instance-1" in failure.error_message
        assert "self.run(" in failure.error_message
        if mistake in TIMERS:
            assert "self.sleep" in failure.error_message


@async_test
async def test_a_refused_call_can_be_caught_and_the_workflow_goes_on():
    @definition
    async def Mistaken(self):
        try:
            await asyncio.sleep(1)  # noqa: TID251  # the mistake that is to be refused
        except DefinitionError:
            await self.sleep("second", 1)
        return "slept"

    async with started(Mistaken) as (engine, handle):
        await engine.advance(1)
        assert await handle.result(timeout=5) == "slept"


# Errors, time and chance on replay.


@pytest.mark.spec(49)
@async_test
async def test_a_caught_non_retryable_error_is_the_same_error_after_a_crash():
    traces = Traces()

    @definition
    async def Compensating(self):
        note = traces.begin()
        try:
            await self.run("charge", Callback(always=NonRetryableStepError("declined", {"code": 51})))
        except NonRetryableStepError as error:
            note((type(error), str(error), error.message, error.data, repr(error.__cause__)))
            await self.run("undo", Callback())
        await self.wait("end", "end")
        return "compensated"

    async with started(Compensating) as (engine, handle):
        await engine.crash()
        await engine.run_until_idle()
        await handle.send("end")
        assert await handle.result(timeout=5) == "compensated"

    assert traces.bodies == [[(NonRetryableStepError, "declined", "declined", {"code": 51}, "None")]] * 2


@async_test
async def test_a_durable_timeout_raises_timeout_error_at_the_with_and_abandons_what_ran_in_it():
    traces = Traces()

    @definition
    async def Timed(self):
        note = traces.begin()
        try:
            async with self.timeout("patience", 60):
                try:
                    await self.wait("payment", "paid")
                finally:
                    note("left")
        except TimeoutError as error:
            note(str(error))
        await self.wait("end", "end")

    async with started(Timed, settings=AWAKE) as (engine, handle):
        await engine.advance(30)
        # The deadline is as old as the first execution.
        await engine.crash()
        await engine.advance(29)
        assert (await step_of(handle, "payment", WaitStep)).abandoned_at is None
        await engine.advance(1)
        assert (await step_of(handle, "payment", WaitStep)).abandoned_at == engine.now()
        await engine.crash()
        await engine.run_until_idle()

    assert [len(body) for body in traces.bodies] == [1, 2, 2]
    assert traces.bodies[1] == traces.bodies[2]
    assert "patience" in traces.bodies[2][1]


@async_test
async def test_a_durable_timeout_whose_block_ends_in_time_leaves_no_alarm():
    @definition
    async def Timed(self):
        async with self.timeout("patience", 60):
            await self.wait("payment", "paid")
        await self.wait("end", "end")
        return "in time"

    async with started(Timed) as (engine, handle):
        await handle.send("paid")
        await engine.run_until_idle()
        assert (await handle.info()).alarm_at is None
        assert (await step_of(handle, "patience", SleepStep)).abandoned_at is not None
        await engine.advance(120)
        await handle.send("end")
        assert await handle.result(timeout=5) == "in time"


@async_test
async def test_of_two_nested_durable_timeouts_the_one_that_is_up_raises():
    @definition
    async def Timed(self):
        try:
            async with self.timeout("outer", self.input[0]):
                try:
                    async with self.timeout("inner", self.input[1]):
                        await self.wait("payment", "paid")
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"

    async with SimulatedEngine([Timed]) as engine:
        handles = [engine.get(Timed, name) for name in ("inner", "outer")]
        await handles[0].create([60, 30])
        await handles[1].create([30, 60])
        await engine.advance(30)
        assert [await handle.result(timeout=5) for handle in handles] == ["inner", "outer"]


@async_test
async def test_an_error_of_its_own_leaves_a_durable_timeout_as_it_is():
    @definition
    async def Timed(self):
        async with self.timeout("patience", 60):
            raise LookupError("its own")

    async with started(Timed) as (_, handle):
        assert (await failure_of(handle)).error_name == "LookupError"


@async_test
async def test_time_uuids_and_random_numbers_are_equal_on_replay():
    traces = Traces()

    @definition
    async def Chance(self):
        note = traces.begin()
        for number in range(3):
            note((self.now(), self.uuid(), self.random.random(), self.random.choice(range(1000))))
            await self.sleep(f"sleep-{number}", 60)
        note(self.now())
        await self.wait("end", "end")

    async with started(Chance, settings=AWAKE) as (engine, _):
        start = engine.now()
        await engine.advance(600)
        await engine.crash()
        await engine.advance(600)

    first, second = traces.bodies
    assert first == second
    assert [entry[0] - start for entry in first[:3]] == [timedelta(seconds=seconds) for seconds in (0, 60, 120)]
    assert first[3] - start == timedelta(seconds=180)
    assert len({entry[1] for entry in first[:3]}) == 3
    assert all(isinstance(entry[1], uuid.UUID) and entry[1].version == 4 for entry in first[:3])


@async_test
async def test_two_instances_draw_different_numbers():
    @definition
    async def Chance(self):
        return [str(self.uuid()), self.random.random()]

    async with SimulatedEngine([Chance]) as engine:
        results = []
        for name in ("a", "b"):
            await engine.get(Chance, name).create()
            results.append(await engine.get(Chance, name).result(timeout=5))

    assert results[0][0] != results[1][0]
    assert results[0][1] != results[1][1]


@async_test
async def test_the_logger_is_silent_while_replaying_and_names_the_instance(caplog):
    replaying = Traces()

    @definition
    async def Logging(self):
        note = replaying.begin()
        self.logger.info("begun")
        note(self.replaying)
        await self.run("call", Callback())
        self.logger.info("called")
        note(self.replaying)
        await self.wait("go", "go")
        self.logger.info("went")
        note(self.replaying)

    with caplog.at_level(logging.INFO, "workerflow.workflow"):
        async with started(Logging) as (engine, handle):
            await engine.crash()
            await engine.run_until_idle()
            await handle.send("go")
            await handle.result(timeout=5)

    messages = [record.getMessage() for record in caplog.records if record.name == "workerflow.workflow"]
    assert [message.rsplit(": ", 1)[-1] for message in messages] == ["begun", "called", "went"]
    assert all("instance-1" in message for message in messages)
    assert replaying.bodies == [[False, False], [True, True, False]]


@pytest.mark.parametrize("verb", ["now", "random", "uuid"])
@async_test
async def test_repeatable_time_and_chance_are_refused_in_a_callback(verb):
    @definition
    async def Misplaced(self):
        async def call():
            value = getattr(self, verb)
            if verb != "random":
                value()

        await self.run("call", call, returns=None)

    async with started(Misplaced) as (_, handle):
        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert attempt.error_name == "DefinitionError"
        assert "execute()" in str(attempt.error_message)


# The mode that replays always.


@pytest.mark.parametrize("composition", COMPOSITIONS)
@async_test
async def test_always_replaying_changes_nothing_that_the_body_can_see(composition):
    traces = Traces()

    @definition
    async def Composed(self):
        note = traces.begin()
        await composition(self, note)
        await self.run("one more", Callback())
        await self.run("and another", Callback())
        note("over")
        return "over"

    async with started(Composed, always_replay=True, settings=AWAKE) as (engine, handle):
        await engine.advance(30)
        assert await handle.result(timeout=5) == "over"
        for step in await handle.steps():
            assert step.type != "run" or states(step) == ["succeeded"]

    assert len(traces.bodies) > 1
    for body in traces.bodies:
        assert traces.bodies[-1][: len(body)] == body


@async_test
async def test_always_replaying_keeps_callbacks_in_flight_and_attaches_them_again():
    bodies: list[object] = []
    slow = Gate("slow")
    last = asyncio.Event()

    async def tell() -> None:
        last.set()

    @definition
    async def Branches(self):
        bodies.append(self)

        async def chain():
            for number in range(5):
                await self.run(f"quick-{number}", Callback())
            await self.run("last", tell)

        return (await asyncio.gather(self.run("slow", slow, returns=str), chain()))[0]

    async with SimulatedEngine([Branches], always_replay=True) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        await slow.begun()
        await last.wait()
        assert len(bodies) == 6
        assert states(await step_of(handle, "slow", RunStep)) == ["started"]
        slow.open()
        assert await handle.result(timeout=5) == "slow"
        assert (slow.calls, slow.cancellations) == (1, 0)


@async_test
async def test_always_replaying_goes_on_after_pauses_and_crashes():
    calls = [Callback(number) for number in range(6)]

    @definition
    async def Chain(self):
        results = []
        for number, call in enumerate(calls):
            results.append(await self.run(f"call-{number}", call, returns=int))
            await self.sleep(f"sleep-{number}", 60)
        return results

    async with started(Chain, always_replay=True) as (engine, handle):
        for _ in range(3):
            await handle.pause()
            await engine.advance(60)
            assert await handle.status() == "paused"
            await handle.resume()
            await engine.crash()
            await engine.advance(60)
        await engine.advance(600)
        assert await handle.result(timeout=5) == list(range(6))
        assert [call.calls for call in calls] == [1] * 6
