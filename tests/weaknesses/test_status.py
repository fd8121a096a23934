"""A status is durable before anybody sees it, and neither a crash nor a hook keeps a workflow from going on."""

import asyncio

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query, started

from workerflow import Engine, WorkflowFailedError, WorkflowRuntime
from workerflow.testing import SimulatedEngine


@definition
async def Answering(self):
    answer = await self.wait("answer", "answered", str)
    if answer == "fail":
        raise ValueError(answer)
    return answer


async def pause_and_resume(handle):
    await handle.pause()
    await handle.resume()


async def fail(handle):
    await handle.send("answered", "fail")


async def complete(handle):
    await handle.send("answered", "yes")


async def cancel(handle):
    await handle.cancel()


ENDS = {complete: "completed", fail: "failed", cancel: "cancelled"}


def hooked(hook):
    """A runtime of Answering whose hook is *hook*, called with its object and the status."""
    return type("Hooked", (WorkflowRuntime,), {"definition": Answering, "on_status_change": hook})


@pytest.mark.weakness(15)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_whoever_is_told_of_a_status_finds_it_in_the_database(end):
    told = []

    def hook(self, status):
        told.append((status, query(engine, "select status from instances"), self.get_status()))

    async with SimulatedEngine([runtime := hooked(hook)]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await pause_and_resume(handle)
        await end(handle)
        await engine.run_until_idle()

    statuses = ["running", "paused", "running", ENDS[end]]
    assert told == [(status, [(status,)], status) for status in statuses]


@pytest.mark.weakness(15)
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_a_hook_that_raises_at_every_status_prevents_nothing(end, error, caplog):
    told = []

    def hook(self, status):
        told.append(status)
        raise error("hook")

    async with SimulatedEngine([runtime := hooked(hook)]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await pause_and_resume(handle)
        await end(handle)
        await engine.run_until_idle()

        assert await handle.status() == ENDS[end]
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", ENDS[end]]
    assert told == ["running", "paused", "running", ENDS[end]]
    assert caplog.text.count("on_status_change") >= len(told)


async def create_then(handle, crash):
    await handle.create()
    await crash()
    await handle.send("answered", "yes")


async def send_then(handle, crash):
    await handle.create()
    await handle.send("answered", "yes")
    await crash()


async def send_first_then(handle, crash):
    await handle.send("answered", "yes")
    await crash()
    await handle.create()


async def pause_then(handle, crash):
    await handle.create()
    await handle.pause()
    await crash()
    await handle.send("answered", "yes")
    await handle.resume()


async def resume_then(handle, crash):
    await handle.create()
    await handle.pause()
    await handle.send("answered", "yes")
    await handle.resume()
    await crash()


@pytest.mark.weakness(15)
@pytest.mark.parametrize("sender", ["same process", "another"])
@pytest.mark.parametrize("story", [create_then, send_then, send_first_then, pause_then, resume_then])
@async_test
async def test_a_crash_right_after_any_verb_strands_nothing(story, sender):
    async with (
        SimulatedEngine([Answering]) as engine,
        Engine(engine.url, [Answering], execute=False) as client,
    ):
        handle = (engine if sender == "same process" else client).get(Answering, "instance-1")

        await story(handle, engine.crash)
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == "yes"


@pytest.mark.weakness(15)
@async_test
async def test_a_crash_between_a_callbacks_end_and_the_next_start_strands_nothing():
    gate = Gate("first")

    @definition
    async def Two(self):
        first = await self.run("first", gate, returns=str)
        return [first, await self.run("second", Callback("second"), returns=str)]

    async with SimulatedEngine([Two]) as engine:
        handle = engine.get(Two, "instance-1")
        await handle.create()
        await gate.begun()
        gate.open()
        await engine.crash()
        await engine.advance(60)

        assert await handle.result(timeout=5) == ["first", "second"]


@pytest.mark.weakness(15)
@async_test
async def test_nothing_runs_again_after_the_end():
    bodies, call = [], Callback()

    @definition
    async def Failing(self):
        bodies.append(self)
        await self.run("call", call)
        raise ValueError("the end")

    async with started(Failing) as (engine, handle):
        with pytest.raises(WorkflowFailedError, match="the end"):
            await handle.result(timeout=5)
        entered = len(bodies)
        before = query(engine, "select * from instances")

        for verb in (handle.create, handle.cancel, handle.pause):
            await verb()
        assert await handle.send("late") == "dropped"
        await engine.advance(3600)
        await engine.crash()
        await engine.advance(3600)

        assert (len(bodies), call.calls) == (entered, 1)
        assert query(engine, "select * from instances") == before
        assert await lifecycle(handle) == ["created", "started", "failed"]
