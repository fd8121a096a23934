"""What is kept of an end: why it failed, what it gave, and no callback that outlives a cancellation."""

import asyncio
from dataclasses import dataclass

import pytest
from tests.signals import Gate, Thread, attempt_states
from tests.support import Callback, async_test, definition, lifecycle, query, started

from workerflow import (
    Engine,
    NonRetryableStepError,
    RecordedFailure,
    WorkflowCancelledError,
    WorkflowDefinition,
    WorkflowFailedError,
)
from workerflow.testing import SimulatedEngine


async def collapsing_callback():
    raise NonRetryableStepError("no stock", {"sku": "tea"})


async def in_a_callback(self):
    await self.run("reserve", collapsing_callback)


async def in_a_nested_callback(self):
    async def outer():
        await in_a_callback(self)

    await self.run("outer", outer)


async def in_execute(self):
    def collapsing_execute():
        raise NonRetryableStepError("no stock", {"sku": "tea"})

    await self.sleep("moment", 0)
    collapsing_execute()


@pytest.mark.weakness(8)
@pytest.mark.parametrize(
    ("place", "function"),
    [
        (in_a_callback, "collapsing_callback"),
        (in_a_nested_callback, "collapsing_callback"),
        (in_execute, "collapsing_execute"),
    ],
)
@async_test
async def test_a_failure_is_told_with_type_message_data_and_place_by_any_later_process(place, function):
    @definition
    async def Failing(self):
        await place(self)

    async with started(Failing) as (engine, handle):
        await engine.crash()
        async with Engine(engine.url, [], execute=False) as reader:
            for known in (handle, reader.get("Failing", "instance-1")):
                with pytest.raises(WorkflowFailedError, match="no stock") as failed:
                    await known.result(timeout=5)
                told = failed.value
                assert (told.error_name, told.error_message) == ("NonRetryableStepError", "no stock")
                assert told.data == {"sku": "tea"}
                assert f"in {function}" in told.traceback
                stored = RecordedFailure(told.error_name, told.error_message, told.data, told.traceback)
                assert (await known.info()).failure == stored


@pytest.mark.weakness(8)
@async_test
async def test_an_exhausted_step_tells_of_its_last_failure():
    @definition
    async def Failing(self):
        await self.run("call", Callback(always=ConnectionError("refused by 10.0.0.1")), max_attempts=1)

    async with started(Failing) as (engine, handle):
        await engine.crash()
        with pytest.raises(WorkflowFailedError) as failed:
            await handle.result(timeout=5)

    assert failed.value.error_name == "MaxAttemptsExceededError"
    assert "'call'" in failed.value.error_message
    assert "ConnectionError: refused by 10.0.0.1" in failed.value.error_message
    assert "ConnectionError: refused by 10.0.0.1" in failed.value.traceback


@dataclass
class Parcel:
    sku: str
    grams: float


class Packing(WorkflowDefinition[None, Parcel]):
    async def execute(self):
        return await self.run("pack", Callback(Parcel("tea", 100.5)), returns=Parcel)


@pytest.mark.weakness(9)
@async_test
async def test_the_result_is_there_for_every_later_process_with_its_type():
    async with started(Packing) as (engine, handle):
        assert await handle.result(timeout=5) == Parcel("tea", 100.5)
        await engine.crash()
        assert await handle.result(timeout=5) == Parcel("tea", 100.5)
        async with Engine(engine.url, [Packing], execute=False) as reader:
            assert await reader.get(Packing, "instance-1").result(timeout=5) == Parcel("tea", 100.5)
        assert (await handle.info()).result == {"sku": "tea", "grams": 100.5}
        stored = query(engine, "select status, result_json from instances")
        assert stored == [("completed", '{"sku":"tea","grams":100.5}')]


@pytest.mark.weakness(10)
@async_test
async def test_cancelling_reaches_every_callback_and_leaves_no_attempt_started():
    direct, child, thread = Gate(), Gate(), Thread("late")

    @definition
    async def Busy(self):
        async def parent():
            await self.run("child", child)

        await asyncio.gather(
            self.run("direct", direct),
            self.run("parent", parent),
            self.run("thread", thread),
            self.run("retrying", Callback(always=ConnectionError())),
        )

    async with SimulatedEngine([Busy]) as engine:
        handle = engine.get(Busy, "instance-1")
        await handle.create()
        await direct.begun()
        await child.begun()
        await thread.has_begun()

        await handle.cancel("enough")

        # Everything of it is in one commit: no started attempt is ever beside a terminal status.
        assert query(engine, "select status, alarm_at from instances") == [("cancelled", None)]
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]
        with pytest.raises(WorkflowCancelledError, match="enough"):
            await handle.result(timeout=5)
        before = attempt_states(await handle.steps())
        assert [before[name] for name in ("direct", "parent", "thread", "child")] == [["failed"]] * 4

        thread.release.set()
        await engine.advance(3600)
        assert (direct.cancellations, child.cancellations) == (1, 1)
        await engine.crash()
        await engine.advance(3600)

        assert (direct.calls, child.calls, thread.calls) == (1, 1, 1)
        assert attempt_states(await handle.steps()) == before
        assert await lifecycle(handle) == ["created", "started", "cancelled"]
