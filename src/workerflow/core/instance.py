"""Instance: one workflow's life in memory. Commands, events and outcomes go in; rows and effects come out.

Every verb appends its rows to the current batch in one synchronous call. Effects go through the Host, which holds them
back until the batch is durable. The body is driven only by ``pump``, which the Host calls from a plain callback of the
application's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from workerflow.core.deadlines import Deadlines
from workerflow.core.execution import Execution
from workerflow.core.failure import ABANDONED, CANCELLED, Failure
from workerflow.core.journal import Inbound, Journal
from workerflow.core.load import Progress
from workerflow.core.model import LEGAL_TRANSITIONS, TERMINAL, Status
from workerflow.core.outcomes import Ending
from workerflow.core.request import Request, Scope
from workerflow.core.retry import RetryPolicy
from workerflow.core.rows import Rows
from workerflow.core.stepping import Stepping
from workerflow.errors import InternalError, WorkflowStateError

if TYPE_CHECKING:
    from workerflow.definition import WorkflowDefinition


_logger = logging.getLogger("workerflow")

DELIVERY_RETRY = RetryPolicy(max_attempts=None, initial=1, maximum=3600)
"""A second after the first failed delivery, doubling up to an hour, without end."""


class Host(Protocol):
    """What an instance needs of the worker that has it in memory."""

    rows: Rows
    handles_max: int
    value_bytes_max: int
    always_replay: bool
    incarnation: int

    def now_ms(self) -> int: ...
    def random(self) -> float: ...
    def new_context(self) -> contextvars.Context: ...
    def ready(self, instance: Instance) -> None:
        """Call ``pump`` soon, from a plain callback of the loop."""
        ...

    def apply(self, instance: Instance, action: Callable[[Instance], object]) -> None:
        """Do something to an instance, and again if its rows have to be discarded."""
        ...

    def when_durable(self, instance: Instance, effect: Any, *arguments: Any) -> None:
        """Call *effect* when everything appended so far is durable; never if it is refused."""
        ...

    def status_changed(self, instance: Instance, status: str) -> None: ...
    def progressed(self, instance: Instance) -> None:
        """The earliest deadline may have changed."""
        ...

    def has_free_place(self, instance: Instance, request: Request) -> bool:
        """Whether the callback may start now; if not, ``pump`` is called when it may."""
        ...

    def start_callback(self, instance: Instance, request: Request, scope: Scope) -> None:
        """Start the callback when its attempt is durable."""
        ...

    def stop_callback(self, scope: Scope) -> bool:
        """Cancel a callback whose outcome is of no interest any more; whether it takes a while to end."""
        ...

    def take_mail(self, instance: Instance) -> bool:
        """Apply what other processes sent; True if there was any. Guards the batch against mail that comes later."""
        ...

    def finish_later(self, instance: Instance) -> None:
        """Call ``finish`` when the cancelled callbacks have ended, or their time is up."""
        ...

    def released(self, instance: Instance) -> None:
        """A held instance may move again: apply the outcomes of callbacks that could not be recorded meanwhile."""
        ...

    def discard_body(self, execution: Execution) -> None:
        """Drop a dead body, from a plain callback of the loop."""
        ...


class Instance:
    """One instance. ``definition`` is None when its class is not registered here."""

    def __init__(
        self,
        host: Host,
        key: int,
        workflow: str,
        instance_id: str,
        nonce: str,
        definition: type[WorkflowDefinition[Any, Any]] | None,
        delivers_completion: bool = False,
    ) -> None:
        self.host = host
        self.key = key
        self.workflow = workflow
        self.instance_id = instance_id
        self.nonce = nonce
        self.definition = definition
        self.delivers_completion = delivers_completion
        self.status: Status = "pending"
        self.input_text: str | None = None
        self.started_ms = 0
        self.lifecycle_count = 0
        self.held_reason: str | None = None
        self.held_ms: int | None = None
        self.recoveries = 0
        self.owner: int | None = None
        self.turn_ms: int | None = None
        self.journal = Journal(key, host.rows)
        self.deadlines: Deadlines[str] = Deadlines()
        self.ending: Ending | None = None
        self.stepping = Stepping(self)
        self.progress = Progress()
        self.is_discarded = False
        self.delivery_attempts = 0
        self.delivery_ms: int | None = None

    def label(self) -> str:
        """The instance in words, for messages."""
        return f"workflow {self.workflow!r} instance {self.instance_id!r}"

    def insert(self) -> None:
        """Make a new instance's row, pending."""
        now_ms = self.host.now_ms()
        self.host.rows.instance_insert.append((self.key, self.workflow, self.instance_id, self.nonce, now_ms))
        self._log("created", now_ms)

    def create(self, input_text: str | None) -> bool:
        """Start a pending instance; True if that is what happened."""
        if self.status != "pending":
            return False
        now_ms = self.host.now_ms()
        self.input_text = input_text
        self.host.rows.instance_initialize.append((self.key, input_text, now_ms))
        self.status = "initialized"
        self.begin_running(now_ms)
        return True

    def begin_running(self, now_ms: int) -> None:
        """Move from initialized to running."""
        self.started_ms = now_ms
        self._move("running", now_ms, "started")
        self.owner = self.host.incarnation
        self.save_progress()
        self.host.ready(self)

    def pause(self) -> None:
        """Pause a running instance: callbacks in flight go on and are recorded, nothing else starts."""
        if self.status == "running":
            self._move("paused", self.host.now_ms(), "paused")
            self.save_progress()

    def resume(self) -> None:
        """Run again; also release a held instance, whatever its status. WorkflowStateError if it is neither."""
        was_held = self.held_reason is not None
        if was_held:
            self.held_reason = self.held_ms = self.turn_ms = None
            self.recoveries = 0
            self.host.released(self)
        if self.status == "paused":
            self._move("running", self.host.now_ms(), "resumed")
        elif not was_held:
            raise not_resumable(self.status)
        if self.status == "running":
            self.owner = self.host.incarnation
            self.stepping.match_all()
        self.save_progress()
        self.host.ready(self)

    def cancel(self, reason: str | None) -> None:
        """End at once as cancelled; callbacks in flight are cancelled and their attempts end in the same batch."""
        if self.status not in TERMINAL:
            self._end(Ending("cancelled"), CANCELLED, reason)

    def receive(
        self, name: str, payload: str | None, event_id: str | None, sent_ms: int | None = None
    ) -> Inbound | None:
        """Accept an event; None when the instance has ended or the id is a repeated one.

        What was durable in the mailbox before a deadline has come before it, whenever it is taken out.
        """
        if self.status in TERMINAL or self.is_duplicate(event_id):
            return None
        now_ms = self.host.now_ms()
        event = self.journal.accept(name, payload, event_id, now_ms if sent_ms is None else min(sent_ms, now_ms))
        self.stepping.match(name)
        self.host.ready(self)
        return event

    def is_duplicate(self, event_id: str | None) -> bool:
        """Whether an event with this id was accepted before."""
        return event_id is not None and event_id in self.journal.event_ids

    def is_unused(self, event: Inbound) -> bool:
        """Whether no wait has this event yet."""
        # From the newest: an unused one is found at once, a used one was mostly the only one.
        return any(other is event for other in reversed(self.journal.unclaimed.get(event.name, ())))

    def hold(self, reason: str) -> None:
        """Stop driving until a person acts."""
        self.stepping.drop_body()
        self.held_reason, self.held_ms = reason, self.host.now_ms()
        self.owner = None
        _logger.error("%s is held: %s", self.label(), reason)
        self.save_progress()
        self.host.status_changed(self, "held")

    def is_drivable(self) -> bool:
        """Whether the body may move."""
        return self.status == "running" and self.held_reason is None and not self.is_discarded

    def pump(self) -> None:
        """Drive the body as far as its outcomes go, and carry out what it asks for."""
        if self.status == "initialized" and self.held_reason is None:
            self.begin_running(self.host.now_ms())
        if not self.is_drivable():
            self.save_progress()
            return
        if self.ending is None:
            self.stepping.pump()
        elif self.stepping.in_flight:
            self.host.finish_later(self)
        else:
            self.finish()
        self.save_progress()

    def act_on_deadlines(self) -> None:
        """Act on the deadlines that have passed."""
        if not self.is_drivable() or self.ending is not None:
            return
        self.stepping.act_on_deadlines()
        self.save_progress()

    def ask_nested(self, request: Request, scope: Scope, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Take a request of an async callback."""
        return self.stepping.nesting.ask(request, scope, loop)

    def is_parked(self, scope: Scope) -> bool:
        """Whether this callback waits for a nested step of its own."""
        return self.stepping.nesting.is_parked(scope)

    def interrupt(self, scope: Scope) -> None:
        """A graceful stop ends this callback: the try is recorded."""
        self.host.apply(self, lambda instance: instance.stepping.interrupt(scope))

    def nested_is_done(self, request: Request) -> None:
        """The future of a nested request is done; when the callback cancelled it, its step is abandoned."""
        if self.stepping.nesting.forget(request):
            self.host.apply(self, lambda instance: instance.stepping.abandon(request))

    def end_body(self, ending: Ending) -> None:
        """``execute()`` is over: end what is left of it, then the instance."""
        self.ending = ending
        if ending.failure is not None:
            _logger.error("%s fails: %s: %s", self.label(), ending.failure.name, ending.failure.message)
        if self.stepping.stop_callbacks():
            self.host.finish_later(self)
        else:
            self.finish()

    def finish(self) -> None:
        """Write the end of the instance, unless mail that came before it says otherwise."""
        if self.ending is None or not self.is_drivable():
            return
        self.host.take_mail(self)
        if self.is_drivable():
            self._end(self.ending, ABANDONED, None)

    def fail(self, failure: Failure) -> None:
        """End the body as failed."""
        self.end_body(Ending("failed", failure=failure))

    def save_progress(self) -> None:
        """Append the row of alarm, owner, recoveries and hold, if any of it has changed."""
        waits_for_turn = self.turn_ms is not None and self.is_drivable()
        self._save_progress(self.turn_ms if waits_for_turn else self.alarm_ms())
        self.host.progressed(self)

    def save_owner(self) -> None:
        """The same with the stored alarm as it is: after loading, the deadlines are not known yet."""
        self._save_progress(self.progress.alarm_ms)

    def wait_for_turn(self) -> None:
        """Nobody owns it before it begins: what kills the process until then is not its fault. The alarm keeps it."""
        if self.turn_ms is None:
            self.turn_ms = self.host.now_ms()
        self.owner = None
        self._save_progress(self.turn_ms)

    def _save_progress(self, alarm_ms: int | None) -> None:
        progress = Progress(alarm_ms, self.owner, self.recoveries, self.held_reason, self.held_ms)
        if progress != self.progress:
            self.progress = progress
            self.host.rows.instance_progress.append((self.key, *progress))

    def alarm_ms(self) -> int | None:
        """When the instance has to be in memory again, if a time and not an event says so."""
        return self.deadlines.earliest() if self.is_drivable() else self.delivery_ms

    def is_delivery_due(self) -> bool:
        """Whether the time of the next try to deliver the completion has come."""
        return self.delivery_ms is not None and self.delivery_ms <= self.host.now_ms()

    def take_over_delivery(self) -> None:
        """A process has ended while it delivered the completion: at once for the first time, later with a back-off.

        A handler that ends the process would else do so at every start, before anybody else has moved.
        """
        failures = self.delivery_attempts - 1
        delay_ms = DELIVERY_RETRY.delay_ms(failures, 0.0) if failures > 0 else 0
        self._plan_delivery(self.host.now_ms() + delay_ms, None, None)

    def delivery_began(self, lease_ms: int) -> str:
        """Count one more try to deliver the completion; gives the id of the delivery."""
        self.delivery_attempts += 1
        self._plan_delivery(self.host.now_ms() + lease_ms, None, None)
        return f"{self.instance_id}:{self.lifecycle_count}"

    def delivery_ended(self, error: str | None) -> None:
        """The handler has returned, or raised *error*: then the next try is planned."""
        now_ms = self.host.now_ms()
        if error is None:
            self._plan_delivery(None, now_ms, None)
        else:
            self._plan_delivery(now_ms + DELIVERY_RETRY.delay_ms(self.delivery_attempts, 0.0), None, error)

    def _plan_delivery(self, next_ms: int | None, delivered_ms: int | None, error: str | None) -> None:
        self.delivery_ms = next_ms
        self.host.rows.delivery_update.append((self.key, self.delivery_attempts, next_ms, delivered_ms, error))
        self.save_progress()

    def is_idle(self) -> bool:
        """Whether nothing of it needs memory: no callback in flight, nothing to do before a deadline or an event."""
        if self.stepping.in_flight:
            return False
        return not self.is_drivable() or (self.ending is None and not self.stepping.is_busy())

    def _end(self, ending: Ending, cut: Failure, reason: str | None) -> None:
        now_ms = self.host.now_ms()
        self.stepping.end(cut, now_ms)
        self._check_move(ending.status)
        self.status = ending.status
        result_type = None if ending.status != "completed" else "none" if ending.result_json is None else "json"
        outcome = (result_type, ending.result_json, *(ending.failure or (None, None, None)))
        self.host.rows.instance_finish.append((self.key, ending.status, *outcome, now_ms))
        self._log(ending.status, now_ms, reason)
        self.owner = self.held_reason = self.held_ms = None
        self.deadlines.clear()
        if self.delivers_completion:
            self.delivery_ms = now_ms
            self.host.rows.delivery_insert.append((self.key, self.lifecycle_count, now_ms))
        # First: it sets the delivery to begin at the gate, which saving the alarm must not overtake.
        self.host.status_changed(self, ending.status)
        self.save_progress()

    def _move(self, status: Status, now_ms: int, event: str) -> None:
        self._check_move(status)
        self.status = status
        self.host.rows.instance_transition.append((self.key, status, now_ms))
        self._log(event, now_ms)
        self.host.status_changed(self, status)

    def _check_move(self, status: Status) -> None:
        if status not in LEGAL_TRANSITIONS[self.status]:
            raise InternalError(f"{self.label()} cannot go from {self.status!r} to {status!r}; please report this")

    def _log(self, event: str, now_ms: int, reason: str | None = None) -> None:
        self.lifecycle_count += 1
        self.host.rows.lifecycle_insert.append((self.key, self.lifecycle_count, event, now_ms, reason))


def not_resumable(status: str) -> WorkflowStateError:
    """The error of ``resume`` in a status in which there is nothing to resume."""
    return WorkflowStateError(f"Cannot resume workflow: expected status 'paused' but got '{status}'.", status)
