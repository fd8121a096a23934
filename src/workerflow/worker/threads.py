"""Threads for callbacks that are plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[Any, BaseException | None]
_Job: TypeAlias = tuple[contextvars.Context, Callable[[], Any], Callable[[Outcome], None]]


class CallbackThreads:
    """Up to *count* callbacks at once, in daemon threads: one that never returns must not keep the process alive.

    A thread whose callback nobody waits for any more is left with it, and another one takes its place.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread_count = 0
        self._left_count = 0
        self.reserved = 0

    def has_free(self) -> bool:
        """Whether a place can be taken."""
        return self.reserved < self._count

    def reserve(self) -> bool:
        """Take a place; False when all are taken."""
        if self.reserved >= self._count:
            return False
        self.reserved += 1
        return True

    def release(self) -> None:
        """Give a place back that was not used."""
        self.reserved -= 1

    def run(
        self, context: contextvars.Context, function: Callable[[], Any], done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call *function* in a thread, then *done* on the running loop. Needs a reserved place.

        Gives what gives the place back, to be called once: when *function* has returned, or to wait for it no longer.
        """
        loop = asyncio.get_running_loop()
        is_left = is_over = False

        def leave() -> None:
            nonlocal is_left
            is_left = True
            self.reserved -= 1
            self._left_count += not is_over

        def finish(outcome: Outcome) -> None:
            nonlocal is_over
            is_over = True
            self._left_count -= is_left
            done(outcome)

        def report(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody is left to hear of it.
                loop.call_soon_threadsafe(finish, outcome)

        if self._thread_count - self._left_count < self.reserved:
            self._thread_count += 1
            threading.Thread(target=self._work, name=f"workerflow-{self._thread_count}", daemon=True).start()
        self._jobs.put((context, function, report))
        return leave

    def close(self) -> None:
        """Let the threads end when they are free."""
        for _ in range(self._thread_count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            context, function, report = job
            try:
                outcome: Outcome = (context.run(function), None)
            except BaseException as error:  # Whatever it is belongs to the attempt, not to this thread.
                outcome = (None, error)
            report(outcome)
