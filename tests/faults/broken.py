"""A disk that fails: an input/output error once and for a while, on writes, syncs and reads, and no space left.

Nothing is interrupted, so every callback must run exactly as often as without the fault. What is acknowledged, and
every attempt that begins, must be durable at that moment: the power is cut there, and what a failed sync should have
made durable is taken to be gone for good.
"""

from __future__ import annotations

import threading
from functools import partial

import apsw

from tests.faults.companion import Companion
from tests.faults.disk import Disk, Strike
from tests.faults.judgement import damage, judge
from tests.faults.power import unproven
from tests.faults.table import Budget, Cell, Row, main
from tests.faults.trial import TRIES, Ending, folder, least, live
from tests.faults.workload import LOG

WHILE = 4
"""Operations that fail in a row: as many tries of the engine, with longer and longer pauses between them."""
READER_S = 0.3
LONG = 9
"""So many that the pause has become as long as it gets."""

ERRORS = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "read": apsw.SQLITE_IOERR_READ,
}


def sweep(budget: Budget) -> list[Row]:
    counts = least(lambda: _undisturbed(budget.mode))
    opened = least(lambda: _undisturbed(budget.mode, is_armed_when_open=True))
    opening = Strike(("sync",), max(1, counts["sync"] - opened["sync"]), "before", ERRORS["sync"], WHILE)
    counts["read"] = opened["read"]  # One that fails in the opening refuses that, and nothing else.
    rows = [_sweep("EIO while opening, sync", opening, budget)]
    for kind, error in ERRORS.items():
        rows.append(_sweep(f"EIO once, {kind}", Strike((kind,), counts[kind], "before", error), budget))
        rows.append(
            _sweep(f"EIO for {WHILE} operations, {kind}", Strike((kind,), counts[kind], "before", error, WHILE), budget)
        )
    full = Strike(("write",), counts["write"], "middle", apsw.SQLITE_FULL, WHILE)
    rows.append(_sweep(f"no space for {WHILE} writes", full, budget))
    sync = Strike(("sync",), opened["sync"], "before", ERRORS["sync"])
    rows.append(_sweep("EIO once, sync, beside a foreign reader", sync, budget, has_reader=True))
    if budget.points is None:
        few = Budget(3, budget.seed, budget.mode)
        rows.append(_sweep(f"no space for {LONG} writes", full._replace(times=LONG), few))
    return rows


def _undisturbed(mode: str, *, is_armed_when_open: bool = False) -> Ending:
    with folder() as place:
        return live(place, mode=mode, is_armed_when_open=is_armed_when_open)


def _sweep(fault: str, last: Strike, budget: Budget, *, has_reader: bool = False) -> Row:
    """The fault at each operation up to the last."""
    row = Row(fault)
    is_torn = last.kinds == ("write",) and last.times == 1
    points = [
        last._replace(number=number, place=place)
        for number in range(1, last.number + 1)
        for place in (("before", "middle") if is_torn else (last.place,))
    ]
    for point in budget.sample(points, fault):
        for _ in range(TRIES):
            ending = _fail(point, row, budget.mode, has_reader)
            if ending.reached is not None:
                break
        else:
            row.miss(f"{point}", is_past_end=not ending.has_come_to(point))
    return row


def _fail(point: Strike, row: Row, mode: str, has_reader: bool) -> Ending:
    with folder() as place:
        companion = Companion(place / "work.db") if has_reader else None
        prepare = (lambda disk, ending: None) if companion is None else partial(_read_beside, companion)
        try:
            ending = live(
                place,
                point,
                mode=mode,
                is_armed_when_open=has_reader or point.kinds == ("read",),
                keeps_history=True,
                prepare=prepare,
            )
        finally:
            if companion is not None:
                companion.close()
        if ending.reached is None:
            return ending
        verdict = judge(LOG.lines(), 0, mode)
        lost = [*verdict.lost, *unproven(ending.history, {})]
        row.longest_recovery_s = max(row.longest_recovery_s, ending.recovery_s)
        row.cells.update(
            Cell(ending.reached.name, point.place, primitive, "first run") for primitive in ending.reached.primitives
        )
        row.record(
            f"{point.place} {point.kinds[0]} {point.number}",
            lost,
            verdict.duplicates,
            [*verdict.others, *damage(place / "work.db")],
        )
    return ending


def _read_beside(companion: Companion, disk: Disk, ending: Ending) -> None:
    """Hold a snapshot from just before the fault until a while after it."""

    def read() -> None:
        # While the last connection closes, no reader can come.
        if companion.do("read") == "done":
            threading.Timer(READER_S, companion.do, ["unread"]).start()

    disk.before_reached = read


if __name__ == "__main__":
    main(sweep)
