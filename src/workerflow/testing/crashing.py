"""CrashingEngine: a simulated engine that dies at chosen commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from workerflow.core.load import InstanceRecord
from workerflow.core.model import TIME_MAX_MS, to_datetime, to_milliseconds
from workerflow.core.request import Scope
from workerflow.definition import WorkflowDefinition
from workerflow.effects import set_done
from workerflow.handle import WorkflowHandle
from workerflow.runtime import WorkflowRuntime
from workerflow.store.base import Batch, DeposedError
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing.simulated import SimulatedEngine

Moment = Literal["before commit", "after commit"]

TIMERS_MAX = 10_000
"""A workflow that has not ended after so many timers is looked at as it is then."""


class SimulatedCrashError(DeposedError):
    """The process dies here: the engine writes nothing more and lets no effect happen."""


class Point(NamedTuple):
    """A commit, counted from the start or from the crash before, and on which side of it to crash."""

    moment: Moment
    number: int

    def __str__(self) -> str:
        return f"{self.moment} {self.number}"


class CrashingStore(SqliteStore):
    """Dies at the next of its *points*, one after another."""

    points: list[Point]
    commits = 0

    def commit(self, batch: Batch, *, busy_timeout_ms: int) -> None:
        self.commits += 1
        self._reach("before commit")
        super().commit(batch, busy_timeout_ms=busy_timeout_ms)
        self._reach("after commit")

    def _reach(self, moment: Moment) -> None:
        if self.points and self.points[0] == (moment, self.commits):
            self.commits = 0
            raise SimulatedCrashError(str(self.points.pop(0)))


class CrashingEngine(SimulatedEngine):
    """A SimulatedEngine whose process dies at each of *points*; ``starts`` counts entries of callbacks by step id."""

    def __init__(
        self,
        workflow: type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]],
        seed: int,
        points: Sequence[Point],
    ) -> None:
        super().__init__([workflow], seed)
        self.starts: Counter[str] = Counter()
        self.points = list(points)
        """Those that are still to come."""
        self.is_dead = False
        self._death: asyncio.Future[None] | None = None

    def death(self) -> asyncio.Future[None]:
        """A future that is done when the process dies after this call."""
        self._death = asyncio.get_running_loop().create_future()
        return self._death

    async def pass_timers(self, until: datetime | None) -> None:
        """Move the clock to *until*, timer by timer; None: for as long as there are timers."""
        last_ms = TIME_MAX_MS if until is None else to_milliseconds(until)
        for _ in range(TIMERS_MAX):
            await self.run_until_idle()
            at_ms = self._virtual.next_timer_ms()
            if at_ms is None or at_ms > last_ms:
                break
            await self.advance(to_datetime(at_ms) - self.now())
        if until is not None and until > self.now():
            await self.advance(until - self.now())

    def record(self, handle: WorkflowHandle[Any]) -> InstanceRecord:
        """All that is stored of an instance, which must exist."""
        store = self._require_store()
        row = store.find(handle.workflow, handle.id)
        record = None if row is None else store.load(row.key)
        assert record is not None
        return record

    def _make_store(self) -> SqliteStore:
        store = CrashingStore(self._path, synchronous=self._settings.synchronous)
        store.points = self.points
        return store

    def _attempt_begins(self, scope: Scope) -> None:
        self.starts[scope.step_id] += 1

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, SimulatedCrashError):
            super()._failed(error)
        elif self._death is not None:
            self.is_dead = True
            set_done(self._death)

    async def crash(self) -> None:
        """Start again on the same database."""
        self.is_dead = False
        await super().crash()
