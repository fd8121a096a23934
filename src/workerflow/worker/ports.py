"""The two ways to reach an instance: in memory of this engine's worker, or by mail to another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from workerflow.codec import UNDECLARED, UNSET, checked_text, dump_json, is_exact_json, store_self_declared
from workerflow.core.context import step_record
from workerflow.core.instance import Instance, not_resumable
from workerflow.core.journal import Journal
from workerflow.core.load import InstanceRecord, InstanceRow, fill_journal
from workerflow.core.model import Receipt, Status, Step, WorkflowEvent, to_datetime
from workerflow.core.rows import Rows
from workerflow.definition import checked_id, declared_types
from workerflow.effects import Effects
from workerflow.errors import DefinitionError, InvalidValueError, WorkflowStateError
from workerflow.settings import Settings
from workerflow.store.base import Mail, MailKind, Store
from workerflow.worker.mailbox import receive
from workerflow.worker.registry import Registered
from workerflow.worker.worker import Worker

REASON_CHARACTERS_MAX = 10_000


class Port:
    """One instance as the database shows it, and the checks that both ways share."""

    def __init__(self, store: Store, settings: Settings, entry: Registered, instance_id: str) -> None:
        self._store = store
        self._settings = settings
        self._entry = entry
        self._id = instance_id

    def read(self) -> InstanceRecord | None:
        """Everything committed, or None when nothing is known of the instance."""
        row = self._store.find(self._entry.name, self._id)
        return None if row is None else self._store.load(row.key)

    def read_row(self) -> InstanceRow | None:
        """The instance's own row alone."""
        return self._store.find(self._entry.name, self._id)

    def read_status(self) -> Status:
        row = self.read_row()
        return "pending" if row is None else row.status

    def read_steps(self) -> list[Step]:
        record = self.read()
        if record is None:
            return []
        journal = Journal(record.row.key, Rows())
        fill_journal(journal, record)
        return [step_record(step) for step in journal.steps.values()]

    def read_events(self) -> list[WorkflowEvent]:
        record = self.read()
        rows = [] if record is None else record.lifecycle
        return [WorkflowEvent(row.number, row.type, to_datetime(row.recorded_at), row.reason) for row in rows]

    def _input_text(self, value: Any) -> str | None:
        if value is UNSET:
            return None
        where = f"input of workflow {self._entry.name!r} instance {self._id!r}"
        bytes_max = self._settings.value_bytes_max
        if self._entry.definition is None:
            return store_self_declared(value, where, bytes_max).text
        declared = declared_types(self._entry.definition)[0]
        if declared is UNDECLARED:
            return store_self_declared(value, where, bytes_max).text
        try:
            return declared.store(value, where, bytes_max).text
        except InvalidValueError:
            # Plain data that says the same, such as a dict for a dataclass, will do if the definition can read it.
            text = dump_json(value) if is_exact_json(value) else None
            if text is None or len(text) > bytes_max:
                raise
            declared.load(text, where)
            return text

    def _payload_text(self, event: str, value: Any) -> str | None:
        if value is UNSET:
            return None
        where = f"payload of event {event!r} to workflow {self._entry.name!r} instance {self._id!r}"
        return store_self_declared(value, where, self._settings.value_bytes_max).text

    def _event(self, event: str, payload: Any, event_id: str | None) -> tuple[str, str | None, str | None]:
        checked_id(event, "event name")
        if event_id is not None:
            checked_id(event_id, "event id")
        return event, self._payload_text(event, payload), event_id


class LocalPort(Port):
    """An instance of this engine's own worker. A verb returns when what it did is durable."""

    def __init__(self, worker: Worker, store: Store, settings: Settings, entry: Registered, instance_id: str) -> None:
        super().__init__(store, settings, entry, instance_id)
        self._worker = worker

    async def create(self, input_value: Any) -> bool:
        text = self._input_text(input_value)
        found = self._find()

        def create(instance: Instance) -> bool:
            # What another process has mailed came before: of two inputs the earlier one counts, and both are told so.
            if found is not None and instance.status == "pending":
                self._worker.take_mail(instance)
            return instance.create(text)

        return bool(await self._apply(found or self._insert(), create))

    async def send(self, event: str, payload: Any, event_id: str | None) -> Receipt:
        name, text, event_id = self._event(event, payload, event_id)
        receipt, event_row, instance = await self._apply(
            self._find() or self._insert(), lambda instance: (*receive(instance, name, text, event_id), instance)
        )
        if event_row is None:
            return cast(Receipt, receipt)
        # Only now: the instance may have had to be loaded and replayed before a wait could have it.
        return Receipt.queued if instance.is_unused(event_row) else Receipt.used

    async def pause(self) -> None:
        if (instance := self._find()) is not None:
            await self._apply(instance, Instance.pause)

    async def resume(self) -> None:
        if (instance := self._find()) is None:
            raise not_resumable("pending")
        await self._apply(instance, Instance.resume)

    async def cancel(self, reason: str | None) -> None:
        _check_reason(reason, self._settings.value_bytes_max)
        await self._apply(self._find() or self._insert(), lambda instance: instance.cancel(reason))

    def _find(self) -> Instance | None:
        return self._worker.residents.find(self._entry.name, self._id)

    def _insert(self) -> Instance:
        return self._worker.residents.insert(self._entry.name, self._id)

    async def _apply(self, instance: Instance, action: Callable[[Instance], Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        worker = self._worker

        def apply(instance: Instance) -> None:
            try:
                value = action(instance)
            except WorkflowStateError as error:
                _answer(answer, None, error)
                return
            worker.when_durable(instance, _answer, answer, value, None)

        worker.apply(instance, apply, lambda error: _answer(answer, None, error))
        return await answer


class MailPort(Port):
    """An instance of an engine in another process. A verb returns when the mail is durable."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        effects: Effects,
        send: Callable[..., Awaitable[str]],
        entry: Registered,
        id: str,
    ) -> None:
        super().__init__(store, settings, entry, id)
        self._effects = effects
        self._send_mail = send

    async def create(self, input_value: Any) -> bool:
        return await self._send("create", payload=self._input_text(input_value)) == "queued"

    async def send(self, event: str, payload: Any, event_id: str | None) -> Receipt:
        name, text, event_id = self._event(event, payload, event_id)
        return Receipt(await self._send("event", name=name, payload=text, event_id=event_id))

    async def pause(self) -> None:
        if self._store.find(self._entry.name, self._id) is not None:
            await self._send("pause")

    async def resume(self) -> None:
        row = self._store.find(self._entry.name, self._id)
        is_resumable = row is not None and (row.status == "paused" or row.held_reason is not None)
        if not is_resumable and not self._has_pause_in_mail():
            status = "pending" if row is None else row.status
            raise not_resumable(status)
        await self._send("resume")

    async def cancel(self, reason: str | None) -> None:
        _check_reason(reason, self._settings.value_bytes_max)
        await self._send("cancel", reason=reason)

    def _has_pause_in_mail(self) -> bool:
        row = self._store.find(self._entry.name, self._id)
        return row is not None and any(mail.kind == "pause" for mail in self._store.untaken_mail_of(row.key))

    async def _send(self, kind: MailKind, **fields: str | None) -> str:
        mail = Mail(
            0, 0, kind, fields.get("name"), fields.get("payload"), fields.get("event_id"), fields.get("reason"),
            self._effects.now_ms(),
        )  # fmt: skip
        key, nonce = self._effects.key(), self._effects.nonce()
        busy_ms = round(self._settings.busy_timeout_s * 1000)
        return await self._send_mail(self._entry.name, self._id, key, nonce, mail, busy_ms)


def _check_reason(reason: Any, bytes_max: int) -> None:
    if reason is None:
        return
    checked_text(reason, "cancellation reason")
    limit = min(REASON_CHARACTERS_MAX, bytes_max)
    if len(reason) > limit:
        raise DefinitionError(f"the cancellation reason has {len(reason)} characters; at most {limit} are allowed")


def _answer(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
