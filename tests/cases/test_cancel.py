"""Cancel while the workflow is blocked on each kind of await, by its owner, by another process and by a peer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.bodies import next_turn
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query

from workerflow import Engine, RetryPolicy, WorkflowCancelledError, WorkflowDefinition, WorkflowHandle
from workerflow.testing import SimulatedEngine

HOUR_S = 3600


class Blocked:
    """A workflow that is blocked on what its input names, and what its callbacks hold meanwhile."""

    def __init__(self) -> None:
        self.after = Callback()
        self.gate = Gate()
        self.failing = Callback(always=ConnectionError("no answer"))
        self.lock = asyncio.Lock()
        self.cleaned: list[str] = []

        async def execute(definition: Any) -> None:
            try:
                await getattr(self, definition.input)(definition)
                await definition.run("after", self.after)
            finally:
                self.cleaned.append(definition.input)

        self.workflow: type[WorkflowDefinition[Any, Any]] = type(
            "BlockedOn", (WorkflowDefinition,), {"execute": execute, "__module__": __name__}
        )

    async def callback(self, workflow: Any) -> None:
        async def hold() -> None:
            async with self.lock:
                await self.gate()

        await workflow.run("step", hold)

    async def nested_run(self, workflow: Any) -> None:
        await workflow.run("outer", self.callback, workflow)

    async def nested_wait(self, workflow: Any) -> None:
        await workflow.run("outer", self.event, workflow)

    async def retry(self, workflow: Any) -> None:
        await workflow.run("step", self.failing, retry=RetryPolicy(initial=HOUR_S, maximum=HOUR_S))

    async def sleep(self, workflow: Any) -> None:
        await workflow.sleep("step", HOUR_S)

    async def event(self, workflow: Any) -> None:
        await workflow.wait("step", "go")

    async def event_with_deadline(self, workflow: Any) -> None:
        await workflow.wait("step", "go", timeout=HOUR_S)

    async def all_at_once(self, workflow: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(workflow.sleep("sleep", HOUR_S))
            group.create_task(workflow.wait("wait", "go"))
            group.create_task(self.callback(workflow))

    async def own_lock(self, workflow: Any) -> None:
        lock = asyncio.Lock()

        async def hold(step_id: str) -> None:
            async with lock:
                await workflow.sleep(step_id, HOUR_S)

        await asyncio.gather(hold("first"), hold("second"))


KINDS = [
    "callback", "nested_run", "nested_wait", "retry", "sleep", "event", "event_with_deadline", "all_at_once",
    "own_lock",
]  # fmt: skip


@pytest.mark.parametrize("by", ["owner", "other engine", "peer workflow"])
@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_cancel_ends_a_workflow_blocked_on_any_await_and_frees_all_that_it_held(kind: str, by: str) -> None:
    blocked = Blocked()

    @definition
    async def Peer(self: Any) -> None:
        await self.run("cancel", engine.get(blocked.workflow, "instance-1").cancel, "enough", returns=None)

    async with (
        SimulatedEngine([blocked.workflow, Peer]) as engine,
        Engine(engine.url, [blocked.workflow], execute=False) as client,
    ):
        handle = engine.get(blocked.workflow, "instance-1")
        await handle.create(kind)
        if kind in ("callback", "nested_run", "all_at_once"):
            await blocked.gate.begun()
        else:
            await engine.run_until_idle()
        waiter = asyncio.ensure_future(handle.result(timeout=5))
        await next_turn()
        assert await handle.status() == "running"

        if by == "peer workflow":
            await engine.get(Peer, "peer").create()
        else:
            await (client if by == "other engine" else engine).get(blocked.workflow, "instance-1").cancel("enough")
        await engine.run_until_idle()
        with pytest.raises(WorkflowCancelledError) as cancelled:
            await waiter
        assert cancelled.value.reason == "enough"
        assert blocked.lock.locked() is False
        assert blocked.gate.cancellations == blocked.gate.calls

        await handle.send("go")
        await engine.advance(2 * HOUR_S)
        await engine.crash()
        await engine.advance(2 * HOUR_S)
        info = await handle.info()
        assert (info.status, info.alarm_at, info.owner) == ("cancelled", None, None)
        assert await lifecycle(handle) == ["created", "started", "cancelled"]
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]
        assert blocked.after.calls == 0
        assert set(blocked.cleaned) == {kind}
        assert blocked.failing.calls == (kind == "retry")


OWNS = """
import asyncio, sys
from workerflow import Engine, RetryPolicy, WorkflowDefinition
begun = asyncio.Queue()
async def hang():
    begun.put_nowait(1)
    await asyncio.Event().wait()
async def fail():
    raise ConnectionError
class Blocked(WorkflowDefinition):
    async def execute(self):
        if self.input == "callback":
            await self.run("step", hang)
        elif self.input == "nested":
            async def outer():
                await self.run("step", hang)
            await self.run("outer", outer)
        elif self.input == "retry":
            await self.run("step", fail, retry=RetryPolicy(initial=3600, maximum=3600))
        elif self.input == "sleep":
            await self.sleep("step", 3600)
        else:
            await self.wait("step", "go")
        await self.run("after", fail)
async def main():
    async with Engine(sys.argv[1], [Blocked]) as engine:
        for kind in sys.argv[2:]:
            await engine.get(Blocked, kind).create(kind)
        await begun.get()
        await begun.get()
        print("blocked", flush=True)
        await engine.run_forever()
asyncio.run(main())
"""


@async_test
async def test_cancel_from_another_process_ends_every_blocked_workflow_of_the_owner(tmp_path: Path) -> None:
    kinds = ["callback", "nested", "retry", "sleep", "event"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNS, str(tmp_path / "a.db"), *kinds, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), 50)).strip() == b"blocked"
        async with Engine(tmp_path / "a.db", [], execute=False) as client:
            for kind in kinds:
                handle: WorkflowHandle[Any] = client.get("Blocked", kind)
                await handle.cancel(f"no more {kind}")
                with pytest.raises(WorkflowCancelledError) as cancelled:
                    await handle.result(timeout=20)
                assert cancelled.value.reason == f"no more {kind}"
            assert query(client, "select count(*) from attempts where state = 'started'") == [(0,)]
            assert query(client, "select count(*) from steps where step_id = 'after'") == [(0,)]
    finally:
        process.kill()
        await process.communicate()
