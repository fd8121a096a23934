"""Faults of whole processes: signals, stops, kills within an opening and within a mail.

Also the tools for such tests: a forked process that says lines, and a crowd of workflows that shall not be harmed.
Run as a script it injects at every point.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import pickle
import random
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from tests.faults.table import Budget, Cell, Row, main
from workerflow import (
    Engine,
    EngineClosedError,
    RetryPolicy,
    Settings,
    WorkflowDefinition,
    WorkflowError,
    current_attempt,
)
from workerflow.effects import SystemEffects, pause

NOW_S = SystemEffects().monotonic_s
PATIENCE_S = 30.0
LINE_MAX = 2000
GOODS = 50
STEADY = RetryPolicy(max_attempts=100, initial=0.01, factor=1)
_OUT = 1


def say(line: str) -> None:
    """Tell the parent: one line, whole or not at all. What was written is heard though this process dies."""
    os.write(_OUT, line.replace("\n", " ")[:LINE_MAX].encode() + b"\n")


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"log {record.levelname} {record.getMessage()}")


class Child:
    """A forked process that runs an async program. Fork it from a process without threads. ``heard``: all it said."""

    def __init__(self, program: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self._reading, writing = os.pipe()
        self._rest = b""
        self.heard: list[str] = []
        self.code: int | None = None
        self.began_s = NOW_S()
        self.pid = os.fork()
        if self.pid == 0:
            _live(program, arguments, writing)
        os.close(writing)

    def line(self, within_s: float) -> str | None:
        """The next line; None when the process has ended. TimeoutError when it says nothing."""
        give_up_s = NOW_S() + within_s
        while b"\n" not in self._rest or within_s < 0:
            if within_s < 0 or not select.select([self._reading], [], [], max(0.0, give_up_s - NOW_S()))[0]:
                raise TimeoutError(f"nothing for {within_s} s after {self.heard[-3:]}")
            more = os.read(self._reading, 65536)
            if not more:
                return None
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\n")
        self.heard.append(first.decode(errors="replace"))
        return self.heard[-1]

    def hears(self, beginning: str, within_s: float = PATIENCE_S) -> bool:
        """Read on to a line that begins so; False when the process ends without it."""
        while (line := self.line(within_s)) is not None:
            if line.startswith(beginning):
                return True
        return False

    def drain(self) -> None:
        """Read what it has said so far."""
        with suppress(TimeoutError):
            while self.line(0) is not None:
                pass

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ends(self, within_s: float = PATIENCE_S) -> int:
        """Read on to its end; the exit code, or the signal as a negative number. Killed when it does not end."""
        if self.code is None:
            give_up_s = NOW_S() + within_s
            try:
                while self.line(give_up_s - NOW_S()) is not None:
                    pass
            except TimeoutError:
                self.signal(signal.SIGKILL)
                self.heard.append("killed: it did not end")
            os.close(self._reading)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


def _live(program: Callable[..., Coroutine[Any, Any, None]], arguments: tuple[Any, ...], writing: int) -> None:
    code = 1
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)  # A child of this one must be able to let go of it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        logger = logging.getLogger("workerflow")
        logger.setLevel(logging.INFO)
        logger.addHandler(_Saying())
        asyncio.run(program(*arguments))
        code = 0
    except BaseException as error:  # It must not go on as a second parent.
        say(f"error {type(error).__name__}: {error}")
    finally:
        os._exit(code)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes away; in memory where the system has that, for these tests do not need a real disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True) as name:
        yield Path(name)


def rows_of(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a file that may not have its tables yet."""
    if not path.exists():
        return []
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    try:
        return connection.execute(statement).fetchall()
    except apsw.SQLError:
        return []
    finally:
        connection.close()


def options(mode: str, **settings: Any) -> dict[str, Any]:
    """The arguments of an engine that runs in a mode of the suite."""
    if mode == "hibernating":
        settings["hibernate_after_s"] = 0.0
    return {"always_replay": mode == "always-replay", "settings": Settings(**settings)}


# The crowd: what it does is seen in the lines that its callbacks say.


def effect() -> int:
    attempt = current_attempt()
    say(f"effect {attempt.instance_id} {attempt.step_id}")
    return 1


async def async_effect() -> int:
    return effect()


async def slow_effect() -> int:
    """In flight for long enough to be found there by a signal."""
    done = effect()
    await pause(SystemEffects(), 10)
    return done


class Good(WorkflowDefinition[None, int]):
    """Both kinds of callbacks, and a timer between them."""

    async def execute(self) -> int:
        first: int = await self.run("first", async_effect, retry=STEADY)
        await self.sleep("nap", 0.02)
        second: int = await self.run("second", effect, retry=STEADY)
        return first + second


class Chain(WorkflowDefinition[None, int]):
    """Long enough to be struck often."""

    async def execute(self) -> int:
        total = 0
        for number in range(8):
            total += await self.run(f"step-{number}", effect if number % 2 else slow_effect, retry=STEADY)
            await self.sleep(f"nap-{number}", 0.02)
        last: int = await self.wait("wait", "go", int)
        return total + last


def stored_effects(path: Path) -> set[str]:
    """The lines of callbacks whose outcome is stored."""
    found = rows_of(
        path, "select instance_id, step_id from attempts join instances using (instance_key) where state = 'succeeded'"
    )
    return {f"effect {instance_id} {step_id}" for instance_id, step_id in found}


def repeated(child: Child, stored: set[str]) -> list[str]:
    """What the process did although it was stored when it began, and what it did twice itself."""
    effects = Counter(line for line in child.heard if line.startswith("effect"))
    return [line for line, count in effects.items() if line in stored or count > 1]


async def create_all(
    path: Path, workflow: type[WorkflowDefinition[Any, Any]], count: int, busy_timeout_s: float = 30
) -> None:
    settings = Settings(busy_timeout_s=busy_timeout_s)
    async with Engine(path, [workflow], execute=False, settings=settings) as engine:
        for number in range(count):
            handle = engine.get(workflow, str(number))
            await handle.create()
            await handle.send("go", 1, id="go")


async def serve(path: Path, mode: str, count: int, settings: dict[str, Any]) -> None:
    """Serve the chains until a signal comes; say which have ended."""
    async with Engine(path, [Chain], **options(mode, **settings)) as engine:

        async def watch(number: int) -> None:
            try:
                say(f"result {number} {await engine.get(Chain, str(number)).result()}")
            except WorkflowError as error:
                say(f"result {number} {error}")

        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(watch(number)) for number in range(count)]
            # Said when run_forever() listens to signals.
            asyncio.get_running_loop().call_soon(say, "serving")
            try:
                await engine.run_forever()
                say("stopping")
            finally:
                for task in watching:
                    task.cancel()
    say("closed")


def wait_for_some(child: Child, chance: random.Random) -> None:
    """Until the process has done a few things, or nothing for a while."""
    with suppress(TimeoutError):
        for _ in range(chance.randrange(1, 40)):
            if child.line(0.1) is None:
                return


# SIGTERM under load.

GRACE_S = 2.0


def signals(budget: Budget) -> list[Row]:
    """SIGTERM at any moment, once or twice, again and again until the crowd has ended."""
    once, twice = Row("SIGTERM under load"), Row("a second SIGTERM")
    chance = random.Random(f"{budget.seed} signals")
    wanted = budget.points or 60
    count = 20
    while once.points + twice.points < wanted:
        with folder() as place:
            path = place / "signals.db"
            Child(create_all, path, Chain, count).ends()
            for _ in range(8):
                row = (once, twice)[(once.points + twice.points) % 2]
                _strike(path, budget.mode, count, row, chance, is_twice=row is twice)
            _finish(path, budget.mode, count, twice)
            attempts = rows_of(path, "select error_message, counts from attempts where state = 'failed'")
            kinds = Counter(counts for message, counts in attempts if "stopped with its engine" not in message)
            twice.measured["attempts that a second signal interrupted"] = kinds[1]
    if not any(cell.place == "cut" for cell in twice.cells):
        twice.problems.append("no second signal came before the end")
    return [once, twice]


def _strike(path: Path, mode: str, count: int, row: Row, chance: random.Random, *, is_twice: bool) -> None:
    stored = stored_effects(path)
    interrupted = _interrupted(path)
    # Without a grace callbacks in flight are cut, and recorded as that.
    grace_s = chance.choice((0.0, GRACE_S))
    child = Child(serve, path, mode, count, {"stop_grace_s": grace_s})
    if not child.hears("serving"):
        row.problems.append(f"did not serve: {child.heard[-3:]}")
    wait_for_some(child, chance)
    began_s = NOW_S()
    child.signal(signal.SIGTERM)
    if is_twice:
        # Before that it would be one signal with the first.
        child.hears("stopping")
        with suppress(ProcessLookupError):
            child.signal(signal.SIGTERM)
    code = child.ends()
    took_s = NOW_S() - began_s
    row.points += 1
    row.longest_recovery_s = max(row.longest_recovery_s, took_s)
    is_closed = "closed" in child.heard
    row.cells[
        Cell("twice" if is_twice else "once", "closed" if is_closed else "cut", f"grace {grace_s:g} s", "first run")
    ] += 1
    if code not in ((0, -signal.SIGTERM) if is_twice else (0,)):
        row.problems.append(f"exit code {code}: {child.heard[-3:]}")
    if took_s > grace_s + 5:
        row.problems.append(f"ended {took_s:.1f} s after the signal")
    if not is_twice and _interrupted(path) > interrupted:
        row.problems.append("an attempt was left as interrupted by a graceful stop")
    row.duplicates += len(twice := repeated(child, stored))
    row.problems += [f"{line} again" for line in twice]
    row.problems += [line for line in child.heard if line.startswith(("log ERROR", "error"))]


def _interrupted(path: Path) -> int:
    found = rows_of(path, "select count(*) from attempts where state = 'started' or (state = 'failed' and counts = 1)")
    return int(found[0][0]) if found else 0


def _finish(path: Path, mode: str, count: int, row: Row) -> None:
    """After the last fault: everything moves, and ends with the right result."""
    stored = stored_effects(path)
    child = Child(serve, path, mode, count, {})
    for _ in range(count):
        if not child.hears("result"):
            break
    child.signal(signal.SIGTERM)
    child.ends()
    results = {line for line in child.heard if line.startswith("result")}
    missing = {f"result {number} 9" for number in range(count)} - results
    row.lost += len(missing)
    row.problems += [f"missing {line!r}" for line in sorted(missing)[:3]]
    row.problems += [f"{line} again" for line in repeated(child, stored)]


# SIGSTOP and SIGCONT.


def freezes(budget: Budget) -> list[Row]:
    """The process stands still for a while: its timers are late, nothing is lost, and nobody takes its file."""
    row = Row("SIGSTOP and SIGCONT")
    chance = random.Random(f"{budget.seed} freezes")
    count = 20
    wanted = budget.points or 40
    while row.points < wanted:
        with folder() as place:
            path = place / "freezes.db"
            Child(create_all, path, Chain, count).ends()
            child = Child(serve, path, budget.mode, count, {})
            child.hears("serving")
            for _ in range(min(8, wanted - row.points)):
                wait_for_some(child, chance)
                child.signal(signal.SIGSTOP)
                other = Child(serve, path, budget.mode, 0, {})
                other.ends()
                if not any("in use by another engine" in line for line in other.heard):
                    row.problems.append(f"another engine was not refused: {other.heard[-2:]}")
                sender = Child(create_all, path, Chain, count + 1, 0.3)
                is_sent, place_found = sender.ends() == 0, "between transactions"
                if not is_sent:
                    # Frozen while it writes, it keeps the file's write lock; the sender is told so in time.
                    place_found = "within a transaction"
                    if not any("StoreBusyError" in line for line in sender.heard):
                        row.problems.append(f"no mail to a frozen engine: {sender.heard[-2:]}")
                child.drain()
                began_s = NOW_S()
                child.signal(signal.SIGCONT)
                row.points += 1
                row.cells[Cell("freeze", place_found, "chain", "first run")] += 1
                with suppress(TimeoutError):
                    child.line(0.2)
                    row.longest_recovery_s = max(row.longest_recovery_s, NOW_S() - began_s)
            Child(create_all, path, Chain, count + 1).ends()
            row.duplicates += len(twice := repeated(child, set()))
            row.problems += [f"{line} again" for line in twice]
            child.signal(signal.SIGTERM)
            if child.ends() != 0:
                row.problems.append(f"exit code {child.code}: {child.heard[-3:]}")
            _finish(path, budget.mode, count + 1, row)
            late = rows_of(path, "select count(*) from steps where kind = 'sleep' and resolved_at < wake_at")
            row.problems += ["a sleep ended early"] * (late != [(0,)])
            if rows_of(path, "select count(*) from attempts where state = 'failed' and counts = 1") != [(0,)]:
                row.problems.append("an attempt counts as failed")
    return [row]


# Kills at every statement.


class Statements:
    """Counts the statements of all connections of this process, and kills it before or after one of them."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.count = 0

    def install(self) -> None:
        apsw.connection_hooks.append(self._hook)

    def _hook(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._traced

    def _traced(self, *_: Any) -> bool:
        self.count += 1
        if self.count == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


async def open_and_close(path: Path, execute: bool, number: int | None) -> None:
    statements = Statements(number)
    statements.install()
    async with Engine(path, [Good], execute=execute, settings=Settings(lock_timeout_s=20)) as engine:
        say(f"opened {await engine.list()}")
    say(f"count {statements.count}")


def count_of(child: Child) -> int:
    """How many statements the undisturbed process had."""
    child.ends()
    (line,) = [line for line in child.heard if line.startswith("count")]
    return int(re.sub(r"\D", "", line))


def openings(budget: Budget) -> list[Row]:
    """A kill at every statement of the first opening of a file, and of the one after it; then ten open it at once."""
    row = Row("kill within the migration")
    with folder() as place:
        statements = count_of(Child(open_and_close, place / "new.db", True, None))
        schema = set(rows_of(place / "new.db", "select name, sql from sqlite_schema"))
    plans: list[tuple[int, ...]] = [(first,) for first in range(1, statements + 1)]
    # The second kill is in the recovery from the first.
    plans += [(first, second) for first in range(2, statements, 4) for second in range(1, statements, 4)]
    for plan in budget.sample(plans, "openings"):
        with folder() as place:
            kills = [Child(open_and_close, place / "new.db", True, number).ends() for number in plan]
            row.points += 1
            run = "recovery" if len(plan) > 1 else "first run"
            # The second opening may have less to do than it takes to reach the point.
            if kills[0] != -signal.SIGKILL:
                row.problems.append(f"{plan} was not reached: {kills}")
            row.cells[Cell("statement", "before", "migration", run)] += 1
            began_s = NOW_S()
            # Engines that execute take turns; those beside open all at once.
            starts = [Child(open_and_close, place / "new.db", execute == 0, None) for execute in range(10)]
            for start in starts:
                if start.ends() != 0:
                    row.problems.append(f"{plan}: {start.heard[-2:]}")
            row.longest_recovery_s = max(row.longest_recovery_s, NOW_S() - began_s)
            if set(rows_of(place / "new.db", "select name, sql from sqlite_schema")) != schema:
                row.lost += 1
                row.problems.append(f"{plan}: another schema")
            if rows_of(place / "new.db", "pragma integrity_check") != [("ok",)]:
                row.problems.append(f"{plan}: the file is damaged")
    return [row]


async def create_by_mail(path: Path, number: int | None) -> None:
    statements = Statements(number)
    async with Engine(path, [Good], execute=False) as engine:
        # What came before is the opening's.
        statements.install()
        assert engine._store is not None
        writer = engine._store._write_connection().raw
        writer.exec_trace = statements._traced
        await engine.get(Good, "0").create()
        say("acknowledged")
    say(f"count {statements.count}")


async def serve_good(path: Path, mode: str, number: int | None) -> None:
    statements = Statements(number)
    statements.install()
    async with Engine(path, [Good], **options(mode)) as engine:
        say("serving")
        say(f"result 0 {await engine.get(Good, '0').result(timeout=20)}")
    say(f"count {statements.count}")


def mails(budget: Budget) -> list[Row]:
    """A create by another process, with a kill at every statement of the sender, or of the engine that takes it."""
    sender_row, owner_row = Row("kill of a sender within create"), Row("kill of the engine within create by mail")
    with folder() as place:
        Child(open_and_close, place / "mail.db", True, None).ends()
        sending = count_of(Child(create_by_mail, place / "mail.db", None))
        serving = min(count_of(_opened(place, budget.mode)) for _ in range(3))
    for number in budget.sample(range(1, sending + 1), "sender"):
        with folder() as place:
            path = place / "mail.db"
            owner = Child(serve_good, path, budget.mode, None)
            owner.hears("serving")
            sender = Child(create_by_mail, path, number)
            if sender.ends() != -signal.SIGKILL:
                sender_row.problems.append(f"statement {number} was not reached: {sender.heard[-2:]}")
            sender_row.points += 1
            sender_row.cells[Cell("statement", "before", "create", "first run")] += 1
            created = rows_of(path, "select instance_id from instances")
            sent = rows_of(path, "select kind from mail")
            if len(created) != len(sent):
                sender_row.problems.append(f"half a create: {created}, {sent}")
            if Child(create_by_mail, path, None).ends() != 0:
                sender_row.problems.append("the next sender was not served")
            _judge_one(owner, path, sender_row)
    for number in budget.sample(range(1, serving + 1), "owner"):
        with folder() as place:
            path = place / "mail.db"
            Child(open_and_close, path, True, None).ends()
            sender = Child(create_by_mail, path, None)
            sender.ends()
            killed = Child(serve_good, path, budget.mode, number)
            if killed.ends() != -signal.SIGKILL:
                owner_row.problems.append(f"statement {number} was not reached: {killed.heard[-2:]}")
            owner_row.points += 1
            owner_row.cells[Cell("statement", "before", "create", "first run")] += 1
            stored = stored_effects(path)
            owner = Child(serve_good, path, budget.mode, None)
            _judge_one(owner, path, owner_row)
            owner_row.duplicates += len(twice := repeated(owner, stored))
            owner_row.problems += [f"statement {number}: {line} again" for line in twice]
    return [sender_row, owner_row]


def _opened(place: Path, mode: str) -> Child:
    """A served create on a new file, as the sweep has it."""
    path = place / f"served-{NOW_S()}.db"
    Child(open_and_close, path, True, None).ends()
    Child(create_by_mail, path, None).ends()
    return Child(serve_good, path, mode, None)


def _judge_one(owner: Child, path: Path, row: Row) -> None:
    owner.ends()
    row.longest_recovery_s = max(row.longest_recovery_s, NOW_S() - owner.began_s)
    if "result 0 2" not in owner.heard:
        row.lost += 1
        row.problems.append(f"no result: {owner.heard[-3:]}")
    log = rows_of(path, "select type, count(*) from lifecycle_events group by type order by type")
    if log != [("completed", 1), ("created", 1), ("started", 1)]:
        row.problems.append(f"lifecycle {log}")


# Forks, and loops that are closed.


async def fork_and_serve(path: Path) -> None:
    """An engine whose process forks while it is open; the child tries it, and then stays for ever."""
    async with Engine(path, [Good]) as engine:
        handle = engine.get(Good, "0")
        if os.fork() == 0:
            asyncio._set_running_loop(None)
            for verb in (handle.create, handle.status, partial(handle.send, "go")):
                try:
                    asyncio.run(verb())
                    say("used")
                except EngineClosedError as error:
                    say(f"refused {error}")
            say(f"child {os.getpid()}")
            os.close(1)
            os.close(2)
            while True:
                signal.pause()
        say("forked")
        await engine.run_forever()


def forks(budget: Budget) -> list[Row]:
    """A forked child cannot use the engine, and does not keep the file from others after its parent's death."""
    row = Row("fork with an open engine")
    with folder() as place:
        path = place / "fork.db"
        parent = Child(fork_and_serve, path)
        parent.hears("child")
        (pid,) = [int(line.split()[1]) for line in parent.heard if line.startswith("child")]
        try:
            # It must still serve after what its child has done.
            Child(create_by_mail, path, None).ends()
            if not parent.hears("effect 0 second"):
                row.problems.append("the parent was harmed")
            row.points += 1
            row.cells[Cell("fork", "open", "engine", "first run")] += 1
            if Child(serve_good, path, budget.mode, None).ends() == 0:
                row.problems.append("two engines on one file")
            parent.signal(signal.SIGKILL)
            parent.ends()
            refused = [line for line in parent.heard if line.startswith("refused")]
            if "used" in parent.heard or len(refused) != 3 or not all("forked" in line for line in refused):
                row.problems.append(f"the child was not refused: {parent.heard}")
            owner = Child(serve_good, path, budget.mode, None)
            owner.ends()
            row.longest_recovery_s = NOW_S() - owner.began_s
            if "result 0 2" not in owner.heard:
                row.lost += 1
                row.problems.append(f"not served beside the child: {owner.heard[-2:]}")
            os.kill(pid, 0)  # It was alive all the time.
        finally:
            os.kill(pid, signal.SIGKILL)
    return [row]


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A loop of asyncio's, or of uvloop's."""
    if kind == "uvloop":
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def loops(kind: str, is_collected: bool) -> list[str]:
    """What the second of two loops of this process says, when the first was closed under an open engine."""
    said: list[str] = []

    async def leave_open(path: Path) -> Engine:
        engine = Engine(path, [Waits])
        await engine.__aenter__()
        await engine.get(Waits, "0").create()
        return engine

    async def go_on(path: Path) -> None:
        async with Engine(path, [Waits]) as engine:
            await engine.get(Waits, "0").send("go", 5)
            said.append(f"result {await engine.get(Waits, '0').result(timeout=5)}")

    with folder() as place, warnings.catch_warnings():
        # Of sockets and tasks that nobody has closed: that is what is tried.
        warnings.simplefilter("ignore")
        with asyncio.Runner(loop_factory=partial(new_loop, kind)) as runner:
            engine: Engine | None = runner.run(leave_open(place / "loops.db"))
        if is_collected:
            engine = None
            gc.collect()
        try:
            with asyncio.Runner(loop_factory=partial(new_loop, kind)) as runner:
                if engine is not None:
                    runner.run(engine.__aexit__(None, None, None))
                runner.run(go_on(place / "loops.db"))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


class Waits(WorkflowDefinition[None, int]):
    async def execute(self) -> int:
        payload: int = await self.wait("wait", "go", int)
        return payload


# A disk that is full when the engine starts.


async def open_on_a_full_disk(path: Path, execute: bool, number: int | None) -> None:
    from tests.faults.disk import Disk, Strike

    strike = None if number is None else Strike(("write",), number, "before", apsw.SQLITE_FULL, 10**9)
    disk = Disk(path, strike)
    disk.install()
    try:
        async with Engine(path, [Good], execute=execute, settings=Settings(stop_grace_s=0.1)) as engine:
            say(f"opened {await engine.list()}")
            say(f"count {disk.counts['write']}")
            # At the close the error of a VFS in Python would come through, which that of a disk does not.
            disk.is_armed = False
    except WorkflowError as error:
        say(f"refused {error}")


def full_disks(budget: Budget) -> list[Row]:
    """No room from the n-th write of the first opening on; then there is room again."""
    row = Row("disk full at start")
    with folder() as place:
        writes = {
            execute: count_of(Child(open_on_a_full_disk, place / f"full-{execute}.db", execute, None))
            for execute in (True, False)
        }
    plans = [(number, execute) for execute in writes for number in range(1, writes[execute] + 1)]
    for number, execute in budget.sample(plans, "full disks"):
        with folder() as place:
            path = place / "full.db"
            child = Child(open_on_a_full_disk, path, execute, number)
            code = child.ends()
            row.points += 1
            row.cells[Cell("write", "before", "executing" if execute else "beside", "first run")] += 1
            refused = [line for line in child.heard if line.startswith("refused")]
            if code != 0 or not refused:
                row.problems.append(f"write {number} was not reached, or not told: {child.heard[-3:]}")
            row.problems += [f"write {number}: {line}" for line in refused if str(path) not in line]
            again = Child(serve_good, path, budget.mode, None)
            if not again.hears("serving"):
                row.problems.append(f"write {number}: not opened when there is room: {again.heard[-3:]}")
            if Child(create_by_mail, path, None).ends() != 0:
                row.problems.append(f"write {number}: no create when there is room")
            _judge_one(again, path, row)
    return [row]


SWEEPS: dict[str, Callable[[Budget], list[Row]]] = {
    "signals": signals,
    "freezes": freezes,
    "openings": openings,
    "mails": mails,
    "forks": forks,
    "full disks": full_disks,
}


def sweep(budget: Budget) -> list[Row]:
    return [row for part in SWEEPS.values() for row in part(budget)]


AnswerT = TypeVar("AnswerT")


def elsewhere(function: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
    """What a function of these modules answers in a new process, which has no threads and may fork."""
    code = (
        "import importlib, pickle, sys; module, name, *arguments = pickle.load(sys.stdin.buffer); "
        "answer = getattr(importlib.import_module(module), name)(*arguments); "
        "sys.stdout.buffer.write(pickle.dumps(answer))"
    )
    asked = pickle.dumps((function.__module__, function.__name__, *arguments))
    done = subprocess.run(
        [sys.executable, "-c", code], input=asked, capture_output=True, cwd=Path(__file__).parents[2], timeout=110
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: AnswerT = pickle.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main(sweep)
