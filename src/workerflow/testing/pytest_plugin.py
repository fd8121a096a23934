"""The pytest plugin: the fixture and the marker ``crash_everywhere``. pytest loads it when workerflow is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workerflow.testing import CrashReport


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "crash_everywhere(at='both', seed=0): what the crash_everywhere fixture of this test is called with"
    )


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest) -> Callable[..., CrashReport]:
    """``workerflow.testing.crash_everywhere``, which fails the test when the workflow does not end the same.

    The marker ``@pytest.mark.crash_everywhere(at=…, seed=…)`` gives defaults for its keyword arguments.
    """
    # Imported here: pytest loads this module for every project that has workerflow installed.
    from workerflow.testing import crashes

    marker = request.node.get_closest_marker("crash_everywhere")
    defaults = {} if marker is None else marker.kwargs

    def call(*arguments: Any, **options: Any) -> CrashReport:
        __tracebackhide__ = True
        report = crashes.crash_everywhere(*arguments, **{**defaults, **options})
        if not report.is_same:
            pytest.fail(str(report), pytrace=False)
        return report

    return call
