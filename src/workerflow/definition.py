"""WorkflowDefinition: what authors write, and the verbs that they call in it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin, overload

from workerflow.codec import ValueType, checked_text, result_type, value_type
from workerflow.core.model import to_datetime, to_milliseconds
from workerflow.core.request import CURRENT_SCOPE, Request, RequestPort
from workerflow.core.retry import DEFAULT_RETRY, Duration, RetryPolicy, check_max_attempts, duration_ms
from workerflow.errors import DefinitionError

InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")

ID_CHARACTERS_MAX = 500


class WorkflowDefinition(Generic[InputT, ResultT]):
    """A workflow: subclass it with its input and result types, and write ``execute()``.

    The workflow's name is the class name, or ``name = "…"`` in the class. ``execute()`` is replayed: it must do no I/O,
    read no clock and no randomness but ``self.now()``, ``self.random`` and ``self.uuid()``, and talk to the world only
    through callbacks of ``self.run``. What it keeps on ``self`` is rebuilt by replay. A callback must return values; it
    must not write to ``self`` nor change its arguments, which a replay would not repeat.

    A verb's request happens at the call. It returns an awaitable for ``await``, ``asyncio.gather``, ``asyncio.wait``
    and ``TaskGroup.create_task``. Ids are unique within one execution: a second use raises DefinitionError.

    >>> class Greeting(WorkflowDefinition[str, str]):
    ...     async def execute(self) -> str:
    ...         return await self.run("greet", "hello {}".format, self.input, returns=str)
    >>> workflow_name(Greeting)
    'Greeting'
    """

    name: ClassVar[str]
    _declared_types: ClassVar[tuple[ValueType, ValueType]]
    _port: RequestPort | None = None
    _random: random.Random | None = None

    async def execute(self) -> ResultT:
        """The workflow itself: what it returns is the result; an error that leaves it fails the instance."""
        raise NotImplementedError

    @property
    def input(self) -> InputT:
        """What ``create`` was given, decoded; None when it was given nothing. The same on every replay."""
        return cast(InputT, self._require_port().input)

    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[..., Awaitable[ValueT]],
        *args: Any,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        returns: Any = None,
        at_most_once: bool = False,
    ) -> asyncio.Future[ValueT]: ...
    @overload
    def run(
        self,
        step_id: str,
        callback: Callable[..., ValueT],
        *args: Any,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        returns: Any = None,
        at_most_once: bool = False,
    ) -> asyncio.Future[ValueT]: ...
    def run(
        self,
        step_id: str,
        callback: Callable[..., Any],
        *args: Any,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        returns: Any = None,
        at_most_once: bool = False,
    ) -> asyncio.Future[Any]:
        """Call *callback* with *args* and give its stored result: at least once, and never again once it is stored.

        An async callback runs on the application's loop, a plain function in a thread. *max_attempts* is short for
        ``RetryPolicy(max_attempts=…)``; neither means three attempts. *timeout* ends one attempt after so many seconds
        (an async callback is cancelled; a thread's late result is refused). *returns* declares the result type where
        the callback's annotation does not. With *at_most_once* an interrupted attempt is not run again. Raises
        DefinitionError at the call for bad arguments, and into the body what the callback raised for good.
        """
        request = Request(step_id, "run")
        if not callable(callback):
            if inspect.iscoroutine(callback):
                callback.close()
            raise DefinitionError(
                f"step {step_id!r}: {callback!r} is not callable; pass the function itself and its arguments after it"
            )
        request.callback, request.arguments = callback, args
        request.retry = _policy(step_id, max_attempts, retry)
        request.timeout_ms = None if timeout is None else duration_ms(timeout, f"timeout of step {step_id!r}")
        request.at_most_once = at_most_once
        where = f"step {step_id!r}"
        request.value_type = result_type(callback, where) if returns is None else value_type(returns, where)
        return self._ask(request)

    def sleep(self, step_id: str, duration: Duration) -> asyncio.Future[None]:
        """Wait this many seconds (or a timedelta) from now, durably. Raises DefinitionError for a bad duration."""
        request = Request(step_id, "sleep")
        request.wake_in_ms = duration_ms(duration, f"sleep {step_id!r}")
        return self._ask(request)

    def sleep_until(self, step_id: str, moment: datetime) -> asyncio.Future[None]:
        """Wait until an aware time, durably; a time in the past is over at once."""
        request = Request(step_id, "sleep")
        request.wake_at_ms = _aware_ms(moment, f"sleep_until {step_id!r}")
        return self._ask(request)

    def wait(
        self,
        step_id: str,
        event: str,
        type: Any = Any,
        timeout: Duration | None = None,
        deadline: datetime | None = None,
    ) -> asyncio.Future[Any]:
        """Wait for an inbound event of this name and give its payload, decoded as *type* (None when it has none).

        Events that came before are used first, oldest first. After *timeout* seconds, or at *deadline* (an aware
        time), it raises WaitTimeoutError, which may be caught. A payload that is not a *type* raises InvalidValueError.
        """
        request = Request(step_id, "wait")
        request.event_name = checked_id(event, "event name")
        request.value_type = value_type(type, f"wait {step_id!r}")
        if timeout is not None and deadline is not None:
            raise DefinitionError(f"wait {step_id!r}: give timeout or deadline, not both")
        if timeout is not None:
            request.wake_in_ms = duration_ms(timeout, f"timeout of wait {step_id!r}")
        if deadline is not None:
            request.timeout_at_ms = _aware_ms(deadline, f"deadline of wait {step_id!r}")
        return self._ask(request)

    def timeout(self, step_id: str, seconds: Duration) -> DurableTimeout:
        """A durable deadline: ``async with self.timeout("id", 60):`` raises TimeoutError there when time is up."""
        return DurableTimeout(self, step_id, seconds)

    def now(self) -> datetime:
        """The time of the outcome being delivered, aware UTC: the same on replay. Only in ``execute()``."""
        return to_datetime(self._require_body("now()").outcome_ms())

    @property
    def random(self) -> random.Random:
        """Random numbers that a replay repeats, seeded per instance. Only in ``execute()``."""
        port = self._require_body("random")
        if self._random is None:
            self._random = random.Random(port.seed())
        return self._random

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID that a replay repeats. Only in ``execute()``."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger, named ``workerflow.workflow``, that is silent while replaying and carries the instance's ids."""
        return _ReplaySilentLogger(self._require_port())

    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are being delivered; True from the start of a replay to its last one."""
        return self._require_port().is_replaying()

    def _ask(self, request: Request) -> asyncio.Future[Any]:
        checked_id(request.step_id, "step id")
        return self._require_port(f"step {request.step_id!r}").ask(request)

    def _require_port(self, what: str = "self") -> RequestPort:
        if self._port is None:
            raise DefinitionError(
                f"{what}: the workflow context is unavailable; run, sleep, wait and the rest of self "
                "work only inside execute() that an engine runs"
            )
        return self._port

    def _require_body(self, what: str) -> RequestPort:
        port = self._require_port(what)
        if CURRENT_SCOPE.get() is not None:
            raise DefinitionError(f"self.{what} is for execute() only; in a callback use the real thing")
        return port


class DurableTimeout:
    """What ``self.timeout(…)`` gives: cancels its block when a durable sleep elapses first."""

    def __init__(self, definition: WorkflowDefinition[Any, Any], step_id: str, seconds: Duration) -> None:
        self._definition = definition
        self._step_id = step_id
        self._milliseconds = duration_ms(seconds, f"timeout {step_id!r}")
        self._seconds = seconds
        self._sleep: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_fired = False

    async def __aenter__(self) -> DurableTimeout:
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._sleep = self._definition.sleep(self._step_id, self._milliseconds / 1000)
        self._sleep.add_done_callback(self._fire)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        assert self._sleep is not None
        assert self._task is not None
        if not self._has_fired:
            self._sleep.remove_done_callback(self._fire)
            self._sleep.cancel()
        elif self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError(f"self.timeout({self._step_id!r}, {self._seconds!r}): time is up") from error

    def _fire(self, sleep: asyncio.Future[None]) -> None:
        if not sleep.cancelled() and self._task is not None:
            self._has_fired = True
            self._task.cancel()


class _ReplaySilentLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, port: RequestPort) -> None:
        super().__init__(logging.getLogger("workerflow.workflow"), {"instance": port.label()})
        self._port = port

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # the name is logging's
        return not self._port.is_replaying() and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"{self._port.label()}: {msg}", kwargs


def bind(definition: WorkflowDefinition[Any, Any], port: RequestPort) -> None:
    """Let a definition object ask this port: the first thing that happens to it."""
    definition._port = port


def workflow_name(definition: type[WorkflowDefinition[Any, Any]]) -> str:
    """The name under which instances of a definition are stored."""
    return checked_id(definition.__dict__.get("name", definition.__name__), "workflow name")


def declared_types(definition: type[WorkflowDefinition[Any, Any]]) -> tuple[ValueType, ValueType]:
    """The types of input and result: the parameters of the base class, then what ``execute()`` says it returns."""
    known: tuple[ValueType, ValueType] | None = definition.__dict__.get("_declared_types")
    if known is None:
        known = _declared_types(definition)
        definition._declared_types = known
    return known


def _declared_types(definition: type[WorkflowDefinition[Any, Any]]) -> tuple[ValueType, ValueType]:
    where = f"definition {definition.__name__}"
    for base in (base for cls in definition.__mro__ for base in getattr(cls, "__orig_bases__", ())):
        if get_origin(base) is WorkflowDefinition:
            declared_input, declared_result = (Any if isinstance(item, TypeVar) else item for item in get_args(base))
            return value_type(declared_input, f"input of {where}"), value_type(declared_result, f"result of {where}")
    return value_type(Any, where), result_type(definition.execute, where)


def check_definition(definition: Any) -> None:
    """Refuse a class that cannot be a definition, before anything is stored under its name."""
    if not (isinstance(definition, type) and issubclass(definition, WorkflowDefinition)):
        raise DefinitionError(f"{definition!r} is not a subclass of WorkflowDefinition")
    if definition.execute is WorkflowDefinition.execute:
        raise DefinitionError(f"definition {definition.__name__} has no execute(); write: async def execute(self)")
    if not inspect.iscoroutinefunction(definition.execute):
        raise DefinitionError(f"execute() of definition {definition.__name__} is not async; write: async def execute")
    try:
        inspect.signature(definition.execute).bind(None)
    except TypeError as error:
        raise DefinitionError(
            f"execute() of definition {definition.__name__} must take self alone ({error}); its input is self.input"
        ) from error
    workflow_name(definition)
    declared_types(definition)


def checked_id(text: Any, what: str) -> str:
    """An id or a name as it is, or DefinitionError: it must be 1 to 500 printable characters."""
    if not isinstance(text, str) or not text.strip():
        raise DefinitionError(f"{what} {text!r} must be a non-empty string, and not only of blanks")
    return _checked_id(text, what)


@lru_cache(maxsize=4096)
def _checked_id(text: str, what: str) -> str:
    if len(text) > ID_CHARACTERS_MAX:
        raise DefinitionError(
            f"{what} {text[:40]!r}… has {len(text)} characters; at most {ID_CHARACTERS_MAX} are allowed"
        )
    checked_text(text, what)
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text):
        raise DefinitionError(f"{what} {text!r} contains control characters; use printable ones")
    return text


def _policy(step_id: str, max_attempts: int | None, retry: RetryPolicy | None) -> RetryPolicy:
    if max_attempts is None:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise DefinitionError(f"step {step_id!r}: retry={retry!r} must be a RetryPolicy")
        return retry or DEFAULT_RETRY
    if retry is not None:
        raise DefinitionError(f"step {step_id!r}: give max_attempts or retry, not both; RetryPolicy has max_attempts")
    check_max_attempts(max_attempts, f"step {step_id!r}")
    return _limited_policy(max_attempts)


@lru_cache(maxsize=64)
def _limited_policy(max_attempts: int) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts)


def _aware_ms(moment: Any, what: str) -> int:
    if not isinstance(moment, datetime):
        raise DefinitionError(f"{what}: {moment!r} is not a datetime")
    if moment.utcoffset() is None:
        raise DefinitionError(f"{what}: {moment!r} is naive; give an aware time: datetime(…, tzinfo=UTC)")
    return max(0, to_milliseconds(moment))
