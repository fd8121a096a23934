"""The rows that one commit makes durable, in the order in which they must be written.

Every row begins with its instance's key, so that a refused batch can be taken apart by instance. The order matters:
outcomes come before starts (a retry without delay would otherwise meet its own started attempt), cuts come after
starts (a cancel may end an attempt that began in the same batch), and an instance ends after everything inside it.
"""

from __future__ import annotations

from typing import Any

Row = tuple[Any, ...]

WRITE_ORDER = (
    "instance_insert",
    "instance_initialize",
    "instance_transition",
    "step_insert",
    "step_resolve",
    "step_abandon",
    "attempt_end",
    "attempt_start",
    "attempt_cut",
    "inbound_insert",
    "inbound_claim",
    "instance_finish",
    "lifecycle_insert",
    "instance_progress",
    "delivery_insert",
    "delivery_update",
    "mail_take",
)


class Rows:
    """One list of rows per statement."""

    __slots__ = WRITE_ORDER

    instance_insert: list[Row]  # key, workflow, instance id, nonce, time
    instance_initialize: list[Row]  # key, input, time
    instance_transition: list[Row]  # key, status, time
    step_insert: list[Row]  # key, id, ordinal, kind, parent, max attempts, state, wake, event, timeout, time
    step_resolve: list[Row]  # key, id, state, time, sequence
    step_abandon: list[Row]  # key, id, time or None
    attempt_end: list[Row]  # key, id, number, state, time, type, json, name, message, detail, next, counts, sequence
    attempt_start: list[Row]  # key, id, number, time
    attempt_cut: list[Row]  # as attempt_end
    inbound_insert: list[Row]  # key, number, name, payload, event id, time
    inbound_claim: list[Row]  # key, number, step id, time
    instance_finish: list[Row]  # key, status, result type, json, failure name, message, data, traceback, time
    lifecycle_insert: list[Row]  # key, number, type, time, reason
    instance_progress: list[Row]  # key, alarm, owner, recoveries, held reason, held time
    delivery_insert: list[Row]  # key, lifecycle number, time
    delivery_update: list[Row]  # key, attempts, next attempt, delivered, last error
    mail_take: list[Row]  # key, mail id, time, outcome

    def __init__(self) -> None:
        for name in WRITE_ORDER:
            setattr(self, name, [])

    def take(self) -> Rows:
        """Move everything out: the journals keep appending to this same object."""
        taken = Rows()
        for name in WRITE_ORDER:
            setattr(taken, name, getattr(self, name))
            setattr(self, name, [])
        # Only the last state counts, and one in between may not fit the end that another statement has written.
        taken.instance_progress = list({row[0]: row for row in taken.instance_progress}.values())
        return taken

    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not any(getattr(self, name) for name in WRITE_ORDER)

    def instance_keys(self) -> set[int]:
        """The instances that have rows here."""
        return {row[0] for name in WRITE_ORDER for row in getattr(self, name)}

    def by_instance(self) -> dict[int, Rows]:
        """The rows of each instance apart, in the same order."""
        parts: dict[int, Rows] = {}
        for name in WRITE_ORDER:
            for row in getattr(self, name):
                part = parts.get(row[0]) or parts.setdefault(row[0], Rows())
                getattr(part, name).append(row)
        return parts

    def discard(self, instance_key: int) -> None:
        """Forget the rows of one instance."""
        for name in WRITE_ORDER:
            rows: list[Row] = getattr(self, name)
            if rows:
                rows[:] = [row for row in rows if row[0] != instance_key]
