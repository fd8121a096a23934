"""Hibernation: idle instances leave memory; their rows and their alarm remain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from workerflow.core.instance import Instance
from workerflow.core.model import TERMINAL
from workerflow.settings import Settings
from workerflow.worker.alarms import Alarms


class HibernationHost(Protocol):
    """What hibernation needs of the worker."""

    live: dict[int, Instance]
    alarms: Alarms

    def now_ms(self) -> int: ...
    def is_awake(self, instance: Instance) -> bool: ...
    def take_mail(self, instance: Instance) -> bool: ...
    def when_durable(self, instance: Instance, effect: Callable[..., object], *arguments: Any) -> None: ...
    def wake(self, instance: Instance) -> None: ...
    def remove(self, instance: Instance) -> None: ...


class Hibernation:
    """Decides which instances of one worker leave memory."""

    def __init__(self, host: HibernationHost, settings: Settings) -> None:
        self._host = host
        self._wait_ms = round(settings.hibernate_after_s * 1000)
        self._idle_max = settings.idle_live_max

    def look(self, instance: Instance) -> None:
        """After a drive: an idle instance leaves at once, or when it has been idle for long enough."""
        idle = self._host.alarms.idle
        if not instance.is_idle() or self._host.live.get(instance.key) is not instance:
            idle.remove(instance.key)
            return
        is_over = instance.status in TERMINAL and instance.delivery_ms is None
        if is_over or self._wait_ms == 0 or len(idle) >= self._idle_max:
            self.hibernate(instance)
        else:
            self._host.alarms.set_idle(instance.key, self._host.now_ms() + self._wait_ms)

    def hibernate(self, instance: Instance) -> None:
        """Release an idle instance, unless its alarm is near; it leaves when that is durable."""
        alarm_ms = instance.alarm_ms()
        is_alarm_near = alarm_ms is not None and alarm_ms - self._host.now_ms() <= self._wait_ms
        if is_alarm_near or not instance.is_idle():
            return
        # Mail that comes between this look and the commit refuses the batch: nobody would read it afterwards.
        if instance.is_drivable() and self._host.take_mail(instance):
            return
        if instance.owner is not None:
            instance.owner = None
            instance.save_progress()
        self._host.when_durable(instance, self._leave, instance)

    def _leave(self, instance: Instance) -> None:
        if self._host.live.get(instance.key) is not instance:
            return
        if instance.owner is None and instance.is_idle() and not self._host.is_awake(instance):
            self._host.remove(instance)
        else:
            # Something came in between; its row must name an owner again.
            self._host.wake(instance)
