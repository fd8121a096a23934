"""Scenario: one workflow with its input and its events, run to the end through given crashes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from workerflow.codec import UNSET
from workerflow.core.load import AttemptRow, InstanceRecord, StepRow
from workerflow.core.retry import duration_ms
from workerflow.definition import WorkflowDefinition
from workerflow.errors import DefinitionError
from workerflow.runtime import WorkflowRuntime
from workerflow.testing.crashing import CrashingEngine, Point

_logger = logging.getLogger("workerflow")

INSTANCE_ID = "crash-everywhere"


class Event(NamedTuple):
    """An event of a scenario: sent so long after ``create()``."""

    name: str
    payload: Any
    after_ms: int


def checked_event(given: Any) -> Event:
    """The event that a caller means by a name, or by a tuple of name, payload and time."""
    match given:
        case str(name) | (str(name),):
            return Event(name, UNSET, 0)
        case (str(name), payload):
            return Event(name, payload, 0)
        case (str(name), payload, after):
            return Event(name, payload, duration_ms(after, f"time of event {name!r}"))
    raise DefinitionError(f"event {given!r} must be a name, (name, payload) or (name, payload, time after create())")


class Run(NamedTuple):
    """What one run recorded, how often it entered each callback, and the crashes that it ended without."""

    facts: dict[str, Any]
    starts: Counter[str]
    missed: list[Point]


class Scenario:
    """What ``crash_everywhere`` repeats. Raises DefinitionError for events that cannot be sent."""

    def __init__(
        self,
        workflow: type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]],
        input: Any,
        events: Sequence[tuple[Any, ...] | str],
        seed: int,
        before_each: Callable[[], object],
    ) -> None:
        if isinstance(events, str):
            raise DefinitionError(f"events={events!r} must be a list of events")
        # Stable: events of the same time are sent in the order given.
        self._events = sorted(enumerate(map(checked_event, events)), key=lambda item: item[1].after_ms)
        self._workflow = workflow
        self._input = input
        self._seed = seed
        self._before_each = before_each

    def run(self, *points: Point) -> Run:
        """One run on a database of its own, on an event loop of its own."""
        self._before_each()
        with _quiet() if points else nullcontext():
            return asyncio.run(self._run(points))

    async def _run(self, points: Sequence[Point]) -> Run:
        async with CrashingEngine(self._workflow, self._seed, points) as engine:
            began = engine.now()
            while True:
                death = engine.death()
                life = asyncio.create_task(self._live(engine, began))
                ends: set[asyncio.Future[Any]] = {life, death}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not death.done():
                    return Run(describe(await life), engine.starts, list(engine.points))
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)

    async def _live(self, engine: CrashingEngine, began: datetime) -> InstanceRecord:
        """One life of the process: what the life before asked for is asked for again, as a careful caller would."""
        if engine.is_dead:
            await engine.crash()
        handle = engine.get(self._workflow, INSTANCE_ID)
        await handle.create(self._input)
        for index, event in self._events:
            await engine.pass_timers(began + timedelta(milliseconds=event.after_ms))
            await handle.send(event.name, event.payload, id=f"event-{index}")
        await engine.pass_timers(None)
        return engine.record(handle)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what this thread's engine logs from the log of a test: hundreds of times the same."""
    thread = threading.get_ident()

    def is_foreign(record: logging.LogRecord) -> bool:
        return record.thread != thread

    _logger.addFilter(is_foreign)
    try:
        yield
    finally:
        _logger.removeFilter(is_foreign)


def describe(record: InstanceRecord) -> dict[str, Any]:
    """What must be the same after every crash: everything recorded but times and the number of attempts."""
    row = record.row
    last = {attempt.step_id: attempt for attempt in record.attempts}
    facts: dict[str, Any] = {
        "status": row.status if row.held_reason is None else f"held: {row.held_reason}",
        "result": row.result_json,
        "failure": row.failure_message,
    }
    for step in record.steps:
        facts[f"step {step.step_id!r}"] = "abandoned" if step.abandoned_at else _outcome(step, last.get(step.step_id))
    for event in record.inbound:
        facts[f"event {event.event_id!r}"] = f"{event.name} used by {event.claimed_by}"
    return facts


def _outcome(step: StepRow, attempt: AttemptRow | None) -> str:
    if attempt is None:
        return step.state or "not started"
    return f"{attempt.state}: {attempt.result_json if attempt.error_message is None else attempt.error_message}"
