"""Statements, read from the .sql files beside a store."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def statement(package: str, name: str) -> str:
    """The text of ``<name>.sql`` in *package*."""
    return resources.files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8")


@cache
def migrations(package: str) -> list[tuple[int, str]]:
    """The numbered migrations of *package*, in order."""
    folder = resources.files(package).joinpath("migrations")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(int(entry.name.split("_")[0]), entry.read_text(encoding="utf-8")) for entry in files]
