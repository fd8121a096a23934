"""One life of the workload in a process of its own, forked, so that it costs milliseconds."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tests.faults.disk import Disk, Note, Operation, Strike
from tests.faults.workload import LOG, drive
from workerflow.effects import SystemEffects

PROGRESS = ("start", "acknowledged", "result", "completion", "cancelled", "closed")
TRIES = 5
"""Timing moves operations between batches, so a point near the end may be missed sometimes."""
EFFECTS = SystemEffects()


@dataclass
class Ending:
    """How one life ended.

    ``operations``: how many of each kind it counted. ``recovery_s``: from its begin, or from the end of its fault, to
    the next thing done.
    """

    is_killed: bool = False
    reached: Operation | None = None
    operations: Counter[str] = field(default_factory=Counter)
    recovery_s: float = 0.0
    history: list[Operation | Note] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def has_come_to(self, strike: Strike) -> bool:
        """Whether there were so many operations that the fault had to strike."""
        return sum(self.operations[kind] for kind in strike.kinds) >= strike.number


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes away; in memory where the system has that, for the tests do not need a real disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True) as name:
        yield Path(name)


def live(
    place: Path,
    strike: Strike | None = None,
    *,
    mode: str = "normal",
    is_armed_when_open: bool = False,
    keeps_history: bool = False,
    prepare: Callable[[Disk, Ending], None] = lambda disk, ending: None,
    **settings: Any,
) -> Ending:
    """Drive the workload on the database in *place* in a child, and tell how that ended.

    *prepare* is called in the child before it begins; what it puts into the ending's figures comes back.
    """
    reading, writing = os.pipe()
    LOG.path = place / "log"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as report:
            _child(place, strike, mode, is_armed_when_open, keeps_history, prepare, settings, report)
        os._exit(0)
    os.close(writing)
    ending = Ending()
    with os.fdopen(reading, "rb") as report:
        try:
            while True:
                for name, value in pickle.load(report).items():
                    setattr(ending, name, value)
        except EOFError:
            pass
    _, status = os.waitpid(child, 0)
    ending.is_killed = os.WIFSIGNALED(status)
    return ending


def _child(
    place: Path,
    strike: Strike | None,
    mode: str,
    is_armed_when_open: bool,
    keeps_history: bool,
    prepare: Callable[[Disk, Ending], None],
    settings: dict[str, Any],
    report: BinaryIO,
) -> None:
    logging.disable()  # What is said of a planned fault is not what is done about it.
    sys.unraisablehook = lambda _: None
    ending = Ending()
    disk = Disk(place / "work.db", strike)
    disk.is_armed = not is_armed_when_open
    since: list[float] = [EFFECTS.monotonic_s()]

    def tell(**values: Any) -> None:
        report.write(pickle.dumps(values))
        report.flush()

    def heard(line: str) -> None:
        disk.note(line)
        if since and line.startswith(PROGRESS):
            tell(recovery_s=EFFECTS.monotonic_s() - since.pop())

    def reached(operation: Operation) -> None:
        since.clear()
        tell(reached=operation._replace(data=b""))

    disk.on_reached = reached
    disk.on_healed = lambda: since.append(EFFECTS.monotonic_s())
    LOG.listeners.append(heard)
    prepare(disk, ending)
    disk.install()
    try:
        asyncio.run(drive(place / "work.db", mode, lambda: setattr(disk, "is_armed", True), **settings))
    except BaseException as error:
        LOG.write(f"error {error!r}")
    tell(operations=disk.counts, figures=ending.figures, history=disk.history if keeps_history else [])


def reaching(life: Callable[[], Ending], *places: Path) -> Ending:
    """A life that reaches its fault, in emptied folders after each that does not."""
    ending = life()
    for _ in range(TRIES - 1):
        if ending.reached is not None:
            break
        for place in places:
            for file in place.iterdir():
                file.unlink()
        ending = life()
    return ending


def least(lives: Callable[[], Ending]) -> Counter[str]:
    """How many operations of each kind an undisturbed life has at least: timing moves some from batch to batch."""
    found = [lives().operations for _ in range(8)]
    return Counter({kind: min(counts[kind] for counts in found) for kind in found[0]})


@contextmanager
def copied(state: Path) -> Iterator[Path]:
    """A folder with the database, and its effect log, as an earlier life left them."""
    with folder() as place:
        for file in state.iterdir():
            if file.is_file():
                shutil.copy(file, place / file.name)
        LOG.path = place / "log"
        yield place
