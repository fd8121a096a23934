"""Section 9: one body per instance, driven until it ends, is paused or is cancelled."""

import asyncio

import apsw
import pytest
from tests.signals import Gate, watched
from tests.support import Callback, async_test, definition, lifecycle, started

from workerflow import Receipt, WorkflowDefinition, WorkflowRuntime
from workerflow.testing import SimulatedEngine


@pytest.mark.spec(112, 22)
@async_test
async def test_requests_to_go_on_start_no_second_body_and_none_of_them_is_lost():
    bodies: list[object] = []

    @definition
    async def Listener(self):
        bodies.append(self)
        return [await self.wait(f"wait-{number}", "message", int) for number in range(20)]

    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        await asyncio.gather(
            handle.create(), *(handle.send("message", number) for number in range(20)), handle.create()
        )

        assert await handle.result(timeout=5) == list(range(20))
        assert len(bodies) == 1


@pytest.mark.spec(112)
@async_test
async def test_an_event_that_comes_while_the_body_is_driven_is_not_lost():
    receipts: list[asyncio.Task[Receipt]] = []

    @definition
    async def Sender(self):
        await self.run("begin", Callback())
        # The body is being driven right now; the application goes on only afterwards.
        if not receipts:
            outer.call_soon(lambda: receipts.append(outer.create_task(handle.send("go", "now"))))
        return await self.wait("go", "go", str)

    outer = asyncio.get_running_loop()
    async with SimulatedEngine([Sender]) as engine:
        handle = engine.get(Sender, "instance-1")
        await handle.create()
        assert await handle.result(timeout=5) == "now"
        assert [receipt.result() for receipt in receipts] == [Receipt.used]


@pytest.mark.spec(113, 126)
@async_test
async def test_a_pass_that_ends_while_paused_gets_no_terminal_status_until_it_is_resumed():
    last = Gate("result")

    @definition
    async def LastStep(self):
        return await self.run("last", last, returns=str)

    async with SimulatedEngine([LastStep]) as engine:
        handle = engine.get(LastStep, "instance-1")
        await handle.create()
        await last.begun()
        await handle.pause()
        last.open()
        await engine.run_until_idle()

        assert await handle.status() == "paused"
        assert await lifecycle(handle) == ["created", "started", "paused"]

        await handle.resume()
        assert await handle.result(timeout=5) == "result"
        assert last.calls == 1


@pytest.mark.spec(113, 132)
@async_test
async def test_a_pass_that_would_go_on_after_cancel_does_nothing_more():
    reached: list[str] = []
    after = Callback()

    @definition
    async def Cancelled(self):
        await self.wait("go", "go")
        reached.append("after the wait")
        await self.run("after", after)

    async with started(Cancelled) as (engine, handle):
        await asyncio.gather(handle.cancel(), handle.send("go"))
        await engine.run_until_idle()

        assert await handle.status() == "cancelled"
        assert reached == []
        assert after.calls == 0


@pytest.mark.spec(113)
@async_test
async def test_terminal_status_and_removal_of_the_alarm_are_one_commit():
    seen: list[tuple[str, int | None]] = []

    @definition
    async def AlarmLeft(self):
        self.sleep("long", 3600)
        await self.wait("go", "go")

    class Reader(WorkflowRuntime[None, None]):
        definition = AlarmLeft

        def on_status_change(self, status):
            (row,) = database.execute("select status, alarm_at from instances")
            seen.append(row)

    async with SimulatedEngine([Reader]) as engine:
        database = apsw.Connection(engine.url, flags=apsw.SQLITE_OPEN_READONLY)
        handle = engine.get(Reader, "instance-1")
        await handle.create()
        await engine.run_until_idle()
        assert (await handle.info()).alarm_at is not None

        await handle.send("go")
        await handle.result(timeout=5)
        await engine.run_until_idle()
        database.close()

    assert seen[-1] == ("completed", None)


@pytest.mark.spec(114)
@pytest.mark.parametrize(("always_replay", "object_count"), [(True, 3), (False, 1)])
@async_test
async def test_every_pass_has_a_definition_object_of_its_own(always_replay, object_count):
    objects: list[object] = []

    @definition
    async def Siblings(self):
        assert not hasattr(self, "mark"), "a pass must not meet what another one left on self"
        self.mark = True
        objects.append(self)
        for number in range(3):
            await self.run(f"step-{number}", Callback())

    async with started(Siblings, always_replay=always_replay) as (_, handle):
        await handle.result(timeout=5)

    assert len(objects) == object_count
    assert len({id(item) for item in objects}) == object_count


@pytest.mark.spec(115)
@async_test
async def test_an_error_before_execute_begins_fails_the_workflow_and_execute_never_runs():
    executed: list[bool] = []

    class Broken(WorkflowDefinition[None, None]):
        def __init__(self) -> None:
            raise LookupError("no configuration")

        async def execute(self) -> None:
            executed.append(True)

    async with started(Broken) as (_, handle):
        assert await handle.status() == "failed"
        info = await handle.info()
        assert info.failure is not None
        assert (info.failure.name, info.failure.message) == ("LookupError", "no configuration")
        assert info.alarm_at is None
        assert await lifecycle(handle) == ["created", "started", "failed"]

    assert executed == []


@pytest.mark.spec(115)
@async_test
async def test_an_error_of_the_driver_leaves_a_paused_workflow_paused():
    is_broken = False

    class Sometimes(WorkflowDefinition[None, None]):
        def __init__(self) -> None:
            if is_broken:
                raise LookupError("no configuration")

        async def execute(self) -> None:
            await self.wait("go", "go")

    async with started(Sometimes) as (engine, handle):
        await handle.pause()
        is_broken = True
        await engine.crash()
        await handle.send("go")
        await engine.run_until_idle()
        assert await handle.status() == "paused"

        await handle.resume()
        await engine.run_until_idle()
        assert await handle.status() == "failed"


@pytest.mark.spec(115)
@async_test
async def test_a_hook_that_raises_neither_stops_the_start_nor_the_end():
    @definition
    async def Plain(self):
        return "done"

    class Hooked(WorkflowRuntime[None, str]):
        definition = Plain

        def on_status_change(self, status):
            raise ValueError(status)

    async with SimulatedEngine([Hooked]) as engine:
        handle = engine.get(Hooked, "instance-1")
        await handle.create()
        assert await handle.result(timeout=5) == "done"


@pytest.mark.spec(113)
@async_test
async def test_hooks_hear_of_the_end_once():
    @definition
    async def Plain(self):
        await self.run("only", Callback())

    runtime = watched(Plain)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await handle.result(timeout=5)
        await engine.crash()
        await engine.run_until_idle()

    assert runtime.statuses == ["running", "completed"]
