"""Statuses as the database sees them: every transition reaches it, and each is there again after a restart."""

import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, started

from workerflow import UNSET
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine

# Every transition of the only instance, with the input at that moment, in order.
WATCH = (
    "create table transitions (number integer primary key, old_status, new_status, input)",
    "create trigger watch after update of status on instances begin "
    "insert into transitions (old_status, new_status, input) values (old.status, new.status, new.input); end",
)
TRANSITIONS = "select old_status, new_status, input from transitions order by number"
STATUSES = ("pending", "running", "paused", "completed", "failed", "cancelled")
END = {"completed": "completed", "failed": "failed"}


@definition
async def Listener(self):
    if await self.wait("how", "how") == "failed":
        raise ValueError("as asked")
    return self.input


async def bring(engine, handle, status):
    """Take an unknown instance to this status."""
    if status == "pending":
        await handle.send("other")
        return
    await handle.create({"key": "original"})
    if status == "paused":
        await handle.pause()
    elif status == "cancelled":
        await handle.cancel("reason")
    elif status in END:
        await handle.send("how", status)
    await engine.run_until_idle()


@pytest.mark.spec(5, 10)
@async_test
async def test_the_database_sees_the_instance_initialized_with_its_input_before_it_is_running():
    async with SimulatedEngine([Listener]) as engine:
        for statement in WATCH:
            query(engine, statement)
        handle = engine.get(Listener, "instance-1")
        await handle.create("tea")
        await handle.send("how", "completed")
        assert await handle.result(timeout=5) == "tea"

        assert query(engine, TRANSITIONS) == [
            ("pending", "initialized", '"tea"'),
            ("initialized", "running", '"tea"'),
            ("running", "completed", '"tea"'),
        ]
        assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.spec(9, 10)
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
@async_test
async def test_every_transition_that_is_stored_has_its_event_but_the_one_to_initialized(end):
    names = {"paused": "paused", **END, "cancelled": "cancelled"}
    async with SimulatedEngine([Listener]) as engine:
        for statement in WATCH:
            query(engine, statement)
        handle = engine.get(Listener, "instance-1")
        await handle.create()
        await handle.create()
        for verb in (handle.pause, handle.pause, handle.resume, handle.pause, handle.resume):
            await verb()
        await (handle.cancel() if end == "cancelled" else handle.send("how", end))
        await engine.run_until_idle()
        await handle.cancel()
        await handle.pause()
        transitions = [(old, new) for old, new, _ in query(engine, TRANSITIONS)]
        log = await lifecycle(handle)

    assert transitions[:2] == [("pending", "initialized"), ("initialized", "running")]
    expected = ["resumed" if old == "paused" else names[new] for old, new in transitions[2:]]
    assert log == ["created", "started", *expected]
    assert expected == ["paused", "resumed", "paused", "resumed", end]


@pytest.mark.spec(3)
@pytest.mark.parametrize("status", STATUSES)
@async_test
async def test_an_instance_of_every_status_is_after_a_restart_what_it_was(status):
    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        await bring(engine, handle, status)
        before, events = await handle.info(), await handle.events()
        assert before.status == status
        assert before.input == (UNSET if status == "pending" else {"key": "original"})

        await engine.advance(60)
        await engine.crash()
        await engine.run_until_idle()

        after = await handle.info()
        assert (after.status, after.input, after.result, after.failure) == (
            before.status,
            before.input,
            before.result,
            before.failure,
        )
        assert (after.created_at, after.updated_at) == (before.created_at, before.updated_at)
        assert await handle.events() == events


@pytest.mark.spec(1, 2)
@pytest.mark.parametrize("verb", ["create", "send", "cancel"])
@async_test
async def test_each_verb_that_makes_an_instance_makes_one_row_with_one_created_event(verb):
    async with SimulatedEngine([Listener]) as engine:
        handle = engine.get(Listener, "instance-1")
        for _ in range(2):
            await (handle.send("other") if verb == "send" else getattr(handle, verb)())

        assert query(engine, "select workflow, instance_id from instances") == [("Listener", "instance-1")]
        assert [event.type for event in await handle.events()].count("created") == 1
        assert (await handle.events())[0].recorded_at == engine.now()


@pytest.mark.spec(11)
@pytest.mark.parametrize("end", ["completed", "failed"])
@async_test
async def test_updated_at_moves_with_the_end_that_execute_reaches(end):
    async with started(Listener) as (engine, handle):
        began = engine.now()
        await engine.advance(60)
        await handle.send("how", end)
        await engine.run_until_idle()

        info = await handle.info()
        assert (info.status, info.created_at, info.updated_at) == (end, began, engine.now())


@pytest.fixture
def commits(monkeypatch):
    """Status, input and whether it has an owner, of the only instance after each commit."""
    seen = []
    commit = SqliteStore.commit

    def look_after(store, batch, *, busy_timeout_ms):
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)
        seen.extend(store._write_connection().raw.execute("select status, input, owner is not null from instances"))

    monkeypatch.setattr(SqliteStore, "commit", look_after)
    return seen


@pytest.mark.spec(5, 23)
@pytest.mark.parametrize("is_pending", [False, True])
@async_test
async def test_the_commit_of_a_create_leaves_an_instance_that_the_next_start_finds_and_its_input(is_pending, commits):
    @definition
    async def Calling(self):
        await self.run("call", Callback())

    async with SimulatedEngine([Calling]) as engine:
        handle = engine.get(Calling, "instance-1")
        if is_pending:
            await handle.send("other")
        commits.clear()
        await handle.create("tea")

        assert commits[0] == ("running", '"tea"', 1)


@pytest.mark.spec(128)
@async_test
async def test_the_commit_of_a_resume_leaves_an_instance_that_the_next_start_finds(commits):
    after = Callback()

    @definition
    async def Stepping(self):
        await self.wait("go", "go")
        await self.run("after", after)

    async with started(Stepping) as (engine, handle):
        await handle.pause()
        await handle.send("go")
        await engine.run_until_idle()
        commits.clear()

        await handle.resume()

        assert [status for status, _, _ in commits] != []
        for status, _, has_owner in commits:
            assert (status, has_owner) in (("running", 1), ("completed", 0))
        assert commits[0][0] == "running"
        await engine.run_until_idle()
        assert after.calls == 1
