"""Stepping: an instance's steps in motion. It carries out requests, records outcomes and delivers them.

Commands wait for replay: while a requested step has a recorded outcome to deliver, nothing is started, retried,
interrupted or claimed; then only requests that are still pending are carried out.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from workerflow.codec import Stored
from workerflow.core.body import RunawayBodyError
from workerflow.core.context import next_attempt_ms
from workerflow.core.execution import Execution, drift
from workerflow.core.failure import ABANDONED, INTERRUPTED, STOPPED, Failure, describe, error_traceback
from workerflow.core.journal import Attempt, Inbound, JournalStep, came_at_ms
from workerflow.core.model import TIME_MAX_MS
from workerflow.core.nesting import Nesting
from workerflow.core.outcomes import Ending, is_retryable, outcome_ms, outcome_of, plain_failure, stuck_failure
from workerflow.core.request import Request, Scope
from workerflow.core.waits import Waits
from workerflow.definition import declared_types
from workerflow.errors import InvalidValueError

if TYPE_CHECKING:
    from workerflow.core.instance import Instance

_logger = logging.getLogger("workerflow")


class Stepping:
    """The moving part of one instance: the body, the callbacks in flight, and what waits for what."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._journal = instance.journal
        self._host = instance.host
        self.execution: Execution | None = None
        self.in_flight: dict[str, Scope] = {}
        self.nesting = Nesting(instance)
        self._values: dict[str, Any] = {}
        self._waits = Waits(instance.journal)
        self._is_looking_for_mail = False
        self._queued: deque[Request] = deque()
        self._starved: deque[Request] = deque()
        self._executed_levels: set[str | None] = set()
        self._is_pass_over = False

    def is_busy(self) -> bool:
        """Whether there is something to do that no deadline or event will bring about."""
        execution = self.execution
        if execution is None or self._is_pass_over:
            return True
        waiting = self._queued or self._starved or self.nesting.fresh or execution.fresh
        return bool(waiting) or execution.has_outcome()

    def pump(self) -> None:
        """Deliver every recorded outcome, then carry out what is asked for."""
        if self._is_pass_over:
            self.drop_body()
        try:
            execution = self.execution or self._begin()
            if execution is None:
                return
            while execution.has_outcome() and not execution.is_done and execution.drift is None:
                request = execution.next_outcome()
                if request is not None:
                    self._deliver(execution, request)
        except RunawayBodyError as error:
            self._instance.hold(str(error))
            return
        if execution.drift is not None:
            self._instance.hold(execution.drift)
        elif execution.is_done:
            self._end(execution)
        else:
            self._serve_requests(execution)

    def match_all(self) -> None:
        """Let the waits have the events that were queued while the instance was paused."""
        self._waits.look_at_all()

    def match(self, name: str) -> None:
        """An event of this name was accepted: let the waits have it."""
        execution = self.execution
        if execution is None or not execution.is_drained or not self._instance.is_drivable():
            return
        self._waits.look(name)
        if not self._is_looking_for_mail and self._happen(execution):
            self._end_pass()

    def act_on_deadlines(self) -> None:
        """Act on the deadlines that have passed: sleeps, waits and retries."""
        execution = self.execution
        if execution is not None and execution.is_drained:  # Otherwise the pump that is on its way will see to them.
            self._happen(execution)
            self._host.ready(self._instance)

    def _happen(self, execution: Execution) -> bool:
        """Let deadlines pass and waits have their events, in the order of time; whether the body has something to hear.

        Only while it has not: on hearing one thing, it may give up the others, and their events are left for others.
        """
        now_ms = self._host.now_ms()
        deadlines = self._instance.deadlines
        while not (execution.has_outcome() or self._is_pass_over) and self._instance.is_drivable():
            at_ms, match = deadlines.earliest(), self._waits.next_match()
            # What comes at the deadline comes too late.
            if at_ms is not None and at_ms <= now_ms and (match is None or at_ms <= came_at_ms(match[1], match[0])):
                self._pass_deadlines(execution, at_ms, now_ms)
            elif match is not None:
                self._claim(*match, now_ms)
            else:
                break
        return execution.has_outcome()

    def _pass_deadlines(self, execution: Execution, at_ms: int, now_ms: int) -> None:
        if self._waits and self._take_mail():
            return  # It may have come before.
        for step_id in self._instance.deadlines.pop_due(at_ms):
            request, step = self._find(step_id), self._journal.steps[step_id]
            if request is None or not request.is_pending():
                continue
            if request.kind == "run":
                self._queued.append(request)
                self._end_pass()
            elif request.kind == "sleep":
                self._journal.resolve(step, "elapsed", now_ms)
                self._end_pass()
                self._has_outcome(request, step)
            elif (event := self._journal.event_for(step)) is not None:
                self._claim(step, event, now_ms)
            else:
                self._journal.resolve(step, "timed_out", now_ms)
                self._has_outcome(request, step)

    def _take_mail(self) -> bool:
        self._is_looking_for_mail = True
        try:
            return self._host.take_mail(self._instance)
        finally:
            self._is_looking_for_mail = False

    def _claim(self, step: JournalStep, event: Inbound, now_ms: int) -> None:
        request = self._find(step.step_id)
        if request is not None and request.is_pending():
            self._journal.claim(step, event, now_ms)
            self._has_outcome(request, step)
        else:
            self._unwatch(step)

    def succeeded(self, scope: Scope, stored: Stored | None) -> None:
        """A callback returned; None stands for None. Ignored when the attempt has ended already."""
        step, attempt = self._close_scope(scope)
        if attempt is None:
            return
        self._journal.succeed(step, attempt, None if stored is None else stored.text, self._host.now_ms())
        self._instance.recoveries = 0
        self._executed_levels.add(scope.request.parent_id)
        if (request := self._find(step.step_id)) is not None:
            self._values[step.step_id] = None if stored is None else stored.value
            self._has_outcome(request, step)

    def failed(self, scope: Scope, error: BaseException) -> None:
        """A callback raised. Ignored when the attempt has ended already."""
        step, attempt = self._close_scope(scope)
        if attempt is None:
            return
        now_ms = self._host.now_ms()
        next_ms = None
        if is_retryable(scope.request, error):
            next_ms = next_attempt_ms(step, scope.request.retry, now_ms, self._host.random())
        self._instance.recoveries = 0
        self._record_failure(step, attempt, describe(error), now_ms, next_ms)

    def attach(self, earlier: Stepping) -> None:
        """Take over the callbacks in flight of an earlier object for the same instance, as far as they are recorded."""
        for step_id, scope in earlier.in_flight.items():
            step = self._journal.steps.get(step_id)
            attempt = None if step is None else step.in_flight
            if attempt is not None and attempt.number == scope.attempt:
                scope.instance = self._instance
                self.in_flight[step_id] = scope
            else:
                self._host.stop_callback(scope)
                scope.is_alive = False
        self.nesting.attach(earlier.nesting)

    def interrupt(self, scope: Scope) -> None:
        """A graceful stop ended the callback: the try is recorded and not counted, unless it may not be repeated."""
        step, attempt = self._close_scope(scope)
        if attempt is not None:
            is_final, now_ms = scope.request.at_most_once, self._host.now_ms()
            self._journal.cut(step, STOPPED, now_ms, is_final=is_final)
            if is_final:
                self._has_outcome(scope.request, step)
            else:
                # So that the instance counts as busy: it must keep its owner, by whom the next start finds it. The body
                # of now has a request of its own, when the callback began for an earlier one.
                self._queued.append(self._find(step.step_id) or scope.request)

    def stop_callbacks(self) -> bool:
        """Abandon every pending step and cancel the callbacks in flight; whether any of them has to be waited for."""
        now_ms = self._host.now_ms()
        for step in self._journal.steps.values():
            if step.sequence is None and step.abandoned_ms is None:
                self._journal.abandon(step, now_ms)
        self._instance.deadlines.clear()
        # A list, not a generator: every one of them must be stopped.
        takes_a_while = [self._host.stop_callback(scope) for scope in self.in_flight.values()]
        return any(takes_a_while)

    def released(self, scope: Scope) -> bool:
        """A callback that was cancelled because its workflow ends has ended; whether it was the last one."""
        if self.in_flight.get(scope.step_id) is scope:
            scope.is_alive = False
            del self.in_flight[scope.step_id]
        return not self.in_flight

    def end(self, cut: Failure, now_ms: int) -> None:
        """The instance ends: so do its attempts and its body."""
        for scope in list(self.in_flight.values()):
            self._cut(scope, cut, now_ms)
        for step in self._journal.steps.values():
            if step.in_flight is not None:  # Its callback has ended already, or its process is gone.
                self._journal.cut(step, cut, now_ms)
        self.drop_body()

    def drop_body(self) -> None:
        """Forget the body; callbacks in flight stay alive and are found again by the next one."""
        execution, self.execution = self.execution, None
        self._is_pass_over = False
        self._executed_levels.clear()
        self._waits.clear()
        self._queued.clear()
        self._starved.clear()
        self._values.clear()
        self._instance.deadlines.clear()
        self.nesting.ask_again()
        if execution is not None:
            execution.is_dead = True
            self._host.discard_body(execution)

    def _begin(self) -> Execution | None:
        instance = self._instance
        if instance.definition is None:
            instance.hold(f"no definition named {instance.workflow!r} is registered with this engine; register it")
            return None
        try:
            text = instance.input_text
            value = None if text is None else declared_types(instance.definition)[0].load(text, "stored input")
            definition = instance.definition()
        except InvalidValueError as error:
            instance.hold(f"the stored input no longer decodes: {error}")
            return None
        except Exception as error:  # The author's __init__ is outside every step: it fails the instance like execute().
            instance.fail(plain_failure(error))
            return None
        self.execution = Execution(instance, definition, value, instance.started_ms)
        self.execution.begin()
        return self.execution

    def _end(self, execution: Execution) -> None:
        instance = self._instance
        assert instance.definition is not None
        if unheard := [request for request in execution.fresh if request.is_pending()]:
            step_ids = ", ".join(repr(request.step_id) for request in unheard)
            _logger.warning("%s: execute() ended without waiting for %s, just asked for", instance.label(), step_ids)
        try:
            value = execution.result()
            where = f"result of {instance.label()}"
            declared, bytes_max = declared_types(instance.definition)[1], self._host.value_bytes_max
            stored = declared.store(value, where, bytes_max)
            ending = Ending("completed", None if value is None else stored.text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Whatever leaves execute() is the instance's failure.
            ending = Ending("failed", failure=plain_failure(error))
        instance.end_body(ending)

    def _deliver(self, execution: Execution, request: Request) -> None:
        step = self._journal.steps[request.step_id]
        try:
            value, error = outcome_of(request, step, self._values)
        except InvalidValueError as problem:
            if request.kind == "run":
                execution.drift = f"the stored result of step {request.step_id!r} no longer decodes: {problem}"
                return
            value, error = None, problem
        execution.deliver(request, value, error, outcome_ms(step))

    def _serve_requests(self, execution: Execution) -> None:
        was_drained, execution.is_drained = execution.is_drained, True
        now_ms = self._host.now_ms()
        for step_id in execution.cancelled:
            self._abandon(self._journal.steps.get(step_id), now_ms)
        execution.cancelled.clear()
        if not was_drained:
            self._abandon_unrequested(execution, now_ms)
        self._queued.extend(execution.fresh + self.nesting.take_fresh())
        execution.fresh = []
        while self._queued and not self._is_pass_over and self.execution is execution:
            request = self._queued.popleft()
            if request.is_pending():
                self._serve(execution, request, now_ms)
        if not self._is_pass_over and self.execution is execution:
            self._start_starved(execution, now_ms)
            self._happen(execution)
        if not self._instance.is_drivable():
            return  # Held by a request that does not fit its step, or paused or ended by mail.
        if self._is_pass_over or self._queued or execution.has_outcome():
            self._host.ready(self._instance)
        elif not execution.pending and not self.in_flight:
            self._instance.fail(stuck_failure(self._instance.label()))

    def _serve(self, execution: Execution, request: Request, now_ms: int) -> None:
        step = self._journal.steps.get(request.step_id)
        if step is None:
            step = self._create(request, now_ms)
            if self._host.always_replay and request.kind == "run" and request.parent_id in self._executed_levels:
                self._end_pass()
                return
        elif problem := drift(request, step.kind, step.parent_id):
            # A callback asked for it, and goes on waiting: it is looked at again when the instance is released.
            self._instance.hold(problem)
            return
        elif step.abandoned_ms is not None:
            self._journal.abandon(step, None)
        if step.sequence is not None:
            return
        if request.kind == "run":
            self._serve_run(request, step, now_ms)
        else:
            if request.kind == "wait":
                self._waits.watch(step)
            if (at_ms := step.wake_ms if request.kind == "sleep" else step.timeout_ms) is not None:
                self._instance.deadlines.set(step.step_id, at_ms)

    def _create(self, request: Request, now_ms: int) -> JournalStep:
        at_ms = request.wake_at_ms if request.kind == "sleep" else request.timeout_at_ms
        if request.wake_in_ms is not None:
            at_ms = min(now_ms + request.wake_in_ms, TIME_MAX_MS)
        return self._journal.create(
            request.step_id,
            request.kind,
            request.parent_id,
            now_ms,
            max_attempts=request.retry.max_attempts if request.kind == "run" else None,
            wake_ms=at_ms if request.kind == "sleep" else None,
            event_name=request.event_name,
            timeout_ms=at_ms if request.kind == "wait" else None,
        )

    def _serve_run(self, request: Request, step: JournalStep, now_ms: int) -> None:
        attempt = step.last
        if attempt is None or (attempt.state == "failed" and attempt.next_ms is None):
            self._start(request, step, now_ms)
        elif attempt.state == "failed":
            assert attempt.next_ms is not None
            if attempt.next_ms <= now_ms:
                self._start(request, step, now_ms)
            else:
                self._instance.deadlines.set(step.step_id, attempt.next_ms)
        elif step.step_id not in self.in_flight:
            self._interrupted(request, step, attempt, now_ms)

    def _interrupted(self, request: Request, step: JournalStep, attempt: Attempt, now_ms: int) -> None:
        """An attempt of a process that is gone: enter it again if its children explain it, else it has failed."""
        if not request.at_most_once and self._journal.has_in_progress_children(step):
            self._enter(request, step, attempt)
            return
        next_ms = None if request.at_most_once else next_attempt_ms(step, request.retry, now_ms, self._host.random())
        self._record_failure(step, attempt, INTERRUPTED, now_ms, next_ms)

    def _start(self, request: Request, step: JournalStep, now_ms: int) -> None:
        if self._host.has_free_place(self._instance, request):
            self._enter(request, step, self._journal.start_attempt(step, now_ms))
        else:
            self._starved.append(request)

    def _start_starved(self, execution: Execution, now_ms: int) -> None:
        """Start what waited for a free place, one by one until there is none: not all of it at every try."""
        for _ in range(len(self._starved)):
            request = self._starved.popleft()
            if request.is_pending():
                waiting = len(self._starved)
                self._serve(execution, request, now_ms)
                if len(self._starved) > waiting:
                    self._starved.rotate(1)
                    return

    def _enter(self, request: Request, step: JournalStep, attempt: Attempt) -> None:
        # Stable for the step over all attempts, and different after the instance was deleted and created anew.
        scope = Scope(self._instance, request, attempt.number, f"{self._instance.nonce}:{step.step_id}")
        self.in_flight[step.step_id] = scope
        self._host.start_callback(self._instance, request, scope)

    def _record_failure(
        self, step: JournalStep, attempt: Attempt, failure: Failure, now_ms: int, next_ms: int | None
    ) -> None:
        self._journal.fail(step, attempt, failure, now_ms, next_ms)
        if _logger.isEnabledFor(logging.INFO):
            # From the record and not from the error, whose text may raise or be without end.
            where = (attempt.number, step.step_id, self._instance.label())
            text = error_traceback(failure.detail)
            _logger.info("attempt %d of step %r of %s failed: %s\n%s", *where, failure.message, text)
        request = self._find(step.step_id)
        if request is None:
            return
        if next_ms is not None:
            self._instance.deadlines.set(step.step_id, next_ms)
        else:
            self._has_outcome(request, step)

    def _has_outcome(self, request: Request, step: JournalStep) -> None:
        self._unwatch(step)
        if request.scope is not None:
            self._host.when_durable(self._instance, self.nesting.resolve, request, self._values)
        elif self.execution is not None and step.step_id in self.execution.pending:
            assert step.sequence is not None
            self.execution.add_outcome(step.sequence, step.step_id)
        self._host.ready(self._instance)

    def abandon(self, request: Request) -> None:
        """Whoever made this request does not wait for it any more."""
        self._abandon(self._journal.steps.get(request.step_id), self._host.now_ms())

    def _abandon_unrequested(self, execution: Execution, now_ms: int) -> None:
        for step in self._journal.steps.values():
            is_open = step.sequence is None and step.abandoned_ms is None and step.parent_id is None
            if is_open and step.step_id not in execution.pending:
                self._abandon(step, now_ms)

    def _abandon(self, step: JournalStep | None, now_ms: int) -> None:
        """The body no longer waits for this step: no alarm, no event, no callback."""
        if step is None or step.sequence is not None:
            return
        self._unwatch(step)
        scope = self.in_flight.get(step.step_id)
        if scope is not None:
            self._cut(scope, ABANDONED, now_ms)
        elif step.in_flight is not None:
            self._journal.cut(step, ABANDONED, now_ms)
        if step.abandoned_ms is None:
            self._journal.abandon(step, now_ms)
        for child in step.children:
            self._abandon(child, now_ms)

    def _unwatch(self, step: JournalStep) -> None:
        self._instance.deadlines.remove(step.step_id)
        self._waits.forget(step)

    def _cut(self, scope: Scope, failure: Failure, now_ms: int) -> None:
        step, attempt = self._close_scope(scope)
        self._host.stop_callback(scope)
        if attempt is not None:
            self._journal.cut(step, failure, now_ms)

    def _close_scope(self, scope: Scope) -> tuple[JournalStep, Attempt | None]:
        """The attempt of a callback that ends now; no attempt when it has ended before (the outcome is too late)."""
        step = self._journal.steps[scope.step_id]
        scope.is_alive = False
        current = self.in_flight.pop(scope.step_id, None)
        # An outcome that is applied again, after rows were refused, comes from a callback that the earlier object let
        # go: it is as good as one in flight.
        is_again = current is None and scope.instance is not self._instance
        if current is not scope and not is_again:
            if current is not None:
                self.in_flight[scope.step_id] = current
            return step, None
        for step_id in self.nesting.end(scope):
            self._abandon(self._journal.steps.get(step_id), self._host.now_ms())
        attempt = step.in_flight
        return step, attempt if attempt is not None and attempt.number == scope.attempt else None

    def _find(self, step_id: str) -> Request | None:
        request = self.nesting.pending.get(step_id)
        if request is None and self.execution is not None:
            request = self.execution.pending.get(step_id)
        return request

    def _end_pass(self) -> None:
        if self._host.always_replay:
            self._is_pass_over = True
