"""Alarms: the one timer of a worker, for the alarms of live instances, of stored ones, and for idleness."""

from __future__ import annotations

from collections.abc import Callable

from workerflow.core.deadlines import Deadlines
from workerflow.effects import Effects, Timer


class Alarms:
    """Three kinds of times, one timer at the earliest of them.

    ``live``: when a live instance must act. ``idle``: when a live one has been idle for long enough. ``stored_ms``:
    the earliest alarm in the database that is not ``live``; never later than that, maybe earlier.
    """

    def __init__(self, effects: Effects, fire: Callable[[int], None]) -> None:
        self.live: Deadlines[int] = Deadlines()
        self.idle: Deadlines[int] = Deadlines()
        self.stored_ms: int | None = None
        self._effects = effects
        self._fire = fire
        self._timer: Timer | None = None
        self._timer_ms: int | None = None
        self._is_closed = False

    def set_live(self, key: int, at_ms: int | None) -> None:
        """An instance in memory has this alarm now, or none."""
        if at_ms is None:
            self.live.remove(key)
        else:
            self.live.set(key, at_ms)
            self.arm()

    def set_idle(self, key: int, at_ms: int) -> None:
        """An instance in memory will have been idle for long enough then."""
        self.idle.set(key, at_ms)
        self.arm()

    def leave(self, key: int, alarm_ms: int | None) -> None:
        """An instance leaves memory; its alarm is in the database."""
        self.live.remove(key)
        self.idle.remove(key)
        if alarm_ms is not None and (self.stored_ms is None or alarm_ms < self.stored_ms):
            self.stored_ms = alarm_ms
        self.arm()

    def is_stored_due(self, now_ms: int) -> bool:
        """Whether the database may have an alarm that has come."""
        return not self._is_closed and self.stored_ms is not None and self.stored_ms <= now_ms

    def arm(self) -> None:
        """Have the timer at the earliest time."""
        times = (self.live.earliest(), self.idle.earliest(), self.stored_ms)
        at_ms = min((time for time in times if time is not None), default=None)
        if at_ms == self._timer_ms or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = None if at_ms is None else self._effects.call_at(at_ms, self._fired)

    def close(self) -> None:
        """Fire no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        self._timer_ms = self._timer = None
        try:
            self._fire(self._effects.now_ms())
        finally:
            self.arm()
