"""The operating system's lock that gives a database file to one engine alone."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on a sidecar file. It ends with the process, however that ends.

    ``flock`` and not SQLite's own locks: those come and go with transactions. A forked child would share the lock and
    keep it after the parent's death, so the child closes its copy at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        _LOCKS.add(self)

    def acquire(self) -> bool:
        """Take the lock if nobody has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go. A repeat does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _let_go_in_child() -> None:
    for lock in list(_LOCKS):
        lock.release()


# Once for all locks: such a hook cannot be taken back.
os.register_at_fork(after_in_child=_let_go_in_child)
