"""Committer: group commit and gates.

Everything that happened since the last commit is one transaction. Effects (callbacks to start, answers to give, hooks)
wait at the gate until the batch with their rows is durable, and run in order. While drives are pending the flush waits
for them, so that an outcome and its consequences are one batch.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from workerflow.core.rows import Rows
from workerflow.effects import Effects, pause, set_done
from workerflow.settings import Settings
from workerflow.store.base import Batch, DeposedError, Store, StoreBusyError

_logger = logging.getLogger("workerflow")

DEFERRALS_MAX = 100
"""Rounds that a flush waits for pending drives: a workflow that never stops driving must not hold up the others."""
BACK_OFF_MS = (50, 100, 200, 500, 1000, 2000, 5000)
"""Pauses between tries to write a batch, the last one for ever: a disk that was freed is found within seconds."""
BUSY_WAIT_MS = 1000
"""How long one try waits for a foreign transaction: closing the engine waits for the try."""
NEWEST_WEIGHT = 0.2
"""Weight of the newest commit in the average that decides between inline and thread."""


class Gate(NamedTuple):
    """An effect that waits for the batch of its instance's rows."""

    key: int
    effect: Callable[..., object]
    arguments: tuple[Any, ...]


class Committer:
    """Writes batches of one worker. Belongs to the loop's thread; only the commit itself may run in another."""

    def __init__(
        self,
        store: Store,
        rows: Rows,
        effects: Effects,
        settings: Settings,
        incarnation: int,
        *,
        has_ready: Callable[[], bool],
        on_committed: Callable[[Batch], None],
        on_nothing: Callable[[int], None],
        on_deposed: Callable[[DeposedError], None],
    ) -> None:
        self.number = 1
        self._store = store
        self._rows = rows
        self._effects = effects
        self._settings = settings
        self._incarnation = incarnation
        self._has_ready = has_ready
        self._on_committed = on_committed
        self._on_nothing = on_nothing
        self._on_deposed = on_deposed
        self._loop = asyncio.get_running_loop()
        # Effects run in the engine's context, never in that of whoever happened to call.
        self._context = contextvars.copy_context()
        self._gates: list[Gate] = []
        self._guarded: set[int] = set()
        self._is_scheduled = False
        self._is_writing = False
        self._is_closed = False
        self._is_doubtful = False
        self._deferrals = 0
        self._average_ms = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workerflow-committer")
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._slow: asyncio.Task[None] | None = None

    def when_durable(self, key: int, effect: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Run *effect* after the commit of everything appended so far; never if the instance's rows are refused."""
        if self._is_closed:
            return
        self._gates.append(Gate(key, effect, arguments))
        self.schedule()

    def guard(self, key: int) -> None:
        """Let the next batch have this instance's rows only if no mail waits for it."""
        self._guarded.add(key)

    def schedule(self) -> None:
        """Flush soon."""
        if not self._is_scheduled and not self._is_writing and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._flush, context=self._context)

    def doubt(self) -> None:
        """The database refused something: write a batch, an empty one if need be, to find out and to recover."""
        self._is_doubtful = True
        self.schedule()

    def forget(self, key: int) -> None:
        """Take back what one instance has in the batch that fills up: its rows and its gates."""
        self._rows.discard(key)
        self._gates = [gate for gate in self._gates if gate.key != key]

    def is_idle(self) -> bool:
        """Whether nothing is left to write and no effect waits."""
        return not (self._is_scheduled or self._is_writing or self._gates) and self._rows.is_empty()

    async def settle(self) -> None:
        """Return when nothing is left to write."""
        while not self.is_idle():
            self.schedule()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def halt(self) -> None:
        """Write nothing more and let no effect happen."""
        self._is_closed = True
        self._gates.clear()

    def close(self) -> None:
        """Stop, whatever is left. A commit in a thread goes on to its end."""
        self.halt()
        if self._slow is not None:
            self._slow.cancel()
        self._thread.shutdown(wait=True)

    def abandon(self) -> None:
        """Let the thread end; the loop is closed."""
        self._is_closed = True
        self._thread.shutdown(wait=True)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._is_writing:
            return
        if self._has_ready() and self._deferrals < DEFERRALS_MAX:
            self._deferrals += 1
            self.schedule()
            return
        self._deferrals = 0
        gates, self._gates = self._gates, []
        if self._rows.is_empty() and not self._is_doubtful:
            self._on_nothing(self.number)
            self._open(gates, {})
            return
        batch = Batch(self.number, self._incarnation, self._rows.take(), self._guarded)
        self._guarded = set()
        self._is_doubtful = False
        self.number += 1
        if self._average_ms > self._settings.inline_commit_ms:
            self._write_in_thread(batch, gates, is_unknown=False)
        else:
            self._write_inline(batch, gates)

    def _write_inline(self, batch: Batch, gates: list[Gate]) -> None:
        try:
            self._timed_commit(batch, 0)
        except StoreBusyError:
            self._write_in_thread(batch, gates, is_unknown=False)
        except DeposedError as error:
            self._on_deposed(error)
        except Exception as error:  # Of the database or of ours: the batch must not be lost.
            _logger.error("batch %d is not durable yet, trying again: %s", batch.number, error)
            self._write_in_thread(batch, gates, is_unknown=True)
        else:
            self._finish(batch, gates)

    def _write_in_thread(self, batch: Batch, gates: list[Gate], *, is_unknown: bool) -> None:
        self._is_writing = True
        self._slow = self._loop.create_task(self._write_slowly(batch, gates, is_unknown), context=self._context)

    async def _write_slowly(self, batch: Batch, gates: list[Gate], is_unknown: bool) -> None:
        try:
            await self._write_until_durable(batch, is_unknown)
        except DeposedError as error:
            self._is_writing = False
            self._on_deposed(error)
            return
        self._is_writing = False
        self._finish(batch, gates)

    async def _write_until_durable(self, batch: Batch, is_unknown: bool) -> None:
        failures = 0
        while True:
            try:
                if is_unknown and await self._in_thread(self._store.recover, self._incarnation) >= batch.number:
                    return
                await self._in_thread(self._timed_commit, batch, BUSY_WAIT_MS)
                return
            except StoreBusyError as error:
                _logger.warning("batch %d waits for a foreign transaction: %s", batch.number, error)
            except DeposedError:
                raise
            except Exception as error:  # The same.
                is_unknown = True
                _logger.error("batch %d is not durable yet, trying again: %s", batch.number, error)
            pause_ms = BACK_OFF_MS[min(failures, len(BACK_OFF_MS) - 1)]
            await pause(self._effects, pause_ms)
            failures += 1

    def _timed_commit(self, batch: Batch, busy_timeout_ms: int) -> None:
        began = self._effects.monotonic_s()
        self._store.commit(batch, busy_timeout_ms=busy_timeout_ms)
        took_ms = (self._effects.monotonic_s() - began) * 1000
        self._average_ms += NEWEST_WEIGHT * (took_ms - self._average_ms)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._thread, function, *arguments)

    def _finish(self, batch: Batch, gates: list[Gate]) -> None:
        self._on_committed(batch)
        self._open(gates, batch.refused)

    def _open(self, gates: list[Gate], refused: dict[int, str]) -> None:
        for gate in gates:
            if gate.key in refused:
                continue
            try:
                gate.effect(*gate.arguments)
            except Exception:  # One effect that fails must not keep the others from happening.
                _logger.exception("an effect after commit failed: %r", gate.effect)
        if self._gates or not self._rows.is_empty():
            self.schedule()
        else:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                set_done(waiter)
