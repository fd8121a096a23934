"""Section 19: what is stored of the delivery of an end, before, during and after it."""

import asyncio
import logging
from datetime import timedelta
from itertools import pairwise

import pytest
from tests.bodies import next_turn
from tests.signals import Gate, watched
from tests.support import async_test, definition, query

from workerflow import Engine, Settings, WorkflowRuntime
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)
LEASE_MS = 30 * 60 * 1000
ENDS = ["completed", "failed", "cancelled"]
ROW = "select attempts, next_attempt_at, delivered_at, last_error from deliveries"


@definition
async def Ending(self):
    if await self.wait("how", "how") == "failed":
        raise ValueError("as asked")


def delivering(handler, hook=None):
    """A runtime whose completion handler is *handler*."""

    async def completion(self, event):
        await handler(event)

    members = {"definition": Ending, "completion": completion}
    return type("Delivering", (WorkflowRuntime,), members if hook is None else {**members, "on_status_change": hook})


async def end_as(engine, handle, end):
    """Create the instance and bring it to this end."""
    await handle.create()
    await (handle.cancel() if end == "cancelled" else handle.send("how", end))
    await engine.run_until_idle()
    assert await handle.status() == end


def now_ms(engine):
    return round(engine.now().timestamp() * 1000)


@pytest.fixture
def quiet(caplog):
    """A handler that raises is reported; here it is what the test is about."""
    with caplog.at_level(logging.CRITICAL, "workerflow"):
        yield


@pytest.mark.spec(215)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_without_a_handler_there_is_no_delivery_and_no_alarm_after_any_end(end):
    runtime = watched(Ending)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await end_as(engine, handle, end)

        assert query(engine, "select count(*) from deliveries") == [(0,)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(216)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_the_end_its_delivery_and_the_alarm_for_it_are_one_commit(end):
    seen = []

    async def handler(event):
        seen.append(("handler", *query(engine, "select status from instances")[0]))

    def hook(self, status):
        if status == end:
            stored = query(engine, "select status, alarm_at, attempts, next_attempt_at from instances, deliveries")
            seen.append(("hook", *stored[0]))

    runtime = delivering(handler, hook)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await end_as(engine, handle, end)

        assert seen == [("hook", end, now_ms(engine), 0, now_ms(engine)), ("handler", end)]
        assert query(engine, ROW) == [(1, None, now_ms(engine), None)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(216)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_the_delivery_belongs_to_the_lifecycle_event_of_the_end(end):
    async def handler(event):
        ids.append(event.id)

    ids: list[str] = []
    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await end_as(engine, handle, end)

        ((number, type_),) = query(
            engine, "select number, type from deliveries join lifecycle_events using (instance_key, number)"
        )
        assert type_ == end
        assert ids == [f"instance-1:{number}"]


@pytest.mark.spec(217)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_a_create_after_the_end_leaves_the_delivery_as_it_is(end):
    async def handler(event):
        ids.append(event.id)

    ids: list[str] = []
    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await end_as(engine, handle, end)
        before = query(engine, ROW)

        assert await handle.create("again") is False
        await engine.advance(DAY)

        assert query(engine, ROW) == before
        assert len(ids) == 1


@pytest.mark.spec(218, 134, 135, 136)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("has_crashed", [False, True])
@pytest.mark.usefixtures("quiet")
@async_test
async def test_a_handler_that_raises_is_stored_with_its_error_and_its_next_try_which_clears_it(end, has_crashed):
    events = []

    async def handler(event):
        events.append(event)
        if len(events) == 1:
            raise ConnectionError("no answer")

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await end_as(engine, handle, end)
        again_at = engine.now() + timedelta(seconds=1)
        assert query(engine, ROW) == [(1, now_ms(engine) + 1000, None, "ConnectionError: no answer")]
        assert (await handle.info()).alarm_at == again_at

        if has_crashed:
            await engine.crash()
        await engine.advance(0.999)
        assert len(events) == 1
        await engine.advance(0.001)

        assert events == [events[0]] * 2
        assert query(engine, ROW) == [(2, None, now_ms(engine), None)]
        assert (await handle.status(), (await handle.info()).alarm_at) == (end, None)


@pytest.mark.spec(218)
@pytest.mark.usefixtures("quiet")
@async_test
async def test_deliveries_are_tried_without_end_at_waits_that_double_up_to_an_hour():
    times = []

    async def handler(event):
        times.append(engine.now())
        raise ConnectionError("no answer")

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        await end_as(engine, engine.get(runtime, "instance-1"), "completed")
        await engine.advance(timedelta(hours=10))

    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    assert waits[:12] == [2**number for number in range(12)]
    assert len(waits) > 14
    assert set(waits[12:]) == {3600}


@pytest.mark.spec(219)
@pytest.mark.parametrize("end", ENDS)
@async_test
async def test_a_try_is_counted_and_has_its_lease_before_its_handler_begins_and_is_made_again_after_a_kill(end):
    events = []
    gate = Gate()

    async def handler(event):
        events.append((event, *query(engine, ROW)[0]))
        await gate()

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        await handle.create()
        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await gate.begun()
        assert (await handle.info()).alarm_at == engine.now() + timedelta(milliseconds=LEASE_MS)

        gate.open()
        # The handler is cancelled before it can end.
        await engine.crash()
        await engine.run_until_idle()

        (first, *row), (second, *row_after_kill) = events
        assert first == second
        assert row == [1, now_ms(engine) + LEASE_MS, None, None]
        assert row_after_kill == [2, now_ms(engine) + LEASE_MS, None, None]
        assert query(engine, ROW) == [(2, None, now_ms(engine), None)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(220)
@async_test
async def test_every_end_is_delivered_once_also_that_of_an_instance_cancelled_while_pending():
    told = []

    async def handler(event):
        told.append((event.instance_id, event.status))

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        for end in ENDS:
            await end_as(engine, engine.get(runtime, end), end)
        await engine.get(runtime, "pending").send("other")
        await engine.get(runtime, "pending").cancel()
        await engine.advance(DAY)
        await engine.crash()
        await engine.advance(DAY)

    assert sorted(told) == [(end, end) for end in sorted(ENDS)] + [("pending", "cancelled")]


@pytest.mark.spec(221)
@pytest.mark.usefixtures("quiet")
@async_test
async def test_a_delivery_whose_handler_is_gone_is_stored_as_a_failed_one_with_a_next_try(tmp_path):
    begun = asyncio.Event()

    async def handler(event):
        begun.set()
        await asyncio.Event().wait()

    runtime = delivering(handler)
    without_handler = type(runtime.__name__, (WorkflowRuntime,), {"definition": Ending})
    async with Engine(tmp_path / "end.db", [runtime], settings=Settings(stop_grace_s=0)) as engine:
        await engine.get(runtime, "instance-1").cancel()
        await begun.wait()
    async with Engine(tmp_path / "end.db", [without_handler]) as engine:
        # The try of before was cut, so that one more is made at once.
        async with asyncio.timeout(10):
            while (row := query(engine, ROW)[0])[3] is None:
                await next_turn()
        attempts, next_attempt_at, delivered_at, last_error = row

    assert (attempts, delivered_at) == (2, None)
    assert next_attempt_at is not None
    assert "completion" in last_error
