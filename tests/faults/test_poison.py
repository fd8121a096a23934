"""A bad instance cannot stop the others, whatever it does: each kind of poison among fifty good ones."""

from __future__ import annotations

import functools

import pytest

from tests.faults.poison import BY_NAME, POISONS, swept
from tests.faults.processes import elsewhere
from tests.faults.table import Row, show

pytestmark = pytest.mark.slow

RECOVERY_BOUND_S = 10.0


@functools.cache
def rows(mode: str, hangs: bool) -> dict[str, Row]:
    """All poisons that hang, or all others, from one process that forks: it is soon told that a process has died."""
    names = [poison.name for poison in POISONS if poison.hangs is hangs]
    return {row.fault: row for row in elsewhere(swept, names, mode)}


@pytest.mark.parametrize(
    "name", [pytest.param(poison.name, marks=[pytest.mark.slow] * poison.hangs) for poison in POISONS]
)
def test_a_poison_ends_as_stated_and_the_fifty_beside_it_end_in_time(name: str, request: pytest.FixtureRequest) -> None:
    row = rows(request.config.getoption("mode"), BY_NAME[name].hangs)[name]

    assert row.problems == [], show([row])
    assert (row.lost, row.duplicates) == (0, 0)
    assert row.longest_recovery_s < RECOVERY_BOUND_S
