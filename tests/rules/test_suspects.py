"""After the process has died again and again, what may be the reason begins alone, and what is the reason is held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.signals import Gate, Thread
from tests.support import async_test, definition, started

from workerflow import RetryPolicy, Settings, WorkflowRuntime
from workerflow.testing import SimulatedEngine

# The simulated engine does not wait for callbacks that time would end.
DAY_S = 24 * 3600
PATIENT = RetryPolicy(max_attempts=100, initial=0.001, maximum=0.001)


def waiting_at(gates: dict[str, Gate]) -> Any:
    @definition
    async def AtGate(self: Any) -> Any:
        return await self.run("step", gates[self.input], retry=PATIENT, timeout=DAY_S)

    return AtGate


async def killed(engine: SimulatedEngine, gates: dict[str, Gate], times: int) -> None:
    """Let the process die while every callback is in flight."""
    for death in range(times):
        assert [gate.calls for gate in gates.values()] == [death + 1] * len(gates)
        await engine.crash()
        await engine.advance(0.01)


@pytest.fixture
def gates() -> dict[str, Gate]:
    return {name: Gate(name) for name in ("a", "b", "c")}


@async_test
async def test_after_one_death_all_begin_again_at_once(gates: dict[str, Gate]) -> None:
    workflow = waiting_at(gates)
    async with SimulatedEngine([workflow]) as engine:
        for name in gates:
            await engine.get(workflow, name).create(name)
        await engine.run_until_idle()
        await killed(engine, gates, 1)

        assert [gate.calls for gate in gates.values()] == [2, 2, 2]


@async_test
async def test_after_two_deaths_each_begins_when_the_one_before_has_its_outcome(gates: dict[str, Gate]) -> None:
    workflow = waiting_at(gates)
    async with SimulatedEngine([workflow]) as engine:
        for name in gates:
            await engine.get(workflow, name).create(name)
        await engine.run_until_idle()
        await killed(engine, gates, 2)

        for begun in (1, 2, 3):
            again = [name for name, gate in gates.items() if gate.calls == 3]
            assert len(again) == begun
            gates[next(name for name in again if not gates[name]._open.is_set())].open()
            await engine.advance(0.01)
        assert [await engine.get(workflow, name).result(timeout=5) for name in gates] == list(gates)


@async_test
async def test_a_death_counts_only_against_the_suspect_whose_turn_it_was_though_others_have_events(
    gates: dict[str, Gate],
) -> None:
    workflow = waiting_at(gates)
    async with SimulatedEngine([workflow]) as engine:
        for name in gates:
            await engine.get(workflow, name).create(name)
        await engine.run_until_idle()
        await killed(engine, gates, 2)
        for name in gates:
            await engine.get(workflow, name).send("news", "nothing")
        await engine.crash()
        await engine.advance(0.01)
        infos = [await engine.get(workflow, name).info() for name in gates]

        assert sorted(info.recoveries for info in infos) == [2, 2, 3]
        assert [len(info.inbound_events) for info in infos] == [1, 1, 1]


@async_test
async def test_a_suspect_that_takes_long_does_not_keep_the_next_one_waiting_for_ever(gates: dict[str, Gate]) -> None:
    workflow = waiting_at(gates)
    async with SimulatedEngine([workflow]) as engine:
        for name in gates:
            await engine.get(workflow, name).create(name)
        await engine.run_until_idle()
        await killed(engine, gates, 2)
        begun = []
        for _ in range(3):
            begun.append(sum(gate.calls == 3 for gate in gates.values()))
            await engine.advance(1)

        assert begun == [1, 2, 3]


@async_test
async def test_an_instance_whose_body_ran_at_every_death_is_held_and_others_go_on() -> None:
    @definition
    async def Idle(self: Any) -> Any:
        return await self.wait("go", "go")

    async with started(Idle) as (engine, handle):
        other = engine.get(Idle, "other")
        await other.create()
        deaths = 0
        while (await handle.info()).held is None:
            key = engine._require_store().find(handle.workflow, handle.id).key  # type: ignore[union-attr]  # it exists
            # What a SIGKILL in the middle of a drive leaves behind.
            engine._require_store().note_driven(key)
            await engine.crash()
            await engine.advance(60)
            deaths += 1

        assert deaths == 4
        assert "execute() ran" in str((await handle.info()).held)
        await other.send("go", 1)
        assert await other.result(timeout=5) == 1
        await handle.resume()
        await handle.send("go", 2)
        assert await handle.result(timeout=5) == 2


@async_test
async def test_a_completion_that_two_deaths_cut_is_tried_again_after_a_back_off_though_it_hibernates() -> None:
    gate = Gate()

    @definition
    async def Short(self: Any) -> None:
        pass

    class Telling(WorkflowRuntime[Any, Any]):
        definition = Short

        async def completion(self, event: Any) -> None:
            await gate()

    async with SimulatedEngine([Telling], settings=Settings(hibernate_after_s=0)) as engine:
        await engine.get(Telling, "t-1").create()
        for death in (1, 2):
            assert await gate.begun() == death
            crashing = asyncio.ensure_future(engine.crash())
            if death == 2:
                # Its back-off is still to come, so nothing is under way after the crash.
                await crashing
        gate.open()
        await engine.advance(0.5)
        assert gate.calls == 2

        await engine.advance(2)

        assert gate.calls == 3


@async_test
async def test_a_thread_whose_callback_has_timed_out_has_a_place_for_another() -> None:
    stuck = Thread()

    @definition
    async def Blocking(self: Any) -> Any:
        if self.input == "stuck":
            await self.run("stuck", stuck, timeout=1, max_attempts=1)
        return await self.run("plain", lambda: "done", returns=str)

    async with SimulatedEngine([Blocking], settings=Settings(thread_count=1)) as engine:
        await engine.get(Blocking, "stuck").create("stuck")
        await engine.get(Blocking, "other").create("other")
        await engine.advance(2)
        try:
            assert await engine.get(Blocking, "other").result(timeout=5) == "done"
        finally:
            stuck.release.set()
