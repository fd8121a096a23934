"""Mailbox: apply the commands and events that other processes have put into the database."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, assert_never

from workerflow.core.instance import Instance
from workerflow.core.journal import Inbound
from workerflow.core.model import Receipt
from workerflow.core.rows import Rows
from workerflow.effects import Effects
from workerflow.errors import WorkflowError
from workerflow.store.base import Mail, Store
from workerflow.worker.residents import Residents


class MailHost(Protocol):
    """What the mailbox needs of the worker."""

    rows: Rows
    residents: Residents

    def guarded(self, instance: Instance, action: Callable[[], object]) -> None: ...
    def wake(self, instance: Instance) -> None: ...
    def ready(self, instance: Instance) -> None: ...
    def when_durable(self, instance: Instance, effect: Callable[..., object], *arguments: Any) -> None: ...


class Mailbox:
    """Takes mail in the order in which it was sent. Mail is marked in the batch that applies it."""

    def __init__(self, host: MailHost, store: Store, effects: Effects) -> None:
        self._host = host
        self._store = store
        self._effects = effects
        # Applied, but still untaken in committed state.
        self._applied: set[int] = set()

    def take_all(self, limit: int) -> bool:
        """Apply what has come for any instance; whether there may be more, which a commit will bring to light."""
        mails = self._store.untaken_mail(limit)
        for mail in mails:
            instance = self._host.residents.obtain(mail.key)
            if instance is not None and not instance.is_discarded:
                self._host.guarded(instance, partial(self._take, instance, mail))
        return len(mails) == limit

    def take(self, instance: Instance) -> bool:
        """Apply what has come for this instance; whether there was any."""
        mails = [mail for mail in self._store.untaken_mail_of(instance.key) if mail.mail_id not in self._applied]
        for mail in mails:
            self._take(instance, mail)
        return bool(mails)

    def forget(self, key: int) -> None:
        """An instance's rows were discarded: its untaken mail is to be applied again."""
        self._applied -= {mail.mail_id for mail in self._store.untaken_mail_of(key)}

    def _take(self, instance: Instance, mail: Mail) -> None:
        if mail.mail_id in self._applied:
            return
        self._applied.add(mail.mail_id)
        self._host.wake(instance)
        # Not a remembered input: a reloaded instance finds its untaken mail in the database again.
        outcome = self._apply(instance, mail)
        self._host.rows.mail_take.append((instance.key, mail.mail_id, self._effects.now_ms(), outcome))
        self._host.ready(instance)
        self._host.when_durable(instance, self._applied.discard, mail.mail_id)

    def _apply(self, instance: Instance, mail: Mail) -> str:
        match mail.kind:
            case "create":
                return "created" if instance.create(mail.payload) else "exists"
            case "event":
                return receive(instance, mail.name or "", mail.payload, mail.event_id, mail.sent_at)[0]
            case "pause":
                instance.pause()
            case "cancel":
                instance.cancel(mail.reason)
            case "resume":
                try:
                    instance.resume()
                except WorkflowError as error:
                    return f"refused: {error}"
            case other:
                assert_never(other)
        return "done"


def receive(
    instance: Instance, name: str, payload: str | None, event_id: str | None, sent_ms: int | None = None
) -> tuple[Receipt, Inbound | None]:
    """Give an instance an event: the receipt as known now, and the event if it was accepted."""
    if instance.is_duplicate(event_id):
        return Receipt.duplicate, None
    event = instance.receive(name, payload, event_id, sent_ms)
    if event is None:
        return Receipt.dropped, None
    return (Receipt.queued if instance.is_unused(event) else Receipt.used), event
