"""Section 8: steps side by side, and what "wait for all" and "fail fast" make of them."""

import asyncio

import pytest
from tests.signals import Gate, attempt_states, watched
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import NonRetryableStepError, RunStep, WaitStep
from workerflow.testing import SimulatedEngine


@pytest.mark.spec(107)
@async_test
async def test_parallel_branches_with_nested_runs_each_keep_their_own_branch_as_parent():
    @definition
    async def Branches(self):
        async def branch(name):
            return await self.run(f"inner-{name}", Callback(name), returns=str)

        return await asyncio.gather(*(self.run(f"branch-{name}", branch, name, returns=str) for name in ("a", "b")))

    async with started(Branches) as (_, handle):
        assert await handle.result(timeout=5) == ["a", "b"]
        steps = await handle.steps()

    assert {step.id: step.parent_step_id for step in steps} == {
        "branch-a": None,
        "branch-b": None,
        "inner-a": "branch-a",
        "inner-b": "branch-b",
    }
    assert list(attempt_states(steps).values()) == [["succeeded"]] * 4


@pytest.mark.spec(108)
@async_test
async def test_collecting_all_waits_for_the_wait_and_completes_with_both_results():
    @definition
    async def Collect(self):
        return await asyncio.gather(
            self.run("charge", Callback("charged"), returns=str),
            self.wait("payment", "paid", int),
            return_exceptions=True,
        )

    async with started(Collect) as (_, handle):
        assert await handle.status() == "running"
        assert states(await step_of(handle, "charge", RunStep)) == ["succeeded"]
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"
        assert len(await handle.steps()) == 2

        await handle.send("paid", 7)

        assert await handle.result(timeout=5) == ["charged", 7]
        assert (await step_of(handle, "payment", WaitStep)).state == "satisfied"
        assert len(await handle.steps()) == 2


@pytest.mark.spec(108)
@async_test
async def test_collecting_all_waits_for_a_wait_nested_in_a_branch():
    @definition
    async def Collect(self):
        async def branch():
            await self.run("inner", Callback())
            return await self.wait("payment", "paid", int)

        return await asyncio.gather(
            self.run("charge", Callback("charged"), returns=str),
            self.run("branch", branch, returns=int),
            return_exceptions=True,
        )

    async with started(Collect) as (_, handle):
        assert await handle.status() == "running"
        assert states(await step_of(handle, "branch", RunStep)) == ["started"]
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"

        await handle.send("paid", 7)

        assert await handle.result(timeout=5) == ["charged", 7]
        assert states(await step_of(handle, "branch", RunStep)) == ["succeeded"]


@pytest.mark.spec(109)
@async_test
async def test_collecting_all_completes_though_one_run_failed_for_good():
    @definition
    async def Collect(self):
        results = await asyncio.gather(
            self.run("charge", Callback(always=NonRetryableStepError("declined"))),
            self.run("notify", Callback()),
            return_exceptions=True,
        )
        return repr(results[0])

    async with started(Collect) as (_, handle):
        assert await handle.result(timeout=5) == repr(NonRetryableStepError("declined"))
        (attempt,) = (await step_of(handle, "charge", RunStep)).attempts
        assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError")
        assert states(await step_of(handle, "notify", RunStep)) == ["succeeded"]
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(110)
@async_test
async def test_code_that_raises_whatever_it_collected_meets_no_suspension():
    reached: list[str] = []

    @definition
    async def Collect(self):
        reached.append("begun")
        results = await asyncio.gather(
            self.run("charge", Callback()), self.wait("payment", "paid"), return_exceptions=True
        )
        reached.append("collected")
        for result in results:
            if isinstance(result, BaseException):
                raise result

    runtime = watched(Collect)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await engine.run_until_idle()

        assert await handle.status() == "running"
        assert reached == ["begun"]
        assert runtime.statuses == ["running"]
        assert states(await step_of(handle, "charge", RunStep)) == ["succeeded"]
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"


@pytest.mark.spec(111)
@async_test
async def test_failing_fast_over_a_slow_run_and_a_wait_keeps_both_pending():
    slow = Gate("done")

    @definition
    async def FailFast(self):
        return await asyncio.gather(self.run("slow", slow, returns=str), self.wait("payment", "paid", int))

    runtime = watched(FailFast)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await slow.begun()

        assert await handle.status() == "running"
        assert states(await step_of(handle, "slow", RunStep)) == ["started"]
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"
        assert (await handle.info()).alarm_at is None
        assert runtime.statuses == ["running"]

        slow.open()
        await engine.run_until_idle()

        assert states(await step_of(handle, "slow", RunStep)) == ["succeeded"]
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"
        assert runtime.statuses == ["running"]

        await handle.send("paid", 7)
        assert await handle.result(timeout=5) == ["done", 7]
        assert slow.calls == 1


@pytest.mark.spec(111)
@async_test
async def test_failing_fast_fails_the_workflow_and_abandons_the_wait():
    @definition
    async def FailFast(self):
        await asyncio.gather(
            self.run("charge", Callback(always=NonRetryableStepError("declined"))), self.wait("payment", "paid")
        )

    async with started(FailFast) as (_, handle):
        assert await handle.status() == "failed"
        wait = await step_of(handle, "payment", WaitStep)
        assert wait.state == "waiting"
        assert wait.abandoned_at is not None
