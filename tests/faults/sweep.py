"""Kill a process at every commit, at every statement within one, and at every gate; then start it again.

Run as a script: it forks one child per point, from a process without threads, so that a point costs milliseconds. It
prints one JSON object: how many points of each kind were reached, and every broken promise. Its argument says what is
swept: the ``first`` run, or the ``recovery`` from a kill in the middle of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workerflow import (
    Engine,
    RetryPolicy,
    Settings,
    WorkflowCompletionEvent,
    WorkflowDefinition,
    WorkflowRuntime,
    current_attempt,
)
from workerflow.store.sqlite.store import SqliteStore
from workerflow.worker.committer import Committer

EXPECTED = "hold+inner+plain+retried+payload"
# A kill, other than a power loss, takes nothing from the system's cache: waiting for the disk shows nothing here.
SETTINGS = Settings(synchronous="NORMAL")
LOG = Path()
DELIVERED = asyncio.Event()


def log(line: str) -> None:
    """One line, whole or not at all, durable against a SIGKILL."""
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def started() -> None:
    attempt = current_attempt()
    log(f"start {attempt.step_id}")


async def hold() -> str:
    started()
    return "hold"


async def inner() -> str:
    started()
    return "inner"


def plain() -> str:
    started()
    return "plain"


async def flaky() -> str:
    started()
    if current_attempt().number == 1:
        raise ValueError("the first try fails")
    return "retried"


class SweepDefinition(WorkflowDefinition[str, str]):
    async def execute(self) -> str:
        quick = RetryPolicy(initial=0.005)
        first = await self.run("hold", hold, retry=quick)

        async def outer() -> str:
            started()
            return await self.run("inner", inner, retry=quick)

        parts = [
            first,
            *await asyncio.gather(self.run("outer", outer, retry=quick), self.run("plain", plain, retry=quick)),
        ]
        await self.sleep("sleep", 0.005)
        parts.append(await self.run("flaky", flaky, retry=quick))
        try:
            await self.wait("never", "never", timeout=0.005)
        except TimeoutError:
            parts.append(await self.wait("go", "go", str))
        return "+".join(parts)


class Sweep(WorkflowRuntime[str, str]):
    definition = SweepDefinition

    async def completion(self, event: WorkflowCompletionEvent) -> None:
        log(f"completion {event.id} {event.status}")
        DELIVERED.set()

    def on_status_change(self, status: str) -> None:
        log(f"status {status}")


async def drive(path: Path) -> None:
    async with Engine(path, [Sweep], settings=SETTINGS) as engine:
        handle = engine.get(Sweep, "s-1")
        await handle.create("input")
        log("acknowledged create")
        await handle.send("go", "payload", id="e-1")
        log("acknowledged send")
        log(f"result {await handle.result(timeout=20)}")
        if not any(line.startswith("completion") for line in lines()):
            async with asyncio.timeout(20):
                await DELIVERED.wait()


class Point:
    """Counts the places that a process passes, and kills it at one of them. None only counts."""

    def __init__(self, kind: str | None, number: int) -> None:
        self.kind = kind
        self.number = number
        self.counts: Counter[str] = Counter()

    def passes(self, kind: str, what: str, primitive: str = "") -> None:
        """A place of this kind: *what* is the statement or gate, *primitive* the step that it is about."""
        self.counts[kind] += 1
        if kind == self.kind and self.counts[kind] == self.number:
            log(f"killed {what}|{kind.split()[0]}|{primitive or 'instance'}")
            die()

    def install(self) -> None:
        commit, open_gates, write = SqliteStore.commit, Committer._open, SqliteStore._write_batch

        def counting_commit(store: SqliteStore, batch: Any, *, busy_timeout_ms: int) -> None:
            step_ids = sorted({row[1] for row in (*batch.rows.step_insert, *batch.rows.attempt_end)})
            self.passes("before commit", "commit", "+".join(step_ids))
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            self.passes("after commit", "commit", "+".join(step_ids))

        def counting_write(store: SqliteStore, raw: Any, batch: Any) -> Any:
            raw.exec_trace = self._traced
            try:
                return write(store, raw, batch)
            finally:
                raw.exec_trace = None

        def counting_open(committer: Committer, gates: Any, refused: Any) -> None:
            counted = [gate._replace(effect=self._around(gate.effect)) for gate in gates]
            open_gates(committer, counted, refused)

        for owner, name, counting in (
            (SqliteStore, "commit", counting_commit),
            (SqliteStore, "_write_batch", counting_write),
            (Committer, "_open", counting_open),
        ):
            setattr(owner, name, counting)

    def _traced(self, cursor: Any, statement: str, values: Any) -> bool:
        words = re.search(r"^(insert into|update|savepoint|release)\s+(\w+)", statement, re.MULTILINE | re.IGNORECASE)
        step_id = values[1] if words is not None and words[2] in ("steps", "attempts") and values else ""
        self.passes("in commit", "look for mail" if words is None else f"{words[1]} {words[2]}".lower(), step_id)
        return True

    def _around(self, effect: Callable[..., object]) -> Callable[..., object]:
        name = getattr(effect, "__name__", "effect").strip("_")

        def counted(*arguments: Any) -> None:
            step_ids = [argument.step_id for argument in arguments if hasattr(argument, "step_id")]
            self.passes(f"before gate {name}", f"gate {name}", "+".join(step_ids))
            effect(*arguments)
            self.passes(f"after gate {name}", f"gate {name}", "+".join(step_ids))

        return counted


UNDISTURBED = Point(None, 0)


def run_child(folder: Path, point: Point) -> bool:
    """Drive the workflow in a child; True if it ended by itself. Writes what it counted beside the database."""
    child = os.fork()
    if child == 0:
        point.install()
        try:
            asyncio.run(drive(folder / "sweep.db"))
        except BaseException as error:
            log(f"error {error!r}")
            os._exit(1)
        (folder / "counts.json").write_text(json.dumps(point.counts))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


def recorded(path: Path) -> set[str]:
    """The run steps whose success is durable."""
    import apsw  # only here: the child must open its own connections

    if not path.exists():
        return set()
    connection = apsw.Connection(str(path))
    try:
        return {row[0] for row in connection.execute("select step_id from attempts where state = 'succeeded'")}
    except apsw.SQLError:
        return set()  # Killed before the schema was there.
    finally:
        connection.close()


def run_to(folder: Path, point: Point) -> tuple[bool, list[str]]:
    """One process up to this point; whether it was killed there, and what promise it broke."""
    global LOG
    LOG = folder / "log"
    before, seen = recorded(folder / "sweep.db"), len(lines())
    was_killed = not run_child(folder, point)
    return was_killed, [f"{line} again" for line in lines()[seen:] if line.removeprefix("start ") in before]


def lines() -> list[str]:
    return LOG.read_text().splitlines() if LOG.exists() else []


def judge(kills: int) -> list[str]:
    count = Counter(lines())
    problems = [line for line in count if line.startswith("error")]
    if not count[f"result {EXPECTED}"]:
        problems.append(f"no result: {lines()[-3:]}")
    for step, tries in {"hold": 1, "outer": 1, "inner": 1, "plain": 1, "flaky": 2}.items():
        # Killed between the durable start of an attempt and its callback, the callback has not begun.
        if not 1 <= count[f"start {step}"] <= tries + kills:
            problems.append(f"{step} started {count[f'start {step}']} times with {kills} kills")
    delivered = [line for line in count if line.startswith("completion")]
    if len(delivered) != 1 or "completed" not in delivered[0]:
        problems.append(f"completions: {delivered}")
    return problems


def sweep(what: str) -> dict[str, Any]:
    points: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    problems: list[str] = []

    def attempt(origin: Path, point: Point, kills: int) -> dict[str, int]:
        """Go on from there: one process up to the point, then an undisturbed one; gives what that one passed."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(shutil.copytree(origin, Path(name) / "copy", ignore=shutil.ignore_patterns("*-hint")))
            was_killed, found = run_to(folder, point)
            if was_killed:
                # It may have ended before: how much goes into one commit depends on time.
                points[str(point.kind)] += 1
                cells[
                    next(line.removeprefix("killed ") for line in reversed(lines()) if line.startswith("killed "))
                ] += 1
                found += run_to(folder, UNDISTURBED)[1]
            found += judge(kills + was_killed)
            problems.extend(f"{what}, {point.kind} {point.number}: {problem}" for problem in found)
            return json.loads((folder / "counts.json").read_text()) if not found else {}

    with tempfile.TemporaryDirectory() as name:
        origin, kills = Path(name), 0
        if what == "recovery":
            # With callbacks in flight, a pending sleep, and an event in the queue it has the most to get wrong.
            kills, found = run_to(origin, Point("after gate begin", 3))
            problems += found
        for kind, count in attempt(origin, UNDISTURBED, kills).items():
            for number in range(1, count + 1):
                attempt(origin, Point(kind, number), kills)
    return {"points": dict(sorted(points.items())), "cells": dict(sorted(cells.items())), "problems": problems}


if __name__ == "__main__":
    json.dump(sweep(sys.argv[1]), sys.stdout, indent=1)
