"""What a definition asks for when it calls a verb: one request per step and body."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Protocol

from workerflow.codec import ValueType
from workerflow.core.journal import Kind
from workerflow.core.retry import DEFAULT_RETRY, RetryPolicy


class NestingPort(Protocol):
    """What a callback's nested verbs need of the instance."""

    key: int
    workflow: str
    instance_id: str

    def ask_nested(self, request: Request, scope: Scope, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Take a request and give the future of its outcome."""
        ...

    def label(self) -> str:
        """The instance in words, for messages."""
        ...

    def is_parked(self, scope: Scope) -> bool:
        """Whether this callback waits for a nested step of its own."""
        ...

    def interrupt(self, scope: Scope) -> None:
        """A graceful stop ends this callback."""
        ...

    def nested_is_done(self, request: Request) -> None:
        """The future of a nested request is done."""
        ...


class Scope:
    """One entry of a callback: who may call nested verbs in it, and which ids it used.

    ``is_alive`` turns False when the attempt ends, so that a left-over task of it can ask for nothing.
    """

    __slots__ = ("attempt", "idempotency_key", "instance", "is_alive", "request", "used_ids")

    def __init__(self, instance: NestingPort, request: Request, attempt: int, idempotency_key: str) -> None:
        self.instance = instance
        self.request = request
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.is_alive = True
        self.used_ids: set[str] = set()

    @property
    def step_id(self) -> str:
        """The run step whose callback this is."""
        return self.request.step_id


CURRENT_SCOPE: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("workerflow_scope", default=None)


class Request:
    """What was asked for a step. ``future`` belongs to the body, or to the application's loop for a nested step."""

    __slots__ = (
        "arguments",
        "at_most_once",
        "callback",
        "event_name",
        "future",
        "kind",
        "retry",
        "scope",
        "step_id",
        "timeout_at_ms",
        "timeout_ms",
        "value_type",
        "wake_at_ms",
        "wake_in_ms",
    )

    def __init__(self, step_id: str, kind: Kind) -> None:
        self.step_id = step_id
        self.kind: Kind = kind
        self.scope: Scope | None = None
        self.future: asyncio.Future[Any] | None = None
        self.callback: Callable[..., Any] | None = None
        self.arguments: tuple[Any, ...] = ()
        self.retry: RetryPolicy = DEFAULT_RETRY
        self.timeout_ms: int | None = None
        self.at_most_once = False
        self.value_type: ValueType | None = None
        self.wake_in_ms: int | None = None
        self.wake_at_ms: int | None = None
        self.event_name: str | None = None
        self.timeout_at_ms: int | None = None

    @property
    def parent_id(self) -> str | None:
        """The run step whose callback asked, or None for ``execute()``."""
        return None if self.scope is None else self.scope.step_id

    def is_pending(self) -> bool:
        """Whether anybody still waits for the outcome."""
        if self.scope is not None and not self.scope.is_alive:
            return False
        return self.future is not None and not self.future.done()


class RequestPort(Protocol):
    """What a definition's verbs need of the instance that they belong to."""

    input: Any

    def ask(self, request: Request) -> asyncio.Future[Any]:
        """Take a request and give the future of its outcome."""
        ...

    def outcome_ms(self) -> int:
        """The recorded time of the outcome that is being delivered to ``execute()``."""
        ...

    def is_replaying(self) -> bool:
        """Whether recorded outcomes are still being delivered."""
        ...

    def seed(self) -> str:
        """The instance's own random text, for repeatable randomness."""
        ...

    def label(self) -> str:
        """The instance in words, for messages."""
        ...
