"""What an author is told when a workflow fails, waits for ever, or forgets to wait."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.support import Callback, async_test, definition, started

from workerflow import MaxAttemptsExceededError, WorkflowFailedError


def look_up(prices: dict[str, int]) -> int:
    return prices["missing sku"]


async def price() -> int:
    return look_up({})


@definition
async def Priced(self: Any) -> Any:
    return await self.run("price", price, max_attempts=1)


@async_test
async def test_a_failed_workflow_shows_where_its_callback_raised() -> None:
    async with started(Priced) as (_, handle):
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=5)

    assert "in look_up" in caught.value.traceback
    assert any("in look_up" in note for note in caught.value.__notes__)
    assert "KeyError" in caught.value.error_message


@async_test
async def test_a_failed_attempt_and_a_failed_workflow_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with started(Priced):
        pass

    logged = {record.levelno: record.getMessage() for record in caplog.records}
    assert "attempt 1 of step 'price'" in logged[logging.INFO]
    assert "in look_up" in logged[logging.INFO]
    assert "fails: MaxAttemptsExceededError" in logged[logging.ERROR]


@async_test
async def test_the_error_of_a_step_without_attempts_left_says_what_the_last_one_failed_with() -> None:
    messages: list[str] = []

    @definition
    async def Caught(self: Any) -> None:
        try:
            await self.run("price", price, max_attempts=1)
        except MaxAttemptsExceededError as error:
            messages.append(str(error))
            await self.wait("end", "end")

    async with started(Caught) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        await engine.run_until_idle()
        assert await handle.status() == "completed"

    assert "KeyError: 'missing sku'" in messages[0]
    assert messages[0] == messages[1]


@async_test
async def test_an_error_raised_again_and_again_does_not_collect_its_tracebacks() -> None:
    @definition
    async def Nested(self: Any) -> None:
        async def outer() -> None:
            await self.run("inner", price, max_attempts=1)

        await self.run("outer", outer, max_attempts=1)

    async with started(Nested) as (_, handle):
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=5)

    assert caught.value.traceback.count("in look_up") <= 3


@async_test
async def test_a_workflow_that_ends_without_waiting_for_a_step_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    call = Callback()

    @definition
    async def Forgetful(self: Any) -> str:
        self.run("forgotten", call)
        return "done"

    async with started(Forgetful) as (_, handle):
        assert await handle.result(timeout=5) == "done"

    assert call.calls == 0
    assert "ended without waiting for 'forgotten'" in caplog.text


@async_test
async def test_a_nested_id_used_by_two_callbacks_at_once_is_refused_and_nothing_hangs() -> None:
    @definition
    async def Colliding(self: Any) -> None:
        async def outer() -> None:
            await self.run("inner", Callback(), max_attempts=1)

        await asyncio.gather(self.run("one", outer, max_attempts=1), self.run("two", outer, max_attempts=1))

    async with started(Colliding) as (engine, handle):
        await engine.advance(10)
        with pytest.raises(WorkflowFailedError, match="ids are unique in the whole instance"):
            await handle.result(timeout=5)


@async_test
async def test_a_result_that_does_not_come_says_how_the_workflow_stands() -> None:
    @definition
    async def Parked(self: Any) -> None:
        await self.wait("end", "end")

    async with started(Parked) as (engine, handle):
        with pytest.raises(TimeoutError, match=r"'instance-1' has no result after 0\.01 s: it is running"):
            await handle.result(timeout=0.01)
        assert repr(handle) == "WorkflowHandle('Parked', 'instance-1')"
        assert repr(engine).startswith("Engine('")
