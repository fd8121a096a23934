"""What steps, retries and waiting cost: the same for each, however many there are, and nothing while idle."""

import asyncio
from datetime import timedelta

import pytest
from tests.bodies import AWAKE
from tests.support import Callback, async_test, definition, query, started, states, step_of
from tests.weaknesses.costs import metered

from workerflow import RetryPolicy, RunStep
from workerflow.testing import SimulatedEngine

MONTH = timedelta(days=30)
AT_ONCE = RetryPolicy(initial=0)


async def in_sequence(self, count):
    for number in range(count):
        await self.run(f"step-{number}", Callback())


async def side_by_side(self, count):
    await asyncio.gather(*(self.run(f"step-{number}", Callback()) for number in range(count)))


async def failing_once(self, count):
    for number in range(count):
        await self.run(f"step-{number}", self.failing[number], retry=AT_ONCE)


async def nested(self, count):
    async def outer():
        await in_sequence(self, count)

    await self.run("outer", outer)


async def sleeps(self, count):
    for number in range(count):
        await self.sleep(f"sleep-{number}", 0)


async def waits(self, count):
    for number in range(count):
        await self.wait(f"wait-{number}", "go")


async def cost_of(shape, count):
    callbacks = [Callback(errors=[ConnectionError()]) for _ in range(count)]

    @definition
    async def Shaped(self):
        self.failing = callbacks
        await shape(self, count)

    with metered() as meter:
        async with started(Shaped) as (engine, handle):
            for _ in range(count if shape is waits else 0):
                await handle.send("go")
            await engine.run_until_idle()
            assert await handle.status() == "completed"
            return meter.reading(engine)


@pytest.mark.weakness(3)
@pytest.mark.parametrize("shape", [in_sequence, side_by_side, failing_once, nested, sleeps, waits])
@async_test
async def test_the_thirtieth_step_costs_the_commits_rows_and_statements_of_the_tenth(shape):
    five, ten, thirty = [await cost_of(shape, count) for count in (5, 10, 30)]

    first, later = ten.since(five), thirty.since(ten)
    assert later.rows == 4 * first.rows
    assert later.batches == 4 * first.batches
    assert later.statements == 4 * first.statements


@pytest.mark.weakness(3)
@pytest.mark.normal_only("always-replay ends a pass at every step")
@pytest.mark.parametrize(
    ("shape", "batches", "rows"),
    [(in_sequence, 1, 4), (side_by_side, 0, 3), (nested, 2, 5), (sleeps, 0, 2)],
)
@async_test
async def test_a_step_writes_its_own_rows_only_and_shares_its_commits_where_it_can(shape, batches, rows):
    ten, twenty = [await cost_of(shape, count) for count in (10, 20)]
    ten_steps = twenty.since(ten)
    # Inserted, started and ended; and the worker's row, once a commit. What follows an outcome in execute() is in its
    # commit; a callback hears of an outcome first and asks then.
    assert (ten_steps.batches, ten_steps.rows) == (10 * batches, 10 * rows)


@pytest.mark.weakness(3)
@pytest.mark.normal_only("nothing is replayed in the normal mode")
@async_test
async def test_each_line_of_execute_runs_once_however_many_steps_there_are():
    lines = []

    @definition
    async def Counting(self):
        for number in range(200):
            lines.append(number)
            await self.run(f"step-{number}", Callback())

    async with started(Counting) as (_, handle):
        assert await handle.status() == "completed"
    assert lines == list(range(200))


@pytest.mark.weakness(23)
@pytest.mark.parametrize(("always_replay", "passes"), [(False, 1), (True, 3)], ids=["normal", "always-replay"])
@async_test
async def test_two_failures_before_success_take_no_more_passes_and_commits_than_there_are_attempts(
    always_replay, passes
):
    bodies = []
    call = Callback(errors=[ConnectionError(), ConnectionError()])

    @definition
    async def Retrying(self):
        bodies.append(self)
        await self.run("call", call)

    options = {"always_replay": always_replay, "settings": AWAKE}
    with metered() as meter:
        async with started(Retrying, **options) as (engine, handle):
            await engine.advance(0.25)
            await engine.advance(0.5)

            assert await handle.status() == "completed"
            assert states(await step_of(handle, "call", RunStep)) == ["failed", "failed", "succeeded"]
            # One for the start of each attempt, one for its end.
            assert meter.reading(engine).batches == 6
    assert len(bodies) == passes


async def an_event(self):
    await self.wait("never", "never")


async def a_far_deadline(self):
    await self.wait("never", "never", timeout=3 * MONTH)


async def a_far_sleep(self):
    await self.sleep("far", 3 * MONTH)


async def an_event_in_a_callback(self):
    async def outer():
        await self.wait("never", "never")

    await self.run("outer", outer)


async def everything(self):
    await asyncio.gather(an_event(self), a_far_sleep(self), an_event_beside(self))


async def an_event_beside(self):
    async def beside():
        await self.wait("inner", "never")

    await self.run("beside", beside)


@pytest.mark.weakness(16)
@pytest.mark.parametrize("settings", [AWAKE, None], ids=["in memory", ""])
@pytest.mark.parametrize("is_paused", [False, True], ids=["", "paused"])
@pytest.mark.parametrize("idle", [an_event, a_far_deadline, a_far_sleep, an_event_in_a_callback, everything])
@async_test
async def test_a_month_of_waiting_costs_what_a_second_without_any_instance_costs(idle, is_paused, settings):
    bodies = []

    @definition
    async def Idle(self):
        bodies.append(self)
        await idle(self)

    with metered() as meter:
        async with SimulatedEngine([Idle], settings=settings) as engine:
            # Of an engine without any instance, which does no more than look at the clock.
            nothing = await meter.cost_of_advance(engine, 1)
            handle = engine.get(Idle, "instance-1")
            await handle.create()
            if is_paused:
                await handle.pause()
            await engine.advance(60)
            entered = len(bodies)

            assert await meter.cost_of_advance(engine, 1) == nothing
            assert await meter.cost_of_advance(engine, MONTH) == nothing
            assert (nothing.batches, nothing.rows) == (0, 0)
            assert len(bodies) == entered
            has_deadline = idle in (a_far_deadline, a_far_sleep, everything)
            assert ((await handle.info()).alarm_at is not None) == (has_deadline and not is_paused)
            assert await handle.status() == ("paused" if is_paused else "running")


@pytest.mark.weakness(16)
@async_test
async def test_an_instance_that_has_ended_costs_nothing_any_more():
    @definition
    async def Ended(self):
        self.sleep("far", MONTH / 2)
        self.wait("never", "never", timeout=MONTH / 3)

    with metered() as meter:
        async with started(Ended) as (engine, handle):
            assert await handle.status() == "completed"
            second = await meter.cost_of_advance(engine, 1)
            assert await meter.cost_of_advance(engine, MONTH) == second
            assert second.batches == 0
            assert query(engine, "select alarm_at, owner from instances") == [(None, None)]
