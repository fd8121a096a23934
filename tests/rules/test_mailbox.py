"""The rules of the mailbox: events and commands from engines that execute nothing, beside the owner of the file."""

import asyncio
from datetime import timedelta

import apsw
import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, started, states, step_of

from workerflow import (
    UNSET,
    Engine,
    InvalidValueError,
    Receipt,
    RunStep,
    Settings,
    WaitStep,
    WaitTimeoutError,
    WorkflowCancelledError,
    WorkflowHeldError,
    WorkflowStateError,
)
from workerflow.testing import SimulatedEngine


@definition
async def Listener(self):
    return await self.wait("payment", "paid", int)


@definition
async def Collector(self):
    return [await self.wait(f"wait-{number}", "message", int) for number in range(self.input)]


def beside(engine, *workflows):
    """An engine on the same file that executes nothing, as a web process has it."""
    return Engine(engine.url, workflows, execute=False)


def post(engine, instance_id, kind, name=None, payload=None, reason=None, sent_at=None):
    """Put mail into the file at this very moment, without a hint: what a sender's transaction does."""
    database = apsw.Connection(engine.url)
    try:
        database.execute(
            "insert into mail (instance_key, kind, name, payload, reason, sent_at) "
            "select instance_key, ?, ?, ?, ?, coalesce(?, created_at) from instances where instance_id = ?",
            (kind, name, payload, reason, sent_at, instance_id),
        )
        assert database.changes() == 1
    finally:
        database.close()


# What a sender can do.


@async_test
async def test_an_engine_that_executes_nothing_creates_and_the_owner_executes():
    async with SimulatedEngine([Collector]) as owner, beside(owner, Collector) as client:
        handle = client.get(Collector, "instance-1")
        assert await handle.create(0) is True
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == []
        assert await handle.create(3) is False
        assert await lifecycle(handle) == ["created", "started", "completed"]


@async_test
async def test_without_an_owner_nothing_is_executed_until_one_comes(tmp_path):
    async with Engine(tmp_path / "mail.db", [Listener], execute=False) as client:
        handle = client.get(Listener, "instance-1")
        assert await handle.create() is True
        assert await handle.send("paid", 7) == Receipt.queued
        assert await handle.status() == "pending"
        assert await handle.steps() == []

    async with Engine(tmp_path / "mail.db", [Listener]) as owner:
        assert await owner.get(Listener, "instance-1").result(timeout=10) == 7


@async_test
async def test_the_input_of_the_first_create_counts_wherever_it_came_from():
    async with SimulatedEngine([Collector]) as owner, beside(owner, Collector) as client:
        assert await client.get(Collector, "instance-1").create(0) is True
        assert await client.get(Collector, "instance-1").create(1) is False
        await owner.run_until_idle()
        assert await owner.get(Collector, "instance-1").create(2) is False
        assert (await client.get(Collector, "instance-1").info()).input == 0


@async_test
async def test_events_by_mail_are_used_in_the_order_in_which_they_were_sent():
    async with started(Collector, 20) as (owner, handle), beside(owner, Collector) as client:
        for number in range(20):
            assert await client.get(Collector, "instance-1").send("message", number) == Receipt.queued
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == list(range(20))
        events = (await handle.info()).inbound_events
        assert [(event.number, event.payload, event.claimed_by) for event in events] == [
            (number + 1, number, f"wait-{number}") for number in range(20)
        ]


@async_test
async def test_mail_and_direct_events_share_one_order_of_acceptance():
    async with started(Collector, 3) as (owner, handle), beside(owner, Collector) as client:
        await client.get(Collector, "instance-1").send("message", 1)
        await owner.run_until_idle()
        await handle.send("message", 2)
        await client.get(Collector, "instance-1").send("message", 3)
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == [1, 2, 3]


@async_test
async def test_no_payload_and_none_stay_different_by_mail():
    @definition
    async def Idle(self):
        await self.wait("end", "end")

    async with started(Idle) as (owner, handle), beside(owner, Idle) as client:
        await client.get(Idle, "instance-1").send("message")
        await client.get(Idle, "instance-1").send("message", None)
        await owner.run_until_idle()
        assert [event.payload for event in (await handle.info()).inbound_events] == [UNSET, None]


@async_test
async def test_a_value_that_cannot_be_stored_is_refused_at_the_sender():
    async with started(Listener) as (owner, handle), beside(owner, Listener) as client:
        with pytest.raises(InvalidValueError):
            await client.get(Listener, "instance-1").send("paid", float("nan"))
        with pytest.raises(InvalidValueError):
            await client.get(Listener, "instance-2").create({1, 2})
        await owner.run_until_idle()
        assert list((await handle.info()).inbound_events) == []
        assert len(await owner.list()) == 1


@async_test
async def test_a_sender_does_not_wait_for_the_owner_and_the_owner_not_for_an_open_transaction_of_a_sender():
    """A sender only inserts. What it leaves open must not make anything it did visible, nor anything be lost."""
    async with started(Collector, 1) as (owner, handle), beside(owner, Collector) as client:
        assert await client.get(Collector, "instance-1").send("message", 7) == Receipt.queued
        assert (await step_of(handle, "wait-0", WaitStep)).state == "waiting"
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == [7]


# Duplicates and receipts.


@async_test
async def test_a_repeated_id_is_a_duplicate_wherever_the_event_came_from():
    async with started(Collector, 3) as (owner, handle), beside(owner, Collector) as client:
        sender = client.get(Collector, "instance-1")
        assert await handle.send("message", 1, id="first") == Receipt.used
        assert await sender.send("message", 2, id="first") == Receipt.duplicate
        assert await sender.send("message", 3, id="second") == Receipt.queued
        assert await sender.send("message", 4, id="second") == Receipt.duplicate
        await owner.run_until_idle()
        assert await sender.send("message", 5, id="second") == Receipt.duplicate
        assert await handle.send("message", 6, id="second") == Receipt.duplicate
        await owner.run_until_idle()

        events = (await handle.info()).inbound_events
        assert [(event.id, event.payload) for event in events] == [("first", 1), ("second", 3)]


@async_test
async def test_an_id_that_is_still_in_the_mail_is_used_once_only():
    async with started(Collector, 3) as (owner, handle), beside(owner, Collector) as client:
        await asyncio.gather(
            client.get(Collector, "instance-1").send("message", 1, id="same"),
            handle.send("message", 1, id="same"),
        )
        await owner.run_until_idle()
        assert [event.payload for event in (await handle.info()).inbound_events] == [1]


@async_test
async def test_an_event_to_an_ended_instance_is_dropped_and_a_repeated_one_is_still_a_duplicate():
    async with started(Collector, 1) as (owner, handle), beside(owner, Collector) as client:
        sender = client.get(Collector, "instance-1")
        await sender.send("message", 1, id="first")
        await owner.run_until_idle()
        await handle.result(timeout=5)

        for ended in (sender, handle):
            assert await ended.send("message", 2, id="second") == Receipt.dropped
            assert await ended.send("message", 3) == Receipt.dropped
            assert await ended.send("message", 1, id="first") == Receipt.duplicate
        assert [event.payload for event in (await handle.info()).inbound_events] == [1]


# Commands.


@async_test
async def test_pause_resume_and_cancel_by_mail_do_what_they_do_directly():
    async with started(Listener) as (owner, handle), beside(owner, Listener) as client:
        sender = client.get(Listener, "instance-1")
        await sender.pause()
        await owner.run_until_idle()
        assert await handle.status() == "paused"
        await sender.resume()
        await owner.run_until_idle()
        assert await handle.status() == "running"
        await sender.cancel("customer left")
        await owner.run_until_idle()

        with pytest.raises(WorkflowCancelledError, match="customer left"):
            await sender.result(timeout=5)
        assert await lifecycle(sender) == ["created", "started", "paused", "resumed", "cancelled"]


@async_test
async def test_commands_by_mail_are_applied_in_the_order_in_which_they_were_sent():
    async with started(Listener) as (owner, handle), beside(owner, Listener) as client:
        sender = client.get(Listener, "instance-1")
        for verb in (sender.pause, sender.resume, sender.pause, sender.resume, sender.pause):
            await verb()
        await owner.run_until_idle()
        assert await lifecycle(handle) == ["created", "started", *["paused", "resumed"] * 2, "paused"]
        assert await handle.status() == "paused"


@async_test
async def test_a_resume_by_mail_is_refused_with_the_same_words():
    async with started(Listener) as (owner, _), beside(owner, Listener) as client:
        with pytest.raises(WorkflowStateError) as refused:
            await client.get(Listener, "instance-1").resume()
        assert str(refused.value) == "Cannot resume workflow: expected status 'paused' but got 'running'."
        with pytest.raises(WorkflowStateError, match="got 'pending'"):
            await client.get(Listener, "unknown").resume()
        assert [summary.id for summary in await owner.list()] == ["instance-1"]


@async_test
async def test_a_cancellation_by_mail_stops_a_callback_in_flight():
    gate = Gate()

    @definition
    async def InFlight(self):
        await self.run("call", gate)

    async with SimulatedEngine([InFlight]) as owner, beside(owner, InFlight) as client:
        await owner.get(InFlight, "instance-1").create()
        await gate.begun()
        await client.get(InFlight, "instance-1").cancel()
        with pytest.raises(WorkflowCancelledError):
            await client.get(InFlight, "instance-1").result(timeout=5)
        assert states(await step_of(client.get(InFlight, "instance-1"), "call", RunStep)) == ["failed"]
        await owner.run_until_idle()
        assert gate.cancellations == 1


# Mail that comes at an awkward moment.


@async_test
async def test_mail_wakes_a_hibernating_instance():
    async with (
        started(Collector, 3, settings=Settings(hibernate_after_s=0)) as (owner, handle),
        beside(owner, Collector) as client,
    ):
        for number in range(3):
            assert (await handle.info()).owner is None
            await client.get(Collector, "instance-1").send("message", number)
            await owner.run_until_idle()
        assert await handle.result(timeout=5) == [0, 1, 2]


@pytest.mark.parametrize("turns", range(6))
@async_test
async def test_mail_that_comes_while_an_instance_goes_to_hibernate_is_not_lost(turns):
    loop = asyncio.get_running_loop()

    @definition
    async def Falling(self):
        await self.run("call", Callback())
        if not self.replaying:
            # From here it takes a few turns of the loop until the instance is out of memory.
            after_turns(turns, lambda: post(owner, "instance-1", "event", "paid", "7"))
        return await self.wait("payment", "paid", int)

    def after_turns(count, action):
        loop.call_soon(action) if count == 0 else loop.call_soon(after_turns, count - 1, action)

    async with SimulatedEngine([Falling], settings=Settings(hibernate_after_s=0)) as owner:
        handle = owner.get(Falling, "instance-1")
        await handle.create()
        await owner.run_until_idle()
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == 7
        assert len((await handle.info()).inbound_events) == 1


@pytest.mark.parametrize("seed", range(4))
@async_test
async def test_mail_between_the_look_for_it_and_the_commit_that_hibernates_is_not_lost(seed):
    """The order in which the two instances are driven depends on their keys, and so on the seed."""

    posted: list[bool] = []

    @definition
    async def Poster(self):
        await self.sleep("minute", 60)
        if not posted:
            posted.append(True)
            post(owner, "instance-1", "event", "paid", "7")

    @definition
    async def Falling(self):
        await self.sleep("minute", 60)
        return await self.wait("payment", "paid", int)

    async with SimulatedEngine([Poster, Falling], seed, settings=Settings(hibernate_after_s=0)) as owner:
        handle = owner.get(Falling, "instance-1")
        await owner.get(Poster, "instance-2").create()
        await handle.create()
        await owner.advance(60)
        # No hint was given, and no poll comes any more: the batch itself has found the mail.
        assert await handle.result(timeout=5) == 7
        assert len((await handle.info()).inbound_events) == 1


@pytest.mark.parametrize("turns", range(6))
@async_test
async def test_an_event_that_comes_while_an_instance_ends_is_accepted_before_the_end_or_dropped(turns):
    """The sender may be told ``queued`` only if the event is recorded."""
    loop = asyncio.get_running_loop()
    receipts: list[asyncio.Task[Receipt]] = []

    @definition
    async def Ending(self):
        await self.run("call", Callback())
        after_turns(turns, lambda: receipts.append(asyncio.ensure_future(handle_beside.send("late", 7))))

    def after_turns(count, action):
        loop.call_soon(action) if count == 0 else loop.call_soon(after_turns, count - 1, action)

    async with SimulatedEngine([Ending]) as owner, beside(owner, Ending) as client:
        handle, handle_beside = owner.get(Ending, "instance-1"), client.get(Ending, "instance-1")
        await handle.create()
        await handle.result(timeout=5)
        while not receipts:
            await owner.run_until_idle()
        receipt = await receipts[0]
        await owner.run_until_idle()
        recorded = [event.payload for event in (await handle.info()).inbound_events]
        assert (receipt, recorded) in [(Receipt.queued, [7]), (Receipt.dropped, [])]


@pytest.mark.parametrize(("kind", "status"), [("cancel", "cancelled"), ("pause", "paused")])
@async_test
async def test_a_command_that_came_before_the_end_of_execute_counts(kind, status):
    @definition
    async def Ending(self):
        await self.run("call", Callback())
        # In the file before the batch that would end the instance.
        if not self.replaying:
            post(owner, "instance-1", kind)
        return "done"

    async with SimulatedEngine([Ending]) as owner:
        handle = owner.get(Ending, "instance-1")
        await handle.create()
        await owner.run_until_idle()
        assert await handle.status() == status
        if status == "paused":
            await handle.resume()
            await owner.run_until_idle()
            # The body that was at its end says so again, or its replay does.
            assert await handle.result(timeout=5) == "done"


@async_test
async def test_an_event_sent_before_the_deadline_is_used_though_the_owner_finds_it_after():
    gate = Gate()

    @definition
    async def Deadline(self):
        await self.run("call", gate, timeout=timedelta(days=1))
        try:
            return await self.wait("payment", "paid", int, deadline=start + timedelta(seconds=10))
        except WaitTimeoutError:
            return "timed out"

    async with SimulatedEngine([Deadline]) as owner:
        start = owner.now()
        handle = owner.get(Deadline, "instance-1")
        await handle.create()
        await gate.begun()
        await owner.advance(60)
        post(owner, "instance-1", "event", "paid", "7", sent_at=round((start.timestamp() + 5) * 1000))
        gate.open()
        assert await handle.result(timeout=5) == 7


@async_test
async def test_an_event_sent_after_the_deadline_does_not_satisfy_the_wait():
    gate = Gate()

    @definition
    async def Deadline(self):
        await self.run("call", gate, timeout=timedelta(days=1))
        try:
            return await self.wait("payment", "paid", int, deadline=start + timedelta(seconds=10))
        except WaitTimeoutError:
            return "timed out"

    async with SimulatedEngine([Deadline]) as owner:
        start = owner.now()
        handle = owner.get(Deadline, "instance-1")
        await handle.create()
        await gate.begun()
        await owner.advance(60)
        post(owner, "instance-1", "event", "paid", "7", sent_at=round((start.timestamp() + 10) * 1000))
        gate.open()
        assert await handle.result(timeout=5) == "timed out"
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == [None]


@async_test
async def test_mail_survives_a_crash_of_the_owner_and_is_applied_once():
    async with started(Collector, 3) as (owner, handle), beside(owner, Collector) as client:
        for number in range(3):
            await client.get(Collector, "instance-1").send("message", number)
            await owner.crash()
        await owner.run_until_idle()
        assert await handle.result(timeout=5) == [0, 1, 2]
        assert len((await handle.info()).inbound_events) == 3


@async_test
async def test_mail_is_found_without_any_hint(tmp_path):
    path = tmp_path / "mail.db"
    async with Engine(path, [Listener], settings=Settings(poll_interval_ms=10)) as owner:
        handle = owner.get(Listener, "instance-1")
        await handle.create()
        post(owner, "instance-1", "event", "paid", "7")
        assert await handle.result(timeout=10) == 7


@async_test
async def test_a_hint_makes_mail_found_at_once(tmp_path):
    settings = Settings(poll_interval_ms=10**9)
    async with (
        Engine(tmp_path / "mail.db", [Listener], settings=settings) as owner,
        Engine(tmp_path / "mail.db", [Listener], execute=False) as client,
    ):
        await owner.get(Listener, "instance-1").create()
        await client.get(Listener, "instance-1").send("paid", 7)
        assert await owner.get(Listener, "instance-1").result(timeout=10) == 7


@async_test
async def test_mail_for_a_workflow_that_the_owner_does_not_know_holds_that_instance_only(tmp_path):
    async with (
        SimulatedEngine([Listener]) as owner,
        Engine(owner.url, [], execute=False) as client,
    ):
        await client.get("Unknown", "instance-1").create()
        await client.get("Listener", "instance-2").create()
        await client.get("Listener", "instance-2").send("paid", 7)
        await owner.run_until_idle()

        with pytest.raises(WorkflowHeldError, match="Unknown"):
            await client.get("Unknown", "instance-1").result(timeout=5)
        assert await client.get("Listener", "instance-2").result(timeout=5) == 7


@pytest.mark.parametrize("is_nested", [False, True])
@async_test
async def test_a_batch_held_back_by_mail_keeps_callbacks_in_flight_and_loses_no_outcome(is_nested):
    """The mail comes after the owner has looked for it, and before the commit that times the wait out."""
    gate, entered = Gate("called"), Callback()

    @definition
    async def Timer(self):
        await self.sleep("minute", 60)
        # Both alarms were acted on in this turn of the loop; the batch is not written yet.
        post(owner, "instance-1", "event", "other", "1")

    @definition
    async def Waiting(self):
        async def outer():
            await entered()
            return await self.run("inner", gate, returns=str, timeout=timedelta(days=1))

        call = (
            self.run("outer", outer, returns=str)
            if is_nested
            else self.run("call", gate, returns=str, timeout=timedelta(days=1))
        )
        with pytest.raises(WaitTimeoutError):
            await self.wait("payment", "paid", timeout=60)
        await self.run("after", Callback())
        return await call

    async with SimulatedEngine([Timer, Waiting]) as owner:
        handle = owner.get(Waiting, "instance-1")
        await owner.get(Timer, "instance-2").create()
        await handle.create()
        await gate.begun()
        await owner.advance(60)
        assert (await step_of(handle, "payment", WaitStep)).state == "timed_out"
        assert [event.name for event in (await handle.info()).inbound_events] == ["other"]
        assert states(await step_of(handle, "after", RunStep)) == ["succeeded"]
        gate.open()
        assert await handle.result(timeout=5) == "called"
        assert (gate.calls, gate.cancellations) == (1, 0)
        assert entered.calls == (1 if is_nested else 0)
        assert await lifecycle(handle) == ["created", "started", "completed"]
