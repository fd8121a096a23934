"""Attempts: run one callback, on the loop or in a thread, with its timeout and its cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from workerflow.codec import Stored
from workerflow.core.request import CURRENT_SCOPE, Request, Scope
from workerflow.effects import Effects, Timer
from workerflow.errors import InvalidValueError, NonRetryableStepError
from workerflow.settings import Settings
from workerflow.worker.threads import CallbackThreads, Outcome

_logger = logging.getLogger("workerflow")


class AttemptSink(Protocol):
    """Where outcomes go."""

    def attempt_begins(self, scope: Scope) -> None:
        """A callback is about to be entered."""
        ...

    def attempt_succeeded(self, scope: Scope, stored: Stored | None) -> None: ...
    def attempt_failed(self, scope: Scope, error: BaseException) -> None: ...
    def attempt_released(self, scope: Scope) -> None:
        """A callback that was told to stop has ended."""
        ...

    def process_interrupted(self, error: KeyboardInterrupt) -> None:
        """A callback raised KeyboardInterrupt: the engine stops, and nothing is recorded of it."""
        ...

    def place_is_free(self) -> None:
        """A thread is free again."""
        ...


class Running:
    """A callback in flight in this process."""

    __slots__ = ("began_s", "has_begun", "is_reported", "is_stopped", "leave_thread", "request", "task", "timer")

    def __init__(self, request: Request, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.leave_thread: Callable[[], None] | None = None
        self.has_begun = False
        self.is_stopped = False
        self.is_reported = False


class Attempts:
    """The callbacks in flight of one worker."""

    def __init__(
        self, sink: AttemptSink, effects: Effects, settings: Settings, new_context: Callable[[], contextvars.Context]
    ) -> None:
        self._sink = sink
        self._effects = effects
        self._settings = settings
        self._new_context = new_context
        self._loop = asyncio.get_running_loop()
        self._threads = CallbackThreads(settings.thread_count)
        # Waiting at the gate; a plain callback has its place in the threads already.
        self._expected: dict[Scope, Request] = {}
        self._running: dict[Scope, Running] = {}

    def reserve(self, request: Request) -> bool:
        """Whether the callback may be written as started: an async one always, a plain one when a thread is free."""
        return is_async(request.callback) or self._threads.reserve()

    def has_free_thread(self) -> bool:
        """Whether a plain callback could start."""
        return self._threads.has_free()

    def expect(self, request: Request, scope: Scope) -> None:
        """The reserved callback will begin when its attempt is durable."""
        self._expected[scope] = request

    def begin(self, scope: Scope) -> None:
        """Start a callback whose attempt is durable, unless it was stopped meanwhile."""
        request = self._expected.pop(scope, None)
        if request is None:
            return
        running = Running(request, self._effects.monotonic_s())
        self._running[scope] = running
        self._sink.attempt_begins(scope)
        context = self._new_context()
        context.run(CURRENT_SCOPE.set, scope)
        if request.timeout_ms is not None:
            running.timer = self._effects.call_after(request.timeout_ms, lambda: self._time_out(scope))
        assert request.callback is not None
        if is_async(request.callback):
            coroutine = self._await(scope, request.callback, request.arguments)
            running.task = self._loop.create_task(coroutine, context=context)
        else:
            call = functools.partial(request.callback, *request.arguments)
            running.leave_thread = self._threads.run(
                context, call, lambda outcome: self._thread_done(scope, context, outcome)
            )

    def stop(self, scope: Scope) -> bool:
        """Cancel a callback; True if it runs on the loop and will report its end. Threads cannot be stopped."""
        request = self._expected.pop(scope, None)
        if request is not None and not is_async(request.callback):
            self._threads.release()
            self._sink.place_is_free()
        running = self._running.get(scope)
        if running is None:
            return False
        running.is_stopped = True
        if running.task is None:
            self._leave_thread(running)
            return False
        running.task.cancel()
        if not running.has_begun:
            # Cancelled before its first step, the coroutine never runs, and so never reports its end.
            self._forget(scope, running)
        return running.has_begun

    def in_flight(self) -> list[Scope]:
        """The callbacks that have not ended."""
        return [scope for scope in self._running if scope.is_alive]

    def all_have_timeouts(self, scopes: list[Scope]) -> bool:
        """Whether time alone would end these callbacks."""
        return all(scope in self._running and self._running[scope].timer is not None for scope in scopes)

    def report_stuck(self) -> None:
        """Log, once each, the callbacks that have been running for longer than ``watchdog_s``."""
        now_s = self._effects.monotonic_s()
        for scope, running in self._running.items():
            if now_s - running.began_s < self._settings.watchdog_s:
                return  # Oldest first: the others began later.
            if not running.is_reported:
                running.is_reported = True
                if running.task is None:
                    self._leave_thread(running)
                _logger.warning(
                    "the callback of step %r of workflow %r instance %r has been running for %d s; "
                    "give the step a timeout if that is too long",
                    scope.step_id, scope.instance.workflow, scope.instance.instance_id, now_s - running.began_s,
                )  # fmt: skip

    async def close(self) -> None:
        """Cancel what still runs on the loop and wait for it; its outcome is of no interest."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for scope in list(self._running):
            self.stop(scope)
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.finish_grace_s)
        self._threads.close()

    def abandon(self) -> None:
        """Let the threads end; the loop is closed."""
        self._threads.close()

    async def _await(self, scope: Scope, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        self._running[scope].has_begun = True
        try:
            value = await function(*arguments)
        except BaseException as error:  # SystemExit and foreign cancellations are outcomes of the attempt, too.
            self._end(scope, None, error)
        else:
            self._end(scope, value, None)

    def _leave_thread(self, running: Running) -> None:
        """Nobody waits for the thread any more: its place is for others, whenever its callback returns."""
        leave, running.leave_thread = running.leave_thread, None
        if leave is not None:
            leave()
            self._sink.place_is_free()

    def _thread_done(self, scope: Scope, context: contextvars.Context, outcome: Outcome) -> None:
        value, error = outcome
        running = self._running.get(scope)
        if running is not None:
            self._leave_thread(running)
        if running is None or running.is_stopped or not scope.is_alive:
            if inspect.iscoroutine(value):
                value.close()
        elif error is None and inspect.isawaitable(value):
            # A plain callable that gave a coroutine, such as a lambda around an async function.
            coroutine = self._await(scope, _identity, (value,))
            running.task = self._loop.create_task(coroutine, context=context)
            return
        self._end(scope, value, error)

    def _end(self, scope: Scope, value: Any, error: BaseException | None) -> None:
        running = self._running.get(scope)
        if running is None:
            return
        self._forget(scope, running)
        if self._loop.is_closed():
            return  # The collector closes a coroutine that outlived its loop: nobody is left to hear of it.
        if isinstance(error, KeyboardInterrupt):
            self._sink.process_interrupted(error)
        elif running.is_stopped or not scope.is_alive:
            self._sink.attempt_released(scope)
        elif error is not None:
            self._sink.attempt_failed(scope, error)
        else:
            self._succeed(scope, running.request, value)

    def _forget(self, scope: Scope, running: Running) -> None:
        del self._running[scope]
        if running.timer is not None:
            running.timer.cancel()

    def _succeed(self, scope: Scope, request: Request, value: Any) -> None:
        assert request.value_type is not None
        try:
            instance = scope.instance
            where = (
                f"result of step {scope.step_id!r} of workflow {instance.workflow!r} instance {instance.instance_id!r}"
            )
            stored = request.value_type.store(value, where, self._settings.value_bytes_max)
        except InvalidValueError as problem:
            # The callback would give the same value again, and its effect has happened.
            error = NonRetryableStepError(str(problem), {"path": problem.path})
            error.__cause__ = problem
            self._sink.attempt_failed(scope, error)
            return
        if len(stored.text) > self._settings.value_bytes_warn:
            _logger.warning(
                "the result of step %r of %r is %d bytes", scope.step_id, scope.instance.instance_id, len(stored.text)
            )
        self._sink.attempt_succeeded(scope, None if value is None else stored)

    def _time_out(self, scope: Scope) -> None:
        running = self._running.get(scope)
        if running is None or not scope.is_alive:
            return
        seconds = (running.request.timeout_ms or 0) / 1000
        error = TimeoutError(f"the attempt took longer than its timeout of {seconds:g} s")
        if running.task is not None:
            running.is_stopped = True
            running.task.cancel()
        else:
            self._leave_thread(running)
        self._sink.attempt_failed(scope, error)


@functools.lru_cache(maxsize=4096)
def _is_async_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def is_async(callback: Any) -> bool:
    """Whether calling it gives a coroutine: then it runs on the loop."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    callback = getattr(callback, "__func__", callback)
    try:
        return _is_async_function(callback)
    except TypeError:  # Callable objects need not be hashable.
        return _is_async_function.__wrapped__(callback)


async def _identity(value: Awaitable[Any]) -> Any:
    return await value
