"""WorkflowRuntimeContext: the step store's verbs on one instance's journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from workerflow.codec import UNSET, checked_json, checked_text, load_json
from workerflow.core.failure import Failure
from workerflow.core.journal import Attempt, Journal, JournalStep
from workerflow.core.model import (
    TIME_MAX_MS,
    RunStep,
    RunStepAttempt,
    SleepStep,
    Step,
    WaitStep,
    optional_datetime,
    to_datetime,
    to_milliseconds,
)
from workerflow.core.retry import DEFAULT_RETRY, RetryPolicy, check_max_attempts
from workerflow.core.rows import Rows
from workerflow.errors import DefinitionError, InvalidValueError, StepError


class WorkflowRuntimeContext:
    """The step store of one instance, in memory: it answers at once and appends rows to a batch.

    It sets no alarm and reads no clock: *now* is an argument, an aware time. Nothing is durable when a verb returns; it
    is when the batch is committed. A refused verb raises StepError and changes nothing. Without a journal it works on
    an empty one of its own.

    >>> context = WorkflowRuntimeContext()
    >>> context.get_or_create_run_step("charge", now=to_datetime(0)).max_attempts
    3
    >>> context.handle_run_attempt_started("charge", now=to_datetime(1)).state
    'started'
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = Journal(0, Rows()) if journal is None else journal

    def get_or_create_run_step(
        self, step_id: str, *, now: datetime, max_attempts: int | None = 3, parent_step_id: str | None = None
    ) -> RunStep:
        """The run step *step_id*; when it is new, with this limit (None: without limit) and this parent."""
        check_max_attempts(max_attempts, f"run step {step_id!r}")
        step = self._get(step_id, "run", parent_step_id)
        if step is None:
            step = self._journal.create(step_id, "run", parent_step_id, _milliseconds(now), max_attempts)
        return _run_record(step)

    def get_or_create_sleep_step(
        self, step_id: str, wake_at: datetime, *, now: datetime, parent_step_id: str | None = None
    ) -> SleepStep:
        """The sleep step *step_id*; when it is new, waking at *wake_at*. A second call keeps the first wake time."""
        step = self._get(step_id, "sleep", parent_step_id)
        if step is None:
            wake_ms = _milliseconds(wake_at)
            step = self._journal.create(step_id, "sleep", parent_step_id, _milliseconds(now), wake_ms=wake_ms)
        return _sleep_record(step)

    def get_or_create_wait_step(
        self,
        step_id: str,
        event_name: str,
        *,
        now: datetime,
        timeout_at: datetime | None = None,
        parent_step_id: str | None = None,
    ) -> WaitStep:
        """The wait step *step_id*; when it is new, the oldest queued event of the name satisfies it at once."""
        _checked(event_name, f"event name of wait step {step_id!r}")
        step = self._get(step_id, "wait", parent_step_id)
        if step is None:
            now_ms = _milliseconds(now)
            timeout_ms = None if timeout_at is None else _milliseconds(timeout_at)
            step = self._journal.create(
                step_id, "wait", parent_step_id, now_ms, event_name=event_name, timeout_ms=timeout_ms
            )
            if (event := self._journal.event_for(step)) is not None:
                self._journal.claim(step, event, now_ms)
        return _wait_record(step)

    def handle_run_attempt_started(self, step_id: str, *, now: datetime) -> RunStepAttempt:
        """Start the next attempt."""
        step = self._journal.step(step_id, "run")
        return _attempt_record(step, self._journal.start_attempt(step, _milliseconds(now)))

    def handle_run_attempt_succeeded(
        self, step_id: str, result_json: str | None = None, *, now: datetime, attempt_id: str | None = None
    ) -> RunStepAttempt:
        """End the attempt in progress, or the one named, with this JSON text; None is the absent result."""
        step, attempt = self._in_progress(step_id, attempt_id)
        if result_json is not None:
            _storable(checked_json, result_json, f"result of step {step_id!r}")
        self._journal.succeed(step, attempt, result_json, _milliseconds(now))
        return _attempt_record(step, attempt)

    def handle_run_attempt_failed(
        self,
        step_id: str,
        error_message: str,
        *,
        now: datetime,
        error_name: str | None = None,
        is_non_retryable: bool = False,
        retry: RetryPolicy = DEFAULT_RETRY,
        attempt_id: str | None = None,
    ) -> RunStepAttempt:
        """End the attempt in progress, or the one named, badly; plan the next one if the step has any left."""
        step, attempt = self._in_progress(step_id, attempt_id)
        now_ms = _milliseconds(now)
        _storable(checked_text, error_message, f"error message of step {step_id!r}")
        _storable(checked_text, error_name or "", f"error name of step {step_id!r}")
        next_ms = None if is_non_retryable else next_attempt_ms(step, retry, now_ms, 0.0)
        self._journal.fail(step, attempt, Failure(error_name or None, error_message, None), now_ms, next_ms)
        return _attempt_record(step, attempt)

    def handle_sleep_step_elapsed(self, step_id: str, *, now: datetime) -> SleepStep:
        """Mark a waiting sleep as elapsed. The wake time is not checked."""
        step = self._journal.step(step_id, "sleep")
        self._journal.resolve(step, "elapsed", _milliseconds(now))
        return _sleep_record(step)

    def handle_wait_step_timed_out(self, step_id: str, *, now: datetime) -> WaitStep:
        """Mark a waiting wait as timed out; refused while its deadline is still ahead."""
        step = self._journal.step(step_id, "wait")
        now_ms = _milliseconds(now)
        if step.state == "waiting" and step.timeout_ms is not None and step.timeout_ms > now_ms:
            raise StepError(
                f"wait step {step_id!r} cannot time out yet: its deadline is {to_datetime(step.timeout_ms)}"
            )
        self._journal.resolve(step, "timed_out", now_ms)
        return _wait_record(step)

    def has_in_progress_child_steps(self, step_id: str) -> bool:
        """Whether a direct child explains that the run has no outcome yet; one that failed for good does not."""
        return self._journal.has_in_progress_children(self._journal.step(step_id, "run"))

    def steps(self) -> list[Step]:
        """All steps in creation order."""
        return [step_record(step) for step in self._journal.steps.values()]

    def _get(self, step_id: str, kind: str, parent_id: str | None) -> JournalStep | None:
        _checked(step_id, "step id")
        step = self._journal.steps.get(step_id)
        if step is not None and (step.kind != kind or step.parent_id != parent_id):
            raise StepError(
                f"step {step_id!r} is stored as a {step.kind} with parent {step.parent_id!r}, "
                f"but a {kind} with parent {parent_id!r} was asked for; use another id"
            )
        if step is None and parent_id is not None:
            self._journal.step(parent_id, "run")
        return step

    def _in_progress(self, step_id: str, attempt_id: str | None) -> tuple[JournalStep, Attempt]:
        step = self._journal.step(step_id, "run")
        if attempt_id is None:
            if step.in_flight is None:
                raise StepError(f"No attempt in progress for step {step_id!r}")
            return step, step.in_flight
        for attempt in step.attempts:
            if attempt_identity(step_id, attempt.number) == attempt_id:
                return step, attempt
        raise StepError(f"attempt {attempt_id!r} of step {step_id!r} not found")


def _checked(name: str, what: str) -> None:
    _storable(checked_text, name, what)
    if not name:
        raise StepError(f"the {what} must not be empty")


def _storable(check: Callable[[str, str], str], text: str, what: str) -> None:
    try:
        check(text, what)
    except (DefinitionError, InvalidValueError) as error:
        raise StepError(str(error)) from error


def _milliseconds(moment: datetime) -> int:
    if moment.utcoffset() is None or (milliseconds := to_milliseconds(moment)) < 0:
        raise StepError(f"{moment!r} cannot be stored; use an aware time since 1970")
    return milliseconds


def next_attempt_ms(step: JournalStep, retry: RetryPolicy, now_ms: int, random: float) -> int | None:
    """When the next attempt is due after the one in progress failed at *now_ms*; None if there is none left."""
    failures = step.counted
    if step.max_attempts is not None and failures >= step.max_attempts:
        return None
    next_ms = min(now_ms + retry.delay_ms(failures, random), TIME_MAX_MS)
    elapsed_max = retry.max_elapsed_ms()
    if elapsed_max is not None and next_ms - step.attempts[0].started_ms > elapsed_max:
        return None
    return next_ms


def attempt_identity(step_id: str, number: int) -> str:
    """The id of an attempt, unique within its instance."""
    return f"{step_id}:{number}"


def step_record(step: JournalStep) -> Step:
    """The record that people read."""
    if step.kind == "run":
        return _run_record(step)
    return _sleep_record(step) if step.kind == "sleep" else _wait_record(step)


def _run_record(step: JournalStep) -> RunStep:
    attempts = [_attempt_record(step, attempt) for attempt in step.attempts]
    created_at, abandoned_at = to_datetime(step.created_ms), optional_datetime(step.abandoned_ms)
    return RunStep(step.step_id, step.parent_id, created_at, step.max_attempts, attempts, abandoned_at)


def _attempt_record(step: JournalStep, attempt: Attempt) -> RunStepAttempt:
    failure = attempt.failure
    return RunStepAttempt(
        id=attempt_identity(step.step_id, attempt.number),
        step_id=step.step_id,
        number=attempt.number,
        state=attempt.state,
        started_at=to_datetime(attempt.started_ms),
        ended_at=optional_datetime(attempt.ended_ms),
        result_type=attempt.result_type,
        result_json=attempt.result_json,
        error_name=failure.name if failure else None,
        error_message=failure.message if failure else None,
        next_attempt_at=optional_datetime(attempt.next_ms),
    )


def _sleep_record(step: JournalStep) -> SleepStep:
    assert step.wake_ms is not None
    return SleepStep(
        id=step.step_id,
        parent_step_id=step.parent_id,
        created_at=to_datetime(step.created_ms),
        state="elapsed" if step.state == "elapsed" else "waiting",
        wake_at=to_datetime(step.wake_ms),
        resolved_at=optional_datetime(step.resolved_ms),
        abandoned_at=optional_datetime(step.abandoned_ms),
    )


def _wait_record(step: JournalStep) -> WaitStep:
    assert step.event_name is not None
    payload = step.payload
    return WaitStep(
        id=step.step_id,
        parent_step_id=step.parent_id,
        created_at=to_datetime(step.created_ms),
        state="satisfied" if step.state == "satisfied" else "timed_out" if step.state == "timed_out" else "waiting",
        event_name=step.event_name,
        timeout_at=optional_datetime(step.timeout_ms),
        payload=UNSET if payload is None else load_json(payload),
        resolved_at=optional_datetime(step.resolved_ms),
        abandoned_at=optional_datetime(step.abandoned_ms),
    )
