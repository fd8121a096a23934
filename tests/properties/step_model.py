"""The step store as the specification has it: a second, smaller one, made of nothing but dicts, lists and records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from workerflow import UNSET, RetryPolicy, RunStep, RunStepAttempt, SleepStep, WaitStep

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
BACK_OFF_MS = [250, 500, 1000, 2000, 4000, 8000]  # then 10,000 for ever

Record = RunStep | SleepStep | WaitStep


class RefusedError(Exception):
    """The verb must be refused, with words like these (a pattern)."""


@dataclass
class Event:
    """An inbound event that was accepted."""

    name: str
    payload: Any
    received_at: datetime
    claimed_by: str | None = None


def stored(moment: datetime) -> datetime:
    """A time as it is stored: in whole milliseconds, never earlier than asked, and not after the year 9999."""
    since = moment - EPOCH
    part = timedelta(microseconds=-since.microseconds % 1000)
    return moment + part if moment <= LAST_TIME - part else LAST_TIME


def back_off(failures: int, policy: RetryPolicy | None) -> timedelta:
    """How long after the k-th counted failure the next attempt is due."""
    if policy is None:
        return timedelta(milliseconds=BACK_OFF_MS[failures - 1] if failures <= len(BACK_OFF_MS) else 10_000)
    assert isinstance(policy.initial, float)
    assert isinstance(policy.maximum, float)
    return timedelta(seconds=min(policy.initial * policy.factor ** (failures - 1), policy.maximum))


class StepModel:
    """Steps in creation order, their outcomes in order, and the events in order of acceptance.

    Attempts have no id here: a verb that names one gives the attempt's place, or None for one that nobody knows.
    """

    def __init__(self) -> None:
        self.steps: dict[str, Record] = {}
        self.outcomes: list[str] = []
        self.events: list[Event] = []

    def get_or_create_run_step(
        self, step_id: str, *, now: datetime, max_attempts: int | None = 3, parent_step_id: str | None = None
    ) -> Record:
        if max_attempts is not None and max_attempts < 1:
            raise RefusedError("max_attempts")
        return self._get(step_id, "run", parent_step_id) or self._add(
            RunStep(step_id, parent_step_id, stored(now), max_attempts, [])
        )

    def get_or_create_sleep_step(
        self, step_id: str, wake_at: datetime, *, now: datetime, parent_step_id: str | None = None
    ) -> Record:
        return self._get(step_id, "sleep", parent_step_id) or self._add(
            SleepStep(step_id, parent_step_id, stored(now), "waiting", stored(wake_at))
        )

    def get_or_create_wait_step(
        self,
        step_id: str,
        event_name: str,
        *,
        now: datetime,
        timeout_at: datetime | None = None,
        parent_step_id: str | None = None,
    ) -> Record:
        if not event_name:
            raise RefusedError("event name")
        found = self._get(step_id, "wait", parent_step_id)
        if found is not None:
            return found
        limit = None if timeout_at is None else stored(timeout_at)
        step = WaitStep(step_id, parent_step_id, stored(now), "waiting", event_name, limit, UNSET)
        self._add(step)
        for event in self.events:
            # What was accepted before the wait was made came before it, also when the clock was set back in between.
            came_at = min(event.received_at, step.created_at - timedelta(milliseconds=1))
            in_time = limit is None or came_at < limit
            if event.name == event_name and event.claimed_by is None and in_time:
                event.claimed_by = step_id
                return self._resolve(step, stored(now), state="satisfied", payload=event.payload)
        return step

    def handle_run_attempt_started(self, step_id: str, *, now: datetime) -> RunStepAttempt:
        step = self._run(step_id)
        if step.attempts and step.attempts[-1].state == "started":
            raise RefusedError("already in progress")
        if step_id in self.outcomes:
            raise RefusedError("outcome")
        number = len(step.attempts) + 1
        step.attempts.append(RunStepAttempt("", step_id, number, "started", max(stored(now), step.created_at)))
        return step.attempts[-1]

    def handle_run_attempt_succeeded(
        self, step_id: str, result_json: str | None, *, now: datetime, place: int | None = -1
    ) -> RunStepAttempt:
        step, place = self._in_progress(step_id, place)
        self.outcomes.append(step_id)
        result_type: Any = "none" if result_json is None else "json"
        return self._end(step, place, now, state="succeeded", result_type=result_type, result_json=result_json)

    def handle_run_attempt_failed(
        self,
        step_id: str,
        error_message: str,
        *,
        now: datetime,
        error_name: str | None,
        is_non_retryable: bool,
        retry: RetryPolicy | None,
        place: int | None = -1,
    ) -> RunStepAttempt:
        step, place = self._in_progress(step_id, place)
        due = None
        if not is_non_retryable and (step.max_attempts is None or len(step.attempts) < step.max_attempts):
            due = stored(now) + min(back_off(len(step.attempts), retry), LAST_TIME - stored(now))
            limit = None if retry is None else retry.max_elapsed
            if limit is not None and due - step.attempts[0].started_at > timedelta(seconds=float(str(limit))):
                due = None
        if due is None:
            self.outcomes.append(step_id)
        named = {"error_message": error_message, "error_name": error_name or None}
        return self._end(step, place, now, state="failed", next_attempt_at=due, **named)

    def handle_sleep_step_elapsed(self, step_id: str, *, now: datetime) -> Record:
        step = self.steps.get(step_id)
        if not isinstance(step, SleepStep):
            raise RefusedError("not found")
        return self._resolve(step, stored(now), state="elapsed")

    def handle_wait_step_timed_out(self, step_id: str, *, now: datetime) -> Record:
        step = self.steps.get(step_id)
        if not isinstance(step, WaitStep):
            raise RefusedError("not found")
        if step.state == "waiting" and step.timeout_at is not None and step.timeout_at > stored(now):
            raise RefusedError("cannot time out yet")
        return self._resolve(step, stored(now), state="timed_out")

    def has_in_progress_child_steps(self, step_id: str) -> bool:
        self._run(step_id)
        children = [step for step in self.steps.values() if step.parent_step_id == step_id]
        return any(self._is_in_progress(child) for child in children)

    def accept(self, name: str, payload: Any, now: datetime) -> None:
        """An event comes in. No verb of the step store: a wait that is there already does not see it."""
        self.events.append(Event(name, payload, stored(now)))

    def endless_waits(self) -> list[str]:
        """The waits that no time ends."""
        waits = [step for step in self.steps.values() if isinstance(step, WaitStep)]
        return [step.id for step in waits if step.state == "waiting" and step.timeout_at is None]

    def fitting(self, verb: str) -> list[str]:
        """The steps on which a verb that changes a step has something to do, as far as its time allows."""
        runs = [step for step in self.steps.values() if isinstance(step, RunStep)]
        in_flight = [step.id for step in runs if step.attempts and step.attempts[-1].state == "started"]
        if verb == "handle_run_attempt_started":
            return [step.id for step in runs if step.id not in in_flight and step.id not in self.outcomes]
        if verb in ("handle_run_attempt_succeeded", "handle_run_attempt_failed"):
            return in_flight
        kind = SleepStep if verb == "handle_sleep_step_elapsed" else WaitStep
        return [step.id for step in self.steps.values() if isinstance(step, kind) and step.state == "waiting"]

    def _get(self, step_id: str, kind: str, parent_id: str | None) -> Record | None:
        if not step_id:
            raise RefusedError("empty")
        step = self.steps.get(step_id)
        if step is None and parent_id is not None:
            self._run(parent_id)
        if step is not None and (step.type, step.parent_step_id) != (kind, parent_id):
            raise RefusedError("is stored as")
        return step

    def _add(self, step: Record) -> Record:
        self.steps[step.id] = step
        return step

    def _run(self, step_id: str) -> RunStep:
        step = self.steps.get(step_id)
        if not isinstance(step, RunStep):
            raise RefusedError("not found")
        return step

    def _in_progress(self, step_id: str, place: int | None) -> tuple[RunStep, int]:
        step = self._run(step_id)
        if place is None or place >= len(step.attempts):
            raise RefusedError("not found")
        is_last = place in (-1, len(step.attempts) - 1)
        if not is_last or not step.attempts or step.attempts[-1].state != "started":
            raise RefusedError("(?i)no attempt in progress" if place == -1 else "not in progress")
        return step, place

    def _end(self, step: RunStep, place: int, now: datetime, **changes: Any) -> RunStepAttempt:
        attempt = step.attempts[place]
        step.attempts[place] = replace(attempt, ended_at=max(stored(now), attempt.started_at), **changes)
        return step.attempts[place]

    def _resolve(self, step: SleepStep | WaitStep, now: datetime, **changes: Any) -> Record:
        if step.state != "waiting":
            raise RefusedError(f"Expected 'waiting' but got {step.state}")
        self.outcomes.append(step.id)
        return self._add(replace(step, resolved_at=max(now, step.created_at), **changes))

    @staticmethod
    def _is_in_progress(step: Record) -> bool:
        if isinstance(step, RunStep):
            last = step.attempts[-1] if step.attempts else None
            return last is None or last.state != "failed" or last.next_attempt_at is not None
        return step.state != "timed_out"
