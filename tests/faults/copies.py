"""The files copied, deleted or replaced: while the engine runs, after a crash, and when it is stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tests.faults.companion import Companion
from tests.faults.disk import Disk, Operation, Strike
from tests.faults.judgement import damage, judge, recorded, repeated
from tests.faults.table import Budget, Cell, Row, main
from tests.faults.trial import Ending, folder, least, live, reaching
from tests.faults.workload import LOG
from workerflow.store.sqlite.store import SqliteStore

FILES = {"main": "work.db", "wal": "work.db-wal", "shm": "work.db-shm"}
PAGES = 12
"""Of the log between two checkpoints, so that copies fall before, into and after some."""


class Copy(NamedTuple):
    """Each of the files is copied right before the operation of this number."""

    main: int
    wal: int
    shm: int


class Deletion(NamedTuple):
    """A file is deleted right before an operation of the running engine, which is killed some operations later."""

    file: str
    number: int
    killed_after: int


def sweep(budget: Budget) -> list[Row]:
    return [
        _copies("copied live, in one moment", budget, lambda number, _: Copy(number, number, number)),
        _copies("copied live, one file after the other", budget, _one_after_the_other),
        _after_crash("-shm deleted after a crash", "shm", budget),
        _after_crash("-wal deleted after a crash", "wal", budget),
        _while_running("-shm deleted while it runs", "shm", budget),
        _while_running("-wal deleted while it runs", "wal", budget),
    ]


def _one_after_the_other(number: int, count: int) -> Copy:
    chance = random.Random(number)
    second = number + chance.randrange(1, max(2, count // 3))
    return Copy(number, min(count, second), min(count, second + 1))


def _copies(fault: str, budget: Budget, copy: Callable[[int, int], Copy]) -> Row:
    row = Row(fault)
    count = _writes(budget, pages=PAGES)
    refused = damaged = 0
    is_whole = len(set(copy(1, count))) == 1
    for number in budget.sample(range(1, count + 1), fault):
        point = copy(number, count)
        with folder() as place, folder() as target:
            ending = reaching(lambda: _life(place, target, point, budget.mode), place, target)  # noqa: B023
            if ending.reached is None or not (target / FILES["main"]).exists():
                row.miss(f"{point}", is_past_end=True)
                continue
            final = recorded(place / FILES["main"])
            outcome = _open_copy(target, final, budget.mode, row, point, ending.reached)
            refused += outcome == "refused"
            damaged += outcome == "damaged"
            if is_whole and outcome != "consistent":
                row.problems.append(f"{point}: the copy is {outcome}")
    row.measured |= {"copies refused": refused, "copies damaged": damaged}
    if not is_whole:
        row.measured["copies that lack something"] = row.lost
        row.lost = row.duplicates = 0
        row.problems = [line for line in row.problems if "was not reached" in line]
    return row


def _open_copy(target: Path, final: set[str], mode: str, row: Row, point: Copy, reached: Operation) -> str:
    LOG.path = target / "log"
    row.cells.update(Cell(reached.name, "copied before", primitive, "first run") for primitive in reached.primitives)
    try:
        found = damage(target / FILES["main"])
        stored = recorded(target / FILES["main"])
    except apsw.Error:
        row.points += 1
        return "refused"
    if found:
        row.points += 1
        return "damaged"
    seen = len(LOG.lines())
    ending = live(target, mode=mode)
    verdict = judge(LOG.lines(), 1, mode)
    row.longest_recovery_s = max(row.longest_recovery_s, ending.recovery_s)
    strangers = [f"{name} is not of the original" for name in stored - final]
    row.record(
        f"{point}", verdict.lost, [*verdict.duplicates, *repeated(LOG.lines(), seen, stored)],
        [*verdict.others, *strangers],
    )  # fmt: skip
    return "consistent"


def _life(place: Path, target: Path, point: Copy, mode: str) -> Ending:
    companion = Companion(place / FILES["main"])
    try:
        return live(place, mode=mode, prepare=partial(_copy_at, companion, target, point))
    finally:
        companion.close()


def _copy_at(companion: Companion, target: Path, point: Copy, disk: Disk, ending: Ending) -> None:
    apsw.connection_hooks.append(lambda connection: connection.wal_autocheckpoint(PAGES))
    number = 0

    def before(operation: Operation) -> None:
        nonlocal number
        if operation.kind not in ("write", "sync"):
            return
        number += 1
        for file, moment in zip(FILES, point, strict=True):
            if moment == number:
                companion.do(f"copy {FILES[file]} {target}")
                if file == "main":
                    companion.do(f"copy log {target}")
                    disk.on_reached(operation)

    disk.on_operation = before


def _writes(budget: Budget, pages: int | None = None) -> int:
    def undisturbed() -> Ending:
        with folder() as place, folder() as target:
            return live(place, mode=budget.mode) if pages is None else _life(place, target, Copy(0, 0, 0), budget.mode)

    counts = least(undisturbed)
    return counts["write"] + counts["sync"]


def _after_crash(fault: str, file: str, budget: Budget) -> Row:
    row = Row(fault)
    for number in budget.sample(range(1, _writes(budget) + 1), fault):
        with folder() as place:
            strike = Strike(("write", "sync"), number, "after")
            ending = reaching(lambda: live(place, strike, mode=budget.mode), place)  # noqa: B023
            if not ending.is_killed:
                row.miss(f"{strike}", is_past_end=not ending.has_come_to(strike))
                continue
            what = "deleted after" if (place / FILES[file]).exists() else "not there yet or any more"
            (place / FILES[file]).unlink(missing_ok=True)
            _go_on(place, f"killed after {number}", row, budget.mode, ending.reached, what, file == "shm")
    if file == "wal":
        _only_measured(row)
    return row


def _while_running(fault: str, file: str, budget: Budget) -> Row:
    row = Row(fault)
    count = least(lambda: _undisturbed(file, budget.mode))["beside it"]
    points = [
        Deletion(file, number, later)
        for number in range(1, count + 1)
        for later in (0, 5, 40)
        if number + later <= count
    ]
    for point in budget.sample(points, fault):
        with folder() as place:
            ending = reaching(lambda: _delete(place, point, budget.mode), place)  # noqa: B023
            if not ending.is_killed:
                row.miss(f"{point}", is_past_end=ending.operations["beside it"] < point.number + point.killed_after)
                continue
            what = f"deleted, killed {point.killed_after} later"
            _go_on(place, f"{point}", row, budget.mode, ending.reached, what, file == "shm")
    return row


def _undisturbed(file: str, mode: str) -> Ending:
    with folder() as place:
        return _delete(place, Deletion(file, 10**9, 0), mode)


def _delete(place: Path, point: Deletion, mode: str) -> Ending:
    companion = Companion(place / FILES["main"])
    try:
        return live(place, mode=mode, prepare=partial(_delete_at, companion, place, point))
    finally:
        companion.close()


def _delete_at(companion: Companion, place: Path, point: Deletion, disk: Disk, ending: Ending) -> None:
    """Operations are counted from the moment that the file is there.

    The log says that the file is deleted when the next transaction begins: the one under way goes with the file.
    """
    is_deleted: list[bool] = []
    file = place / FILES[point.file]
    is_there = False

    def before(operation: Operation) -> None:
        nonlocal is_there
        is_there = is_there or file.exists()
        if operation.kind not in ("write", "sync") or not is_there:
            return
        disk.counts["beside it"] += 1
        number = disk.counts["beside it"]
        if number == point.number:
            answer = companion.do(f"delete {file.name}")
            assert answer == "done", answer
            is_deleted.append(True)
            disk.on_reached(operation)
        if number == point.number + point.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def noting(name: str) -> None:
        original = getattr(SqliteStore, name)

        def noted(store: SqliteStore, *arguments: Any, **options: Any) -> Any:
            if is_deleted and not LOG.has("deleted"):
                LOG.write("deleted")
            return original(store, *arguments, **options)

        setattr(SqliteStore, name, noted)

    disk.on_operation = before
    for name in ("commit", "send"):
        noting(name)


def _go_on(
    place: Path, where: str, row: Row, mode: str, reached: Operation | None, what: str, is_all_promised: bool
) -> None:
    """Start again, and judge. If not all is promised, then what was acknowledged after the log says "deleted"."""
    if reached is not None:
        row.cells.update(Cell(reached.name, what, primitive, "first run") for primitive in reached.primitives)
    try:
        stored, seen = recorded(place / FILES["main"]), len(LOG.lines())
        is_damaged = bool(damage(place / FILES["main"]))
    except apsw.CorruptError:
        is_damaged = True
    if is_damaged:  # A checkpoint was under way, and only the log had the other half.
        row.measured["files damaged"] = row.measured.get("files damaged", 0) + 1
        row.record(where, ["the file is damaged"] if is_all_promised else [], [])
        return
    ending = live(place, mode=mode)
    lines = LOG.lines()
    since = 0 if is_all_promised else lines.index("deleted") if "deleted" in lines else seen
    verdict = judge(lines, 1, mode)
    later = judge(lines[since:], 1, mode)
    promised = [line for line in verdict.lost if f"acknowledged {line.split()[1].strip(':')}" in lines[since:seen]]
    row.longest_recovery_s = max(row.longest_recovery_s, ending.recovery_s)
    is_set_back = bool(verdict.lost or verdict.duplicates)
    row.measured["points set back"] = row.measured.get("points set back", 0) + is_set_back
    row.record(
        where, promised, [*later.duplicates, *repeated(lines, seen, stored)],
        [] if is_set_back else [*verdict.others, *damage(place / FILES["main"])],
    )  # fmt: skip


def _only_measured(row: Row) -> None:
    """Nobody can give back what was in a file that is gone."""
    row.lost = row.duplicates = 0
    row.problems = [line for line in row.problems if "was not reached" in line]


if __name__ == "__main__":
    main(sweep)
