"""Callbacks that wait for a nested step: started, not failed, and entered again only by another process."""

import asyncio

import apsw
import pytest
from tests.bodies import next_turn
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import RunStep, SleepStep, WaitStep
from workerflow.testing import SimulatedEngine
from workerflow.worker import committer

NESTED = ["retry", "sleep", "wait"]


def nesting(kind, entries):
    """A workflow whose only callback waits for a nested step of this kind."""

    @definition
    async def Nesting(self):
        async def outer():
            entries.append(kind)
            if kind == "retry":
                await self.run("inner", inner)
            elif kind == "sleep":
                await self.sleep("inner", 60)
            else:
                await self.wait("inner", "go")
            return await self.run("after", Callback("after"), returns=str)

        return await self.run("outer", outer, returns=str)

    inner = Callback(errors=[ConnectionError("no answer")])
    return Nesting


@pytest.mark.spec(101)
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("crashes", [0, 1, 3])
@async_test
async def test_a_callback_that_waits_stays_started_and_is_entered_once_per_process(kind, crashes):
    entries: list[str] = []
    async with started(nesting(kind, entries)) as (engine, handle):
        for _ in range(crashes):
            await engine.crash()
            await engine.run_until_idle()
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]
        # An event for nobody drives the workflow, and must not enter the callback.
        await handle.send("other")
        await engine.run_until_idle()
        assert len(entries) == 1 + crashes

        await handle.send("go")
        await engine.advance(60)

        assert await handle.result(timeout=5) == "after"
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert len(entries) == 1 + crashes


@pytest.mark.spec(106)
@pytest.mark.parametrize("kind", ["run", "sleep", "wait"])
@async_test
async def test_a_nested_step_that_cannot_be_written_for_a_while_does_not_fail_its_parent(kind, monkeypatch):
    # However slow the machine: the clock of the tries that would follow does not move by itself.
    monkeypatch.setattr(committer, "BUSY_WAIT_MS", 60_000)
    locked = asyncio.Event()
    entries = []

    @definition
    async def Nesting(self):
        async def outer():
            entries.append(kind)
            foreign.execute("begin immediate")
            locked.set()
            if kind == "run":
                return await self.run("inner", Callback("inner"), returns=str)
            if kind == "sleep":
                await self.sleep("inner", 0)
                return "inner"
            return await self.wait("inner", "go", str)

        return await self.run("outer", outer, returns=str)

    async with SimulatedEngine([Nesting]) as engine:
        foreign = apsw.Connection(engine.url)
        foreign.set_busy_timeout(10_000)
        handle = engine.get(Nesting, "instance-1")
        await handle.create()
        await locked.wait()
        sending = asyncio.ensure_future(handle.send("go", "inner"))
        for _ in range(10):
            await next_turn()
        # Nothing of the nested step is durable, and nothing was made of its absence.
        assert [step.id for step in await handle.steps()] == ["outer"]
        assert states(await step_of(handle, "outer", RunStep)) == ["started"]

        foreign.execute("rollback")
        foreign.close()

        assert await handle.result(timeout=5) == "inner"
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
        assert len(entries) == 1
        await sending


@pytest.mark.spec(98, 99)
@async_test
async def test_steps_of_a_callback_two_levels_deep_have_that_callback_as_parent():
    @definition
    async def Deep(self):
        async def middle():
            await self.sleep("nap", 60)
            return await self.wait("payment", "paid", int)

        async def outer():
            return await self.run("middle", middle, returns=int)

        return await self.run("outer", outer, returns=int)

    async with started(Deep) as (engine, handle):
        await engine.advance(60)
        await handle.send("paid", 7)

        assert await handle.result(timeout=5) == 7
        assert (await step_of(handle, "nap", SleepStep)).parent_step_id == "middle"
        assert (await step_of(handle, "payment", WaitStep)).parent_step_id == "middle"
        assert [states(await step_of(handle, step_id, RunStep)) for step_id in ("outer", "middle")] == [
            ["succeeded"]
        ] * 2


@pytest.mark.spec(34)
@async_test
async def test_verbs_of_one_instance_are_refused_in_the_callback_of_another_and_do_nothing_after_its_end():
    bodies = {}
    inner = Callback()

    @definition
    async def Lending(self):
        bodies[self.input] = self

        async def borrow():
            await bodies["lender"].run("inner", inner)

        if self.input == "borrower":
            await self.run("borrow", borrow)
        await self.wait("end", "end")

    async with SimulatedEngine([Lending]) as engine:
        lender, borrower = engine.get(Lending, "lender"), engine.get(Lending, "borrower")
        await lender.create("lender")
        await engine.run_until_idle()
        await borrower.create("borrower")
        await engine.run_until_idle()

        (attempt,) = (await step_of(borrower, "borrow", RunStep)).attempts
        assert (attempt.state, attempt.error_name) == ("failed", "DefinitionError")
        assert [step.id for step in await lender.steps()] == ["end"]

        await lender.send("end")
        await engine.run_until_idle()
        bodies["lender"].run("late", inner)
        await engine.run_until_idle()
        assert inner.calls == 0
        assert [step.id for step in await lender.steps()] == ["end"]
