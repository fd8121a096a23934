"""Gate, batch and group commit: what is acknowledged is durable, what is refused takes nothing else with it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import async_test, definition, query, started, states

from workerflow import DatabaseUnavailableError, Engine, RunStep, Settings, WorkflowHeldError
from workerflow.store.base import Batch
from workerflow.store.sqlite.connection import Connection
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine


class Commits:
    """Stands between engine and store: counts commits, and lets one of them go wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: dict[int, Any] = {}
        self.after: dict[int, Any] = {}
        commit = SqliteStore.commit

        def counted(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
            self.count += 1
            number = self.count
            if number in self.before:
                self.before.pop(number)(store)
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            if number in self.after:
                self.after.pop(number)(store)

        monkeypatch.setattr(SqliteStore, "commit", counted)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


def fail(store: SqliteStore) -> None:
    raise DatabaseUnavailableError("the disk did not answer")


CALLS: list[str] = []


async def effect(name: str) -> str:
    CALLS.append(name)
    return name


@definition
async def Three(self: Any) -> list[str]:
    return [await self.run(name, effect, name) for name in ("a", "b", "c")]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@async_test
async def test_a_commit_whose_outcome_is_unknown_is_neither_lost_nor_done_twice(
    commits: Commits, place: str, number: int, tmp_path: Path
) -> None:
    CALLS.clear()
    getattr(commits, place)[number] = fail
    async with Engine(tmp_path / "a.db", [Three]) as engine:
        handle = engine.get(Three, "t-1")

        assert await handle.create()
        assert await handle.result(timeout=20) == ["a", "b", "c"]

        assert CALLS == ["a", "b", "c"]
        assert [states(step) for step in await handle.steps() if isinstance(step, RunStep)] == [["succeeded"]] * 3
        assert commits.before == commits.after == {}
        # Written again after a failure before it, found to be durable after one behind it.
        assert commits.count == 4 + (place == "before")


@async_test
async def test_a_sequence_of_steps_costs_one_commit_each(commits: Commits) -> None:
    @definition
    async def Sequence(self: Any) -> None:
        for number in range(50):
            await self.run(f"step-{number}", effect, "x")

    async with started(Sequence) as (_, handle):
        assert await handle.status() == "completed"

    # The first holds the creation and the first start, the last the last outcome and the end.
    assert commits.count == 50 + 1


@async_test
async def test_many_workflows_share_their_commits(commits: Commits) -> None:
    async with SimulatedEngine([Three]) as engine:
        handles = [engine.get(Three, f"t-{number}") for number in range(100)]
        await asyncio.gather(*(handle.create() for handle in handles))
        await engine.run_until_idle()
        assert {await handle.status() for handle in handles} == {"completed"}

    assert commits.count < 10


@async_test
async def test_a_callback_never_starts_before_its_attempt_is_durable() -> None:
    seen: list[str] = []

    async def look(engine: Engine, step_id: str) -> None:
        seen.extend(row[0] for row in query(engine, "select state from attempts where step_id = ?", step_id))

    @definition
    async def Looking(self: Any) -> None:
        await self.run("first", lambda: look(engine, "first"))
        await self.run("second", lambda: look(engine, "second"))

    async with SimulatedEngine([Looking]) as engine:
        await engine.get(Looking, "l-1").create()
        await engine.run_until_idle()

    assert seen == ["started", "started"]


POISON = """
create trigger poison before update on attempts when new.result_json = '"poison"'
begin select raise(abort, 'poison is refused'); end
"""


@async_test
async def test_a_refused_instance_is_held_with_the_reason_and_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @definition
    async def Named(self: Any) -> str:
        name: str = await self.run("name", effect, self.input)
        return name

    CALLS.clear()
    async with SimulatedEngine([Named]) as engine:
        query(engine, POISON)
        handles = [engine.get(Named, f"n-{number}") for number in range(50)]
        bad = engine.get(Named, "bad")
        await asyncio.gather(bad.create("poison"), *(handle.create("good") for handle in handles))
        await engine.run_until_idle()

        assert {await handle.status() for handle in handles} == {"completed"}
        info = await bad.info()
        assert info.held is not None
        assert "poison is refused" in info.held
        assert "refused the rows of workflow 'Named' instance 'bad'" in caplog.text
        with pytest.raises(WorkflowHeldError, match="poison is refused"):
            await bad.result(timeout=1)
        assert CALLS.count("poison") == 1

        query(engine, "drop trigger poison")
        await bad.resume()
        await engine.advance(60)
        assert await bad.result(timeout=1) == "poison"


@async_test
async def test_what_happened_since_is_applied_again_when_rows_are_refused_once(commits: Commits) -> None:
    @definition
    async def Waiting(self: Any) -> list[Any]:
        return [await self.run("name", effect, "once"), await self.wait("go", "go")]

    CALLS.clear()
    async with SimulatedEngine([Waiting]) as engine:
        query(engine, POISON.replace("poison", "once", 2))
        handle = engine.get(Waiting, "w-1")
        # The batch that is refused holds the outcome of the callback; the trigger is gone before it is written again.
        commits.after[2] = lambda store: query(engine, "drop trigger once")
        await handle.create()
        await engine.run_until_idle()

        assert (await handle.info()).held is None
        await handle.send("go", 1)
        await engine.run_until_idle()
        assert await handle.result(timeout=1) == ["once", 1]
        assert CALLS == ["once"]


@pytest.mark.parametrize("what", ["end", "time-out", "hibernate"])
@async_test
async def test_mail_that_comes_between_the_look_and_the_commit_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The sender has put its mail in when the batch that ends, times out or hibernates its instance is written."""

    @definition
    async def Waiting(self: Any) -> Any:
        if what == "end":
            await self.run("only", effect, "x")
            return "ended"
        return await self.wait("go", "go", timeout=60 if what == "time-out" else None)

    settings = Settings(hibernate_after_s=0 if what == "hibernate" else 3600)
    async with SimulatedEngine([Waiting], settings=settings) as engine:
        write = SqliteStore._write_batch
        sent: list[int] = []

        def send_first(store: SqliteStore, raw: apsw.Connection, batch: Batch) -> dict[int, str]:
            known = {key for (key,) in raw.execute("select instance_key from instances")}
            if batch.guarded & known and not sent:
                # Another process would have committed this just before this transaction began.
                sent.extend(batch.guarded)
                insert = (
                    "insert into mail (instance_key, kind, name, payload, sent_at) values (?, 'event', 'go', '7', 1)"
                )
                raw.execute(insert, sent)
            return write(store, raw, batch)

        monkeypatch.setattr(SqliteStore, "_write_batch", send_first)
        handle = engine.get(Waiting, "w-1")
        await handle.create()
        await engine.run_until_idle()
        await handle.send("wakes it, if it hibernates")
        await engine.advance(61)

        assert len(sent) == 1
        assert await handle.result(timeout=1) == ("ended" if what == "end" else 7)
        assert "go" in [event.name for event in (await handle.info()).inbound_events]
        assert query(engine, "select count(*) from mail where taken_at is null") == [(0,)]


@async_test
async def test_a_foreign_writer_holds_up_nothing_but_the_commit(tmp_path: Path) -> None:
    CALLS.clear()
    async with Engine(tmp_path / "a.db", [Three]) as engine:
        foreign = apsw.Connection(engine.url)
        foreign.execute("begin immediate")
        handle = engine.get(Three, "t-1")
        creating = asyncio.ensure_future(handle.create())
        turns = 0
        while turns < 100:
            # The loop turns while the commit waits in its thread.
            turns += 1
            done, _ = await asyncio.wait({creating}, timeout=0.001)
            assert not done
        assert CALLS == []
        assert await handle.status() == "pending"

        foreign.execute("rollback")
        foreign.close()

        assert await creating
        assert await handle.result(timeout=20) == ["a", "b", "c"]


@async_test
async def test_a_slow_disk_does_not_stop_the_loop(commits: Commits, tmp_path: Path) -> None:
    slow = threading.Event()
    async with Engine(tmp_path / "a.db", [Three]) as engine:
        assert engine._worker is not None
        engine._worker.committer._average_ms = 1000
        commits.before[1] = lambda store: slow.wait(20)
        creating = asyncio.ensure_future(engine.get(Three, "t-1").create())
        done, _ = await asyncio.wait({creating}, timeout=0.05)
        assert not done

        slow.set()

        assert await creating
        assert await engine.get(Three, "t-1").result(timeout=20) == ["a", "b", "c"]


@async_test
async def test_a_full_disk_acknowledges_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    CALLS.clear()
    async with Engine(tmp_path / "a.db", [Three]) as engine:
        configure = Connection._configure

        def configure_full(connection: Connection, *arguments: Any) -> None:
            configure(connection, *arguments)
            # SQLite takes the present size for the smallest possible, and is full.
            connection.raw.execute("pragma max_page_count = 1")

        monkeypatch.setattr(Connection, "_configure", configure_full)
        engine._require_store()._write_connection().raw.execute("pragma max_page_count = 1")
        creating = asyncio.ensure_future(engine.get(Three, "t-1").create("x" * 100_000))
        async with asyncio.timeout(20):
            while caplog.text.count("not durable yet") < 3:
                await asyncio.wait({creating}, timeout=0.01)
        assert not creating.done()
        assert CALLS == []
        assert await engine.get(Three, "t-1").status() == "pending"

        monkeypatch.setattr(Connection, "_configure", configure)

        assert await creating
        assert await engine.get(Three, "t-1").result(timeout=20) == ["a", "b", "c"]
