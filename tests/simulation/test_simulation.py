"""Whole runs under random faults come to what a quiet day comes to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.properties.programs import Node, Program
from tests.simulation.plan import Ask, Life, draw
from tests.simulation.runs import REACHABLE, repeat, run

SEEDS = 200

pytestmark = [pytest.mark.slow, pytest.mark.normal_only("every run draws the mode of its engines itself")]


@pytest.mark.timeout(600)  # Half a minute of one core; a machine that has more to do may take its time.
def test_through_crashes_outages_and_changed_clocks_everything_ends_as_it_would_have_without() -> None:
    reached: Counter[str] = Counter()
    broken = {}
    for seed in range(SEEDS):
        verdict = run(draw(seed))
        reached += verdict.reached
        if verdict.broken:
            broken[repeat(seed)] = verdict.broken
    assert broken == {}
    assert [what for what in REACHABLE if not reached[what]] == []


@pytest.mark.parametrize("seed", [6, 51, 117])
def test_a_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    verdict = run(draw(seed))
    assert verdict.lines
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.splitlines()[-1] == f"seed {seed}: well, {verdict.fingerprint}"


def test_an_instance_that_never_ends_is_named() -> None:
    waiting = Program(Node("sequence", (Node("wait"),)), None)
    forgotten = Life("forgotten", 0, (Ask(0, "create"),))
    plan = replace(draw(0), programs=(waiting,), sure=(), lives=(forgotten,), faults=())
    (told,) = run(plan).broken
    assert told.startswith("time is up")
    assert "forgotten" in told
