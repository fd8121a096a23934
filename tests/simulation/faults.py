"""What goes wrong in a simulated world: its database, and the processes that use it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.clock import Clock, ProcessEffects
from tests.simulation.plan import AT_COMMIT, FOR_A_WHILE, Fault
from workerflow import DatabaseUnavailableError, Engine, Settings
from workerflow.store.base import Batch, Mail, StoreBusyError
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing.crashing import SimulatedCrashError

SLOW_COMMIT_MS = 30


class Trouble:
    """The faults that are under way, and how often each kind was met."""

    def __init__(self, clock: Clock, chance: random.Random, reached: Counter[str]) -> None:
        self._clock = clock
        self._chance = chance
        self._reached = reached
        self._until_ms = dict.fromkeys(FOR_A_WHILE, 0)
        self._points: list[tuple[int, str]] = []
        self._commits = 0

    def begin(self, fault: Fault) -> None:
        if fault.kind in AT_COMMIT:
            self._points.append((self._commits + fault.number, fault.kind))
        else:
            self._until_ms[fault.kind] = self._clock.passed_ms + fault.number

    def heal(self) -> None:
        self._points.clear()
        self._until_ms = dict.fromkeys(FOR_A_WHILE, 0)

    def check(self, what: str) -> None:
        """Raise what is wrong with the database at this moment."""
        if self._is("unreachable", what):
            raise DatabaseUnavailableError("the database is unreachable")

    def check_write(self, what: str) -> None:
        self.check(what)
        if self._is("busy", what):
            raise StoreBusyError("somebody else writes")

    def commit(self, write: Callable[[], None]) -> None:
        self.check_write("commit")
        if self._is("slow", "commit"):
            self._clock.passed_ms += self._chance.randint(1, SLOW_COMMIT_MS)
        self._commits += 1
        kind = next((kind for number, kind in self._points if number <= self._commits), None)
        if kind is None:
            write()
            return
        self._points = [point for point in self._points if point[0] > self._commits]
        self._reached[kind] += 1
        if kind in ("crash after commit", "unknown, written"):
            write()
        raise SimulatedCrashError(kind) if kind.startswith("crash") else DatabaseUnavailableError(kind)

    def _is(self, kind: str, what: str) -> bool:
        is_now = self._clock.passed_ms < self._until_ms[kind]
        self._reached[f"{kind}: {what}"] += is_now
        return is_now


class FaultyStore(SqliteStore):
    """The database as one process reaches it."""

    def __init__(self, path: Path, trouble: Trouble, *, synchronous: str) -> None:
        super().__init__(path, synchronous=synchronous)
        self._trouble = trouble

    def open(self, *, execute: bool, now_ms: int) -> None:
        self._trouble.check_write("open")
        super().open(execute=execute, now_ms=now_ms)

    def commit(self, batch: Batch, *, busy_timeout_ms: int) -> None:
        self._trouble.commit(lambda: super(FaultyStore, self).commit(batch, busy_timeout_ms=busy_timeout_ms))

    def recover(self, incarnation: int) -> int:
        self._trouble.check("recover")
        return super().recover(incarnation)

    def send(self, workflow: str, instance_id: str, new_key: int, nonce: str, mail: Mail, busy_timeout_ms: int) -> str:
        self._trouble.check_write("send")
        return super().send(workflow, instance_id, new_key, nonce, mail, busy_timeout_ms)

    def _read(self, read: Callable[[Any], Any]) -> Any:
        self._trouble.check("read")
        return super()._read(read)


class Process(Engine):
    """An engine in a simulated process. ``has_ended`` is set when it dies by itself."""

    def __init__(
        self, path: Path, workflows: list[Any], trouble: Trouble, effects: ProcessEffects, **options: Any
    ) -> None:
        super().__init__(path, workflows, **options)
        self._effects = effects
        self._trouble = trouble
        self.has_ended = asyncio.Event()
        self.failure: BaseException | None = None

    def _make_store(self) -> SqliteStore:
        return FaultyStore(self._path, self._trouble, synchronous=self._settings.synchronous)

    @property
    def is_blameless(self) -> bool:
        """Whether it has ended only because it was made to."""
        return isinstance(self.failure, SimulatedCrashError | None)

    def _failed(self, error: BaseException) -> None:
        super()._failed(error)
        self.failure = error
        self.has_ended.set()

    async def stop(self) -> None:
        """Close gracefully, unless it dies before that is done."""
        closing = asyncio.create_task(self._close())
        ending = asyncio.create_task(self.has_ended.wait())
        await asyncio.wait([closing, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not closing.cancel():
            closing.result()

    async def die(self) -> None:
        """End as by a SIGKILL."""
        self.has_ended.set()
        assert isinstance(self._effects, ProcessEffects)
        self._effects.die()
        await self._abort()

    def hint(self) -> None:
        """Somebody says that there is mail."""
        if self._worker is not None:
            self._worker.wake_ups.poll()


def settings_of_sender() -> Settings:
    return Settings(synchronous="NORMAL", busy_timeout_s=0)
