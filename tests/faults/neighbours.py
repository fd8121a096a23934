"""Another process at the same file: it holds the write lock, or a snapshot, for a while at any moment.

The lock is taken right before the engine opens, commits or sends, and given back by a timer of the engine's own event
loop: an engine that blocks its loop while it waits would wait for ever.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

from tests.faults.companion import Companion
from tests.faults.disk import Disk, Operation, primitives_of_call
from tests.faults.judgement import damage, judge
from tests.faults.table import Budget, Cell, Row, main
from tests.faults.trial import EFFECTS, TRIES, Ending, folder, least, live
from tests.faults.workload import LOG
from workerflow.store.sqlite.store import SqliteStore

MOMENTS = ("open", "begin_worker", "commit", "send")
HOLDS_S = (0.02, 0.2, 1.3)
"""The last is longer than one try of the engine waits."""
HELD_UP_MAX_S = 0.9
"""A busy machine takes its time, but an engine that waits on its loop takes a second."""
HOLDS = {"lock": "unlock", "read": "unread"}


class Hold(NamedTuple):
    """What the neighbour does at the *number*-th moment of a kind, and for how long."""

    order: str
    moment: str
    number: int
    seconds: float


def sweep(budget: Budget) -> list[Row]:
    return [_sweep("foreign write lock", "lock", budget), _sweep("foreign snapshot", "read", budget)]


def _sweep(fault: str, order: str, budget: Budget) -> Row:
    row = Row(fault)
    counts = least(lambda: _life(Hold(order, "", 0, 0.0), budget.mode)[0])
    points = [
        Hold(order, moment, number, seconds)
        for moment in MOMENTS
        for number in range(1, counts[moment] + 1)
        for seconds in HOLDS_S
    ]
    for point in budget.sample(points, fault):
        for _ in range(TRIES):
            ending, lines, damages = _life(point, budget.mode)
            if ending.reached is not None:
                break
        else:
            row.miss(f"{point}", is_past_end=ending.operations[point.moment] < point.number)
            continue
        verdict = judge(lines, 0, budget.mode)
        row.longest_recovery_s = max(row.longest_recovery_s, ending.recovery_s)
        row.cells.update(
            Cell(f"{order} at {point.moment}", f"for {point.seconds} s", primitive, "first run")
            for primitive in ending.reached.primitives
        )
        held_up_s = ending.figures.get("loop held up for s", 0.0)
        row.measured["loop held up, at most for s"] = max(row.measured.get("loop held up, at most for s", 0), held_up_s)
        blocked = [f"the loop was held up for {held_up_s:.2f} s"] if held_up_s > HELD_UP_MAX_S else []
        refusals = [line for line in lines if line.startswith("refused") and not line.startswith("refused open")]
        row.record(f"{point}", verdict.lost, verdict.duplicates, [*verdict.others, *blocked, *refusals, *damages])
    return row


def _life(hold: Hold, mode: str) -> tuple[Ending, list[str], list[str]]:
    with folder() as place:
        companion = Companion(place / "work.db")
        try:
            ending = live(place, mode=mode, prepare=partial(_meet, companion, hold))
        finally:
            companion.close()
        return ending, LOG.lines(), damage(place / "work.db")


def _meet(companion: Companion, hold: Hold, disk: Disk, ending: Ending) -> None:
    disk.is_armed = False
    loops: list[asyncio.AbstractEventLoop] = []

    def unhold(due_s: float) -> None:
        ending.figures["loop held up for s"] = EFFECTS.monotonic_s() - due_s
        companion.do(HOLDS[hold.order])
        disk.on_healed()

    def meeting(name: str) -> None:
        original = getattr(SqliteStore, name)

        def met(store: SqliteStore, *arguments: Any, **options: Any) -> Any:
            if not loops:  # The first is always the opening, on the loop.
                loops.append(asyncio.get_running_loop())
            disk.counts[name] += 1
            if name == hold.moment and disk.counts[name] == hold.number:
                answer = companion.do(hold.order)
                assert answer == "done", answer
                disk.on_reached(Operation(hold.order, "main", primitives_of_call(name, arguments)))
                due_s = EFFECTS.monotonic_s() + hold.seconds
                loops[0].call_soon_threadsafe(loops[0].call_later, hold.seconds, unhold, due_s)
            return original(store, *arguments, **options)

        setattr(SqliteStore, name, met)

    for name in MOMENTS:
        meeting(name)


if __name__ == "__main__":
    main(sweep)
