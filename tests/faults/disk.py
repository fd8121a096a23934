"""A disk that counts, records, and fails as planned: a VFS for SQLite, put under the engine from outside.

It becomes the default VFS of the process that calls ``Disk.install``, which must be a child of its own. Every read,
write, sync, truncation and deletion of the database, its log and its journal passes here. The shared index (-shm)
does not: SQLite maps it into memory, and rebuilds it from the log.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from workerflow.store.sqlite.connection import Connection
from workerflow.store.sqlite.store import SqliteStore

FILES = {"": "main", "-wal": "wal", "-journal": "journal"}


class Operation(NamedTuple):
    """One call of SQLite to the disk. ``primitives``: what the engine was doing, as far as the call itself can tell."""

    kind: str
    file: str
    primitives: tuple[str, ...]
    offset: int = 0
    data: bytes = b""
    is_done: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind} {self.file}"


class Note(NamedTuple):
    """A line that was written to the effect log between two operations."""

    line: str


class Strike(NamedTuple):
    """The fault to inject: at the *number*-th operation of these kinds, at a *place*: before, middle or after it.

    *error* is SQLite's code, and the fault lasts for so many operations of these kinds; None kills the process.
    """

    kinds: tuple[str, ...]
    number: int
    place: str
    error: int | None = None
    times: int = 1


class Disk:
    """The VFS's state in one process. ``on_operation`` is called before each operation that counts."""

    def __init__(self, path: Path, strike: Strike | None = None) -> None:
        self.path = os.path.realpath(path)
        self.strike = strike
        self.history: list[Operation | Note] = []
        self.counts: Counter[str] = Counter()
        self.is_armed = True
        self.reached: Operation | None = None
        self.before_reached: Callable[[], object] = lambda: None
        self.on_reached: Callable[[Operation], None] = lambda operation: None
        self.on_healed: Callable[[], None] = lambda: None
        self.on_operation: Callable[[Operation], None] = lambda operation: None
        self._left = 0
        self._lock = threading.RLock()
        self._doing = threading.local()

    def install(self) -> None:
        """Become the default VFS of this process, and learn from the store what each operation is for."""
        self.vfs = _Vfs(self)

        def doing(name: str) -> None:
            original = getattr(SqliteStore, name)

            def labelled(store: SqliteStore, *arguments: Any, **options: Any) -> Any:
                before = self.primitives()
                self._doing.primitives = primitives_of_call(name, arguments)
                try:
                    return original(store, *arguments, **options)
                finally:
                    self._doing.primitives = before

            setattr(SqliteStore, name, labelled)

        for name in ("open", "close", "begin_worker", "recover", "commit", "send"):
            doing(name)
        close = Connection.close

        def closing(connection: Connection, **options: Any) -> None:
            # SQLite tells nobody of an error in its last checkpoint. Only a VFS in Python does.
            with suppress(apsw.IOError, apsw.FullError):
                close(connection, **options)

        Connection.close = closing  # type: ignore[assignment,method-assign]  # in a process of its own

    def primitives(self) -> tuple[str, ...]:
        return getattr(self._doing, "primitives", ("read",))

    def file(self, path: str | None) -> str | None:
        """What the file is to the database; None for another one."""
        return FILES.get(path.removeprefix(self.path)) if path is not None and path.startswith(self.path) else None

    def operate(
        self, operation: Operation, whole: Callable[[], object], half: Callable[[], object] = lambda: None
    ) -> Any:
        """Do an operation, unless the plan says otherwise. *half* does a part of it."""
        with self._lock:
            strike = self.strike
            if self.is_armed:
                self.counts[operation.kind] += 1
                self.on_operation(operation)
            if strike is None or not self.is_armed or not self._strikes(operation, strike):
                return self._recorded(operation, whole)
            if strike.error is not None:
                if strike.place == "middle":
                    half()
                    cut = operation.data[: len(operation.data) // 2]
                    self.history.append(operation._replace(data=cut))
                else:
                    self.history.append(operation._replace(is_done=False, data=b""))
                raise apsw.exception_for(strike.error)
            if strike.place == "middle":
                half()
            elif strike.place == "after":
                whole()
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, line: str) -> None:
        with self._lock:
            self.history.append(Note(line))

    def _strikes(self, operation: Operation, strike: Strike) -> bool:
        if operation.kind not in strike.kinds:
            return False
        if self.reached is None:
            if sum(self.counts[kind] for kind in strike.kinds) != strike.number:
                return False
            self.reached = operation
            self._left = strike.times
            self.before_reached()
            self.on_reached(operation)
        if self._left == 0:
            return False
        self._left -= 1
        if self._left == 0:
            self.on_healed()
        return True

    def _recorded(self, operation: Operation, whole: Callable[[], object]) -> Any:
        answer = whole()
        if operation.kind != "read":
            self.history.append(operation)
        return answer


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        super().__init__("faulty", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        file = self.disk.file(path)
        if file is None:
            return apsw.VFSFile("unix", name, flags)
        is_new = not Path(path).exists()
        opened = _File(self.disk, file, name, flags)
        if is_new:
            self.disk.history.append(Operation("create", file, self.disk.primitives()))
        return opened

    def xDelete(self, path: str, syncdir: bool) -> None:
        file = self.disk.file(path)
        if file is None:
            super().xDelete(path, syncdir)
            return
        operation = Operation("delete", file, self.disk.primitives(), offset=int(bool(syncdir)))
        self.disk.operate(operation, lambda: super(_Vfs, self).xDelete(path, syncdir))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, file: str, name: Any, flags: list[int]) -> None:
        self.disk = disk
        self.file = file
        super().__init__("unix", name, flags)

    def excepthook(self, *_: Any) -> bool:
        return True  # A planned error that SQLite passes to nobody, as in its last checkpoint.

    def xRead(self, amount: int, offset: int) -> bytes:
        read = super().xRead
        answer: bytes = self.disk.operate(
            Operation("read", self.file, self.disk.primitives(), offset), lambda: read(amount, offset)
        )
        return answer

    def xWrite(self, data: Any, offset: int) -> None:
        write, content = super().xWrite, bytes(data)
        self.disk.operate(
            Operation("write", self.file, self.disk.primitives(), offset, content),
            lambda: write(content, offset),
            lambda: write(content[: len(content) // 2], offset),
        )

    def xSync(self, flags: int) -> None:
        # Nothing to do: a kill leaves the system's cache whole, and a power loss is rebuilt from the history.
        self.disk.operate(Operation("sync", self.file, self.disk.primitives()), lambda: None)

    def xTruncate(self, size: int) -> None:
        truncate = super().xTruncate
        self.disk.operate(Operation("truncate", self.file, self.disk.primitives(), size), lambda: truncate(size))


def primitives_of_call(name: str, arguments: Sequence[Any]) -> tuple[str, ...]:
    """The words for what a call of the store is for."""
    if name == "commit":
        return primitives_of(arguments[0].rows)
    if name == "send":
        return (f"mail {arguments[4].kind}",)
    return (name.replace("_", " "),)


def primitives_of(rows: Any) -> tuple[str, ...]:
    """The words for what a batch makes durable."""
    words = {f"begin {row[3]}" for row in rows.step_insert}
    words |= {f"step {row[2]}" for row in rows.step_resolve}
    words |= {f"attempt {row[3]}" for row in [*rows.attempt_end, *rows.attempt_cut]}
    words |= {f"instance {row[2]}" for row in rows.lifecycle_insert}
    for table, word in (
        (rows.attempt_start, "attempt started"),
        (rows.inbound_insert, "event accepted"),
        (rows.inbound_claim, "event used"),
        (rows.delivery_insert, "delivery due"),
        (rows.delivery_update, "delivery tried"),
        (rows.mail_take, "mail taken"),
    ):
        words |= {word} if table else set()
    return tuple(sorted(words)) or ("owner and alarm",)
