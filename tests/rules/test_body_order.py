"""The order in which a body hears outcomes, and what waits for it."""

import asyncio
import random

import pytest
from tests.bodies import AWAKE, Traces, step_has_succeeded, versions
from tests.signals import Gate
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import (
    RunStep,
    WaitStep,
)
from workerflow.testing import SimulatedEngine


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
        await handle.send("end")
        await handle.result(timeout=5)

    assert traces.repeated() == [first, "b" if first == "a" else "a"]


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

    async with started(Crowd) as (engine, handle):
        await engine.advance(5)
        for _ in range(3):
            await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    assert len(traces.repeated()) == 60


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

    async with started(DoneSet) as (engine, handle):
        for _ in range(4):
            await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    (order,) = traces.repeated()
    assert len(order) == 40


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

    async with started(Race) as (engine, handle):
        await engine.advance(59)
        await handle.send("event")
        await engine.advance(1)
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)

    assert traces.repeated() == ["run", "event", "sleep"]


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
    async with started(changing, settings=AWAKE) as (engine, handle):
        code[0] = after
        await engine.crash()
        await engine.run_until_idle()
        assert order == ["old delivered", "new callback"]
        assert await handle.status() == "running"
