"""SIGKILL before and after every commit and gate, and at every statement within a commit; then start again.

It forks one child per point, from a process without threads, so that a point costs milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.judgement import name_of, recorded, repeated
from tests.faults.table import Budget, Filling, Row, main
from tests.faults.workload import DELIVERED, LOG, flaky, hold, inner, plain, started
from workerflow import Engine, RetryPolicy, Settings, WorkflowCompletionEvent, WorkflowDefinition, WorkflowRuntime
from workerflow.store.sqlite.store import SqliteStore
from workerflow.worker.committer import Committer

EXPECTED = "hold+inner+plain+flaky+payload"
# A kill, other than a power loss, takes nothing from the system's cache: waiting for the disk shows nothing here.
SETTINGS = Settings(synchronous="NORMAL")


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
        LOG.write(f"completion {event.id} {event.status}")
        DELIVERED.set()

    def on_status_change(self, status: str) -> None:
        LOG.write(f"status {status}")


async def drive(path: Path) -> None:
    async with Engine(path, [Sweep], settings=SETTINGS) as engine:
        handle = engine.get(Sweep, "s-1")
        await handle.create("input")
        LOG.write("acknowledged create")
        await handle.send("go", "payload", id="e-1")
        LOG.write("acknowledged send")
        LOG.write(f"result {await handle.result(timeout=20)}")
        if not any(line.startswith("completion") for line in LOG.lines()):
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
            LOG.write(f"killed {what}|{kind.split()[0]}|{primitive or 'instance'}")
            os.kill(os.getpid(), signal.SIGKILL)

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
            LOG.write(f"error {error!r}")
            os._exit(1)
        (folder / "counts.json").write_text(json.dumps(point.counts))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


def run_to(folder: Path, point: Point) -> tuple[bool, list[str]]:
    """One process up to this point; whether it was killed there, and what promise it broke."""
    LOG.path = folder / "log"
    before, seen = recorded(folder / "sweep.db"), len(LOG.lines())
    was_killed = not run_child(folder, point)
    return was_killed, repeated(LOG.lines(), seen, before)


def judge(kills: int) -> tuple[list[str], list[str], list[str]]:
    """What was lost, what was done too often, and what else went wrong."""
    count = Counter(LOG.lines())
    starts = Counter(name_of(line) for line in LOG.lines() if line.startswith("start "))
    lost = [] if count[f"result {EXPECTED}"] else [f"no result: {LOG.lines()[-3:]}"]
    twice = []
    for step, tries in {"hold": 1, "outer": 1, "inner": 1, "plain": 1, "flaky": 2}.items():
        # Killed between the durable start of an attempt and its callback, the callback has not begun.
        if not 1 <= starts[step] <= tries + kills:
            twice.append(f"{step} started {starts[step]} times with {kills} kills")
    delivered = [line for line in count if line.startswith("completion")]
    if len(delivered) != 1 or "completed" not in delivered[0]:
        lost.append(f"completions: {delivered}")
    return lost, twice, [line for line in count if line.startswith("error")]


def sweep(budget: Budget) -> list[Row]:
    """Every point, whatever the budget says: they depend on each other's number."""
    return [_row("first run"), _row("recovery")]


def _row(run: str) -> Row:
    row = Row(f"SIGKILL at a commit or gate, {run}")
    filling = Filling(row, run)
    with tempfile.TemporaryDirectory() as name:
        origin, kills = Path(name), 0
        if run == "recovery":
            # With callbacks in flight, a pending sleep, and an event in the queue it has the most to get wrong.
            was_killed, row.problems = run_to(origin, Point("after gate begin", 3))
            kills = 1
            assert was_killed
        for kind, count in _strike(origin, UNDISTURBED, kills, row, filling).items():
            for number in range(1, count + 1):
                _strike(origin, Point(kind, number), kills, row, filling)

        def strike(operation: str, place: str, number: int) -> None:
            _strike(origin, Point(f"{place} {operation}", number), kills, row, filling)

        filling.fill(strike)
    return row


def _strike(origin: Path, point: Point, kills: int, row: Row, filling: Filling) -> dict[str, int]:
    """Go on from there: one process up to the point, then an undisturbed one; gives what that one passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(origin, Path(name) / "copy", ignore=shutil.ignore_patterns("*-hint")))
        was_killed, repeats = run_to(folder, point)
        if was_killed:
            # It may have ended before: how much goes into one commit depends on time.
            killed = next(line.removeprefix("killed ") for line in reversed(LOG.lines()) if line.startswith("killed "))
            operation, place, primitives = killed.split("|")
            for primitive in primitives.split("+"):
                filling.note(operation, place, primitive, point.number)
            repeats += run_to(folder, UNDISTURBED)[1]
        lost, twice, others = judge(kills + was_killed)
        if was_killed:
            row.record(f"{point.kind} {point.number}", lost, [*twice, *repeats], others)
        else:
            row.problems += [*lost, *twice, *repeats, *others]
        counts = folder / "counts.json"
        return json.loads(counts.read_text()) if counts.exists() else {}


if __name__ == "__main__":
    main(sweep)
