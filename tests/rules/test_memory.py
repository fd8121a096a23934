"""What stays in memory: nothing of an instance that has nothing to do, and everything of one that has."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query

from workerflow import Engine, Settings, WorkflowCompletionEvent, WorkflowHandle, WorkflowRuntime
from workerflow.core.instance import Instance
from workerflow.testing import SimulatedEngine

COUNT = 20
DAY = timedelta(days=1)


def in_memory(workflow: str) -> int:
    """How many instances of a workflow are held by anything at all."""
    gc.collect()
    return sum(item.workflow == workflow for item in gc.get_objects() if type(item) is Instance)


async def objects() -> int:
    """How many objects there are, when the loop has nothing left to do."""
    await turns(5)
    gc.collect()
    return len(gc.get_objects())


async def turns(count: int) -> None:
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


@async_test
async def test_an_instance_stays_until_its_completion_handler_has_ended_and_is_delivered_once() -> None:
    handler = Gate()

    @definition
    async def InMemoryEnds(self: Any) -> str:
        return "done"

    class Delivering(WorkflowRuntime[None, str]):
        definition = InMemoryEnds

        async def completion(self, event: WorkflowCompletionEvent) -> None:
            await handler()

    # Everything that is idle leaves at once; the clock stands still while the handler runs.
    async with SimulatedEngine([Delivering], settings=Settings(hibernate_after_s=0)) as engine:
        await engine.get(Delivering, "instance-1").create()
        await handler.begun()
        await turns(50)
        handler.open()
        await engine.run_until_idle()

        assert query(engine, "select attempts, delivered_at is not null from deliveries") == [(1, 1)]
        assert in_memory("InMemoryEnds") == 0
        await engine.advance(DAY)
        assert handler.calls == 1


async def pause(handle: WorkflowHandle[Any]) -> None:
    await handle.pause()


async def create(handle: WorkflowHandle[Any]) -> None:
    assert await handle.create() is False


async def send(handle: WorkflowHandle[Any]) -> None:
    await handle.send("late")


async def cancel(handle: WorkflowHandle[Any]) -> None:
    await handle.cancel()


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        ("ended", create),
        ("ended", send),
        ("ended", cancel),
        ("ended", pause),
        ("paused", create),
        ("paused", pause),
        ("held", create),
    ],
)
@async_test
async def test_a_verb_that_changes_nothing_leaves_nothing_in_memory(state: str, verb: Any) -> None:
    @definition
    async def InMemoryResting(self: Any) -> None:
        if state == "held":
            for _ in range(1000):
                await asyncio.sleep(0)  # noqa: TID251  # the mistake for which it is held
        if state == "paused":
            await self.wait("never", "never")

    settings = Settings(hibernate_after_s=1, handles_per_drive_max=100)
    async with SimulatedEngine([InMemoryResting], settings=settings) as engine:
        handles = [engine.get(InMemoryResting, f"instance-{number}") for number in range(COUNT)]
        for handle in handles:
            await handle.create()
            if state == "paused":
                await handle.pause()
        await engine.advance(60)
        assert (await handles[0].info()).held is not None if state == "held" else True
        assert in_memory("InMemoryResting") == 0

        for handle in handles:
            await verb(handle)
        await engine.advance(60)

        assert in_memory("InMemoryResting") == 0


@pytest.mark.parametrize("state", ["ended", "running", "unknown"])
@async_test
async def test_asking_for_results_leaves_nothing_in_memory(state: str) -> None:
    @definition
    async def InMemoryAsked(self: Any) -> str:
        if state == "running":
            await self.wait("never", "never")
        return "done"

    async def ask(first: int) -> None:
        for number in range(first, first + 300):
            if state == "ended":
                assert await engine.get(InMemoryAsked, str(number)).result(timeout=5) == "done"
            else:
                with pytest.raises(TimeoutError):
                    await engine.get(InMemoryAsked, str(number)).result(timeout=0)

    async with SimulatedEngine([InMemoryAsked]) as engine:
        if state != "unknown":
            await asyncio.gather(*(engine.get(InMemoryAsked, str(number)).create() for number in range(600)))
            await engine.advance(60)
        await ask(0)
        before = await objects()
        await ask(300)
        more = await objects() - before
        assert more < 100


@pytest.mark.parametrize("verb", ["cancel", "pause"])
@async_test
async def test_what_a_command_by_mail_has_stopped_leaves_memory(verb: str) -> None:
    gate = Gate()

    @definition
    async def InMemoryStoppedByMail(self: Any) -> None:
        if verb == "cancel":
            await self.run("call", gate)
        await self.wait("never", "never")

    # Longer than the test: only what is stopped may leave.
    settings = Settings(hibernate_after_s=1 if verb == "pause" else 3600)
    async with (
        SimulatedEngine([InMemoryStoppedByMail], settings=settings) as engine,
        Engine(engine.url, [InMemoryStoppedByMail], execute=False) as client,
    ):
        for number in range(COUNT):
            await engine.get(InMemoryStoppedByMail, str(number)).create()
            if verb == "cancel":
                await gate.begun()
        assert in_memory("InMemoryStoppedByMail") == COUNT

        for number in range(COUNT):
            await getattr(client.get(InMemoryStoppedByMail, str(number)), verb)()
        await engine.run_until_idle()
        if verb == "pause":
            await engine.advance(60)

        assert query(engine, "select count(*) from instances where status in ('paused', 'cancelled')") == [(COUNT,)]
        assert in_memory("InMemoryStoppedByMail") == 0


@async_test
async def test_a_callback_that_is_cancelled_before_its_first_step_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = Callback()

    @definition
    async def InMemoryAtOnce(self: Any) -> None:
        await self.run("call", call, timeout=3600)

    async with SimulatedEngine([InMemoryAtOnce]) as engine:
        for number in range(COUNT):
            handle = engine.get(InMemoryAtOnce, str(number))
            await handle.create()
            await handle.cancel()
        await engine.run_until_idle()
        assert in_memory("InMemoryAtOnce") == 0

        # Whatever counts as running is reported as stuck after half an hour, when somebody looks.
        await engine.advance(DAY)
        await engine.run_until_idle()
        assert caplog.text == ""
        assert call.calls == 0


@async_test
async def test_an_end_that_came_before_its_grace_was_over_leaves_nothing_in_memory() -> None:
    gate = Gate()

    @definition
    async def InMemoryGraceful(self: Any) -> str:
        self.run("call", gate)
        await self.wait("go", "go")
        return "done"

    async with SimulatedEngine([InMemoryGraceful]) as engine:
        for number in range(COUNT):
            handle = engine.get(InMemoryGraceful, str(number))
            await handle.create()
            await gate.begun()
            await handle.send("go")
            assert await handle.result(timeout=5) == "done"
        await engine.run_until_idle()
        # The clock has not moved: the timer of the grace would still be there.
        assert in_memory("InMemoryGraceful") == 0
