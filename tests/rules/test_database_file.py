"""What is done about a file that is wrong, foreign, damaged, read-only, locked, newer or gone; and when closed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import async_test, definition, run

from workerflow import (
    DatabaseError,
    DatabaseLockedError,
    DefinitionError,
    Engine,
    EngineClosedError,
    SchemaVersionError,
    Settings,
    WorkflowError,
)
from workerflow.testing import SimulatedEngine

QUICK = Settings(busy_timeout_s=0.05)


@definition
async def Good(self: Any) -> Any:
    return self.input


@definition
async def Listener(self: Any) -> Any:
    return await self.wait("wait", "paid")


async def works(engine: Engine, instance_id: str = "n") -> None:
    """The engine can be used."""
    handle = engine.get(Good, instance_id)
    assert await handle.create(7) is True
    assert await handle.result(timeout=20) == 7


async def make(path: Path) -> None:
    """A database with one completed instance, closed properly."""
    async with Engine(path, [Good]) as engine:
        await works(engine, "first")


def sql(path: Path, *statements: str) -> None:
    """Do something to a database as another program would."""
    connection = apsw.Connection(str(path))
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


@contextmanager
def foreign_transaction(path: Path, kind: str = "immediate") -> Iterator[apsw.Connection]:
    """Another program's transaction, open for the time of the block."""
    connection = apsw.Connection(str(path))
    connection.execute(f"begin {kind}")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
        connection.close()


@asynccontextmanager
async def other_process(path: Path, script: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program in a process of its own, which is killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdin=-1, stdout=-1, stderr=-1
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


HOLDER = """
import asyncio, sys
from workerflow import Engine
async def main():
    async with Engine(sys.argv[1], []):
        print("open", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print("closed", flush=True)
asyncio.run(main())
"""


async def line(process: asyncio.subprocess.Process) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


# Files that are not ours.


def _text(path: Path) -> None:
    path.write_bytes(b"hello world\n" * 1000)


def _short(path: Path) -> None:
    path.write_bytes(b"hi")


def _folder(path: Path) -> None:
    path.mkdir()


def _in_a_file(path: Path) -> None:
    path.parent.write_bytes(b"")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _tables(path: Path) -> None:
    sql(path, "create table orders (id integer primary key)", "insert into orders values (1)")


def _views(path: Path) -> None:
    sql(path, "create view answers as select 42")


def _truncated(path: Path) -> None:
    run(lambda: make(path))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _overwritten(path: Path) -> None:
    run(lambda: make(path))
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xaa" * 4096
    path.write_bytes(content)


def _newer(path: Path) -> None:
    run(lambda: make(path))
    sql(path, "update workerflow_meta set schema_version = 99", "pragma wal_checkpoint(truncate)")


FILES: dict[str, tuple[str, Any]] = {
    "text": ("file.db", _text),
    "short": ("file.db", _short),
    "a-folder": ("file.db", _folder),
    "in-a-folder-that-is-missing": ("missing/file.db", None),
    "in-a-file": ("parent/file.db", _in_a_file),
    "name-too-long": ("x" * 300, None),
    "a-pipe": ("file.db", _pipe),
    "a-socket": ("file.db", _socket),
    "a-link-to-itself": ("file.db", _link_to_itself),
    "tables-of-another-program": ("file.db", _tables),
    "views-of-another-program": ("file.db", _views),
    "truncated": ("file.db", _truncated),
    "overwritten": ("file.db", _overwritten),
    "newer": ("file.db", _newer),
}


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a digest of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@pytest.mark.parametrize("name", FILES.keys())
def test_a_file_that_is_no_database_of_ours_is_refused_and_left_as_it_was(
    name: str, execute: bool, tmp_path: Path
) -> None:
    file_name, prepare = FILES[name]
    path = tmp_path / file_name
    if prepare is not None:
        prepare(path)
    before = contents(tmp_path)

    async def refused() -> str:
        engine = Engine(path, [Good], execute=execute)
        with pytest.raises(SchemaVersionError if name == "newer" else DatabaseError) as caught:
            await engine.__aenter__()
        with pytest.raises(EngineClosedError):
            await engine.get(Good, "n").create()
        return str(caught.value)

    message = run(refused)
    assert path.name[:20] in message or str(path.parent) in message
    assert contents(tmp_path) == before


def test_a_newer_schema_is_refused_naming_both_versions(tmp_path: Path) -> None:
    _newer(tmp_path / "a.db")
    with pytest.raises(SchemaVersionError, match=r"a\.db has schema 99.* only up to 1; upgrade workerflow"):
        run(Engine(tmp_path / "a.db", [Good]).__aenter__)


@pytest.mark.parametrize(
    "damage",
    [
        ("drop table deliveries",),
        ("drop trigger workerflow_meta_delete", "delete from workerflow_meta"),
        ("drop table workerflow_meta",),
        ("drop table workerflow_meta", "create table workerflow_meta (key text, value text)"),
        ("drop trigger instances_fixed_columns", "alter table instances drop column nonce"),
        ("update workerflow_meta set schema_version = -1",),
        ("drop table mail", "create view mail as select 1 as mail_id"),
    ],
    ids=lambda damage: damage[-1],
)
@async_test
async def test_a_database_that_a_hand_has_changed_is_refused_with_its_path_or_works(
    damage: tuple[str, ...], tmp_path: Path
) -> None:
    await make(tmp_path / "a.db")
    sql(tmp_path / "a.db", "pragma foreign_keys = off", *damage)
    for execute in (True, False):
        async with asyncio.timeout(20):
            problem = await _problem_of_listing(Engine(tmp_path / "a.db", [Good], execute=execute))
        assert problem is None or (isinstance(problem, DatabaseError) and "a.db" in str(problem))


async def _problem_of_listing(engine: Engine) -> WorkflowError | None:
    try:
        async with engine:
            assert [summary.id for summary in await engine.list()] == ["first"]
    except WorkflowError as error:
        return error
    return None


@async_test
async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    async with Engine(tmp_path / "a.db", [Good]) as engine:
        await works(engine)


@async_test
async def test_an_engine_that_could_not_open_can_be_opened_when_the_cause_is_mended(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "missing" / "a.db", [Good])
    with pytest.raises(DatabaseError, match="does not exist"):
        await engine.__aenter__()
    (tmp_path / "missing").mkdir()
    async with engine:
        await works(engine)


@pytest.mark.parametrize("url", ["sqlite:///{}", "{}"])
@async_test
async def test_url_and_path_name_the_same_file(url: str, tmp_path: Path) -> None:
    await make(tmp_path / "a.db")
    async with Engine(url.format(tmp_path / "a.db"), [Good]) as engine:
        assert [summary.id for summary in await engine.list()] == ["first"]


@async_test
async def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = Engine("a.db", [Good])
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    async with engine:
        await works(engine)
    assert list((tmp_path / "other").iterdir()) == []


@contextmanager
def another_user() -> Iterator[None]:
    """Root may write everywhere: be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555), (0, 0o777)])
def test_a_read_only_file_or_folder_is_refused_with_the_remedy(file_mode: int, folder_mode: int, execute: bool) -> None:
    async def create() -> None:
        # Some of them can be read: then an engine beside the owner opens, and creating is what is refused.
        async with Engine(path, [Good], execute=execute) as engine:
            assert not execute
            await engine.get(Good, "n").create()

    # Not in pytest's own folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        run(lambda: make(path))
        (path.parent / "a.db-lock").chmod(file_mode)
        path.chmod(file_mode)
        path.parent.chmod(folder_mode)
        before = contents(path.parent)["a.db"]
        try:
            with another_user(), pytest.raises(DatabaseError, match=r"a\.db.*(permission|writable)"):
                run(create)
        finally:
            path.parent.chmod(0o755)
        assert contents(path.parent)["a.db"] == before


# One engine per file.


@async_test
async def test_an_engine_of_another_process_is_refused_naming_the_first_and_that_goes_on(tmp_path: Path) -> None:
    async with other_process(tmp_path / "a.db", HOLDER) as process:
        assert await line(process) == "open"
        with pytest.raises(DatabaseLockedError, match=f"process {process.pid}") as caught:
            await Engine(tmp_path / "a.db", [Good]).__aenter__()
        assert "execute=False" in str(caught.value)
        async with Engine(tmp_path / "a.db", [Good], execute=False) as client:
            assert await client.get(Good, "n").create(7) is True
        assert process.stdin is not None
        process.stdin.close()
        assert await line(process) == "closed"

    async with Engine(tmp_path / "a.db", [Good]) as engine:
        # The first one had no class for it, and holds it until somebody acts.
        await engine.get(Good, "n").resume()
        assert await engine.get(Good, "n").result(timeout=20) == 7


@async_test
async def test_a_killed_process_leaves_the_file_free(tmp_path: Path) -> None:
    async with other_process(tmp_path / "a.db", HOLDER) as process:
        assert await line(process) == "open"
        process.send_signal(signal.SIGKILL)
        await process.wait()
        async with Engine(tmp_path / "a.db", [Good]) as engine:
            await works(engine)


@async_test
async def test_opening_waits_for_lock_timeout_s_and_then_says_who_has_the_file(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Good]) as first:
        second = Engine(tmp_path / "a.db", [Good], settings=Settings(lock_timeout_s=0.2))
        began = asyncio.get_running_loop().time()
        with pytest.raises(DatabaseLockedError, match=f"process {os.getpid()}"):
            await second.__aenter__()
        assert asyncio.get_running_loop().time() - began >= 0.19
        await works(first)


@async_test
async def test_opening_succeeds_as_soon_as_the_first_engine_lets_go_within_lock_timeout_s(tmp_path: Path) -> None:
    second = Engine(tmp_path / "a.db", [Good], settings=Settings(lock_timeout_s=60))
    async with Engine(tmp_path / "a.db", [Good]) as first:
        opening = asyncio.ensure_future(second.__aenter__())
        await works(first, "first")
        assert not opening.done()
    await asyncio.wait_for(opening, 20)
    await works(second, "second")
    await second.__aexit__(None, None, None)


@async_test
async def test_an_opening_that_is_cancelled_while_it_waits_leaves_nothing_open(tmp_path: Path) -> None:
    second = Engine(tmp_path / "a.db", [Good], settings=Settings(lock_timeout_s=60))
    async with Engine(tmp_path / "a.db", [Good]) as first:
        opening = asyncio.ensure_future(second.__aenter__())
        await works(first, "first")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    async with Engine(tmp_path / "a.db", [Good]) as third:
        await works(third, "third")


@pytest.mark.parametrize("name", ["link.db", "linked-folder/real.db", "folder/../folder/real.db"])
@async_test
async def test_a_second_engine_is_refused_whatever_name_it_uses(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked-folder").symlink_to(tmp_path / "folder")
    (tmp_path / "link.db").symlink_to(tmp_path / "folder" / "real.db")
    async with Engine(tmp_path / "folder" / "real.db", [Good]) as first:
        with pytest.raises(DatabaseLockedError):
            await Engine(str(tmp_path / name), [Good]).__aenter__()
        await works(first)


@async_test
async def test_two_engines_on_two_files_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Listener]) as first, Engine(tmp_path / "b.db", [Listener]) as second:
        for engine in (first, second):
            await engine.get(Listener, "same").create()
        await first.get(Listener, "same").send("paid", "first")
        assert await first.get(Listener, "same").result(timeout=20) == "first"
        assert await second.get(Listener, "same").status() == "running"
        await second.get(Listener, "same").send("paid", "second")
        assert await second.get(Listener, "same").result(timeout=20) == "second"


OPENER = """
import asyncio, sys
from workerflow import Engine, Settings
async def main():
    async with Engine(sys.argv[1], [], execute={execute}, settings=Settings(lock_timeout_s=60)) as engine:
        return await engine.list()
print(sys.stdin.readline().strip(), flush=True)
sys.stdin.readline()
print(asyncio.run(main()), flush=True)
"""


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@async_test
async def test_of_ten_processes_that_start_at_once_on_no_database_none_fails(execute: bool, tmp_path: Path) -> None:
    async def one(path: Path, is_ready: asyncio.Semaphore, go: asyncio.Event) -> str:
        async with other_process(path, OPENER.format(execute=execute)) as process:
            assert process.stdin is not None
            process.stdin.write(b"imported\n")
            assert await line(process) == "imported"
            is_ready.release()
            await go.wait()
            process.stdin.write(b"\n")
            return await line(process)

    is_ready, go = asyncio.Semaphore(0), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(tmp_path / "a.db", is_ready, go)) for _ in range(10)]
        for _ in tasks:
            await is_ready.acquire()
        go.set()
    assert [task.result() for task in tasks] == ["[]"] * 10


# Transactions of other programs.


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@pytest.mark.parametrize("kind", ["immediate", "exclusive"])
@async_test
async def test_opening_a_new_file_that_another_program_writes_is_a_locked_error_after_busy_timeout_s(
    kind: str, execute: bool, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "a.db", [Good], execute=execute, settings=QUICK)
    with foreign_transaction(tmp_path / "a.db", kind), pytest.raises(DatabaseLockedError, match=r"a\.db is locked"):
        await engine.__aenter__()
    async with engine:
        assert await engine.list() == []


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@async_test
async def test_opening_while_another_program_writes_does_not_stop_the_loop(execute: bool, tmp_path: Path) -> None:
    await make(tmp_path / "a.db")
    engine = Engine(tmp_path / "a.db", [Good], execute=execute, settings=Settings(busy_timeout_s=60, lock_timeout_s=60))
    with foreign_transaction(tmp_path / "a.db") as foreign:
        began = asyncio.get_running_loop().time()
        opening = asyncio.ensure_future(engine.__aenter__())
        # Three turns are enough for it to begin; it must let others have the loop while it waits.
        for _ in range(3):
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn
        foreign.execute("rollback")
        await asyncio.wait_for(opening, 20)
    assert asyncio.get_running_loop().time() - began < 30
    assert [summary.id for summary in await engine.list()] == ["first"]
    await engine.__aexit__(None, None, None)


@async_test
async def test_a_sender_gives_up_after_busy_timeout_s_and_has_sent_nothing(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Good], execute=False, settings=QUICK) as client:
        handle = client.get(Good, "n")
        with foreign_transaction(tmp_path / "a.db"):
            for verb in (handle.create(7), handle.send("paid"), handle.cancel()):
                with pytest.raises(DatabaseLockedError, match=r"a\.db is locked"):
                    await verb
            assert await handle.status() == "pending"
            assert await client.list() == []
        assert await handle.create(8) is True
        assert await handle.create(9) is False


@async_test
async def test_readers_are_never_held_up_by_a_writer(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Good], settings=QUICK) as engine:
        await works(engine)
        with foreign_transaction(tmp_path / "a.db"):
            assert await engine.get(Good, "n").status() == "completed"
            assert len(await engine.list()) == 1
            async with asyncio.timeout(5):
                assert await engine.get(Good, "n").result() == 7


# Open, closed, opened again.

VERBS: dict[str, Callable[[Any], Any]] = {
    "create": lambda handle: handle.create({"sku": "tea"}),
    "send": lambda handle: handle.send("paid", 1),
    "pause": lambda handle: handle.pause(),
    "resume": lambda handle: handle.resume(),
    "cancel": lambda handle: handle.cancel("late"),
    "status": lambda handle: handle.status(),
    "steps": lambda handle: handle.steps(),
    "events": lambda handle: handle.events(),
    "info": lambda handle: handle.info(),
    "result": lambda handle: handle.result(timeout=5),
}


def test_the_table_above_has_every_verb_of_a_handle(tmp_path: Path) -> None:
    handle = Engine(tmp_path / "a.db", [Good]).get(Good, "n")
    verbs = {name for name in vars(type(handle)) if not name.startswith("_")} - {"id", "workflow"}
    assert verbs == VERBS.keys()


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@async_test
async def test_a_verb_before_open_and_after_close_is_refused_and_does_nothing(
    verb: Callable[[Any], Any], execute: bool, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "a.db", [Good], execute=execute)
    handle = engine.get(Good, "n")
    with pytest.raises(EngineClosedError, match="async with Engine"):
        await verb(handle)
    assert contents(tmp_path) == {}
    async with engine:
        assert await engine.list() == []
    with pytest.raises(EngineClosedError, match="async with Engine"):
        await verb(handle)
    async with engine:
        assert await engine.list() == []


@async_test
async def test_the_engines_own_verbs_before_open_and_after_close_are_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Good])
    simulated = SimulatedEngine([Good])
    for _ in range(2):
        for refused in (engine.list, engine.run_forever, simulated.run_until_idle, simulated.crash):
            with pytest.raises(EngineClosedError):
                await refused()
        with pytest.raises(EngineClosedError):
            await simulated.advance(1)
        if not (tmp_path / "a.db").exists():
            async with engine, simulated:
                pass


@async_test
async def test_an_open_engine_cannot_be_opened_again_and_stays_open(tmp_path: Path) -> None:
    async with Engine(tmp_path / "a.db", [Good]) as engine:
        with pytest.raises(DefinitionError, match="is open already"):
            await engine.__aenter__()
        await works(engine)


@async_test
async def test_of_two_openings_at_once_one_succeeds_and_the_engine_is_whole(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Good])
    outcomes = await asyncio.gather(engine.__aenter__(), engine.__aenter__(), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) in (
        ["DefinitionError", "Engine"],
        ["DatabaseLockedError", "Engine"],
    )
    await works(engine)
    await engine.__aexit__(None, None, None)
    await make(tmp_path / "a.db")


@async_test
async def test_a_closed_engine_can_be_opened_again_and_closed_twice(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Good])
    for number in range(3):
        async with engine:
            await works(engine, str(number))
        await engine.__aexit__(None, None, None)
    async with engine:
        assert len(await engine.list()) == 3


@async_test
async def test_whoever_waits_for_a_result_is_told_when_the_engine_closes(tmp_path: Path) -> None:
    for execute in (True, False):
        async with Engine(tmp_path / "a.db", [Listener], execute=execute) as engine:
            handle = engine.get(Listener, "n")
            await handle.create()
            waiting = [asyncio.ensure_future(handle.result()) for _ in range(3)]
            await handle.status()
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert [type(outcome) for outcome in outcomes] == [EngineClosedError] * 3


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@async_test
async def test_opening_and_closing_fifty_times_leaves_no_file_and_no_thread_open(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Good])
    files, threads = [], []
    for number in range(50):
        async with engine:
            await works(engine, str(number))
        files.append(open_files())
        threads.append(threading.active_count())
    assert files[-1] <= files[5]
    # A thread for plain callbacks ends on its own, a moment after its engine.
    assert threads[-1] <= threads[5] + 2
    assert contents(tmp_path).keys() == {"a.db", "a.db-lock"}


# The loop and the process that opened it.


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@async_test
async def test_a_verb_on_another_loop_is_refused_and_never_hangs(
    verb: Callable[[Any], Any], execute: bool, tmp_path: Path
) -> None:
    async def elsewhere() -> None:
        async with asyncio.timeout(3):
            await verb(handle)

    async with Engine(tmp_path / "a.db", [Good], execute=execute) as engine:
        handle = engine.get(Good, "n")
        with pytest.raises(WorkflowError, match="loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        assert await engine.list() == []


FORKER = """
import asyncio, os, sys, warnings
from workerflow import Engine, WorkflowDefinition, WorkflowError
warnings.simplefilter("ignore")
class Good(WorkflowDefinition):
    async def execute(self):
        return 7
async def child(handle):
    for name in ("status", "create", "info"):
        try:
            async with asyncio.timeout(5):
                await getattr(handle, name)()
            print(name, "worked", flush=True)
        except WorkflowError as error:
            print(name, "refused", flush=True)
        except BaseException as error:
            print(name, repr(error), flush=True)
async def main():
    async with Engine(sys.argv[1], [Good]) as engine:
        handle = engine.get(Good, "n")
        if (process := os.fork()) == 0:
            asyncio.events._set_running_loop(None)
            asyncio.run(child(handle))
            os._exit(0)
        await asyncio.to_thread(os.waitpid, process, 0)
        await handle.create()
        print(await handle.result(timeout=10), flush=True)
asyncio.run(main())
"""


@async_test
async def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKER, str(tmp_path / "a.db"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 50)
    assert output.decode().split("\n") == ["status refused", "create refused", "info refused", "7", ""], errors.decode()


# Files that go away under an engine.


def remove(folder: Path) -> None:
    for path in folder.glob("a.db*"):
        path.unlink()


def stored(path: Path, instance_id: str) -> bool:
    """Whether the file that is there now has the instance."""
    if not path.exists():
        return False
    connection = apsw.Connection(str(path))
    try:
        return bool(list(connection.execute("select 1 from instances where instance_id = ?", (instance_id,))))
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@async_test
async def test_nothing_is_acknowledged_when_the_file_was_deleted_under_the_engine(
    execute: bool, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "a.db", [Good], execute=execute, settings=Settings(stop_grace_s=0.1))
    async with engine:
        assert await engine.get(Good, "before").create(7) is True
        remove(tmp_path)
        acknowledged = False
        try:
            async with asyncio.timeout(0.5):
                acknowledged = await engine.get(Good, "after").create(7)
        except (WorkflowError, TimeoutError):
            pass
        assert acknowledged is stored(tmp_path / "a.db", "after")
