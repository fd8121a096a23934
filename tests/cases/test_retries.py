"""Retries: the shapes of back-off as they are lived, and a retry that is pending when the process dies."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.bodies import AWAKE
from tests.support import async_test, definition, step_of

from workerflow import RetryPolicy, RunStep, current_attempt
from workerflow.testing import SimulatedEngine

MILLISECOND = timedelta(milliseconds=1)
PATIENT = RetryPolicy(max_attempts=4, initial=60, factor=1, maximum=60)


class Calls:
    """A callback that fails *failures* times and notes the number and the time of each call."""

    def __init__(self, failures: int) -> None:
        self.engine: SimulatedEngine | None = None
        self.numbers: list[int] = []
        self.times: list[datetime] = []
        self._failures = failures

    async def __call__(self) -> str:
        attempt = current_attempt()
        assert self.engine is not None
        self.numbers.append(attempt.number)
        self.times.append(self.engine.now())
        if len(self.numbers) <= self._failures:
            raise ConnectionError("no answer")
        return "answer"


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (RetryPolicy(max_attempts=5, initial=2, factor=1), [2, 2, 2, 2]),
        (RetryPolicy(max_attempts=5, initial=2, factor=2, maximum=60), [2, 4, 8, 16]),
        (RetryPolicy(max_attempts=5, initial=2, factor=10, maximum=30), [2, 20, 30, 30]),
        (RetryPolicy(max_attempts=5, initial=0), [0, 0, 0, 0]),
    ],
    ids=["constant", "exponential", "capped", "at-once"],
)
@async_test
async def test_calls_are_as_far_apart_as_the_policy_says(policy: RetryPolicy, seconds: list[int]) -> None:
    calls = Calls(failures=4)

    @definition
    async def Retrying(self: Any) -> str:
        answer: str = await self.run("call", calls, retry=policy, returns=str)
        return answer

    async with SimulatedEngine([Retrying]) as engine:
        calls.engine = engine
        handle = engine.get(Retrying, "instance-1")
        await handle.create()
        await engine.advance(sum(seconds))
        assert await handle.result(timeout=5) == "answer"

    delays = [later - sooner for sooner, later in itertools.pairwise(calls.times)]
    assert [delay.total_seconds() for delay in delays] == seconds
    assert calls.numbers == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{}, {"settings": AWAKE}], ids=["left-to-its-alarm", "in-memory"])
@async_test
async def test_a_retry_that_is_pending_when_the_process_dies_is_made_at_its_time_with_the_next_number(
    options: dict[str, Any],
) -> None:
    calls = Calls(failures=3)

    @definition
    async def Retrying(self: Any) -> str:
        answer: str = await self.run("call", calls, retry=PATIENT, returns=str)
        return answer

    async with SimulatedEngine([Retrying], **options) as engine:
        calls.engine = engine
        handle = engine.get(Retrying, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        planned = []
        for failure in range(1, 4):
            await engine.advance(20)
            await engine.crash()
            due = (await step_of(handle, "call", RunStep)).attempts[-1].next_attempt_at
            assert due == engine.now() + timedelta(seconds=40)
            planned.append(due)
            await engine.advance(timedelta(seconds=40) - MILLISECOND)
            await engine.crash()
            assert len(calls.times) == failure
            await engine.advance(MILLISECOND)
        assert await handle.result(timeout=5) == "answer"
        step = await step_of(handle, "call", RunStep)

    assert calls.times[1:] == planned
    assert calls.numbers == [attempt.number for attempt in step.attempts] == [1, 2, 3, 4]
