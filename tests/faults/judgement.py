"""What an effect log and the files say of a history: what was lost, and what was done twice.

The files are read by plain SQL, in a process without an engine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from tests.faults.workload import EXPECTED

TRIES = {"plain": 1, "outer": 1, "inner": 1, "hold": 1, "flaky": 2, "last": 1}
PROVEN = {
    "outer": {"plain"},
    "inner": {"plain"},
    "hold": {"plain"},
    "flaky": {"plain", "outer", "inner", "hold"},
    "last": {"plain", "outer", "inner", "hold", "flaky"},
}
"""A callback that begins shows that the outcomes of these are durable."""


@contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """A connection to a copy: closing one to the files themselves would empty the log that a crash has left."""
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        for ending in ("", "-wal", "-journal"):
            file = path.with_name(path.name + ending)
            if file.exists():
                shutil.copy(file, name)
        connection = apsw.Connection(str(Path(name, path.name)))
        try:
            yield connection
        finally:
            connection.close()


def recorded(path: Path) -> set[str]:
    """The callbacks whose outcome is stored, as the effect log names them."""
    with reading(path) as connection:
        try:
            steps = connection.execute("select step_id from attempts where state = 'succeeded'").fetchall()
            ends = connection.execute("select 'completion' from deliveries where delivered_at is not null").fetchall()
        except apsw.SQLError:  # Ended before the schema was there.
            return set()
        return {str(row[0]) for row in [*steps, *ends]}


def damage(path: Path) -> list[str]:
    """What SQLite's own checks find wrong with the files."""
    with reading(path) as connection:
        found = [str(row[0]) for row in connection.execute("pragma integrity_check")]
        strays = connection.execute("pragma foreign_key_check").fetchall()
        return [line for line in found if line != "ok"] + [f"stray row {row}" for row in strays]


STORED = {
    "start": "select 1 from attempts where step_id = ? and number = ?",
    "create": "select 1 from instances where instance_id = 'e-1' and status <> 'pending'",
    "pause": "select 1 from lifecycle_events where type = 'paused'",
    "early": "select 1 from inbound_events where event_id = 'early'",
    "resume": "select 1 from lifecycle_events where type = 'resumed'",
    "idle": "select 1 from instances where instance_id = 'i-1' and status <> 'pending'",
    "cancel": "select 1 from mail where kind = 'cancel'",
    "late": "select 1 from inbound_events where event_id = 'late'",
    "result": "select 1 from instances where instance_id = 'e-1' and status = 'completed'",
    "cancelled": "select 1 from instances where instance_id = 'i-1' and status = 'cancelled'",
    "completion": "select 1 from deliveries where attempts >= 1",
}


def is_stored(path: Path, line: str) -> bool:
    """Whether the file holds what a line of the effect log tells of."""
    words = line.split(" ")
    name = words[1] if words[0] == "acknowledged" else words[0]
    if name not in STORED:
        return True
    connection = apsw.Connection(str(path))
    try:
        is_there = bool(connection.execute(STORED[name], words[1:3] if name == "start" else ()).fetchall())
        for step in PROVEN.get(words[1], set()) if name == "start" else set():
            found = connection.execute("select 1 from attempts where step_id = ? and state = 'succeeded'", (step,))
            is_there = is_there and bool(found.fetchall())
        return is_there
    except apsw.SQLError:  # There is no schema.
        return False
    finally:
        connection.close()


@dataclass
class Verdict:
    """The broken promises of one point."""

    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [*self.lost, *self.duplicates, *self.others]


def name_of(line: str) -> str:
    """Which callback a line of the log is the beginning of, or nothing."""
    kind, _, rest = line.partition(" ")
    return "completion" if kind == "completion" else rest.split(" ")[0] if kind == "start" else ""


def repeated(lines: list[str], since: int, stored: set[str]) -> list[str]:
    """Callbacks that began in ``lines[since:]`` although a process had found them stored before."""
    return [f"{line}, which was stored" for line in lines[since:] if name_of(line) in stored]


def judge(lines: list[str], interruptions: int, mode: str = "normal") -> Verdict:
    """What was broken in a whole history with so many processes that ended before their time."""
    verdict = Verdict([line for line in lines if line.startswith("lost")])
    count = Counter(name_of(line) for line in lines)
    proven: set[str] = set()
    for line in lines:
        name = name_of(line)
        # In the other modes the callback around a nested step is entered again by design.
        if name in proven and (name != "outer" or mode == "normal"):
            verdict.duplicates.append(f"{line}, whose outcome was known")
        proven |= PROVEN.get(name, set())
    if f"result {EXPECTED}" not in lines:
        verdict.others.append(f"no result: {lines[-3:]}")
        return verdict
    if "cancelled no more" not in lines:
        verdict.lost.append("cancel has no effect")
    for name, tries in TRIES.items():
        is_entered_again = name == "outer" and mode != "normal"
        if count[name] < 1 or (count[name] > tries + interruptions and not is_entered_again):
            verdict.others.append(f"{name} began {count[name]} times with {interruptions} interruptions")
    ends = {line for line in lines if name_of(line) == "completion"}
    if len(ends) != 1 or not all(line.endswith("completed") for line in ends):
        verdict.others.append(f"completions: {sorted(ends)}")
    verdict.others += [line for line in lines if line.startswith(("error", "result")) and line != f"result {EXPECTED}"]
    return verdict
