"""Kill a process at every commit, at every statement within one, and at every gate; then start it again.

Run as a script: it forks one child per point, from a process without threads, so that a point costs milliseconds. It
prints one JSON object: how many points of each kind were reached, and every broken promise.
"""

from __future__ import annotations

import asyncio
import json
import os
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
    WorkflowCompletionEvent,
    WorkflowDefinition,
    WorkflowRuntime,
    current_attempt,
)
from workerflow.store.sqlite.store import SqliteStore
from workerflow.worker.committer import Committer

EXPECTED = "hold+inner+plain+retried+payload"
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
    async with Engine(path, [Sweep]) as engine:
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

    def passes(self, kind: str) -> None:
        self.counts[kind] += 1
        if kind == self.kind and self.counts[kind] == self.number:
            die()

    def install(self) -> None:
        commit, open_gates, write = SqliteStore.commit, Committer._open, SqliteStore._write_batch

        def counting_commit(store: SqliteStore, batch: Any, *, busy_timeout_ms: int) -> None:
            self.passes("before commit")
            commit(store, batch, busy_timeout_ms=busy_timeout_ms)
            self.passes("after commit")

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

    def _traced(self, *_: Any) -> bool:
        self.passes("in commit")
        return True

    def _around(self, effect: Callable[..., object]) -> Callable[..., object]:
        name = getattr(effect, "__name__", "effect").strip("_")

        def counted(*arguments: Any) -> None:
            self.passes(f"before gate {name}")
            effect(*arguments)
            self.passes(f"after gate {name}")

        return counted


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


def run_until_done(folder: Path, points: list[Point]) -> list[str]:
    """One process per point, then undisturbed ones until the workflow has ended; what promise was broken."""
    global LOG
    LOG = folder / "log"
    problems = []
    kills = 0
    for point in [*points, Point(None, 0)]:
        before = recorded(folder / "sweep.db")
        seen = len(lines())
        if not run_child(folder, point):
            kills += 1
        problems += [f"{line} again" for line in lines()[seen:] if line.removeprefix("start ") in before]
    if kills < len(points):
        problems.append(f"only {kills} of {len(points)} kills happened")
    return problems + judge(kills)


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


def sweep() -> dict[str, Any]:
    points: Counter[str] = Counter()
    problems: list[str] = []

    def attempt(killed: list[tuple[str, int]]) -> dict[str, int]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = run_until_done(folder, [Point(kind, number) for kind, number in killed])
            problems.extend(f"{killed}: {problem}" for problem in found)
            if killed:
                points[f"{killed[-1][0]} ({'recovery' if len(killed) > 1 else 'first run'})"] += 1
            return json.loads((folder / "counts.json").read_text()) if (folder / "counts.json").exists() else {}

    first = attempt([])
    for kind, count in first.items():
        for number in range(1, count + 1):
            attempt([(kind, number)])
    # A recovery with callbacks in flight, a pending sleep, and an event in the queue has the most to get wrong.
    opening = ("after gate begin", 3)
    recovery = attempt([opening])
    for kind, count in recovery.items():
        for number in range(1, count + 1):
            attempt([opening, (kind, number)])
    return {"points": dict(sorted(points.items())), "problems": problems}


if __name__ == "__main__":
    json.dump(sweep(), sys.stdout, indent=1)
