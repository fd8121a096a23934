"""Life cycle and control: create again, what a status shows, pause with steps in flight, cancel at any await."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.bodies import next_turn
from tests.signals import Gate, attempt_states
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    UNSET,
    Engine,
    Receipt,
    RunStep,
    WaitStep,
)
from workerflow.testing import SimulatedEngine

HOUR_S = 3600


@async_test
async def test_an_instance_has_the_id_that_it_was_created_with_and_its_output_is_its_input_echoed() -> None:
    @definition
    async def Echo(self: Any) -> Any:
        return self.input

    values = {"order-1042": {"sku": "tea", "cents": 900, "tags": [None, True, 1.5]}, "order-1043": "plain"}
    async with SimulatedEngine([Echo]) as engine:
        for instance_id, value in values.items():
            assert await engine.get(Echo, instance_id).create(value) is True
        await engine.crash()
        for instance_id, value in values.items():
            assert await engine.get(Echo, instance_id).result(timeout=5) == value
        assert sorted(summary.id for summary in await engine.list(Echo)) == sorted(values)


@async_test
async def test_a_second_create_while_running_joins_the_instance_and_after_its_end_gives_the_stored_result() -> None:
    gate = Gate("result")

    @definition
    async def Once(self: Any) -> list[Any]:
        return [self.input, await self.run("call", gate, returns=str)]

    async with SimulatedEngine([Once]) as engine:
        first, second = engine.get(Once, "instance-1"), engine.get(Once, "instance-1")
        assert await first.create(1) is True
        await gate.begun()
        assert await second.create(2) is False
        results = asyncio.gather(first.result(timeout=5), second.result(timeout=5))
        gate.open()
        assert [*await results] == [[1, "result"]] * 2

        await engine.crash()
        assert await engine.get(Once, "instance-1").create(3) is False
        assert await engine.get(Once, "instance-1").result(timeout=5) == [1, "result"]
        assert gate.calls == 1
        assert await lifecycle(first) == ["created", "started", "completed"]


@pytest.mark.parametrize(
    ("sent", "status", "result", "failure"),
    [
        (None, "running", UNSET, None),
        ("good", "completed", "good", None),
        ("bad", "failed", UNSET, ("ValueError", "bad")),
        ("cancel", "cancelled", UNSET, None),
    ],
)
@async_test
async def test_the_status_shows_what_an_instance_waits_for_and_how_it_ended(
    sent: str | None, status: str, result: Any, failure: Any
) -> None:
    @definition
    async def Judging(self: Any) -> str:
        verdict: str = await self.wait("verdict", "verdict", str)
        if verdict == "bad":
            raise ValueError(verdict)
        return verdict

    async with started(Judging) as (engine, handle):
        if sent == "cancel":
            await handle.cancel("enough")
        elif sent is not None:
            await handle.send("verdict", sent)
        await engine.run_until_idle()
        for _ in range(2):
            info, wait = await handle.info(), await step_of(handle, "verdict", WaitStep)
            assert await handle.status() == info.status == status
            assert info.result == result
            assert (info.failure and (info.failure.name, info.failure.message)) == failure
            assert wait.state == ("satisfied" if sent in ("good", "bad") else "waiting")
            assert [event.cancellation_reason for event in await handle.events()][-1] == (
                "enough" if sent == "cancel" else None
            )
            await engine.crash()


@async_test
async def test_two_steps_in_flight_at_pause_both_end_and_are_stored_and_nothing_follows_until_resume() -> None:
    gates, after = {name: Gate(name) for name in ("a", "b")}, Callback("after")

    @definition
    async def Branches(self: Any) -> list[str]:
        async def branch(name: str) -> list[str]:
            first = await self.run(f"first-{name}", gates[name], returns=str)
            return [first, await self.run(f"second-{name}", after, returns=str)]

        a, b = await asyncio.gather(branch("a"), branch("b"))
        return [*a, *b]

    async with SimulatedEngine([Branches]) as engine:
        handle = engine.get(Branches, "instance-1")
        await handle.create()
        for gate in gates.values():
            await gate.begun()
        await handle.pause()
        assert attempt_states(await handle.steps()) == {"first-a": ["started"], "first-b": ["started"]}
        for name in ("b", "a"):
            gates[name].open()
            while states(await step_of(handle, f"first-{name}", RunStep)) != ["succeeded"]:
                await next_turn()
        await engine.advance(HOUR_S)
        assert await handle.status() == "paused"
        assert attempt_states(await handle.steps()) == {"first-a": ["succeeded"], "first-b": ["succeeded"]}

        await engine.crash()
        assert (await handle.status(), after.calls) == ("paused", 0)
        await handle.resume()
        assert await handle.result(timeout=5) == ["a", "after", "b", "after"]
        assert [gate.calls for gate in gates.values()] == [1, 1]


@async_test
async def test_what_was_created_is_on_disk_and_goes_on_in_the_next_engine(tmp_path: Path) -> None:
    first, second = Callback("first"), Callback("second")

    @definition
    async def Long(self: Any) -> list[Any]:
        before = await self.run("first", first, returns=str)
        return [self.input, before, await self.wait("go", "go"), await self.run("second", second, returns=str)]

    for number in range(3):
        async with Engine(tmp_path / "a.db", [Long]) as engine:
            handle = engine.get(Long, "instance-1")
            assert await handle.create({"given": number}) is (number == 0)
            while attempt_states(await handle.steps()).get("first") != ["succeeded"] or len(await handle.steps()) < 2:
                await next_turn()
            assert await handle.status() == "running"
    async with Engine(tmp_path / "a.db", [Long]) as engine:
        handle = engine.get(Long, "instance-1")
        assert await handle.send("go", 7) == Receipt.used
        assert await handle.result(timeout=10) == [{"given": 0}, "first", 7, "second"]
        assert await lifecycle(handle) == ["created", "started", "completed"]
    assert (first.calls, second.calls) == (1, 1)
