"""For tests of the schema: a database with a row of every kind, and changes that it must refuse.

Each case is a pair of statements that differ in one place: the illegal one is refused for the reason given and changes
nothing, the legal one is accepted, so that no case can be refused for another reason than its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import apsw
import pytest

from tests.support import Callback, definition, run
from workerflow import NonRetryableStepError, RetryPolicy, WaitTimeoutError, WorkflowRuntime
from workerflow.testing import SimulatedEngine

DAY = 24 * 3600


@definition
async def Rich(self: Any) -> Any:
    """Leaves a row of every kind in every state that lasts."""

    async def outer() -> None:
        await self.sleep("inner", DAY)

    retrying = asyncio.ensure_future(
        self.run("retrying", Callback(always=ConnectionError("no")), retry=RetryPolicy(initial=3600, maximum=3600))
    )
    await self.run("done", Callback(7), returns=int)
    if self.input == "failed":
        raise ValueError("no")
    if self.input == "completed":
        return "over"
    if self.input != "running":
        await self.wait("parked", "never")
    await self.run("nothing", Callback())
    with contextlib.suppress(NonRetryableStepError):
        await self.run("lost", Callback(always=NonRetryableStepError("no")))
    with contextlib.suppress(WaitTimeoutError):
        await self.wait("timed-out", "never", timeout=0)
    await self.sleep("elapsed", 0)
    await self.wait("satisfied", "used")
    steps = (self.run("outer", outer), self.sleep("asleep", DAY), self.wait("waiting", "other", timeout=DAY))
    return await asyncio.gather(retrying, *steps)


class Delivering(WorkflowRuntime[Any, Any]):
    definition = Rich

    async def completion(self, event: Any) -> None:
        """Delivered at once."""


async def _made_by_the_engine() -> apsw.Connection:
    async with SimulatedEngine([Delivering]) as engine:
        await engine.get(Delivering, "pending").send("early")
        for name in ("running", "parked", "paused", "completed", "failed", "cancelled"):
            await engine.get(Delivering, name).create(name)
        await engine.get(Delivering, "running").send("used", 1)
        await engine.get(Delivering, "running").send("unused", None, id="e-1")
        await engine.run_until_idle()
        await engine.get(Delivering, "paused").pause()
        await engine.get(Delivering, "cancelled").cancel("enough")
        await engine.run_until_idle()
        return _copy(apsw.Connection(engine.url))


def _copy(source: apsw.Connection) -> apsw.Connection:
    copied = apsw.Connection(":memory:")
    with copied.backup("main", source, "main") as backup:
        backup.step()
    copied.execute("pragma foreign_keys = on")
    return copied


_original = cache(lambda: run(_made_by_the_engine))


class Change(NamedTuple):
    """A statement with a gap, what is refused in it, what is accepted, why; and what is done before.

    ``:running`` and the like stand for the keys of the instances of these names.
    """

    statement: str
    refused: str
    accepted: str
    reason: str
    before: str = ""


@contextlib.contextmanager
def database(before: str = "") -> Iterator[apsw.Connection]:
    """A copy of a database that an engine made."""
    connection = _copy(_original())
    execute(connection, before)
    yield connection
    connection.close()


def execute(connection: apsw.Connection, statement: str) -> None:
    """Run statements in which instances are named."""
    keys = dict(connection.execute("select instance_id, instance_key from instances"))
    for part in filter(str.strip, statement.split(";\n")):
        connection.execute(part, keys)


def contents(connection: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    tables = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")]
    return {table: list(connection.execute(f"select * from {table}")) for table in tables}


def assert_refused(change: Change) -> None:
    """The illegal statement of a case is refused for its reason, and changes nothing."""
    with database(change.before) as connection:
        rows = contents(connection)
        with pytest.raises(apsw.ConstraintError) as refusal:
            execute(connection, change.statement.replace("{}", change.refused))
        assert change.reason in str(refusal.value), str(refusal.value)
        assert contents(connection) == rows


def assert_accepted(change: Change) -> None:
    """The legal statement of a case is accepted, and finds rows to change."""
    with database(change.before) as connection:
        changes = connection.total_changes()
        execute(connection, change.statement.replace("{}", change.accepted))
        assert connection.total_changes() > changes


def insert(table: str, row: Mapping[str, str], **columns: str) -> str:
    """The statement that inserts *row*, with some columns otherwise."""
    values = {**row, **columns}
    return f"insert into {table} ({', '.join(values)}) values ({', '.join(values.values())})"


def cases(*numbers: int, **changes: Change) -> list[Any]:
    """Cases for parametrize, by name, of these behaviours."""
    marks = [pytest.mark.spec(*numbers)] if numbers else []
    return [pytest.param(change, id=name.replace("_", "-"), marks=marks) for name, change in changes.items()]


def fixed(
    table: str, where: str, reason: str, columns: Mapping[str, str], *numbers: int, before: str = ""
) -> list[Any]:
    """One case per column that never changes, with another value for it."""
    return [
        case
        for column, value in columns.items()
        for case in cases(
            *numbers,
            **{
                f"{table}_{column}": Change(
                    f"update {table} set {column} = {{}} {where}", value, column, reason, before
                )
            },
        )
    ]


CHECK = "CHECK constraint failed: "
LOG = "the lifecycle log is append-only"
ONE_EVENT = "UNIQUE constraint failed: inbound_events.instance_key, inbound_events.claimed_by"
OF_RUNNING = "where instance_key = :running and"
ENDS = ("completed", "failed", "cancelled")

INSTANCE = {
    "instance_key": "5", "workflow": "'Delivering'", "instance_id": "'new'", "nonce": "'n'", "status": "'pending'",
    "created_at": "5", "updated_at": "5",
}  # fmt: skip
STEP = {"instance_key": ":running", "step_id": "'new'", "ordinal": "90", "kind": "'run'", "created_at": "5"}
ATTEMPT = {
    "instance_key": ":running", "step_id": "'retrying'", "number": "2", "state": "'started'", "started_at": "5",
}  # fmt: skip
FIRST = {**ATTEMPT, "step_id": "'new'", "number": "1"}
LIFECYCLE = {"instance_key": ":running", "number": "90", "type": "'paused'", "recorded_at": "5"}
INBOUND = {"instance_key": ":running", "number": "90", "name": "'unused'", "received_at": "5"}
MAIL = {"instance_key": ":running", "kind": "'event'", "name": "'paid'", "sent_at": "5"}
DELIVERY = {"instance_key": ":parked", "number": "3", "next_attempt_at": "5"}
WAIT = {**STEP, "kind": "'wait'", "state": "'waiting'"}
ENDED_LOG = insert("lifecycle_events", LIFECYCLE, instance_key=":parked", number="3", type="'cancelled'")
SENT = insert("mail", MAIL, event_id="'m-1'")
TAKEN = f"{SENT};\nupdate mail set taken_at = 6, outcome = 'used'"
CREATE_MAIL = insert("mail", MAIL, kind="'create'", name="null")
WORKER = {
    "worker_id": "2", "incarnation": "1", "batch_number": "0", "process_id": "1", "started_at": "5",
    "heartbeat_at": "5", "workflows": "'[]'",
}  # fmt: skip
METADATA = {"only_row": "1", "schema_version": "1", "created_at": "5"}


def claimer(step_id: str, event_name: str = "unused", **columns: str) -> str:
    """The statements that make a satisfied wait without an event."""
    row = {**WAIT, "step_id": f"'{step_id}'", "event_name": f"'{event_name}'", **columns}
    resolved = "state = 'satisfied', resolved_at = created_at, outcome_sequence = 90"
    return f"{insert('steps', row)};\nupdate steps set {resolved} where step_id = '{step_id}';\n"


def unguarded(table: str, before: str = "") -> str:
    """The statements after which only its keys keep a table from two rows in one place."""
    return f"drop trigger {table}_never_replaced;\n{before}"


def claim(number: int) -> str:
    """The statement that gives an event to a wait."""
    return f"update inbound_events set claimed_by = {{}}, claimed_at = 2e12 where name = 'unused' and number = {number}"


# One of the waits has its event; another event waits for either.
TWO_CLAIMERS = f"{claimer('claimer')}{claimer('claimer-2')}{insert('inbound_events', INBOUND)};\n" + claim(2).replace(
    "{}", "'claimer'"
)
