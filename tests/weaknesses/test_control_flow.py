"""The author's code meets no control flow of the engine, and a caught error takes the same branch every time."""

import asyncio
from datetime import timedelta

import pytest
from tests.bodies import AWAKE
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import (
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RetryPolicy,
    RunStep,
    Settings,
    WaitStep,
    WaitTimeoutError,
)

DAY = timedelta(days=1)


def failing_twice():
    return Callback(7, errors=[ConnectionError(), ConnectionError()])


async def a_wait(self, charge):
    return await self.wait("payment", "paid", int)


async def a_sleep(self, charge):
    await self.sleep("night", 60)
    return 7


async def a_retrying_run(self, charge):
    return await self.run("charge", charge, returns=int)


def in_a_callback(suspending):
    async def suspending_in_a_callback(self, charge):
        async def outer():
            try:
                return await suspending(self, charge)
            except BaseException:
                await self.run("inner-fallback", Callback())
                return -1

        return await self.run("outer", outer, returns=int)

    return suspending_in_a_callback


async def a_gather(self, charge):
    return sum(await asyncio.gather(a_wait(self, charge), a_sleep(self, charge), a_retrying_run(self, charge)))


@pytest.mark.weakness(1)
@pytest.mark.parametrize("has_crashed", [False, True], ids=["", "crashed"])
@pytest.mark.parametrize(
    ("suspending", "result"),
    [
        (a_wait, 7),
        (a_sleep, 7),
        (a_retrying_run, 7),
        (in_a_callback(a_wait), 7),
        (in_a_callback(a_retrying_run), 7),
        (a_gather, 21),
        (in_a_callback(a_gather), 21),
    ],
    ids=["wait", "sleep", "run", "nested wait", "nested run", "gather", "nested gather"],
)
@async_test
async def test_catching_everything_around_what_waits_changes_nothing(suspending, result, has_crashed):
    charge = failing_twice()

    @definition
    async def Suspicious(self):
        try:
            return await suspending(self, charge)
        except BaseException:
            await self.run("fallback", Callback())
            return -1

    # What a crash cuts short catches that too, and would be waited for.
    async with started(Suspicious, settings=Settings(finish_grace_s=0)) as (engine, handle):
        assert await handle.status() == "running"
        if has_crashed:
            await engine.crash()
            assert await handle.status() == "running"
        await handle.send("paid", 7)
        await engine.advance(60)

        assert await handle.result(timeout=5) == result
        assert {step.id for step in await handle.steps()}.isdisjoint({"fallback", "inner-fallback"})
        waits = [step for step in await handle.steps() if isinstance(step, WaitStep)]
        assert [step.state for step in waits] == ["satisfied"] * len(waits)


@pytest.mark.weakness(1)
@pytest.mark.normal_only("what a dropped body catches is its cancellation")
@async_test
async def test_nothing_is_raised_into_a_body_that_waits():
    caught = []
    charge = failing_twice()

    @definition
    async def Catching(self):
        for suspending in (a_retrying_run, a_sleep, a_wait):
            try:
                await suspending(self, charge)
            except BaseException as error:
                caught.append(error)
                raise

    async with started(Catching, settings=AWAKE) as (engine, handle):
        await engine.advance(5)
        await engine.advance(60)
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) is None
    assert caught == []


@pytest.mark.weakness(1)
@async_test
async def test_collecting_exceptions_collects_results_only():
    charge = failing_twice()

    @definition
    async def Collecting(self):
        suspending = (a_wait, a_sleep, a_retrying_run)
        return await asyncio.gather(*(one(self, charge) for one in suspending), return_exceptions=True)

    async with started(Collecting) as (engine, handle):
        await engine.advance(60)
        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == [7, 7, 7]


class DeclinedError(Exception):
    """A failure of the author's own."""


def described(error):
    """All that a branch could be chosen by."""
    cause = error.__cause__
    return [type(error).__name__, str(error), getattr(error, "data", None), type(cause).__name__, str(cause or "")]


FAILURES = {
    "not retryable": (NonRetryableStepError("declined", {"code": 51}), {}, NonRetryableStepError),
    "exhausted": (DeclinedError("no money"), {"max_attempts": 2}, MaxAttemptsExceededError),
    "not tried again": (DeclinedError("no money"), {"retry": RetryPolicy(retry_on=OSError)}, MaxAttemptsExceededError),
}


@pytest.mark.weakness(2)
@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
@pytest.mark.parametrize(("error", "options", "kind"), FAILURES.values(), ids=FAILURES)
@async_test
async def test_a_caught_step_error_is_the_same_on_every_replay_and_leads_to_the_same_branch(
    error, options, kind, nested
):
    seen = []
    charge, undo = Callback(always=error), Callback("undone")

    @definition
    async def Compensating(self):
        async def guarded():
            return await self.run("charge", charge, **options)

        try:
            await (self.run("guarded", guarded) if nested else guarded())
        except kind as caught:
            seen.append(described(caught))
            undone = await self.run("undo", undo, returns=str)
            await self.wait("close", "closed")
            return undone
        except BaseException as other:
            await self.run("another-branch", Callback(), described(other))

    async with started(Compensating) as (engine, handle):
        await engine.advance(60)
        for _ in range(3):
            await engine.crash()
        await handle.send("closed")

        assert await handle.result(timeout=5) == "undone"
        assert "another-branch" not in [step.id for step in await handle.steps()]
        assert len(seen) >= 2
        assert seen == [seen[0]] * len(seen)
        assert (charge.calls, undo.calls) == (options.get("max_attempts", 1), 1)


@pytest.mark.weakness(2)
@async_test
async def test_a_failed_sequence_is_undone_newest_first_across_crashes():
    done = []

    async def act(name):
        done.append(name)

    @definition
    async def Saga(self):
        undos = []
        try:
            for name in ("hotel", "flight", "car"):
                await self.run(name, act, name)
                undos.append(name)
            await self.run("charge", Callback(always=NonRetryableStepError("declined")))
        except NonRetryableStepError as error:
            while undos:
                name = undos.pop()
                await self.wait(f"agreed-{name}", "agreed")
                await self.run(f"undo-{name}", act, f"undo {name}: {error}")
            raise

    async with started(Saga) as (engine, handle):
        for _ in range(3):
            await engine.crash()
            await handle.send("agreed")
            await engine.run_until_idle()

        assert await handle.status() == "failed"
        undone = [f"undo {name}: declined" for name in ("car", "flight", "hotel")]
        assert done == ["hotel", "flight", "car", *undone]


@pytest.mark.weakness(13)
@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
@async_test
async def test_a_caught_wait_timeout_goes_on_and_a_late_event_serves_the_next_wait(nested):
    remind = Callback()

    @definition
    async def Reminding(self):
        async def ask():
            for number in range(3):
                try:
                    return await self.wait(f"answer-{number}", "answered", str, timeout=DAY)
                except WaitTimeoutError:
                    await self.run(f"remind-{number}", remind)
            return "no answer"

        return await (self.run("ask", ask, returns=str) if nested else ask())

    async with started(Reminding) as (engine, handle):
        await engine.advance(DAY)
        await engine.crash()
        await engine.advance(DAY)
        await engine.crash()
        await handle.send("answered", "yes")

        assert await handle.result(timeout=5) == "yes"
        assert remind.calls == 2
        waits = [(await step_of(handle, f"answer-{number}", WaitStep)).state for number in range(3)]
        assert waits == ["timed_out", "timed_out", "satisfied"]
        assert states(await step_of(handle, "remind-1", RunStep)) == ["succeeded"]
