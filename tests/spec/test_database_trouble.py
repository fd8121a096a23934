"""Section 18: the database cannot be reached or refuses. Nothing is lost, nothing fails for it, and all goes on."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.bodies import AWAKE, HOUR, next_turn
from tests.signals import Gate
from tests.support import Callback, async_test, definition, lifecycle, query, started, states, step_of

from workerflow import (
    DatabaseError,
    Engine,
    EngineClosedError,
    RetryPolicy,
    RunStep,
    Settings,
    SleepStep,
    WaitStep,
    WorkflowRuntime,
)
from workerflow.store.sqlite.connection import Connection
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine
from workerflow.worker import committer, worker

BACK_OFF_MS = [50, 100, 200, 500, 1000, 2000, 5000]
MILLISECOND = timedelta(milliseconds=1)
RETRY = timedelta(seconds=60)
TWICE = RetryPolicy(max_attempts=2, initial=60, maximum=60)


class Trouble:
    """A database that takes no writes from ``begin()`` to ``end()``."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def begin(self, engine):
        self.engine = engine

    def end(self):
        """The cause is mended."""

    async def is_felt(self):
        """A write has failed, and the engine waits until it tries again."""
        async with asyncio.timeout(10):
            while self.pause_ms() > BACK_OFF_MS[-1]:
                await next_turn()

    def pause_ms(self):
        """How long the engine waits for its next timer: in trouble its next try, all others are further away."""
        return self.engine._virtual.next_timer_ms() - self.engine._virtual.now_ms()

    def pass_time(self, milliseconds):
        """Move the clock, without waiting for writes that cannot end."""
        self.engine._virtual.move_to(self.engine._virtual.now_ms() + milliseconds)
        self.engine._virtual.fire_due()

    async def goes_by(self):
        """The cause is mended, and the next try comes."""
        self.end()
        self.pass_time(self.pause_ms())
        async with asyncio.timeout(10):
            await self.engine.run_until_idle()


class Gone(Trouble):
    """The file is where nobody finds it, as when a network drive is not there."""

    def begin(self, engine):
        super().begin(engine)
        self._path = Path(engine.url)
        self._path.rename(self._path.with_suffix(".away"))

    def end(self):
        self._path.with_suffix(".away").rename(self._path)


class Failing(Trouble):
    """Something is wrong with a connection, and with every new one."""

    def begin(self, engine):
        super().begin(engine)
        configure = self._configure = Connection._configure

        def configure_failing(connection, *arguments):
            configure(connection, *arguments)
            self.spoil(connection.raw)

        self._monkeypatch.setattr(Connection, "_configure", configure_failing)
        self.spoil(self.connection(engine._store).raw)

    def end(self):
        self._monkeypatch.setattr(Connection, "_configure", self._configure)

    def connection(self, store):
        """The one that is open."""
        return store._writer

    def spoil(self, raw):
        raise NotImplementedError


class ReadOnly(Failing):
    """SQLite refuses every statement that writes."""

    def spoil(self, raw):
        raw.execute("pragma query_only = on")


class Torn(Failing):
    """An I/O error in the middle of every batch, when a part of it is written."""

    def spoil(self, raw):
        raw.exec_trace = self._trace

    def _trace(self, cursor, statement, bindings):
        if re.search(r"^(insert into|update) (?!workers)", statement, re.MULTILINE):
            raise apsw.IOError("disk I/O error")
        return True


class Full(Failing):
    """The file cannot grow: SQLite takes its present size for the smallest possible."""

    def spoil(self, raw):
        raw.execute("pragma max_page_count = 1")


@pytest.fixture(params=[Gone, ReadOnly, Torn])
def trouble(request, monkeypatch):
    return request.param(monkeypatch)


class Unread(Failing):
    """An I/O error at every read. It sticks to a connection that has met it."""

    count = 0

    def connection(self, store):
        return store._reader

    def spoil(self, raw):
        raw.exec_trace = self._trace

    def _trace(self, cursor, statement, bindings):
        self.count += 1
        raise apsw.IOError("disk I/O error")


@pytest.fixture
def unread(monkeypatch):
    return Unread(monkeypatch)


def reports(caplog):
    """What the engine said of writes that failed."""
    return [record for record in caplog.records if "not durable yet, trying again" in record.getMessage()]


def one_call(callback, **options):
    """The definition of a workflow with one step."""

    @definition
    async def Charging(self):
        return await self.run("charge", callback, returns=str, **options)

    return Charging


async def in_flight(engine, workflow, gate):
    """An instance whose callback has begun."""
    handle = engine.get(workflow, "instance-1")
    await handle.create()
    await gate.begun()
    return handle


# Back-off.


@pytest.mark.spec(203)
@async_test
async def test_an_outcome_that_cannot_be_written_is_tried_again_after_growing_pauses(trouble, caplog):
    charge = Gate("charged")
    workflow = one_call(charge)
    async with SimulatedEngine([workflow], settings=AWAKE) as engine:
        handle = await in_flight(engine, workflow, charge)
        trouble.begin(engine)
        charge.open()
        pauses = []
        for _ in range(len(BACK_OFF_MS) + 2):
            await trouble.is_felt()
            pauses.append(trouble.pause_ms())
            trouble.pass_time(pauses[-1])
        await trouble.is_felt()
        assert pauses == [*BACK_OFF_MS, 5000, 5000]
        assert {record.levelname for record in reports(caplog)} == {"ERROR"}
        # One a pause, and one for the write on the loop before the first.
        assert len(reports(caplog)) - len(pauses) in (1, 2)

        await trouble.goes_by()

        assert await handle.result(timeout=5) == "charged"
        assert states(await step_of(handle, "charge", RunStep)) == ["succeeded"]
        assert charge.calls == 1
        assert (await handle.info()).alarm_at is None


@pytest.mark.spec(204)
@async_test
async def test_the_database_is_never_given_up_and_a_write_that_succeeds_begins_the_pauses_anew(trouble, caplog):
    charge = Gate("charged")

    @definition
    async def Charging(self):
        charged = await self.run("charge", charge, returns=str)
        return [charged, await self.wait("payment", "paid")]

    async with SimulatedEngine([Charging], settings=AWAKE) as engine:
        handle = await in_flight(engine, Charging, charge)
        trouble.begin(engine)
        charge.open()
        for _ in range(30):
            await trouble.is_felt()
            trouble.pass_time(trouble.pause_ms())
        await trouble.is_felt()
        assert await handle.status() == "running"
        assert states(await step_of(handle, "charge", RunStep)) == ["started"]
        assert len(reports(caplog)) > 30
        await trouble.goes_by()
        assert states(await step_of(handle, "charge", RunStep)) == ["succeeded"]

        trouble.begin(engine)
        sending = asyncio.ensure_future(handle.send("paid", 7))
        await trouble.is_felt()
        assert trouble.pause_ms() == BACK_OFF_MS[0]
        await trouble.goes_by()
        assert await sending == "used"
        assert await handle.result(timeout=5) == ["charged", 7]
        assert charge.calls == 1


@pytest.mark.spec(205)
@async_test
async def test_a_database_that_another_program_holds_is_waited_for_and_no_callback_runs_twice(
    monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr(committer, "BUSY_WAIT_MS", 1)
    charge, ship = Gate("charged"), Callback("shipped")

    @definition
    async def Charging(self):
        return [await self.run("charge", charge, returns=str), await self.run("ship", ship, returns=str)]

    async with Engine(tmp_path / "a.db", [Charging]) as engine:
        handle = await in_flight(engine, Charging, charge)
        foreign = apsw.Connection(engine.url)
        foreign.execute("begin immediate")
        charge.open()
        async with asyncio.timeout(10):
            while "waits for a foreign transaction" not in caplog.text:
                await next_turn()
        assert await handle.status() == "running"
        assert (await handle.info()).held is None
        assert states(await step_of(handle, "charge", RunStep)) == ["started"]
        assert (charge.calls, ship.calls) == (1, 0)

        foreign.execute("rollback")
        foreign.close()

        assert await handle.result(timeout=10) == ["charged", "shipped"]
        assert (charge.calls, ship.calls) == (1, 1)
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(206)
@async_test
async def test_rows_that_are_refused_for_what_they_are_are_not_tried_for_ever_and_not_lost(caplog):
    charge = Gate("charged")
    workflow = one_call(charge)
    async with SimulatedEngine([workflow]) as engine:
        handle = await in_flight(engine, workflow, charge)
        query(
            engine,
            "create trigger refusal before update on attempts when new.state = 'succeeded' "
            "begin select raise(abort, 'no success here'); end",
        )
        charge.open()
        await engine.run_until_idle()

        info = await handle.info()
        assert (info.status, info.alarm_at) == ("running", None)
        assert "no success here" in str(info.held)
        refusals = [record for record in caplog.records if "refused the rows" in record.getMessage()]
        assert [record.levelname for record in refusals] == ["ERROR", "ERROR"]
        await engine.advance(HOUR)
        assert reports(caplog) == []
        assert caplog.text.count("refused the rows") == 2

        query(engine, "drop trigger refusal")
        await handle.resume()
        assert await handle.result(timeout=5) == "charged"
        assert charge.calls == 1


# Commands that come in the meantime.


@pytest.mark.spec(207)
@async_test
async def test_a_workflow_paused_in_trouble_calls_nothing_more_and_has_no_alarm(trouble):
    charge = Gate(error=ConnectionError())
    workflow = one_call(charge, retry=TWICE)
    async with SimulatedEngine([workflow]) as engine:
        handle = await in_flight(engine, workflow, charge)
        trouble.begin(engine)
        charge.open()
        await trouble.is_felt()
        pausing = asyncio.ensure_future(handle.pause())
        await next_turn()
        assert not pausing.done()
        assert await handle.status() == "running"

        await trouble.goes_by()
        await pausing
        await engine.advance(HOUR)

        assert await handle.status() == "paused"
        assert (await handle.info()).alarm_at is None
        assert states(await step_of(handle, "charge", RunStep)) == ["failed"]
        assert charge.calls == 1
        await handle.resume()
        await engine.run_until_idle()
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "failed"]
        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "failed"]


@pytest.mark.spec(208)
@async_test
async def test_a_workflow_cancelled_in_trouble_calls_nothing_more_and_its_end_is_delivered_once(trouble):
    charge = Gate(error=ConnectionError())
    delivered = []

    class Charging(WorkflowRuntime[Any, Any]):
        definition = one_call(charge, retry=TWICE)

        async def completion(self, event):
            delivered.append(event.status)

    async with SimulatedEngine([Charging]) as engine:
        handle = await in_flight(engine, Charging, charge)
        trouble.begin(engine)
        charge.open()
        await trouble.is_felt()
        cancelling = asyncio.ensure_future(handle.cancel("enough"))
        await next_turn()
        assert not cancelling.done()
        assert delivered == []

        await trouble.goes_by()
        await cancelling
        await engine.advance(HOUR)

        assert await lifecycle(handle) == ["created", "started", "cancelled"]
        assert states(await step_of(handle, "charge", RunStep)) == ["failed"]
        assert charge.calls == 1
        assert delivered == ["cancelled"]
        assert query(engine, "select attempts, delivered_at is null, last_error from deliveries") == [(1, 0, None)]
        assert (await handle.info()).alarm_at is None


# The process ends in the meantime.


@pytest.mark.spec(209)
@async_test
async def test_an_engine_closed_in_trouble_gives_up_and_the_next_one_goes_on(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "SETTLE_S_MIN", 0.05)
    charge = Gate("charged")
    workflow = one_call(charge)
    trouble = Gone(monkeypatch)
    async with Engine(tmp_path / "a.db", [workflow], settings=Settings(stop_grace_s=0)) as engine:
        await in_flight(engine, workflow, charge)
        trouble.begin(engine)
        charge.open()
        async with asyncio.timeout(10):
            while not reports(caplog):
                await next_turn()
        creating = asyncio.ensure_future(engine.get(workflow, "instance-2").create())
        await next_turn()
    trouble.end()
    with pytest.raises(EngineClosedError):
        await creating
    assert "takes no writes" in caplog.text

    async with Engine(tmp_path / "a.db", [workflow]) as engine:
        handle = engine.get(workflow, "instance-1")
        assert await handle.status() == "running"
        assert await handle.result(timeout=10) == "charged"
        # The outcome that was not durable is the only one that is run for again.
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "succeeded"]
        assert charge.calls == 2
        assert await engine.get(workflow, "instance-2").status() == "pending"


@pytest.mark.spec(210)
@async_test
async def test_a_process_killed_in_trouble_leaves_what_was_durable_before_it(trouble):
    charge = Gate("charged")
    workflow = one_call(charge, retry=TWICE)
    async with SimulatedEngine([workflow]) as engine:
        handle = await in_flight(engine, workflow, charge)
        trouble.begin(engine)
        charge.open()
        await trouble.is_felt()
        creating = asyncio.ensure_future(engine.get(workflow, "instance-2").create())
        await next_turn()

        trouble.end()
        await engine.crash()

        with pytest.raises(EngineClosedError):
            await creating
        assert await engine.get(workflow, "instance-2").status() == "pending"
        (cut,) = (await step_of(handle, "charge", RunStep)).attempts
        assert (cut.state, cut.next_attempt_at) == ("failed", engine.now() + RETRY)
        assert (await handle.info()).alarm_at == engine.now() + RETRY
        await engine.advance(RETRY)
        assert await handle.result(timeout=5) == "charged"
        assert states(await step_of(handle, "charge", RunStep)) == ["failed", "succeeded"]
        assert charge.calls == 2


# What is not durable, and what is although nobody was told.


@pytest.mark.spec(211)
@async_test
async def test_a_step_that_cannot_be_written_is_seen_by_nobody_and_keeps_its_first_time(trouble):
    @definition
    async def Sleeper(self):
        payment = await self.wait("payment", "paid")
        await self.sleep("hour", HOUR)
        return payment

    async with started(Sleeper, settings=AWAKE) as (engine, handle):
        wake_at = engine.now() + HOUR
        trouble.begin(engine)
        sending = asyncio.ensure_future(handle.send("paid", 7))
        for _ in range(20):
            await trouble.is_felt()
            trouble.pass_time(trouble.pause_ms())
        await trouble.is_felt()
        assert not sending.done()
        assert [step.id for step in await handle.steps()] == ["payment"]
        info = await handle.info()
        assert (info.status, info.alarm_at, info.inbound_events) == ("running", None, [])

        await trouble.goes_by()

        assert await sending == "used"
        assert (await handle.info()).alarm_at == (await step_of(handle, "hour", SleepStep)).wake_at == wake_at
        await engine.advance(wake_at - engine.now() - MILLISECOND)
        assert await handle.status() == "running"
        await engine.advance(MILLISECOND)
        assert await handle.result(timeout=5) == 7


@pytest.mark.spec(212)
@async_test
async def test_a_retry_that_is_durable_although_its_commit_failed_comes_at_its_time(monkeypatch, caplog):
    charge = Gate(error=ConnectionError())
    workflow = one_call(charge, retry=TWICE)
    commit = SqliteStore.commit
    numbers = []

    def fail_once(store, batch, *, busy_timeout_ms):
        numbers.append(batch.number)
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)
        if len(numbers) == 1:
            raise apsw.IOError("the answer is lost")

    async with SimulatedEngine([workflow]) as engine:
        handle = await in_flight(engine, workflow, charge)
        retry_at = engine.now() + RETRY
        monkeypatch.setattr(SqliteStore, "commit", fail_once)
        charge.open()
        async with asyncio.timeout(10):
            await engine.run_until_idle()

        assert len(reports(caplog)) <= 1
        assert len(set(numbers)) == len(numbers)
        assert (await handle.info()).alarm_at == retry_at
        await engine.advance(RETRY - MILLISECOND)
        assert charge.calls == 1
        await engine.advance(MILLISECOND)
        first, second = (await step_of(handle, "charge", RunStep)).attempts
        assert (first.state, first.next_attempt_at, second.started_at) == ("failed", retry_at, retry_at)
        assert charge.calls == 2


@pytest.mark.spec(212)
@async_test
async def test_an_alarm_that_is_durable_before_the_trouble_is_kept(trouble):
    @definition
    async def Sleeper(self):
        sleep = asyncio.ensure_future(self.sleep("minute", 60))
        payment = await self.wait("payment", "paid")
        await asyncio.gather(sleep, self.sleep("hour", HOUR))
        return payment

    async with started(Sleeper, settings=AWAKE) as (engine, handle):
        minute = engine.now() + timedelta(seconds=60)
        trouble.begin(engine)
        sending = asyncio.ensure_future(handle.send("paid", 7))
        await trouble.is_felt()
        assert (await handle.info()).alarm_at == minute

        await trouble.goes_by()
        await sending
        assert (await handle.info()).alarm_at == minute
        await engine.advance(minute - engine.now())
        assert (await step_of(handle, "minute", SleepStep)).state == "elapsed"
        assert (await step_of(handle, "hour", SleepStep)).state == "waiting"


@pytest.mark.spec(213)
@async_test
async def test_an_event_on_a_full_disk_is_not_acknowledged_and_not_lost(monkeypatch):
    @definition
    async def Listener(self):
        return await self.wait("payment", "paid", str)

    trouble = Full(monkeypatch)
    async with started(Listener, settings=AWAKE) as (engine, handle):
        trouble.begin(engine)
        sending = asyncio.ensure_future(handle.send("paid", "x" * 100_000))
        await trouble.is_felt()
        assert not sending.done()
        info = await handle.info()
        assert (info.status, info.held, info.inbound_events) == ("running", None, [])
        assert (await step_of(handle, "payment", WaitStep)).state == "waiting"

        await trouble.goes_by()

        assert await sending == "used"
        assert await handle.result(timeout=5) == "x" * 100_000
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == ["payment"]


# Reads.


@pytest.mark.spec(214)
@async_test
async def test_an_alarm_in_a_database_that_cannot_be_read_is_looked_for_twice_a_second_and_then_served(unread, caplog):
    @definition
    async def Sleeper(self):
        await self.sleep("hour", HOUR)
        return "slept"

    async with started(Sleeper, settings=Settings(hibernate_after_s=0)) as (engine, handle):
        unread.begin(engine)
        await engine.advance(HOUR + timedelta(seconds=10))
        assert 1 <= unread.count <= 22
        warnings = [record.levelname for record in caplog.records if "tried again" in record.getMessage()]
        assert set(warnings) == {"WARNING"}
        assert len(warnings) <= unread.count
        assert query(engine, "select status, held_reason from instances") == [("running", None)]

        unread.end()
        await engine.advance(0.5)

        assert await handle.result(timeout=5) == "slept"
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(214)
@async_test
async def test_a_verb_that_cannot_read_the_database_raises_and_harms_nothing(unread):
    @definition
    async def Listener(self):
        return await self.wait("payment", "paid")

    async with started(Listener, settings=Settings(hibernate_after_s=0)) as (engine, handle):
        unread.begin(engine)
        for verb in (handle.status, handle.steps, handle.info, lambda: handle.send("paid", 1), handle.cancel):
            with pytest.raises(DatabaseError, match="refuses for now"):
                await verb()

        unread.end()

        assert (await handle.info()).inbound_events == []
        assert await handle.send("paid", 7) == "used"
        assert await handle.result(timeout=5) == 7


@pytest.mark.spec(214)
@async_test
async def test_a_workflow_that_ends_while_its_mail_cannot_be_read_ends_when_it_can(unread, caplog):
    charge = Gate("charged")
    workflow = one_call(charge)
    async with SimulatedEngine([workflow], settings=AWAKE) as engine:
        handle = await in_flight(engine, workflow, charge)
        unread.begin(engine)
        charge.open()
        await engine.advance(10)
        assert 1 <= caplog.text.count("instance 'instance-1' will be tried again") <= 22
        assert query(engine, "select status, held_reason from instances") == [("running", None)]

        unread.end()
        await engine.advance(0.5)

        assert await handle.result(timeout=5) == "charged"
        assert charge.calls == 1
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(214)
@pytest.mark.parametrize("is_sent", [True, False])
@async_test
async def test_a_wait_does_not_time_out_while_nobody_can_say_what_was_sent(unread, is_sent):
    @definition
    async def Listener(self):
        try:
            return await self.wait("payment", "paid", timeout=HOUR)
        except TimeoutError:
            return "too late"

    async with started(Listener, settings=AWAKE) as (engine, handle):
        unread.begin(engine)
        if is_sent:
            query(
                engine,
                "insert into mail (instance_key, kind, name, payload, sent_at) "
                "select instance_key, 'event', 'paid', '7', created_at from instances",
            )
        await engine.advance(HOUR + timedelta(seconds=10))
        assert query(engine, "select state from steps") == [("waiting",)]

        unread.end()
        await engine.advance(0.5)

        assert await handle.result(timeout=5) == (7 if is_sent else "too late")


@pytest.mark.spec(214)
@async_test
async def test_mail_in_a_database_that_cannot_be_read_is_used_when_it_can(unread):
    @definition
    async def Listener(self):
        return await self.wait("payment", "paid")

    async with (
        started(Listener, settings=Settings(hibernate_after_s=0)) as (engine, handle),
        Engine(engine.url, [], execute=False) as client,
    ):
        unread.begin(engine)
        assert await client.get("Listener", "instance-1").send("paid", 7) == "queued"
        await engine.run_until_idle()
        assert query(engine, "select count(*) from mail where taken_at is null") == [(1,)]

        unread.end()
        await engine.run_until_idle()

        assert await handle.result(timeout=5) == 7
        assert [event.claimed_by for event in (await handle.info()).inbound_events] == ["payment"]
