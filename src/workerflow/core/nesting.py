"""Nesting: the requests that async callbacks make.

Their futures belong to the application's loop and are resolved when the outcome is durable. They outlive the body: a
callback in flight does not notice that ``execute()`` is replayed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from workerflow.core.execution import drift
from workerflow.core.outcomes import outcome_of
from workerflow.core.request import Request, Scope
from workerflow.errors import DefinitionError, InvalidValueError

if TYPE_CHECKING:
    from workerflow.core.instance import Instance


class Nesting:
    """The pending nested requests of one instance. ``fresh`` ones have not been carried out yet."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._journal = instance.journal
        self.pending: dict[str, Request] = {}
        self.fresh: list[Request] = []

    def ask(self, request: Request, scope: Scope, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Take the request of an async callback."""
        _check(request, scope)
        other = self.pending.get(request.step_id)
        if other is not None and other.is_pending() and other.scope is not scope:
            raise DefinitionError(
                f"step id {request.step_id!r} is used by the callbacks of steps {other.parent_id!r} and "
                f"{scope.step_id!r}; ids are unique in the whole instance: put the parent's id into it"
            )
        scope.used_ids.add(request.step_id)
        request.scope = scope
        future = request.future = loop.create_future()
        step = self._journal.steps.get(request.step_id)
        # By way of the scope: the instance may be built anew while the callback runs.
        future.add_done_callback(lambda _: scope.instance.nested_is_done(request))
        self.pending[request.step_id] = request
        if step is not None and (problem := drift(request, step.kind, step.parent_id)):
            self._instance.hold(problem)
        elif step is not None and step.sequence is not None:
            self.resolve(request, {})
        else:
            self.fresh.append(request)
            self._instance.host.ready(self._instance)
        return future

    def resolve(self, request: Request, values: dict[str, Any]) -> None:
        """Tell a request its durable outcome."""
        future = request.future
        if future is None or not request.is_pending():
            return
        step = self._journal.steps[request.step_id]
        try:
            value, error = outcome_of(request, step, values)
        except InvalidValueError as problem:
            value, error = None, problem
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def forget(self, request: Request) -> bool:
        """The future of a request is done; True when the callback cancelled it and its step is to be abandoned."""
        if self.pending.get(request.step_id) is request:
            del self.pending[request.step_id]
        scope, future = request.scope, request.future
        was_cancelled = future is not None and future.cancelled()
        return was_cancelled and scope is not None and scope.is_alive and not self._instance.is_discarded

    def end(self, scope: Scope) -> list[str]:
        """A callback has ended: forget its requests, and name their steps."""
        step_ids = [step_id for step_id, request in self.pending.items() if request.scope is scope]
        for step_id in step_ids:
            del self.pending[step_id]
        return step_ids

    def is_parked(self, scope: Scope) -> bool:
        """Whether the callback waits for a nested step of its own."""
        return any(request.scope is scope and request.is_pending() for request in self.pending.values())

    def take_fresh(self) -> list[Request]:
        """The requests to carry out now."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def ask_again(self) -> None:
        """The body is dropped: its successor carries out the pending requests anew."""
        self.fresh = [request for request in self.pending.values() if request.is_pending()]

    def attach(self, earlier: Nesting) -> None:
        """Take over the pending requests of an earlier object for the same instance."""
        for request in earlier.pending.values():
            if request.is_pending():
                self.pending[request.step_id] = request
                self.fresh.append(request)


def _check(request: Request, scope: Scope) -> None:
    step_id = request.step_id
    if not scope.is_alive:
        raise DefinitionError(
            f"step {step_id!r} was asked for by an attempt of step {scope.step_id!r} that has ended; "
            "a callback must await the tasks that it starts"
        )
    if step_id in scope.used_ids or step_id == scope.step_id:
        raise DefinitionError(f"step id {step_id!r} was already used in this callback of step {scope.step_id!r}")
    if scope.request.at_most_once:
        raise DefinitionError(
            f"step {scope.step_id!r} is at_most_once and cannot have nested steps: they need its callback to be "
            "entered again after an interruption"
        )
