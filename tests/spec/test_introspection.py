"""Section 13: what readers see of steps and lifecycle, and the status hook."""

import asyncio
from datetime import UTC, datetime, timedelta

import apsw
import pytest
from tests.signals import Gate, attempt_states, watched
from tests.support import Callback, async_test, definition, started, step_of

from workerflow import UNSET, InternalError, RunStep, SleepStep, WaitStep, WorkflowRuntime
from workerflow.testing import SimulatedEngine

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.spec(141)
@async_test
async def test_steps_are_listed_in_creation_order_with_type_creation_time_and_parent():
    @definition
    async def Several(self):
        async def outer():
            await self.sleep("a-nested-sleep", 1)

        await self.sleep("z-sleep", 1)
        await self.run("m-run", outer)
        await self.wait("b-wait", "go")

    async with started(Several) as (engine, handle):
        await engine.advance(1)
        await engine.advance(1)
        steps = await handle.steps()

    assert [(step.id, step.type, step.parent_step_id, step.created_at - START) for step in steps] == [
        ("z-sleep", "sleep", None, 0 * SECOND),
        ("m-run", "run", None, 1 * SECOND),
        ("a-nested-sleep", "sleep", "m-run", 1 * SECOND),
        ("b-wait", "wait", None, 2 * SECOND),
    ]


@pytest.mark.spec(141)
@async_test
async def test_steps_created_in_one_millisecond_are_listed_in_creation_order():
    ids = [f"step-{number}" for number in (5, 3, 9, 1, 7, 0, 8, 2, 6, 4)]

    @definition
    async def Several(self):
        await asyncio.gather(*(self.run(step_id, Callback()) for step_id in ids))

    async with started(Several) as (_, handle):
        steps = await handle.steps()

    assert len({step.created_at for step in steps}) == 1
    assert [step.id for step in steps] == ids


@pytest.mark.spec(141)
@async_test
async def test_a_run_step_lists_its_attempts_oldest_first_with_all_that_is_known_of_each():
    call = Callback({"paid": True}, errors=[ValueError("no stock")])

    @definition
    async def Retrying(self):
        await self.run("call", call, max_attempts=4)

    async with started(Retrying) as (engine, handle):
        await engine.advance(1)
        step = await step_of(handle, "call", RunStep)

    failed, succeeded = step.attempts
    assert step.max_attempts == 4
    assert (failed.step_id, failed.number, failed.state) == ("call", 1, "failed")
    assert (failed.started_at, failed.ended_at) == (START, START)
    assert (failed.error_name, failed.error_message) == ("ValueError", "ValueError: no stock")
    assert failed.next_attempt_at == START + timedelta(milliseconds=250)
    assert (failed.result_type, failed.result_json) == (None, None)
    assert (succeeded.step_id, succeeded.number, succeeded.state) == ("call", 2, "succeeded")
    assert (succeeded.started_at, succeeded.ended_at) == (failed.next_attempt_at, failed.next_attempt_at)
    assert (succeeded.result_type, succeeded.result_json) == ("json", '{"paid":true}')
    assert (succeeded.error_name, succeeded.error_message, succeeded.next_attempt_at) == (None, None, None)
    assert failed.id != succeeded.id


@pytest.mark.spec(141)
@async_test
async def test_a_sleep_shows_its_wake_time_and_then_its_resolution_time():
    @definition
    async def Sleeper(self):
        await self.sleep("nap", 5)

    async with started(Sleeper) as (engine, handle):
        waiting = await step_of(handle, "nap", SleepStep)
        await engine.advance(5)
        elapsed = await step_of(handle, "nap", SleepStep)

    assert (waiting.state, waiting.wake_at, waiting.resolved_at) == ("waiting", START + 5 * SECOND, None)
    assert (elapsed.state, elapsed.wake_at, elapsed.resolved_at) == ("elapsed", START + 5 * SECOND, START + 5 * SECOND)


@pytest.mark.spec(141)
@async_test
async def test_a_wait_shows_event_deadline_payload_and_resolution_time():
    @definition
    async def Listener(self):
        await self.wait("payment", "paid", dict, timeout=60)

    async with started(Listener) as (engine, handle):
        waiting = await step_of(handle, "payment", WaitStep)
        await engine.advance(5)
        await handle.send("paid", {"cents": 900})
        satisfied = await step_of(handle, "payment", WaitStep)

    assert (waiting.state, waiting.event_name, waiting.timeout_at) == ("waiting", "paid", START + 60 * SECOND)
    assert (waiting.payload, waiting.resolved_at) == (UNSET, None)
    assert (satisfied.state, satisfied.payload) == ("satisfied", {"cents": 900})
    assert (satisfied.timeout_at, satisfied.resolved_at) == (START + 60 * SECOND, START + 5 * SECOND)


@pytest.mark.spec(141)
@async_test
async def test_what_readers_see_is_the_same_after_a_restart():
    call = Callback([1], errors=[ValueError()])

    @definition
    async def Several(self):
        await self.run("call", call)
        await self.sleep("nap", 5)
        await self.wait("gone", "gone")
        await self.wait("payment", "paid", timeout=60)

    async with started(Several) as (engine, handle):
        await engine.advance(10)
        await handle.send("gone")
        await engine.run_until_idle()
        steps, events = await handle.steps(), await handle.events()
        await engine.crash()
        assert await handle.steps() == steps
        assert await handle.events() == events
        assert len(steps) == 4


@pytest.mark.spec(142)
def test_a_run_step_has_no_state_and_no_counter_of_its_own():
    fields = set(RunStep.__dataclass_fields__)
    assert fields == {"id", "type", "parent_step_id", "created_at", "max_attempts", "attempts", "abandoned_at"}


@pytest.mark.spec(143)
@async_test
async def test_the_lifecycle_log_is_in_order_with_numbers_times_and_a_reason_only_for_cancelled():
    @definition
    async def Listener(self):
        await self.wait("payment", "paid")

    async with started(Listener) as (engine, handle):
        for verb in (handle.pause, handle.resume, lambda: handle.cancel("left")):
            await engine.advance(1)
            await verb()
        events = await handle.events()

    assert [(event.id, event.type, event.cancellation_reason) for event in events] == [
        (1, "created", None),
        (2, "started", None),
        (3, "paused", None),
        (4, "resumed", None),
        (5, "cancelled", "left"),
    ]
    assert [event.recorded_at - START for event in events] == [seconds * SECOND for seconds in (0, 0, 1, 2, 3)]


@pytest.mark.spec(144)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_the_status_hook_is_called_for_every_status_but_pending_and_initialized(end):
    @definition
    async def Ending(self):
        if await self.wait("how", "how") == "failed":
            raise ValueError

    runtime = watched(Ending)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.send("other")
        await handle.create()
        await handle.pause()
        await handle.resume()
        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()

    assert runtime.statuses == ["running", "paused", "running", end]


@pytest.mark.spec(144)
@async_test
async def test_status_steps_and_log_can_be_read_in_the_hook_of_the_end():
    seen: list[object] = []

    @definition
    async def OneStep(self):
        await self.run("call", Callback(1))

    class Reader(WorkflowRuntime[None, None]):
        definition = OneStep

        def on_status_change(self, status):
            if status == "completed":
                log = [event.type for event in self.get_workflow_events()]
                seen.append((self.get_status(), attempt_states(self.get_steps()), log))

    async with SimulatedEngine([Reader]) as engine:
        handle = engine.get(Reader, "instance-1")
        await handle.create()
        await handle.result(timeout=5)

    assert seen == [("completed", {"call": ["succeeded"]}, ["created", "started", "completed"])]


@pytest.mark.spec(144)
@async_test
async def test_the_hook_of_a_cancellation_sees_the_attempts_that_it_ended():
    seen: list[object] = []
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    class Reader(WorkflowRuntime[None, None]):
        definition = InFlight

        def on_status_change(self, status):
            seen.append((status, self.get_status(), attempt_states(self.get_steps())))

    async with SimulatedEngine([Reader]) as engine:
        handle = engine.get(Reader, "instance-1")
        await handle.create()
        await gate.begun()
        await handle.cancel()

    assert seen[-1] == ("cancelled", "cancelled", {"call": ["failed"]})


@pytest.mark.spec(145)
@async_test
async def test_a_wait_that_is_satisfied_without_a_claimed_event_is_reported_as_damage():
    @definition
    async def Listener(self):
        await self.wait("payment", "paid")

    async with started(Listener) as (engine, handle):
        await handle.pause()
        database = apsw.Connection(engine.url)
        database.execute("update steps set state = 'satisfied', resolved_at = created_at, outcome_sequence = 1")
        assert database.changes() == 1
        database.close()

        with pytest.raises(InternalError, match="payment"):
            await handle.steps()
