"""The Store protocol: what the engine asks of a database, and nothing about how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from workerflow.core.load import InstanceRecord, InstanceRow
from workerflow.core.rows import Rows
from workerflow.errors import DatabaseLockedError


class DeposedError(Exception):
    """Another incarnation of the worker has begun: this one may write nothing more."""


class StoreBusyError(DatabaseLockedError):
    """A foreign transaction holds the database; nothing was written."""


MailKind = Literal["create", "event", "pause", "resume", "cancel"]


class Mail(NamedTuple):
    """A command or event from another process."""

    mail_id: int
    key: int
    kind: MailKind
    name: str | None
    payload: str | None
    event_id: str | None
    reason: str | None
    sent_at: int


@dataclass(slots=True)
class Batch:
    """What one commit makes durable.

    ``guarded``: instances that must have no untaken mail left. ``refused``: the instances whose rows were left out,
    with the reason; known even when the outcome of the commit is not.
    """

    number: int
    incarnation: int
    rows: Rows
    guarded: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)


MAIL_WAITS = "mail came first"
"""Why a guarded instance's rows were refused."""


class Store(Protocol):
    """One database. All methods block; only ``commit``, ``recover`` and ``send`` may be called in another thread.

    Reads see committed state only. Every method raises DatabaseUnavailableError when the database refuses for now.
    """

    def open(self, *, execute: bool, now_ms: int) -> None:
        """Open, migrate if needed, and with *execute* take the file for this engine alone.

        Does not wait. Raises StoreBusyError when a foreign transaction holds it, DatabaseLockedError when another
        engine does, SchemaVersionError or DatabaseError, and leaves nothing open then.
        """
        ...

    def close(self) -> None:
        """Let go of everything. A repeat does nothing."""
        ...

    def begin_worker(self, process_id: int, now_ms: int, workflows: list[str]) -> int:
        """A new incarnation, greater than all before; older ones can commit nothing from now on."""
        ...

    def commit(self, batch: Batch, *, busy_timeout_ms: int) -> None:
        """Write a batch in one transaction, but for the rows of instances that it notes in ``batch.refused``.

        Raises StoreBusyError or DeposedError when nothing was written, and DatabaseUnavailableError when that is not
        known: then ``recover`` tells.
        """
        ...

    def recover(self, incarnation: int) -> int:
        """Connect anew after an error, and give the number of the last batch that is durable."""
        ...

    def note_driven(self, key: int | None) -> None:
        """Remember beyond a SIGKILL which instance's body is running; None: no body is. Cheap, and not durable."""
        ...

    def driven_at_death(self) -> int | None:
        """The instance whose body was running when the process that had the database before was killed."""
        ...

    def load(self, key: int) -> InstanceRecord | None:
        """Everything stored of an instance."""
        ...

    def find(self, workflow: str, instance_id: str) -> InstanceRow | None:
        """The row of an instance, by its name."""
        ...

    def owned(self) -> list[int]:
        """Instances that were in a worker's memory: on a file taken for this engine, those of workers that are gone."""
        ...

    def open_deliveries(self) -> list[int]:
        """Instances whose completion was being delivered when their worker ended."""
        ...

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Instances whose alarm has come, earliest first."""
        ...

    def next_alarm(self, after_ms: int) -> int | None:
        """The earliest alarm later than this."""
        ...

    def untaken_mail(self, limit: int) -> list[Mail]:
        """Mail that nobody has applied, oldest first."""
        ...

    def untaken_mail_of(self, key: int) -> list[Mail]:
        """The same of one instance."""
        ...

    def list(
        self, workflow: str | None, status: str | None, after: tuple[int, int] | None, limit: int
    ) -> list[InstanceRow]:
        """A page of instances, newest first, *after* the creation time and key of the last of the page before."""
        ...

    def send(self, workflow: str, instance_id: str, new_key: int, nonce: str, mail: Mail, busy_timeout_ms: int) -> str:
        """Put mail in an instance's box, making the instance if needed, in a transaction of its own.

        Gives ``queued``, ``duplicate`` or ``dropped``. A repeated create or event id changes nothing.
        """
        ...
