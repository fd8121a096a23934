"""Callbacks that hang, crash or fail: each step has its own limits, and nothing waits for half an hour."""

import asyncio
import logging
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import Engine, NonRetryableStepError, RetryPolicy, RunStep, Settings
from workerflow.testing import SimulatedEngine


def seconds(later, earlier):
    return (later - earlier).total_seconds()


async def pauses_of(handle, step_id="call"):
    """Seconds from the end of each attempt to the start of the next."""
    attempts = (await step_of(handle, step_id, RunStep)).attempts
    return [seconds(later.started_at, earlier.ended_at) for earlier, later in pairwise(attempts)]


def one_step(call, **options):
    @definition
    async def OneStep(self):
        return await self.run("call", call, **options)

    return OneStep


@pytest.mark.weakness(11)
@async_test
async def test_an_attempt_that_hangs_ends_at_its_timeout_and_the_next_one_has_the_whole_time_again():
    hanging = Gate("done")
    workflow = one_step(hanging, timeout=60, returns=str)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await engine.advance(60 + 0.25 + 60)
        assert hanging.calls == hanging.cancellations == 2
        hanging.open()
        await engine.advance(0.5)

        assert await handle.result(timeout=5) == "done"
        attempts = (await step_of(handle, "call", RunStep)).attempts
        assert [attempt.state for attempt in attempts] == ["failed", "failed", "succeeded"]
        assert [attempt.error_name for attempt in attempts] == ["TimeoutError", "TimeoutError", None]
        assert [seconds(attempt.ended_at, attempt.started_at) for attempt in attempts] == [60, 60, 0]
        assert await pauses_of(handle) == [0.25, 0.5]


@pytest.mark.weakness(11)
@async_test
async def test_a_crash_in_a_callback_is_seen_at_the_next_start_and_not_half_an_hour_later():
    cut = Gate("done")

    async with SimulatedEngine([workflow := one_step(cut, returns=str)]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await cut.begun()
        crashed_at = engine.now()

        await engine.crash()

        (attempt,) = (await step_of(handle, "call", RunStep)).attempts
        assert (attempt.state, attempt.ended_at) == ("failed", crashed_at)
        assert "interrupted" in str(attempt.error_message)
        cut.open()
        await engine.advance(0.25)
        assert await handle.result(timeout=5) == "done"
        assert await pauses_of(handle) == [0.25]


class Reports(logging.Handler):
    """What is logged, one record at a time."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.records: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record):
        self.records.put_nowait(record.getMessage())


@pytest.mark.weakness(11)
@async_test
async def test_a_callback_that_hangs_is_reported_once_with_its_step_and_the_remedy(tmp_path):
    reports, workflow = Reports(), one_step(Gate())
    logger = logging.getLogger("workerflow")
    logger.addHandler(reports)
    try:
        settings = Settings(watchdog_s=0, poll_interval_ms=1, stop_grace_s=0)
        async with Engine(tmp_path / "a.db", [workflow], settings=settings) as engine:
            for name in ("first", "second"):
                await engine.get(workflow, name).create()
                async with asyncio.timeout(10):
                    report = await reports.records.get()
                assert f"step 'call' of workflow 'OneStep' instance {name!r}" in report
                assert "give the step a timeout" in report
            assert reports.records.empty()
    finally:
        logger.removeHandler(reports)


POLICIES = {
    "default": (RetryPolicy(max_attempts=5), [0.25, 0.5, 1, 2]),
    "constant": (RetryPolicy(max_attempts=4, initial=5, factor=1), [5, 5, 5]),
    "steep": (RetryPolicy(max_attempts=4, initial=1, factor=10, maximum=1000), [1, 10, 100]),
    "with a maximum": (RetryPolicy(max_attempts=5, initial=60, maximum=timedelta(minutes=3)), [60, 120, 180, 180]),
    "beyond ten seconds": (RetryPolicy(max_attempts=3, initial=3600, maximum=86400), [3600, 7200]),
    "without a pause": (RetryPolicy(max_attempts=4, initial=0), [0, 0, 0]),
    "within a time": (RetryPolicy(max_attempts=None, initial=10, factor=1, max_elapsed=35), [10, 10, 10]),
    "of one attempt": (RetryPolicy(max_attempts=1), []),
}


@pytest.mark.weakness(12)
@async_test
async def test_every_step_has_its_own_policy():
    calls = {name: Callback(always=ConnectionError()) for name in POLICIES}

    @definition
    async def Policies(self):
        steps = (self.run(name, calls[name], retry=policy) for name, (policy, _) in POLICIES.items())
        await asyncio.gather(*steps, return_exceptions=True)

    async with started(Policies) as (engine, handle):
        await engine.advance(timedelta(days=1))
        assert await handle.status() == "completed"
        assert {name: await pauses_of(handle, name) for name in POLICIES} == {
            name: pauses for name, (_, pauses) in POLICIES.items()
        }


@pytest.mark.weakness(12)
@async_test
async def test_jitter_spreads_the_retries_of_many_and_makes_none_early():
    policy = RetryPolicy(max_attempts=2, initial=100, maximum=1000, jitter=0.5)

    async with SimulatedEngine([workflow := one_step(Callback(always=ConnectionError()), retry=policy)]) as engine:
        handles = [engine.get(workflow, str(number)) for number in range(30)]
        for handle in handles:
            await handle.create()
        await engine.advance(200)
        pauses = [pause for handle in handles for pause in await pauses_of(handle)]

    assert len(pauses) == 30
    assert len(set(pauses)) > 20
    assert 100 <= min(pauses) < 110
    assert 140 < max(pauses) <= 150


@pytest.mark.weakness(12)
@async_test
async def test_a_step_without_a_limit_is_tried_until_it_succeeds_also_across_crashes():
    call = Callback("at last", errors=[ConnectionError()] * 50)
    policy = RetryPolicy(max_attempts=None, initial=1, factor=1)

    async with started(one_step(call, retry=policy, returns=str)) as (engine, handle):
        await engine.advance(20)
        await engine.crash()
        step = await step_of(handle, "call", RunStep)
        assert (step.max_attempts, len(step.attempts)) == (None, 21)
        await engine.advance(30)

        assert await handle.result(timeout=5) == "at last"
        assert states(await step_of(handle, "call", RunStep)) == ["failed"] * 50 + ["succeeded"]


@pytest.mark.weakness(12)
@pytest.mark.parametrize(
    ("retry_on", "errors"),
    [
        (ConnectionError, [ConnectionError(), KeyError()]),
        ((ConnectionError, OSError), [TimeoutError(), ValueError()]),
        (lambda error: "again" in str(error), [ValueError("try again"), ValueError("never")]),
        (None, [ValueError(), NonRetryableStepError()]),
    ],
)
@async_test
async def test_a_policy_says_which_errors_are_worth_another_try(retry_on, errors):
    call = Callback(errors=errors)
    policy = RetryPolicy(max_attempts=9, initial=0, retry_on=retry_on)

    async with started(one_step(call, retry=policy)) as (engine, handle):
        await engine.advance(600)
        assert await handle.status() == "failed"
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "failed"]
        assert call.calls == 2
