"""WorkflowHandle: the user's way to one instance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, cast

from workerflow.codec import UNSET, load_json
from workerflow.core.failure import error_data, error_traceback
from workerflow.core.load import InstanceRecord, InstanceRow
from workerflow.core.model import (
    InboundEvent,
    InstanceInfo,
    Receipt,
    RecordedFailure,
    Status,
    Step,
    WorkflowEvent,
    optional_datetime,
    to_datetime,
)
from workerflow.core.retry import Duration, duration_ms
from workerflow.definition import ResultT, declared_types
from workerflow.errors import WorkflowCancelledError, WorkflowFailedError, WorkflowHeldError
from workerflow.worker.ports import LocalPort, MailPort
from workerflow.worker.registry import Registered


class WorkflowHandle(Generic[ResultT]):
    """One instance, addressed by workflow and id. Made by ``Engine.get``; making it touches nothing.

    Every verb is awaited and returns when what it did is durable. Use it on the loop that opened the engine. All verbs
    raise EngineClosedError when the engine is closed, and DatabaseError when the database cannot be used.

    >>> import asyncio, tempfile
    >>> from workerflow import Engine, WorkflowDefinition
    >>> class Greeting(WorkflowDefinition[str, str]):
    ...     async def execute(self) -> str:
    ...         return f"hello {self.input}"
    >>> async def main() -> str:
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         async with Engine(f"{folder}/greeting.db", [Greeting]) as engine:
    ...             handle = engine.get(Greeting, "g-1")
    ...             await handle.create("tea")
    ...             return await handle.result(timeout=10)
    >>> asyncio.run(main())
    'hello tea'
    """

    def __init__(
        self,
        entry: Registered,
        instance_id: str,
        port: Callable[[], LocalPort | MailPort],
        changed: Callable[[str, str], asyncio.Future[None]],
    ) -> None:
        self._entry = entry
        self._id = instance_id
        self._port = port
        self._changed = changed

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow!r}, {self._id!r})"

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._entry.name

    @property
    def id(self) -> str:
        """The instance's id."""
        return self._id

    async def create(self, input: Any = UNSET) -> bool:
        """Start the instance with this input. True if this call did it; an instance that exists is left as it is.

        Raises InvalidValueError when the input cannot be stored, or is not what the definition declares.
        """
        return await self._port().create(input)

    async def send(self, event: str, payload: Any = UNSET, id: str | None = None) -> Receipt:
        """Give the instance an event, made if it does not exist; an *id* seen before makes it a duplicate.

        From another process the receipt is ``queued`` even when a wait will use it at once.
        """
        return await self._port().send(event, payload, id)

    async def pause(self) -> None:
        """Pause a running instance: callbacks in flight end and are recorded, nothing else starts.

        No effect in another status, nor on an instance that nobody has touched. From another process it is durable as
        mail, and takes effect when the owner reads it.
        """
        await self._port().pause()

    async def resume(self) -> None:
        """Resume a paused instance or release a held one. WorkflowStateError for any other, also an unknown one."""
        await self._port().resume()

    async def cancel(self, reason: str | None = None) -> None:
        """End the instance as cancelled; callbacks in flight are cancelled. No effect when it has ended.

        An instance that nobody has touched is made, and ends at once. A reason has at most 10,000 characters.
        """
        await self._port().cancel(reason)

    async def status(self) -> Status:
        """The committed status; ``pending`` for an instance that nobody has touched."""
        return self._port().read_status()

    async def steps(self) -> list[Step]:
        """The committed steps in creation order, each run with its attempts."""
        return self._port().read_steps()

    async def events(self) -> list[WorkflowEvent]:
        """The committed lifecycle log."""
        return self._port().read_events()

    async def info(self) -> InstanceInfo:
        """All else that is committed. An instance that nobody has touched is pending since 1970."""
        record = self._port().read()
        return _untouched(self.workflow, self._id) if record is None else _info(record)

    async def result(self, timeout: Duration | None = None) -> ResultT:
        """Wait for the end and give the result, decoded as its declared type.

        Raises WorkflowFailedError, WorkflowCancelledError, WorkflowHeldError when it is held, InvalidValueError when
        the result's type has changed since, and TimeoutError after *timeout* (seconds or a timedelta); the instance
        goes on then.
        """
        seconds = None if timeout is None else duration_ms(timeout, "timeout of result()") / 1000
        try:
            async with asyncio.timeout(seconds) as expiry:
                return await self._wait_for_result()
        except TimeoutError as error:
            if not expiry.expired():
                raise
            status = await self.status()
            raise TimeoutError(
                f"workflow {self.workflow!r} instance {self._id!r} has no result after {seconds:g} s: it is {status}; "
                "it goes on, and steps() shows what it waits for"
            ) from error

    async def _wait_for_result(self) -> ResultT:
        while True:
            # Before the look: a change between look and wait must not be missed.
            changed = self._changed(self.workflow, self._id)
            try:
                row = self._port().read_row()
                if row is not None and (found := self._outcome(row)) is not None:
                    return found[0]
                await changed
            finally:
                changed.cancel()

    def _outcome(self, row: InstanceRow) -> tuple[ResultT] | None:
        if row.held_reason is not None:
            raise WorkflowHeldError(row.workflow, row.instance_id, row.held_reason)
        if row.status == "cancelled":
            raise WorkflowCancelledError(
                row.workflow, row.instance_id, self._port().read_events()[-1].cancellation_reason
            )
        if row.status == "failed":
            failure = _failure(row)
            assert failure is not None
            failed = WorkflowFailedError(
                row.workflow, row.instance_id, failure.name, failure.message, failure.data, failure.traceback
            )
            failed.add_note(failure.traceback)
            raise failed
        if row.status != "completed":
            return None
        if row.result_json is None:
            return (cast(ResultT, None),)
        if self._entry.definition is None:
            return (load_json(row.result_json),)
        return (declared_types(self._entry.definition)[1].load(row.result_json, "stored result"),)


def _failure(row: InstanceRow) -> RecordedFailure | None:
    if row.failure_message is None:
        return None
    detail = row.failure_detail
    return RecordedFailure(row.failure_name or "", row.failure_message, error_data(detail), error_traceback(detail))


def _info(record: InstanceRecord) -> InstanceInfo:
    row = record.row
    result = None if row.result_json is None else load_json(row.result_json)
    return InstanceInfo(
        workflow=row.workflow,
        id=row.instance_id,
        status=row.status,
        held=row.held_reason,
        created_at=to_datetime(row.created_at),
        updated_at=to_datetime(row.updated_at),
        alarm_at=optional_datetime(row.alarm_at),
        held_reason=row.held_reason,
        held_at=optional_datetime(row.held_at),
        input=UNSET if row.input is None else load_json(row.input),
        result=UNSET if row.result_type is None else result,
        failure=_failure(row),
        owner=row.owner,
        recoveries=row.recoveries,
        inbound_events=[
            InboundEvent(
                event.number,
                event.name,
                UNSET if event.payload is None else load_json(event.payload),
                event.event_id,
                to_datetime(event.received_at),
                event.claimed_by,
                optional_datetime(event.claimed_at),
            )
            for event in record.inbound
        ],
    )


def _untouched(workflow: str, instance_id: str) -> InstanceInfo:
    epoch = to_datetime(0)
    return InstanceInfo(
        workflow, instance_id, "pending", None, epoch, epoch, None, None, None, UNSET, UNSET, None, None, 0, []
    )  # fmt: skip
