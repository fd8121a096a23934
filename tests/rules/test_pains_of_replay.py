"""Compositions that broke other engines: whatever is cut, replayed or changed, a workflow comes to the same end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.bodies import AWAKE
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import (
    Engine,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RunStep,
    Settings,
    WaitTimeoutError,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowHeldError,
)
from workerflow.testing import SimulatedEngine

# Random programs: what they come to must not depend on when they are cut.


LEAVES = ["run", "run", "thread", "flaky", "fails", "sleep", "wait", "wait-timeout"]
BRANCHES = ["gather", "group", "sequence", "race", "nested", "catch", "timeout", "collect"]


class Program:
    """A random workflow: its expression, and what the callbacks of it do. The same seed gives the same program."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self._count = 0
        self.flaky: dict[str, int] = {}
        self.events: list[str] = []
        self.expression = ["sequence", *(self._make(3) for _ in range(4))]

    def _make(self, depth: int) -> list[Any]:
        self._count += 1
        name = f"{self._count}"
        kind = self._chosen.choice(LEAVES if depth == 0 else LEAVES + BRANCHES * 2)
        if kind in BRANCHES:
            return [kind, name, *(self._make(depth - 1) for _ in range(self._chosen.randint(1, 3)))]
        if kind == "flaky":
            self.flaky[name] = self._chosen.randint(1, 2)
        if kind == "wait":
            self.events.append(name)
        return [kind, name, self._chosen.randint(0, 20)]


class Interpreter:
    """Runs an expression with the verbs of a definition. Counts what the callbacks were called."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.finished: Counter[str] = Counter()
        self.failures_left = dict(program.flaky)

    async def effect(self, name: str) -> str:
        self.finished[name] += 1
        return name

    def thread_effect(self, name: str) -> str:
        self.finished[name] += 1
        return name

    async def flaky_effect(self, name: str) -> str:
        if self.failures_left[name] > 0:
            self.failures_left[name] -= 1
            raise ValueError(f"{name} is not ready")
        return await self.effect(name)

    async def failing_effect(self, name: str) -> str:
        raise NonRetryableStepError(name, {"name": name})

    async def run(self, flow: Any, expression: list[Any]) -> Any:
        kind, *rest = expression
        if kind == "sequence" and isinstance(rest[0], list):
            return [await self.run(flow, part) for part in rest]
        name, parts = rest[0], rest[1:]
        if kind in LEAVES:
            return await getattr(self, f"_{kind.replace('-', '_')}")(flow, name, *parts)
        return await self._branch(kind, flow, name, parts)

    async def _run(self, flow: Any, name: str, _: int) -> Any:
        return await flow.run(name, self.effect, name)

    async def _thread(self, flow: Any, name: str, _: int) -> Any:
        return await flow.run(name, self.thread_effect, name)

    async def _flaky(self, flow: Any, name: str, _: int) -> Any:
        return await flow.run(name, self.flaky_effect, name, max_attempts=20)

    async def _fails(self, flow: Any, name: str, _: int) -> Any:
        try:
            return await flow.run(name, self.failing_effect, name)
        except NonRetryableStepError as error:
            return [error.message, error.data]

    async def _sleep(self, flow: Any, name: str, seconds: int) -> Any:
        await flow.sleep(name, seconds)
        return f"slept {name}"

    async def _wait(self, flow: Any, name: str, _: int) -> Any:
        return await flow.wait(name, f"event-{name}")

    async def _wait_timeout(self, flow: Any, name: str, seconds: int) -> Any:
        try:
            return await flow.wait(name, f"never-{name}", timeout=seconds)
        except WaitTimeoutError:
            return f"nothing for {name}"

    async def _branch(self, kind: str, flow: Any, name: str, parts: list[Any]) -> Any:
        if kind == "sequence":
            return [await self.run(flow, part) for part in parts]
        if kind == "gather":
            return list(await asyncio.gather(*(self.run(flow, part) for part in parts)))
        if kind == "collect":
            return list(await asyncio.gather(*(self.run(flow, part) for part in parts), return_exceptions=True))
        if kind == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.run(flow, part)) for part in parts]
            return [task.result() for task in tasks]
        if kind == "race":
            return await self._race(flow, name, parts)
        if kind == "catch":
            return await self._catch(flow, name, parts)
        if kind == "timeout":
            async with flow.timeout(name, 10_000):
                return [await self.run(flow, part) for part in parts]
        return await flow.run(name, self._nested, flow, name, parts, max_attempts=1000)

    async def _race(self, flow: Any, name: str, parts: list[Any]) -> Any:
        """Which of them wins depends on time; that the loser is gone, and that everything ends, does not."""
        tasks = [asyncio.ensure_future(self.run(flow, part)) for part in parts]
        tasks.append(asyncio.ensure_future(self.run(flow, ["sleep", f"{name}-limit", 5])))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(done) >= 1

    async def _catch(self, flow: Any, name: str, parts: list[Any]) -> Any:
        try:
            await flow.run(name, self.failing_effect, name)
        except NonRetryableStepError:
            return [await self.run(flow, part) for part in parts]

    async def _nested(self, flow: Any, name: str, parts: list[Any]) -> Any:
        return [await self.run(flow, part) for part in parts]


def interpreted(interpreter: Interpreter) -> type[WorkflowDefinition[Any, Any]]:
    @definition
    async def Random(self: Any) -> Any:
        return await interpreter.run(self, interpreter.program.expression)

    return Random


async def undisturbed(seed: int, **options: Any) -> tuple[Any, Counter[str]]:
    interpreter = Interpreter(Program(seed))
    workflow = interpreted(interpreter)
    async with SimulatedEngine([workflow], **options) as engine:
        handle = engine.get(workflow, "instance-1")
        for name in interpreter.program.events:
            await handle.send(f"event-{name}", f"payload {name}")
        await handle.create()
        await engine.advance(timedelta(hours=10))
        assert await handle.status() == "completed", (await handle.info()).held
        return await handle.result(timeout=5), interpreter.finished


async def disturbed(seed: int, disturbance: int) -> tuple[Any, Counter[str]]:
    chosen = random.Random(disturbance)
    interpreter = Interpreter(Program(seed))
    workflow = interpreted(interpreter)
    async with SimulatedEngine([workflow], seed=disturbance) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        events = interpreter.program.events[:]
        chosen.shuffle(events)
        for _ in range(60):
            await _disturb(engine, handle, chosen, events)
            assert not query(engine, ORPHANS)
        if await handle.status() == "paused":
            await handle.resume()
        for name in events:
            await handle.send(f"event-{name}", f"payload {name}")
        await engine.advance(timedelta(hours=10))
        info = await handle.info()
        assert (info.status, info.held, info.alarm_at) == ("completed", None, None)
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]
        return await handle.result(timeout=5), interpreter.finished


# Nobody would take them over: neither the next owner nor the alarm with which a suspect waits for its turn.
ORPHANS = """
select instance_id, step_id from attempts join instances using (instance_key)
where state = 'started' and status = 'running' and owner is null and alarm_at is null
"""


async def _disturb(engine: SimulatedEngine, handle: Any, chosen: random.Random, events: list[str]) -> None:
    what = chosen.choice(["turns", "turns", "event", "advance", "crash", "pause", "resume", "settle"])
    if what == "turns":
        for _ in range(chosen.randint(1, 6)):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn
    elif what == "event" and events:
        name = events.pop()
        await handle.send(f"event-{name}", f"payload {name}", id=name)
    elif what == "advance":
        await engine.advance(chosen.choice([0.1, 1, 7]))
    elif what == "crash":
        await engine.crash()
    elif what == "pause":
        await handle.pause()
    elif what == "resume" and await handle.status() == "paused":
        await handle.resume()
    elif what == "settle":
        await engine.run_until_idle()


def has_no_race(expression: list[Any]) -> bool:
    return expression[0] != "race" and all(has_no_race(part) for part in expression[1:] if isinstance(part, list))


SEEDS = range(40)


@pytest.mark.parametrize("block", range(4))
@async_test
async def test_a_random_program_comes_to_the_same_end_however_it_is_cut(block: int) -> None:
    for seed in SEEDS[block::4]:
        expected, _ = await undisturbed(seed)
        result, _ = await disturbed(seed, seed + 1000)
        assert result == expected, f"program {seed}"


@async_test
async def test_every_mode_agrees_with_the_normal_one_on_every_random_program() -> None:
    normal = {"always_replay": False, "settings": Settings(hibernate_after_s=10)}
    for seed in SEEDS:
        expected, calls = await undisturbed(seed, **normal)
        result, again = await undisturbed(seed)
        assert result == expected, f"program {seed}"
        if has_no_race(Program(seed).expression):
            # Whether the loser of a race has begun depends on time.
            assert again == calls, f"program {seed}"


@pytest.mark.parametrize("before", ["sleep", "wait", "queued", "nothing"])
@async_test
async def test_a_started_attempt_has_an_owner_in_the_same_batch(before: str) -> None:
    gate = Gate()

    @definition
    async def Woken(self: Any) -> None:
        await self.wait("first", "first")
        if before == "sleep":
            await self.sleep("sleep", 5)
        elif before == "wait":
            with contextlib.suppress(WaitTimeoutError):
                await self.wait("wait", "never", timeout=5)
        elif before == "queued":
            await self.wait("wait", "queued")
        await self.run("step", gate)

    async with started(Woken) as (engine, handle):
        await handle.send("queued")
        if before in ("sleep", "wait"):
            await handle.send("first")
            await engine.run_until_idle()
        await handle.pause()
        await handle.send("first")
        await engine.advance(10)
        await handle.resume()
        # Each turn may show another commit: none may strand the attempt if the process died right then.
        for _ in range(20):
            assert query(engine, ORPHANS) == []
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn
        assert await gate.begun() == 1


@pytest.mark.parametrize("waker", ["resume", "event", "mail", "timer", "retry", "create"])
@async_test
async def test_a_crash_right_after_what_woke_an_instance_is_taken_over(waker: str) -> None:
    gate = Gate("done")
    flaky = Callback("ready", errors=[] if waker != "retry" else [ValueError("not yet")])

    @definition
    async def Woken(self: Any) -> Any:
        await self.run("flaky", flaky)
        if waker in ("event", "mail"):
            await self.wait("wait", "go")
        elif waker in ("timer", "resume"):
            await self.sleep("sleep", 5)
        return await self.run("step", gate)

    async with SimulatedEngine([Woken]) as engine:
        handle = engine.get(Woken, "instance-1")
        await handle.create()
        if waker != "create":
            await engine.run_until_idle()
        if waker == "resume":
            await handle.pause()
            await engine.advance(10)
            await handle.resume()
        elif waker == "event":
            await handle.send("go")
        elif waker == "mail":
            async with Engine(engine.url, [Woken], execute=False) as client:
                await client.get(Woken, "instance-1").send("go")
        # The clock stops when the callback is in flight: it is not waited for here.
        moving = asyncio.ensure_future(engine.advance(5))
        await gate.begun()
        assert not query(engine, ORPHANS)
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        await engine.crash()
        gate.open()
        await engine.advance(60)
        assert await handle.result(timeout=5) == "done"
        assert gate.calls == 2


# Parallel steps.


@async_test
async def test_two_branches_of_two_steps_have_their_own_values_on_fifty_replays() -> None:
    gates = {name: Gate(name) for name in ("a1", "a2", "b1", "b2")}
    seen: list[Any] = []

    @definition
    async def Branches(self: Any) -> None:
        async def branch(name: str) -> list[str]:
            return [await self.run(f"{name}{number}", gates[f"{name}{number}"]) for number in (1, 2)]

        seen.append(await asyncio.gather(branch("a"), branch("b")))
        await self.wait("end", "end")

    async with SimulatedEngine([Branches], settings=AWAKE) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        for name in ("b1", "b2", "a1", "a2"):
            await gates[name].begun()
            gates[name].open()
        await engine.run_until_idle()
        for _ in range(50):
            await engine.crash()
        assert len(seen) > 50
        assert all(values == [["a1", "a2"], ["b1", "b2"]] for values in seen)
        assert [gate.calls for gate in gates.values()] == [1] * 4


@async_test
async def test_a_slow_branch_beside_a_chain_of_quick_steps_is_called_once() -> None:
    slow, quick = Gate("slow"), Callback("quick")

    @definition
    async def Branches(self: Any) -> Any:
        async def chain() -> list[Any]:
            return [await self.run(f"quick-{number}", quick) for number in range(10)]

        return await asyncio.gather(self.run("slow", slow), chain())

    async with SimulatedEngine([Branches]) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        await slow.begun()
        last = None
        while last is None:
            last = next((step for step in await handle.steps() if step.id == "quick-9"), None)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.001, turn.set_result, None)
            await turn
        slow.open()
        assert await handle.result(timeout=5) == ["slow", ["quick"] * 10]
        assert (slow.calls, quick.calls) == (1, 10)


@async_test
async def test_of_parallel_sleeps_each_ends_at_its_own_time_and_nothing_happens_in_between() -> None:
    times: list[float] = []

    @definition
    async def Sleepers(self: Any) -> None:
        async def short() -> None:
            await self.sleep("short", 0.5)
            await self.run("after", stamp)

        await asyncio.gather(self.sleep("long", 4), short())

    async with SimulatedEngine([Sleepers]) as engine:
        began = engine.now()

        async def stamp() -> None:
            times.append((engine.now() - began).total_seconds())

        handle = engine.get(Sleepers, "instance-1")
        await handle.create()
        await engine.advance(1)
        before = query(engine, "select batch_number from workers")
        await engine.advance(2.9)
        assert query(engine, "select batch_number from workers") == before
        assert (times, await handle.status()) == ([0.5], "running")
        await engine.advance(0.1)
        assert await handle.status() == "completed"


@pytest.mark.parametrize("loser", ["cancelled", "left"])
@async_test
async def test_the_first_of_three_wins_and_the_losers_are_as_the_author_said(loser: str) -> None:
    first, second, third = Gate("first"), Gate("second"), Gate("third")

    @definition
    async def Race(self: Any) -> Any:
        steps = [self.run(name, gate) for name, gate in (("one", first), ("two", second), ("three", third))]
        done, pending = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        if loser == "cancelled":
            for step in pending:
                step.cancel()
        await self.wait("end", "end")
        return [step.result() for step in steps if step in done]

    async with SimulatedEngine([Race]) as engine:
        handle = engine.get(Race, "instance-1")
        await handle.create()
        for gate in (first, second, third):
            await gate.begun()
        first.open()
        if loser == "left":
            second.open()
            third.open()
        await engine.run_until_idle()
        assert (second.cancellations, third.cancellations) == ((1, 1) if loser == "cancelled" else (0, 0))
        await engine.crash()
        await handle.send("end")
        assert await handle.result(timeout=5) == ["first"]
        assert [gate.calls for gate in (first, second, third)] == [1, 1, 1]


@async_test
async def test_an_event_wins_over_a_sleep_of_fourteen_days_at_once_and_no_alarm_is_left() -> None:
    @definition
    async def Race(self: Any) -> Any:
        event, sleep = self.wait("event", "paid"), self.sleep("sleep", timedelta(days=14))
        await asyncio.wait({event, sleep}, return_when=asyncio.FIRST_COMPLETED)
        return event.result() if event.done() else "too late"

    async with started(Race) as (engine, handle):
        assert await handle.send("paid", 5) in ("used", "queued")
        assert await handle.result(timeout=5) == 5
        assert (await handle.info()).alarm_at is None
        before = query(engine, "select batch_number from workers")
        await engine.advance(timedelta(days=15))
        assert query(engine, "select batch_number from workers") == before


@async_test
async def test_a_task_group_with_a_good_a_failing_and_a_slow_step_fails_and_nothing_runs_afterwards() -> None:
    good, slow = Callback("good"), Gate("slow")
    failing = Callback(always=NonRetryableStepError("declined"))
    later = Callback("later")

    @definition
    async def Group(self: Any) -> None:
        async def chain() -> None:
            await self.run("slow", slow)
            await self.run("later", later)

        async with asyncio.TaskGroup() as group:
            group.create_task(self.run("good", good))
            group.create_task(chain())
            await self.wait("go", "go")
            group.create_task(self.run("failing", failing))

    async with SimulatedEngine([Group]) as engine:
        handle = engine.get(Group, "instance-1")
        await handle.create()
        await slow.begun()
        await handle.send("go")
        with pytest.raises(WorkflowFailedError, match="ExceptionGroup"):
            await handle.result(timeout=5)
        slow.open()
        await engine.advance(60)
        assert (good.calls, slow.calls, failing.calls, later.calls) == (1, 1, 1, 0)
        assert slow.cancellations == 1
        assert states(await step_of(handle, "slow", RunStep)) == ["failed"]
        assert await lifecycle(handle) == ["created", "started", "failed"]


@async_test
async def test_a_hundred_races_in_one_run_have_the_same_winners_on_replay() -> None:
    winners: list[list[str]] = []

    async def call(name: str) -> str:
        return name

    @definition
    async def Races(self: Any) -> None:
        won: list[str] = []
        winners.append(won)
        for number in range(100):
            steps = {self.run(f"{name}-{number}", call, name): name for name in ("a", "b", "c")}
            done, pending = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            won.append("".join(steps[step] for step in done))
            for step in pending:
                step.cancel()
        await self.wait("end", "end")

    async with started(Races) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)
    *_, before, last = winners
    assert len(last) == 100
    assert before == last
    assert all(last[: len(earlier)] == earlier for earlier in winners)


@async_test
async def test_many_sleeps_at_once_are_all_over_and_none_is_lost() -> None:
    @definition
    async def Sleepers(self: Any) -> int:
        await asyncio.gather(*(self.sleep(f"sleep-{number}", number % 7 + 1) for number in range(300)))
        return 300

    async with started(Sleepers) as (engine, handle):
        for _ in range(6):
            await engine.advance(1)
            await engine.crash()
            assert await handle.status() == "running"
        await engine.advance(1)
        assert await handle.result(timeout=5) == 300


# Growing.


async def seconds_of_replay(count: int) -> float:
    async def call(number: int) -> int:
        return number

    @definition
    async def Sequence(self: Any) -> int:
        total = 0
        for number in range(self.input):
            total += await self.run(f"step-{number}", call, number)
        await self.wait("end", "end")
        return total

    async with started(Sequence, count, settings=Settings(synchronous="NORMAL")) as (engine, handle):
        # Not by the clock on the wall: others may use the machine.
        began = time.process_time()
        await engine.crash()
        await handle.send("end")
        assert await handle.result(timeout=50) == sum(range(count))
        return time.process_time() - began


@pytest.mark.slow
@pytest.mark.normal_only("always-replay replays after every step, which takes the square of their number")
@async_test
async def test_the_time_of_a_replay_grows_with_the_number_of_steps_and_not_with_its_square() -> None:
    few = await seconds_of_replay(500)
    assert await seconds_of_replay(5000) < 40 * max(few, 0.02)


# Code that was changed.


def versions(*codes: Callable[[Any], Any]) -> tuple[type[WorkflowDefinition[Any, Any]], Callable[[int], None]]:
    """A definition whose code can be exchanged as a deploy does, and what exchanges it."""
    current = [codes[0]]

    @definition
    async def Changing(self: Any) -> Any:
        return await current[0](self)

    def deploy(number: int) -> None:
        current[0] = codes[number]

    return Changing, deploy


async def list_of_texts() -> list[str]:
    return ["a"]


@async_test
async def test_a_result_that_the_new_code_cannot_read_holds_the_instance_and_the_old_code_goes_on() -> None:
    async def old(self: Any) -> Any:
        return [await self.run("step", list_of_texts, returns=list[str]), await self.wait("end", "end")]

    async def new(self: Any) -> Any:
        return [await self.run("step", list_of_texts, returns=dict[str, int]), await self.wait("end", "end")]

    workflow, deploy = versions(old, new)
    async with started(workflow) as (engine, handle):
        deploy(1)
        await engine.crash()
        await handle.send("end", "b")
        with pytest.raises(WorkflowHeldError, match=r"stored result of step 'step' no longer decodes.*object"):
            await handle.result(timeout=5)
        assert await handle.status() == "running"
        deploy(0)
        await engine.crash()
        await handle.resume()
        assert await handle.result(timeout=5) == [["a"], "b"]


@async_test
async def test_an_input_that_the_new_code_cannot_read_holds_that_instance_only() -> None:
    class Typed(WorkflowDefinition[dict[str, int], str]):
        async def execute(self) -> str:
            await self.wait("end", "end")
            return str(self.input)

    async with SimulatedEngine([Typed]) as engine:
        await engine.get(Typed, "old").create({"a": 1})
        await engine.run_until_idle()
        Typed._declared_types = (type(Typed._declared_types[0])(dict[str, list[int]]), Typed._declared_types[1])
        await engine.crash()
        await engine.get(Typed, "new").create({"a": [1]})
        for name in ("old", "new"):
            await engine.get(Typed, name).send("end")
        assert await engine.get(Typed, "new").result(timeout=5) == "{'a': [1]}"
        with pytest.raises(WorkflowHeldError, match=r"stored input no longer decodes.*\[\.\.\.\]"):
            await engine.get(Typed, "old").result(timeout=5)
        assert [event.claimed_by for event in (await engine.get(Typed, "old").info()).inbound_events] == [None]


@async_test
async def test_a_constructor_that_raises_fails_its_own_instances_with_its_error() -> None:
    class Broken(WorkflowDefinition[None, None]):
        def __init__(self) -> None:
            raise RuntimeError("no configuration")

        async def execute(self) -> None:
            return None

    async with started(Broken) as (_, handle):
        with pytest.raises(WorkflowFailedError, match="RuntimeError: no configuration"):
            await handle.result(timeout=5)


@async_test
async def test_more_and_fewer_rounds_of_a_loop_in_new_code_go_on_from_what_is_recorded() -> None:
    call = Callback("done")

    def rounds(count: int) -> Callable[[Any], Any]:
        async def code(self: Any) -> Any:
            results = [await self.run(f"round-{number}", call) for number in range(count)]
            await self.wait(f"end-{count}", f"end-{count}")
            return len(results)

        return code

    workflow, deploy = versions(rounds(3), rounds(5), rounds(2))
    async with started(workflow, settings=AWAKE) as (engine, handle):
        assert call.calls == 3
        deploy(1)
        await engine.crash()
        await engine.run_until_idle()
        assert call.calls == 5
        deploy(2)
        await engine.crash()
        await handle.send("end-2")
        assert await handle.result(timeout=5) == 2
        assert call.calls == 5


@async_test
async def test_a_limit_of_attempts_that_new_code_changes_stays_the_first_and_a_retry_goes_on() -> None:
    call = Callback(always=ValueError("not now"))

    def limited(count: int) -> Callable[[Any], Any]:
        async def code(self: Any) -> Any:
            await self.run("step", call, max_attempts=count)

        return code

    workflow, deploy = versions(limited(3), limited(1))
    async with started(workflow) as (engine, handle):
        deploy(1)
        await engine.crash()
        await engine.advance(60)
        with pytest.raises(WorkflowFailedError, match=MaxAttemptsExceededError.__name__):
            await handle.result(timeout=5)
        assert call.calls == 3


# Author's code that fails in ways of its own.


@async_test
async def test_endless_recursion_in_execute_fails_its_instance_and_the_engine_goes_on() -> None:
    @definition
    async def Deep(self: Any) -> Any:
        def down(number: int) -> int:
            return down(number + 1)

        return down(0)

    @definition
    async def DeepTasks(self: Any) -> Any:
        async def down(number: int) -> Any:
            return await down(number + 1)

        return await down(0)

    @definition
    async def Good(self: Any) -> Any:
        return await self.run("step", Callback("good"))

    async with SimulatedEngine([Deep, DeepTasks, Good]) as engine:
        for workflow in (Deep, DeepTasks, Good):
            await engine.get(workflow, "instance-1").create()
        for workflow in (Deep, DeepTasks):
            with pytest.raises(WorkflowFailedError, match="RecursionError"):
                await engine.get(workflow, "instance-1").result(timeout=20)
        assert await engine.get(Good, "instance-1").result(timeout=5) == "good"


@async_test
async def test_a_workflow_that_asks_for_thousands_of_steps_at_once_gets_them_all() -> None:
    async def call(number: int) -> int:
        return number

    @definition
    async def Wide(self: Any) -> int:
        return sum(await asyncio.gather(*(self.run(f"step-{number}", call, number) for number in range(3000))))

    async with started(Wide) as (engine, handle):
        assert await handle.result(timeout=30) == sum(range(3000))
        assert query(engine, "select count(*), min(state), max(state) from attempts") == [
            (3000, "succeeded", "succeeded")
        ]


@pytest.mark.normal_only("a body that is dropped runs its finally")
@async_test
async def test_finally_and_except_in_execute_run_once_and_only_when_something_has_happened() -> None:
    marks: list[str] = []

    @definition
    async def Careful(self: Any) -> str:
        try:
            await self.wait("wait", "paid", timeout=60)
        except BaseException as error:
            marks.append(type(error).__name__)
            raise
        finally:
            marks.append("finally")
        return "paid"

    async with started(Careful, settings=AWAKE) as (engine, handle):
        await engine.advance(30)
        assert marks == []
        await handle.send("paid")
        assert await handle.result(timeout=5) == "paid"
        assert marks == ["finally"]
