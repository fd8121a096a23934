"""How the suite is run: the mode of its engines, and what pyproject.toml cannot hold.

``pytest --mode always-replay`` and ``pytest --mode hibernating`` run every test on engines that replay after every
step, or that drop every idle instance from memory. A test that names ``always_replay`` or ``hibernate_after_s`` itself
keeps what it names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from workerflow import Engine, Settings
from workerflow.testing import SimulatedEngine

# A failing example is printed in a form that can be pinned with @reproduce_failure. There is no deadline for one
# example: a slow machine is not a failure, and pytest's time limit catches a hang.
settings.register_profile("workerflow", print_blob=True, deadline=None)
settings.load_profile("workerflow")

# Thousands of databases are made and thrown away. In memory that takes half the time, and nothing is lost by it: the
# faults of a disk are injected above it.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 2 * 1024**3
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

MODES = ("normal", "always-replay", "hibernating")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mode", choices=MODES, default="normal", help="how the engines of all tests run")


def pytest_configure(config: pytest.Config) -> None:
    mode = config.getoption("mode")
    if mode == "always-replay":
        for engine in (Engine, SimulatedEngine):
            _defaults(engine)["always_replay"] = True
    elif mode == "hibernating":
        _defaults(Settings)["hibernate_after_s"] = 0.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mode = config.getoption("mode")
    for item in items:
        marker = item.get_closest_marker("normal_only")
        if marker is not None and mode != "normal":
            item.add_marker(pytest.mark.skip(reason=f"normal mode only: {marker.args[0]}"))


def _defaults(of: type) -> dict[str, Any]:
    """The defaults of a class's keyword arguments: changing them changes what a call that names none gets."""
    defaults: dict[str, Any] = of.__init__.__kwdefaults__  # type: ignore[misc]  # of the class itself
    return defaults
