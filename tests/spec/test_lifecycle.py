"""Lifecycle of an instance: first touch, statuses, legal transitions and the log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import apsw
import pytest
from tests.support import async_test, definition, lifecycle, query, started

from workerflow import Engine, SchemaVersionError, WorkflowRuntime
from workerflow.core.model import TERMINAL, Status
from workerflow.store.migrate import migrate
from workerflow.testing import SimulatedEngine

STATUSES = ("pending", "initialized", "running", "paused", "completed", "failed", "cancelled")
LEGAL = {
    "pending": {"initialized", "cancelled"},
    "initialized": {"running", "cancelled"},
    "running": {"paused", "completed", "failed", "cancelled"},
    "paused": {"running", "cancelled"},
    "completed": set(),
    "failed": set(),
    "cancelled": set(),
}
PATHS = {
    "pending": (),
    "initialized": ("initialized",),
    "running": ("initialized", "running"),
    "paused": ("initialized", "running", "paused"),
    "completed": ("initialized", "running", "completed"),
    "failed": ("initialized", "running", "failed"),
    "cancelled": ("cancelled",),
}
# Columns that another rule wants together with the status.
ALONG_WITH = {"completed": ", result_type = 'none'", "failed": ", failure_message = 'broken'"}


@definition
async def empty(self: Any) -> None:
    pass


@definition
async def parked(self: Any) -> None:
    await self.wait("wait", "go")


async def make_file(path: Path) -> None:
    """A database with one pending instance, and nobody who executes it."""
    async with Engine(path, [empty], execute=False) as engine:
        await engine.get(empty, "instance-1").send("early")


def change(connection: apsw.Connection, status: str) -> None:
    connection.execute(f"update instances set status = '{status}'{ALONG_WITH.get(status, '')}")


@pytest.mark.spec(1)
@async_test
async def test_first_touch_makes_one_row_whose_status_is_pending() -> None:
    async with SimulatedEngine([empty]) as engine:
        handle = engine.get(empty, "instance-1")

        await handle.send("early")

        assert await handle.status() == "pending"
        assert query(engine, "select workflow, instance_id, status from instances") == [
            ("empty", "instance-1", "pending")
        ]


@pytest.mark.spec(1)
@async_test
async def test_reading_an_unknown_instance_answers_pending_and_writes_nothing() -> None:
    async with SimulatedEngine([empty]) as engine:
        handle = engine.get(empty, "instance-1")

        assert await handle.status() == "pending"
        assert await handle.steps() == []
        assert await handle.events() == []
        assert (await handle.info()).status == "pending"
        assert query(engine, "select count(*) from instances") == [(0,)]


@pytest.mark.spec(2)
@async_test
async def test_first_touch_appends_exactly_one_created_event_with_its_time() -> None:
    async with SimulatedEngine([empty]) as engine:
        handle = engine.get(empty, "instance-1")
        await engine.advance(5)

        await handle.send("early")
        await handle.send("early again")

        (event,) = await handle.events()
        assert (event.type, event.recorded_at) == ("created", engine.now())


@pytest.mark.spec(3)
@async_test
async def test_reopening_an_instance_restores_status_and_input_and_appends_no_event() -> None:
    async with started(parked, {"key": "original"}) as (engine, handle):
        before = await handle.events()

        await engine.crash()
        await engine.run_until_idle()

        assert await handle.status() == "running"
        assert (await handle.info()).input == {"key": "original"}
        assert await handle.events() == before


@pytest.mark.spec(4)
def test_statuses_are_exactly_the_seven_and_three_of_them_are_terminal() -> None:
    assert set(get_args(Status)) == set(STATUSES)
    assert set(TERMINAL) == {"completed", "failed", "cancelled"}


@pytest.mark.spec(4)
@async_test
async def test_storage_refuses_a_status_that_is_not_one_of_the_seven(tmp_path: Path) -> None:
    await make_file(tmp_path / "file.db")
    connection = apsw.Connection(str(tmp_path / "file.db"))

    with pytest.raises(apsw.ConstraintError):
        change(connection, "sleeping")

    assert list(connection.execute("select status from instances")) == [("pending",)]
    connection.close()


@pytest.mark.spec(5, 6)
@async_test
async def test_create_goes_through_running_to_completed_and_logs_created_started_completed() -> None:
    seen = []

    class Watched(WorkflowRuntime[None, None]):
        definition = empty

        def on_status_change(self, status: str) -> None:
            seen.append(status)

    async with started(Watched) as (_engine, handle):
        assert await handle.status() == "completed"
        assert await lifecycle(handle) == ["created", "started", "completed"]
        assert seen == ["running", "completed"]


@pytest.mark.spec(5)
@async_test
async def test_create_on_a_pending_instance_starts_it_with_one_created_event() -> None:
    async with SimulatedEngine([parked]) as engine:
        handle = engine.get(parked, "instance-1")
        await handle.send("something else")
        assert await handle.status() == "pending"

        await handle.create()
        await engine.run_until_idle()

        assert await handle.status() == "running"
        assert await lifecycle(handle) == ["created", "started"]


@pytest.mark.spec(7)
@async_test
async def test_error_outside_a_step_fails_the_workflow() -> None:
    @definition
    async def broken(self: Any) -> None:
        raise RuntimeError("outside every step")

    async with started(broken) as (_engine, handle):
        assert await handle.status() == "failed"
        assert await lifecycle(handle) == ["created", "started", "failed"]
        assert await handle.steps() == []


@pytest.mark.spec(8)
@pytest.mark.parametrize("status", STATUSES)
@async_test
async def test_storage_accepts_the_legal_transitions_and_refuses_every_other(tmp_path: Path, status: str) -> None:
    await make_file(tmp_path / "file.db")
    connection = apsw.Connection(str(tmp_path / "file.db"))
    for passed in PATHS[status]:
        change(connection, passed)

    accepted = set()
    for target in STATUSES:
        connection.execute("savepoint attempt")
        try:
            if target != status:
                change(connection, target)
                accepted.add(target)
        except apsw.ConstraintError:
            assert list(connection.execute("select status from instances")) == [(status,)]
        connection.execute("rollback to attempt")
        connection.execute("release attempt")

    assert accepted == LEGAL[status]
    connection.close()


@pytest.mark.spec(9)
@async_test
async def test_setting_the_status_it_already_has_writes_nothing() -> None:
    async with started(parked) as (engine, handle):
        await handle.pause()
        before = (await handle.info()).updated_at
        await engine.advance(1)

        await handle.pause()

        assert await lifecycle(handle) == ["created", "started", "paused"]
        assert (await handle.info()).updated_at == before


@pytest.mark.spec(9)
@async_test
async def test_cancelling_an_ended_instance_writes_nothing() -> None:
    async with started(empty) as (engine, handle):
        before = await handle.info()
        await engine.advance(1)

        await handle.cancel("too late")

        assert await handle.info() == before
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(10)
@async_test
async def test_each_transition_but_the_first_appends_one_event_under_its_name() -> None:
    async with started(parked) as (_engine, handle):
        await handle.pause()
        await handle.resume()
        await handle.pause()
        await handle.cancel("customer left")

        assert await lifecycle(handle) == ["created", "started", "paused", "resumed", "paused", "cancelled"]
        assert [event.id for event in await handle.events()] == [1, 2, 3, 4, 5, 6]
        assert (await handle.events())[-1].cancellation_reason == "customer left"


@pytest.mark.spec(11)
@async_test
async def test_updated_at_moves_with_each_transition_and_created_at_stays() -> None:
    async with SimulatedEngine([parked]) as engine:
        handle = engine.get(parked, "instance-1")
        await handle.send("early")
        first = engine.now()
        moments = []
        for verb in (handle.create, handle.pause, handle.resume, handle.cancel):
            await engine.advance(1)
            await verb()
            await engine.run_until_idle()
            info = await handle.info()
            moments.append(info.updated_at)
            assert info.created_at == first

        assert moments == [first + timedelta(seconds=seconds) for seconds in (1, 2, 3, 4)]


@pytest.mark.spec(11)
@pytest.mark.parametrize(
    "assignment",
    [
        "instance_id = 'other'",
        "workflow = 'other'",
        "instance_key = instance_key + 1",
        "created_at = created_at - 1",
        "updated_at = created_at - 1",
    ],
)
@async_test
async def test_storage_refuses_another_identity_and_times_that_go_back(tmp_path: Path, assignment: str) -> None:
    await make_file(tmp_path / "file.db")
    connection = apsw.Connection(str(tmp_path / "file.db"))
    before = list(connection.execute("select * from instances"))

    with pytest.raises(apsw.ConstraintError):
        connection.execute(f"update instances set {assignment}")

    assert list(connection.execute("select * from instances")) == before
    connection.close()


@pytest.mark.spec(12)
@async_test
async def test_fresh_database_carries_a_schema_version(tmp_path: Path) -> None:
    await make_file(tmp_path / "file.db")
    connection = apsw.Connection(str(tmp_path / "file.db"))

    ((version,),) = connection.execute("select schema_version from workerflow_meta")

    assert version >= 1
    connection.close()


@pytest.mark.spec(12)
@pytest.mark.parametrize("execute", [True, False])
@async_test
async def test_database_with_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path, execute: bool) -> None:
    await make_file(tmp_path / "file.db")
    connection = apsw.Connection(str(tmp_path / "file.db"))
    connection.execute("update workerflow_meta set schema_version = 9999")
    connection.close()

    with pytest.raises(SchemaVersionError, match="9999"):
        async with Engine(tmp_path / "file.db", [empty], execute=execute):
            pass

    connection = apsw.Connection(str(tmp_path / "file.db"))
    assert list(connection.execute("select schema_version from workerflow_meta")) == [(9999,)]
    assert list(connection.execute("select status from instances")) == [("pending",)]
    connection.close()


@pytest.mark.spec(12)
@pytest.mark.parametrize(("stored", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, [])])
def test_missing_migrations_are_applied_in_order(stored: int, expected: list[int]) -> None:
    applied: list[int] = []

    migrate(
        stored,
        [(1, "first"), (2, "second"), (3, "third")],
        lambda number, _script: applied.append(number),
        "the database",
    )

    assert applied == expected


@pytest.mark.spec(12)
@async_test
async def test_empty_file_is_brought_to_the_schema_and_opening_it_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file.db").touch()
    await make_file(tmp_path / "file.db")
    schema = "select name, sql from sqlite_schema order by name"
    connection = apsw.Connection(str(tmp_path / "file.db"))
    before = list(connection.execute(schema))
    connection.close()

    async with Engine(tmp_path / "file.db", [empty], execute=False) as engine:
        assert query(engine, schema) == before
        assert len(await engine.list()) == 1
