"""create() and the input: pinned by the first call, visible on every pass."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, started

from workerflow import UNSET, Engine, WorkflowHandle, WorkflowRuntime
from workerflow.testing import SimulatedEngine


@definition
async def parked(self: Any) -> None:
    await self.wait("wait", "go")


@pytest.mark.spec(13)
@async_test
async def test_input_is_visible_by_value_on_every_pass() -> None:
    received = []

    @definition
    async def workflow(self: Any) -> None:
        received.append(self.input)
        await self.run("step-a", Callback())
        await self.run("step-b", Callback())

    value = {"key": "value", "list": [1, 2.5, None, True]}
    async with started(workflow, value, always_replay=True) as (_engine, handle):
        assert await handle.status() == "completed"
        assert received == [value, value]


@pytest.mark.spec(13)
@async_test
async def test_input_changed_by_the_body_is_as_created_on_the_next_pass() -> None:
    received = []

    @definition
    async def workflow(self: Any) -> None:
        received.append(dict(self.input))
        self.input["count"] += 1
        await self.wait("wait", "go")

    async with started(workflow, {"count": 1}) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.status() == "completed"
        assert len(received) > 1
        assert all(value == {"count": 1} for value in received)


@pytest.mark.spec(14, 15)
@pytest.mark.parametrize(("first", "seen"), [({"key": "original"}, {"key": "original"}), (UNSET, None)])
@async_test
async def test_second_create_while_running_does_not_change_the_input(first: Any, seen: Any) -> None:
    received = []

    @definition
    async def workflow(self: Any) -> None:
        received.append(self.input)
        await self.wait("wait-1", "event-done", timeout=86_400)

    async with started(workflow, first) as (engine, handle):
        assert await handle.status() == "running"

        assert await handle.create({"key": "ignored"}) is False
        await engine.crash()
        await handle.send("event-done")
        await engine.run_until_idle()

        assert await handle.status() == "completed"
        assert len(received) > 1
        assert all(value == seen for value in received)
        assert (await handle.info()).input == first


@pytest.mark.spec(16)
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
@async_test
async def test_create_after_the_end_returns_and_runs_nothing(status: str) -> None:
    entries: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        entries.append(self.input)
        if status == "failed":
            raise RuntimeError("broken")
        if status == "cancelled":
            await self.wait("wait", "never")

    async with started(workflow, 1) as (engine, handle):
        if status == "cancelled":
            await handle.cancel()
        before = await handle.events()

        assert await handle.create(2) is False
        await engine.run_until_idle()

        assert await handle.status() == status
        assert entries == [1]
        assert await handle.events() == before


@pytest.mark.spec(17)
@async_test
async def test_create_on_a_paused_instance_does_not_resume_it() -> None:
    async with started(parked, "first") as (engine, handle):
        await handle.pause()

        assert await handle.create("second") is False
        await engine.run_until_idle()

        assert await handle.status() == "paused"
        assert await lifecycle(handle) == ["created", "started", "paused"]
        assert (await handle.info()).input == "first"


@pytest.mark.spec(18)
@pytest.mark.parametrize(("given", "stored"), [(UNSET, None), (None, "null")])
@async_test
async def test_no_input_and_null_are_stored_differently_and_both_round_trip(given: Any, stored: str | None) -> None:
    async with started(parked, given) as (engine, handle):
        assert query(engine, "select input from instances") == [(stored,)]
        assert (await handle.info()).input is given

        await engine.crash()

        assert (await handle.info()).input is given


@pytest.mark.spec(19)
@pytest.mark.parametrize("text", ["'{\"key\":'", "'\"valid, but pending\"'"])
@async_test
async def test_storage_refuses_an_input_while_pending_and_one_that_is_not_json(text: str) -> None:
    async with SimulatedEngine([parked]) as engine:
        await engine.get(parked, "instance-1").send("early")

        with pytest.raises(apsw.ConstraintError):
            query(engine, f"update instances set input = {text}")

        assert query(engine, "select input from instances") == [(None,)]


@pytest.mark.spec(19)
@async_test
async def test_storage_refuses_an_input_that_is_not_json_with_the_start() -> None:
    async with SimulatedEngine([parked]) as engine:
        await engine.get(parked, "instance-1").send("early")

        with pytest.raises(apsw.ConstraintError):
            query(engine, "update instances set status = 'initialized', input = '{'")

        assert query(engine, "select status, input from instances") == [("pending", None)]


@pytest.mark.spec(19)
@pytest.mark.parametrize("text", ["'\"changed\"'", "null"])
@async_test
async def test_storage_refuses_to_change_the_input_after_the_start(text: str) -> None:
    async with started(parked, "first") as (engine, _handle):
        with pytest.raises(apsw.ConstraintError):
            query(engine, f"update instances set input = {text}")

        assert query(engine, "select input from instances") == [('"first"',)]


@pytest.mark.spec(20)
@pytest.mark.parametrize("verb", [WorkflowHandle.create, WorkflowRuntime.create])
def test_create_takes_the_input_only(verb: Any) -> None:
    assert list(inspect.signature(verb).parameters) == ["self", "input"]


@pytest.mark.spec(21)
@async_test
async def test_create_does_not_wait_for_the_end() -> None:
    gate = asyncio.Event()

    @definition
    async def workflow(self: Any) -> Any:
        return await self.run("slow", wait_for_gate)

    async def wait_for_gate() -> str:
        await gate.wait()
        return "done"

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")

        assert await handle.create() is True

        assert await handle.status() == "running"
        gate.set()
        assert await handle.result(timeout=30) == "done"


@pytest.mark.spec(22)
@async_test
async def test_repeated_create_while_a_callback_runs_starts_nothing_twice() -> None:
    entries: list[Any] = []
    calls: list[Any] = []
    entered, gate = asyncio.Event(), asyncio.Event()

    @definition
    async def workflow(self: Any) -> None:
        entries.append(None)
        await self.run("slow", slow)

    async def slow() -> None:
        calls.append(None)
        entered.set()
        await gate.wait()

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()
        await entered.wait()

        assert [await handle.create() for _ in range(3)] == [False, False, False]
        gate.set()
        await handle.result(timeout=30)

        assert (len(entries), len(calls)) == (1, 1)
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(23)
@async_test
async def test_crash_right_after_create_still_starts_the_workflow_from_the_stored_input() -> None:
    @definition
    async def workflow(self: Any) -> Any:
        return self.input

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create({"key": "kept"})

        await engine.crash()

        assert await handle.result(timeout=30) == {"key": "kept"}
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(23)
@async_test
async def test_instance_created_where_nothing_executes_starts_when_an_executing_engine_opens(tmp_path: Path) -> None:
    @definition
    async def workflow(self: Any) -> Any:
        return self.input

    async with Engine(tmp_path / "file.db", [workflow], execute=False) as sender:
        assert await sender.get(workflow, "instance-1").create({"key": "kept"}) is True

    async with Engine(tmp_path / "file.db", [workflow]) as engine:
        assert await engine.get(workflow, "instance-1").result(timeout=30) == {"key": "kept"}


@pytest.mark.spec(22)
@async_test
async def test_of_many_creates_at_once_exactly_one_starts_the_instance() -> None:
    received = []

    @definition
    async def workflow(self: Any) -> None:
        received.append(self.input)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")

        created = await asyncio.gather(*(handle.create(number) for number in range(10)))
        await engine.run_until_idle()

        assert created == [True] + [False] * 9
        assert received == [0]
        assert await lifecycle(handle) == ["created", "started", "completed"]


@async_test
async def test_a_definition_that_is_registered_by_its_runtime_means_that_runtime() -> None:
    @definition
    async def Greeting(self: Any) -> str:
        return "hello"

    class Greeter(WorkflowRuntime[Any, Any]):
        definition = Greeting

    async with SimulatedEngine([Greeter]) as engine:
        assert engine.get(Greeting, "g-1").workflow == "Greeter"
        await engine.get(Greeting, "g-1").create()
        assert await engine.get(Greeter, "g-1").result(timeout=5) == "hello"
