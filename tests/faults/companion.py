"""A second process beside the one that is tested: it locks, reads and copies the files by order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw


class Companion:
    """Forked at once, so before there are threads. ``do`` returns when the order is carried out.

    Orders: ``lock`` and ``unlock`` hold and end a write transaction; ``read`` and ``unread`` a snapshot; ``copy NAME
    FOLDER`` and ``delete NAME`` are about files of the database's folder. The answer is ``done`` or an error.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._orders, orders = os.pipe()
        answers, self._answers = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(orders)
            os.close(answers)
            self._serve()
        os.close(self._orders)
        os.close(self._answers)
        self._to, self._from = os.fdopen(orders, "w"), os.fdopen(answers, "r")

    def do(self, order: str) -> str:
        self._to.write(f"{order}\n")
        self._to.flush()
        return self._from.readline().strip()

    def close(self) -> None:
        """End it: it sees the end of its orders. Only for the process that made it."""
        self._to.close()
        self._from.close()
        os.waitpid(self._child, 0)

    def _serve(self) -> None:
        connection: apsw.Connection | None = None
        with os.fdopen(self._orders, "r") as orders:
            for line in orders:
                word, *arguments = line.split()
                try:
                    if word in ("lock", "read"):
                        connection = connection or apsw.Connection(str(self._database))
                        connection.set_busy_timeout(10_000 if word == "lock" else 100)
                    self._carry_out(word, arguments, connection)
                    answer = "done"
                except (apsw.Error, OSError) as error:
                    answer = f"{type(error).__name__}: {error}"
                os.write(self._answers, f"{answer}\n".encode())
        os._exit(0)

    def _carry_out(self, word: str, arguments: list[str], connection: apsw.Connection | None) -> None:
        if word in ("copy", "delete"):
            file = self._database.with_name(arguments[0])
            if word == "copy":
                shutil.copy(file, arguments[1])
            else:
                file.unlink()
            return
        assert connection is not None
        if word == "lock":
            connection.execute("BEGIN IMMEDIATE")
        elif word == "read":
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        else:
            connection.execute("ROLLBACK")
