"""Execution: one live body of ``execute()``, and the recorded outcomes that it still has to hear.

Outcomes go in one at a time in the order of their sequence numbers, each followed by driving to quiescence, whether
they were recorded a moment ago or before a restart. So a race has the same winner on every replay.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import events
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from workerflow.core.body import RunawayBodyError, StepFuture, new_body_loop
from workerflow.core.request import CURRENT_SCOPE, Request
from workerflow.definition import WorkflowDefinition, bind
from workerflow.errors import DefinitionError

if TYPE_CHECKING:
    from workerflow.core.instance import Instance

_logger = logging.getLogger("workerflow")


class Execution:
    """A body with its pending requests. It is the RequestPort of its definition object."""

    def __init__(
        self, instance: Instance, definition: WorkflowDefinition[Any, Any], input_value: Any, started_ms: int
    ) -> None:
        self.instance = instance
        self.input = input_value
        self.pending: dict[str, Request] = {}
        self.fresh: list[Request] = []
        self.cancelled: list[str] = []
        self.drift: str | None = None
        self.is_dead = False
        self.is_drained = False
        # What an earlier body has heard, this one hears again; -1: there was none.
        self._replays_until = instance.journal.heard
        self._heard = 0
        self._definition = definition
        self._now_ms = started_ms
        self._used_ids: set[str] = set()
        self._outcomes: list[tuple[int, str]] = []
        # 62 bits, so that hashes of different instances never meet; the low bits count within the body.
        self._loop = new_body_loop(instance.label(), int(instance.nonce[:10], 16) << 20, instance.host.handles_max)
        self._context = instance.host.new_context()
        self._root: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """Run ``execute()`` up to its first waits."""
        self._note_heard()
        bind(self._definition, self)
        self._loop.schedule(self._create_root, context=self._context)
        self._loop.drive()

    def has_outcome(self) -> bool:
        """Whether a requested step has a recorded outcome to deliver."""
        return bool(self._outcomes)

    def add_outcome(self, sequence: int, step_id: str) -> None:
        """A requested step has got its outcome."""
        heappush(self._outcomes, (sequence, step_id))

    def next_outcome(self) -> Request | None:
        """Take the next request to be told its outcome; None when the body has cancelled it meanwhile."""
        self._heard, step_id = heappop(self._outcomes)
        return self.pending.pop(step_id, None)

    def deliver(self, request: Request, value: Any, error: BaseException | None, at_ms: int) -> None:
        """Tell one request its outcome, and drive to quiescence."""
        future = request.future
        assert future is not None
        self._now_ms = max(self._now_ms, at_ms)
        self._note_heard()
        if error is None:
            self._loop.schedule(_resolve, future, value, context=self._context)
        else:
            self._loop.schedule(_reject, future, error, context=self._context)
        self._loop.drive()

    def _note_heard(self) -> None:
        journal = self.instance.journal
        journal.heard = max(journal.heard, self._heard)

    @property
    def is_done(self) -> bool:
        """Whether ``execute()`` has returned or raised."""
        return self._root is not None and self._root.done()

    def result(self) -> Any:
        """What ``execute()`` returned; raises what it raised."""
        assert self._root is not None
        return self._root.result()

    def drop(self) -> None:
        """End the body without its noticing more than a cancellation. Only from a plain callback of the loop."""
        self.is_dead = True
        self.pending.clear()
        try:
            clinging = self._loop.discard()
        except RunawayBodyError as error:
            clinging = [str(error)]
        if clinging:
            _logger.warning(
                "%s: %s did not end when its body was dropped; code in execute() must let CancelledError pass",
                self.instance.label(),
                ", ".join(clinging),
            )

    def ask(self, request: Request) -> asyncio.Future[Any]:
        running = events._get_running_loop()
        if running is self._loop:
            return self._ask_in_body(request)
        scope = CURRENT_SCOPE.get()
        if scope is None and self.is_dead:
            # The collector closes a dropped body that did not end: one that catches everything in a loop would spin.
            return self._ask_in_body(request)
        if scope is None or running is None:
            where = "outside execute()" if scope is None else "in a thread"
            raise DefinitionError(
                f"step {request.step_id!r} of {self.instance.label()} was asked for {where}; the workflow context is "
                "unavailable there: call run, sleep and wait inside execute() or in an async callback of this instance"
            )
        owner = (scope.instance.workflow, scope.instance.instance_id)
        if owner != (self.instance.workflow, self.instance.instance_id):
            raise DefinitionError(
                f"step {request.step_id!r} of {self.instance.label()} was asked for in a callback of "
                f"{owner[0]} {owner[1]!r}; a callback may use its own instance only"
            )
        return scope.instance.ask_nested(request, scope, running)

    def outcome_ms(self) -> int:
        return self._now_ms

    def is_replaying(self) -> bool:
        return self._heard <= self._replays_until and not self.is_drained

    def seed(self) -> str:
        return self.instance.nonce

    def label(self) -> str:
        return self.instance.label()

    def _create_root(self) -> None:
        self._root = self._loop.create_task(self._run(), name="execute")

    async def _run(self) -> Any:
        return await self._definition.execute()

    def _ask_in_body(self, request: Request) -> asyncio.Future[Any]:
        step_id = request.step_id
        future = StepFuture(loop=self._loop, step_id=step_id, on_cancel=self._on_cancel)
        if self.is_dead:
            # Raising would make a body that catches everything in a loop spin; this lets it wait for its end.
            return future
        if step_id in self._used_ids:
            raise DefinitionError(
                f"step id {step_id!r} was already used earlier in this execution of {self.label()}; "
                "give every step its own id, in a loop for example f'charge-{number}'"
            )
        self._used_ids.add(step_id)
        request.future = future
        step = self.instance.journal.steps.get(step_id)
        if step is not None and (problem := drift(request, step.kind, step.parent_id)):
            self.drift = problem
            return future
        self.pending[step_id] = request
        self.fresh.append(request)
        if step is not None and step.sequence is not None:
            heappush(self._outcomes, (step.sequence, step_id))
        return future

    def _on_cancel(self, step_id: str) -> None:
        if not self.is_dead and self.pending.pop(step_id, None) is not None:
            self.cancelled.append(step_id)


def drift(request: Request, kind: str, parent_id: str | None) -> str | None:
    """Why the stored step cannot be the one that is asked for, or None."""
    if (kind, parent_id) == (request.kind, request.parent_id):
        return None
    return (
        f"step {request.step_id!r} is stored as a {kind} with parent {parent_id!r}, but the definition now asks for a "
        f"{request.kind} with parent {request.parent_id!r}; give the changed step a new id, or bring the old code back"
    )


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # Nobody has to look at it: execute() may have gone on without this step.
        future._log_traceback = False
