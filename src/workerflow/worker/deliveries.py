"""Deliveries: tell ``WorkflowRuntime.completion`` of the end, at least once."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from workerflow.core.failure import describe
from workerflow.core.instance import Instance
from workerflow.core.model import WorkflowCompletionEvent
from workerflow.errors import DefinitionError
from workerflow.runtime import WorkflowRuntime

_logger = logging.getLogger("workerflow")


class DeliveryHost(Protocol):
    """What deliveries need of the worker."""

    def apply(
        self,
        instance: Instance,
        action: Callable[[Instance], object],
        reject: Callable[[BaseException], object] = ...,
    ) -> None: ...
    def when_durable(self, instance: Instance, effect: Callable[..., object], *arguments: Any) -> None: ...
    def runtime_of(self, instance: Instance) -> WorkflowRuntime[Any, Any]: ...
    def process_interrupted(self, error: KeyboardInterrupt) -> None: ...
    def new_context(self) -> contextvars.Context: ...


class Deliveries:
    """The deliveries of one worker. Before a handler runs, its try and its lease are durable."""

    def __init__(self, host: DeliveryHost, lease_ms: int, close_s: float) -> None:
        self._host = host
        self._close_s = close_s
        self._lease_ms = lease_ms
        self._tasks: dict[asyncio.Task[None], int] = {}
        # Their next try waits to be durable.
        self._planned: set[int] = set()
        self._is_closed = False

    def deliver(self, instance: Instance) -> None:
        """Begin one more try, unless the handler is still at the last one."""
        if self.is_in_flight(instance.key):
            return
        self._planned.add(instance.key)

        def begin(instance: Instance) -> None:
            delivery_id = instance.delivery_began(self._lease_ms)
            self._host.when_durable(instance, self._start, instance, delivery_id)

        self._host.apply(instance, begin, lambda error: self._planned.discard(instance.key))

    def in_flight(self) -> bool:
        """Whether a handler is running."""
        return bool(self._tasks)

    def is_in_flight(self, key: int) -> bool:
        """Whether the handler of this instance is running: it must stay in memory to hear of its end."""
        return key in self._planned or key in self._tasks.values()

    async def close(self) -> None:
        """Cancel the handlers; their deliveries are tried again by the next worker."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._close_s)

    def _start(self, instance: Instance, delivery_id: str) -> None:
        self._planned.discard(instance.key)
        task = asyncio.get_running_loop().create_task(
            self._deliver(instance, delivery_id), context=self._host.new_context()
        )
        self._tasks[task] = instance.key
        task.add_done_callback(self._tasks.pop)

    async def _deliver(self, instance: Instance, delivery_id: str) -> None:
        error: str | None = None
        try:
            runtime = self._host.runtime_of(instance)
            if not instance.delivers_completion:
                raise DefinitionError(f"{instance.label()} has a completion to deliver, but no completion() any more")
            ended = runtime.get_workflow_events()[-1]
            await runtime.completion(
                WorkflowCompletionEvent(
                    delivery_id,
                    cast(Any, instance.status),
                    ended.recorded_at,
                    instance.workflow,
                    instance.instance_id,
                )
            )
        except KeyboardInterrupt as interrupt:
            self._host.process_interrupted(interrupt)
            return
        except BaseException as problem:  # Whatever the author's handler raises, the delivery is tried again.
            if self._is_closed:
                raise
            _logger.warning("completion() of %s raised and will be called again: %r", instance.label(), problem)
            error = describe(problem).message
        self._host.apply(instance, lambda instance: instance.delivery_ended(error))
