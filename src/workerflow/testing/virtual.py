"""VirtualEffects: a clock that moves only when told, and identifiers that a seed repeats."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

START_MS = 1_893_456_000_000
"""2030-01-01: far from the present, so that a real clock that slips in is seen at once."""


class VirtualTimer:
    """A callback at a virtual time."""

    __slots__ = ("callback", "is_cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not run the callback."""
        self.is_cancelled = True


class VirtualEffects:
    """Effects whose time stands still between two calls of ``move_to``.

    >>> effects = VirtualEffects(seed=1)
    >>> fired = []
    >>> timer = effects.call_at(effects.now_ms() + 5, lambda: fired.append("now"))
    >>> effects.fire_due(), effects.move_to(effects.now_ms() + 5), effects.fire_due(), fired
    (False, None, True, ['now'])
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_ms = START_MS
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._ticket = 0

    def now_ms(self) -> int:
        """The virtual time."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """The virtual time as a duration."""
        return self._now_ms / 1000

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        """Run *callback* when the clock has been moved there."""
        self._ticket += 1
        timer = VirtualTimer(callback)
        heappush(self._timers, (at_ms, self._ticket, timer))
        return timer

    def call_after(self, delay_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        """Run *callback* when the clock has been moved so far."""
        return self.call_at(self._now_ms + delay_ms, callback)

    def key(self) -> int:
        """A seeded key."""
        return self._random.getrandbits(62) + 1

    def nonce(self) -> str:
        """A seeded nonce."""
        return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        """A seeded number."""
        return self._random.random()

    def next_timer_ms(self) -> int | None:
        """When the next timer is due."""
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def move_to(self, now_ms: int) -> None:
        """Set the clock; it never goes back."""
        self._now_ms = max(self._now_ms, now_ms)

    def fire_due(self) -> bool:
        """Run the timers that are due; whether there was one. Those that they set for now come next time."""
        due = []
        while (at_ms := self.next_timer_ms()) is not None and at_ms <= self._now_ms:
            due.append(heappop(self._timers)[2])
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()
        return bool(due)

    def clear(self) -> None:
        """Forget all timers."""
        self._timers.clear()
