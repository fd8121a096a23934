"""The operating system's lock that gives a database file to one engine alone."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_NUMBER = struct.Struct("=q")
_MARKS_MAX = 4
_MARKS = struct.Struct(f"={_MARKS_MAX}q")
_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on a sidecar file. It ends with the process, however that ends.

    Whoever has it may leave a number in the file; ``found`` is the one that the holder before had left when it was
    killed. It is written to shared memory, which survives the process but not the machine. ``show`` leaves marks that
    others may read while the lock is held.

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
        os.ftruncate(descriptor, _NUMBER.size + _MARKS.size)
        self._memory = mmap.mmap(descriptor, _NUMBER.size + _MARKS.size)
        self.found = _NUMBER.unpack_from(self._memory)[0]
        self.note(0)
        self.show([])
        return True

    def __del__(self) -> None:
        self.release()  # An engine that nobody closed must not keep the file for as long as the process lives.

    def note(self, number: int) -> None:
        """Leave a number; 0 is none. No effect without the lock."""
        if self._memory is not None:
            _NUMBER.pack_into(self._memory, 0, number)

    def show(self, marks: Sequence[int]) -> None:
        """Leave up to four marks for others; none of them if there are none. No effect without the lock."""
        if self._memory is not None:
            _MARKS.pack_into(self._memory, _NUMBER.size, *marks, *[0] * (_MARKS_MAX - len(marks)))

    def shown(self) -> list[int]:
        """The marks that whoever had the lock last has left, and may still stand for; empty if there are none."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            found = os.pread(descriptor, _MARKS.size, _NUMBER.size)
            return list(_MARKS.unpack(found)) if len(found) == _MARKS.size and any(found) else []
        finally:
            os.close(descriptor)

    def is_held_by_another(self) -> bool:
        """Whether another process, or another engine of this one, has the lock.

        To find out it is taken for an instant, which may refuse one that begins just then: ask only if it matters.
        """
        if self._memory is not None:
            return False
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def release(self) -> None:
        """Let go, and take the marks back. A repeat does nothing."""
        self.show([])
        self.let_go()

    def let_go(self) -> None:
        """Close this process's copy of the lock, and change nothing of what is left in the file."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _let_go_in_child() -> None:
    for lock in list(_LOCKS):
        lock.let_go()  # What the memory says is the parent's to say.


# Once for all locks: such a hook cannot be taken back.
os.register_at_fork(after_in_child=_let_go_in_child)
