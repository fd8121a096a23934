"""What happens in one and the same millisecond keeps its order: the virtual clock stands still in all of this file."""

import asyncio

import pytest
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import RetryPolicy, RunStep
from workerflow.testing import SimulatedEngine

# In no order that a sort would give.
SHUFFLED = [f"{(number * 37) % 101:03}" for number in range(101)]


@pytest.mark.weakness(14)
@pytest.mark.parametrize("comes", ["before", "during"])
@async_test
async def test_events_of_one_moment_are_used_in_the_order_in_which_they_were_accepted(comes):
    @definition
    async def Listening(self):
        return [await self.wait(f"wait-{number}", "go", str) for number in range(len(SHUFFLED))]

    async with SimulatedEngine([Listening]) as engine:
        handle = engine.get(Listening, "instance-1")
        if comes == "during":
            await handle.create()
        for name in SHUFFLED:
            await handle.send("go", name, id=f"event-{name}")
        if comes == "before":
            await engine.crash()
            await handle.create()
        await engine.run_until_idle()

        assert query(engine, "select count(distinct received_at) from inbound_events") == [(1,)]
        assert await handle.result(timeout=5) == SHUFFLED
        events = (await handle.info()).inbound_events
        assert [event.payload for event in events] == SHUFFLED
        assert [event.claimed_by for event in events] == [f"wait-{number}" for number in range(len(SHUFFLED))]


@pytest.mark.weakness(14)
@async_test
async def test_waits_of_one_moment_are_served_in_the_order_in_which_they_were_asked_for():
    @definition
    async def Listening(self):
        return await asyncio.gather(*(self.wait(name, "go", int) for name in SHUFFLED))

    async with started(Listening) as (engine, handle):
        for number in range(len(SHUFFLED)):
            if number == 50:
                await engine.crash()
            await handle.send("go", number)
        assert await handle.result(timeout=5) == list(range(len(SHUFFLED)))


@pytest.mark.weakness(14)
@async_test
async def test_attempts_of_one_moment_keep_their_order_and_the_last_is_the_last():
    call = Callback("done", errors=[ValueError(name) for name in SHUFFLED])

    @definition
    async def Trying(self):
        return await self.run("call", call, retry=RetryPolicy(max_attempts=None, initial=0), returns=str)

    async with started(Trying) as (engine, handle):
        await engine.crash()

        assert await handle.result(timeout=5) == "done"
        step = await step_of(handle, "call", RunStep)
        assert len({attempt.started_at for attempt in step.attempts}) == 1
        assert [attempt.number for attempt in step.attempts] == list(range(1, len(SHUFFLED) + 2))
        failures = [attempt.error_message for attempt in step.attempts[:-1]]
        assert failures == [f"ValueError: {name}" for name in SHUFFLED]
        assert states(step)[-1] == "succeeded"


@pytest.mark.weakness(14)
@pytest.mark.parametrize("is_parallel", [False, True], ids=["sequence", "parallel"])
@async_test
async def test_steps_of_one_moment_are_listed_in_the_order_in_which_they_were_asked_for(is_parallel):
    @definition
    async def Asking(self):
        if is_parallel:
            await asyncio.gather(*(self.run(name, Callback()) for name in SHUFFLED))
        else:
            for name in SHUFFLED:
                await self.run(name, Callback())

    async with started(Asking) as (engine, handle):
        assert [step.id for step in await handle.steps()] == SHUFFLED
        await engine.crash()
        assert [step.id for step in await handle.steps()] == SHUFFLED


@pytest.mark.weakness(14, 21)
@async_test
async def test_instances_of_one_moment_are_listed_once_each_and_in_one_order():
    @definition
    async def Listed(self):
        await self.wait("never", "never")

    async with SimulatedEngine([Listed]) as engine:
        for name in SHUFFLED:
            await engine.get(Listed, name).create()
        whole = [summary.id for summary in await engine.list(limit=1000)]
        pages, last = [], None
        while page := await engine.list(limit=7, after=last):
            pages += [summary.id for summary in page]
            last = page[-1]

    assert pages == whole
    assert sorted(pages) == sorted(SHUFFLED)
