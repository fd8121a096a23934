"""Values: bytes in every shape, the failure record that a caller reads, and one result that is too large."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import Callback, async_test, definition, query, started, step_of

from workerflow import NonRetryableStepError, RunStep, Settings, WorkflowFailedError
from workerflow.testing import SimulatedEngine


@async_test
async def test_of_a_view_cut_from_a_large_buffer_only_its_own_bytes_are_stored() -> None:
    seen: list[Any] = []
    buffer = bytes(range(256)) * 4000

    @definition
    async def Cutting(self: Any) -> None:
        seen.append(await self.run("cut", Callback(memoryview(buffer)[1:11]), returns=memoryview))
        await self.wait("end", "end")

    async with started(Cutting) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        await handle.result(timeout=5)
        ((size,),) = query(engine, "select length(result_json) from attempts")

    assert size < 20
    assert len(seen) >= 2
    assert {(type(view), view.tobytes()) for view in seen} == {(memoryview, bytes(range(1, 11)))}


@pytest.mark.parametrize("kind", [dict[str, list[bytes]], None], ids=["declared", "undeclared"])
@async_test
async def test_bytes_within_dicts_and_lists_come_back_as_bytes_or_are_refused_with_their_path(kind: Any) -> None:
    seen: list[Any] = []
    value = {"parts": [b"", b"\x00\xff", bytes(range(256))], "none": []}

    @definition
    async def Nested(self: Any) -> None:
        seen.append(await self.run("give", Callback(value), returns=kind))
        await self.wait("end", "end")

    async with started(Nested) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        if kind is not None:
            await handle.result(timeout=5)
        else:
            with pytest.raises(WorkflowFailedError, match=r"\$\.parts\[0\]"):
                await handle.result(timeout=5)

    assert len(seen) >= 2 if kind is not None else seen == []
    assert all(again == value for again in seen)
    assert {type(part) for again in seen for part in again["parts"]} <= {bytes}


class DeclinedError(NonRetryableStepError):
    """As authors write them."""


@pytest.mark.parametrize("data", [None, {"code": 51, "retry_after": None, "hints": [{"field": "cvc"}]}])
@pytest.mark.parametrize("message", ["card 4242: declined, call us", "", "  spaces\nand lines  "])
@async_test
async def test_name_message_and_data_of_an_error_that_ends_a_step_reach_the_caller_unchanged(
    message: str, data: Any
) -> None:
    charge = Callback(always=DeclinedError(message, data))

    @definition
    async def Charge(self: Any) -> None:
        await self.run("charge", charge, max_attempts=5)

    async with started(Charge) as (engine, handle):
        for _ in range(2):
            with pytest.raises(WorkflowFailedError) as failed:
                await handle.result(timeout=5)
            assert (failed.value.error_name, failed.value.error_message) == ("DeclinedError", message)
            assert failed.value.data == data
            failure = (await handle.info()).failure
            assert failure is not None
            assert (failure.name, failure.message, failure.data) == ("DeclinedError", message, data)
            await engine.crash()
        assert len((await step_of(handle, "charge", RunStep)).attempts) == charge.calls == 1


@async_test
async def test_a_result_over_the_limit_fails_its_own_instance_and_the_others_go_on() -> None:
    @definition
    async def Giving(self: Any) -> int:
        text = await self.run("give", Callback("x" * self.input), returns=str)
        await self.wait("end", "end")
        return len(text)

    async with SimulatedEngine([Giving], settings=Settings(value_bytes_max=1000)) as engine:
        handles = [engine.get(Giving, str(number)) for number in range(6)]
        for number, handle in enumerate(handles):
            await handle.create(5000 if number % 3 == 0 else 500)
        await engine.run_until_idle()
        for number, handle in enumerate(handles):
            await handle.send("end")
            if number % 3:
                assert await handle.result(timeout=5) == 500
            else:
                with pytest.raises(WorkflowFailedError, match="limit is 1000"):
                    await handle.result(timeout=5)
