"""Suspects: instances that may be what kills the process. They are begun one at a time.

When a process dies, every instance with a callback in flight may have been the reason. Begun together again they would
die together again, until the innocent ones have no attempt left and are held with the guilty one. Begun one at a time,
the innocent ones come to an outcome, which clears them, and a death blames one of them only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from workerflow.core.instance import Instance
from workerflow.effects import Effects, Timer

SUSPECT_FROM = 2
"""Recoveries without an outcome that make a suspect. After one death all begin at once: mostly nobody is guilty."""
ALONE_MS = 1000
"""How long the first suspect is left alone with its callback; twice as long at each further death."""


def is_suspect(instance: Instance) -> bool:
    """Whether an instance may begin only when its turn has come."""
    return instance.recoveries >= SUSPECT_FROM


class SuspectsHost(Protocol):
    """What suspects need of the worker."""

    live: dict[int, Instance]

    def ready(self, instance: Instance) -> None: ...
    def when_durable(self, instance: Instance, effect: Callable[..., object], *arguments: Any) -> None: ...


class Suspects:
    """Says which instances of one worker may be driven."""

    def __init__(self, host: SuspectsHost, effects: Effects) -> None:
        self._host = host
        self._effects = effects
        # The process died while it drove them: not again before that is durable.
        self._blamed: set[int] = set()
        self._waiting: set[int] = set()
        self._admitted: set[int] = set()
        self._alone: int | None = None
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        return bool(self._blamed or self._waiting or self._admitted)

    def blame(self, instance: Instance) -> None:
        """The process died while it drove this instance, which has been noted in its rows."""
        self._blamed.add(instance.key)
        self._host.when_durable(instance, self._note_is_durable, instance.key)

    def admits(self, instance: Instance) -> bool:
        """Whether an instance may be driven now. If not, it is made ready when it may."""
        if not is_suspect(instance) and instance.key not in self._blamed:
            return True
        if instance.key in self._admitted or not instance.is_drivable():
            return True
        instance.wait_for_turn()
        if instance.key not in self._blamed:
            self._waiting.add(instance.key)
            if self._timer is None:
                # Not at once: whoever asks first is not the least suspect.
                self._timer = self._effects.call_after(0, self._admit_next)
        return False

    def clear(self, key: int) -> None:
        """An instance has come to an outcome, or has left memory."""
        for keys in (self._blamed, self._waiting, self._admitted):
            keys.discard(key)
        if self._alone == key:
            self._admit_next()

    def close(self) -> None:
        """Admit nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _note_is_durable(self, key: int) -> None:
        self._blamed.discard(key)
        if key in self._host.live:
            self._host.ready(self._host.live[key])

    def _admit_next(self) -> None:
        self.close()
        self._alone = self._timer = None
        waiting = [self._host.live[key] for key in self._waiting if key in self._host.live]
        if not waiting:
            return
        instance = min(waiting, key=lambda instance: (instance.recoveries, instance.key))
        self._waiting.discard(instance.key)
        self._admitted.add(instance.key)
        self._alone = instance.key
        alone_ms = ALONE_MS * 2 ** (instance.recoveries - SUSPECT_FROM)
        self._timer = self._effects.call_after(alone_ms, self._admit_next)
        self._host.ready(instance)
