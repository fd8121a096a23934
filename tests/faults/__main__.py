"""``python -m tests.faults``, which is ``make faults``: every sweep at every point, as one table.

It fails when a promise was broken, when a planned point was not reached, when a cell of the matrix of kills was left
empty, or when there were fewer distinct kills than ``DISTINCT_MIN``. Each sweep runs in a process of its own, because
some of them change what a process is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.faults.table import Row, from_json, show

SWEEPS = ("gates", "kills", "power", "broken", "neighbours", "copies", "two_engines", "processes", "poison")
KILLS = ("gates", "kills")
"""The sweeps whose every point is another statement, gate or write, another place at it, or another run."""
DISTINCT_MIN = 1000
COLUMNS = ("before", "middle", "in", "after")


def rows_of(sweep: str, options: Sequence[str]) -> list[Row]:
    """Run one sweep; a sweep that breaks is a row with that as its problem."""
    command = [sys.executable, "-m", f"tests.faults.{sweep}", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.startswith("["):
        return [Row(sweep, problems=[f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}"])]
    return from_json(done.stdout)


def matrix(rows: Sequence[Row]) -> str:
    """How many points each operation had, by place and run, and how many primitives they were about."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    primitives: dict[tuple[str, str], set[str]] = defaultdict(set)
    for cell, count in (item for row in rows for item in row.cells.items()):
        counts[cell.operation, cell.run][cell.place] += count
        primitives[cell.operation, cell.run].add(cell.primitive)
    lines = [f"{'operation':40} {'run':12} " + " ".join(f"{place:>7}" for place in COLUMNS) + "   other primitives"]
    for (operation, run), places in sorted(counts.items()):
        other = sum(count for place, count in places.items() if place not in COLUMNS)
        figures = [*(places[place] for place in COLUMNS), other, len(primitives[operation, run])]
        lines.append(f"{operation:40} {run:12} " + " ".join(f"{figure or '.':>7}" for figure in figures))
    return "\n".join(lines)


def main() -> None:
    """Print the table and the matrix, and say whether every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", help="at most so many points per row")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    options = ["--seed", given.seed, *(["--points", given.points] if given.points else [])]
    rows: list[Row] = []
    distinct = 0
    for sweep in SWEEPS:
        found = rows_of(sweep, options)
        rows += found
        distinct += sum(row.points for row in found) if sweep in KILLS else 0
        sys.stdout.write(show(found) + "\n")
        sys.stdout.flush()
    cells = {cell for row in rows for cell in row.cells}
    points = sum(row.points for row in rows)
    problems = sum(len(row.problems) for row in rows)
    sys.stdout.write(f"\n{matrix(rows)}\n\n{points} points, {distinct} of them distinct kills; {len(cells)} cells; ")
    sys.stdout.write(f"{problems} problems\n")
    sys.exit(bool(problems) or (given.points is None and distinct < DISTINCT_MIN))


if __name__ == "__main__":
    main()
