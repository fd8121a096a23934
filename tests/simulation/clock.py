"""One virtual time for a whole simulated world: an event loop that lives in it, and the effects of its processes."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from workerflow.effects import set_done
from workerflow.testing.virtual import START_MS, VirtualTimer

TURNS_TO_CLEAN_UP = 10_000
THREAD_MS_MAX = 40
"""How long what is sent to another thread may take to answer."""


class StuckError(Exception):
    """The world does not come to its end within its budget."""


class Clock:
    """Time that passes only when nothing else can happen.

    ``passed_ms`` only grows; the wall clock is that and an offset, which a person may change. Timers are by the wall
    clock: after it was set forth they come sooner, after it was set back later.
    """

    def __init__(self, turns_max: int) -> None:
        self.passed_ms = 0
        self.deadline_ms = 10**15
        self._offset_ms = START_MS
        self._turns = turns_max
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._ticket = 0
        self._stopped: str | None = None

    def wall_ms(self) -> int:
        return self.passed_ms + self._offset_ms

    def set_wall(self, change_ms: int) -> None:
        self._offset_ms += change_ms

    def call_at(self, wall_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        self._ticket += 1
        timer = VirtualTimer(callback)
        heappush(self._timers, (wall_ms, self._ticket, timer))
        return timer

    async def wait(self, milliseconds: int) -> None:
        """Let time pass that no one can set: what a callback takes, how long somebody thinks."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_later(milliseconds / 1000, set_done, done)
        await done

    def stop(self, reason: str) -> None:
        """Go no further."""
        self._stopped = reason

    def turn(self, loop: asyncio.AbstractEventLoop, idle_s: float | None) -> None:
        """One turn of the loop; *idle_s* is how long it has nothing to do, None for ever."""
        if self._stopped is not None:
            reason, self._stopped = self._stopped, None
            raise StuckError(reason)
        self._turns -= 1
        if self._turns < 0:
            self._turns = TURNS_TO_CLEAN_UP
            raise StuckError("the budget of turns is used up: something goes round and round")
        if idle_s is None or idle_s > 0:
            self._pass(idle_s)
        while (at_ms := self._next_ms()) is not None and at_ms <= self.wall_ms():
            timer = heappop(self._timers)[2]
            loop.call_soon(_fire, timer)

    def _pass(self, idle_s: float | None) -> None:
        waits = [] if idle_s is None else [math.ceil(round(idle_s * 1000, 6))]
        if (at_ms := self._next_ms()) is not None:
            waits.append(max(at_ms - self.wall_ms(), 0))
        if not waits:
            raise StuckError("nothing is left that could wake anything")
        self.passed_ms += min(waits)
        if self.passed_ms > self.deadline_ms:
            self.deadline_ms = 10**15
            raise StuckError("time is up")

    def _next_ms(self) -> int | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None


def _fire(timer: VirtualTimer) -> None:
    if not timer.is_cancelled:
        timer.callback()


class _Idle(selectors.SelectSelector):
    """Where the loop would sleep. No socket is ever waited for."""

    def __init__(self, turn: Callable[[float | None], None]) -> None:
        super().__init__()
        self._turn = turn

    def select(self, timeout: float | None = None) -> list[Any]:
        self._turn(timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, and without threads: what would run in one runs at once and is heard of later."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._simulated = clock
        self._chance = chance
        super().__init__(_Idle(partial(clock.turn, self)))

    def time(self) -> float:
        return self._simulated.passed_ms / 1000

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # plainer
        future = self.create_future()
        try:
            settle = partial(future.set_result, func(*args))
        except Exception as error:
            settle = partial(future.set_exception, error)
        later_s = self._chance.randint(0, THREAD_MS_MAX) / 1000
        self.call_later(later_s, lambda: None if future.done() else settle())
        return future


class ProcessEffects:
    """What one process sees of the world. After its death none of its timers comes."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_s(self) -> float:
        return self._clock.passed_ms / 1000

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> VirtualTimer:
        return self._clock.call_at(at_ms, lambda: None if self._is_dead else callback())

    def call_after(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1000, lambda: None if self._is_dead else callback())

    def key(self) -> int:
        return self._chance.getrandbits(62) + 1

    def nonce(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def random(self) -> float:
        return self._chance.random()
