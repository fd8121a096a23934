"""Residents: which instances are in memory, and how they come there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workerflow.core.instance import Instance
from workerflow.core.load import InstanceRecord, restore
from workerflow.core.model import TERMINAL
from workerflow.effects import Effects
from workerflow.store.base import Store
from workerflow.worker.registry import Registry
from workerflow.worker.suspects import is_suspect

if TYPE_CHECKING:
    from workerflow.worker.worker import Worker


BLAME_PARTS = 3
"""So many deaths of the process in ``execute()`` are as many as an instance may have."""


class Residents:
    """The instances in memory of one worker, by key and by name. Reading one raises DatabaseError."""

    def __init__(self, worker: Worker, store: Store, registry: Registry, effects: Effects) -> None:
        self.live: dict[int, Instance] = {}
        self._by_name: dict[tuple[str, str], Instance] = {}
        self._worker = worker
        self._store = store
        self._registry = registry
        self._effects = effects

    def obtain(self, key: int, *, is_takeover: bool = False) -> Instance | None:
        """The instance in memory, read from the database if needed; None if there is none."""
        instance = self.live.get(key)
        if instance is None:
            record = self._store.load(key)
            if record is None:
                return None
            instance = self.restore(record)
            self.add(instance)
            self.take_over(instance, is_takeover=is_takeover)
            self._worker.ready(instance)
        return instance

    def find(self, workflow: str, instance_id: str) -> Instance | None:
        """The instance of this name in memory, read from the database if needed; None if there is none."""
        instance = self._by_name.get((workflow, instance_id))
        if instance is None:
            row = self._store.find(workflow, instance_id)
            return None if row is None else self.obtain(row.key)
        return instance

    def insert(self, workflow: str, instance_id: str) -> Instance:
        """A new instance of this name, pending, in memory."""
        instance = self.make_anew(workflow, instance_id, self._effects.nonce())
        self.add(instance)
        self._worker.apply(instance, Instance.insert)
        return instance

    def make_anew(self, workflow: str, instance_id: str, nonce: str) -> Instance:
        """An instance in memory, empty, under a key of its own."""
        return self._make(self._effects.key(), workflow, instance_id, nonce)

    def restore(self, record: InstanceRecord) -> Instance:
        """An instance in memory, as it is stored."""
        row = record.row
        instance = self._make(row.key, row.workflow, row.instance_id, row.nonce)
        restore(instance, record)
        return instance

    def add(self, instance: Instance) -> None:
        """An instance is in memory now."""
        self.live[instance.key] = instance
        self._by_name[(instance.workflow, instance.instance_id)] = instance

    def remove(self, instance: Instance) -> None:
        """An instance is not in memory any more."""
        self.live.pop(instance.key, None)
        name = (instance.workflow, instance.instance_id)
        # Another may have its name: one that another process made at the same moment.
        if self._by_name.get(name) is instance:
            del self._by_name[name]

    def take_over(self, instance: Instance, *, is_takeover: bool) -> None:
        """An instance read from the database is this worker's now; with *is_takeover* its last worker is gone."""
        if instance.status != "running":
            if instance.owner is not None:
                instance.owner = None
                instance.save_progress()
            self._worker.progressed(instance)
            return
        if instance.held_reason is not None:
            return
        instance.owner = self._worker.incarnation
        if is_takeover and any(step.in_flight for step in instance.journal.steps.values()):
            instance.recoveries += 1
        if instance.recoveries > self._worker.recoveries_max:
            instance.hold(
                f"its process ended {instance.recoveries} times in a row while a callback was running; "
                "a callback of it probably kills the process"
            )
            return
        if is_suspect(instance):
            instance.wait_for_turn()
        else:
            # Not save_progress: the deadlines are known only after the replay; the stored alarm must stay till then.
            instance.save_owner()

    def blame(self, key: int) -> None:
        """The process before this one died while it drove an instance, and not by a callback of it."""
        instance = self.obtain(key, is_takeover=True)
        # Also one that was about to begin: its create may be in the mail.
        if instance is None or instance.held_reason is not None or instance.status in TERMINAL:
            return
        # It counts for several: with one that kills the process at once, no other instance gets anywhere.
        instance.recoveries += max(1, self._worker.recoveries_max // BLAME_PARTS)
        if instance.recoveries > self._worker.recoveries_max:
            instance.hold("its process ended again and again while execute() ran; code in execute() probably ends it")
            return
        instance.wait_for_turn()
        self._worker.suspects.blame(instance)

    def _make(self, key: int, workflow: str, instance_id: str, nonce: str) -> Instance:
        entry = self._registry.by_name(workflow)
        definition, delivers = (None, False) if entry is None else (entry.definition, entry.delivers_completion)
        return Instance(self._worker, key, workflow, instance_id, nonce, definition, delivers)
