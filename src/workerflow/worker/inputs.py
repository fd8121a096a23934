"""Inputs: what happened to instances and is not durable yet.

When the database refuses an instance's rows, they are discarded and the instance is built anew from what is stored.
What happened since, such as the outcome of a callback, must not be lost with the rows: it is applied again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import NamedTuple

from workerflow.core.instance import Instance


class Input(NamedTuple):
    """One thing that happened. ``reject`` tells whoever waits that it will not be applied.

    ``is_outcome``: a callback has ended. It cannot be asked again without a second effect.
    """

    apply: Callable[[Instance], object]
    reject: Callable[[BaseException], object]
    batch_number: int
    is_outcome: bool = False


class Inputs:
    """The inputs of all instances that are not confirmed by a commit."""

    def __init__(self) -> None:
        self._by_key: dict[int, list[Input]] = {}
        self._order: deque[tuple[int, int]] = deque()

    def add(self, key: int, item: Input) -> None:
        """Remember one more."""
        self._by_key.setdefault(key, []).append(item)
        self._order.append((item.batch_number, key))

    def has(self, key: int) -> bool:
        """Whether an instance has any."""
        return key in self._by_key

    def confirm(self, batch_number: int, refused: Container[int] = ()) -> None:
        """All that was appended up to this batch is durable, also what appended nothing, but for refused instances."""
        while self._order and self._order[0][0] <= batch_number:
            _, key = self._order.popleft()
            if key in refused:
                continue
            left = [item for item in self._by_key.pop(key, ()) if item.batch_number > batch_number]
            if left:
                self._by_key[key] = left

    def take(self, key: int) -> list[Input]:
        """Remove and give those of an instance, oldest first."""
        return self._by_key.pop(key, [])

    def take_all(self) -> list[Input]:
        """Remove and give those of every instance."""
        items = [item for items in self._by_key.values() for item in items]
        self._by_key.clear()
        self._order.clear()
        return items
