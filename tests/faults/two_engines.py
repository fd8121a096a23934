"""Two engines on one file, by every name that it may have: beside a running one, after a crash, in a forked child.

Only one may execute, whatever name it uses; another may send, and what it is told is accepted must be there afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.table import Budget, Cell, Row, main
from tests.faults.trial import folder
from tests.faults.workload import tick
from workerflow import DatabaseError, DatabaseLockedError, DatabaseUnavailableError, Engine, WorkflowDefinition

Say = Callable[[str], None]


class Waiting(WorkflowDefinition[None, str]):
    async def execute(self) -> str:
        payload: str = await self.wait("wait", "go", str)
        return payload


class Way(NamedTuple):
    """How the second engine names the file; *is_same* tells whether the name leads to one lock and one log."""

    name: str
    is_same: bool = True


WAYS = {
    "the same path": Way("real/work.db"),
    "a relative path": Way("../real/work.db"),
    "a link to the file": Way("link.db"),
    "a link to the folder": Way("linked/work.db"),
    "a hard link": Way("hard.db", is_same=False),
}
SITUATIONS = ("beside a running engine", "after a crash", "in a forked child", "sending beside a running engine")
PATIENCE_S = 10
ORDERS = ("it sends first", "the owner writes first")


def sweep(budget: Budget) -> list[Row]:
    row = Row("two engines on one file")
    points = [(way, situation) for way in WAYS for situation in SITUATIONS]
    for way, situation in budget.sample(points, row.fault):
        with folder() as place:
            lost, others = second_engine(place, way, situation)
        row.cells[Cell("open", way, situation, "first run")] += 1
        row.record(f"{way}, {situation}", lost, [], others)
    deleted = Row("log or index deleted, another sends")
    choices = [(file, order) for file in ("-wal", "-shm") for order in ORDERS]
    for file, order in budget.sample(choices, deleted.fault):
        with folder() as place:
            lost, others = sent_after_deletion(place, file, order)
        deleted.cells[Cell(f"delete {file}", "while it runs", order, "first run")] += 1
        deleted.record(f"{file} deleted, {order}", lost, [], others)
    return [row, deleted]


def sent_after_deletion(place: Path, file: str, order: str) -> tuple[list[str], list[str]]:
    """What was acknowledged to the owner or to a sender after a file was deleted under them, and is not there.

    And whether the sender, which asks again while it is refused, was heard in the end.
    """
    path = place / "work.db"
    first = Process(lambda process: _first(process, path, ""))
    assert first.hear() == "open"
    path.with_name(f"work.db{file}").unlink()
    said = [first.ask("create between")] if order == ORDERS[1] else []
    said += Process(lambda process: _second(process.say, str(path), False)).hear().split("|")
    said.append(first.ask("create after"))
    first.end()
    return _lost(said, path), [] if "acknowledged second" in said else [f"the sender is never heard: {said}"]


def second_engine(place: Path, way: str, situation: str) -> tuple[list[str], list[str]]:
    """What was lost, and what else was broken, when a second engine came."""
    real = place / "real" / "work.db"
    real.parent.mkdir()
    (place / "elsewhere").mkdir()
    (place / "link.db").symlink_to(real)
    (place / "linked").symlink_to(real.parent)
    second = "../real/work.db" if way == "a relative path" else str(place / WAYS[way].name)
    os.chdir(place / "elsewhere")
    first = Process(lambda process: _first(process, real, second))
    assert first.hear() == "open"
    if way == "a hard link":
        (place / "hard.db").hardlink_to(real)
    said: list[str] = []
    if situation == "in a forked child":
        said += first.ask("fork").split("|")
        said += first.ask("create after").split("|")
    elif situation == "after a crash":
        os.kill(first.child, signal.SIGKILL)
        first.end()
        said += Process(lambda process: _second(process.say, second, True)).hear().split("|")
    else:
        executes = not situation.startswith("sending")
        said += Process(lambda process: _second(process.say, second, executes)).hear().split("|")
        said += first.ask("create after").split("|")
    if situation != "after a crash":
        first.end()
    (place / "hard.db").unlink(missing_ok=True)
    return _lost(said, real), _wrong(way, situation, said)


def _lost(said: list[str], path: Path) -> list[str]:
    found = Process(lambda process: _look(process.say, path)).hear().split("|")
    return [
        f"acknowledged {line.split()[1]} is not there"
        for line in ["acknowledged before", *said]
        if line.startswith("acknowledged") and line.split()[1] not in found
    ]


def _wrong(way: str, situation: str, said: list[str]) -> list[str]:
    is_split = situation != "after a crash" and "executes" in said
    is_blind = "does not see before" in said
    is_refused = any(line.startswith("refused") for line in said)
    is_wanted = WAYS[way].is_same and situation in ("after a crash", "sending beside a running engine")
    locked = WAYS[way].is_same and not is_wanted
    return [
        problem
        for problem, is_so in {
            "two engines execute": is_split,
            "the second does not see what is there": is_blind,
            f"refused: {said}": is_refused and is_wanted,
            f"not told who has the file: {said}": locked and "refused DatabaseLockedError" not in said,
            f"failed: {said}": any(line.startswith("error") for line in said),
        }.items()
        if is_so
    ]


class Process:
    """A forked process that says lines and may be asked; it ends when it hears no more."""

    def __init__(self, work: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        hearing, saying = os.pipe()
        answering, asking = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(hearing)
            os.close(asking)
            self._out, self._in = saying, answering
            logging.disable()
            try:
                asyncio.run(work(self))
            finally:
                os._exit(0)
        os.close(saying)
        os.close(answering)
        self._out, self._in = asking, hearing

    def say(self, line: str) -> None:
        os.write(self._out, f"{line}\n".encode())

    def hear(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            got = os.read(self._in, 1)
            if not got:
                return "ended"
            line += got
        return line.decode().strip()

    def ask(self, order: str) -> str:
        self.say(order)
        return self.hear()

    def end(self) -> None:
        os.close(self._out)
        os.close(self._in)
        os.waitpid(self.child, 0)


async def _first(process: Process, path: Path, second: str) -> None:
    async with Engine(path, [Waiting]) as engine:
        await engine.get(Waiting, "before").create()
        process.say("open")
        while True:
            order = await asyncio.to_thread(process.hear)
            if order.startswith("create"):
                await engine.get(Waiting, order.split()[1]).create()
                process.say(f"acknowledged {order.split()[1]}")
            elif order == "fork":
                process.say(_in_forked_child(second))
            else:
                return


def _in_forked_child(path: str) -> str:
    """What an engine says that is opened in a child of a process with an open engine."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A thread of its own: this one has a running loop, as far as it knows.
        answers: list[str] = []
        thread = threading.Thread(target=lambda: asyncio.run(_second(answers.append, path, True)))
        thread.start()
        thread.join()
        os.write(writing, answers[0].encode())
        os._exit(0)
    os.close(writing)
    answer = b"".join(iter(lambda: os.read(reading, 4096), b"")).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return answer


async def _second(say: Say, path: str, executes: bool) -> None:
    said: list[str] = []

    async def use() -> None:
        async with Engine(path, [Waiting], execute=executes) as engine:
            said.append("executes" if executes else "sends")
            if await engine.get(Waiting, "before").status() == "pending":
                said.append("does not see before")
            await engine.get(Waiting, "second").create()
            said.append("acknowledged second")

    try:
        async with asyncio.timeout(PATIENCE_S):
            await (use() if executes else _insist(use))
    except DatabaseLockedError:
        said.append("refused DatabaseLockedError")
    except DatabaseError as error:
        said.append(f"refused {type(error).__name__}")
    except Exception as error:
        said.append(f"error {type(error).__name__}")
    say("|".join(said))


async def _insist(ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
    while True:
        try:
            await ask()
        except DatabaseUnavailableError:
            await tick()
        else:
            return


async def _look(say: Say, path: Path) -> None:
    async with Engine(path, [Waiting], execute=False) as engine:
        statuses = [(row.id, row.status) for row in await engine.list()]
    say("|".join(name for name, _ in statuses))


if __name__ == "__main__":
    main(sweep)
