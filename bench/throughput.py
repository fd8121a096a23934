"""Steps per second of the engine on SQLite, beside the raw limit of the same machine in the same run.

The raw limit is the very rows that the engine wrote, written again to a new file with the same schema, triggers and
pragmas: for many workflows in one transaction of a thousand instances, for one workflow with one commit per batch.

    python -m bench.throughput [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workerflow import Engine, WorkflowDefinition
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore, _write_rows


async def step(number: int) -> int:
    """The cheapest callback there is."""
    return number


class Steps(WorkflowDefinition[int, int]):
    """As many trivial steps as its input says."""

    async def execute(self) -> int:
        total = 0
        for number in range(self.input):
            total += await self.run(f"step-{number}", step, number)
        return total


@contextmanager
def recording() -> Iterator[list[Batch]]:
    """The batches that are committed meanwhile."""
    batches: list[Batch] = []
    commit = SqliteStore.commit

    def recorded(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)
        batches.append(batch)

    setattr(SqliteStore, "commit", recorded)  # noqa: B010  # a type checker would refuse the assignment
    try:
        yield batches
    finally:
        setattr(SqliteStore, "commit", commit)  # noqa: B010  # the same


async def run_workflows(path: Path, workflows: int, steps: int) -> float:
    """Seconds from the first create to the last result."""
    async with Engine(path, [Steps]) as engine:
        handles = [engine.get(Steps, f"s-{number}") for number in range(workflows)]
        began = time.perf_counter()
        await asyncio.gather(*(handle.create(steps) for handle in handles))
        await asyncio.gather(*(handle.result() for handle in handles))
        return time.perf_counter() - began


def write_again(path: Path, batches: list[Batch], *, at_once: bool) -> float:
    """Seconds to write recorded batches, in one transaction or in one each."""
    store = SqliteStore(path, synchronous="FULL")
    store.open(execute=True, now_ms=0)
    raw = store._write_connection().raw
    began = time.perf_counter()
    for number, batch in enumerate(batches):
        if number == 0 or not at_once:
            raw.execute("BEGIN IMMEDIATE")
        _write_rows(raw, batch.rows)
        if not at_once or number == len(batches) - 1:
            raw.execute("COMMIT")
    took = time.perf_counter() - began
    store.close()
    return took


def measure(workflows: int, steps: int, *, at_once: bool) -> tuple[float, float]:
    """Steps per second of the engine, and of the raw limit."""
    with tempfile.TemporaryDirectory() as folder:
        engine_s = asyncio.run(run_workflows(Path(folder) / "engine.db", workflows, steps))
        with recording() as batches:
            asyncio.run(run_workflows(Path(folder) / "recorded.db", workflows, steps))
        raw_s = write_again(Path(folder) / "raw.db", batches, at_once=at_once)
        return workflows * steps / engine_s, workflows * steps / raw_s


def report(title: str, rounds: int, workflows: int, steps: int, *, at_once: bool) -> None:
    """Print the medians of several rounds."""
    figures = [measure(workflows, steps, at_once=at_once) for _ in range(rounds)]
    engine = statistics.median(figure[0] for figure in figures)
    raw = statistics.median(figure[1] for figure in figures)
    ratio = statistics.median(figure[0] / figure[1] for figure in figures)
    print(f"{title:32} {engine:9,.0f} steps/s   raw {raw:9,.0f} steps/s   ratio {ratio:.2f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"medians of {rounds} rounds; load of the machine before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    report("1,000 workflows x 10 steps", rounds, 1000, 10, at_once=True)
    report("1 workflow x 1,000 steps", rounds, 1, 1000, at_once=False)
    report("1 workflow x 100 steps", rounds, 1, 100, at_once=False)


if __name__ == "__main__":
    main()
