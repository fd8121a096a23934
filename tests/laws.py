"""The plugin behind ``make spec``: which tests show which behaviour of docs/reference/behaviour.md, and do they pass.

It runs the tests marked ``spec`` or ``weakness``, prints a table and fails when a behaviour has no test.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

BEHAVIOURS = Path(__file__).parents[1] / "docs" / "reference" / "behaviour.md"
LAW = re.compile(r"^\* \*\*([BW]\d+)\*\*: (.+)$", re.MULTILINE)


def read_laws() -> dict[str, str]:
    """The law of each number, in the order of the page."""
    laws = LAW.findall(BEHAVIOURS.read_text())
    assert len(laws) == len(dict(laws)), "a number is given to two laws"
    return dict(laws)


def numbers_of(item: pytest.Item) -> Iterator[str]:
    """The behaviours that a test is marked with."""
    for marker, letter in (("spec", "B"), ("weakness", "W")):
        for mark in item.iter_markers(marker):
            yield from (f"{letter}{number}" for number in mark.args)


class Table:
    """What is known of each behaviour."""

    def __init__(self) -> None:
        self.laws = read_laws()
        self.tests: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.outcomes: dict[str, str] = {}
        self.normal_only: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        """The behaviours that no test is marked with."""
        return [number for number in self.laws if number not in self.tests]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Note every mark, and leave only the tests that show a behaviour."""
        for item in items:
            name = item.nodeid.partition("[")[0]
            for number in numbers_of(item):
                if number not in self.laws:
                    raise pytest.UsageError(f"{name} is marked with {number}, which is not in {BEHAVIOURS.name}")
                self.tests[number][name].append(item.nodeid)
            if (mark := item.get_closest_marker("normal_only")) is not None:
                self.normal_only[name] = mark.args[0]
        config.hook.pytest_deselected(items=[item for item in items if not any(numbers_of(item))])
        items[:] = [item for item in items if any(numbers_of(item))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed when none of its phases said otherwise."""
        if self.outcomes.get(report.nodeid, "passed") == "passed":
            self.outcomes[report.nodeid] = report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A behaviour without a test is a failure."""
        if self.missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("behaviours")
        for number, law in self.laws.items():
            terminalreporter.line(f"{number:5} {self._result(number):8} {law}")
            for name, cases in self.tests[number].items() if number in self.tests else ():
                terminalreporter.line(f"{'':14} {name}" + (f" ({len(cases)} cases)" if len(cases) > 1 else ""))
        terminalreporter.section("tests that run in the normal mode only")
        for name, reason in sorted(self.normal_only.items()):
            terminalreporter.line(f"{name}: {reason}")
        green = sum(self._result(number) == "passed" for number in self.laws)
        terminalreporter.section(f"{green} of {len(self.laws)} behaviours are shown, {len(self.missing)} have no test")

    def _result(self, number: str) -> str:
        if number not in self.tests:
            return "NO TEST"
        outcomes = {self.outcomes.get(case, "not run") for cases in self.tests[number].values() for case in cases}
        return outcomes.pop() if len(outcomes) == 1 else next(iter(outcomes - {"passed"})).upper()


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest for a plugin given with -p."""
    config.pluginmanager.register(Table(), "behaviours")
