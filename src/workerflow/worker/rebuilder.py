"""Rebuilder: builds an instance anew whose rows the database refused, or whose driving failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from workerflow.core.instance import Instance
from workerflow.core.model import TERMINAL
from workerflow.errors import DatabaseUnavailableError
from workerflow.store.base import MAIL_WAITS, Store

if TYPE_CHECKING:
    from workerflow.worker.inputs import Input
    from workerflow.worker.worker import Worker

_logger = logging.getLogger("workerflow")

REFUSALS_MAX = 2
"""Refused so often, an instance is held: building it anew does not help."""


class Rebuilder:
    """Rebuilds instances of one worker. What happened to them and is not durable is applied again, not lost."""

    def __init__(self, worker: Worker, store: Store) -> None:
        self._worker = worker
        self._store = store
        self._refusals: dict[int, int] = {}

    def forget(self, key: int) -> None:
        """An instance has left memory."""
        self._refusals.pop(key, None)

    def refused(self, key: int, reason: str) -> None:
        """The database has left out the rows of an instance."""
        if reason == MAIL_WAITS:
            self._rebuild(key, self._refusals.get(key, 0), None)
            return
        refusals = self._refusals.get(key, 0) + 1
        instance = self._worker.live.get(key)
        label = "an instance" if instance is None else instance.label()
        _logger.error("the database refused the rows of %s: %s", label, reason)
        hold_reason = f"the database refused its rows twice: {reason}"
        self._rebuild(key, refusals, hold_reason if refusals >= REFUSALS_MAX else None)

    def broken(self, instance: Instance, error: Exception) -> None:
        """Driving an instance raised an error of ours."""
        _logger.exception("%s is held: driving it raised an error", instance.label(), exc_info=error)
        reason = f"driving it raised {type(error).__name__}: {error}; please report this"
        self._rebuild(instance.key, self._refusals.get(instance.key, 0), reason)

    def _rebuild(self, key: int, refusals: int, hold_reason: str | None) -> None:
        worker = self._worker
        old = worker.live.get(key)
        if old is None:
            return
        worker.committer.forget(key)
        worker.remove(old)
        worker.mailbox.forget(key)
        inputs = worker.inputs.take(key)
        instance, is_stored = self._load(old)
        worker.add(instance)
        instance.stepping.attach(old.stepping)
        self._refusals[instance.key] = refusals
        if hold_reason is not None:
            self._hold(instance, is_stored, inputs, hold_reason)
            return
        if is_stored:
            worker.mailbox.take(instance)
        for item in inputs:
            if not is_stored or item.apply is not Instance.insert:
                worker.apply(instance, item.apply, item.reject)
        worker.ready(instance)

    def _load(self, old: Instance) -> tuple[Instance, bool]:
        # By name: another process may have made the instance under another key at the same moment.
        row = self._store.find(old.workflow, old.instance_id)
        record = None if row is None else self._store.load(row.key)
        if record is None:
            return self._worker.make(self._worker.new_key(), old.workflow, old.instance_id, old.nonce), False
        instance = self._worker.restore(record)
        self._worker.take_over(instance, is_takeover=False)
        return instance, True

    def _hold(self, instance: Instance, is_stored: bool, inputs: list[Input], reason: str) -> None:
        for item in inputs:
            item.reject(DatabaseUnavailableError(f"{instance.label()} is held: {reason}"))
        if is_stored and instance.status not in TERMINAL:
            instance.hold(reason)
