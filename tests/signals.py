"""Callbacks that a test holds in flight, and a runtime that remembers what its hooks were told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

from workerflow import RunStep, SleepStep, WaitStep, WorkflowDefinition, WorkflowRuntime


class Gate:
    """An async callback that says when it has begun, and ends only when it is let go.

    Counts its calls, and remembers whether it was cancelled. After ``open()`` it returns *result* at every call.
    """

    def __init__(self, result: Any = None, error: BaseException | None = None) -> None:
        self.calls = 0
        self.cancellations = 0
        self._begun: asyncio.Queue[int] = asyncio.Queue()
        self._open = asyncio.Event()
        self._result = result
        self._error = error

    async def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self._begun.put_nowait(self.calls)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            raise
        if self._error is not None:
            raise self._error
        return self._result

    async def begun(self) -> int:
        """Wait for the next call to begin; gives its number."""
        return await self._begun.get()

    def open(self) -> None:
        """Let every call end, those to come too."""
        self._open.set()


class Watched(WorkflowRuntime[Any, Any]):
    """The base of runtimes made by ``watched``."""

    statuses: list[str]


def watched(definition: type[WorkflowDefinition[Any, Any]]) -> type[Watched]:
    """A runtime of *definition* whose ``statuses`` are what ``on_status_change`` was told, in order."""
    statuses: list[str] = []

    def on_status_change(self: Watched, status: str) -> None:
        statuses.append(status)

    members = {"definition": definition, "on_status_change": on_status_change, "statuses": statuses}
    return type(f"Watched{definition.__name__}", (Watched,), members)


def attempt_states(steps: Iterable[RunStep | SleepStep | WaitStep]) -> dict[str, list[str]]:
    """The states of the attempts of every run step, oldest first, by step id."""
    return {step.id: [attempt.state for attempt in step.attempts] for step in steps if isinstance(step, RunStep)}


class Thread:
    """A plain callback: it says when it has begun and returns when it is let go."""

    def __init__(self, result=None):
        self.calls = 0
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self.names = []
        self._result = result

    def __call__(self, *arguments):
        self.calls += 1
        self.names.append(threading.current_thread().name)
        self.begun.release()
        assert self.release.wait(30)
        return self._result

    async def has_begun(self):
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.acquire, True, 10)
