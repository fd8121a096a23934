"""Section 15: a step and the time at which it wants to be looked at again are one commit."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import RetryPolicy, RunStep, SleepStep, WaitStep, WaitTimeoutError
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine

HOUR = 3600
DAY = 24 * HOUR

# What is durable of the only instance: its status, its alarm, the earliest time that any of its steps waits for; how
# many events were accepted, how many of them a wait has, and how many waits have one.
SNAPSHOT = """
select status, alarm_at, (
    select min(at) from (
        select coalesce(wake_at, timeout_at) as at from steps where state = 'waiting' and abandoned_at is null
        union all
        select next_attempt_at from attempts as failed join steps using (instance_key, step_id)
        where abandoned_at is null and not exists (
            select 1 from attempts as later where later.step_id = failed.step_id and later.number > failed.number))),
    (select count(*) from inbound_events), (select count(*) from inbound_events where claimed_by is not null),
    (select count(*) from steps where state = 'satisfied')
from instances
"""


class Snapshot(NamedTuple):
    """The state that one commit has left."""

    status: str
    alarm_at: int | None
    earliest: int | None
    accepted: int
    claimed: int
    satisfied: int


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """One snapshot per commit, in order."""
    taken: list[Snapshot] = []
    commit = SqliteStore.commit

    def look_after(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)
        taken.extend(Snapshot(*row) for row in store._write_connection().raw.execute(SNAPSHOT))

    monkeypatch.setattr(SqliteStore, "commit", look_after)
    return taken


def alarms(snapshots: list[Snapshot], start_ms: int) -> list[float | None]:
    """The alarms that were durable one after the other, in seconds after the start."""
    changes: list[float | None] = []
    for snapshot in snapshots:
        alarm = None if snapshot.alarm_at is None else (snapshot.alarm_at - start_ms) / 1000
        if not changes or changes[-1] != alarm:
            changes.append(alarm)
    return changes


def of_this_moment(engine: SimulatedEngine) -> int:
    """The virtual time as it is stored."""
    return round(engine.now().timestamp() * 1000)


async def alarm_after(engine: SimulatedEngine, handle: Any) -> timedelta | None:
    """How long until the alarm, or None."""
    at = (await handle.info()).alarm_at
    return None if at is None else at - engine.now()


async def one_sleep(self: Any, flaky: Callback) -> None:
    await self.sleep("nap", 2 * HOUR)


async def two_sleeps_short_one_first(self: Any, flaky: Callback) -> None:
    await asyncio.gather(self.sleep("short", 60), self.sleep("long", HOUR))


async def two_sleeps_long_one_first(self: Any, flaky: Callback) -> None:
    await asyncio.gather(self.sleep("long", HOUR), self.sleep("short", 60))


async def a_sleep_that_is_over_at_once(self: Any, flaky: Callback) -> None:
    await asyncio.gather(self.sleep("none", 0), self.sleep("long", HOUR))


async def a_wait_that_times_out(self: Any, flaky: Callback) -> None:
    with contextlib.suppress(WaitTimeoutError):
        await self.wait("payment", "paid", timeout=60)
    await self.sleep("after", 60)


async def a_wait_without_deadline_beside_a_sleep(self: Any, flaky: Callback) -> None:
    wait = asyncio.ensure_future(self.wait("payment", "paid"))
    await self.sleep("nap", 60)
    await self.run("call", Callback())
    await self.sleep("nap-2", 60)
    wait.cancel()


async def a_retry(self: Any, flaky: Callback) -> None:
    await self.run("call", flaky)
    await self.sleep("after", 60)


async def a_failure_for_good(self: Any, flaky: Callback) -> None:
    with contextlib.suppress(Exception):
        await self.run("call", flaky, max_attempts=1)
    await self.sleep("after", 60)


async def a_retry_before_a_sleep_and_a_deadline(self: Any, flaky: Callback) -> None:
    wait = asyncio.ensure_future(self.wait("payment", "paid", timeout=HOUR))
    await asyncio.gather(self.sleep("nap", 60), self.run("call", flaky, retry=RetryPolicy(initial=5)))
    with contextlib.suppress(WaitTimeoutError):
        await wait


async def a_retry_after_a_sleep(self: Any, flaky: Callback) -> None:
    await asyncio.gather(self.run("call", flaky, retry=RetryPolicy(initial=HOUR, maximum=HOUR)), self.sleep("nap", 60))


async def an_abandoned_sleep(self: Any, flaky: Callback) -> None:
    short = asyncio.ensure_future(self.sleep("short", 60))
    await self.sleep("shorter", 30)
    short.cancel()
    await self.sleep("long", HOUR)


async def nested_steps(self: Any, flaky: Callback) -> None:
    async def outer() -> None:
        await self.sleep("inner", 60)
        await self.run("call", flaky)

    await asyncio.gather(self.run("outer", outer), self.sleep("nap", HOUR))


SCHEDULES: list[tuple[Any, list[float | None]]] = [
    (one_sleep, [2 * HOUR, None]),
    (two_sleeps_short_one_first, [60, HOUR, None]),
    (two_sleeps_long_one_first, [60, HOUR, None]),
    (a_sleep_that_is_over_at_once, [HOUR, None]),
    (a_wait_that_times_out, [60, 120, None]),
    (a_wait_without_deadline_beside_a_sleep, [60, None, 120, None]),
    (a_retry, [None, 0.25, None, 60.25, None]),
    (a_failure_for_good, [None, 60, None]),
    (a_retry_before_a_sleep_and_a_deadline, [60, 5, 60, HOUR, None]),
    (a_retry_after_a_sleep, [60, HOUR, None]),
    (an_abandoned_sleep, [30, HOUR + 30, None]),
    (nested_steps, [HOUR, 60, HOUR, 60.25, HOUR, None]),
]


@pytest.mark.spec(162, 163, 165, 171, 173)
@pytest.mark.parametrize(("execute", "expected"), SCHEDULES, ids=[execute.__name__ for execute, _ in SCHEDULES])
@async_test
async def test_every_commit_holds_the_alarm_of_the_steps_that_it_leaves_waiting(
    execute: Any, expected: list[float | None], snapshots: list[Snapshot]
) -> None:
    flaky = Callback(errors=[ConnectionError("no answer")])

    @definition
    async def Scheduled(self: Any) -> None:
        await execute(self, flaky)

    async with SimulatedEngine([Scheduled]) as engine:
        start_ms = of_this_moment(engine)
        handle = engine.get(Scheduled, "instance-1")
        await handle.create()
        await engine.advance(DAY)
        assert await handle.status() == "completed"

    assert [snapshot for snapshot in snapshots if snapshot.status == "running"] != []
    for snapshot in snapshots:
        assert snapshot.alarm_at == (snapshot.earliest if snapshot.status == "running" else None), snapshot
    assert alarms(snapshots, start_ms) == expected


@pytest.mark.spec(162)
@async_test
async def test_a_step_that_comes_due_or_fails_while_paused_is_recorded_without_an_alarm(
    snapshots: list[Snapshot],
) -> None:
    gate = Gate(error=ConnectionError("no answer"))

    @definition
    async def Pausing(self: Any) -> None:
        await asyncio.gather(self.run("call", gate, max_attempts=2), self.sleep("nap", 60), return_exceptions=True)

    async with SimulatedEngine([Pausing]) as engine:
        handle = engine.get(Pausing, "instance-1")
        await handle.create()
        await gate.begun()
        assert await alarm_after(engine, handle) == timedelta(seconds=60)
        await handle.pause()
        gate.open()
        await engine.advance(DAY)
        assert states(await step_of(handle, "call", RunStep)) == ["failed"]
        assert {snapshot.alarm_at for snapshot in snapshots if snapshot.status == "paused"} == {None}
        assert (await step_of(handle, "nap", SleepStep)).state == "waiting"

        await handle.resume()
        await engine.run_until_idle()
        assert await handle.status() == "completed"
        assert gate.calls == 2


@pytest.mark.spec(172)
@async_test
async def test_an_event_and_the_wait_it_satisfies_and_the_alarm_that_goes_are_one_commit(
    snapshots: list[Snapshot],
) -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.wait("payment", "paid", timeout=HOUR)
        await self.wait("end", "end")

    async with started(Waiting) as (engine, handle):
        deadline = of_this_moment(engine) + HOUR * 1000
        await handle.send("paid")
        await engine.run_until_idle()
        assert (await step_of(handle, "payment", WaitStep)).state == "satisfied"

    assert {snapshot for snapshot in snapshots if snapshot.status == "running"} == {
        Snapshot("running", deadline, deadline, accepted=0, claimed=0, satisfied=0),
        Snapshot("running", None, None, accepted=1, claimed=1, satisfied=1),
    }


@pytest.mark.spec(172)
@async_test
async def test_an_event_to_a_paused_workflow_satisfies_nothing_and_sets_no_alarm() -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.wait("payment", "paid", timeout=HOUR)

    async with started(Waiting) as (engine, handle):
        await handle.pause()
        await handle.send("paid")
        await engine.run_until_idle()
        (snapshot,) = query(engine, SNAPSHOT)
        assert snapshot == Snapshot("paused", None, of_this_moment(engine) + HOUR * 1000, 1, claimed=0, satisfied=0)
