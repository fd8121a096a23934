"""Rebuilder: builds an instance anew whose rows the database refused, or whose driving failed."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from workerflow.core.instance import Instance
from workerflow.core.load import InstanceRecord
from workerflow.core.model import TERMINAL
from workerflow.errors import DatabaseError, WorkflowHeldError
from workerflow.store.base import MAIL_WAITS, Batch, Store

if TYPE_CHECKING:
    from workerflow.worker.inputs import Input
    from workerflow.worker.worker import Worker

_logger = logging.getLogger("workerflow")

NO_KEY = 0
RETRY_MS = 500
REFUSALS_MAX = 2
"""Refused so often, an instance is held: building it anew does not help."""


class Rebuilder:
    """Rebuilds instances of one worker. What happened to them and is not durable is applied again, not lost."""

    def __init__(self, worker: Worker, store: Store) -> None:
        self._worker = worker
        self._store = store
        self._refusals: dict[int, int] = {}
        # Outcomes that meet refused rows. Lost only with the process, like every outcome that is not durable.
        self._kept: dict[int, list[Input]] = {}

    def forget(self, key: int) -> None:
        """An instance has left memory."""
        self._refusals.pop(key, None)

    def released(self, instance: Instance) -> None:
        """A held instance may move again: before it does, it gets the outcomes that were kept for it."""
        self._apply(instance, self._kept.pop(instance.key, []), is_stored=True)

    def refused(self, key: int, reason: str) -> None:
        """The database has left out the rows of an instance."""
        if reason == MAIL_WAITS or self._was_made_by_another(key):
            self._rebuild(key, self._refusals.get(key, 0), None)
            return
        refusals = self._refusals.get(key, 0) + 1
        instance = self._worker.live.get(key)
        label = "an instance" if instance is None else instance.label()
        _logger.error("the database refused the rows of %s: %s", label, reason)
        hold_reason = f"the database refused its rows twice: {reason}"
        self._rebuild(key, refusals, hold_reason if refusals >= REFUSALS_MAX else None)

    def _was_made_by_another(self, key: int) -> bool:
        """Whether another process made the instance at the same moment, under a key of its own."""
        instance = self._worker.live.get(key)
        try:
            row = None if instance is None else self._store.find(instance.workflow, instance.instance_id)
        except DatabaseError:
            return False  # Reading it again, which is what follows, says so and tries again.
        return row is not None and row.key != key

    def confirm(self, batch: Batch) -> None:
        """A batch is durable: refusals count in a row only."""
        if self._refusals:
            for key in batch.rows.instance_keys() - batch.refused.keys():
                self._refusals.pop(key, None)

    def broken(self, instance: Instance, error: Exception) -> None:
        """Driving an instance raised an error of ours."""
        _logger.exception("%s is held: driving it raised an error", instance.label(), exc_info=error)
        reason = f"driving it raised {type(error).__name__}: {error}; please report this"
        self._worker.committer.forget(instance.key)
        instance.is_discarded = True
        # Not at once: rows of it may be in the batch that is being written, and are to be read with the others.
        self._worker.committer.when_durable(NO_KEY, self._rebuild, (instance.key, 0, reason))

    def _rebuild(self, key: int, refusals: int, hold_reason: str | None) -> None:
        worker = self._worker
        old = worker.live.get(key)
        if old is None:
            return
        old.is_discarded = True
        worker.committer.forget(key)
        try:
            # By name: another process may have made the instance under another key at the same moment.
            row = self._store.find(old.workflow, old.instance_id)
            record = None if row is None or (row.key in worker.live and row.key != key) else self._store.load(row.key)
        except DatabaseError as error:
            _logger.warning("%s cannot be read, trying again: %s", old.label(), error)
            worker.after(RETRY_MS, lambda: self._rebuild(key, refusals, hold_reason))
            return
        worker.remove(old)
        worker.mailbox.forget(key)
        inputs = worker.inputs.take(key)
        if row is not None and record is None:
            self._apply(worker.live[row.key], inputs, is_stored=True)
            return
        instance = self._build(old, record)
        instance.stepping.attach(old.stepping)
        self._refusals[instance.key] = refusals
        if hold_reason is not None:
            self._hold(instance, record is not None, inputs, hold_reason)
            return
        if record is not None:
            worker.residents.take_over(instance, is_takeover=False)
            worker.guarded(instance, lambda: worker.mailbox.take(instance))
        self._apply(instance, inputs, is_stored=record is not None)

    def _build(self, old: Instance, record: InstanceRecord | None) -> Instance:
        residents = self._worker.residents
        if record is None:
            instance = residents.make_anew(old.workflow, old.instance_id, old.nonce)
        else:
            instance = residents.restore(record)
        residents.add(instance)
        return instance

    def _apply(self, instance: Instance, inputs: list[Input], *, is_stored: bool) -> None:
        for item in inputs:
            if not (is_stored and item.apply is Instance.insert):
                again = partial(self._worker.apply, instance, item.apply, item.reject, is_outcome=item.is_outcome)
                self._worker.guarded(instance, again)
        self._worker.ready(instance)

    def _hold(self, instance: Instance, is_stored: bool, inputs: list[Input], reason: str) -> None:
        self._kept[instance.key] = [item for item in inputs if item.is_outcome]
        if not is_stored:
            self._worker.remove(instance)  # There is nothing to hold: the next create begins anew.
        elif instance.status not in TERMINAL:
            instance.hold(reason)
        error = WorkflowHeldError(instance.workflow, instance.instance_id, reason)
        for item in inputs:
            if not item.is_outcome:
                self._tell_when_durable(item, error)

    def _tell_when_durable(self, item: Input, error: WorkflowHeldError) -> None:
        # Not at once: whoever is told of a hold must find it. Until then it stays an input, one that does nothing, so
        # that an engine that is closed before still answers.
        committer = self._worker.committer
        self._worker.inputs.add(NO_KEY, item._replace(apply=_nothing, batch_number=committer.number))
        committer.when_durable(NO_KEY, item.reject, (error,))


def _nothing(instance: Instance) -> None:
    """What a rejected input does."""
