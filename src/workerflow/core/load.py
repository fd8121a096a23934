"""Building an instance in memory from its stored rows."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from workerflow.core.failure import Failure
from workerflow.core.journal import Attempt, Inbound, Journal, JournalStep
from workerflow.core.model import Status

if TYPE_CHECKING:
    from workerflow.core.instance import Instance


class InstanceRow(NamedTuple):
    """One row of ``instances``."""

    key: int
    workflow: str
    instance_id: str
    nonce: str
    status: Status
    input: str | None
    result_type: str | None
    result_json: str | None
    failure_name: str | None
    failure_message: str | None
    failure_detail: str | None
    held_reason: str | None
    held_at: int | None
    alarm_at: int | None
    owner: int | None
    recoveries: int
    created_at: int
    updated_at: int


class StepRow(NamedTuple):
    """One row of ``steps`` without its instance's key."""

    step_id: str
    ordinal: int
    kind: Any
    parent_step_id: str | None
    max_attempts: int | None
    state: str | None
    wake_at: int | None
    event_name: str | None
    timeout_at: int | None
    created_at: int
    resolved_at: int | None
    outcome_sequence: int | None
    abandoned_at: int | None


class AttemptRow(NamedTuple):
    """One row of ``attempts`` without its instance's key."""

    step_id: str
    number: int
    state: Any
    started_at: int
    ended_at: int | None
    result_type: Any
    result_json: str | None
    error_name: str | None
    error_message: str | None
    error_detail: str | None
    next_attempt_at: int | None
    counts: int
    outcome_sequence: int | None


class InboundRow(NamedTuple):
    """One row of ``inbound_events`` without its instance's key."""

    number: int
    name: str
    payload: str | None
    event_id: str | None
    received_at: int
    claimed_by: str | None
    claimed_at: int | None


class LifecycleRow(NamedTuple):
    """One row of ``lifecycle_events`` without its instance's key."""

    number: int
    type: Any
    recorded_at: int
    reason: str | None


class Progress(NamedTuple):
    """What is stored for taking an instance up again."""

    alarm_ms: int | None = None
    owner: int | None = None
    recoveries: int = 0
    held_reason: str | None = None
    held_ms: int | None = None


class DeliveryRow(NamedTuple):
    """One row of ``deliveries`` without its instance's key."""

    attempts: int
    next_attempt_at: int | None
    delivered_at: int | None


class InstanceRecord(NamedTuple):
    """Everything stored of one instance; steps by ordinal, attempts and events by number."""

    row: InstanceRow
    steps: list[StepRow]
    attempts: list[AttemptRow]
    inbound: list[InboundRow]
    lifecycle: list[LifecycleRow]
    delivery: DeliveryRow | None


def restore(instance: Instance, record: InstanceRecord) -> None:
    """Fill a new Instance with what is stored of it."""
    row = record.row
    instance.status = row.status
    instance.input_text = row.input
    instance.held_reason, instance.held_ms = row.held_reason, row.held_at
    instance.recoveries = row.recoveries
    instance.owner = row.owner
    instance.progress = Progress(row.alarm_at, row.owner, row.recoveries, row.held_reason, row.held_at)
    instance.lifecycle_count = len(record.lifecycle)
    instance.started_ms = next((event.recorded_at for event in record.lifecycle if event.type == "started"), 0)
    if record.delivery is not None and record.delivery.delivered_at is None:
        instance.delivery_attempts = record.delivery.attempts
        instance.delivery_ms = record.delivery.next_attempt_at
    fill_journal(instance.journal, record)


def fill_journal(journal: Journal, record: InstanceRecord) -> None:
    """Fill an empty journal with the stored steps, attempts and events."""
    for stored in record.steps:
        step = _step(stored)
        journal.steps[step.step_id] = step
        if step.parent_id is not None:
            journal.steps[step.parent_id].children.append(step)
    for try_row in record.attempts:
        step = journal.steps[try_row.step_id]
        step.attempts.append(_attempt(try_row))
        step.sequence = try_row.outcome_sequence
        step.counted += try_row.counts
    for event in record.inbound:
        inbound = Inbound(event.number, event.name, event.payload, event.event_id, event.received_at)
        if event.event_id is not None:
            journal.event_ids.add(event.event_id)
        if event.claimed_by is None:
            journal.unclaimed.setdefault(event.name, deque()).append(inbound)
        else:
            journal.steps[event.claimed_by].claimed = inbound
    journal.next_sequence = 1 + max((step.sequence or 0 for step in journal.steps.values()), default=0)
    journal.heard = journal.next_sequence - 1 if journal.steps else -1
    journal.next_acceptance = len(record.inbound) + 1


def _step(row: StepRow) -> JournalStep:
    step = JournalStep(row.step_id, row.ordinal, row.kind, row.parent_step_id, row.created_at)
    step.max_attempts = row.max_attempts
    step.state = row.state
    step.wake_ms = row.wake_at
    step.event_name = row.event_name
    step.timeout_ms = row.timeout_at
    step.resolved_ms = row.resolved_at
    step.sequence = row.outcome_sequence
    step.abandoned_ms = row.abandoned_at
    return step


def _attempt(row: AttemptRow) -> Attempt:
    attempt = Attempt(row.number, row.started_at)
    attempt.state = row.state
    attempt.ended_ms = row.ended_at
    attempt.result_type = row.result_type
    attempt.result_json = row.result_json
    if row.error_message is not None:
        attempt.failure = Failure(row.error_name, row.error_message, row.error_detail)
    attempt.next_ms = row.next_attempt_at
    attempt.counts = row.counts
    return attempt
