"""Waits and inbound events: which event satisfies which wait, deadlines, and what is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import (
    UNSET,
    DefinitionError,
    Engine,
    Receipt,
    RunStep,
    StepError,
    WaitStep,
    WaitTimeoutError,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowRuntimeContext,
)
from workerflow.core.model import to_datetime
from workerflow.testing import SimulatedEngine

NOW = to_datetime(1_000)
LATER = to_datetime(61_000)
MILLISECOND = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)


def one_wait(**options: Any) -> type[WorkflowDefinition[Any, Any]]:
    @definition
    async def workflow(self: Any) -> Any:
        return await self.wait("wait", "event", **options)

    return workflow


@pytest.mark.spec(65)
@pytest.mark.parametrize("timeout_at", [None, LATER])
def test_new_wait_is_waiting_and_has_its_event_name_and_its_deadline_if_any(timeout_at: datetime | None) -> None:
    context = WorkflowRuntimeContext()

    step = context.get_or_create_wait_step("wait-1", "event-1", now=NOW, timeout_at=timeout_at)

    assert step == WaitStep("wait-1", None, NOW, "waiting", "event-1", timeout_at, UNSET)
    assert (step.type, step.resolved_at) == ("wait", None)


@pytest.mark.spec(65)
@pytest.mark.parametrize(("options", "offset"), [({}, None), ({"timeout": HOUR}, HOUR)])
@async_test
async def test_wait_of_a_workflow_has_its_event_name_and_its_deadline_if_any(
    options: dict[str, Any], offset: timedelta | None
) -> None:
    async with started(one_wait(**options)) as (engine, handle):
        step = await step_of(handle, "wait", WaitStep)

        assert (step.state, step.event_name, step.parent_step_id) == ("waiting", "event", None)
        assert step.timeout_at == (None if offset is None else engine.now() + offset)
        assert step.payload is UNSET


@pytest.mark.spec(66)
@pytest.mark.parametrize("timeout_at", [None, LATER])
def test_wait_asked_for_again_is_the_same_row(timeout_at: datetime | None) -> None:
    context = WorkflowRuntimeContext()
    first = context.get_or_create_wait_step("wait-1", "event-1", now=NOW, timeout_at=timeout_at)

    second = context.get_or_create_wait_step("wait-1", "event-1", now=LATER, timeout_at=to_datetime(99_000))

    assert second == first
    assert context.steps() == [first]


@pytest.mark.spec(67)
@async_test
async def test_wait_with_a_deadline_suspends_and_the_alarm_is_the_deadline() -> None:
    async with started(one_wait(timeout=HOUR)) as (engine, handle):
        assert (await handle.status(), (await handle.info()).alarm_at) == ("running", engine.now() + HOUR)


@pytest.mark.spec(67)
@async_test
async def test_wait_without_a_deadline_suspends_without_an_alarm() -> None:
    async with started(one_wait()) as (engine, handle):
        await engine.advance(timedelta(days=365))

        assert (await handle.status(), (await handle.info()).alarm_at) == ("running", None)
        assert (await step_of(handle, "wait", WaitStep)).state == "waiting"


@pytest.mark.spec(68, 69)
@async_test
async def test_awaited_event_satisfies_the_wait_with_a_decoded_payload_and_resumes() -> None:
    async with started(one_wait()) as (engine, handle):
        assert await handle.send("event", {"ok": True, "list": [1]}) is Receipt.used
        await engine.run_until_idle()

        step = await step_of(handle, "wait", WaitStep)
        assert (step.state, step.payload) == ("satisfied", {"ok": True, "list": [1]})
        assert await handle.result(timeout=5) == {"ok": True, "list": [1]}
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(70)
@async_test
async def test_payload_is_stored_once_in_the_event_row_that_the_wait_claimed() -> None:
    async with started(one_wait(timeout=HOUR)) as (engine, handle):
        await handle.send("event", {"trace": "x"})
        await engine.run_until_idle()

        assert query(engine, "select payload, claimed_by from inbound_events") == [('{"trace":"x"}', "wait")]
        (event,) = (await handle.info()).inbound_events
        assert (event.name, event.payload, event.claimed_by) == ("event", {"trace": "x"}, "wait")
        assert event.claimed_at == engine.now()


@pytest.mark.spec(71, 72)
@pytest.mark.parametrize(("arguments", "payload", "text"), [((), UNSET, None), ((None,), None, "null")])
@async_test
async def test_absent_and_null_payloads_are_told_apart_and_both_give_none(
    arguments: tuple[Any, ...], payload: Any, text: str | None
) -> None:
    received = []

    @definition
    async def workflow(self: Any) -> None:
        received.append(await self.wait("wait", "event"))
        await self.run("after", Callback(received[-1]))

    async with started(workflow) as (engine, handle):
        await handle.send("event", *arguments)
        await engine.run_until_idle()

        step = await step_of(handle, "wait", WaitStep)
        assert step.state == "satisfied"
        assert step.payload is payload
        assert query(engine, "select payload from inbound_events") == [(text,)]
        assert received == [None]
        (attempt,) = (await step_of(handle, "after", RunStep)).attempts
        assert (attempt.state, attempt.result_type, attempt.result_json) == ("succeeded", "none", None)
        assert await handle.status() == "completed"


@pytest.mark.spec(73)
@async_test
async def test_event_without_a_matching_wait_is_queued_and_satisfies_a_later_wait_at_its_creation() -> None:
    @definition
    async def workflow(self: Any) -> Any:
        await self.wait("first", "go")
        return await self.wait("second", "data")

    async with started(workflow) as (engine, handle):
        assert await handle.send("data", {"v": 1}) is Receipt.queued
        await engine.run_until_idle()
        (queued,) = (await handle.info()).inbound_events
        assert (queued.claimed_by, queued.claimed_at) == (None, None)
        assert [step.id for step in await handle.steps()] == ["first"]

        await engine.advance(1)
        await handle.send("go")
        await engine.run_until_idle()

        step = await step_of(handle, "second", WaitStep)
        assert (step.state, step.payload) == ("satisfied", {"v": 1})
        assert step.resolved_at == step.created_at == engine.now()
        assert await handle.result(timeout=5) == {"v": 1}


@pytest.mark.spec(74)
@async_test
async def test_queued_events_of_one_name_are_used_oldest_first_and_each_once() -> None:
    @definition
    async def workflow(self: Any) -> list[Any]:
        await self.wait("gate", "go")
        return [await self.wait(f"wait-{number}", "data") for number in range(3)]

    async with started(workflow) as (engine, handle):
        # All in the same millisecond: only the order of acceptance tells them apart.
        for number in (7, 5, 6):
            await handle.send("data", number)
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == [7, 5, 6]
        claims = [(event.payload, event.claimed_by) for event in (await handle.info()).inbound_events]
        assert claims == [(7, "wait-0"), (5, "wait-1"), (6, "wait-2"), (UNSET, "gate")]


@pytest.mark.spec(74)
@async_test
async def test_one_event_satisfies_one_wait_only() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.wait("first", "data")
        await self.wait("second", "data")

    async with started(workflow) as (engine, handle):
        await handle.send("data", 1)
        await engine.run_until_idle()

        assert (await step_of(handle, "first", WaitStep)).state == "satisfied"
        assert (await step_of(handle, "second", WaitStep)).state == "waiting"
        assert await handle.status() == "running"


@pytest.mark.spec(75)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_of_several_waits_on_one_name_the_earliest_created_is_satisfied(has_crashed: bool) -> None:
    @definition
    async def workflow(self: Any) -> list[Any]:
        # Not in the order of the alphabet, in which a database might happen to give them.
        waits = [self.wait(step_id, "data") for step_id in ("wait-c", "wait-a", "wait-b")]
        return list(await asyncio.gather(*waits))

    async with started(workflow) as (engine, handle):
        if has_crashed:
            await engine.crash()
        for number, expected in enumerate(
            [
                ["satisfied", "waiting", "waiting"],
                ["satisfied", "satisfied", "waiting"],
                ["satisfied", "satisfied", "satisfied"],
            ]
        ):
            await handle.send("data", number)
            await engine.run_until_idle()
            steps = [await step_of(handle, step_id, WaitStep) for step_id in ("wait-c", "wait-a", "wait-b")]
            assert [step.state for step in steps] == expected

        assert await handle.result(timeout=5) == [0, 1, 2]


@pytest.mark.spec(76, 77)
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
@async_test
async def test_event_to_an_ended_instance_is_dropped_and_changes_nothing(status: str) -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.run("step-1", Callback("done"))
        if status == "failed":
            raise RuntimeError("broken")
        if status == "cancelled":
            await self.wait("wait", "any-event")

    async with started(workflow) as (engine, handle):
        if status == "cancelled":
            await handle.cancel()
        steps, events = await handle.steps(), await handle.events()

        assert await handle.send("any-event", {"data": 1}) is Receipt.dropped
        await engine.run_until_idle()

        assert await handle.status() == status
        assert (await handle.steps(), await handle.events()) == (steps, events)
        assert query(engine, "select count(*) from inbound_events") == [(0,)]


@pytest.mark.spec(78, 79, 80)
@pytest.mark.parametrize(("arguments", "payload"), [(({"data": "test"},), {"data": "test"}), ((), UNSET)])
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_event_while_paused_waits_for_resume_and_then_satisfies_the_wait(
    arguments: tuple[Any, ...], payload: Any, has_crashed: bool
) -> None:
    passes: list[Any] = []

    @definition
    async def workflow(self: Any) -> None:
        passes.append(None)
        await self.wait("wait", "event", timeout=86_400)

    async with started(workflow) as (engine, handle):
        await handle.pause()
        passes.clear()

        assert await handle.send("event", *arguments) is Receipt.queued
        if has_crashed:
            await engine.crash()
        await engine.run_until_idle()

        assert (await handle.status(), (await step_of(handle, "wait", WaitStep)).state) == ("paused", "waiting")
        assert query(engine, "select name, claimed_by from inbound_events") == [("event", None)]
        assert passes == []

        await handle.resume()
        await engine.run_until_idle()

        step = await step_of(handle, "wait", WaitStep)
        assert (step.state, step.payload) == ("satisfied", payload)
        assert await handle.status() == "completed"


@pytest.mark.spec(81)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_event_before_create_is_queued_and_used_after_create(has_crashed: bool) -> None:
    workflow = one_wait()

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        assert await handle.send("event", "early") is Receipt.queued
        if has_crashed:
            await engine.crash()
        await engine.run_until_idle()
        assert (await handle.status(), await handle.steps()) == ("pending", [])

        assert await handle.create() is True

        assert await handle.result(timeout=5) == "early"
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(82)
@async_test
async def test_sending_an_event_without_a_name_is_refused_and_makes_no_instance() -> None:
    workflow = one_wait()

    async with SimulatedEngine([workflow]) as engine:
        with pytest.raises(DefinitionError, match="event name"):
            await engine.get(workflow, "instance-1").send("")

        assert await engine.list() == []


@pytest.mark.spec(82)
@async_test
async def test_waiting_for_an_event_without_a_name_fails_the_workflow() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.wait("wait", "")

    async with started(workflow) as (_engine, handle):
        with pytest.raises(WorkflowFailedError, match="event name"):
            await handle.result(timeout=5)
        assert await handle.steps() == []


@pytest.mark.spec(82)
def test_step_store_refuses_a_wait_for_an_event_without_a_name() -> None:
    context = WorkflowRuntimeContext()

    with pytest.raises(StepError, match="event name"):
        context.get_or_create_wait_step("wait-1", "", now=NOW)

    assert context.steps() == []


@pytest.mark.spec(82)
@async_test
async def test_storage_refuses_an_event_without_a_name() -> None:
    async with started(one_wait()) as (engine, _handle):
        insert = (
            "insert into inbound_events (instance_key, number, name, received_at) "
            "select instance_key, 1, ?, 1 from instances"
        )
        with pytest.raises(apsw.ConstraintError):
            query(engine, insert, "")

        # The same row with a name is accepted: nothing else was wrong with it.
        query(engine, insert, "named")
        assert query(engine, "select name from inbound_events") == [("named",)]


@pytest.mark.spec(82)
@async_test
async def test_storage_refuses_a_wait_for_an_event_without_a_name() -> None:
    async with started(one_wait()) as (engine, _handle):
        insert = (
            "insert into steps (instance_key, step_id, ordinal, kind, state, event_name, created_at) "
            "select instance_key, 'other', 2, 'wait', 'waiting', ?, 1 from instances"
        )
        with pytest.raises(apsw.ConstraintError):
            query(engine, insert, "")

        # The same row with a name is accepted: nothing else was wrong with it.
        query(engine, insert, "named")
        assert query(engine, "select event_name from steps where step_id = 'other'") == [("named",)]


@pytest.mark.spec(83)
@async_test
async def test_wait_whose_deadline_is_already_past_times_out_and_fails_the_workflow() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await self.wait("wait-1", "event-1", deadline=self.now() - timedelta(seconds=1))

    async with started(workflow) as (engine, handle):
        (step,) = await handle.steps()

        assert isinstance(step, WaitStep)
        assert (step.state, step.timeout_at) == ("timed_out", engine.now() - timedelta(seconds=1))
        assert await handle.status() == "failed"
        assert await lifecycle(handle) == ["created", "started", "failed"]


@pytest.mark.spec(84)
@async_test
async def test_passed_deadline_that_nobody_catches_fails_the_workflow_when_it_passes() -> None:
    async with started(one_wait(timeout=HOUR)) as (engine, handle):
        await engine.advance(HOUR - MILLISECOND)
        assert (await handle.status(), (await step_of(handle, "wait", WaitStep)).state) == ("running", "waiting")

        await engine.advance(MILLISECOND)

        assert (await handle.status(), (await step_of(handle, "wait", WaitStep)).state) == ("failed", "timed_out")
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(timeout=5)
        assert caught.value.error_name == "WaitTimeoutError"
        assert "'wait'" in caught.value.error_message
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(84)
@async_test
async def test_passed_deadline_may_be_caught_and_is_the_same_on_replay() -> None:
    caught: list[WaitTimeoutError] = []

    @definition
    async def workflow(self: Any) -> str:
        try:
            await self.wait("payment", "payment.received", timeout=HOUR)
        except WaitTimeoutError as error:
            caught.append(error)
        await self.wait("gate", "go")
        return "went on"

    async with started(workflow) as (engine, handle):
        await engine.advance(HOUR)
        await engine.crash()
        await handle.send("payment.received", "too late")
        await handle.send("go")
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == "went on"
        assert len(caught) >= 2
        assert {(type(error), str(error), error.step_id, error.event_name) for error in caught} == {
            (WaitTimeoutError, str(caught[0]), "payment", "payment.received")
        }


@pytest.mark.spec(85)
def test_step_store_times_out_a_wait_whose_deadline_is_past() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_wait_step("wait-1", "event-1", now=NOW, timeout_at=NOW)

    marked = context.handle_wait_step_timed_out("wait-1", now=LATER)

    assert (marked.state, marked.resolved_at) == ("timed_out", LATER)
    assert context.get_or_create_wait_step("wait-1", "event-1", now=LATER) == marked


@pytest.mark.spec(86)
def test_step_store_refuses_to_time_out_an_unknown_wait() -> None:
    with pytest.raises(StepError, match="not found"):
        WorkflowRuntimeContext().handle_wait_step_timed_out("nonexistent", now=NOW)


@pytest.mark.spec(87)
def test_step_store_refuses_to_time_out_a_wait_twice() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_wait_step("wait-1", "event-1", now=NOW, timeout_at=NOW)
    marked = context.handle_wait_step_timed_out("wait-1", now=NOW)

    with pytest.raises(StepError, match="Expected 'waiting' but got timed_out"):
        context.handle_wait_step_timed_out("wait-1", now=LATER)

    assert context.steps() == [marked]


@pytest.mark.spec(88)
def test_step_store_refuses_to_time_out_a_wait_before_its_deadline() -> None:
    context = WorkflowRuntimeContext()
    step = context.get_or_create_wait_step("wait-1", "event-1", now=NOW, timeout_at=LATER)

    with pytest.raises(StepError, match="deadline"):
        context.handle_wait_step_timed_out("wait-1", now=LATER - MILLISECOND)
    assert context.steps() == [step]

    assert context.handle_wait_step_timed_out("wait-1", now=LATER).state == "timed_out"


@pytest.mark.spec(88)
def test_step_store_times_out_a_wait_without_a_deadline() -> None:
    context = WorkflowRuntimeContext()
    context.get_or_create_wait_step("wait-1", "event-1", now=NOW)

    assert context.handle_wait_step_timed_out("wait-1", now=NOW).state == "timed_out"


@pytest.mark.spec(89)
@async_test
async def test_storage_refuses_a_second_event_claimed_by_the_same_wait() -> None:
    async with started(one_wait()) as (engine, handle):
        await handle.pause()
        await handle.send("event", 1)
        await handle.send("event", 2)
        await handle.resume()
        await engine.run_until_idle()
        claims = "select number, claimed_by from inbound_events order by number"
        assert query(engine, claims) == [(1, "wait"), (2, None)]

        with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
            query(engine, "update inbound_events set claimed_by = 'wait', claimed_at = 1 where number = 2")
        with pytest.raises(apsw.ConstraintError):
            query(
                engine,
                "insert into inbound_events (instance_key, number, name, received_at, claimed_by, claimed_at) "
                "select instance_key, 3, 'event', 1, 'wait', 1 from instances",
            )

        assert query(engine, claims) == [(1, "wait"), (2, None)]


@pytest.mark.spec(90)
@async_test
async def test_satisfied_and_timed_out_waits_carry_their_resolution_time() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await asyncio.gather(
            self.wait("satisfied", "event", timeout=HOUR),
            self.wait("timed-out", "never", timeout=HOUR),
            return_exceptions=True,
        )

    async with started(workflow) as (engine, handle):
        deadline = engine.now() + HOUR
        await engine.advance(60)
        received = engine.now()
        await handle.send("event")
        await engine.advance(HOUR)

        satisfied = await step_of(handle, "satisfied", WaitStep)
        timed_out = await step_of(handle, "timed-out", WaitStep)
        assert (satisfied.state, satisfied.resolved_at, satisfied.timeout_at) == ("satisfied", received, deadline)
        assert (timed_out.state, timed_out.resolved_at, timed_out.timeout_at) == ("timed_out", deadline, deadline)


@pytest.mark.spec(91)
@pytest.mark.parametrize("options", [{"deadline": datetime(1970, 1, 1, tzinfo=UTC)}, {"timeout": 0}])
@async_test
async def test_deadline_zero_is_an_expired_deadline_and_not_an_absent_one(options: dict[str, Any]) -> None:
    async with started(one_wait(**options)) as (engine, handle):
        step = await step_of(handle, "wait", WaitStep)

        assert (step.state, step.timeout_at) == ("timed_out", options.get("deadline", engine.now()))
        assert await handle.status() == "failed"


@pytest.mark.spec(92)
@async_test
async def test_stored_event_name_wins_over_a_changed_one_on_replay() -> None:
    event_name = "original"

    @definition
    async def workflow(self: Any) -> Any:
        return await self.wait("wait", event_name)

    async with started(workflow) as (engine, handle):
        event_name = "changed"
        await engine.crash()
        await handle.send("changed", 1)
        await engine.run_until_idle()

        step = await step_of(handle, "wait", WaitStep)
        assert (step.state, step.event_name) == ("waiting", "original")

        await handle.send("original", 2)

        assert await handle.result(timeout=5) == 2
        claims = [(event.name, event.claimed_by) for event in (await handle.info()).inbound_events]
        assert claims == [("changed", None), ("original", "wait")]


@pytest.mark.spec(93)
@pytest.mark.parametrize("delay", [timedelta(0), MILLISECOND, HOUR])
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_event_at_or_after_the_deadline_does_not_satisfy_a_wait_whose_timeout_is_not_recorded_yet(
    delay: timedelta, has_crashed: bool
) -> None:
    async with started(one_wait(timeout=HOUR)) as (engine, handle):
        # A paused instance records no timeout, so the event comes while the wait is still waiting.
        await handle.pause()
        await engine.advance(HOUR + delay)
        await handle.send("event", "too late")
        assert (await step_of(handle, "wait", WaitStep)).state == "waiting"
        if has_crashed:
            await engine.crash()
        await handle.resume()
        await engine.run_until_idle()

        assert (await step_of(handle, "wait", WaitStep)).state == "timed_out"
        assert await handle.status() == "failed"
        (event,) = (await handle.info()).inbound_events
        assert (event.payload, event.claimed_by) == ("too late", None)


@pytest.mark.spec(94)
@pytest.mark.parametrize("has_crashed", [False, True])
@async_test
async def test_event_queued_before_the_deadline_satisfies_the_wait_after_it(has_crashed: bool) -> None:
    async with started(one_wait(timeout=HOUR)) as (engine, handle):
        await handle.pause()
        await engine.advance(HOUR - MILLISECOND)
        await handle.send("event", "in time")
        await engine.advance(HOUR)
        if has_crashed:
            await engine.crash()
        await handle.resume()
        await engine.run_until_idle()

        assert (await step_of(handle, "wait", WaitStep)).state == "satisfied"
        assert await handle.result(timeout=5) == "in time"


@pytest.mark.spec(94)
@async_test
async def test_wait_first_reached_after_its_deadline_has_the_event_queued_before_it() -> None:
    @definition
    async def workflow(self: Any) -> Any:
        deadline = self.now() + HOUR
        await self.sleep("long", 2 * HOUR)
        return await self.wait("wait", "event", deadline=deadline)

    async with started(workflow) as (engine, handle):
        await handle.send("event", "in time")
        await engine.advance(2 * HOUR)

        assert await handle.result(timeout=5) == "in time"


@pytest.mark.spec(95)
@async_test
async def test_event_sent_together_with_create_is_not_lost() -> None:
    workflow = one_wait(timeout=HOUR)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")

        await asyncio.gather(handle.create(), handle.send("event", "at once"))

        assert await handle.result(timeout=5) == "at once"
        step = await step_of(handle, "wait", WaitStep)
        assert step.state == "satisfied"
        assert query(engine, "select claimed_by from inbound_events") == [("wait",)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(95)
@async_test
async def test_event_sent_by_the_callback_before_the_wait_is_not_lost() -> None:
    async def order() -> None:
        await engine.get(workflow, "instance-1").send("event", "from the callback")

    @definition
    async def workflow(self: Any) -> Any:
        await self.run("order", order)
        return await self.wait("wait", "event", timeout=HOUR)

    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create()

        assert await handle.result(timeout=5) == "from the callback"
        assert states(await step_of(handle, "order", RunStep)) == ["succeeded"]
        assert query(engine, "select claimed_by from inbound_events") == [("wait",)]
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(94, 95)
@async_test
async def test_event_sent_in_time_while_nothing_executed_satisfies_the_wait_after_its_deadline(tmp_path: Path) -> None:
    deadline = datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    workflow = one_wait(deadline=deadline)
    async with Engine(tmp_path / "file.db", [workflow], execute=False) as sender:
        await sender.get(workflow, "instance-1").create()
        # Sent a second before the deadline, by another process and long ago.
        query(
            sender,
            "insert into mail (instance_key, kind, name, payload, sent_at) "
            "select instance_key, 'event', 'event', '\"in time\"', 1000 from instances",
        )

    async with Engine(tmp_path / "file.db", [workflow]) as engine:
        assert await engine.get(workflow, "instance-1").result(timeout=30) == "in time"


@pytest.mark.spec(74)
@async_test
async def test_events_sent_at_once_are_used_in_the_order_in_which_they_were_accepted() -> None:
    @definition
    async def workflow(self: Any) -> list[Any]:
        return [await self.wait(f"wait-{number}", "data") for number in range(20)]

    async with started(workflow) as (_engine, handle):
        await asyncio.gather(*(handle.send("data", number) for number in range(20)))

        assert await handle.result(timeout=5) == list(range(20))


@pytest.mark.spec(67)
@async_test
async def test_alarm_is_the_earliest_of_several_deadlines() -> None:
    @definition
    async def workflow(self: Any) -> None:
        await asyncio.gather(
            self.wait("late", "event", timeout=3 * HOUR),
            self.sleep("nap", HOUR.total_seconds() * 2),
            self.wait("early", "other", timeout=HOUR),
        )

    async with started(workflow) as (engine, handle):
        began = engine.now()
        assert (await handle.info()).alarm_at == began + HOUR

        await handle.send("other")
        await engine.run_until_idle()

        assert (await handle.info()).alarm_at == began + 2 * HOUR
