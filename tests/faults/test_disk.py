"""Faults of the database file, at a sample of their points: the modules of the same names inject at every one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.table import Row, from_json
from tests.faults.two_engines import ORDERS, SITUATIONS, WAYS

ROOT = Path(__file__).resolve().parents[2]


def swept(module: str, points: int, config: pytest.Config) -> list[Row]:
    """The rows of a sweep, in a process of its own without threads, so that it can fork."""
    seed = random.Random().randrange(10**6)
    command = [sys.executable, "-m", f"tests.faults.{module}", "--json", f"--points={points}", f"--seed={seed}"]
    command.append(f"--mode={config.getoption('mode')}")
    print(" ".join(command))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout, done.stderr
    return from_json(done.stdout)


def assert_kept(rows: list[Row], points: int) -> None:
    assert [problem for row in rows for problem in row.problems] == []
    assert {row.fault: (row.lost, row.duplicates) for row in rows} == {row.fault: (0, 0) for row in rows}
    assert [row.fault for row in rows if row.points < points or not row.cells] == []


@pytest.mark.slow
def test_a_kill_at_any_write_or_sync_of_the_file_loses_nothing_and_repeats_nothing_recorded(
    pytestconfig: pytest.Config,
) -> None:
    assert_kept(swept("kills", 12, pytestconfig), 12)


@pytest.mark.slow
def test_a_power_loss_loses_nothing_acknowledged_at_the_default_setting_and_never_damages_the_file(
    pytestconfig: pytest.Config,
) -> None:
    full, normal = swept("power", 6, pytestconfig)

    assert_kept([full], 12)
    assert normal.problems == []
    assert normal.points == 12


@pytest.mark.slow
def test_a_disk_that_fails_for_a_while_fails_nothing_and_acknowledges_nothing_falsely(
    pytestconfig: pytest.Config,
) -> None:
    rows = swept("broken", 2, pytestconfig)

    assert_kept(rows, 2)
    # The engine's longest pause between two tries is 5 s.
    assert max(row.longest_recovery_s for row in rows) < 10


@pytest.mark.slow
def test_a_foreign_lock_or_reader_holds_nothing_up_for_good_and_does_not_stop_the_loop(
    pytestconfig: pytest.Config,
) -> None:
    assert_kept(swept("neighbours", 3, pytestconfig), 3)


@pytest.fixture(scope="module")
def copies(pytestconfig: pytest.Config) -> dict[str, Row]:
    return {row.fault: row for row in swept("copies", 3, pytestconfig)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "copied live, in one moment",
        "copied live, one file after the other",
        "-shm deleted after a crash",
        "-wal deleted after a crash",
        "-shm deleted while it runs",
        "-wal deleted while it runs",
    ],
)
def test_a_copy_or_a_deletion_loses_nothing_that_was_acknowledged_after_it(fault: str, copies: dict[str, Row]) -> None:
    assert_kept([copies[fault]], 3)


@pytest.fixture(scope="module")
def two_engines(pytestconfig: pytest.Config) -> list[Row]:
    return swept("two_engines", 100, pytestconfig)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_second_engine_on_the_file_is_refused_or_takes_over_by_whatever_name(
    way: str, two_engines: list[Row]
) -> None:
    row = two_engines[0]

    assert [problem for problem in row.problems if problem.startswith(f"{way}, ")] == []
    assert sum(cell.place == way for cell in row.cells) == len(SITUATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["-wal", "-shm"])
def test_what_a_sender_is_told_after_the_log_or_its_index_was_deleted_is_true(
    file: str, two_engines: list[Row]
) -> None:
    row = two_engines[1]

    assert [problem for problem in row.problems if problem.startswith(file)] == []
    assert sum(cell.operation == f"delete {file}" for cell in row.cells) == len(ORDERS)
