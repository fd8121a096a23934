"""The journal of one instance in memory: its steps, attempts and inbound events, and every legal move of them.

A move changes the journal and appends its row to the current batch, in one synchronous call, or raises StepError and
changes nothing. Outcomes (attempt ended for good, sleep elapsed, wait satisfied or timed out) get the instance's next
sequence number: replay delivers them in that order.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

from workerflow.core.failure import Failure
from workerflow.core.rows import Rows
from workerflow.errors import InternalError, StepError

Kind = Literal["run", "sleep", "wait"]


class Attempt:
    """One try of a callback. ``counts`` is 0 for a try that a graceful stop or an abandonment ended."""

    __slots__ = (
        "counts",
        "ended_ms",
        "failure",
        "next_ms",
        "number",
        "result_json",
        "result_type",
        "started_ms",
        "state",
    )

    def __init__(self, number: int, started_ms: int) -> None:
        self.number = number
        self.started_ms = started_ms
        self.state: Literal["started", "succeeded", "failed"] = "started"
        self.ended_ms: int | None = None
        self.result_type: Literal["json", "none"] | None = None
        self.result_json: str | None = None
        self.failure: Failure | None = None
        self.next_ms: int | None = None
        self.counts = 1


class JournalStep:
    """A step of any kind; the fields of the other kinds stay None.

    ``counted``: the attempts that count against the limit, the one in flight included.
    """

    __slots__ = (
        "abandoned_ms",
        "attempts",
        "children",
        "claimed",
        "counted",
        "created_ms",
        "event_name",
        "first_later",
        "kind",
        "max_attempts",
        "ordinal",
        "parent_id",
        "resolved_ms",
        "sequence",
        "state",
        "step_id",
        "timeout_ms",
        "wake_ms",
    )

    def __init__(self, step_id: str, ordinal: int, kind: Kind, parent_id: str | None, created_ms: int) -> None:
        self.step_id = step_id
        self.ordinal = ordinal
        self.kind: Kind = kind
        self.parent_id = parent_id
        self.created_ms = created_ms
        self.max_attempts: int | None = None
        self.attempts: list[Attempt] = []
        self.counted = 0
        self.state: str | None = None if kind == "run" else "waiting"
        self.wake_ms: int | None = None
        self.event_name: str | None = None
        self.timeout_ms: int | None = None
        self.resolved_ms: int | None = None
        self.sequence: int | None = None
        self.abandoned_ms: int | None = None
        self.claimed: Inbound | None = None
        # The number of the first event that was accepted after this wait was made; 0 when that is not known any more.
        self.first_later = 0
        self.children: list[JournalStep] = []

    @property
    def payload(self) -> str | None:
        """The JSON text of the event that satisfied this wait; None when it had none, or there is no event yet."""
        if self.claimed is None:
            if self.state == "satisfied":
                raise InternalError(f"wait step {self.step_id!r} is satisfied, but has no event: its rows are damaged")
            return None
        return self.claimed.payload

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def in_flight(self) -> Attempt | None:
        """The started attempt, if there is one."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].state == "started" else None

    def has_failed_for_good(self) -> bool:
        """Whether this is a run without an attempt to come."""
        last = self.last
        return last is not None and last.state == "failed" and last.next_ms is None


class Inbound(NamedTuple):
    """An accepted event; ``payload`` is JSON text, or None when it had none."""

    number: int
    name: str
    payload: str | None
    event_id: str | None
    received_ms: int


def came_at_ms(event: Inbound, step: JournalStep) -> int:
    """When an event came, for a wait.

    One that was accepted before the wait was made came before it, also when the clock was set back in between.
    """
    return min(event.received_ms, step.created_ms) if event.number < step.first_later else event.received_ms


def is_in_time(event: Inbound, step: JournalStep) -> bool:
    """Whether an event came before the deadline of a wait: at the deadline is too late, but for one that was there."""
    if step.timeout_ms is None or came_at_ms(event, step) < step.timeout_ms:
        return True
    return event.number < step.first_later and step.timeout_ms >= step.created_ms


class Journal:
    """Everything recorded inside one instance."""

    __slots__ = ("event_ids", "heard", "instance_key", "next_acceptance", "next_sequence", "rows", "steps", "unclaimed")

    def __init__(self, instance_key: int, rows: Rows) -> None:
        self.instance_key = instance_key
        self.rows = rows
        self.steps: dict[str, JournalStep] = {}
        self.next_sequence = 1
        # The last outcome that a body was told, 0 for a body that was told none, -1 as long as there was no body.
        self.heard = -1
        self.next_acceptance = 1
        self.unclaimed: dict[str, deque[Inbound]] = {}
        self.event_ids: set[str] = set()

    def step(self, step_id: str, kind: Kind) -> JournalStep:
        """The step, which must exist and be of this kind."""
        step = self.steps.get(step_id)
        if step is None or step.kind != kind:
            found = "" if step is None else f"; the step with this id is a {step.kind}"
            raise StepError(f"{kind} step {step_id!r} not found{found}")
        return step

    def create(
        self,
        step_id: str,
        kind: Kind,
        parent_id: str | None,
        now_ms: int,
        max_attempts: int | None = None,
        wake_ms: int | None = None,
        event_name: str | None = None,
        timeout_ms: int | None = None,
    ) -> JournalStep:
        """Add a step that does not exist yet."""
        step = JournalStep(step_id, len(self.steps) + 1, kind, parent_id, now_ms)
        step.max_attempts, step.wake_ms, step.event_name, step.timeout_ms = (
            max_attempts,
            wake_ms,
            event_name,
            timeout_ms,
        )
        step.first_later = self.next_acceptance
        if parent_id is not None:
            self.step(parent_id, "run").children.append(step)
        self.steps[step_id] = step
        asked = (kind, parent_id, max_attempts, step.state, wake_ms, event_name, timeout_ms)
        self.rows.step_insert.append((self.instance_key, step_id, step.ordinal, *asked, now_ms))
        return step

    def start_attempt(self, step: JournalStep, now_ms: int) -> Attempt:
        """Begin the next attempt of a run step."""
        if step.in_flight is not None:
            raise StepError(f"an attempt of step {step.step_id!r} is already in progress")
        if step.sequence is not None:
            raise StepError(f"step {step.step_id!r} has its outcome: no attempt can follow")
        attempt = Attempt(len(step.attempts) + 1, max(now_ms, step.created_ms))
        step.attempts.append(attempt)
        step.counted += 1
        self.rows.attempt_start.append((self.instance_key, step.step_id, attempt.number, attempt.started_ms))
        return attempt

    def succeed(self, step: JournalStep, attempt: Attempt, result_json: str | None, now_ms: int) -> None:
        """End an attempt well; None means that the callback returned None."""
        self._require_started(step, attempt)
        attempt.state = "succeeded"
        attempt.result_type = "none" if result_json is None else "json"
        attempt.result_json = result_json
        attempt.ended_ms = max(now_ms, attempt.started_ms)
        step.sequence = self._next_sequence()
        self.rows.attempt_end.append(self._end_row(step, attempt))

    def fail(self, step: JournalStep, attempt: Attempt, failure: Failure, now_ms: int, next_ms: int | None) -> None:
        """End an attempt badly. Without *next_ms* that is the step's outcome."""
        self._end_badly(step, attempt, failure, now_ms)
        attempt.next_ms = next_ms
        if next_ms is None:
            step.sequence = self._next_sequence()
        self.rows.attempt_end.append(self._end_row(step, attempt))

    def cut(self, step: JournalStep, failure: Failure, now_ms: int, *, is_final: bool = False) -> None:
        """End the attempt in flight from outside: it does not count and is no outcome, unless *is_final*.

        Its rows are a list of their own: the attempt may have begun in the same batch, and a start is written after
        the ends that made room for it.
        """
        attempt = step.attempts[-1]
        self._end_badly(step, attempt, failure, now_ms)
        if is_final:
            step.sequence = self._next_sequence()
        else:
            attempt.counts = 0
            step.counted -= 1
        self.rows.attempt_cut.append(self._end_row(step, attempt))

    def resolve(self, step: JournalStep, state: str, now_ms: int) -> None:
        """Move a sleep or a wait from waiting to its last state."""
        if step.state != "waiting":
            raise StepError(f"{step.kind} step {step.step_id!r}: Expected 'waiting' but got {step.state}")
        step.state = state
        step.resolved_ms = max(now_ms, step.created_ms)
        step.sequence = self._next_sequence()
        self.rows.step_resolve.append((self.instance_key, step.step_id, state, step.resolved_ms, step.sequence))

    def abandon(self, step: JournalStep, now_ms: int | None) -> None:
        """Mark a step as no longer asked for, or (None) as asked for again."""
        step.abandoned_ms = None if now_ms is None else max(now_ms, step.created_ms)
        self.rows.step_abandon.append((self.instance_key, step.step_id, step.abandoned_ms))

    def accept(self, name: str, payload: str | None, event_id: str | None, now_ms: int) -> Inbound:
        """Record an inbound event, not used yet."""
        event = Inbound(self.next_acceptance, name, payload, event_id, now_ms)
        self.next_acceptance += 1
        if event_id is not None:
            self.event_ids.add(event_id)
        self.unclaimed.setdefault(name, deque()).append(event)
        self.rows.inbound_insert.append((self.instance_key, event.number, name, payload, event_id, now_ms))
        return event

    def event_for(self, step: JournalStep) -> Inbound | None:
        """The oldest unused event that a waiting wait can have: of its name, and before its deadline."""
        queue = self.unclaimed.get(step.event_name or "", ())
        return next((event for event in queue if is_in_time(event, step)), None)

    def claim(self, step: JournalStep, event: Inbound, now_ms: int) -> None:
        """Give a wait its event."""
        self.unclaimed[event.name].remove(event)
        step.claimed = event
        self.resolve(step, "satisfied", now_ms)
        self.rows.inbound_claim.append((self.instance_key, event.number, step.step_id, step.resolved_ms))

    def has_in_progress_children(self, step: JournalStep) -> bool:
        """Whether a direct child explains that this run has no outcome yet."""
        return any(
            not child.has_failed_for_good() if child.kind == "run" else child.state != "timed_out"
            for child in step.children
        )

    def _next_sequence(self) -> int:
        self.next_sequence += 1
        return self.next_sequence - 1

    def _end_badly(self, step: JournalStep, attempt: Attempt, failure: Failure, now_ms: int) -> None:
        self._require_started(step, attempt)
        attempt.state = "failed"
        attempt.failure = failure
        attempt.ended_ms = max(now_ms, attempt.started_ms)

    def _require_started(self, step: JournalStep, attempt: Attempt) -> None:
        if attempt.state != "started":
            raise StepError(
                f"attempt {attempt.number} of step {step.step_id!r} is not in progress: it has {attempt.state}"
            )

    def _end_row(self, step: JournalStep, attempt: Attempt) -> tuple[object, ...]:
        identity = (self.instance_key, step.step_id, attempt.number)
        result = (attempt.state, attempt.ended_ms, attempt.result_type, attempt.result_json)
        failure = attempt.failure or (None, None, None)
        return (*identity, *result, *failure, attempt.next_ms, attempt.counts, step.sequence)
