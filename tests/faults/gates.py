"""SIGKILL before, in and after every commit and gate, as a sweep of the table: see sweep.py, which does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.table import Budget, Cell, Row, main

RUNS = {"first": "first run", "recovery": "recovery"}


def sweep(budget: Budget) -> list[Row]:
    """Every point, whatever the budget says: they depend on each other's number."""
    return [_row(*run) for run in RUNS.items()]


def _row(argument: str, run: str) -> Row:
    script = Path(__file__).with_name("sweep.py")
    done = subprocess.run([sys.executable, script, argument], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    row = Row(f"SIGKILL at a commit or gate, {run}", points=sum(report["points"].values()))
    row.problems = report["problems"]
    row.lost = sum("no result" in problem or "completions" in problem for problem in row.problems)
    row.duplicates = sum("again" in problem or "times with" in problem for problem in row.problems)
    for cell, count in report["cells"].items():
        operation, place, primitive = cell.split("|")
        row.cells[Cell(operation, place, primitive, run)] += count
    return row


if __name__ == "__main__":
    main(sweep)
