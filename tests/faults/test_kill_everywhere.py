"""A SIGKILL at every commit, statement and gate, in the first run and in the recovery."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLACES = (
    "before commit",
    "in commit",
    "after commit",
    "before gate begin",
    "after gate begin",
    "before gate answer",
    "after gate answer",
    "before gate resolve",
    "after gate resolve",
    "before gate status_changed",
    "after gate status_changed",
    "before gate start",
    "after gate start",
)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["first", "recovery"])
def test_a_kill_at_any_commit_or_gate_loses_nothing_and_repeats_nothing_recorded(run: str) -> None:
    script = Path(__file__).with_name("sweep.py")
    done = subprocess.run([sys.executable, script, run], capture_output=True, text=True, timeout=110, check=True)

    report = json.loads(done.stdout)

    assert report["problems"] == []
    assert [place for place in PLACES if not report["points"].get(place)] == []
    assert sum(report["points"].values()) > 100
