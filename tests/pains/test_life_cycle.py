"""Creating, pausing, cancelling and waiting for the end: at every moment, in every order, from several callers."""

import asyncio
import itertools
import logging
import random

import pytest
from tests.bodies import next_turn
from tests.signals import Gate, attempt_states
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import Engine, RunStep, WorkflowCancelledError, WorkflowStateError
from workerflow.testing import SimulatedEngine

TERMINAL = {"completed", "failed", "cancelled"}


async def nothing():
    return None


async def ask(verb):
    await verb


async def turns(count):
    """Let the loop make so many turns."""
    for _ in range(count):
        await next_turn()


# Pause and resume.


def orders_of_a_pause():
    """Every order of a pause, a resume and the ends of two callbacks, one of which at least is in flight then."""
    for order in itertools.permutations(("pause", "resume", "a", "b")):
        if order.index("pause") < order.index("resume") and order.index("pause") < 2:
            yield order


@pytest.mark.parametrize("is_nested", [False, True], ids=["side-by-side", "nested"])
@pytest.mark.parametrize("order", list(orders_of_a_pause()), ids=" ".join)
@async_test
async def test_callbacks_in_flight_at_a_pause_end_and_count_and_the_next_step_waits_for_the_resume(order, is_nested):
    gates, after = {"a": Gate("a"), "b": Gate("b")}, Callback("after")

    @definition
    async def TwoInFlight(self):
        async def both():
            return list(await asyncio.gather(*(self.run(name, gate, returns=str) for name, gate in gates.items())))

        results = await self.run("both", both, returns=list[str]) if is_nested else await both()
        return [*results, await self.run("after", after, returns=str)]

    async with SimulatedEngine([TwoInFlight]) as engine:
        handle = engine.get(TwoInFlight, "instance-1")
        await handle.create()
        for gate in gates.values():
            await gate.begun()
        is_paused = False
        for number, what in enumerate(order):
            if what == "pause":
                await handle.pause()
                is_paused = True
            elif what == "resume":
                await handle.resume()
                is_paused = False
            else:
                gates[what].open()
                while states(await step_of(handle, what, RunStep)) == ["started"]:
                    await next_turn()
                assert states(await step_of(handle, what, RunStep)) == ["succeeded"]
            has_both = {"a", "b"} <= set(order[: number + 1])
            if is_paused and has_both:
                await engine.advance(3600)
            if is_paused or not has_both:
                assert after.calls == 0
                assert await handle.status() == ("paused" if is_paused else "running")
        assert await handle.result(timeout=5) == ["a", "b", "after"]
        assert (gates["a"].calls, gates["b"].calls, after.calls) == (1, 1, 1)
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "completed"]


# Create.


@async_test
async def test_a_create_at_any_turn_beside_one_of_another_process_troubles_nobody_and_one_input_counts(caplog):
    @definition
    async def Echo(self):
        return self.input

    async with SimulatedEngine([Echo]) as engine, Engine(engine.url, [Echo], execute=False) as client:
        for count in range(20):
            creating = asyncio.ensure_future(client.get(Echo, str(count)).create("client"))
            await turns(count)
            told = {"owner": await engine.get(Echo, str(count)).create("owner"), "client": await creating}
            await engine.run_until_idle()
            result = await engine.get(Echo, str(count)).result(timeout=5)
            assert told == {"owner": result == "owner", "client": result == "client"}
            assert await lifecycle(engine.get(Echo, str(count))) == ["created", "started", "completed"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# Cancel.


@definition
async def Loop(self):
    number = 0
    while True:
        await self.run(f"step-{number}", nothing)
        await self.sleep(f"sleep-{number}", 0.1)
        number += 1


@pytest.mark.slow
@async_test
async def test_a_cancel_at_a_thousand_random_moments_ends_a_loop_as_cancelled_and_nothing_else():
    chosen = random.Random(1)
    moments = sorted((chosen.randrange(400), chosen.randrange(12), f"{number}") for number in range(1000))
    async with SimulatedEngine([Loop]) as engine, Engine(engine.url, [Loop], execute=False) as client:
        began = engine.now()
        await asyncio.gather(*(engine.get(Loop, name).create() for _, _, name in moments))
        await engine.run_until_idle()
        for milliseconds, group in itertools.groupby(moments, lambda moment: moment[0]):
            now = (engine.now() - began).total_seconds()
            moving = asyncio.ensure_future(engine.advance(max(0, milliseconds / 1000 - now)))
            cancels = []
            for _, count, name in group:
                await turns(count)
                canceller = (client if chosen.random() < 0.1 else engine).get(Loop, name)
                cancels.append(asyncio.ensure_future(canceller.cancel(name)))
            await asyncio.gather(moving, *cancels)
        await engine.run_until_idle()
        steps = query(engine, "select count(*) from steps")
        await engine.advance(10)
        await engine.crash()
        await engine.advance(10)
        assert query(engine, "select count(*) from steps") == steps
        assert query(engine, "select status, alarm_at, owner, count(*) from instances group by 1, 2, 3") == [
            ("cancelled", None, None, 1000)
        ]
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]
        for _, _, name in moments[::10]:
            handle = engine.get(Loop, name)
            assert [kind for kind in await lifecycle(handle) if kind in TERMINAL] == ["cancelled"]
            with pytest.raises(WorkflowCancelledError) as cancelled:
                await handle.result(timeout=5)
            assert cancelled.value.reason == name
        assert query(
            engine,
            "select count(*) from lifecycle_events where type in ('completed', 'failed', 'cancelled')",
        ) == [(1000,)]


@pytest.mark.parametrize("other", ["end", "fail", "cancel", "pause"])
@async_test
async def test_a_cancel_at_any_turn_beside_another_end_leaves_one_terminal_status_that_stays(other):
    @definition
    async def Ending(self):
        if await self.wait("end", "end") == "fail":
            raise ValueError("failed")
        return "done"

    seen = set()
    async with SimulatedEngine([Ending]) as engine:
        for count in range(other in ("cancel", "pause"), 30):
            handle = engine.get(Ending, str(count))
            await handle.create()
            await engine.run_until_idle()
            if other in ("end", "fail"):
                asking = asyncio.ensure_future(ask(handle.send("end", other)))
            else:
                asking = asyncio.ensure_future(ask(handle.cancel("first") if other == "cancel" else handle.pause()))
            await turns(count)
            await handle.cancel("second")
            await asking
            await engine.run_until_idle()
            status = await handle.status()
            seen.add(status)
            assert [kind for kind in await lifecycle(handle) if kind in TERMINAL] == [status]
            reasons = {event.cancellation_reason for event in await handle.events()} - {None}
            assert reasons == ({"first" if other == "cancel" else "second"} if status == "cancelled" else set())
            await engine.crash()
            with pytest.raises(WorkflowStateError):
                await handle.resume()
            await handle.cancel("third")
            assert await handle.status() == status
    assert seen <= {"cancelled", "completed" if other == "end" else "failed"}
    if other in ("end", "fail"):
        assert len(seen) == 2


# Waiting for the end.


async def by_cancelling(waiting, count):
    await turns(count)
    waiting.cancel()


async def by_a_timeout_of_the_caller(waiting, count):
    await turns(count)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0)


async def by_a_failing_task_group(waiting, count):
    async def fails():
        await turns(count)
        raise KeyError("sibling")

    async def waits():
        await waiting

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits())
            group.create_task(fails())
    except* KeyError:
        pass


@pytest.mark.parametrize("beside", [False, True], ids=["owner", "beside"])
@pytest.mark.parametrize("give_up", [by_cancelling, by_a_timeout_of_the_caller, by_a_failing_task_group])
@async_test
async def test_a_caller_that_gives_up_waiting_for_a_result_ends_its_waiting_and_nothing_else(give_up, beside):
    gate = Gate("done")

    @definition
    async def Slow(self):
        return await self.run("step", gate, returns=str)

    async with SimulatedEngine([Slow]) as engine, Engine(engine.url, [Slow], execute=False) as client:
        handle = engine.get(Slow, "instance-1")
        await handle.create()
        await gate.begun()
        other = asyncio.ensure_future(handle.result(timeout=30))
        for count in range(8):
            waiting = asyncio.ensure_future((client if beside else engine).get(Slow, handle.id).result())
            await give_up(waiting, count)
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await handle.status() == "running"
        assert states(await step_of(handle, "step", RunStep)) == ["started"]
        gate.open()
        assert await other == "done"
        assert (gate.calls, gate.cancellations) == (1, 0)
        assert await lifecycle(handle) == ["created", "started", "completed"]


@async_test
async def test_who_waits_for_a_result_that_nobody_has_started_yet_gets_it_once_it_is_there():
    @definition
    async def Later(self):
        await self.sleep("night", 3600)
        return self.input

    async with SimulatedEngine([Later]) as engine:
        handle = engine.get(Later, "instance-1")
        waiting = [asyncio.ensure_future(handle.result(timeout=30)) for _ in range(50)]
        await turns(3)
        assert await engine.list() == []
        await handle.create(7)
        await engine.advance(1800)
        await engine.crash()
        await engine.advance(1800)
        assert await asyncio.gather(*waiting) == [7] * 50


@async_test
async def test_a_callback_that_sleeps_when_its_workflow_is_cancelled_is_told_at_once_and_may_clean_up():
    cleaned = []

    async def sleeps():
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await nothing()
            cleaned.append("cleaned")
            raise

    @definition
    async def Sleeping(self):
        async def outer():
            return await self.run("inner", sleeps)

        await asyncio.gather(self.run("one", sleeps), self.run("outer", outer))

    async with SimulatedEngine([Sleeping]) as engine:
        handle = engine.get(Sleeping, "instance-1")
        await handle.create()
        while sorted(attempt_states(await handle.steps()).values()) != [["started"]] * 3:
            await next_turn()
        await handle.cancel("enough")
        await engine.run_until_idle()
        assert cleaned == ["cleaned"] * 2
        assert sorted(attempt_states(await handle.steps()).values()) == [["failed"]] * 3


@async_test
async def test_what_is_asked_of_an_instance_that_has_ended_changes_nothing_and_says_so():
    @definition
    async def Short(self):
        return self.input

    async with started(Short, 1) as (engine, handle):
        before = (await handle.info(), await handle.events(), await handle.steps())
        assert await handle.create(2) is False
        assert await handle.send("end", 2) == "dropped"
        await handle.pause()
        await handle.cancel("late")
        with pytest.raises(WorkflowStateError, match="completed"):
            await handle.resume()
        await engine.advance(3600)
        assert (await handle.info(), await handle.events(), await handle.steps()) == before
        assert await handle.result(timeout=5) == 1
