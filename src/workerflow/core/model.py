"""Frozen records that people read: steps, attempts, events, statuses and the legal moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["pending", "initialized", "running", "paused", "completed", "failed", "cancelled"]
LifecycleType: TypeAlias = Literal["created", "started", "paused", "resumed", "completed", "failed", "cancelled"]

TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})
LEGAL_TRANSITIONS: dict[str, frozenset[str]] = {
    "pending": frozenset({"initialized", "cancelled"}),
    "initialized": frozenset({"running", "cancelled"}),
    "running": frozenset({"paused", "completed", "failed", "cancelled"}),
    "paused": frozenset({"running", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, where datetimes end: no stored time is later."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_datetime(milliseconds: int) -> datetime:
    """The aware UTC time of a stored time.

    >>> to_datetime(0).isoformat()
    '1970-01-01T00:00:00+00:00'
    """
    # Not fromtimestamp: it goes through a float and loses a microsecond now and then.
    return _EPOCH + milliseconds * _MILLISECOND


def to_milliseconds(moment: datetime) -> int:
    """The stored form of an aware time; parts of a millisecond round up, so that no timer is early.

    >>> to_milliseconds(to_datetime(1234))
    1234
    """
    return min(-((_EPOCH - moment) // _MILLISECOND), TIME_MAX_MS)


def optional_datetime(milliseconds: int | None) -> datetime | None:
    """``to_datetime`` of a time that may be absent."""
    return None if milliseconds is None else to_datetime(milliseconds)


class Receipt(StrEnum):
    """What became of a sent event.

    ``used``: a waiting step has it. ``queued``: kept until a wait asks for it. ``duplicate``: this ``id`` was
    accepted before, nothing changed. ``dropped``: the instance has ended.

    >>> Receipt.used == "used"
    True
    """

    used = "used"
    queued = "queued"
    duplicate = "duplicate"
    dropped = "dropped"


@dataclass(frozen=True, slots=True)
class RunStepAttempt:
    """One try of a run step's callback: ``started``, then ``succeeded`` or ``failed``.

    Times are aware UTC. ``result_type`` is ``json`` or ``none``; ``next_attempt_at`` is when the next try is due.

    >>> RunStepAttempt("charge:1", "charge", 1, "started", to_datetime(0)).ended_at is None
    True
    """

    id: str
    step_id: str
    number: int
    state: Literal["started", "succeeded", "failed"]
    started_at: datetime
    ended_at: datetime | None = None
    result_type: Literal["json", "none"] | None = None
    result_json: str | None = None
    error_name: str | None = None
    error_message: str | None = None
    next_attempt_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunStep:
    """A run step with its attempts, oldest first. Its state is that of its last attempt.

    >>> RunStep("charge", None, to_datetime(0), 3, []).type
    'run'
    """

    id: str
    parent_step_id: str | None
    created_at: datetime
    max_attempts: int | None
    attempts: list[RunStepAttempt]
    abandoned_at: datetime | None = None
    type: Literal["run"] = "run"


@dataclass(frozen=True, slots=True)
class SleepStep:
    """A sleep: ``waiting`` until ``wake_at``, then ``elapsed``.

    >>> SleepStep("night", None, to_datetime(0), "waiting", to_datetime(1)).type
    'sleep'
    """

    id: str
    parent_step_id: str | None
    created_at: datetime
    state: Literal["waiting", "elapsed"]
    wake_at: datetime
    resolved_at: datetime | None = None
    abandoned_at: datetime | None = None
    type: Literal["sleep"] = "sleep"


@dataclass(frozen=True, slots=True)
class WaitStep:
    """A wait: ``waiting``, then ``satisfied`` (with the decoded payload, or UNSET) or ``timed_out``.

    >>> WaitStep("payment", None, to_datetime(0), "waiting", "payment.received", None, None).type
    'wait'
    """

    id: str
    parent_step_id: str | None
    created_at: datetime
    state: Literal["waiting", "satisfied", "timed_out"]
    event_name: str
    timeout_at: datetime | None
    payload: Any
    resolved_at: datetime | None = None
    abandoned_at: datetime | None = None
    type: Literal["wait"] = "wait"


Step: TypeAlias = RunStep | SleepStep | WaitStep


@dataclass(frozen=True, slots=True)
class WorkflowEvent:
    """One row of an instance's lifecycle log. ``id`` counts from 1 within the instance.

    >>> WorkflowEvent(1, "created", to_datetime(0)).cancellation_reason is None
    True
    """

    id: int
    type: LifecycleType
    recorded_at: datetime
    cancellation_reason: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowCompletionEvent:
    """What ``WorkflowRuntime.completion`` receives, at least once. ``id`` is the same at every delivery.

    >>> WorkflowCompletionEvent("o-1:3", "completed", to_datetime(0), "Checkout", "o-1").id
    'o-1:3'
    """

    id: str
    status: Literal["completed", "failed", "cancelled"]
    finished_at: datetime
    workflow: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class InstanceSummary:
    """One line of ``Engine.list``. ``held`` is the reason why the engine may not drive it, or None.

    >>> InstanceSummary("Checkout", "o-1", "running", None, to_datetime(0), to_datetime(0), None).held is None
    True
    """

    workflow: str
    id: str
    status: Status
    held: str | None
    created_at: datetime
    updated_at: datetime
    alarm_at: datetime | None


@dataclass(frozen=True, slots=True)
class InboundEvent:
    """An event that an instance accepted, in order of acceptance, and the wait that used it, if any.

    >>> InboundEvent(1, "paid", None, None, to_datetime(0), None, None).claimed_by is None
    True
    """

    number: int
    name: str
    payload: Any
    id: str | None
    received_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """Why an instance failed: the error's class name, text, data and traceback.

    >>> RecordedFailure("ValueError", "no stock", None, "").name
    'ValueError'
    """

    name: str
    message: str
    data: Any
    traceback: str


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """Everything stored about one instance but its steps. ``input`` is UNSET when ``create`` was given none.

    ``held_reason`` is what ``held`` says. ``result`` is plain JSON data (UNSET before completion);
    ``handle.result()`` gives the typed value. ``owner`` is the incarnation of the worker that has it in memory,
    ``recoveries`` how often it was taken over in mid callback.

    >>> InstanceInfo.__slots__[0]
    'workflow'
    """

    workflow: str
    id: str
    status: Status
    held: str | None
    created_at: datetime
    updated_at: datetime
    alarm_at: datetime | None
    held_reason: str | None
    held_at: datetime | None
    input: Any
    result: Any
    failure: RecordedFailure | None
    owner: int | None
    recoveries: int
    inbound_events: list[InboundEvent]
