"""SimulatedEngine: an engine on a virtual clock, for tests of workflows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from workerflow.core.model import to_datetime
from workerflow.core.retry import duration_ms
from workerflow.definition import WorkflowDefinition
from workerflow.effects import set_done
from workerflow.engine import Engine
from workerflow.errors import EngineClosedError
from workerflow.runtime import WorkflowRuntime
from workerflow.settings import Settings
from workerflow.testing.virtual import VirtualEffects
from workerflow.worker.worker import Worker

QUIET_TURNS = 4
"""Turns of the loop with nothing under way before the engine counts as settled: a callback's tasks need some."""
LOOK_AGAIN_S = 0.001
HANGING_S = 0.05
"""How long a callback with a timeout may take in real time before the virtual clock moves towards its timeout."""
NO_POLL_MS = 10**15


class SimulatedEngine(Engine):
    """An Engine with a database of its own and a clock that moves only by ``advance``.

    Callbacks run for real; sleeps, retries, deadlines and timeouts are virtual, so thirty days pass in milliseconds.
    The same *seed* gives the same ids and jitter. It is opened with ``async with`` and deletes its database at the end.

    >>> import asyncio
    >>> from workerflow import WorkflowDefinition
    >>> class Month(WorkflowDefinition[None, str]):
    ...     async def execute(self) -> str:
    ...         await self.sleep("month", timedelta(days=30))
    ...         return "over"
    >>> async def main() -> str:
    ...     async with SimulatedEngine([Month]) as engine:
    ...         handle = engine.get(Month, "m-1")
    ...         await handle.create()
    ...         await engine.advance(timedelta(days=15))
    ...         await engine.crash()
    ...         await engine.advance(timedelta(days=15))
    ...         return await handle.result(timeout=5)
    >>> asyncio.run(main())
    'over'
    """

    def __init__(
        self,
        workflows: Iterable[type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]]],
        seed: int = 0,
        *,
        always_replay: bool = False,
        settings: Settings | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="workerflow-", ignore_cleanup_errors=True)
        super().__init__(
            f"{self._folder.name}/simulated.db",
            workflows,
            always_replay=always_replay,
            # A poll every half second of thirty days would be millions; advance() looks for mail itself. And the
            # database goes with the process, so nothing of it has to reach the disk.
            settings=replace(settings or Settings(), poll_interval_ms=NO_POLL_MS, synchronous="NORMAL"),
        )
        self._virtual = VirtualEffects(seed)
        self._effects = self._virtual

    async def __aexit__(self, *arguments: Any) -> None:
        await super().__aexit__(*arguments)
        self._folder.cleanup()

    async def _close(self) -> None:
        # Its database goes with it: waiting for callbacks in flight would only turn a failed test into a hanging one.
        await self._abort()

    def now(self) -> datetime:
        """The virtual time, aware UTC. It begins at 2030-01-01."""
        return to_datetime(self._virtual.now_ms())

    async def advance(self, duration: timedelta | float) -> None:
        """Move the clock, firing every timer on the way in order; returns when all they caused has settled.

        It waits for callbacks in flight, but not for those that wait for a nested step.
        """
        target_ms = self._virtual.now_ms() + duration_ms(duration, "advance")
        await self.run_until_idle()
        while (at_ms := self._virtual.next_timer_ms()) is not None and at_ms <= target_ms:
            self._virtual.move_to(at_ms)
            await self._settle()
        self._virtual.move_to(target_ms)
        await self._settle()

    async def run_until_idle(self) -> None:
        """Return when nothing is under way but timers and events to come. The clock does not move."""
        self._require_worker().wake_ups.poll()
        await self._settle()

    async def crash(self) -> None:
        """Drop everything in memory, as a SIGKILL would, and start again on the same database.

        Async callbacks are cancelled; what a plain function in a thread still does is not recorded.
        """
        self._virtual.clear()
        await self._restart()
        await self._settle()

    def _require_worker(self) -> Worker:
        self._require_store()
        if self._worker is None:
            raise EngineClosedError("the simulated engine is not open; use it inside 'async with SimulatedEngine(…)'")
        return self._worker

    async def _settle(self) -> None:
        quiet_turns = 0
        hanging_s = 0.0
        while quiet_turns < QUIET_TURNS:
            if self._virtual.fire_due():
                quiet_turns = 0
            worker = self._require_worker()
            is_hanging = bool(worker.busy_callbacks()) and worker.attempts.all_have_timeouts(worker.busy_callbacks())
            if worker.is_quiet() or (is_hanging and hanging_s >= HANGING_S):
                quiet_turns += 1
                await self._turn(0)
            else:
                quiet_turns = 0
                hanging_s += LOOK_AGAIN_S
                await self._turn(LOOK_AGAIN_S if worker.busy_callbacks() else 0)

    async def _turn(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_later(seconds, set_done, turn)
        await turn
