"""The common shape of every sweep of faults: what it is asked for, and what it answers.

A sweep is a function ``sweep(budget: Budget) -> list[Row]`` in a module of this folder. Each row is one fault: how many
points it was injected at, what was lost or done twice, how long the engine took to go on, and in which cells the points
fell. Run a module as a script, ``python -m tests.faults.kills``, to inject at every point; the suite takes samples.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

MISSED_MAX = 0.2
"""Of the planned points, how many may be past the end of a life."""

PLACES: Mapping[str, tuple[str, ...]] = {
    "write": ("before", "middle", "after"),
    "sync": ("before", "after"),
    "truncate": ("before", "after"),
    "delete": ("before", "after"),
    "commit": ("before", "after"),
    "gate": ("before", "after"),
}
"""Where a kill can strike an operation of this kind. A statement within a commit has one place: in it."""
FILLING_TRIES = 5

PointT = TypeVar("PointT")


class Cell(NamedTuple):
    """Where a fault struck.

    ``operation``: what was under way, such as ``write wal``. ``place``: before, middle or after it, or what else the
    fault distinguishes. ``primitive``: what of the workload the operation was for. ``run``: ``first run`` or
    ``recovery``.
    """

    operation: str
    place: str
    primitive: str
    run: str


@dataclass
class Row:
    """What a sweep found out about one fault.

    ``points``: places at which it struck. ``lost``: points after which something acknowledged was gone. ``duplicates``:
    points after which something recorded ran again. ``longest_recovery_s``: from the end of the fault to the next thing
    done. A point counts in one cell per primitive. ``problems``: every broken promise in words, planned points that
    were not reached among them; a sweep is passed when it is empty. ``measured``: figures that no promise covers.
    """

    fault: str
    points: int = 0
    lost: int = 0
    duplicates: int = 0
    longest_recovery_s: float = 0.0
    cells: Counter[Cell] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    def record(self, where: str, lost: Sequence[str], duplicates: Sequence[str], others: Sequence[str] = ()) -> None:
        """Count a point, and what was broken there."""
        self.points += 1
        self.lost += bool(lost)
        self.duplicates += bool(duplicates)
        self.problems += [f"{where}: {problem}" for problem in (*lost, *duplicates, *others)]

    def miss(self, where: str, *, is_past_end: bool) -> None:
        """A planned point was not reached, in several lives.

        Timing moves operations between batches, so a life may have fewer of them than those that were counted; as long
        as these are few, that is no problem. A fault that did not strike although its moment came is one.
        """
        if not is_past_end:
            self.problems.append(f"{where} was not reached")
            return
        missed = self.measured["points past the end of shorter lives"] = 1 + self.measured.get(
            "points past the end of shorter lives", 0
        )
        if missed > max(3, MISSED_MAX * (self.points + missed)):
            self.problems.append(f"{where} was not reached: lives differ too much")

    def add(self, part: Row) -> None:
        """Take in the points of another row."""
        self.points += part.points
        self.lost += part.lost
        self.duplicates += part.duplicates
        self.longest_recovery_s = max(self.longest_recovery_s, part.longest_recovery_s)
        self.cells += part.cells
        self.problems += part.problems
        for name, value in part.measured.items():
            self.measured[name] = self.measured.get(name, 0) + value


class Filling:
    """Strikes again where a sweep has left a cell empty, because an operation was in another commit that time.

    ``note`` tells it under which number an operation was met; ``fill`` calls *strike* with a place and such numbers
    until the cell is met. What stays empty is a problem of the row.
    """

    def __init__(self, row: Row, run: str) -> None:
        self._row = row
        self._run = run
        self._numbers: dict[tuple[str, str], set[int]] = defaultdict(set)

    def note(self, operation: str, place: str, primitive: str, number: int) -> None:
        """A kill has struck there."""
        self._row.cells[Cell(operation, place, primitive, self._run)] += 1
        self._numbers[operation, primitive].add(number)

    def fill(self, strike: Callable[[str, str, int], object]) -> None:
        """Strike the empty cells: *strike* gets the operation's kind, the place and the number."""
        for cell in list(self._empty()):
            for number in [*sorted(self._numbers[cell.operation, cell.primitive])] * FILLING_TRIES:
                if self._row.cells[cell]:
                    break
                strike(cell.operation.split()[0], cell.place, number)
        self._row.problems += [f"the cell {' | '.join(cell)} is empty" for cell in self._empty()]

    def _empty(self) -> Iterator[Cell]:
        for operation, primitive in self._numbers:
            for place in PLACES.get(operation.split()[0], ()):
                cell = Cell(operation, place, primitive, self._run)
                if not self._row.cells[cell]:
                    yield cell


@dataclass(frozen=True)
class Budget:
    """How much a sweep may do: at most *points* per row, chosen by *seed*; None: every point.

    *mode* says how the engine runs, in the words of the suite's ``--mode``.
    """

    points: int | None = None
    seed: int = 0
    mode: str = "normal"

    def sample(self, points: Sequence[PointT], name: str) -> list[PointT]:
        """The points to take, in their order. *name* keeps the samples of different rows apart."""
        if self.points is None or len(points) <= self.points:
            return list(points)
        chance = random.Random(f"{self.seed} {name}")
        return [points[index] for index in sorted(chance.sample(range(len(points)), self.points))]


def show(rows: Sequence[Row]) -> str:
    """The rows as text, with their cells counted by operation and by primitive."""
    lines = [f"{'fault':44} {'points':>6} {'lost':>5} {'twice':>5} {'recovery':>9}  cells"]
    for row in rows:
        recovery = f"{row.longest_recovery_s:7.2f} s"
        lines.append(f"{row.fault:44} {row.points:6} {row.lost:5} {row.duplicates:5} {recovery:>9}  {len(row.cells)}")
        lines += [f"    {name}: {value:g}" for name, value in row.measured.items()]
        lines += [f"    PROBLEM {problem}" for problem in row.problems[:20]]
        if len(row.problems) > 20:
            lines.append(f"    and {len(row.problems) - 20} more problems")
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> str:
    return json.dumps([{**vars(row), "cells": [[*cell, count] for cell, count in row.cells.items()]} for row in rows])


def from_json(text: str) -> list[Row]:
    """The rows that ``to_json`` gave."""
    rows = [Row(**values) for values in json.loads(text)]
    for row in rows:
        row.cells = Counter({Cell(*cell[:4]): cell[4] for cell in row.cells})  # type: ignore[misc]  # lists so far
    return rows


def main(sweep: Callable[[Budget], list[Row]]) -> None:
    """Run a sweep from the command line, at every point unless told otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, help="at most so many per row, chosen by the seed; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=("normal", "always-replay", "hibernating"), default="normal")
    parser.add_argument("--cells", action="store_true", help="print every cell")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON and nothing else")
    given = parser.parse_args()
    rows = sweep(Budget(given.points, given.seed, given.mode))
    lines = [to_json(rows)] if given.json else [show(rows)]
    if given.cells:
        lines += [f"{row.fault}: {count:5} {' | '.join(cell)}" for row in rows for cell, count in row.cells.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(any(row.problems for row in rows))
