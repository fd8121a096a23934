"""What a step's requester is told: a value, or an error rebuilt from its record."""

from __future__ import annotations

from typing import Any, NamedTuple

from workerflow.core.failure import Failure, describe, rebuild
from workerflow.core.journal import Attempt, JournalStep
from workerflow.core.model import Status
from workerflow.core.request import Request
from workerflow.errors import (
    DefinitionError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    WaitTimeoutError,
)


class Ending(NamedTuple):
    """How ``execute()`` ended."""

    status: Status
    result_json: str | None = None
    failure: Failure | None = None


def outcome_of(request: Request, step: JournalStep, values: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """The outcome of a step that has one; InvalidValueError when what is stored is not what is asked for.

    *values* are results decoded a moment ago, when they were stored: each is handed out once.
    """
    if step.kind == "sleep":
        return None, None
    assert request.value_type is not None
    if step.kind == "wait":
        if step.state == "timed_out":
            return None, WaitTimeoutError(step.step_id, step.event_name or "")
        payload = step.payload
        return (None if payload is None else request.value_type.load(payload, f"wait {step.step_id!r}")), None
    attempt = step.attempts[-1]
    if attempt.state == "failed":
        return None, _step_error(step, attempt)
    if step.step_id in values:
        return values.pop(step.step_id), None
    if attempt.result_json is None:
        return None, None
    return request.value_type.load(attempt.result_json, f"result of step {step.step_id!r}"), None


def outcome_ms(step: JournalStep) -> int:
    """When a step got its outcome."""
    return (step.attempts[-1].ended_ms if step.kind == "run" else step.resolved_ms) or 0


def is_retryable(request: Request, error: BaseException) -> bool:
    """Whether the request's policy lets the callback be tried again after *error*."""
    try:
        return request.retry.is_retryable(error)
    except Exception:  # A predicate of the author's that raises must not leave the attempt without an outcome.
        return False


def plain_failure(error: BaseException) -> Failure:
    """The record of what left ``execute()``: the name apart, the text without it."""
    failure = describe(error)
    return failure._replace(message=failure.message.removeprefix(f"{failure.name}: "))


def stuck_failure(label: str) -> Failure:
    """The record of a body that nothing can wake."""
    return plain_failure(
        DefinitionError(
            f"{label}: execute() waits, but nothing can wake it: no step is pending; "
            "it probably awaits an asyncio.Event, Queue or Future that no code of its own will set"
        )
    )


def _step_error(step: JournalStep, attempt: Attempt) -> BaseException:
    assert attempt.failure is not None
    error = rebuild(attempt.failure)
    if isinstance(error, NonRetryableStepError):
        return error
    exceeded = MaxAttemptsExceededError(step.step_id, step.counted, attempt.failure.message)
    exceeded.__cause__ = error
    return exceeded
