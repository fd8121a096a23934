"""What asyncio offers works in ``execute()``, and replays the same in every mode."""

import asyncio
import gc

import pytest
from tests.bodies import AWAKE, COMPOSITIONS, Traces
from tests.signals import Gate
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import (
    NonRetryableStepError,
    RunStep,
)
from workerflow.testing import SimulatedEngine


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

    async with started(Composed) as (engine, handle):
        await engine.advance(30)
        first, steps = traces.bodies[-1], await handle.steps()
        assert first[-1] == "over"

        traces.end()
        await engine.crash()
        await engine.run_until_idle()
        assert await handle.steps() == steps

        await handle.send("end", "completed")
        assert await handle.result(timeout=5) == "completed"
        assert traces.bodies[-1] is not first
        assert traces.bodies[-1] == first


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

    assert len(traces.bodies) >= 16
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

    async with started(Shared) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    assert traces.repeated() == [("a", "value"), ("b", "value")]


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

    async with started(Named) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    names = traces.repeated()
    assert len(set(names)) == 3
    assert "third" in names


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
