"""Run steps: fallbacks, policies with gaps, policies that somebody changes, and collecting a failing branch."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from tests.bodies import next_turn
from tests.signals import Gate, attempt_states
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import MaxAttemptsExceededError, NonRetryableStepError, RetryPolicy, RunStep, WorkflowFailedError
from workerflow.testing import SimulatedEngine


@async_test
async def test_a_fallback_step_runs_when_the_step_before_it_has_failed_for_good() -> None:
    charge, invoice = Callback(always=ConnectionError("no answer")), Callback("invoiced")

    @definition
    async def Order(self: Any) -> str:
        try:
            paid: str = await self.run("charge", charge, max_attempts=2, returns=str)
        except MaxAttemptsExceededError:
            paid = await self.run("invoice", invoice, returns=str)
        await self.wait("end", "end")
        return paid

    async with started(Order) as (engine, handle):
        assert invoice.calls == 0
        await engine.advance(0.25)
        assert (charge.calls, invoice.calls) == (2, 1)
        await engine.crash()
        await handle.send("end")

        assert await handle.result(timeout=5) == "invoiced"
        assert (charge.calls, invoice.calls) == (2, 1)
        assert attempt_states(await handle.steps()) == {"charge": ["failed", "failed"], "invoice": ["succeeded"]}


@pytest.mark.parametrize(
    ("options", "max_attempts", "delays_ms"),
    [
        ({}, 3, [250, 500]),
        ({"max_attempts": 2}, 2, [250]),
        ({"retry": RetryPolicy(max_attempts=4)}, 4, [250, 500, 1000]),
        ({"retry": RetryPolicy(max_attempts=None, max_elapsed=2)}, None, [250, 500, 1000]),
        ({"retry": RetryPolicy(initial=8)}, 3, [8000, 10_000]),
        ({"retry": RetryPolicy(factor=3)}, 3, [250, 750]),
        ({"retry": RetryPolicy(maximum=0.3)}, 3, [250, 300]),
    ],
    ids=str,
)
@async_test
async def test_what_a_policy_leaves_out_has_its_default_and_the_step_shows_what_counts(
    options: dict[str, Any], max_attempts: int | None, delays_ms: list[int]
) -> None:
    @definition
    async def Failing(self: Any) -> None:
        await self.run("call", Callback(always=ConnectionError("no answer")), **options)

    async with started(Failing) as (engine, handle):
        await engine.advance(60)
        assert await handle.status() == "failed"
        step = await step_of(handle, "call", RunStep)

    assert step.max_attempts == max_attempts
    starts = [attempt.started_at for attempt in step.attempts]
    delays = [later - sooner for sooner, later in itertools.pairwise(starts)]
    assert [delay.total_seconds() * 1000 for delay in delays] == delays_ms


@async_test
async def test_a_policy_that_the_callback_changes_leaves_the_limit_of_attempts_as_it_was() -> None:
    policy = RetryPolicy(max_attempts=2)
    with pytest.raises(FrozenInstanceError):
        policy.max_attempts = 99  # type: ignore[misc]  # that it cannot be assigned is what is shown

    async def call(given: RetryPolicy) -> None:
        object.__setattr__(given, "max_attempts", 99)
        raise ConnectionError("no answer")

    @definition
    async def Failing(self: Any) -> None:
        await self.run("call", call, policy, retry=policy)

    async with started(Failing) as (engine, handle):
        await engine.advance(3600)
        assert await handle.status() == "failed"
        step = await step_of(handle, "call", RunStep)
        assert (step.max_attempts, states(step)) == (2, ["failed", "failed"])


@pytest.mark.parametrize("option", [{"max_atempts": 5}, {"retries": RetryPolicy()}, {"timeout_s": 1}], ids=str)
@async_test
async def test_an_option_that_there_is_not_fails_the_workflow_before_anything_runs(option: dict[str, Any]) -> None:
    call = Callback()

    @definition
    async def Misspelt(self: Any) -> None:
        await self.run("call", call, **option)

    async with started(Misspelt) as (_, handle):
        with pytest.raises(WorkflowFailedError, match=next(iter(option))) as failed:
            await handle.result(timeout=5)
        assert failed.value.error_name == "TypeError"
        assert (call.calls, await handle.steps()) == (0, [])


@async_test
async def test_collecting_all_waits_for_the_slow_branch_and_the_first_failure_is_raised_the_same_on_replay() -> None:
    done, slow = Callback("done"), Gate("slow")
    first, second = NonRetryableStepError("first", {"code": 1}), NonRetryableStepError("second")
    collected: list[list[str]] = []

    @definition
    async def Collect(self: Any) -> None:
        already = self.run("done", done, returns=str)
        await already
        results = await asyncio.gather(
            already,
            self.run("slow", slow, returns=str),
            self.run("first", Callback(always=first)),
            self.run("second", Callback(always=second)),
            return_exceptions=True,
        )
        collected.append([repr(result) for result in results])
        failure = next(result for result in results if isinstance(result, BaseException))
        await self.wait("end", "end")
        raise failure

    async with SimulatedEngine([Collect]) as engine:
        handle = engine.get(Collect, "instance-1")
        await handle.create()
        await slow.begun()
        while attempt_states(await handle.steps()).get("second") != ["failed"]:
            await next_turn()
        assert await handle.status() == "running"
        assert collected == []

        slow.open()
        await engine.run_until_idle()
        await engine.crash()
        await handle.send("end")
        with pytest.raises(WorkflowFailedError) as failed:
            await handle.result(timeout=5)

    assert (failed.value.error_name, failed.value.error_message, failed.value.data) == (
        "NonRetryableStepError", "first", {"code": 1}
    )  # fmt: skip
    assert len(collected) >= 2
    assert {tuple(results) for results in collected} == {("'done'", "'slow'", repr(first), repr(second))}
    assert (done.calls, slow.calls) == (1, 1)
