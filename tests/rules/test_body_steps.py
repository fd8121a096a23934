"""Contexts of bodies, and steps that a body no longer asks for."""

import asyncio
import contextvars

import pytest
from tests.bodies import AWAKE, HOUR, named, next_turn, versions
from tests.signals import Gate
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import (
    Engine,
    RunStep,
    SleepStep,
    WaitStep,
    WorkflowHeldError,
    WorkflowRuntime,
)
from workerflow.testing import SimulatedEngine

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
