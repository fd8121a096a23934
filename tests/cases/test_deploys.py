"""Deploys: steps that change places, a parallel step that is gone, and a mended definition that a pause waited for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.bodies import AWAKE, versions
from tests.support import Callback, async_test, definition, started, states, step_of

from workerflow import RetryPolicy, RunStep, SleepStep, WaitStep, WorkflowHeldError

HOUR_S = 3600
HOURLY = RetryPolicy(initial=HOUR_S, maximum=HOUR_S)


def kinds(call: Callback) -> dict[str, Callable[[Any, str], Any]]:
    """One step of each kind, all of which are over after an hour and the event 'go'."""
    return {
        "run": lambda self, step_id: self.run(step_id, call, retry=HOURLY),
        "sleep": lambda self, step_id: self.sleep(step_id, HOUR_S),
        "wait": lambda self, step_id: self.wait(step_id, "go"),
    }


@pytest.mark.parametrize("progress", ["pending", "over"])
@pytest.mark.parametrize(("kind", "other"), list(itertools.permutations(["run", "sleep", "wait"], 2)))
@async_test
async def test_steps_that_change_places_hold_the_instance_with_an_error_that_names_both_sides(
    kind: str, other: str, progress: str
) -> None:
    old, new = Callback("done", errors=[ConnectionError("no answer")]), Callback("done")

    async def before(self: Any) -> str:
        await asyncio.gather(kinds(old)[kind](self, "step-a"), kinds(old)[other](self, "step-b"))
        await self.wait("end", "end")
        return "as before"

    async def after(self: Any) -> str:
        await kinds(new)[other](self, "step-a")
        await kinds(new)[kind](self, "step-b")
        return "changed"

    changing, code = versions(before)
    async with started(changing, settings=AWAKE) as (engine, handle):
        if progress == "over":
            await handle.send("go")
            await engine.advance(HOUR_S)
        steps = await handle.steps()
        code[0] = after
        await engine.crash()
        with pytest.raises(WorkflowHeldError) as held:
            await handle.result(timeout=5)
        for words in ("'instance-1'", "step 'step-a' is stored as a {kind} ", "now asks for a {other} "):
            assert words.format(kind=kind, other=other) in str(held.value)
        await engine.advance(2 * HOUR_S)
        assert new.calls == 0
        assert await handle.steps() == steps

        code[0] = before
        await handle.resume()
        await handle.send("go")
        await handle.send("end")
        await engine.advance(HOUR_S)
        assert await handle.result(timeout=5) == "as before"
        assert old.calls == (2 if "run" in (kind, other) else 0)


@pytest.mark.parametrize("progress", ["pending", "over"])
@pytest.mark.parametrize("kind", ["run", "sleep", "wait"])
@async_test
async def test_a_parallel_step_that_new_code_lacks_is_abandoned_and_holds_up_nothing(kind: str, progress: str) -> None:
    old = Callback("done", errors=[ConnectionError("no answer")])

    async def before(self: Any) -> list[Any]:
        kept, _, missing = await asyncio.gather(
            self.wait("kept", "kept"), self.sleep("nap", 1), kinds(old)[kind](self, "missing")
        )
        return [kept, missing]

    async def after(self: Any) -> list[Any]:
        kept, _ = await asyncio.gather(self.wait("kept", "kept"), self.sleep("nap", 1))
        return [kept]

    changing, code = versions(before)
    async with started(changing, settings=AWAKE) as (engine, handle):
        await engine.advance(1)
        if progress == "over":
            await handle.send("go")
            await engine.advance(HOUR_S)
        calls = old.calls
        code[0] = after
        await engine.crash()

        assert (await handle.info()).held is None
        assert (await handle.info()).alarm_at is None
        await engine.advance(2 * HOUR_S)
        await handle.send("kept", "payload")
        assert await handle.result(timeout=5) == ["payload"]
        assert old.calls == calls
        missing = next(step for step in await handle.steps() if step.id == "missing")
        assert isinstance(missing, {"run": RunStep, "sleep": SleepStep, "wait": WaitStep}[kind])
        assert (missing.abandoned_at is not None) == (progress == "pending")


@async_test
async def test_a_workflow_paused_before_its_last_attempt_completes_with_mended_code_after_resume() -> None:
    broken, mended, before = Callback(always=ConnectionError("old address")), Callback("charged"), Callback("reserved")
    callback = broken

    @definition
    async def Charge(self: Any) -> list[Any]:
        reserved = await self.run("reserve", before, returns=str)
        return [reserved, await self.run("charge", callback, retry=HOURLY, returns=str)]

    async with started(Charge) as (engine, handle):
        await engine.advance(HOUR_S)
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "failed"]
        await handle.pause()
        await engine.advance(24 * HOUR_S)
        assert broken.calls == 2

        callback = mended
        await engine.crash()
        assert (await handle.status(), mended.calls) == ("paused", 0)
        await handle.resume()
        await engine.run_until_idle()
        assert await handle.result(timeout=5) == ["reserved", "charged"]
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "failed", "succeeded"]
        assert (before.calls, broken.calls, mended.calls) == (1, 2, 1)
