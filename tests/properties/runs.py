"""One run of a random program from its start to its end, through crashes at chosen commits, and what it leaves."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests.properties.programs import Interpreter, Program
from tests.support import query
from workerflow import EngineClosedError, Settings, WorkflowHandle
from workerflow.core.failure import INTERRUPTED
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine
from workerflow.testing.crashing import CrashingStore, Point

LONGEST = timedelta(days=365 * 1000)

MODES: dict[str, dict[str, Any]] = {
    "live": {"always_replay": False, "settings": Settings(hibernate_after_s=10**9, synchronous="NORMAL")},
    "replaying": {"always_replay": True, "settings": Settings(hibernate_after_s=10**9, synchronous="NORMAL")},
    "hibernating": {"always_replay": False, "settings": Settings(hibernate_after_s=0, synchronous="NORMAL")},
}

STEPS = """
select step_id, kind, parent_step_id, state, wake_at, event_name, timeout_at, created_at, resolved_at, abandoned_at
from steps order by ordinal
"""
ATTEMPTS = """
select step_id, number, started_at, state, ended_at, result_type, result_json, error_name, error_message,
    next_attempt_at
from attempts order by step_id, number
"""
OUTCOMES = """
select step_id, outcome_sequence from steps where kind <> 'run' and outcome_sequence is not null
union all select step_id, outcome_sequence from attempts where outcome_sequence is not null order by 2
"""
INSTANCE = "select status, held_reason, alarm_at, result_json, failure_name, failure_message, owner from instances"
LIFECYCLE = "select type, recorded_at from lifecycle_events order by number"
EVENTS = "select name, payload, received_at, claimed_by, claimed_at from inbound_events order by number"
FAILURES = "select count(*) from attempts where step_id = ? and state = 'failed' and error_message <> ?"


class Record(NamedTuple):
    """Everything that a run has left in the database."""

    instance: list[Any]
    steps: list[Any]
    attempts: list[Any]
    outcomes: list[Any]
    lifecycle: list[Any]
    events: list[Any]

    @classmethod
    def read(cls, engine: SimulatedEngine) -> Record:
        return cls(*(query(engine, rows) for rows in (INSTANCE, STEPS, ATTEMPTS, OUTCOMES, LIFECYCLE, EVENTS)))

    def without_interruptions(self) -> Record:
        """The same, as if no attempt had been cut off by a crash: but the next one began when that was noticed."""
        places: Counter[str] = Counter()
        attempts = []
        for step_id, _, _, *rest in self.attempts:
            if INTERRUPTED.message not in rest:
                places[step_id] += 1
                attempts.append((step_id, places[step_id], *map(_without_counts, rest)))
        return self._replace(attempts=attempts, instance=[tuple(map(_without_counts, *self.instance))])


def _without_counts(value: Any) -> Any:
    return re.sub(r"after \d+ attempts?", "after some attempts", value) if isinstance(value, str) else value


class MortalEngine(SimulatedEngine):
    """A simulated engine that dies at chosen commits."""

    def __init__(self, workflow: Any, points: Sequence[Point], **options: Any) -> None:
        super().__init__([workflow], **options)
        self._points = list(points)

    @property
    def commits(self) -> int:
        store = self._require_store()
        assert isinstance(store, CrashingStore)
        return store.commits

    async def survive(self, action: Callable[[], Awaitable[object]], at_death: Callable[[], object]) -> None:
        """Do it; again and again if the process dies on the way, as a careful caller would."""
        is_done = False
        while not is_done:
            try:
                await action()
                is_done = True
            except EngineClosedError:
                is_alive = False
                while not is_alive:
                    at_death()
                    try:
                        await self.crash()
                        is_alive = True
                    except EngineClosedError:
                        is_alive = False

    def _make_store(self) -> SqliteStore:
        store = CrashingStore(self._path, synchronous=self._settings.synchronous)
        store.points = self._points
        return store


class Run:
    """A program on an engine of its own."""

    def __init__(self, program: Program, mode: str, points: Sequence[Point] = ()) -> None:
        self.interpreter = Interpreter(
            program, lambda path: query(self.engine, FAILURES, path, INTERRUPTED.message)[0][0]
        )
        self._workflow = self.interpreter.definition()
        self._program = program
        self.engine = MortalEngine(self._workflow, points, **MODES[mode])
        self.record: Record
        self.commits = 0

    def play(self) -> Run:
        asyncio.run(self._play())
        return self

    async def _play(self) -> None:
        async with self.engine as engine:
            handle, began = engine.get(self._workflow, "instance-1"), engine.now()
            events = self._program.events()
            for at, name in events:
                if at == timedelta(0):
                    await self._send(handle, at, name)
            await self._survive(handle.create)
            for at, name in events:
                if at > timedelta(0):
                    await self._advance_to(began + at)
                    await self._send(handle, at, name)
            await self._advance_to(began + LONGEST)
            self.record = Record.read(engine)
            self.commits = engine.commits

    async def _send(self, handle: WorkflowHandle[Any], at: timedelta, name: str) -> None:
        await self._survive(lambda: handle.send(name, f"{name} at {at}", id=f"{name} at {at}"))

    async def _advance_to(self, moment: datetime) -> None:
        await self._survive(lambda: self.engine.advance(max(moment - self.engine.now(), timedelta(0))))

    async def _survive(self, action: Callable[[], Awaitable[object]]) -> None:
        await self.engine.survive(action, self._died)

    def _died(self) -> None:
        """What is durable now must not be done again, nor change its place."""
        outcomes = query(self.engine, OUTCOMES)
        self.interpreter.recorded.update(step_id for step_id, _ in outcomes)
