"""The workflows of a simulated world, and the log that their callbacks write outside of the engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.properties.programs import ALWAYS, Interpreter, Program
from tests.simulation.clock import Clock
from workerflow import WorkflowCompletionEvent, WorkflowRuntime, current_attempt

STATE = """
select state from attempts join instances using (instance_key)
where instance_id = ? and step_id = ? and number = ?
"""
DELIVERED = """
select delivered_at from deliveries join instances using (instance_key) where instance_id = ?
"""
WORK_MS = [0, 0, 0, 1, 10, 300, 1500]


class Log:
    """What has happened, in order, as seen from outside; and what of it must not have."""

    def __init__(self, clock: Clock, chance: random.Random, rows: Callable[..., list[Any]]) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.broken: list[str] = []
        self.lives = 0
        """How many processes have ended."""
        self.entered: Counter[tuple[str, str, int]] = Counter()
        self.raised: Counter[tuple[str, str]] = Counter()
        self.delivered: dict[str, list[str]] = {}
        self.rows = rows
        self._clock = clock
        self._chance = chance
        self._entries: Counter[tuple[str, str, int, int]] = Counter()

    def add(self, kind: str, *what: str) -> None:
        self.lines.append((self._clock.passed_ms, self._clock.wall_ms(), kind, *what))

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    def enter(self, *, is_parent: bool, may_repeat: bool) -> tuple[str, str, int]:
        """A callback begins: its attempt must be durable, and have no outcome yet."""
        attempt = current_attempt()
        key = (attempt.instance_id, attempt.step_id, attempt.number)
        self.add("enter", attempt.instance_id, attempt.step_id, str(attempt.number))
        state = [row[0] for row in self.rows(STATE, *key)]
        self.check(state == ["started"], f"callback {key} is entered, and its attempt is {state}")
        self.entered[key] += 1
        self._entries[*key, self.lives] += 1
        times = self.entered[key] if not is_parent else 1 if may_repeat else self._entries[*key, self.lives]
        self.check(times == 1, f"callback {key} is entered {times} times")
        return key

    async def work(self) -> None:
        """A callback takes its time."""
        await self._clock.wait(self._chance.choice(WORK_MS))

    async def complete(self, event: WorkflowCompletionEvent) -> None:
        """A completion is delivered; it may fail, and then comes again."""
        self.add("completion", event.instance_id, event.id, event.status)
        self.check(self.rows(DELIVERED, event.instance_id) == [(None,)], f"completion {event.id} is delivered again")
        self.delivered.setdefault(event.instance_id, []).append(f"{event.id} {event.status}")
        await self.work()
        if self._chance.random() < 0.2:
            raise OSError("nobody hears")


class Simulated(Interpreter):
    """A program whose callbacks take virtual time and write to the log."""

    def __init__(self, number: int, program: Program, log: Log, *, may_repeat: bool) -> None:
        # A try that was cut off counts as one that failed: a callback that is to fail twice then fails less often.
        super().__init__(program, lambda path: current_attempt().number - 1)
        self._log = log
        self._parents = {path for path, node in program.root.walk() if node.kind == "nested"}
        self._may_repeat = may_repeat
        self.registered = self._runtime(f"program-{number}", has_completion=number % 2 == 0)

    def _runtime(self, title: str, *, has_completion: bool) -> Any:
        log = self._log
        made: Any = self.definition()
        made.name = title
        if not has_completion:
            return made

        class Delivering(WorkflowRuntime[Any, Any]):
            definition = made
            name = title

            async def completion(self, event: WorkflowCompletionEvent) -> None:
                await log.complete(event)

        return Delivering

    def _enter(self) -> str:
        path = current_attempt().step_id
        return self._log.enter(is_parent=path in self._parents, may_repeat=self._may_repeat)[1]

    async def _effect(self) -> str:
        path = await super()._effect()
        await self._log.work()
        return path

    async def _no_result(self) -> None:
        await super()._no_result()
        await self._log.work()

    async def _failing(self, times: int) -> str:
        try:
            path = await super()._failing(times)
        except ValueError:
            await self._raised()
            raise
        await self._log.work()
        return path

    async def _refusing(self) -> str:
        try:
            return await super()._refusing()
        finally:
            await self._raised()

    async def _raised(self) -> None:
        await self._log.work()
        attempt = current_attempt()
        self._log.raised[attempt.instance_id, attempt.step_id] += 1

    async def _seen(self, flow: Any, path: str, found: Any) -> Any:
        async def echo() -> Any:
            self._enter()
            await self._log.work()
            return found

        recorded = await flow.run(f"{path}-seen", echo, retry=ALWAYS)
        if recorded != found:
            self.broken.append(f"{path} has seen {recorded}, and in a replay {found}")
        return found
