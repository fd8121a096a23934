"""RetryPolicy: how often a callback is tried, and when the next try is due."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from workerflow.errors import (
    DefinitionError,
    InvalidValueError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    WaitTimeoutError,
)

Duration: TypeAlias = float | int | timedelta
RetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]

MILLISECONDS_MAX = 253_402_300_799_000
"""The year 9999: datetimes end there."""

ATTEMPTS_MAX = 1_000_000_000

# Trying again cannot help: the inner step has its outcome for good, or the code itself is wrong.
NEVER_RETRIED = (
    NonRetryableStepError,
    MaxAttemptsExceededError,
    WaitTimeoutError,
    InvalidValueError,
    DefinitionError,
)


def duration_ms(duration: Duration, what: str) -> int:
    """A duration in whole milliseconds, rounded up so that no timer is early.

    Raises DefinitionError, naming *what*, for anything but a finite non-negative number of seconds or a timedelta.

    >>> duration_ms(0.25, "sleep 'x'")
    250
    """
    if isinstance(duration, bool) or not isinstance(duration, int | float | timedelta):
        raise DefinitionError(f"{what}: {duration!r} is not a duration; give seconds as a number, or a timedelta")
    is_negative = duration < timedelta(0) if isinstance(duration, timedelta) else duration < 0
    if is_negative:
        milliseconds = -1  # Rounded up, a little less than nothing would be nothing.
    elif isinstance(duration, timedelta):
        milliseconds = -(duration // timedelta(milliseconds=-1))
    elif isinstance(duration, float) and not math.isfinite(duration):
        raise DefinitionError(f"{what}: {duration!r} seconds is not a duration; give a finite number of seconds")
    elif abs(duration) > MILLISECONDS_MAX:
        milliseconds = MILLISECONDS_MAX + 1
    else:
        # Rounded first: 0.1 + 0.2 seconds are 300 ms to everybody but a float.
        milliseconds = math.ceil(round(duration * 1000, 6))
    if not 0 <= milliseconds <= MILLISECONDS_MAX:
        raise DefinitionError(
            f"{what}: {duration!r} is out of range; a duration is 0 or more, and ends before year 9999"
        )
    return milliseconds


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a run step's callback is tried, and how long to wait in between.

    After the k-th failure the next try is due ``initial × factor^(k-1)`` later, at most ``maximum`` (seconds or
    timedelta), plus a random part of up to ``jitter`` (a fraction from 0 to 1) of it. The defaults give 250, 500,
    1000 … 10000 ms and three attempts; an ``initial`` above 10 s needs a ``maximum``, too. ``max_attempts=None`` tries
    for ever. ``retry_on``: exception classes, or a predicate; other errors fail the step at once. ``max_elapsed``: no
    new try is planned to start later than this after the first one started. Raises DefinitionError for values out of
    range.

    >>> [RetryPolicy().delay_ms(failures, 0.0) for failures in (1, 2, 3, 7)]
    [250, 500, 1000, 10000]
    """

    max_attempts: int | None = 3
    initial: Duration = 0.25
    factor: float = 2
    maximum: Duration = 10
    jitter: float = 0
    retry_on: RetryOn | None = None
    max_elapsed: Duration | None = None

    def __post_init__(self) -> None:
        check_max_attempts(self.max_attempts, "RetryPolicy")
        duration_ms(self.initial, "RetryPolicy.initial")
        duration_ms(self.maximum, "RetryPolicy.maximum")
        if self.max_elapsed is not None:
            duration_ms(self.max_elapsed, "RetryPolicy.max_elapsed")
        for name, value, least, most in (("factor", self.factor, 1.0, 1e6), ("jitter", self.jitter, 0.0, 1.0)):
            if type(value) not in (int, float) or not least <= value <= most:
                raise DefinitionError(f"RetryPolicy.{name}={value!r} must be a number from {least:g} to {most:g}")
        _check_retry_on(self.retry_on)

    def delay_ms(self, failures: int, random: float) -> int:
        """Milliseconds from the *failures*-th failure to the next try; *random* in [0, 1) is for the jitter."""
        initial, maximum = duration_ms(self.initial, "initial"), duration_ms(self.maximum, "maximum")
        try:
            delay = min(float(maximum), initial * float(self.factor) ** (failures - 1))
        except OverflowError:
            delay = float(maximum)
        return round(delay * (1 + self.jitter * random))

    def max_elapsed_ms(self) -> int | None:
        """``max_elapsed`` in milliseconds."""
        return None if self.max_elapsed is None else duration_ms(self.max_elapsed, "max_elapsed")

    def is_retryable(self, error: BaseException) -> bool:
        """Whether *error* may be tried again; one error that may not makes a whole group so."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.is_retryable(leaf) for leaf in error.exceptions)
        if isinstance(error, NEVER_RETRIED):
            return False
        if self.retry_on is None:
            return True
        if isinstance(self.retry_on, type | tuple):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))


def check_max_attempts(value: Any, what: str) -> None:
    """Refuse anything but None or a whole number of at least 1."""
    if value is not None and (type(value) is not int or not 1 <= value <= ATTEMPTS_MAX):
        raise DefinitionError(
            f"{what}: max_attempts={value!r} must be a whole number from 1 to {ATTEMPTS_MAX}; None in a RetryPolicy "
            "means without limit"
        )


def _check_retry_on(retry_on: Any) -> None:
    classes = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if retry_on is None or all(isinstance(item, type) and issubclass(item, BaseException) for item in classes):
        return
    if isinstance(retry_on, type | tuple) or not callable(retry_on) or inspect.iscoroutinefunction(retry_on):
        raise DefinitionError(
            f"RetryPolicy.retry_on={retry_on!r} must be exception classes or a plain function from an error to a bool"
        )


DEFAULT_RETRY = RetryPolicy()
