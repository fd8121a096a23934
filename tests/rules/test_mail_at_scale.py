"""Much mail: many senders at once, a full box that cannot be emptied, and queries that do not grow with the file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import async_test, definition, query, started

from workerflow import Engine, Receipt, Settings
from workerflow.store.base import Mail
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine

# Many senders.


@async_test
async def test_hundreds_of_verbs_at_once_on_an_engine_that_executes_nothing_are_all_answered() -> None:
    @definition
    async def Listening(self: Any) -> Any:
        return await self.wait("go", "go")

    async with SimulatedEngine([Listening]) as owner, Engine(owner.url, [Listening], execute=False) as client:
        handles = [client.get(Listening, str(number)) for number in range(100)]
        created = await asyncio.gather(*(handle.create() for handle in handles))
        assert created == [True] * 100
        await owner.run_until_idle()

        answers = await asyncio.gather(
            *(handle.send("other") for handle in handles),
            *(handle.pause() for handle in handles[:50]),
            *(handle.cancel("enough") for handle in handles[50:]),
            *(handle.status() for handle in handles),
        )
        assert answers == [Receipt.queued] * 100 + [None] * 100 + ["running"] * 100
        await owner.run_until_idle()
        assert query(owner, "select status, count(*) from instances group by 1") == [("cancelled", 50), ("paused", 50)]
        assert query(owner, "select count(*) from inbound_events") == [(100,)]


# A full box.


@async_test
async def test_more_mail_than_is_read_at_a_time_is_not_read_again_and_again_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = SqliteStore.untaken_mail

    def counted(store: SqliteStore, limit: int) -> list[Mail]:
        nonlocal reads
        reads += 1
        return read(store, limit)

    @definition
    async def Collector(self: Any) -> int:
        for number in range(1100):
            await self.wait(f"wait-{number}", "message")
        return 1100

    async with Engine(tmp_path / "a.db", [Collector], settings=Settings(poll_interval_ms=50)) as engine:
        handle = engine.get(Collector, "instance-1")
        await handle.create()
        foreign = apsw.Connection(engine.url)
        foreign.execute("begin immediate")
        foreign.executemany(
            "insert into mail (instance_key, kind, name, sent_at) "
            "select instance_key, 'event', ?, created_at from instances",
            [("message",)] * 1100,
        )
        foreign.execute("commit; begin immediate")
        monkeypatch.setattr(SqliteStore, "untaken_mail", counted)
        # For half a second the engine can read the mail, and write nothing.
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.5)
        reads_while_locked = reads
        foreign.execute("rollback")
        foreign.close()
        assert 0 < reads_while_locked <= 15
        assert await handle.result(timeout=30) == 1100
        assert query(engine, "select count(*) from mail where taken_at is null") == [(0,)]


# Queries.

# One row each: these do not grow with the work done.
SMALL = {"workers", "workerflow_meta", "sqlite_schema"}
SQL = resources.files("workerflow.store.sqlite")
STATEMENTS = sorted(entry.name for entry in SQL.iterdir() if entry.name.endswith(".sql"))
SCAN = re.compile(r"SCAN (\w+)(?:.* USING (?:COVERING )?INDEX (\w+))?")


def reads_too_much(database: apsw.Connection, text: str) -> list[str]:
    """The parts of a statement's plan whose cost grows with the file."""
    partial = {
        row[0]
        for row in database.execute(
            "select list.name from sqlite_schema, pragma_index_list(sqlite_schema.name) as list "
            "where sqlite_schema.type = 'table' and list.partial"
        )
    }
    # Names that stand for the rows of a parameter, and not of a table.
    parameters = set(re.findall(r"json_each\s*\(\?\d+\)\s+as\s+(\w+)", text))
    values = [None] * max((int(number) for number in re.findall(r"\?(\d+)", text)), default=0)
    plan = [str(row[3]) for row in database.execute(f"explain query plan {text}", values)]
    scans = [scan for detail in plan if (scan := SCAN.match(detail))]
    # The whole of a partial index may be read: it holds only what is still open.
    whole = [
        scan.string for scan in scans if scan[1] not in SMALL | parameters | {"CONSTANT"} and scan[2] not in partial
    ]
    # To sort is to read all of it, too, unless it is all of one instance.
    sorts = [detail for detail in plan if "TEMP B-TREE FOR ORDER BY" in detail and "instance_key = ?1" not in text]
    return whole + sorts


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = tmp_path_factory.mktemp("plans") / "a.db"

    async def make() -> None:
        async with Engine(path, [], execute=False):
            pass

    asyncio.run(make())
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_costs_more_the_longer_the_file_has_been_in_use(name: str, database: apsw.Connection) -> None:
    assert reads_too_much(database, SQL.joinpath(name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "select mail_id from mail where sent_at > ?1",
        "select instance_key from instances where owner is not null order by instance_key",
        "select mail_id from mail indexed by mail_untaken where taken_at is null order by sent_at",
        "update instances set alarm_at = null where updated_at < ?1",
    ],
)
def test_a_statement_that_costs_more_is_seen(text: str, database: apsw.Connection) -> None:
    assert reads_too_much(database, text) != []


@async_test
async def test_a_look_for_mail_costs_the_same_however_much_was_taken_before() -> None:
    """Steps of SQLite's virtual machine, which are the same on every machine."""

    @definition
    async def Listening(self: Any) -> None:
        await self.wait("end", "end")

    def cost(engine: Engine) -> int:
        connection = apsw.Connection(engine.url)
        steps = 0

        def counted() -> bool:
            nonlocal steps
            steps += 1
            return False

        connection.set_progress_handler(counted, 1)
        for name, value in (("mail_untaken", 1000), ("mail_untaken_of", 1), ("mail_guard", "[1, 2, 3]")):
            list(connection.execute(SQL.joinpath(f"{name}.sql").read_text(encoding="utf-8"), (value,)))
        connection.close()
        return steps

    async with started(Listening) as (engine, _):
        before = cost(engine)
        query(
            engine,
            "with recursive numbers (number) as (select 1 union all select number + 1 from numbers where number < 500) "
            "insert into mail (instance_key, kind, name, sent_at) "
            "select instance_key, 'event', 'old', created_at from instances, numbers",
        )
        query(engine, "update mail set taken_at = sent_at, outcome = 'used'")
        assert cost(engine) == before > 0
