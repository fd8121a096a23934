"""What has no place in ``execute()``, and errors, time and chance that a replay repeats."""

import asyncio
import logging
import uuid
from datetime import timedelta

import pytest
from tests.bodies import Traces, failure_of
from tests.support import Callback, async_test, definition, started, step_of

from workerflow import (
    DefinitionError,
    NonRetryableStepError,
    RunStep,
    SleepStep,
    WaitStep,
)
from workerflow.testing import SimulatedEngine


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

    assert traces.repeated() == [(NonRetryableStepError, "declined", "declined", {"code": 51}, "None")]


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

    async with started(Timed) as (engine, handle):
        await engine.advance(30)
        # The deadline is as old as the first execution.
        await engine.crash()
        await engine.advance(29)
        assert (await step_of(handle, "payment", WaitStep)).abandoned_at is None
        await engine.advance(1)
        assert (await step_of(handle, "payment", WaitStep)).abandoned_at == engine.now()
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    left, message = traces.repeated()
    assert left == "left"
    assert "patience" in message


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

    async with started(Chance) as (engine, handle):
        start = engine.now()
        await engine.advance(600)
        await engine.crash()
        await engine.advance(600)
        await handle.send("end")
        await handle.result(timeout=5)

    *entries, last = traces.repeated()
    assert [entry[0] - start for entry in entries] == [timedelta(seconds=seconds) for seconds in (0, 60, 120)]
    assert last - start == timedelta(seconds=180)
    assert len({entry[1] for entry in entries}) == 3
    assert all(isinstance(entry[1], uuid.UUID) and entry[1].version == 4 for entry in entries)


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
    assert replaying.bodies[0] == [False, False]
    assert replaying.bodies[-1] == [True, True, False]


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
