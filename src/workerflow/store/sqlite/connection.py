"""One connection to an SQLite file: pragmas checked, errors translated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from workerflow.errors import DatabaseError, DatabaseUnavailableError
from workerflow.store.base import StoreBusyError
from workerflow.store.sql import statement

PACKAGE = "workerflow.store.sqlite"


class Connection:
    """A connection that runs the statements of this package by name."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with translated(path):
            self.raw = apsw.Connection(str(path), flags=flags, statementcachesize=100)
            self.raw.set_busy_timeout(0)

    def close(self, *, keeps_log: bool = False) -> None:
        """Close, whatever is under way. The last one to close empties the log, unless it is told to keep it.

        One whose index was deleted takes itself for the last one, and would remove what others have written since.
        """
        if keeps_log:
            with suppress(apsw.ConnectionClosedError):
                self.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.raw.close(True)

    def rows(self, name: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        with translated(self.path):
            return list(self.raw.execute(statement(PACKAGE, name), arguments))

    def row(self, name: str, *arguments: Any) -> tuple[Any, ...] | None:
        """The first row of a statement, if there is one."""
        return next(iter(self.rows(name, *arguments)), None)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See one committed state in all that is read within."""
        self.raw.execute("BEGIN")
        try:
            yield
        finally:
            if self.raw.in_transaction:  # SQLite ends it by itself on some errors.
                self.raw.execute("ROLLBACK")

    def configure(self, synchronous: str) -> None:
        """Set what workerflow relies on. WAL stays in the file for good: make sure first that the file is ours."""
        with translated(self.path):
            self._configure(synchronous)

    def _configure(self, synchronous: str) -> None:
        mode = self.raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode is None or mode[0] != "wal":
            raise DatabaseError(
                f"{self.path}: SQLite gives journal mode {mode!r}, but workerflow needs WAL; "
                "use a writable file on a local disk"
            )
        self.raw.execute(f"PRAGMA synchronous = {synchronous}")
        self.raw.execute("PRAGMA foreign_keys = ON")
        # The triggers' casts and checks must hold for rows written by older files, too.
        self.raw.execute("PRAGMA trusted_schema = OFF")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise workerflow's errors for SQLite's, with the file and what to do."""
    try:
        yield
    except apsw.NotADBError as error:
        raise DatabaseError(f"{path} is not an SQLite database ({error}); give the path of another file") from error
    except apsw.CorruptError as error:
        raise DatabaseError(f"{path} is damaged ({error}); restore it from a backup") from error
    except apsw.CantOpenError as error:
        raise DatabaseError(f"{path} cannot be opened ({error}); check the folder and its permissions") from error
    except (apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise DatabaseError(f"{path} is read-only ({error}); make file and folder writable for this user") from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreBusyError(f"{path} is locked by a foreign transaction ({error}); end that first") from error
    except (apsw.IOError, apsw.FullError, apsw.NoMemError, apsw.ConnectionClosedError) as error:
        raise DatabaseUnavailableError(
            f"{path} refuses for now ({type(error).__name__}: {error}); free space or mend the disk, then try again"
        ) from error
    except apsw.Error as error:
        raise DatabaseError(
            f"{path} is not as workerflow wrote it ({type(error).__name__}: {error}); restore it from a backup, "
            "or give another path"
        ) from error
