"""Section 17: what a workflow is after it left memory, and after its process died at the worst moment."""

from datetime import timedelta

import pytest
from tests.bodies import AWAKE, HOUR, failure_of
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import (
    Engine,
    EngineClosedError,
    NonRetryableStepError,
    Receipt,
    RunStep,
    Settings,
    SleepStep,
    WaitStep,
)
from workerflow.store.base import DeposedError
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
BACK_OFF = timedelta(milliseconds=250)
PAYMENT = {"id": "ch_1", "cents": 900}


class Eviction:
    """A way in which an instance leaves memory."""

    def __init__(self, settings, is_killed):
        self.settings = settings
        self._is_killed = is_killed

    async def happens(self, engine, handle):
        if self.settings is not AWAKE:
            assert (await handle.info()).owner is None
        if self._is_killed:
            await engine.crash()


every_eviction = pytest.mark.parametrize(
    "eviction",
    [
        Eviction(Settings(hibernate_after_s=0), is_killed=False),
        Eviction(Settings(hibernate_after_s=0), is_killed=True),
        Eviction(AWAKE, is_killed=True),
    ],
    ids=["hibernated", "hibernated and killed", "killed in memory"],
)


class Kill:
    """Ends the process at one commit: for all that the engine can do afterwards, it has lost its database."""

    def __init__(self, monkeypatch):
        self._is_here = None
        self._is_written = False
        commit = SqliteStore.commit

        def killing(store, batch, *, busy_timeout_ms):
            is_here = self._is_here is not None and self._is_here(batch.rows)
            if not is_here or self._is_written:
                commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            if is_here:
                self._is_here = None
                raise DeposedError("killed")

        monkeypatch.setattr(SqliteStore, "commit", killing)

    def after(self, table, *values):
        """Die when the first batch with such a row is durable, and before anything that follows."""
        self._is_here = lambda rows: any(set(values) <= set(row) for row in getattr(rows, table))
        self._is_written = True

    def before(self, table, *values):
        """Die when this batch would be written."""
        self.after(table, *values)
        self._is_written = False


@pytest.fixture
def kill(monkeypatch):
    return Kill(monkeypatch)


def left(engine):
    """Of the one instance that the dead process left: its status, whether the next start finds it, and its alarm."""
    ((status, is_found, alarm_ms),) = query(
        engine, "select status, owner is not null or alarm_at is not null, alarm_at from instances"
    )
    return status, bool(is_found), alarm_ms


def milliseconds(time):
    return round(time.timestamp() * 1000)


async def create_and_die(engine, workflow):
    """The answer to ``create`` is lost with the process."""
    handle = engine.get(workflow, "instance-1")
    with pytest.raises(EngineClosedError):
        await handle.create()
    return handle


async def die(engine, duration=0):
    """Let the engine go on until it is killed."""
    with pytest.raises(EngineClosedError):
        await engine.advance(duration)


# Out of memory.


@pytest.mark.spec(188)
@every_eviction
@async_test
async def test_an_evicted_workflow_takes_its_event_and_goes_on_with_its_input_and_its_results(eviction):
    reserve = Callback("hold")

    @definition
    async def Checkout(self):
        hold = await self.run("reserve", reserve, returns=str)
        payment = await self.wait("payment", "paid")
        return [self.input, hold, payment]

    async with started(Checkout, {"sku": "tea"}, settings=eviction.settings) as (engine, handle):
        assert (await handle.info()).alarm_at is None
        await eviction.happens(engine, handle)

        await handle.send("paid", PAYMENT)

        assert await handle.result(timeout=5) == [{"sku": "tea"}, "hold", PAYMENT]
        assert reserve.calls == 1
        assert states(await step_of(handle, "reserve", RunStep)) == ["succeeded"]
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(189)
@every_eviction
@async_test
async def test_a_workflow_evicted_during_a_back_off_retries_at_its_alarm(eviction):
    charge = Callback("charged", errors=[ConnectionError()])

    @definition
    async def Charging(self):
        return await self.run("charge", charge, returns=str)

    async with started(Charging, settings=eviction.settings) as (engine, handle):
        (failed,) = (await step_of(handle, "charge", RunStep)).attempts
        assert (await handle.info()).alarm_at == failed.next_attempt_at == engine.now() + BACK_OFF
        await eviction.happens(engine, handle)
        await engine.advance(BACK_OFF - MILLISECOND)
        assert charge.calls == 1

        await engine.advance(MILLISECOND)

        assert await handle.result(timeout=5) == "charged"
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "succeeded"]
        assert charge.calls == 2


@pytest.mark.spec(190)
@every_eviction
@async_test
async def test_a_workflow_evicted_while_paused_queues_its_event_and_no_alarm_moves_it(eviction):
    @definition
    async def Listener(self):
        return await self.wait("payment", "paid", timeout=HOUR)

    async with started(Listener, settings=eviction.settings) as (engine, handle):
        await handle.pause()
        await eviction.happens(engine, handle)
        assert await handle.send("paid", PAYMENT) == "queued"
        # An alarm that nobody should have set, found by this process and by the next.
        query(engine, "update instances set alarm_at = 0")
        await engine.run_until_idle()
        await engine.crash()
        await engine.advance(DAY)

        assert await handle.status() == "paused"
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == [None]

        await handle.resume()
        assert await handle.result(timeout=5) == PAYMENT
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]


@pytest.mark.spec(191)
@every_eviction
@async_test
async def test_a_workflow_evicted_during_a_sleep_wakes_at_its_alarm(eviction):
    after = Callback()

    @definition
    async def Sleeper(self):
        await self.sleep("hour", HOUR)
        await self.run("after", after)

    async with started(Sleeper, settings=eviction.settings) as (engine, handle):
        wake_at = engine.now() + HOUR
        assert (await handle.info()).alarm_at == wake_at == (await step_of(handle, "hour", SleepStep)).wake_at
        await eviction.happens(engine, handle)
        await engine.advance(HOUR - MILLISECOND)
        assert (await step_of(handle, "hour", SleepStep)).state == "waiting"

        await engine.advance(MILLISECOND)

        slept = await step_of(handle, "hour", SleepStep)
        assert (slept.state, slept.resolved_at) == ("elapsed", wake_at)
        assert await handle.status() == "completed"
        assert states(await step_of(handle, "after", RunStep)) == ["succeeded"]
        assert after.calls == 1


@pytest.mark.spec(192)
@every_eviction
@async_test
async def test_a_workflow_evicted_during_a_wait_times_out_at_its_alarm_and_a_late_event_is_dropped(eviction):
    @definition
    async def Listener(self):
        await self.wait("payment", "paid", timeout=HOUR)

    async with started(Listener, settings=eviction.settings) as (engine, handle):
        assert (await handle.info()).alarm_at == engine.now() + HOUR
        await eviction.happens(engine, handle)
        await engine.advance(HOUR - MILLISECOND)
        assert await handle.status() == "running"

        await engine.advance(MILLISECOND)

        assert (await step_of(handle, "payment", WaitStep)).state == "timed_out"
        assert (await failure_of(handle)).error_name == "WaitTimeoutError"
        assert await lifecycle(handle) == ["created", "started", "failed"]
        assert await handle.send("paid", PAYMENT) == "dropped"
        info = await handle.info()
        assert (info.inbound_events, info.alarm_at) == ([], None)


# Killed in mid callback.


@pytest.mark.spec(193)
@async_test
async def test_nothing_takes_a_callback_that_is_alive_for_one_that_was_interrupted():
    charge = Gate("charged")

    @definition
    async def Charging(self):
        charging = self.run("charge", charge, max_attempts=2, timeout=DAY, returns=str)
        await self.sleep("half an hour", HOUR / 2)
        await self.wait("nudge", "nudge")
        return await charging

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        await handle.create()
        await charge.begun()
        before = (await step_of(handle, "charge", RunStep)).attempts

        await engine.advance(HOUR)
        await handle.send("nudge")
        await handle.pause()
        await handle.resume()

        assert (await step_of(handle, "charge", RunStep)).attempts == before
        info = await handle.info()
        assert (info.alarm_at, info.recoveries) == (None, 0)
        charge.open()
        assert await handle.result(timeout=5) == "charged"
        assert charge.calls == 1


@pytest.mark.spec(193)
@async_test
async def test_a_process_killed_in_a_callback_leaves_an_interrupted_attempt_and_a_retry_at_the_back_off():
    charge = Gate("charged")

    @definition
    async def Charging(self):
        return await self.run("charge", charge, max_attempts=2, timeout=DAY, returns=str)

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        await handle.create()
        await charge.begun()
        assert left(engine) == ("running", True, None)

        await engine.crash()

        (cut,) = (await step_of(handle, "charge", RunStep)).attempts
        assert (cut.state, cut.error_name) == ("failed", None)
        assert "interrupted" in str(cut.error_message)
        info = await handle.info()
        assert info.alarm_at == cut.next_attempt_at == engine.now() + BACK_OFF
        assert info.recoveries == 1

        charge.open()
        await engine.advance(BACK_OFF - MILLISECOND)
        assert charge.calls == 1
        await engine.advance(MILLISECOND)
        assert await handle.result(timeout=5) == "charged"
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "succeeded"]
        assert charge.calls == 2


# Killed between a commit and all that follows it.


@pytest.mark.spec(194)
@async_test
async def test_a_success_that_is_durable_at_the_kill_is_not_run_again(kill):
    charge, ship = Callback("charged"), Callback("shipped")

    @definition
    async def Charging(self):
        return [await self.run("charge", charge, returns=str), await self.run("ship", ship, returns=str)]

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        kill.after("attempt_end", "charge", "succeeded")
        await handle.create()
        await die(engine)
        assert left(engine)[:2] == ("running", True)
        assert (charge.calls, ship.calls) == (1, 0)

        await engine.crash()
        await engine.advance(BACK_OFF)

        assert await handle.result(timeout=5) == ["charged", "shipped"]
        assert (charge.calls, ship.calls) == (1, 1)
        assert states(await step_of(handle, "charge", RunStep)) == ["succeeded"]
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(194)
@async_test
async def test_the_last_success_and_the_end_of_the_workflow_are_durable_together(kill):
    charge = Callback("charged")

    @definition
    async def Charging(self):
        return await self.run("charge", charge, returns=str)

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        kill.after("attempt_end", "charge", "succeeded")
        await handle.create()
        await die(engine)
        assert left(engine) == ("completed", False, None)

        await engine.crash()

        assert await handle.result(timeout=5) == "charged"
        assert charge.calls == 1
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(195)
@async_test
async def test_a_failure_that_is_durable_at_the_kill_is_retried_at_its_time(kill):
    charge = Callback("charged", errors=[ConnectionError()])

    @definition
    async def Charging(self):
        return await self.run("charge", charge, max_attempts=2, returns=str)

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        kill.after("attempt_end", "charge", "failed")
        await handle.create()
        await die(engine)
        retry_at = engine.now() + BACK_OFF
        assert left(engine) == ("running", True, milliseconds(retry_at))

        await engine.crash()
        await engine.advance(BACK_OFF - MILLISECOND)
        assert charge.calls == 1
        await engine.advance(MILLISECOND)

        assert await handle.result(timeout=5) == "charged"
        failed, succeeded = (await step_of(handle, "charge", RunStep)).attempts
        assert (failed.state, failed.error_name, failed.next_attempt_at) == ("failed", "ConnectionError", retry_at)
        assert (succeeded.state, succeeded.started_at) == ("succeeded", retry_at)
        assert charge.calls == 2


@pytest.mark.spec(196)
@async_test
async def test_a_failure_for_good_that_is_durable_at_the_kill_fails_the_workflow(kill):
    charge = Callback(always=NonRetryableStepError("declined"))

    @definition
    async def Charging(self):
        await self.run("charge", charge)

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        kill.after("attempt_end", "charge", "failed")
        await handle.create()
        await die(engine)

        await engine.crash()
        await engine.advance(DAY)

        failure = await failure_of(handle)
        assert (failure.error_name, failure.error_message) == ("NonRetryableStepError", "declined")
        assert await lifecycle(handle) == ["created", "started", "failed"]
        assert charge.calls == 1
        assert left(engine) == ("failed", False, None)


@pytest.mark.spec(196)
@async_test
async def test_a_failure_for_good_that_is_durable_at_the_kill_is_compensated_by_the_next_process(kill):
    charge, refund = Callback(always=NonRetryableStepError("declined")), Callback("refunded")

    @definition
    async def Charging(self):
        try:
            await self.run("charge", charge)
        except NonRetryableStepError as error:
            return [str(error), await self.run("refund", refund, returns=str)]

    async with SimulatedEngine([Charging]) as engine:
        handle = engine.get(Charging, "instance-1")
        kill.after("attempt_end", "charge", "failed")
        await handle.create()
        await die(engine)
        assert left(engine)[:2] == ("running", True)

        await engine.crash()
        await engine.advance(BACK_OFF)

        assert await handle.result(timeout=5) == ["declined", "refunded"]
        assert (charge.calls, refund.calls) == (1, 1)


@pytest.mark.spec(197)
@async_test
async def test_a_sleep_that_is_durable_at_the_kill_ends_at_its_first_wake_time(kill):
    @definition
    async def Sleeper(self):
        await self.sleep("hour", HOUR)
        return "slept"

    async with SimulatedEngine([Sleeper]) as engine:
        kill.after("step_insert", "hour")
        handle = await create_and_die(engine, Sleeper)
        wake_at = engine.now() + HOUR
        assert left(engine) == ("running", True, milliseconds(wake_at))

        await engine.crash()
        assert await handle.create() is False
        await engine.advance(HOUR - MILLISECOND)
        assert await handle.status() == "running"
        await engine.advance(MILLISECOND)

        assert await handle.result(timeout=5) == "slept"
        slept = await step_of(handle, "hour", SleepStep)
        assert (slept.state, slept.wake_at, slept.resolved_at) == ("elapsed", wake_at, wake_at)


@pytest.mark.spec(198)
@async_test
async def test_a_sleep_whose_end_is_durable_at_the_kill_is_not_slept_again(kill):
    after = Callback("after")

    @definition
    async def Sleeper(self):
        await self.sleep("hour", HOUR)
        return await self.run("after", after, returns=str)

    async with started(Sleeper) as (engine, handle):
        kill.after("step_resolve", "hour", "elapsed")
        await die(engine, HOUR)
        woken_at = engine.now()
        assert left(engine)[:2] == ("running", True)
        assert after.calls == 0

        await engine.crash()
        await engine.advance(BACK_OFF)

        assert await handle.result(timeout=5) == "after"
        slept = await step_of(handle, "hour", SleepStep)
        assert (slept.state, slept.resolved_at) == ("elapsed", woken_at)
        assert after.calls == 1


@pytest.mark.spec(199)
@async_test
async def test_a_deadline_that_is_durable_at_the_kill_comes_at_its_first_time(kill):
    @definition
    async def Listener(self):
        await self.wait("payment", "paid", timeout=HOUR)

    async with SimulatedEngine([Listener]) as engine:
        kill.after("step_insert", "payment")
        handle = await create_and_die(engine, Listener)
        timeout_at = engine.now() + HOUR
        assert left(engine) == ("running", True, milliseconds(timeout_at))

        await engine.crash()
        await engine.advance(HOUR - MILLISECOND)
        assert await handle.status() == "running"
        await engine.advance(MILLISECOND)

        waited = await step_of(handle, "payment", WaitStep)
        assert (waited.state, waited.timeout_at, waited.resolved_at) == ("timed_out", timeout_at, timeout_at)
        assert (await failure_of(handle)).error_name == "WaitTimeoutError"
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(200)
@async_test
async def test_a_time_out_that_is_durable_at_the_kill_fails_the_workflow_though_the_event_comes_now(kill):
    give_up = Callback("given up")

    @definition
    async def Listener(self):
        try:
            return await self.wait("payment", "paid", timeout=HOUR)
        except TimeoutError:
            await self.run("give up", give_up)
            raise

    async with started(Listener) as (engine, handle):
        kill.after("step_resolve", "payment", "timed_out")
        await die(engine, HOUR)
        assert left(engine)[:2] == ("running", True)

        await engine.crash()
        assert await handle.send("paid", PAYMENT) == "queued"
        await engine.advance(BACK_OFF)

        assert (await failure_of(handle)).error_name == "WaitTimeoutError"
        assert (await step_of(handle, "payment", WaitStep)).state == "timed_out"
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == [None]
        assert await lifecycle(handle) == ["created", "started", "failed"]
        assert give_up.calls == 1


@pytest.mark.spec(201)
@async_test
async def test_an_event_claimed_from_the_queue_at_the_kill_reaches_the_workflow_with_its_payload(kill):
    ship = Callback("shipped")

    @definition
    async def Listener(self):
        payment = await self.wait("payment", "paid", timeout=HOUR)
        return [payment, await self.run("ship", ship, returns=str)]

    async with SimulatedEngine([Listener]) as engine:
        assert await engine.get(Listener, "instance-1").send("paid", PAYMENT) == "queued"
        kill.after("inbound_claim", "payment")
        handle = await create_and_die(engine, Listener)
        assert left(engine)[:2] == ("running", True)

        await engine.crash()
        await engine.advance(BACK_OFF)

        assert await handle.result(timeout=5) == [PAYMENT, "shipped"]
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == ["payment"]
        assert (await step_of(handle, "payment", WaitStep)).state == "satisfied"
        assert ship.calls == 1


@pytest.mark.spec(202)
@pytest.mark.parametrize("moment", ["before", "after"])
@async_test
async def test_an_event_accepted_before_a_kill_in_mid_replay_is_used_once_with_its_payload(kill, moment):
    bodies = []

    @definition
    async def Listener(self):
        bodies.append(self)
        return [await self.wait("payment", "paid"), await self.wait("receipt", "printed")]

    async with (
        started(Listener, settings=Settings(hibernate_after_s=0)) as (engine, handle),
        Engine(engine.url, [], execute=False) as client,
    ):
        bodies.clear()
        getattr(kill, moment)("inbound_claim", "payment")
        assert await client.get("Listener", "instance-1").send("paid", PAYMENT) == Receipt.queued
        await die(engine)
        assert bodies
        assert query(engine, "select count(*) from inbound_events") == [(int(moment == "after"),)]

        await engine.crash()
        await engine.run_until_idle()
        await handle.send("printed", 7)

        assert await handle.result(timeout=5) == [PAYMENT, 7]
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == ["payment", "receipt"]
        assert query(engine, "select count(*) from mail where taken_at is null") == [(0,)]
