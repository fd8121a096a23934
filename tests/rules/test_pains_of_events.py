"""Events at every moment, in every order: one order decides, nothing is lost, nothing is used twice, senders know."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, started

from workerflow import (
    Engine,
    Receipt,
    Settings,
    WaitTimeoutError,
    WorkflowCancelledError,
    WorkflowHandle,
    WorkflowStateError,
)
from workerflow.testing import SimulatedEngine

# Every interleaving of what can happen to an instance, against a model of what must come of it.

TIMEOUT_S = 10
ADVANCE_S = 5
WAITS = 2


@definition
async def Listener(self: Any) -> list[Any]:
    heard: list[Any] = []
    for number in range(WAITS):
        try:
            heard.append(await self.wait(f"wait-{number}", "message", timeout=TIMEOUT_S))
        except WaitTimeoutError:
            heard.append("nothing")
    return heard


class Model:
    """What must come of a sequence of actions, in a few lines without a database.

    C create, S send, D send with an id that repeats, M send from another engine, P pause, R resume, K cancel,
    T let five seconds pass, X crash.
    """

    def __init__(self) -> None:
        self.status = "pending"
        self.now = 0
        self.sent = 0
        self.queue: list[tuple[int, int]] = []
        self.heard: list[Any] = []
        self.deadline: int | None = None
        self.ids: set[str] = set()
        self.answers: list[str] = []
        self.accepted = 0

    def act(self, action: str) -> None:
        answer = ""
        if action == "C":
            answer = str(self.status == "pending")
            self.status = "running" if self.status == "pending" else self.status
        elif action in "SDM":
            answer = self._send(action)
        elif action == "P":
            self.status = "paused" if self.status == "running" else self.status
        elif action == "R":
            answer = "resumed" if self.status == "paused" else "refused"
            self.status = "running" if self.status == "paused" else self.status
        elif action == "K":
            self.status = self.status if self.status == "completed" else "cancelled"
        elif action == "T":
            self.now += ADVANCE_S
        self.answers.append(answer)
        self._drive()

    def _send(self, action: str) -> str:
        self.sent += 1
        if action == "D" and "same" in self.ids:
            return "duplicate"
        if self.status in ("completed", "cancelled"):
            return "dropped"
        if action == "D":
            self.ids.add("same")
        self.accepted += 1
        is_used = self.status == "running" and action != "M"
        self.queue.append((self.sent, self.now))
        return "used" if is_used else "queued"

    def _drive(self) -> None:
        while self.status == "running":
            if len(self.heard) == WAITS:
                self.status = "completed"
                return
            if self.deadline is None:
                self.deadline = self.now + TIMEOUT_S
            event = next((event for event in self.queue if event[1] < self.deadline), None)
            if event is not None:
                self.queue.remove(event)
                self.heard.append(event[0])
            elif self.now >= self.deadline:
                self.heard.append("nothing")
            else:
                return
            self.deadline = None


class Actor:
    """One instance to which the actions are done in the engine."""

    def __init__(self, engine: SimulatedEngine, client: Engine, actions: str) -> None:
        self.actions = actions
        self.handle = engine.get(Listener, actions)
        self.beside = client.get(Listener, actions)
        self.model = Model()
        self.answers: list[str] = []
        self._sent = 0

    async def act(self, action: str) -> None:
        self.model.act(action)
        self.answers.append(await self._act(action))

    async def _act(self, action: str) -> str:
        if action in "SDM":
            self._sent += 1
        if action == "C":
            return str(await self.handle.create())
        if action == "S":
            return await self.handle.send("message", self._sent)
        if action == "D":
            return await self.handle.send("message", self._sent, id="same")
        if action == "M":
            return await self.beside.send("message", self._sent)
        if action == "P":
            await self.handle.pause()
        if action == "K":
            await self.handle.cancel()
        if action == "R":
            try:
                await self.handle.resume()
            except WorkflowStateError:
                return "refused"
            return "resumed"
        return ""

    async def check(self) -> None:
        """The instance is as the model says."""
        assert self.answers == self.model.answers, self.actions
        assert await self.handle.status() == self.model.status, self.actions
        info = await self.handle.info()
        assert len(info.inbound_events) == self.model.accepted, self.actions
        unused = [event.payload for event in info.inbound_events if event.claimed_by is None]
        assert unused == [number for number, _ in self.model.queue], self.actions
        if self.model.status in ("completed", "cancelled"):
            assert info.alarm_at is None, self.actions
            ends = [kind for kind in await lifecycle(self.handle) if kind in ("completed", "failed", "cancelled")]
            assert ends == [self.model.status], self.actions
        if self.model.status == "completed":
            assert await self.handle.result(timeout=5) == self.model.heard, self.actions


def beside(engine: SimulatedEngine, *workflows: Any) -> Engine:
    """An engine on the same file that executes nothing, as a web process has it, by the same clock."""
    client = Engine(engine.url, workflows, execute=False)
    client._effects = engine._effects
    return client


def _shared(actions: str) -> str:
    """The moves of clock and crashes, which all instances of an engine share."""
    return "".join(action if action in "TX" else "-" for action in actions)


async def play(sequences: Sequence[str], **options: Any) -> int:
    """Do each sequence to an instance of its own, those with the same moves of clock and crashes in one engine."""
    played = 0
    for pattern, group in itertools.groupby(sorted(sequences, key=_shared), _shared):
        async with SimulatedEngine([Listener], **options) as engine, beside(engine, Listener) as client:
            actors = [Actor(engine, client, actions) for actions in group]
            for index, shared in enumerate(pattern):
                await _step(engine, actors, index, shared)
            for actor in actors:
                await actor.check()
            # Nothing may be stuck: whatever has happened, these lead to the end.
            for action in ("C", "R", "T", "T", "T", "T"):
                if action == "T":
                    await engine.advance(ADVANCE_S)
                await asyncio.gather(*(actor.act(action) for actor in actors))
                await engine.run_until_idle()
            for actor in actors:
                assert actor.model.status in ("completed", "cancelled")
                await actor.check()
            played += len(actors)
    return played


async def _step(engine: SimulatedEngine, actors: list[Actor], index: int, shared: str) -> None:
    if shared == "T":
        await engine.advance(ADVANCE_S)
    if shared == "X":
        await engine.crash()
    # One after the other within an instance, all instances side by side.
    await asyncio.gather(*(actor.act(actor.actions[index]) for actor in actors))
    await engine.run_until_idle()


@pytest.mark.slow
@async_test
async def test_every_interleaving_of_four_happenings_ends_as_the_model_says() -> None:
    sequences = ["".join(actions) for actions in itertools.product("CSPRKTX", repeat=4)]
    assert await play(sequences) == 7**4


@async_test
async def test_every_interleaving_of_three_happenings_after_create_ends_as_the_model_says() -> None:
    sequences = ["C" + "".join(actions) for actions in itertools.product("SDMPRKTX", repeat=3)]
    assert await play(sequences) == 8**3


@pytest.mark.parametrize("seed", range(3))
@async_test
async def test_long_interleavings_end_as_the_model_says(seed: int) -> None:
    chosen = random.Random(seed)
    patterns = ["".join(chosen.choices("-TX", [6, 2, 1], k=14)) for _ in range(6)]
    sequences = {
        "".join(
            one if one in "TX" else chosen.choice("CSSSDMMPRRR" + "K" * (index > 10))
            for index, one in enumerate(pattern)
        )
        for pattern in patterns
        for _ in range(25)
    }
    assert await play(sorted(sequences)) == len(sequences)


# Every turn of the loop at which something may come.


async def turns(count: int) -> None:
    """Let the loop make so many turns."""
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


async def nothing() -> None:
    return None


@definition
async def StepThenWait(self: Any) -> Any:
    await self.run("before", nothing)
    payload = await self.wait("wait", "paid", timeout=60)
    await self.run("after", nothing)
    return payload


TURNS = 40


@pytest.mark.parametrize("by_mail", [False, True], ids=["directly", "by-mail"])
@async_test
async def test_an_event_at_any_moment_of_the_life_before_its_wait_is_used(by_mail: bool) -> None:
    async with SimulatedEngine([StepThenWait]) as engine, beside(engine, StepThenWait) as client:
        receipts = []
        for count in range(TURNS):
            handle = engine.get(StepThenWait, str(count))
            creation = asyncio.ensure_future(handle.create())
            await turns(count)
            sender = client.get(StepThenWait, str(count)) if by_mail else handle
            receipts.append(await sender.send("paid", count))
            await creation
            await engine.run_until_idle()
            assert await handle.result(timeout=5) == count
            (event,) = (await handle.info()).inbound_events
            assert event.claimed_by == "wait"
    assert set(receipts) <= {Receipt.used, Receipt.queued}


@definition
async def WaitThenEnd(self: Any) -> Any:
    return await self.wait("wait", "paid")


@async_test
async def test_an_event_at_any_moment_of_the_end_is_kept_or_dropped_and_the_sender_is_told_the_truth() -> None:
    receipts = []
    async with SimulatedEngine([WaitThenEnd]) as engine:
        for count in range(1, TURNS):
            handle = engine.get(WaitThenEnd, str(count))
            await handle.create()
            await engine.run_until_idle()
            first = asyncio.ensure_future(handle.send("paid", "first"))
            await turns(count)
            receipts.append(await handle.send("paid", "second"))
            assert await first == Receipt.used
            assert await handle.result(timeout=5) == "first"
            kept = [event.payload for event in (await handle.info()).inbound_events]
            assert kept == (["first"] if receipts[-1] == Receipt.dropped else ["first", "second"])
    assert set(receipts) <= {Receipt.queued, Receipt.dropped}


@definition
async def Loop(self: Any) -> str:
    for number in range(5):
        await self.run(f"step-{number}", nothing)
    return "done"


def unfinished_attempts(engine: Engine) -> int:
    return int(query(engine, "select count(*) from attempts where state = 'started'")[0][0])


@async_test
async def test_a_cancel_at_any_moment_leaves_one_terminal_status_and_no_attempt_started() -> None:
    outcomes = []
    async with SimulatedEngine([Loop]) as engine:
        for count in range(TURNS):
            handle = engine.get(Loop, str(count))
            creation = asyncio.ensure_future(handle.create())
            await turns(count)
            await handle.cancel("now")
            await creation
            await engine.run_until_idle()
            outcomes.append(await _outcome(handle))
            ends = [kind for kind in await lifecycle(handle) if kind in ("completed", "failed", "cancelled")]
            assert ends == [outcomes[-1]]
        assert unfinished_attempts(engine) == 0
    assert "cancelled" in outcomes


async def _outcome(handle: WorkflowHandle[Any]) -> str:
    try:
        assert await handle.result(timeout=5) == "done"
    except WorkflowCancelledError as error:
        return "cancelled" if error.reason == "now" else "cancelled for another reason"
    return "completed"


@pytest.mark.parametrize("verb", ["resume", "crash"])
@async_test
async def test_a_pause_at_any_moment_stops_everything_and_after_resume_every_step_has_run_once(verb: str) -> None:
    calls: list[str] = []

    async def call(name: str) -> None:
        calls.append(name)

    @definition
    async def Counted(self: Any) -> str:
        for number in range(5):
            await self.run(f"step-{number}", call, f"{self.input}-{number}")
        return "done"

    paused = 0
    async with SimulatedEngine([Counted]) as engine:
        for count in range(TURNS):
            handle = engine.get(Counted, str(count))
            creation = asyncio.ensure_future(handle.create(count))
            await turns(count)
            await handle.pause()
            await creation
            await engine.run_until_idle()
            if await handle.status() == "paused":
                paused += 1
                before = len(calls)
                await engine.advance(60)
                if verb == "crash":
                    await engine.crash()
                assert (len(calls), await handle.status()) == (before, "paused")
                await handle.resume()
            await engine.advance(60)
            assert await handle.status() in ("completed", "running")
            assert await handle.result(timeout=5) == "done"
    assert sorted(calls) == sorted(f"{count}-{number}" for count in range(TURNS) for number in range(5))
    assert paused > 0


# Senders at once.


@async_test
async def test_one_id_sent_by_many_at_once_is_used_once_and_every_sender_is_told() -> None:
    async with started(WaitThenEnd) as (engine, handle):
        async with (
            beside(engine, WaitThenEnd) as client,
            beside(engine, WaitThenEnd) as other,
        ):
            senders: list[WorkflowHandle[Any]] = [each.get(WaitThenEnd, handle.id) for each in (engine, client, other)]
            receipts = await asyncio.gather(
                *(sender.send("paid", number, id="event-1") for number, sender in enumerate(senders * 5))
            )
            await engine.run_until_idle()
        result = await handle.result(timeout=5)
        events = (await handle.info()).inbound_events
        assert [(event.id, event.payload) for event in events] == [("event-1", result)]
        # Mail may be refused as a duplicate later, by the owner, when the owner had its own first.
        assert Receipt.dropped not in receipts
        assert receipts.count(Receipt.used) <= 1
        assert receipts.count(Receipt.duplicate) >= 12


@async_test
async def test_creates_of_one_id_by_many_engines_at_once_start_it_once_with_one_input() -> None:
    calls: list[Any] = []

    async def call(value: int) -> int:
        calls.append(value)
        return value

    @definition
    async def Once(self: Any) -> Any:
        return await self.run("step", call, self.input)

    async with SimulatedEngine([Once]) as engine, beside(engine, Once) as client:
        for number in range(20):
            handles = [each.get(Once, str(number)) for each in (client, engine, client)]
            created = await asyncio.gather(*(handle.create(index) for index, handle in enumerate(handles)))
            await engine.run_until_idle()
            result = await handles[0].result(timeout=5)
            assert calls == [result]
            calls.clear()
            assert (await handles[0].info()).input == result
            assert created[result] is True
            assert await lifecycle(handles[0]) == ["created", "started", "completed"]


@async_test
async def test_a_hundred_events_at_once_are_all_heard_in_the_order_of_acceptance() -> None:
    @definition
    async def Collector(self: Any) -> list[int]:
        return [await self.wait(f"wait-{number}", "message", int) for number in range(100)]

    async with started(Collector) as (engine, handle):
        async with beside(engine, Collector) as client:
            senders = [handle, client.get(Collector, handle.id)]
            await asyncio.gather(*(senders[number % 2].send("message", number) for number in range(100)))
            await engine.run_until_idle()
        heard = await handle.result(timeout=5)
        assert sorted(heard) == list(range(100))
        events = (await handle.info()).inbound_events
        assert [event.payload for event in events] == heard
        assert [event.number for event in events] == list(range(1, 101))


@async_test
async def test_events_that_nobody_used_stay_visible_after_the_end() -> None:
    async with SimulatedEngine([WaitThenEnd]) as engine:
        handle = engine.get(WaitThenEnd, "instance-1")
        for number in range(10):
            await handle.send("paid", number)
        await handle.create()
        assert await handle.result(timeout=5) == 0
        await engine.crash()
        events = (await handle.info()).inbound_events
        assert [(event.payload, event.claimed_by) for event in events] == [
            (number, "wait" if number == 0 else None) for number in range(10)
        ]


@async_test
async def test_events_of_names_that_nobody_waits_for_neither_wake_nor_hurt_the_workflow() -> None:
    step = Callback("step")

    @definition
    async def Busy(self: Any) -> list[Any]:
        return [await self.run("step", step), await self.wait("wait", "paid")]

    async with started(Busy) as (engine, handle):
        for name in ("PAID", "paid ", "pai", "paid.", "wait", "step"):
            assert await handle.send(name, "wrong") == Receipt.queued
        await engine.crash()
        assert await handle.send("paid", "right") == Receipt.used
        assert await handle.result(timeout=5) == ["step", "right"]
        assert step.calls == 1
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == [None] * 6 + ["wait"]


@async_test
async def test_an_event_accepted_is_not_lost_when_the_process_ends_at_the_next_statement() -> None:
    async with SimulatedEngine([WaitThenEnd]) as engine:
        for number in range(10):
            handle = engine.get(WaitThenEnd, str(number))
            await handle.send("paid", number)
            await engine.crash()
            await handle.create()
            await engine.crash()
            assert await handle.result(timeout=5) == number


@async_test
async def test_thousands_of_queued_events_are_used_one_by_one_in_a_time_that_grows_with_their_number_only() -> None:
    @definition
    async def Drain(self: Any) -> int:
        total = 0
        for number in range(self.input):
            total += await self.wait(f"wait-{number}", "message", int)
        return total

    async def seconds_for(count: int) -> float:
        async with SimulatedEngine([Drain], settings=Settings(hibernate_after_s=1000)) as engine:
            handle = engine.get(Drain, "instance-1")
            await asyncio.gather(*(handle.send("message", 1) for _ in range(count)))
            # Not by the clock on the wall: others may use the machine.
            began = time.process_time()
            await handle.create(count)
            assert await handle.result(timeout=50) == count
            return time.process_time() - began

    few = await seconds_for(500)
    assert await seconds_for(5000) < 40 * max(few, 0.05)
