"""WakeUps: what brings instances into memory and into motion: mail, and alarms that have come."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from workerflow.core.instance import Instance
from workerflow.core.model import TERMINAL
from workerflow.effects import Effects, Timer
from workerflow.errors import DatabaseError
from workerflow.settings import Settings
from workerflow.store.base import Store
from workerflow.worker.alarms import Alarms

if TYPE_CHECKING:
    from workerflow.worker.worker import Worker

_logger = logging.getLogger("workerflow")

CLAIM_MAX = 1000
"""Instances taken up at a time, so that a crowd of due alarms does not stop the loop."""


LOOK_AGAIN_MS = 500
"""When to look again after the database refused to be read."""


class WakeUps:
    """Looks for mail and due alarms: when told, when an alarm comes, and every ``poll_interval_ms``."""

    def __init__(self, worker: Worker, store: Store, effects: Effects, settings: Settings) -> None:
        self._worker = worker
        self._store = store
        self._effects = effects
        self._interval_ms = settings.poll_interval_ms
        self.alarms = Alarms(effects, self._alarms_fired)
        self._timer: Timer | None = None
        self._looks_after_commit = False

    def begin(self) -> None:
        """The first look, which raises what the database has to say, then the polling."""
        self.alarms.stored_ms = self._effects.now_ms()
        self._look()
        self.poll()

    def poll(self) -> None:
        """Look now, then again after the interval."""
        if self._worker.is_stopping:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._look()
            self._worker.attempts.report_stuck()
        except DatabaseError as error:
            self.alarms.stored_ms = self._effects.now_ms() + LOOK_AGAIN_MS
            _logger.warning("looking for mail and alarms will be tried again: %s", error)
            self._worker.committer.doubt()
        finally:
            self._timer = self._effects.call_after(self._interval_ms, self.poll)

    def after_commit(self) -> None:
        """A commit may have brought to light what a look before it could not reach."""
        if self._looks_after_commit:
            self._looks_after_commit = False
            self.alarms.stored_ms = self._effects.now_ms()
            self._effects.call_after(0, self.poll)

    def deliver(self, key: int) -> None:
        """Begin to deliver the completion of an instance that has ended."""
        worker = self._worker
        worker.gated_deliveries.discard(key)
        instance = worker.live.get(key)
        if instance is not None and not worker.is_stopping:
            worker.deliveries.deliver(instance)

    def close(self) -> None:
        """Wake nothing any more."""
        self.alarms.close()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._worker.mailbox.take_all(CLAIM_MAX):
            self._looks_after_commit = True
        self._claim_due()

    def _alarms_fired(self, now_ms: int) -> None:
        worker = self._worker
        for key in self.alarms.live.pop_due(now_ms):
            self.alarm(key)
        for key in self.alarms.idle.pop_due(now_ms):
            instance = worker.live.get(key)
            if instance is not None:
                worker.guarded(instance, partial(worker.hibernation.hibernate, instance))
        try:
            self._claim_due()
        except DatabaseError as error:
            self.alarms.stored_ms = now_ms + LOOK_AGAIN_MS
            _logger.warning("looking for due alarms will be tried again: %s", error)
        worker.committer.schedule()

    def alarm(self, key: int) -> None:
        """Let an instance in memory act on what is due."""
        worker = self._worker
        instance = worker.live.get(key)
        if instance is None or worker.is_stopping:
            return
        if instance.status not in TERMINAL:
            worker.guarded(instance, partial(worker.apply, instance, Instance.act_on_deadlines))
        elif key not in worker.gated_deliveries and instance.is_delivery_due():
            # Not so if it has ended while a look was put off: its end may not be durable, or have nobody to tell.
            self.deliver(key)

    def _claim_due(self) -> None:
        now_ms = self._effects.now_ms()
        if self._worker.is_stopping or not self.alarms.is_stored_due(now_ms):
            return
        due = self._store.due(now_ms, CLAIM_MAX)
        taken = [key for key in due if key not in self._worker.live]
        for key in taken:
            self._worker.residents.obtain(key)
        has_more = len(due) == CLAIM_MAX
        # All of these may have been taken before, without being marked as owned yet: a commit will change that.
        self._looks_after_commit |= has_more and not taken
        self.alarms.stored_ms = now_ms if has_more and taken else self._store.next_alarm(now_ms)
        self.alarms.arm()
