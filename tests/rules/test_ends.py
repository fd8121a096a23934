"""The rules of ends: cancel, the end of ``execute()``, and what is told of it."""

import asyncio
import logging
from datetime import timedelta

import pytest
from tests.signals import Gate, Thread, attempt_states, watched
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    Engine,
    Receipt,
    RunStep,
    Settings,
    SleepStep,
    WorkflowCancelledError,
    WorkflowCompletionEvent,
    WorkflowRuntime,
)
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)


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
