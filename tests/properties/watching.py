"""An engine whose every commit is looked at: the laws that each committed state of an instance must keep."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any

from workerflow.core.load import AttemptRow, InstanceRecord, StepRow
from workerflow.core.model import TERMINAL, to_milliseconds
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine
from workerflow.testing.crashing import CrashingStore, Point
from workerflow.worker.suspects import SUSPECT_FROM

# B8 and B10: what may follow what in the lifecycle log. Nothing follows an end.
RUNNING = {"paused", "completed", "failed", "cancelled"}
FOLLOWERS = {
    "created": {"started", "cancelled"},
    "started": RUNNING,
    "resumed": RUNNING,
    "paused": {"resumed", "cancelled"},
}
STATUS_AFTER = {"created": "pending", "started": "running", "resumed": "running"}


class Watch:
    """What is known of the instance from its last commit, and from its callbacks.

    A broken law is noted in ``broken``: raised there, the engine would take it for trouble of its own.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.read: Callable[[], InstanceRecord | None] = lambda: None
        self.last: InstanceRecord | None = None
        self._inside: set[str] = set()

    def log(self) -> list[str]:
        """The types of the lifecycle log."""
        return [] if self.last is None else [event.type for event in self.last.lifecycle]

    @contextmanager
    def callback(self, attempt: Any) -> Iterator[None]:
        """A callback is entered: its attempt is durably started, its step has no outcome, and it is alone."""
        with self._noting():
            self._check_entry(attempt)
        self._inside.add(attempt.step_id)
        try:
            yield
        finally:
            self._inside.discard(attempt.step_id)

    def look(self) -> None:
        """Check what is committed now, and what has changed since the last look."""
        record, before = self.read(), self.last
        with self._noting():
            assert record is not None or before is None
        if record is None:
            return
        self.last = record
        for check in (_check_log, _check_rest, _check_times, _check_claims):
            with self._noting():
                check(record)
        if before is not None:
            with self._noting():
                _check_change(before, record)

    def is_settled(self, now: datetime) -> None:
        """Nothing is under way: every timer that is due has fired, and no wait lacks an event that it can have."""
        if self.last is not None and self.last.row.status == "running" and self.last.row.held_reason is None:
            with self._noting():
                _check_settled(self.last, to_milliseconds(now))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except AssertionError:
            self.broken.append(traceback.format_exc())

    def _check_entry(self, attempt: Any) -> None:
        assert self.last is not None
        (step,) = [step for step in self.last.steps if step.step_id == attempt.step_id]
        rows = _attempts(self.last, step)
        assert (rows[-1].number, rows[-1].state) == (attempt.number, "started")
        assert all(row.state == "failed" and row.outcome_sequence is None for row in rows[:-1])
        assert attempt.step_id not in self._inside


def _check_settled(record: InstanceRecord, now_ms: int) -> None:
    assert record.row.alarm_at == min(_deadlines(record), default=None)
    assert record.row.alarm_at is None or record.row.alarm_at > now_ms
    for wait in record.steps:
        if wait.state == "waiting" and wait.event_name is not None and wait.abandoned_at is None:
            assert not any(
                event.name == wait.event_name
                and event.claimed_by is None
                and (wait.timeout_at is None or event.received_at < wait.timeout_at)
                for event in record.inbound
            )


def _check_log(record: InstanceRecord) -> None:
    log = [event.type for event in record.lifecycle]
    assert log[0] == "created"
    assert all(after in FOLLOWERS.get(before, set()) for before, after in pairwise(log))
    assert record.row.status in (STATUS_AFTER.get(log[-1], log[-1]), "initialized" if log == ["created"] else None)


def _check_rest(record: InstanceRecord) -> None:
    row = record.row
    in_flight = [attempt for attempt in record.attempts if attempt.state == "started"]
    if row.status == "running" and row.owner is None and row.recoveries >= SUSPECT_FROM:
        # Its process has died again and again: it waits for its turn, and its alarm keeps it from being forgotten.
        assert row.alarm_at is not None
    elif row.status == "running" and row.held_reason is None:
        # After a take-over, a callback has to ask again for the steps in it before their deadlines count.
        deadlines, own = _deadlines(record), _deadlines(record, is_nested=False)
        assert row.alarm_at in deadlines or (row.alarm_at is None and not own)
        assert row.alarm_at is None or row.alarm_at <= min(own, default=row.alarm_at)
        assert row.owner is not None or not in_flight
    else:
        assert row.alarm_at is None
    if row.status in TERMINAL:
        assert (in_flight, row.owner, row.held_reason) == ([], None, None)


def _deadlines(record: InstanceRecord, *, is_nested: bool = True) -> list[int]:
    """When something is to happen: sleeps, waits with a deadline, and retries; with or without nested ones."""
    found = []
    for step in record.steps:
        last = _attempts(record, step)[-1:]
        is_meant = is_nested or step.parent_step_id is None
        if is_meant and step.abandoned_at is None and step.outcome_sequence is None:
            found += [step.wake_at, step.timeout_at, *(attempt.next_attempt_at for attempt in last)]
    return [deadline for deadline in found if deadline is not None]


def _attempts(record: InstanceRecord, step: StepRow) -> list[AttemptRow]:
    return [attempt for attempt in record.attempts if attempt.step_id == step.step_id]


def _check_times(record: InstanceRecord) -> None:
    """Nothing happens before its time."""
    received = {event.claimed_by: event.received_at for event in record.inbound}
    for step in record.steps:
        if step.state == "elapsed":
            assert step.resolved_at >= step.wake_at  # type: ignore[operator]  # a sleep has both
        if step.timeout_at is not None and step.state == "timed_out":
            assert step.resolved_at >= step.timeout_at  # type: ignore[operator]  # as it is resolved
        if step.timeout_at is not None and step.state == "satisfied":
            # At the deadline is too late, but for an event that was there before the wait.
            assert received[step.step_id] < step.timeout_at or step.created_at <= step.timeout_at
        attempts = _attempts(record, step)
        for earlier, later in pairwise(attempts):
            assert earlier.ended_at is not None
            assert later.started_at >= max(earlier.ended_at, earlier.next_attempt_at or 0)


def _check_claims(record: InstanceRecord) -> None:
    """An event satisfies at most one wait, in order of acceptance for each name."""
    sequences = {step.step_id: step.outcome_sequence or 0 for step in record.steps}
    for name in {event.name for event in record.inbound}:
        events = [event for event in record.inbound if event.name == name]
        claimed = sorted(
            (event for event in events if event.claimed_by is not None),
            key=lambda event: sequences[event.claimed_by or ""],
        )
        assert [event.number for event in claimed] == sorted(event.number for event in claimed)
        assert len({event.claimed_by for event in claimed}) == len(claimed)
        assert all(event.claimed_by is not None for event in events if claimed and event.number < claimed[-1].number)
    ids = [event.event_id for event in record.inbound if event.event_id is not None]
    assert len(set(ids)) == len(ids)


def _check_change(before: InstanceRecord, after: InstanceRecord) -> None:
    """What is recorded stays recorded."""
    assert after.lifecycle[: len(before.lifecycle)] == before.lifecycle
    if before.row.status in TERMINAL:
        assert after == before
    steps = {step.step_id: step for step in after.steps}
    for step in before.steps:
        if step.outcome_sequence is not None:
            assert steps[step.step_id]._replace(abandoned_at=None) == step._replace(abandoned_at=None)
    attempts = {(attempt.step_id, attempt.number): attempt for attempt in after.attempts}
    for attempt in before.attempts:
        if attempt.state != "started":
            assert attempts[attempt.step_id, attempt.number] == attempt
    events = {event.number: event for event in after.inbound}
    for event in before.inbound:
        assert events[event.number]._replace(claimed_by=event.claimed_by, claimed_at=event.claimed_at) == event
        assert event.claimed_by in (None, events[event.number].claimed_by)
    _check_new_claims(before, after)
    known = _outcomes(before)
    fresh = [sequence for sequence in _outcomes(after) if sequence not in known]
    assert min(fresh, default=len(known) + 1) > max(known, default=0)


def _check_new_claims(before: InstanceRecord, after: InstanceRecord) -> None:
    """Of several waits on a name the one that was created first has the event; those in callbacks have to ask again."""
    waits = {step.step_id: step for step in after.steps if step.event_name is not None and step.parent_step_id is None}
    for event in after.inbound[len(before.inbound) :]:
        user = waits.get(event.claimed_by or "")
        assert user is None or not any(
            wait.event_name == event.name
            and wait.state == "waiting"
            and wait.abandoned_at is None
            and wait.ordinal < user.ordinal
            and (wait.timeout_at is None or event.received_at < wait.timeout_at)
            for wait in waits.values()
        )


def _outcomes(record: InstanceRecord) -> list[int]:
    found = [step.outcome_sequence for step in record.steps if step.kind != "run"]
    found += [attempt.outcome_sequence for attempt in record.attempts]
    numbers = [sequence for sequence in found if sequence is not None]
    assert len(set(numbers)) == len(numbers)
    return numbers


class WatchedStore(CrashingStore):
    """A store that is looked at after every commit."""

    watch: Watch

    def commit(self, batch: Batch, *, busy_timeout_ms: int) -> None:
        try:
            super().commit(batch, busy_timeout_ms=busy_timeout_ms)
        finally:
            self.watch.look()
        if batch.refused:
            self.watch.broken.append(f"the database refuses {batch.refused}")


class WatchedEngine(SimulatedEngine):
    """A simulated engine that shows every commit to its watch, and dies when it is told to."""

    def __init__(self, workflow: Any, watch: Watch) -> None:
        super().__init__([workflow])
        self._watch = watch
        self._points: list[Point] = []

    @property
    def has_died(self) -> bool:
        """Whether it has, and nobody has started it again."""
        return self._failure is not None

    def dies_at(self, point: Point) -> None:
        """Die at that commit, counted from now."""
        store = self._require_store()
        assert isinstance(store, CrashingStore)
        store.commits = 0
        self._points[:] = [point]

    def record(self, workflow: str, instance_id: str) -> InstanceRecord | None:
        """All that is committed of an instance, also while the engine is dead."""
        store = self._store
        row = None if store is None else store.find(workflow, instance_id)
        return None if store is None or row is None else store.load(row.key)

    def _make_store(self) -> SqliteStore:
        store = WatchedStore(self._path, synchronous="NORMAL")
        store.points, store.watch = self._points, self._watch
        return store
