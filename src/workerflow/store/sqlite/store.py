"""The store on an SQLite file: a writer connection for batches, a reader connection for committed state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw

from workerflow.codec import dump_json
from workerflow.core.load import (
    AttemptRow,
    DeliveryRow,
    InboundRow,
    InstanceRecord,
    InstanceRow,
    LifecycleRow,
    StepRow,
)
from workerflow.core.model import TERMINAL
from workerflow.core.rows import WRITE_ORDER, Rows
from workerflow.errors import DatabaseError, DatabaseLockedError, DatabaseUnavailableError
from workerflow.store.base import MAIL_WAITS, Batch, DeposedError, Mail, StoreBusyError
from workerflow.store.migrate import migrate
from workerflow.store.sql import migrations, statement
from workerflow.store.sqlite.connection import PACKAGE, Connection, translated
from workerflow.store.sqlite.file_lock import FileLock

# What one instance's rows can be guilty of; everything else is the database's own trouble.
_REFUSALS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, TypeError, ValueError)

ReadT = TypeVar("ReadT")
Identity: TypeAlias = tuple[int, int] | None
Table: TypeAlias = list[tuple[Any, ...]]

NEWEST = (2**62, 2**62)
"""After nothing: a first page."""

WORKER_ID = 1
"""One engine at a time executes on a file."""


class LogReplacedError(DatabaseUnavailableError):
    """The database is the one that was opened, but not the files that SQLite keeps beside it."""


_WRITES = [(name, statement(PACKAGE, "attempt_end" if name == "attempt_cut" else name)) for name in WRITE_ORDER]


class SqliteStore:
    """A Store on the file at *path*. *synchronous* is SQLite's setting."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        self._path = path
        self._synchronous = synchronous
        self._lock = FileLock(path.with_name(path.name + "-lock"))
        self._identities: tuple[Identity, ...] = ()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._is_reader_outdated = False

    def open(self, *, execute: bool, now_ms: int) -> None:
        self._check_path()
        try:
            # A reader of an SQLite file in WAL mode writes its -shm, so both kinds of engine need write access.
            self._writer = Connection(self._path, create=True)
            self._check_ours(self._writer)
            if execute:
                self._acquire()
            self._writer.configure(self._synchronous)
            self._check_one_name()
            if execute:
                self._empty_log(self._writer)
            self._note_files()
            self._migrate(now_ms)
            self._reader = self._connect()
            self._reader.rows("schema_objects")
            self._note_files()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        # The last connection to close empties the log; one with another index than the owner's takes itself for it.
        keeps_log = self._writer is not None and self._is_beside_owner()
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close(keeps_log=keeps_log)
        self._reader = self._writer = None
        self._lock.release()

    def begin_worker(self, process_id: int, now_ms: int, workflows: list[str]) -> int:
        connection, values = self._write_connection(), (process_id, now_ms, dump_json(workflows))
        # The file lock keeps others from coming in between.
        row = connection.row("worker_begin", *values) or connection.row("worker_first", *values)
        assert row is not None
        return int(row[0])

    def commit(self, batch: Batch, *, busy_timeout_ms: int) -> None:
        connection = self._write_connection()
        raw = connection.raw
        raw.set_busy_timeout(busy_timeout_ms)
        try:
            raw.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise StoreBusyError(f"{self._path} is locked by a foreign transaction") from error
        except apsw.Error as error:
            raise DatabaseUnavailableError(f"{self._path} refuses for now: {error}") from error
        try:
            self._check_same_file()
            batch.refused = self._write_batch(raw, batch)
            raw.execute("COMMIT")
        except apsw.Error as error:
            _roll_back(raw)
            raise DatabaseUnavailableError(f"{self._path} refuses for now: {type(error).__name__}: {error}") from error
        except BaseException:
            _roll_back(raw)
            raise

    def recover(self, incarnation: int) -> int:
        writer = self._connect_anew()
        self._empty_log(writer)
        row = writer.row("worker_batch", WORKER_ID, incarnation)
        if row is None:
            raise DeposedError(f"{self._path}: worker incarnation {incarnation} is gone")
        return int(row[0])

    def note_driven(self, key: int | None) -> None:
        self._lock.note(key or 0)

    def driven_at_death(self) -> int | None:
        return self._lock.found or None

    def load(self, key: int) -> InstanceRecord | None:
        return self._read(lambda reader: self._load(reader, key))

    def find(self, workflow: str, instance_id: str) -> InstanceRow | None:
        row = self._read(lambda reader: reader.row("instance_by_id", workflow, instance_id))
        return None if row is None else InstanceRow(*row)

    def owned(self) -> list[int]:
        return [row[0] for row in self._read_rows("instance_owned")]

    def open_deliveries(self) -> list[int]:
        return [row[0] for row in self._read_rows("delivery_leases")]

    def due(self, now_ms: int, limit: int) -> list[int]:
        return [row[0] for row in self._read_rows("instance_due", now_ms, limit)]

    def next_alarm(self, after_ms: int) -> int | None:
        row = self._read(lambda reader: reader.row("instance_next_alarm", after_ms))
        return None if row is None else row[0]

    def untaken_mail(self, limit: int) -> list[Mail]:
        # Senders are refused until the engine has noticed; one with nothing to write would not.
        try:
            self._check_same_file()
        except LogReplacedError:
            self._close_reader()
            raise
        return [Mail(*row) for row in self._read_rows("mail_untaken", limit)]

    def untaken_mail_of(self, key: int) -> list[Mail]:
        return [Mail(*row) for row in self._read_rows("mail_untaken_of", key)]

    def list(
        self, workflow: str | None, status: str | None, after: tuple[int, int] | None, limit: int
    ) -> list[InstanceRow]:
        return [
            InstanceRow(*row) for row in self._read_rows("instance_list", workflow, status, *(after or NEWEST), limit)
        ]

    def send(self, workflow: str, instance_id: str, new_key: int, nonce: str, mail: Mail, busy_timeout_ms: int) -> str:
        try:
            self._check_same_file()
        except LogReplacedError:
            self._connect_anew()
        connection = self._write_connection()
        connection.raw.set_busy_timeout(busy_timeout_ms)
        with translated(self._path):
            connection.raw.execute("BEGIN IMMEDIATE")
            try:
                self._check_same_file()
                self._check_owner()
                outcome = self._put_mail(connection, workflow, instance_id, new_key, nonce, mail)
                connection.raw.execute("COMMIT")
            except BaseException:
                _roll_back(connection.raw)
                raise
        return outcome

    def _put_mail(
        self, connection: Connection, workflow: str, instance_id: str, new_key: int, nonce: str, mail: Mail
    ) -> str:
        if mail.kind not in ("pause", "resume"):
            connection.rows("instance_insert_missing", new_key, workflow, instance_id, nonce, mail.sent_at)
            if connection.raw.changes():
                connection.rows("lifecycle_insert", new_key, 1, "created", mail.sent_at, None)
        found = connection.row("instance_by_id", workflow, instance_id)
        if found is None:
            return "dropped"
        row = InstanceRow(*found)
        if mail.event_id is not None and connection.row("event_id_known", row.key, mail.event_id) is not None:
            return "duplicate"
        if mail.kind == "create" and row.status != "pending":
            return "duplicate"
        if row.status in TERMINAL:
            return "dropped"
        put = connection.row("mail_send", row.key, *mail[2:])
        return "duplicate" if put is None else "queued"

    def _write_batch(self, raw: apsw.Connection, batch: Batch) -> dict[int, str]:
        self._fence(raw, batch)
        raw.execute("SAVEPOINT whole")
        try:
            _write_rows(raw, batch.rows)
            late = self._guarded_with_mail(raw, batch)
        except _REFUSALS:
            late = None
        if late is not None and not late:
            raw.execute("RELEASE whole")
            return {}
        raw.execute("ROLLBACK TO whole")
        raw.execute("RELEASE whole")
        return self._write_apart(raw, batch)

    def _write_apart(self, raw: apsw.Connection, batch: Batch) -> dict[int, str]:
        """Write each instance's rows alone, so that one that is refused takes no other with it."""
        refused: dict[int, str] = {}
        for key, rows in batch.rows.by_instance().items():
            raw.execute("SAVEPOINT apart")
            try:
                _write_rows(raw, rows)
                reason = MAIL_WAITS if key in self._guarded_with_mail(raw, batch) else None
            except _REFUSALS as error:
                reason = str(error)
            if reason is not None:
                refused[key] = reason
                raw.execute("ROLLBACK TO apart")
            raw.execute("RELEASE apart")
        return refused

    def _guarded_with_mail(self, raw: apsw.Connection, batch: Batch) -> set[int]:
        if not batch.guarded:
            return set()
        # The transaction holds the write lock: nobody can send between this look and the commit.
        return {row[0] for row in raw.execute(statement(PACKAGE, "mail_guard"), (dump_json(list(batch.guarded)),))}

    def _fence(self, raw: apsw.Connection, batch: Batch) -> None:
        raw.execute(statement(PACKAGE, "worker_fence"), (WORKER_ID, batch.incarnation, batch.number))
        if raw.changes() != 1:
            raise DeposedError(
                f"{self._path}: worker incarnation {batch.incarnation} may not write batch {batch.number}; "
                "another engine has taken the file"
            )

    def _check_path(self) -> None:
        try:
            is_folder, has_folder = self._path.is_dir(), self._path.parent.is_dir()
        except OSError as error:
            raise DatabaseError(f"{self._path} cannot be the path of a file ({error}); give another one") from error
        if is_folder:
            raise DatabaseError(f"{self._path} is a folder; give the path of a database file")
        if not has_folder:
            raise DatabaseError(f"the folder {self._path.parent} does not exist; make it, or give another path")

    def _check_same_file(self) -> None:
        """Refuse to write to a file that was deleted or replaced: whoever opens the path would not find it there.

        The same for SQLite's log and its index beside it. Without them other processes would start new ones, and
        neither would see what the other has acknowledged.
        """
        try:
            found = _identity(self._path)
        except OSError as error:
            raise DatabaseUnavailableError(f"{self._path} is gone ({error}); put the file back") from error
        if found != self._identities[0]:
            raise DatabaseUnavailableError(f"{self._path} is another file than the one that was opened; put that back")
        if self._log_identities() != self._identities[1:]:
            raise LogReplacedError(
                f"the -wal or -shm file of {self._path} was deleted or replaced while it was in use; leave them alone"
            )

    def _check_owner(self) -> None:
        """Refuse to send past the engine that executes: it would overwrite what it cannot see."""
        if self._is_beside_owner():
            raise DatabaseUnavailableError(
                f"the -wal or -shm file of {self._path} was deleted, and the engine that executes on it still uses the "
                "old one; it will notice, try again in a moment"
            )

    def _is_beside_owner(self) -> bool:
        """Whether another engine executes on the file, with another log or index than those that lie beside it."""
        marks = self._lock.shown()
        return bool(marks) and marks != _marks(self._log_identities()) and self._lock.is_held_by_another()

    def _log_identities(self) -> tuple[Identity, ...]:
        return tuple(_identity_or_none(self._path.with_name(self._path.name + end)) for end in ("-wal", "-shm"))

    def _note_files(self) -> None:
        self._identities = (_identity(self._path), *self._log_identities())
        self._lock.show(_marks(self._identities[1:]))

    def _connect_anew(self) -> Connection:
        """A new connection to write. The reader follows at its next use: it may be in use in the loop's thread now.

        Not so when the index was replaced: all connections of a process share one, so the last of them has to be closed
        before a new one has the new index.
        """
        log, index = self._log_identities()
        writer, self._writer = self._writer, None
        if writer is not None:
            if log != self._identities[1]:
                # What is in the deleted log is in reach of the old connection only.
                with suppress(apsw.Error):
                    writer.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            writer.close(keeps_log=index != self._identities[2])
        if index != self._identities[2] and self._reader is not None:
            # The next look for mail closes it.
            raise LogReplacedError(f"the -shm file of {self._path} was deleted, and is still in use for reading")
        self._writer = self._connect()
        self._writer.rows("schema_objects")  # Reading makes the files that are missing.
        self._is_reader_outdated = True
        self._note_files()
        return self._writer

    def _empty_log(self, connection: Connection) -> None:
        """Make safe what an fsync that failed has left in the log.

        It may be in the system's cache only, marked as written, and all that is appended to it would be lost with it.
        A checkpoint writes it again, into the database file, and syncs that.
        """
        with translated(self._path):
            is_busy, _, _ = next(iter(connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")))
        if is_busy:
            raise StoreBusyError(f"{self._path} is being read in a long transaction; end that first")

    def _check_one_name(self) -> None:
        if self._path.stat().st_nlink > 1:
            raise DatabaseError(
                f"{self._path} has another name (a hard link); SQLite's log goes by the name, so that two processes "
                "would not see each other: remove the other name, or copy the file"
            )

    def _check_ours(self, connection: Connection) -> None:
        objects = {row[0] for row in connection.rows("schema_objects")}
        if objects and "workerflow_meta" not in objects:
            raise DatabaseError(
                f"{self._path} is a database of something else (it has {', '.join(sorted(objects)[:3])}); "
                "give workerflow a file of its own"
            )

    def _acquire(self) -> None:
        try:
            acquired = self._lock.acquire()
        except OSError as error:
            raise DatabaseError(f"{self._path} cannot be locked ({error}); make its folder writable") from error
        if not acquired:
            owner = self._owner()
            raise DatabaseLockedError(
                f"{self._path} is in use by another engine{owner}; stop that one first, "
                "or open this one with execute=False to send and read only"
            )

    def _owner(self) -> str:
        connection = self._write_connection()
        if not connection.rows("schema_objects"):
            return ""
        row = connection.row("worker_owner")
        return "" if row is None else f" (process {row[0]}, incarnation {row[1]})"

    def _migrate(self, now_ms: int) -> None:
        connection = self._write_connection()
        row = connection.row("schema_version") if connection.rows("schema_objects") else None
        if row is not None and int(row[0]) == migrations(PACKAGE)[-1][0]:
            return  # The usual case takes no write lock.
        with translated(self._path):
            connection.raw.execute("BEGIN IMMEDIATE")
        try:
            # Again, under the lock: another process may have filled the file since.
            self._check_ours(connection)
            row = connection.row("schema_version") if connection.rows("schema_objects") else None

            def apply(number: int, script: str) -> None:
                with translated(self._path):
                    connection.raw.execute(script)
                if number == 1:
                    connection.rows("schema_first", now_ms)
                connection.rows("schema_record", number)

            migrate(0 if row is None else int(row[0]), migrations(PACKAGE), apply, str(self._path))
            with translated(self._path):
                connection.raw.execute("COMMIT")
        except BaseException:
            _roll_back(connection.raw)
            raise

    def _connect(self) -> Connection:
        connection = Connection(self._path, create=False)
        try:
            connection.configure(self._synchronous)
        except BaseException:
            connection.close()
            raise
        return connection

    def _write_connection(self) -> Connection:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _read_rows(self, name: str, *arguments: Any) -> Table:
        return self._read(lambda reader: reader.rows(name, *arguments))

    def _read(self, read: Callable[[Connection], ReadT]) -> ReadT:
        if self._reader is None or self._is_reader_outdated:
            self._check_same_file()
            self._close_reader()
            self._reader = self._connect()
        try:
            return read(self._reader)
        except DatabaseUnavailableError:
            # What went wrong may stick to the connection: the next read has a new one.
            self._close_reader()
            raise

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        self._is_reader_outdated = False
        if reader is not None:
            reader.close(keeps_log=True)

    def _load(self, reader: Connection, key: int) -> InstanceRecord | None:
        # One snapshot for all tables: the writer thread may commit in between.
        with translated(self._path), reader.snapshot():
            found = reader.row("instance_by_key", key)
            if found is None:
                return None
            delivery = reader.row("delivery_of", key)
            return InstanceRecord(
                InstanceRow(*found),
                [StepRow(*row) for row in reader.rows("steps_of", key)],
                [AttemptRow(*row) for row in reader.rows("attempts_of", key)],
                [InboundRow(*row) for row in reader.rows("inbound_of", key)],
                [LifecycleRow(*row) for row in reader.rows("lifecycle_of", key)],
                None if delivery is None else DeliveryRow(*delivery),
            )


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino


def _identity_or_none(path: Path) -> Identity:
    try:
        return _identity(path)
    except FileNotFoundError:
        return None


def _marks(identities: tuple[Identity, ...]) -> list[int]:
    return [number for identity in identities for number in (identity or (0, 0))]


def _write_rows(raw: apsw.Connection, rows: Rows) -> None:
    for name, text in _WRITES:
        table: list[tuple[Any, ...]] = getattr(rows, name)
        if table:
            raw.executemany(text, table)


def _roll_back(raw: apsw.Connection) -> None:
    try:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
    except apsw.Error:  # The first error is the one to report; recover() opens a new connection.
        pass
