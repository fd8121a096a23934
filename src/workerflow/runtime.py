"""WorkflowRuntime: one instance as its author's hooks and its verbs see it."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, cast

from workerflow.codec import UNSET
from workerflow.core.model import Receipt, Status, Step, WorkflowCompletionEvent, WorkflowEvent
from workerflow.definition import InputT, ResultT, WorkflowDefinition


class InstancePort(Protocol):
    """What a runtime and a handle need of their engine, for one instance."""

    async def create(self, input_value: Any) -> bool: ...
    async def send(self, event: str, payload: Any, event_id: str | None) -> Receipt: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def cancel(self, reason: str | None) -> None: ...
    def read_status(self) -> Status: ...
    def read_steps(self) -> list[Step]: ...
    def read_events(self) -> list[WorkflowEvent]: ...


class WorkflowRuntime(Generic[InputT, ResultT]):
    """One instance's life, for authors who want hooks: subclass it, set ``definition``, override the hooks.

    The engine makes one object per instance in memory. Its verbs are those of the handle under their long names; they
    are awaited and return when what they did is durable. The readers answer at once, from committed state, also
    within a hook.

    >>> class Greeting(WorkflowDefinition[str, str]):
    ...     async def execute(self) -> str:
    ...         return "hello"
    >>> class GreetingRuntime(WorkflowRuntime[str, str]):
    ...     definition = Greeting
    ...     def on_status_change(self, status: str) -> None:
    ...         print(self.instance_id, status)
    """

    definition: ClassVar[type[WorkflowDefinition[Any, Any]]]

    def __init__(self, port: InstancePort, instance_id: str) -> None:
        self._port = port
        self.instance_id = instance_id

    async def completion(self, event: WorkflowCompletionEvent) -> None:
        """Override it to hear of the end, durably: called until it returns once, always with the same ``event.id``."""

    def on_status_change(self, status: str) -> None:
        """Override it to hear of running, paused, completed, failed and cancelled: in this process, best effort."""

    async def create(self, input: Any = UNSET) -> bool:
        """Start the instance with this input; True if this call did it. Durable when it returns."""
        return await self._port.create(input)

    async def handle_inbound_event(self, event: str, payload: Any = UNSET, id: str | None = None) -> Receipt:
        """Give the instance an event. Durable when it returns."""
        return await self._port.send(event, payload, id)

    async def pause(self) -> None:
        """Pause a running instance; no effect in another status."""
        await self._port.pause()

    async def resume(self) -> None:
        """Resume a paused or held instance; WorkflowStateError for another."""
        await self._port.resume()

    async def cancel(self, reason: str | None = None) -> None:
        """End the instance as cancelled; no effect when it has ended."""
        await self._port.cancel(reason)

    def get_status(self) -> Status:
        """The committed status."""
        return self._port.read_status()

    def get_steps(self) -> list[Step]:
        """The committed steps in creation order."""
        return self._port.read_steps()

    def get_workflow_events(self) -> list[WorkflowEvent]:
        """The committed lifecycle log."""
        return self._port.read_events()


def delivers_completion(runtime: type[WorkflowRuntime[Any, Any]]) -> bool:
    """Whether a runtime class overrides ``completion``."""
    return cast(Any, runtime).completion is not WorkflowRuntime.completion
