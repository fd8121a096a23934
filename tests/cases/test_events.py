"""Events: while nothing runs, after a wait that timed out, during a suspension, and in any order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.bodies import next_turn
from tests.signals import attempt_states
from tests.support import Callback, async_test, definition, started, step_of

from workerflow import UNSET, Engine, Receipt, WaitStep, WaitTimeoutError, WorkflowHandle
from workerflow.testing import SimulatedEngine


def beside(engine: SimulatedEngine, *workflows: Any) -> Engine:
    """An engine on the same file that executes nothing, as a web process has it."""
    return Engine(engine.url, workflows, execute=False)


async def waits(handle: WorkflowHandle[Any]) -> list[WaitStep]:
    """The waits of an instance, in creation order."""
    return [step for step in await handle.steps() if isinstance(step, WaitStep)]


@async_test
async def test_events_that_come_while_no_engine_executes_are_used_after_the_next_start(tmp_path: Path) -> None:
    before = Callback("before")

    @definition
    async def Waiting(self: Any) -> list[Any]:
        return [await self.run("before", before, returns=str), await self.wait("a", "go"), await self.wait("b", "go")]

    async with Engine(tmp_path / "a.db", [Waiting]) as engine:
        handle = engine.get(Waiting, "instance-1")
        await handle.create()
        while attempt_states(await handle.steps()).get("before") != ["succeeded"]:
            await next_turn()
    for payload in (1, 2):
        async with Engine(tmp_path / "a.db", [Waiting], execute=False) as sender:
            assert await sender.get(Waiting, "instance-1").send("go", payload) == Receipt.queued
    async with Engine(tmp_path / "a.db", [Waiting]) as engine:
        assert await engine.get(Waiting, "instance-1").result(timeout=30) == ["before", 1, 2]
    assert before.calls == 1


@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_after_a_wait_that_timed_out_the_next_event_goes_to_the_wait_that_is_alive(has_crashed: bool) -> None:
    @definition
    async def Patient(self: Any) -> Any:
        try:
            await self.wait("first", "paid", timeout=60)
        except WaitTimeoutError:
            return await self.wait("second", "paid", timeout=60)

    async with started(Patient) as (engine, handle):
        await engine.advance(60)
        if has_crashed:
            await engine.crash()
        assert await handle.send("paid", "late") == Receipt.used
        assert await handle.result(timeout=5) == "late"

        first, second = [await step_of(handle, step_id, WaitStep) for step_id in ("first", "second")]
        assert (first.state, first.payload) == ("timed_out", UNSET)
        assert (second.state, second.payload) == ("satisfied", "late")
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == ["second"]


@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_events_during_a_suspension_are_all_used_in_their_order_after_resume(has_crashed: bool) -> None:
    @definition
    async def Collector(self: Any) -> list[int]:
        return [await self.wait(f"wait-{number}", "message", int) for number in range(12)]

    async with started(Collector) as (engine, handle), beside(engine, Collector) as client:
        senders = [handle, client.get(Collector, handle.id)]
        await handle.send("message", 0)
        await handle.pause()
        for number in range(1, 11):
            assert await senders[number % 3 == 0].send("message", number) == Receipt.queued
            await engine.run_until_idle()
        if has_crashed:
            await engine.crash()
        assert [step.state for step in await waits(handle)] == ["satisfied", "waiting"]
        assert await handle.status() == "paused"

        await handle.resume()
        await engine.run_until_idle()
        assert [step.state for step in await waits(handle)] == ["satisfied"] * 11 + ["waiting"]
        await handle.send("message", 11)
        assert await handle.result(timeout=5) == list(range(12))


NAMES = ("paid", "packed", "sent", "returned", "rated")
EVENTS_EACH = 12


@pytest.mark.parametrize("seed", range(3))
@async_test
async def test_events_of_many_names_sent_in_any_order_are_all_handled_each_name_in_its_order(seed: int) -> None:
    shuffled = random.Random(seed)
    sequence = [name for name in NAMES for _ in range(EVENTS_EACH)]
    shuffled.shuffle(sequence)

    @definition
    async def Handling(self: Any) -> dict[str, list[int]]:
        async def handle_all(name: str) -> list[int]:
            heard = []
            for number in range(EVENTS_EACH):
                heard.append(await self.wait(f"{name}-{number}", name, int))
                if number % 5 == 0:
                    await self.sleep(f"{name}-nap-{number}", 1)
            return heard

        lists = await asyncio.gather(*(handle_all(name) for name in NAMES))
        return dict(zip(NAMES, lists, strict=True))

    async with started(Handling) as (engine, handle), beside(engine, Handling) as client:
        for number, name in enumerate(sequence):
            await shuffled.choice([handle, client.get(Handling, handle.id)]).send(name, number)
            # In between the engine finds its mail, time passes, or the process dies.
            for happening in shuffled.choices([None, engine.run_until_idle, engine.crash], [8, 4, 1]):
                if happening is not None:
                    await happening()
            if shuffled.random() < 0.2:
                await engine.advance(0.5)
        await engine.advance(EVENTS_EACH)
        heard = await handle.result(timeout=5)
        events = (await handle.info()).inbound_events

    assert sorted((event.payload, event.name) for event in events) == list(enumerate(sequence))
    assert heard == {name: [event.payload for event in events if event.name == name] for name in NAMES}
    claims = [event.claimed_by for event in events]
    assert None not in claims
    assert len(set(claims)) == len(sequence)
