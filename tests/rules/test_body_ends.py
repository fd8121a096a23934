"""Bodies that are dropped, interrupted, run away, stall, or can never go on."""

import asyncio
import gc
import logging
import threading

import pytest
from tests.bodies import AWAKE, Traces, failure_of, named
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    Engine,
    NonRetryableStepError,
    RunStep,
    Settings,
    WorkflowHeldError,
)
from workerflow.testing import SimulatedEngine


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
        assert trace[-2:] == ["finally", "cleaned"]
        assert trace.count("cleaned") == cleanup.calls == 1


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

    async with started(Clinging, settings=AWAKE) as (engine, handle):
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
async def test_an_end_that_a_replay_comes_to_is_not_reported_as_one_without_waiting(caplog):
    gate = Gate("value")

    @definition
    async def Awaiting(self):
        return await self.run("call", gate, returns=str)

    async with SimulatedEngine([Awaiting]) as engine:
        handle = engine.get(Awaiting, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.pause()
        gate.open()
        await engine.run_until_idle()
        await engine.crash()
        await handle.resume()
        assert await handle.result(timeout=5) == "value"
    assert [record.getMessage() for record in caplog.records if "Awaiting" in record.getMessage()] == []


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
