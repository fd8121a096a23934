"""Branches side by side: none burns another's attempts, none waits for another's time, no callback is entered twice."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.bodies import AWAKE, next_turn
from tests.signals import Gate, Thread, attempt_states
from tests.support import Callback, async_test, definition, started, states, step_of
from tests.weaknesses.costs import metered

from workerflow import RunStep, Settings, SleepStep
from workerflow.testing import SimulatedEngine

HOUR = timedelta(hours=1)
FAR = HOUR * 100


async def step_is_there(handle, step_id):
    while step_id not in [step.id for step in await handle.steps()]:
        await next_turn()


@pytest.mark.weakness(4)
@pytest.mark.parametrize("slow_kind", [Gate, Thread])
@async_test
async def test_slow_branches_beside_a_chain_of_quick_steps_are_called_once_and_burn_no_attempt(slow_kind):
    slow: list[Any] = [slow_kind(number) for number in range(3)]
    quick = Callback()

    @definition
    async def Branches(self):
        async def chain():
            for number in range(20):
                await self.run(f"quick-{number}", quick)
            await self.wait("chain-is-over", "never", timeout=FAR)

        chaining = asyncio.create_task(chain())
        results = await asyncio.gather(*(self.run(f"slow-{n}", call, returns=int) for n, call in enumerate(slow)))
        chaining.cancel()
        return results

    async with SimulatedEngine([Branches]) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        await step_is_there(handle, "chain-is-over")
        found = attempt_states(await handle.steps())
        assert [found[f"slow-{number}"] for number in range(3)] == [["started"]] * 3
        assert quick.calls == 20

        for call in slow:
            call.release.set() if slow_kind is Thread else call.open()

        assert await handle.result(timeout=5) == [0, 1, 2]
        found = attempt_states(await handle.steps())
        assert list(found.values()) == [["succeeded"]] * 23
        assert [call.calls for call in slow] == [1, 1, 1]


@pytest.mark.weakness(4)
@async_test
async def test_a_slow_branch_keeps_its_one_attempt_while_its_neighbours_fail_and_retry():
    slow = Gate("slow")
    failing = [Callback(errors=[ConnectionError(), ConnectionError()]) for _ in range(5)]

    @definition
    async def Branches(self):
        slow_result = asyncio.ensure_future(self.run("slow", slow, timeout=FAR, returns=str))
        await asyncio.gather(*(self.run(f"failing-{number}", call) for number, call in enumerate(failing)))
        return await slow_result

    async with SimulatedEngine([Branches]) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        await slow.begun()
        await engine.advance(HOUR)
        assert [call.calls for call in failing] == [3] * 5
        assert states(await step_of(handle, "slow", RunStep)) == ["started"]

        slow.open()

        assert await handle.result(timeout=5) == "slow"
        assert states(await step_of(handle, "slow", RunStep)) == ["succeeded"]
        assert slow.calls == 1


@pytest.mark.weakness(5)
@async_test
async def test_a_callback_in_flight_is_called_once_though_timers_and_events_wake_its_workflow():
    slow = Gate("slow")

    @definition
    async def Woken(self):
        async def others():
            for number in range(3):
                await self.sleep(f"sleep-{number}", 60)
                await self.wait(f"wait-{number}", "go")

        return (await asyncio.gather(self.run("slow", slow, timeout=FAR, returns=str), others()))[0]

    async with SimulatedEngine([Woken]) as engine:
        handle = engine.get(Woken, "instance-1")
        await handle.create()
        await slow.begun()
        for number in range(3):
            await engine.advance(60)
            assert await handle.send("go") == "used"
            assert (await step_of(handle, f"sleep-{number}", SleepStep)).state == "elapsed"
        slow.open()

        assert await handle.result(timeout=5) == "slow"
        assert states(await step_of(handle, "slow", RunStep)) == ["succeeded"]
        assert slow.calls == 1


class Stubborn:
    """Its first call goes on when it is cancelled, and returns its number when ``late`` is set; so does the second."""

    def __init__(self):
        self.calls = 0
        self.late = [asyncio.Event(), asyncio.Event()]
        self.returned = asyncio.Event()

    async def __call__(self):
        self.calls += 1
        number = self.calls
        while not self.late[number - 1].is_set():
            try:
                await self.late[number - 1].wait()
            except asyncio.CancelledError:
                if number == 2:
                    raise
        self.returned.set()
        return number


@pytest.mark.weakness(5)
@async_test
async def test_the_late_outcome_of_one_attempt_is_never_written_onto_the_next():
    stubborn = Stubborn()

    @definition
    async def Late(self):
        return await self.run("call", stubborn, timeout=60, returns=int)

    async with SimulatedEngine([Late]) as engine:
        handle = engine.get(Late, "instance-1")
        await handle.create()
        await engine.advance(60.25)
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "started"]

        stubborn.late[0].set()
        await stubborn.returned.wait()
        await engine.run_until_idle()
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "started"]

        stubborn.late[1].set()
        assert await handle.result(timeout=5) == 2
        first, second = (await step_of(handle, "call", RunStep)).attempts
        assert (first.error_name, first.result_json, second.result_json) == ("TimeoutError", None, "2")


@pytest.mark.weakness(6)
@pytest.mark.parametrize("settings", [AWAKE, None], ids=["in memory", ""])
@async_test
async def test_each_branch_goes_on_at_the_time_of_its_own_sleep_and_in_between_nothing_turns(settings):
    hours = (1, 3, 4, 30, 300)
    stamps = []

    @definition
    async def Sleepers(self):
        async def branch(number):
            await self.sleep(f"sleep-{number}", number * HOUR)
            await self.run(f"stamp-{number}", stamp)

        await asyncio.gather(*(branch(number) for number in hours))

    async def stamp():
        stamps.append((engine.now() - began) / HOUR)

    with metered() as meter:
        async with SimulatedEngine([Sleepers], settings=settings) as engine:
            nothing = await meter.cost_of_advance(engine, 1)
            began = engine.now()
            handle = engine.get(Sleepers, "instance-1")
            await handle.create()
            for number in hours:
                assert (await handle.info()).alarm_at == began + number * HOUR
                await engine.advance(60)
                # As much as a look at the clock, whatever the time: no spinning.
                until_shortly_before = began - engine.now() + (number - 0.1) * HOUR
                assert await meter.cost_of_advance(engine, until_shortly_before) == nothing

                await engine.advance(began + number * HOUR - engine.now())
                assert stamps[-1] == number

    assert stamps == list(hours)


@pytest.mark.weakness(6)
@async_test
async def test_a_deadline_and_a_retry_come_at_their_own_time_beside_a_long_sleep():
    call = Callback("called", errors=[ConnectionError()])

    @definition
    async def Mixed(self):
        async def deadline():
            try:
                await self.wait("answer", "answered", timeout=60)
            except TimeoutError:
                await self.run("remind", Callback())

        await asyncio.gather(self.sleep("long", FAR), deadline(), self.run("call", call, returns=str))

    async with started(Mixed) as (engine, handle):
        await engine.advance(0.25)
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "succeeded"]
        await engine.advance(59.75)
        assert states(await step_of(handle, "remind", RunStep)) == ["succeeded"]
        assert (await step_of(handle, "long", SleepStep)).state == "waiting"


@pytest.mark.weakness(7)
@pytest.mark.normal_only("always-replay enters a callback again for each nested step")
@pytest.mark.parametrize("hibernate_after_s", [0, 10])
@async_test
async def test_the_code_of_a_callback_runs_once_whatever_its_nested_steps_do(hibernate_after_s):
    lines: list[Any] = []

    @definition
    async def Nesting(self):
        async def outer():
            lines.append("begin")
            for number in range(3):
                await self.run(f"inner-{number}", Callback(errors=[ConnectionError()]))
                lines.append(number)
            await self.sleep("night", HOUR)
            lines.append("slept")
            lines.append(await self.wait("answer", "answered", str))
            return "end"

        return await self.run("outer", outer, returns=str)

    async with started(Nesting, settings=Settings(hibernate_after_s=hibernate_after_s)) as (engine, handle):
        await engine.advance(2 * HOUR)
        await handle.send("answered", "yes")
        assert await handle.result(timeout=5) == "end"

    assert lines == ["begin", 0, 1, 2, "slept", "yes"]


@pytest.mark.weakness(7)
@async_test
async def test_a_callback_entered_again_after_a_crash_calls_no_finished_child_again_and_keeps_its_attempt():
    children = [Callback(number) for number in range(3)]

    @definition
    async def Nesting(self):
        async def outer():
            found = [await self.run(f"inner-{number}", call, returns=int) for number, call in enumerate(children)]
            await self.sleep("night", HOUR)
            return found

        return await self.run("outer", outer, returns=list[int])

    async with started(Nesting) as (engine, handle):
        for _ in range(3):
            await engine.crash()
        await engine.advance(HOUR)

        assert await handle.result(timeout=5) == [0, 1, 2]
        assert [call.calls for call in children] == [1, 1, 1]
        assert list(attempt_states(await handle.steps()).values()) == [["succeeded"]] * 4
