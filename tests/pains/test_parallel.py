"""Steps in parallel, in every order in which they can end and with a crash after every one of them."""

import asyncio
import itertools
from typing import Any

import pytest
from tests.bodies import failure_of, next_turn
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import NonRetryableStepError, RunStep
from workerflow.testing import SimulatedEngine


async def branch(self, name):
    return [await self.run(f"{name}{number}", self.gates[f"{name}{number}"], returns=str) for number in (1, 2)]


async def with_gather(self):
    return await asyncio.gather(branch(self, "a"), branch(self, "b"))


async def with_a_set_of_tasks(self):
    tasks = {asyncio.create_task(branch(self, name), name=name) for name in "ab"}
    done, _ = await asyncio.wait(tasks)
    return sorted(task.result() for task in done)


async def with_as_completed(self):
    return sorted([await one for one in asyncio.as_completed({branch(self, "a"), branch(self, "b")})])


async def with_a_task_group(self):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(self, name)) for name in "ab"]
    return [task.result() for task in tasks]


async def with_a_set_of_steps(self):
    steps = {self.run(name, self.gates[name], returns=str) for name in ("a1", "a2", "b1", "b2")}
    while len(pending := steps) > 0:
        _, steps = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return [["a1", "a2"], ["b1", "b2"]]


async def with_steps_by_their_names(self):
    steps = {name: self.run(name, self.gates[name], returns=str) for name in ("a1", "a2", "b1", "b2")}
    await asyncio.wait(set(steps.values()))
    return [[steps[f"{name}{number}"].result() for number in (1, 2)] for name in "ab"]


ORDERS = [order for order in itertools.permutations(("a1", "a2", "b1", "b2")) if order.index("a1") < order.index("a2")]
ORDERS = [order for order in ORDERS if order.index("b1") < order.index("b2")]


@pytest.mark.parametrize(
    "compose",
    [
        with_gather,
        with_a_set_of_tasks,
        with_as_completed,
        with_a_task_group,
        with_a_set_of_steps,
        with_steps_by_their_names,
    ],
)
@async_test
async def test_parallel_steps_have_their_own_results_in_whatever_order_they_end_and_whenever_a_crash_comes(compose):
    for order, crash_after in itertools.product(ORDERS, range(5)):
        gates = {name: Gate(name) for name in order}
        seen: list[Any] = []

        @definition
        async def Branches(self, gates=gates, seen=seen):
            self.gates = gates
            seen.append(await compose(self))
            await self.wait("end", "end")

        async with SimulatedEngine([Branches]) as engine:
            handle = engine.get(Branches, "instance-1")
            await handle.create()
            for number, name in enumerate(order):
                # After a crash the others are called once more; they end in the same order.
                await gates[name].begun()
                gates[name].open()
                while states(await step_of(handle, name, RunStep))[-1] != "succeeded":
                    await next_turn()
                if number + 1 == crash_after:
                    crashing = asyncio.ensure_future(engine.crash())
                    for later in order[number + 1 :]:
                        gates[later].open()
                    await crashing
                    break
            await engine.advance(60)
            await engine.crash()
            await handle.send("end")
            assert await handle.result(timeout=5) is None
            assert len(seen) > 1
            assert seen == [[["a1", "a2"], ["b1", "b2"]]] * len(seen), f"{order}, crash after {crash_after}"
            assert [gates[name].calls for name in order[:crash_after]] == [1] * len(order[:crash_after])


@pytest.mark.parametrize("order", list(itertools.permutations(("good", "bad", "slow"))), ids=" ".join)
@async_test
async def test_a_task_group_ends_as_its_first_failure_says_in_whatever_order_its_steps_end(order):
    gates = {
        "good": Gate("good"),
        "bad": Gate(error=NonRetryableStepError("declined", {"code": 51})),
        "slow": Gate("slow"),
    }
    later, seen = Callback("later"), []

    @definition
    async def Group(self):
        async def chain(name):
            result = await self.run(name, gates[name], returns=str)
            await self.sleep(f"{name}-pause", 60)
            await self.run(f"{name}-later", later)
            return result

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(chain(name)) for name in gates}
        except* NonRetryableStepError as failures:
            ends = {name: "cancelled" if task.cancelled() else "failed" for name, task in tasks.items()}
            seen.append([ends, [(str(error), getattr(error, "data", None)) for error in failures.exceptions]])
            await self.wait("go", "go")
            raise

    async with SimulatedEngine([Group]) as engine:
        handle = engine.get(Group, "instance-1")
        await handle.create()
        for gate in gates.values():
            await gate.begun()
        for name in order[: order.index("bad") + 1]:
            gates[name].open()
            while states(await step_of(handle, name, RunStep)) == ["started"]:
                await next_turn()
        await engine.run_until_idle()
        left = order[order.index("bad") + 1 :]
        assert [gates[name].cancellations for name in left] == [1] * len(left)
        for gate in gates.values():
            gate.open()
        await engine.crash()
        await handle.send("go")
        failure = await failure_of(handle)
        assert failure.error_name == "ExceptionGroup"
        await engine.advance(3600)
        await engine.crash()
        ends = {"good": "cancelled", "bad": "failed", "slow": "cancelled"}
        assert len(seen) > 1
        assert seen == [[ends, [("declined", {"code": 51})]]] * len(seen)
        assert (later.calls, [gate.calls for gate in gates.values()]) == (0, [1, 1, 1])
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.parametrize("slow_s", [1, 5, 10])
@pytest.mark.parametrize("crash_at", [0, 0.5, 3, 7])
@async_test
async def test_of_three_times_the_shortest_goes_on_at_its_time_whatever_is_left(slow_s, crash_at):
    """The losers are cancelled by their author, and leave no alarm and no further step."""
    times = [*sorted({1, 5, 10} - {slow_s}), slow_s]
    later = Callback("later")

    @definition
    async def Race(self):
        async def after(seconds):
            await self.sleep(f"sleep-{seconds}", seconds)
            return seconds

        tasks = [asyncio.create_task(after(seconds)) for seconds in times]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await self.run("later", later)
        return [[task.result() for task in done], self.now().second]

    async with started(Race) as (engine, handle):
        await engine.advance(crash_at)
        await engine.crash()
        assert await handle.status() == ("running" if crash_at < 1 else "completed")
        await engine.advance(1)
        assert await handle.result(timeout=5) == [[1], 1]
        assert (await handle.info()).alarm_at is None
        assert later.calls == 1
