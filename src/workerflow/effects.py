"""Time, timers, identifiers and randomness: the only module that reads them from the system.

Everything else gets an ``Effects`` by argument, so that a test can run thirty days in
milliseconds and the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Timer(Protocol):
    """A callback that has been asked for and can be taken back."""

    def cancel(self) -> None:
        """Do not run the callback; no effect when it ran already."""
        ...


class Effects(Protocol):
    """What the engine may know and ask of the world outside."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """A clock for durations that no one can set."""
        ...

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        """Run *callback* on the running loop, not before wall-clock time *at_ms*."""
        ...

    def call_after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run *callback* on the running loop after so long, whatever happens to the wall clock meanwhile.

        For intervals that nobody records: with ``call_at``, a clock set back an hour would make them an hour longer.
        """
        ...

    def key(self) -> int:
        """A random positive 63-bit integer, for rows that several processes create."""
        ...

    def nonce(self) -> str:
        """32 random hexadecimal digits."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


class _WallTimer:
    """A timer by the wall clock on a loop that only knows the monotonic one.

    A single ``call_later`` would fire an hour late after the clock was set an hour
    forward; so it looks again at least this often.
    """

    LOOK_AGAIN_S = 0.5

    def __init__(self, now_ms: Callable[[], int], at_ms: int, callback: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._at_ms = at_ms
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle = self._arm()

    def _arm(self) -> asyncio.TimerHandle:
        # Rounded up by a millisecond: the loop may fire within its clock's resolution of the asked time.
        remaining_s = (self._at_ms - self._now_ms() + 1) / 1000
        return self._loop.call_later(max(0.0, min(remaining_s, self.LOOK_AGAIN_S)), self._look)

    def _look(self) -> None:
        if self._now_ms() >= self._at_ms:
            self._callback()
        else:
            self._handle = self._arm()

    def cancel(self) -> None:
        self._handle.cancel()


async def pause(effects: Effects, delay_ms: int) -> None:
    """Return after so long."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = effects.call_after(delay_ms, partial(set_done, done))
    try:
        await done
    finally:
        timer.cancel()


def set_done(future: asyncio.Future[None]) -> None:
    """Let a future without a value be done, if it is not yet: what a timer does to its waiter."""
    if not future.done():
        future.set_result(None)


class SystemEffects:
    """The real clock and the operating system's randomness.

    When the wall clock is set back, the time goes on from where it was until the wall clock has caught up, or the
    process ends: a sleep of a minute would else last an hour and a minute.
    """

    SET_BACK_MS = 1000
    """A wall clock that is behind by less is only being adjusted."""

    def __init__(self) -> None:
        self._anchor = (time.time_ns() // 1_000_000, int(time.monotonic() * 1000))

    def now_ms(self) -> int:
        wall_ms, steady_ms = time.time_ns() // 1_000_000, int(time.monotonic() * 1000)
        expected_ms = self._anchor[0] + steady_ms - self._anchor[1]
        if wall_ms < expected_ms - self.SET_BACK_MS:
            return expected_ms
        self._anchor = (wall_ms, steady_ms)
        return wall_ms

    def monotonic_s(self) -> float:
        return time.monotonic()

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        return _WallTimer(self.now_ms, at_ms, callback)

    def call_after(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)

    def key(self) -> int:
        return secrets.randbits(62) + 1

    def nonce(self) -> str:
        return secrets.token_hex(16)

    def random(self) -> float:
        return random.random()
