"""What an engine costs, counted and never timed: batches, rows, SQL statements, and callbacks of the loop."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import apsw
from tests.support import query

from workerflow import Engine
from workerflow.testing import SimulatedEngine


class Costs(NamedTuple):
    """How much of each there was."""

    batches: int
    rows: int
    statements: int
    turns: int

    def since(self, before: "Costs") -> "Costs":
        """What was added."""
        return Costs(*(now - then for now, then in zip(self, before, strict=True)))


class Meter:
    """Counts what every connection does that is opened from now on, and what the loop is asked to call."""

    def __init__(self) -> None:
        self._connections: list[apsw.Connection] = []
        self._statements = 0
        self._turns = 0
        self._is_reading = False

    def reading(self, engine: Engine) -> Costs:
        """All costs up to now, but for those of the reading."""
        self._is_reading = True
        batches: int = query(engine, "select max(batch_number) from workers")[0][0]
        self._is_reading = False
        rows = sum(connection.total_changes() for connection in self._connections)
        return Costs(batches, rows, self._statements, self._turns)

    async def cost_of_advance(self, engine: SimulatedEngine, duration: timedelta | float) -> Costs:
        """What it costs that so much time passes."""
        before = self.reading(engine)
        await engine.advance(duration)
        return self.reading(engine).since(before)

    def watch_connection(self, connection: apsw.Connection) -> None:
        """Count the rows that a connection writes, and its statements but for those of triggers."""
        if self._is_reading:
            return
        self._connections.append(connection)
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._count_statement)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count what a loop is asked to call, now or later."""
        for name in ("call_soon", "call_at"):
            setattr(loop, name, self._counted(getattr(loop, name)))

    def _count_statement(self, event: dict[str, Any]) -> None:
        self._statements += not event["trigger"]

    def _counted(self, schedule: Any) -> Any:
        def schedule_and_count(*arguments: Any, **options: Any) -> Any:
            self._turns += 1
            return schedule(*arguments, **options)

        return schedule_and_count


@contextmanager
def metered() -> Iterator[Meter]:
    """A meter for the running loop and for every engine that is opened within."""
    meter = Meter()
    meter.watch_loop(asyncio.get_running_loop())
    apsw.connection_hooks.append(meter.watch_connection)
    try:
        yield meter
    finally:
        apsw.connection_hooks.remove(meter.watch_connection)
