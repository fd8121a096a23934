"""One instance's life under a list of commands, and the laws that every committed state of it must keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from tests.properties.watching import Watch, WatchedEngine
from workerflow import (
    EngineClosedError,
    NonRetryableStepError,
    Receipt,
    RetryPolicy,
    WaitTimeoutError,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowStateError,
    current_attempt,
)
from workerflow.core.load import InstanceRecord
from workerflow.core.model import TERMINAL
from workerflow.testing.crashing import Point

EVENTS = ["paid", "paid", "sent"]
SECONDS = [0, 1, 2, 5]


class Operation(NamedTuple):
    """One line of a strand: a step, or a callback with steps of its own in ``inside``."""

    kind: str
    number: int = 0
    name: str = "paid"
    inside: tuple[Any, ...] = ()


KINDS = st.sampled_from(["run", "run", "flaky", "sleep", "wait", "wait", "deadline"])
SIMPLE = st.tuples(KINDS, st.integers(0, 2), st.sampled_from(EVENTS)).map(lambda drawn: Operation(*drawn))
NESTED = st.lists(SIMPLE, min_size=1, max_size=2).map(lambda inside: Operation("nested", inside=tuple(inside)))
STRANDS = st.lists(st.lists(SIMPLE | NESTED, min_size=2, max_size=4), min_size=1, max_size=3)


class Command(NamedTuple):
    """What happens to the instance. With ``is_left`` the next one does not wait for its answer."""

    verb: str
    argument: Any = None
    is_left: bool = False


def commands() -> st.SearchStrategy[list[Command]]:
    """Mostly created at once: until then little can happen. The verbs and time are more frequent than what ends it."""
    events = st.tuples(st.sampled_from(EVENTS), st.sampled_from([None, None, "id-1", "id-2"]))
    asked = st.one_of(
        st.tuples(st.sampled_from(["create", "pause", "pause", "resume", "resume"]), st.none(), st.booleans()),
        st.tuples(st.just("send"), events, st.booleans()),
    )
    turns = st.tuples(st.just("turns"), st.integers(1, 8))
    answer = st.tuples(st.just("answer"), st.sampled_from(["well", "badly", "for good"]))
    time = st.tuples(st.just("advance"), st.sampled_from([0, 0.25, 0.5, 1, 2, 7]))
    points = st.builds(Point, st.sampled_from(["before commit", "after commit"]), st.integers(1, 3))
    crash = st.just(("crash",)) | st.tuples(st.just("crash at"), points)
    rare = st.sampled_from([("turns", 1), ("turns", 2), ("turns", 3), ("turns", 4), ("cancel",)])
    drawn = st.one_of(asked, asked, turns, turns, answer, answer, time, crash, rare).map(lambda drawn: Command(*drawn))
    begun = st.sampled_from([[Command("create")], [Command("create", None, True)], [Command("create")], []])
    one = drawn.map(lambda command: [command])
    while_paused = st.lists(drawn, max_size=4).map(lambda inside: [Command("pause"), *inside, Command("resume")])
    rest = st.lists(st.one_of(one, one, one, one, one, one, while_paused), min_size=5, max_size=25)
    ending = st.sampled_from([[], [], [Command("cancel")]])
    return st.builds(lambda first, rest, last: [*first, *chain(*rest), *last], begun, rest, ending)


class Life:
    """An instance, the callbacks that it has in flight, and those who wait for an answer."""

    def __init__(self, strands: list[list[Operation]]) -> None:
        self.watch = Watch()
        self.engine = WatchedEngine(self._definition(strands), self.watch)
        self._handle: WorkflowHandle[None] = self.engine.get("Living", "instance-1")
        self._gates: list[asyncio.Future[str]] = []
        self._answers_at_once = False
        self._left: list[asyncio.Task[None]] = []
        self._alive: set[str] = set()
        self._created = 0

    async def live(self, commands: list[Command]) -> None:
        async with self.engine:
            self.watch.read = self._read
            for command in commands:
                await self._obey(command)
                if self.engine.has_died:
                    await self._settle(Command("crash"))
                self.watch.look()
                assert self.watch.broken == []
            await self._come_to_an_end()
            await self._stay_ended()
            assert self.watch.broken == []

    def _definition(self, strands: list[list[Operation]]) -> type[WorkflowDefinition[Any, Any]]:
        life = self

        class Living(WorkflowDefinition[None, None]):
            async def execute(self) -> None:
                await asyncio.gather(
                    *(life._strand(self, strand, f"{number}") for number, strand in enumerate(strands))
                )

        return Living

    # What the workflow does.

    async def _strand(self, flow: Any, operations: Any, path: str) -> None:
        for number, operation in enumerate(operations):
            await self._step(flow, operation, f"{path}.{number}")

    async def _step(self, flow: Any, operation: Operation, path: str) -> None:
        quick = RetryPolicy(max_attempts=1000, initial=0.5, factor=1)
        if operation.kind == "run":
            await flow.run(path, self._answered, retry=quick)
        elif operation.kind == "flaky":
            await flow.run(path, self._failing_at_first, operation.number, retry=quick)
        elif operation.kind == "sleep":
            await flow.sleep(path, operation.number)
        elif operation.kind == "wait":
            await flow.wait(path, operation.name)
        elif operation.kind == "deadline":
            try:
                await flow.wait(path, operation.name, timeout=operation.number)
            except WaitTimeoutError:
                await flow.run(f"{path}-remedy", self._failing_at_first, 0, retry=quick)
        else:
            await flow.run(path, self._nested, flow, operation.inside, path, retry=quick)

    async def _nested(self, flow: Any, inside: Any, path: str) -> None:
        with self.watch.callback(current_attempt()):
            await self._strand(flow, inside, path)

    async def _failing_at_first(self, times: int) -> None:
        with self.watch.callback(current_attempt()):
            if current_attempt().number <= times:
                raise ValueError("not yet")

    async def _answered(self) -> None:
        with self.watch.callback(current_attempt()):
            answer = "well" if self._answers_at_once else await self._gate()
            if answer == "badly":
                raise ValueError("no stock")
            if answer == "for good":
                raise NonRetryableStepError("never")

    async def _gate(self) -> str:
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        return await gate

    async def _come_to_an_end(self) -> None:
        """There is a way out of every state: create it, resume it, send what it waits for, and let time pass."""
        for _ in range(100):
            await self._settle(Command("advance", 60))
            await asyncio.gather(*self._left)
            record = self._read()
            if record is None or record.row.status == "pending":
                await self._obey(Command("create"))
            elif record.row.status in TERMINAL:
                return
            elif record.row.status == "paused" or record.row.held_reason is not None:
                await self._obey(Command("resume"))
            else:
                waiting = [step for step in record.steps if step.state == "waiting" and step.abandoned_at is None]
                for name in {step.event_name for step in waiting} - {None}:
                    await self._obey(Command("send", (name, None)))
        raise AssertionError(f"it never ends: {self._read()}")

    async def _stay_ended(self) -> None:
        """An end is for ever: nothing that is asked and no crash changes anything that is recorded."""
        ended, handle = self._read(), self._handle
        assert not await handle.create()
        assert await handle.send("paid", id="id-3") is Receipt.dropped
        await handle.pause()
        await handle.cancel()
        with pytest.raises(WorkflowStateError):
            await handle.resume()
        await self._settle(Command("crash"))
        await self._settle(Command("advance", 3600))
        assert self._read() == ended

    # What happens to it.

    async def _obey(self, command: Command) -> None:
        if command.verb == "turns":
            await self._turns(command.argument)
        elif command.verb == "answer":
            await self._turns(6)  # So that there is a callback to be answered.
            self._answer(command.argument, 1)
        elif command.verb == "crash at":
            self.engine.dies_at(command.argument)
        elif command.verb in ("advance", "crash"):
            await self._settle(command)
        else:
            task = asyncio.ensure_future(self._ask(command))
            self._left.append(task)
            if not command.is_left:
                await asyncio.wait({task})

    async def _settle(self, command: Command) -> None:
        """What lets everything happen that can: callbacks in flight end well, those to come too."""
        self._answers_at_once = True
        if command.verb == "crash":
            self._gates.clear()
            await self._survive(self.engine.crash)
        else:
            self._answer("well", len(self._gates))
            await self._survive(lambda: self.engine.advance(command.argument))
        self._answers_at_once = False
        self.watch.look()
        self.watch.is_settled(self.engine.now())

    async def _survive(self, action: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do it; when the process dies on the way, start again, and let what is under way settle."""
        try:
            await action()
        except EngineClosedError:
            await self._survive(self.engine.crash)
            await self._survive(self.engine.run_until_idle)

    def _answer(self, answer: str, count: int) -> None:
        gates = [gate for gate in self._gates if not gate.done()]
        for gate in gates[:count]:
            gate.set_result(answer)
        self._gates = gates[count:]

    async def _turns(self, count: int) -> None:
        for _ in range(count):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn

    async def _ask(self, command: Command) -> None:
        with suppress(EngineClosedError):  # The process died before it could answer: nobody knows whether it was done.
            await getattr(self, f"_{command.verb}")(command.argument)

    async def _create(self, _: None) -> None:
        self._created += await self._handle.create()
        assert self._created <= 1
        assert self.watch.log() != ["created"]

    async def _send(self, event: tuple[str, str | None]) -> None:
        name, event_id = event
        before = {found.number for found in self._known_events()}
        receipt = await self._handle.send(name, {"of": name}, id=event_id)
        known = self._known_events()
        mine = [found for found in known if found.number not in before or (event_id and found.event_id == event_id)]
        if receipt is Receipt.dropped:
            assert self._has_ended()
        elif receipt is Receipt.duplicate:
            assert [found.event_id for found in known].count(event_id) == 1
        else:
            assert any(found.name == name and (receipt is Receipt.queued or found.claimed_by) for found in mine)

    async def _pause(self, _: None) -> None:
        log = self.watch.log()
        await self._handle.pause()
        assert self.watch.log() != log or log[-1:] not in (["started"], ["resumed"])

    async def _resume(self, _: None) -> None:
        log = self.watch.log()
        was_held = self.watch.last is not None and self.watch.last.row.held_reason is not None
        refusal: WorkflowStateError | None = None
        try:
            await self._handle.resume()
        except WorkflowStateError as error:
            refusal = error
        if refusal is not None:
            assert f"expected status 'paused' but got '{refusal.status}'" in str(refusal)
            assert refusal.status != "paused"
            return
        assert self.watch.log() != log or was_held

    async def _cancel(self, _: None) -> None:
        await self._handle.cancel("enough")
        assert self._has_ended()

    def _has_ended(self) -> bool:
        record = self._read()
        return record is not None and record.row.status in TERMINAL

    def _read(self) -> InstanceRecord | None:
        return self.engine.record("Living", "instance-1")

    def _known_events(self) -> list[Any]:
        record = self._read()
        return [] if record is None else record.inbound
