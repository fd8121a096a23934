"""Stepping: an instance's steps in motion. It carries out requests, records outcomes and delivers them.

Commands wait for replay: while a requested step has a recorded outcome to deliver, nothing is started, retried,
interrupted or claimed; then only requests that are still pending are carried out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from workerflow.codec import Stored
from workerflow.core.body import RunawayBodyError
from workerflow.core.context import next_attempt_ms
from workerflow.core.execution import Execution, drift
from workerflow.core.failure import ABANDONED, INTERRUPTED, STOPPED, Failure, describe, rebuild
from workerflow.core.journal import Attempt, JournalStep
from workerflow.core.request import Request, Scope
from workerflow.definition import declared_types
from workerflow.errors import (
    DefinitionError,
    InvalidValueError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from workerflow.core.instance import Instance


class Stepping:
    """The moving part of one instance: the body, the callbacks in flight, and what waits for what."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._journal = instance.journal
        self._host = instance.host
        self.execution: Execution | None = None
        self.in_flight: dict[str, Scope] = {}
        self._nested: dict[str, Request] = {}
        self._fresh_nested: list[Request] = []
        self._values: dict[str, Any] = {}
        self._waits: dict[str, set[str]] = {}
        self._queued: list[Request] = []
        self._executed_levels: set[str | None] = set()
        self._is_pass_over = False

    def is_busy(self) -> bool:
        """Whether there is something to do that no deadline or event will bring about."""
        return bool(self._queued or self._fresh_nested or self._is_pass_over) or self.execution is None

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
            self._carry_out(execution)

    def ask_nested(self, request: Request, scope: Scope, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Take the request of an async callback; its future belongs to the application's loop."""
        step_id = request.step_id
        if not scope.is_alive:
            raise DefinitionError(
                f"step {step_id!r} was asked for by an attempt of step {scope.step_id!r} that has ended; "
                "a callback must await the tasks that it starts"
            )
        if step_id in scope.used_ids or step_id == scope.step_id:
            raise DefinitionError(f"step id {step_id!r} was already used in this callback of step {scope.step_id!r}")
        parent = self._nested.get(scope.step_id) or self._find(scope.step_id)
        if parent is not None and parent.at_most_once:
            raise DefinitionError(
                f"step {scope.step_id!r} is at_most_once and cannot have nested steps: they need its callback to be "
                "entered again after an interruption"
            )
        scope.used_ids.add(step_id)
        request.scope = scope
        future: asyncio.Future[Any] = loop.create_future()
        request.future = future
        step = self._journal.steps.get(step_id)
        if step is not None and (problem := drift(request, step.kind, step.parent_id)):
            self._instance.hold(problem)
            return future
        # By way of the scope: the instance may be built anew while the callback runs.
        future.add_done_callback(lambda _: scope.instance.nested_is_done(request))
        self._nested[step_id] = request
        if step is not None and step.sequence is not None:
            self._resolve_nested(request)
        else:
            self._fresh_nested.append(request)
            self._host.ready(self._instance)
        return future

    def match_all(self) -> None:
        """Let every wait have the events that were queued while the instance was paused."""
        for name in list(self._waits):
            self.match(name)

    def match(self, name: str) -> None:
        """Let the waits on this name, earliest created first, have the queued events."""
        execution = self.execution
        if execution is None or not execution.is_drained or not self._instance.is_drivable():
            return
        steps = sorted((self._journal.steps[step_id] for step_id in self._waits.get(name, ())), key=_ordinal)
        for step in steps:
            request = self._find(step.step_id)
            if request is not None and request.is_pending() and self._journal.claim(step, self._host.now_ms()):
                self._end_pass()
                self._has_outcome(request, step)

    def due(self, now_ms: int) -> None:
        """Act on the deadlines that have passed: sleeps, waits and retries."""
        execution = self.execution
        if execution is None or not execution.is_drained:
            return  # The pump that is on its way will see to them.
        due = self._instance.deadlines.pop_due(now_ms)
        if any(self._journal.steps[step_id].kind == "wait" for step_id in due):
            self._host.take_mail(self._instance)
            if not self._instance.is_drivable():
                return
        for step_id in due:
            request = self._find(step_id)
            if request is None or not request.is_pending():
                continue
            if request.kind == "run":
                self._queued.append(request)
                self._end_pass()
            else:
                self._carry(execution, request, now_ms)
        self._host.ready(self._instance)

    def succeeded(self, scope: Scope, stored: Stored | None) -> bool:
        """A callback returned; None stands for None. False when the attempt has ended already."""
        step, attempt, request = self._take(scope)
        if attempt is None:
            return False
        self._journal.succeed(step, attempt, None if stored is None else stored.text, self._host.now_ms())
        self._instance.recoveries = 0
        if request is not None:
            self._executed_levels.add(request.parent_id)
            self._values[step.step_id] = None if stored is None else stored.value
            self._has_outcome(request, step)
        self._instance.save_progress()
        return True

    def failed(self, scope: Scope, error: BaseException) -> bool:
        """A callback raised. False when the attempt has ended already."""
        step, attempt, request = self._take(scope)
        if attempt is None:
            return False
        now_ms = self._host.now_ms()
        next_ms = None
        if request is not None and _is_retryable(request, error):
            next_ms = next_attempt_ms(step, request.retry, now_ms, self._host.random())
        self._instance.recoveries = 0
        self._record_failure(step, attempt, describe(error), now_ms, next_ms, request)
        self._instance.save_progress()
        return True

    def is_parked(self, scope: Scope) -> bool:
        """Whether the callback waits for a nested step of its own."""
        return any(request.scope is scope and request.is_pending() for request in self._nested.values())

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
        for request in earlier._nested.values():
            if request.is_pending():
                self._nested[request.step_id] = request
                self._fresh_nested.append(request)

    def interrupt(self, scope: Scope) -> None:
        """A graceful stop ended the callback: the try is recorded and does not count."""
        step, attempt, request = self._take(scope)
        if attempt is not None:
            is_final = request is not None and request.at_most_once
            self._journal.fail(
                step, attempt, STOPPED, self._host.now_ms(), None, counts=is_final, is_outcome=is_final, is_cut=True
            )

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
                self._journal.fail(step, step.in_flight, cut, now_ms, None, counts=False, is_outcome=False, is_cut=True)
        self.drop_body()

    def drop_body(self) -> None:
        """Forget the body; callbacks in flight stay alive and are found again by the next one."""
        execution, self.execution = self.execution, None
        self._is_pass_over = False
        self._executed_levels.clear()
        self._waits.clear()
        self._queued.clear()
        self._values.clear()
        self._instance.deadlines.clear()
        # Requests of callbacks outlive the body; the next one carries them out anew.
        self._fresh_nested = [request for request in self._nested.values() if request.is_pending()]
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
            instance.fail(_plain(error))
            return None
        self.execution = Execution(instance, definition, value, instance.started_ms)
        self.execution.begin()
        return self.execution

    def _end(self, execution: Execution) -> None:
        from workerflow.core.instance import Ending  # the two classes are halves of one whole

        instance = self._instance
        assert instance.definition is not None
        try:
            value = execution.result()
            where = f"result of {instance.label()}"
            text = None if value is None else declared_types(instance.definition)[1].store(value, where).text
            ending = Ending("completed", text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Whatever leaves execute() is the instance's failure.
            ending = Ending("failed", failure=_plain(error))
        instance.end_body(ending)

    def _deliver(self, execution: Execution, request: Request) -> None:
        step = self._journal.steps[request.step_id]
        try:
            value, error = self._outcome(request, step)
        except InvalidValueError as problem:
            if request.kind == "run":
                execution.drift = f"the stored result of step {request.step_id!r} no longer decodes: {problem}"
                return
            value, error = None, problem
        at_ms = step.resolved_ms if step.kind != "run" else step.attempts[-1].ended_ms
        execution.deliver(request, value, error, at_ms or 0)

    def _outcome(self, request: Request, step: JournalStep) -> tuple[Any, BaseException | None]:
        if step.kind == "sleep":
            return None, None
        assert request.value_type is not None
        if step.kind == "wait":
            if step.claimed is None:
                return None, WaitTimeoutError(step.step_id, step.event_name or "")
            payload = step.claimed.payload
            return (None if payload is None else request.value_type.load(payload, f"wait {step.step_id!r}")), None
        attempt = step.attempts[-1]
        if attempt.state == "failed":
            return None, _step_error(step, attempt)
        if step.step_id in self._values:
            return self._values.pop(step.step_id), None
        if attempt.result_json is None:
            return None, None
        return request.value_type.load(attempt.result_json, f"result of step {step.step_id!r}"), None

    def _carry_out(self, execution: Execution) -> None:
        was_drained, execution.is_drained = execution.is_drained, True
        now_ms = self._host.now_ms()
        for step_id in execution.cancelled:
            self._abandon(self._journal.steps.get(step_id), now_ms)
        execution.cancelled.clear()
        if not was_drained:
            self._abandon_unrequested(execution, now_ms)
        requests = execution.fresh + self._fresh_nested + self._queued
        execution.fresh, self._fresh_nested, self._queued = [], [], []
        for index, request in enumerate(requests):
            if self._is_pass_over or not self._instance.is_drivable():
                # A pass that is over asks again; mail found on the way may have paused or ended the instance.
                self._queued.extend(requests[index:])
                break
            if request.is_pending():
                self._carry(execution, request, now_ms)
        if self.execution is not execution or not self._instance.is_drivable():
            return
        if self._is_pass_over or execution.has_outcome():
            self._host.ready(self._instance)
        elif not execution.pending and not self.in_flight:
            self._instance.fail(_stuck(self._instance.label()))

    def _carry(self, execution: Execution, request: Request, now_ms: int) -> None:
        step = self._journal.steps.get(request.step_id)
        if step is None:
            step = self._create(request, now_ms)
            if self._host.always_replay and request.kind == "run" and request.parent_id in self._executed_levels:
                self._end_pass()
                return
        elif step.abandoned_ms is not None:
            self._journal.abandon(step, None)
        if step.sequence is not None:
            return
        if request.kind == "run":
            self._carry_run(request, step, now_ms)
        elif request.kind == "sleep":
            self._carry_sleep(request, step, now_ms)
        else:
            self._carry_wait(request, step, now_ms)

    def _create(self, request: Request, now_ms: int) -> JournalStep:
        at_ms = request.wake_at_ms if request.kind == "sleep" else request.timeout_at_ms
        if request.wake_in_ms is not None:
            at_ms = now_ms + request.wake_in_ms
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

    def _carry_sleep(self, request: Request, step: JournalStep, now_ms: int) -> None:
        assert step.wake_ms is not None
        if step.wake_ms > now_ms:
            self._instance.deadlines.set(step.step_id, step.wake_ms)
        else:
            self._journal.resolve(step, "elapsed", now_ms)
            self._end_pass()
            self._has_outcome(request, step)

    def _carry_wait(self, request: Request, step: JournalStep, now_ms: int) -> None:
        name = step.event_name or ""
        if not self._journal.claim(step, now_ms):
            if step.timeout_ms is None or step.timeout_ms > now_ms:
                self._waits.setdefault(name, set()).add(step.step_id)
                if step.timeout_ms is not None:
                    self._instance.deadlines.set(step.step_id, step.timeout_ms)
                return
            self._host.take_mail(self._instance)
            if step.state == "waiting":
                if not self._instance.is_drivable():
                    return
                self._journal.resolve(step, "timed_out", now_ms)
        self._has_outcome(request, step)

    def _carry_run(self, request: Request, step: JournalStep, now_ms: int) -> None:
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
        self._record_failure(step, attempt, INTERRUPTED, now_ms, next_ms, request)

    def _start(self, request: Request, step: JournalStep, now_ms: int) -> None:
        if self._host.has_free_place(self._instance, request):
            self._enter(request, step, self._journal.start_attempt(step, now_ms))
        else:
            self._queued.append(request)

    def _enter(self, request: Request, step: JournalStep, attempt: Attempt) -> None:
        instance = self._instance
        # Stable for the step over all attempts, and different after the instance was deleted and created anew.
        idempotency_key = f"{instance.nonce}:{step.step_id}"
        scope = Scope(instance, instance.workflow, instance.instance_id, step.step_id, attempt.number, idempotency_key)
        self.in_flight[step.step_id] = scope
        self._host.start_callback(instance, request, scope)

    def _record_failure(
        self,
        step: JournalStep,
        attempt: Attempt,
        failure: Failure,
        now_ms: int,
        next_ms: int | None,
        request: Request | None,
    ) -> None:
        self._journal.fail(step, attempt, failure, now_ms, next_ms)
        if request is None:
            return
        if next_ms is not None:
            self._instance.deadlines.set(step.step_id, next_ms)
        else:
            self._has_outcome(request, step)

    def _has_outcome(self, request: Request, step: JournalStep) -> None:
        self._instance.deadlines.remove(step.step_id)
        if step.event_name is not None:
            self._waits.get(step.event_name, set()).discard(step.step_id)
        if request.scope is not None:
            self._host.when_durable(self._instance, self._resolve_nested, request)
        elif self.execution is not None and step.step_id in self.execution.pending:
            assert step.sequence is not None
            self.execution.add_outcome(step.sequence, step.step_id)
        self._host.ready(self._instance)

    def _resolve_nested(self, request: Request) -> None:
        future = request.future
        if future is None or not request.is_pending():
            return
        step = self._journal.steps[request.step_id]
        try:
            value, error = self._outcome(request, step)
        except InvalidValueError as problem:
            value, error = None, problem
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def nested_is_done(self, request: Request) -> None:
        """The future of a nested request is done; when the callback cancelled it, its step is abandoned."""
        if self._nested.get(request.step_id) is request:
            del self._nested[request.step_id]
        future = request.future
        if future is not None and future.cancelled() and not self._instance.is_discarded:
            step = self._journal.steps.get(request.step_id)
            if step is not None and step.sequence is None and request.scope is not None and request.scope.is_alive:
                self._abandon(step, self._host.now_ms())
                self._host.ready(self._instance)

    def _abandon_unrequested(self, execution: Execution, now_ms: int) -> None:
        for step in self._journal.steps.values():
            is_open = step.sequence is None and step.abandoned_ms is None and step.parent_id is None
            if is_open and step.step_id not in execution.pending:
                self._abandon(step, now_ms)

    def _abandon(self, step: JournalStep | None, now_ms: int) -> None:
        """The body no longer waits for this step: no alarm, no event, no callback."""
        if step is None or step.sequence is not None:
            return
        self._instance.deadlines.remove(step.step_id)
        if step.event_name is not None:
            self._waits.get(step.event_name, set()).discard(step.step_id)
        scope = self.in_flight.get(step.step_id)
        if scope is not None:
            self._cut(scope, ABANDONED, now_ms)
        elif step.in_flight is not None:
            self._journal.fail(
                step, step.in_flight, ABANDONED, now_ms, None, counts=False, is_outcome=False, is_cut=True
            )
        if step.abandoned_ms is None:
            self._journal.abandon(step, now_ms)
        for child in step.children:
            self._abandon(child, now_ms)

    def _cut(self, scope: Scope, failure: Failure, now_ms: int) -> None:
        step, attempt, _ = self._take(scope)
        self._host.stop_callback(scope)
        if attempt is not None:
            self._journal.fail(step, attempt, failure, now_ms, None, counts=False, is_outcome=False, is_cut=True)

    def _take(self, scope: Scope) -> tuple[JournalStep, Attempt | None, Request | None]:
        """The attempt of a callback that ends now; no attempt when it has ended before (the outcome is too late)."""
        step = self._journal.steps[scope.step_id]
        scope.is_alive = False
        if self.in_flight.get(scope.step_id) is not scope:
            return step, None, None
        del self.in_flight[scope.step_id]
        for request in [other for other in self._nested.values() if other.scope is scope]:
            self._nested.pop(request.step_id, None)
            self._instance.deadlines.remove(request.step_id)
        request_of_step = self._find(scope.step_id)
        attempt = step.in_flight
        return step, attempt if attempt is not None and attempt.number == scope.attempt else None, request_of_step

    def _find(self, step_id: str) -> Request | None:
        request = self._nested.get(step_id)
        if request is None and self.execution is not None:
            request = self.execution.pending.get(step_id)
        return request

    def _end_pass(self) -> None:
        if self._host.always_replay:
            self._is_pass_over = True


def _ordinal(step: JournalStep) -> int:
    return step.ordinal


def _is_retryable(request: Request, error: BaseException) -> bool:
    try:
        return request.retry.is_retryable(error)
    except Exception:  # A predicate of the author's that raises must not leave the attempt without an outcome.
        return False


def _step_error(step: JournalStep, attempt: Attempt) -> BaseException:
    assert attempt.failure is not None
    error = rebuild(attempt.failure)
    if isinstance(error, NonRetryableStepError):
        return error
    exceeded = MaxAttemptsExceededError(step.step_id, step.counted())
    exceeded.__cause__ = error
    return exceeded


def _plain(error: BaseException) -> Failure:
    """The record of what left ``execute()``: the name apart, the text without it."""
    failure = describe(error)
    return failure._replace(message=failure.message.removeprefix(f"{failure.name}: "))


def _stuck(label: str) -> Failure:
    return _plain(
        DefinitionError(
            f"{label}: execute() waits, but nothing can wake it: no step is pending; "
            "it probably awaits an asyncio.Event, Queue or Future that no code of its own will set"
        )
    )
