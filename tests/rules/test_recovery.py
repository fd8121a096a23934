"""Taking over what an earlier process left: recoveries, changed types, and the order of rows in a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import Engine, RetryPolicy, RunStep, Settings, WorkflowDefinition, WorkflowHandle, WorkflowHeldError
from workerflow.testing import SimulatedEngine

PATIENT = RetryPolicy(max_attempts=100, initial=1, factor=1)
DAY_S = 86_400  # A simulated clock moves on beside a callback only if time could end it.


def named(input_type: Any, execute: Callable[[Any], Any]) -> type[WorkflowDefinition[Any, Any]]:
    """The definition 'Changed' with this input type and this code: another process may have another one."""

    class Changed(WorkflowDefinition[input_type, Any]):
        async def execute(self) -> Any:
            return await execute(self)

    return Changed


def changed(engine: Engine) -> WorkflowHandle[Any]:
    """The one instance of it."""
    return engine.get("Changed", "c-1")


@async_test
async def test_an_instance_whose_process_dies_too_often_in_its_callback_is_held_until_resume() -> None:
    gate = Gate("done")

    @definition
    async def Deadly(self: Any) -> Any:
        return await self.run("call", gate, retry=PATIENT, timeout=DAY_S, returns=str)

    async with started(Deadly, settings=Settings(recoveries_max=3)) as (engine, handle):
        for crash in range(1, 4):
            await engine.crash()
            assert (await handle.info()).recoveries == crash
            assert (await handle.info()).held is None
            await engine.advance(1)
        await engine.crash()
        info = await handle.info()
        assert info.held is not None
        assert "4 times" in info.held
        with pytest.raises(WorkflowHeldError):
            await handle.result(timeout=5)

        gate.open()
        await handle.resume()
        await engine.advance(1)
        assert await handle.result(timeout=5) == "done"
        assert (await handle.info()).recoveries == 0


@async_test
async def test_an_outcome_of_a_callback_begins_the_count_of_recoveries_anew() -> None:
    gate = Gate("done")
    flaky = Callback("ok", errors=[ValueError("first")])

    @definition
    async def Mixed(self: Any) -> Any:
        await asyncio.gather(
            self.run("gate", gate, retry=PATIENT, timeout=DAY_S), self.run("flaky", flaky, retry=PATIENT)
        )

    async with started(Mixed, settings=Settings(recoveries_max=3)) as (engine, handle):
        await engine.crash()
        assert (await handle.info()).recoveries == 1
        await engine.advance(1)
        assert states(await step_of(handle, "flaky", RunStep)) == ["failed", "succeeded"]
        assert (await handle.info()).recoveries == 0


@async_test
async def test_a_take_over_without_a_callback_in_flight_is_no_recovery() -> None:
    @definition
    async def Waiting(self: Any) -> Any:
        await self.wait("go", "go")

    async with started(Waiting) as (engine, handle):
        for _ in range(3):
            await engine.crash()
        assert (await handle.info()).recoveries == 0


@async_test
async def test_a_stored_input_that_is_not_what_the_definition_declares_any_more_holds_the_instance(
    tmp_path: Path,
) -> None:
    async def wait(self: Any) -> Any:
        return [self.input, await self.wait("go", "go")]

    async with Engine(tmp_path / "a.db", [named(str, wait)]) as engine:
        await engine.get("Changed", "c-1").create("text")
    async with Engine(tmp_path / "a.db", [named(int, wait)]) as engine:
        handle = changed(engine)
        await handle.send("go", 1)
        with pytest.raises(WorkflowHeldError, match="stored input"):
            await handle.result(timeout=20)
        assert await handle.status() == "running"
    async with Engine(tmp_path / "a.db", [named(str, wait)]) as engine:
        handle = changed(engine)
        await handle.resume()
        assert await handle.result(timeout=20) == ["text", 1]


@async_test
async def test_a_stored_result_that_is_not_what_the_callback_declares_any_more_holds_the_instance(
    tmp_path: Path,
) -> None:
    def program(result_type: Any) -> type[WorkflowDefinition[Any, Any]]:
        async def execute(self: Any) -> Any:
            return [await self.run("call", Callback("text"), returns=result_type), await self.wait("go", "go")]

        return named(Any, execute)

    async with Engine(tmp_path / "a.db", [program(str)]) as engine:
        handle = changed(engine)
        await handle.create()
        while len(await handle.steps()) < 2:
            await asyncio.wait({asyncio.ensure_future(handle.status())})
    async with Engine(tmp_path / "a.db", [program(int)]) as engine:
        handle = changed(engine)
        await handle.send("go", 1)
        with pytest.raises(WorkflowHeldError, match="stored result of step 'call'"):
            await handle.result(timeout=20)
    async with Engine(tmp_path / "a.db", [program(str)]) as engine:
        handle = changed(engine)
        await handle.resume()
        assert await handle.result(timeout=20) == ["text", 1]


@async_test
async def test_a_retry_without_delay_starts_in_the_batch_of_the_failure_before_it() -> None:
    call = Callback("ok", errors=[ValueError("first")])

    @definition
    async def Quick(self: Any) -> Any:
        return await self.run("call", call, retry=RetryPolicy(initial=0))

    async with started(Quick) as (_, handle):
        assert await handle.status() == "completed"
        assert (await handle.info()).held is None
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "succeeded"]


@async_test
async def test_an_attempt_may_begin_and_be_cut_in_one_batch() -> None:
    call = Callback("never")

    @definition
    async def Cancelled(self: Any) -> Any:
        await self.run("call", call)

    async with SimulatedEngine([Cancelled]) as engine:
        handle = engine.get(Cancelled, "c-1")
        creating = asyncio.ensure_future(handle.create())
        cancelling = asyncio.ensure_future(handle.cancel("at once"))
        await asyncio.gather(creating, cancelling)
        await engine.run_until_idle()

        assert await handle.status() == "cancelled"
        assert (await handle.info()).held is None
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]


@async_test
async def test_a_graceful_stop_leaves_a_callback_that_waits_for_a_nested_step_to_be_entered_again(
    tmp_path: Path,
) -> None:
    @definition
    async def Nested(self: Any) -> Any:
        async def outer() -> int:
            value: int = await self.wait("inner", "go", int)
            return value

        return await self.run("outer", outer)

    async with Engine(tmp_path / "a.db", [Nested], settings=Settings(stop_grace_s=60)) as engine:
        handle = engine.get(Nested, "n-1")
        await handle.create()
        while len(await handle.steps()) < 2:
            await asyncio.wait({asyncio.ensure_future(handle.status())})
        began = asyncio.get_running_loop().time()
    # Not for such a one does a stop wait its minute.
    assert asyncio.get_running_loop().time() - began < 30
    async with Engine(tmp_path / "a.db", [Nested]) as engine:
        handle = engine.get(Nested, "n-1")
        await handle.send("go", 7)
        assert await handle.result(timeout=20) == 7
        assert states(await step_of(handle, "outer", RunStep)) == ["succeeded"]
