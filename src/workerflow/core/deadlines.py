"""Deadlines: one time per key, and the earliest of them, cheaply."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Deadlines(Generic[KeyT]):
    """A heap in which a replaced or removed entry stays until it comes to the top.

    >>> deadlines = Deadlines[str]()
    >>> deadlines.set("a", 5); deadlines.set("b", 3); deadlines.set("b", 9)
    >>> deadlines.earliest(), deadlines.pop_due(9)
    (5, ['a', 'b'])
    """

    __slots__ = ("_heap", "_ticket", "_times")

    def __init__(self) -> None:
        self._times: dict[KeyT, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, KeyT]] = []
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: KeyT, at_ms: int) -> None:
        """Give *key* this time in place of any other."""
        self._ticket += 1
        self._times[key] = (at_ms, self._ticket)
        # The ticket keeps equal times in order of asking, and keys themselves are never compared.
        heappush(self._heap, (at_ms, self._ticket, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._times):
            self._heap = [(at, ticket, key) for key, (at, ticket) in self._times.items()]
            heapify(self._heap)

    def remove(self, key: KeyT) -> None:
        """Forget *key*; no effect when it has no time."""
        self._times.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._times.clear()
        self._heap.clear()

    def earliest(self) -> int | None:
        """The earliest time, or None."""
        while self._heap:
            at_ms, ticket, key = self._heap[0]
            if self._times.get(key) == (at_ms, ticket):
                return at_ms
            heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> list[KeyT]:
        """Remove and give the keys whose time has come, earliest first."""
        due = []
        while (at_ms := self.earliest()) is not None and at_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._times[key]
            due.append(key)
        return due
