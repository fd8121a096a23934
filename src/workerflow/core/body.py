"""BodyLoop: the deterministic event loop in which ``execute()`` runs.

It has a ready queue and nothing else: no timers, no I/O, no threads. ``drive()`` makes it the running loop, runs ready
callbacks until none is left, and puts the outer loop back. A workflow that waits is a coroutine parked on a future: no
control-flow exception ever passes through the author's code, and gather, TaskGroup, wait, as_completed, Queue, Lock
and Event mean what they mean.

Two details make it repeat exactly. asyncio keeps tasks and futures in sets, which order by hash, which by default is an
address: the classes here hash by creation number instead. And each handle runs in the order in which it became ready.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, NoReturn

from workerflow.core.as_completed import given_to_as_completed
from workerflow.errors import DefinitionError

_logger = logging.getLogger("workerflow")

REMEDY = (
    "execute() runs on a loop without {what}, so that it can be replayed exactly; "
    "do this in a callback: await self.run('some-id', callback); to wait, use self.sleep, self.wait or self.timeout"
)


class RunawayBodyError(Exception):
    """One delivery caused more asyncio callbacks than allowed."""


class _Handle:
    """What ``call_soon`` returns: a callback that can be taken back."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class BodyFuture(asyncio.Future[Any]):
    """A future that hashes by creation number."""

    def __init__(self, *, loop: BodyLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class StepFuture(BodyFuture):
    """The future of a step; tells its owner when the body cancels it.

    It also passes for a coroutine where asyncio asks for one only to run it: ``TaskGroup.create_task``.
    """

    def __init__(self, *, loop: BodyLoop, step_id: str, on_cancel: Callable[[str], None]) -> None:
        super().__init__(loop=loop)
        self._step_id = step_id
        self._on_cancel = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self._on_cancel(self._step_id)
        return True

    def close(self) -> None:
        """Cancel, as closing a coroutine would."""
        self.cancel()

    def set_name(self, name: object) -> None:
        """Accepted and ignored: ``TaskGroup.create_task(…, name=…)`` sets it."""


class BodyTask(asyncio.Task[Any]):
    """A task that hashes by creation number."""

    def __init__(
        self, coroutine: Any, *, loop: BodyLoop, name: str | None, context: contextvars.Context | None
    ) -> None:
        self._number = loop.next_number()
        # asyncio's own default name counts for the whole process, which no replay could repeat.
        super().__init__(coroutine, loop=loop, name=name or f"Task-{loop.task_count}", context=context)

    def __hash__(self) -> int:
        return self._number


_CLINGING: list[BodyTask] = []
"""Tasks that caught every cancellation. Collecting one would throw GeneratorExit into it, which it would catch, too."""


class BodyLoop(asyncio.AbstractEventLoop):
    """The loop of one body. *hash_base* is the instance's own; *label* names it in messages."""

    def __init__(self, label: str, hash_base: int, handles_max: int) -> None:
        self._label = label
        # asyncio keeps all tasks of the process in one weak set: with small numbers every body's would collide there.
        self._number = hash_base
        self._handles_max = handles_max
        self._ready: deque[_Handle] = deque()
        self._is_driving = False
        self._is_closed = False
        self.task_count = 0
        self.tasks: dict[BodyTask, None] = {}
        # By the id of their coroutine; it is alive, because its task holds it.
        self._begun_early: dict[int, BodyTask] = {}

    def next_number(self) -> int:
        """The next creation number."""
        self._number += 1
        return self._number

    def schedule(self, callback: Callable[..., object], *arguments: Any, context: contextvars.Context) -> None:
        """Let the next drive run *callback*: how an outcome enters the body."""
        self._ready.append(_Handle(callback, arguments, context))

    def drive(self) -> None:
        """Run ready callbacks until none is left. Only from a plain callback of the outer loop, never within a task."""
        outer = events._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=_ignore_asyncgen, finalizer=self._finalize_asyncgen)
        self._is_driving = True
        ready = self._ready
        budget = self._handles_max
        try:
            while ready:
                handle = ready.popleft()
                if not handle.is_cancelled:
                    try:
                        handle.context.run(handle.callback, *handle.arguments)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:  # A task keeps its SystemExit and throws it at the loop as well.
                        _logger.debug("%s: %r reached the body's loop", self._label, error)
                budget -= 1
                if budget <= 0:
                    raise RunawayBodyError(
                        f"{self._label}: execute() ran {self._handles_max} asyncio callbacks without a wait; "
                        "a loop that only yields never ends here: wait for a step, an event or a lock in it"
                    )
        finally:
            self._is_driving = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer)

    def discard(self) -> list[str]:
        """Cancel every task, give them three rounds to end, silence what is left, and name what clings."""
        for _ in range(3):
            pending = [task for task in self.tasks if not task.done()]
            for task in pending:
                self._ready.append(_Handle(task.cancel, (), contextvars.Context()))
            if pending:
                # One that stops the engine passes from task to task; the first of it is on its way already.
                with suppress(KeyboardInterrupt):
                    self.drive()
        clinging = [task for task in self.tasks if not task.done()]
        self._is_closed = True
        self._ready.clear()
        for task in clinging:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch, not in its stubs
            _CLINGING.append(task)
        self.tasks.clear()
        return [task.get_name() for task in clinging]

    def call_soon(  # type: ignore[override]  # a handle of our own: asyncio only ever cancels it
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        if not self._is_driving:
            if self._is_closed:
                return _Handle(callback, args, contextvars.Context())
            raise DefinitionError(
                f"{self._label}: something outside execute() tried to wake it (an asyncio.Event, Queue, Lock or Future "
                "of the body, set in a callback); return a value from the callback, or send an event to the instance"
            )
        handle = _Handle(callback, args, context or contextvars.copy_context())
        self._ready.append(handle)
        return handle

    def create_future(self) -> BodyFuture:
        return BodyFuture(loop=self)

    def create_task(  # type: ignore[override]  # accepts a step's future as well: TaskGroup.create_task(self.run(…))
        self,
        coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any] | StepFuture,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> BodyTask | StepFuture:
        if isinstance(coroutine, StepFuture):
            return coroutine
        if (task := self._begun_early.pop(id(coroutine), None)) is not None:
            return task
        for sibling in given_to_as_completed(sys._getframe(1)) or ():
            if asyncio.iscoroutine(sibling) and id(sibling) not in self._begun_early:
                self._begun_early[id(sibling)] = self._new_task(sibling, None, None)
        return self._begun_early.pop(id(coroutine), None) or self._new_task(coroutine, name, context)

    def _new_task(
        self,
        coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        name: str | None,
        context: contextvars.Context | None,
    ) -> BodyTask:
        self.task_count += 1
        task = BodyTask(coroutine, loop=self, name=name, context=context)
        # asyncio holds tasks weakly; a parked body has no other owner.
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_driving

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_closed:
            _logger.warning("%s: %s", self._label, context.get("message"), exc_info=context.get("exception"))

    def time(self) -> NoReturn:
        self._refuse("a clock or timers")

    def _refuse(self, what: str) -> NoReturn:
        raise DefinitionError(f"{self._label}: {REMEDY.format(what=what)}")

    def _forget(self, task: Any) -> None:
        self.tasks.pop(task, None)

    def _finalize_asyncgen(self, generator: AsyncGenerator[Any, Any]) -> None:
        if self._is_driving:
            self.create_task(generator.aclose())


def _ignore_asyncgen(generator: AsyncGenerator[Any, Any]) -> None:
    """The outer loop must not hear of the body's generators: it would close them on itself."""


def _refuser(kind: str) -> Callable[..., Any]:
    def refuse(self: BodyLoop, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(kind)

    return refuse


_KINDS = {"call_later": "timers", "call_at": "timers", "run_in_executor": "threads", "call_soon_threadsafe": "threads"}
_HARMLESS = ("shutdown_asyncgens", "set_debug")

# All that asyncio's loops do and this one does not, in any version: what is called says what to do.
for _name in sorted(asyncio.AbstractEventLoop.__dict__):
    if not _name.startswith("_") and _name not in BodyLoop.__dict__ and _name not in _HARMLESS:
        setattr(BodyLoop, _name, _refuser(_KINDS.get(_name, f"I/O (it called {_name})")))


def new_body_loop(label: str, hash_base: int, handles_max: int) -> BodyLoop:
    """A BodyLoop; its remaining methods are set above, where no type checker sees them."""
    make: Callable[..., BodyLoop] = BodyLoop
    return make(label, hash_base, handles_max)
