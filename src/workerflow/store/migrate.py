"""Bringing a database to the schema of this version."""

from __future__ import annotations

from collections.abc import Callable

from workerflow.errors import SchemaVersionError


def migrate(stored: int, migrations: list[tuple[int, str]], apply: Callable[[int, str], None], where: str) -> None:
    """Apply the migrations that the database lacks, in order; refuse one that is newer than this version.

    >>> applied = []
    >>> migrate(1, [(1, "first"), (2, "second")], lambda number, _: applied.append(number), "here")
    >>> applied
    [2]
    """
    newest = migrations[-1][0]
    if stored > newest:
        raise SchemaVersionError(
            f"{where} has schema {stored}, but this version of workerflow knows only up to {newest}; "
            "upgrade workerflow, or use another database"
        )
    for number, script in migrations:
        if number > stored:
            apply(number, script)
