"""The operating system's lock that gives a database file to one engine alone."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import weakref
from pathlib import Path

_NUMBER = struct.Struct("=q")
_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on a sidecar file. It ends with the process, however that ends.

    Whoever has it may leave a number in the file; ``found`` is the one that the holder before had left when it was
    killed. It is written to shared memory, which survives the process but not the machine.

    ``flock`` and not SQLite's own locks: those come and go with transactions. A forked child would share the lock and
    keep it after the parent's death, so the child closes its copy at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._memory: mmap.mmap | None = None
        self.found = 0
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
        os.ftruncate(descriptor, _NUMBER.size)
        self._memory = mmap.mmap(descriptor, _NUMBER.size)
        self.found = _NUMBER.unpack(self._memory)[0]
        self.note(0)
        return True

    def __del__(self) -> None:
        self.release()  # An engine that nobody closed must not keep the file for as long as the process lives.

    def note(self, number: int) -> None:
        """Leave a number; 0 is none. No effect without the lock."""
        if self._memory is not None:
            _NUMBER.pack_into(self._memory, 0, number)

    def release(self) -> None:
        """Let go. A repeat does nothing."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _let_go_in_child() -> None:
    for lock in list(_LOCKS):
        lock.release()


# Once for all locks: such a hook cannot be taken back.
os.register_at_fork(after_in_child=_let_go_in_child)
