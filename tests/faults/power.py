"""Power loss: the history of writes and syncs is replayed up to any point, with what was not synced dropped or torn.

A sync makes durable what was written to its file before, and the folder's entries. Of the rest each write may be there,
or not, or some of its sectors only, in any order. A sync that failed makes nothing durable, now or later: the system
may have marked the pages as clean. So what was written before counts as never to come, unless it is written again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.disk import Note, Operation, Strike
from tests.faults.judgement import damage, is_stored, judge, recorded, repeated
from tests.faults.table import Budget, Cell, Row, main
from tests.faults.trial import copied, folder, live
from tests.faults.workload import LOG

SECTOR = 512
NAMES = {"main": "work.db", "wal": "work.db-wal", "journal": "work.db-journal"}
SUBSETS = 6
"""Random choices per point beside all and nothing."""

Files = dict[str, bytearray]
History = Sequence[Operation | Note]


class Cut(NamedTuple):
    """A power loss after so many entries of the history. *choice* says what of the unsynced is there."""

    after: int
    choice: str
    number: int = 0


class Image:
    """The disk at one point of the history: what is durable, and what is not yet."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.durable: Files = {name: bytearray(content) for name, content in (files or {}).items()}
        self.pending: list[Operation] = []
        self._new: set[str] = set()

    def advance(self, entry: Operation | Note) -> None:
        if isinstance(entry, Note):
            return
        if entry.kind == "sync":
            self._sync(entry)
            return
        if entry.kind == "create":
            self._new.add(entry.file)
        self.pending.append(entry)
        if entry.kind == "delete" and entry.offset:
            self._settle(lambda operation: operation.kind in ("create", "delete"))

    def left(self, keeps: Callable[[Operation], Sequence[tuple[int, bytes]] | None]) -> Files:
        """The files when *keeps* says which parts of each unsynced operation are there; None: nothing of it."""
        files = {name: bytearray(content) for name, content in self.durable.items()}
        for operation in self.pending:
            parts = keeps(operation)
            if parts is not None:
                _apply(files, operation, parts)
        return files

    def _sync(self, entry: Operation) -> None:
        if not entry.is_done:
            self.pending = [
                each for each in self.pending if each.file != entry.file or each.kind in ("create", "delete")
            ]
            return
        # SQLite syncs the folder with a new log or journal, and that makes all its entries durable.
        has_folder = entry.file in self._new
        self._new.discard(entry.file)
        self._settle(
            lambda each: (
                (each.file == entry.file and each.kind != "delete")
                or (has_folder and each.kind in ("create", "delete"))
            )
        )

    def _settle(self, is_settled: Callable[[Operation], bool]) -> None:
        for operation in self.pending:
            if is_settled(operation):
                _apply(self.durable, operation, whole(operation))
        self.pending = [operation for operation in self.pending if not is_settled(operation)]


def whole(operation: Operation) -> Sequence[tuple[int, bytes]]:
    return [(operation.offset, operation.data)]


def torn(operation: Operation, chance: random.Random) -> Sequence[tuple[int, bytes]] | None:
    """Nothing, all, or some sectors of it."""
    luck = chance.random()
    if luck < 0.35:
        return None
    if luck < 0.6 or operation.kind != "write" or len(operation.data) <= SECTOR:
        return whole(operation)
    starts = range(0, len(operation.data), SECTOR)
    return [
        (operation.offset + start, operation.data[start : start + SECTOR]) for start in starts if chance.random() < 0.5
    ]


def _apply(files: Files, operation: Operation, parts: Sequence[tuple[int, bytes]]) -> None:
    if operation.kind == "delete":
        files.pop(operation.file, None)
        return
    if operation.kind == "create":
        files.setdefault(operation.file, bytearray())
        return
    content = files.get(operation.file)
    if content is None:  # Its own entry in the folder is lost.
        return
    if operation.kind == "truncate":
        content[operation.offset :] = bytes(max(0, operation.offset - len(content)))
        return
    for offset, data in parts:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


def cuts(history: History, subsets: int = SUBSETS) -> list[Cut]:
    """Every prefix of the history, with all of the unsynced kept, with nothing, and with random parts of it.

    Where the same files come again, only the last time counts: by then most has been acknowledged.
    """
    found = [Cut(0, "dropped")]
    ends = [n for n in range(1, len(history) + 1) if n == len(history) or isinstance(history[n], Operation)]
    for after in ends:
        following = history[after] if after < len(history) else None
        if following is None or (isinstance(following, Operation) and following.kind in ("sync", "delete")):
            found.append(Cut(after, "dropped"))
        previous = next(entry for entry in reversed(history[:after]) if isinstance(entry, Operation))
        if previous.kind != "sync":
            found += [Cut(after, "kept"), *(Cut(after, "torn", number) for number in range(subsets))]
    return found


def images(history: History, baseline: Mapping[str, bytes], chosen: Sequence[Cut], seed: int) -> Iterator[Files]:
    """The files after each cut; these must be in their order."""
    image = Image(baseline)
    done = 0
    for cut in chosen:
        for entry in history[done : cut.after]:
            image.advance(entry)
        done = cut.after
        if cut.choice == "dropped":
            yield image.left(lambda _: None)
        elif cut.choice == "kept":
            yield image.left(whole)
        else:
            chance = random.Random(f"{seed} {cut}")
            yield image.left(partial(torn, chance=chance))


def unproven(history: History, baseline: Mapping[str, bytes]) -> list[str]:
    """What the outside world saw before it was durable: at each line of the effect log the power is cut."""
    image = Image(baseline)
    wrong = []
    with folder() as place:
        for entry in history:
            image.advance(entry)
            if isinstance(entry, Note):
                for old in place.iterdir():
                    old.unlink()
                put(image.left(lambda _: None), place)
                if not is_stored(place / "work.db", entry.line):
                    wrong.append(f"lost if the power fails now: {entry.line}")
    return wrong


def put(files: Files, place: Path) -> None:
    for name, content in files.items():
        (place / NAMES[name]).write_bytes(content)


def put_log(before: Sequence[str], history: History, place: Path) -> None:
    lines = [*before, *(entry.line for entry in history if isinstance(entry, Note))]
    (place / "log").write_text("".join(f"{line}\n" for line in lines))


def sweep(budget: Budget) -> list[Row]:
    rows = []
    for synchronous in ("FULL", "NORMAL"):
        row = Row(f"power loss, synchronous={synchronous}")
        for run, part in (("first run", 0.0), ("recovery", 0.7)):
            with folder() as state:
                if part:
                    with folder() as place:
                        writes = live(place, mode=budget.mode).operations["write"]
                    live(state, Strike(("write",), round(writes * part), "after"), mode=budget.mode)
                _lose_power(state, run, synchronous, budget, row)
        if synchronous == "NORMAL":
            _only_measured(row)
        rows.append(row)
    return rows


def _lose_power(before: Path, run: str, synchronous: str, budget: Budget, row: Row) -> None:
    baseline = {file: (before / name).read_bytes() for file, name in NAMES.items() if (before / name).exists()}
    LOG.path = before / "log"
    earlier = LOG.lines()
    with copied(before) as place:
        ending = live(place, mode=budget.mode, keeps_history=True, synchronous=synchronous)
        assert "closed" in LOG.lines()
    history = ending.history
    if synchronous == "FULL":
        row.problems += [f"{run}: {problem}" for problem in unproven(history, baseline)]
    chosen = budget.sample(cuts(history), f"{row.fault} {run}")
    for cut, files in zip(chosen, images(history, baseline, chosen, budget.seed), strict=True):
        with folder() as place:
            put(files, place)
            put_log(earlier, history[: cut.after], place)
            LOG.path = place / "log"
            nothing = Operation("nothing", "yet", ("nothing",))
            last = next((entry for entry in reversed(history[: cut.after]) if isinstance(entry, Operation)), nothing)
            row.cells.update(Cell(last.name, cut.choice, primitive, run) for primitive in last.primitives)
            stored, seen = recorded(place / "work.db"), len(LOG.lines())
            ending = live(place, mode=budget.mode, synchronous=synchronous)
            verdict = judge(LOG.lines(), 1 + (run == "recovery"), budget.mode)
            row.longest_recovery_s = max(row.longest_recovery_s, ending.recovery_s)
            row.record(
                f"{run}, {cut.choice} {cut.number} after {cut.after} of {len(history)}",
                verdict.lost,
                [*verdict.duplicates, *repeated(LOG.lines(), seen, stored)],
                [*verdict.others, *damage(place / "work.db")],
            )


def _only_measured(row: Row) -> None:
    """What NORMAL loses is no broken promise, but a damaged file or a workload that does not end would be."""
    row.measured = {"states with something acknowledged lost": row.lost, "with something done twice": row.duplicates}
    consequences = re.compile(r"lost |.*, whose outcome was known|.* began \d+ times")
    row.problems = [line for line in row.problems if not consequences.match(line.split(": ", 1)[1])]


if __name__ == "__main__":
    main(sweep)
