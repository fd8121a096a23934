"""A SIGKILL at every commit, statement and gate, in the first run and in the recovery."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.table import from_json

STRUCK = {
    *("before commit", "after commit", "in update workers", "in insert into attempts", "in release whole"),
    *(f"{place} gate {gate}" for place in ("before", "after") for gate in ("begin", "answer", "resolve", "start")),
}


@pytest.mark.slow
def test_a_kill_at_any_commit_or_gate_loses_nothing_and_repeats_nothing_recorded() -> None:
    # In a process without threads, from which it forks.
    command = [sys.executable, "-m", "tests.faults.gates", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)

    rows = from_json(done.stdout)
    assert [row.fault.split()[-1] for row in rows] == ["run", "recovery"]
    for row in rows:
        assert row.problems == []
        assert {f"{cell.place} {cell.operation}" for cell in row.cells} >= STRUCK
        assert row.points > 100
