"""Worker: hosts live instances of one engine: claims them, drives them, lets them hibernate, releases them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from workerflow.codec import Stored
from workerflow.core.execution import Execution
from workerflow.core.instance import Instance
from workerflow.core.request import Request, Scope
from workerflow.core.rows import Rows
from workerflow.effects import Effects, Timer, pause
from workerflow.errors import DatabaseError, EngineClosedError
from workerflow.settings import Settings
from workerflow.store.base import Batch, DeposedError, Store
from workerflow.worker.attempts import Attempts
from workerflow.worker.committer import Committer
from workerflow.worker.deliveries import Deliveries
from workerflow.worker.hibernation import Hibernation
from workerflow.worker.inputs import Input, Inputs
from workerflow.worker.mailbox import Mailbox
from workerflow.worker.rebuilder import Rebuilder
from workerflow.worker.registry import Registry
from workerflow.worker.residents import Residents
from workerflow.worker.stall import StallWatcher
from workerflow.worker.suspects import Suspects
from workerflow.worker.wake_ups import WakeUps

_logger = logging.getLogger("workerflow")

SETTLE_S_MIN = 2.0
"""How long a closing engine tries to write what has happened, also when it waits for no callback."""
STOP_LOOK_AGAIN_MS = 10
LOOK_AGAIN_MS = 500
"""When an instance is tried again after the database refused a read."""


class Worker:
    """The Host of all live instances, and the sink of their attempts.

    Everything here runs on the loop that opened the engine. Each other module of this folder does one job for it.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        effects: Effects,
        settings: Settings,
        incarnation: int,
        *,
        always_replay: bool,
        on_status: Callable[[Instance, str], None],
        on_attempt: Callable[[Scope], None],
        on_failure: Callable[[BaseException], None],
        runtime_of: Callable[[Instance], Any],
    ) -> None:
        self.rows = Rows()
        self.handles_max = settings.handles_per_drive_max
        self.value_bytes_max = settings.value_bytes_max
        self.recoveries_max = settings.recoveries_max
        self.always_replay = always_replay
        self.incarnation = incarnation
        self.is_stopping = False
        self.residents = Residents(self, store, registry, effects)
        self.live = self.residents.live
        self._store = store
        self._effects = effects
        self._settings = settings
        self._on_status = on_status
        self._on_attempt = on_attempt
        self._on_failure = on_failure
        self._runtime_of = runtime_of
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._ready: dict[int, Instance] = {}
        self._is_pump_scheduled = False
        self._is_halted = False
        self._takes_writes = True
        self.gated_deliveries: set[int] = set()
        self.inputs = Inputs()
        self._starved: dict[int, None] = {}
        self.wake_ups = WakeUps(self, store, effects, settings)
        self.alarms = self.wake_ups.alarms
        self._graces: dict[Instance, Timer] = {}
        self.committer = Committer(
            store, self.rows, effects, settings, incarnation,
            has_ready=lambda: bool(self._ready), on_committed=self._committed, on_nothing=self.inputs.confirm,
            on_deposed=self._deposed,
        )  # fmt: skip
        self.hibernation = Hibernation(self, settings)
        self.suspects = Suspects(self, effects)
        self._rebuilder = Rebuilder(self, store)
        self.attempts = Attempts(self, effects, settings, self.new_context)
        self.mailbox = Mailbox(self, store, effects)
        self.deliveries = Deliveries(self, round(settings.delivery_lease_s * 1000), settings.finish_grace_s)
        self._stall = StallWatcher(settings.body_stall_s)

    def start(self) -> None:
        """Take up what an earlier worker left, then whatever is due."""
        for key in self._store.owned():
            self.residents.obtain(key, is_takeover=True)
        if (culprit := self._store.driven_at_death()) is not None:
            self.residents.blame(culprit)
        for key in self._store.open_deliveries():
            instance = self.residents.obtain(key)
            if instance is not None:
                instance.take_over_delivery()
        self.wake_ups.begin()

    def apply(
        self,
        instance: Instance,
        action: Callable[[Instance], object],
        reject: Callable[[BaseException], object] = lambda error: None,
        *,
        is_outcome: bool = False,
    ) -> None:
        """Do something to an instance: now, and once more if its rows have to be discarded before they are durable.

        The second time *action* gets another Instance object, so it must not keep the one it gets. Nothing is durable
        when this returns: what is to happen then goes through ``when_durable``, within *action*. *reject* is called at
        most once, when it will not be applied: with EngineClosedError, or WorkflowHeldError.
        """
        current: Instance | None = instance
        if self._is_halted:
            current = None
        elif instance.is_discarded:
            current = self.residents.obtain(instance.key)
        if current is None:
            reject(EngineClosedError(f"the engine was closed before {instance.label()} could answer"))
            return
        self.inputs.add(current.key, Input(action, reject, self.committer.number, is_outcome))
        if current.is_discarded:
            return  # It is being built anew, and gets its inputs then.
        self.wake(current)
        action(current)
        self.committer.schedule()
        self.ready(current)

    async def stop(self) -> None:
        """Let callbacks in flight end for ``stop_grace_s``, record the others as stopped, release every instance."""
        self.is_stopping = True
        # An alarm that comes now is for the next engine: it would only keep this one busy.
        self.wake_ups.close()
        # What is on its way to its gate begins now; otherwise it would be cut before it ran.
        await self._settle()
        await self._let_callbacks_end()
        for scope in self.attempts.in_flight():
            if not scope.instance.is_parked(scope):
                scope.instance.interrupt(scope)
        await self._settle()
        for instance in list(self.live.values()):
            # A busy one keeps its owner: that is how the next start finds it.
            if instance.owner is not None and instance.is_idle():
                instance.owner = None
                instance.save_progress()
        await self._settle()
        await self.abort()

    async def abort(self) -> None:
        """Forget everything in memory, as a crash would; write nothing."""
        self._halt()
        self.committer.close()
        await self.deliveries.close()
        await self.attempts.close()

    def abandon(self) -> None:
        """The loop is closed, and with it everything that ran on it: let the threads end."""
        self._stall.close()
        self.committer.abandon()
        self.attempts.abandon()

    def _halt(self) -> None:
        self.is_stopping = self._is_halted = True
        self.committer.halt()
        self.wake_ups.close()
        for timer in self._graces.values():
            timer.cancel()
        for item in self.inputs.take_all():
            item.reject(EngineClosedError("the engine was closed before the instance could answer; ask the next one"))
        for instance in list(self.live.values()):
            self.remove(instance)
        self._ready.clear()
        self.suspects.close()
        self._stall.close()

    async def _settle(self) -> None:
        if not self._takes_writes:
            return  # Waited for once: the next one would be no better.
        try:
            async with asyncio.timeout(max(self._settings.stop_grace_s, SETTLE_S_MIN)):
                await self.committer.settle()
        except TimeoutError:
            self._takes_writes = False
            _logger.error("the database takes no writes: the engine stops as if it had crashed")

    def is_awake(self, instance: Instance) -> bool:
        """Whether something has happened to an instance that is not driven or not durable yet."""
        has_more = self.inputs.has(instance.key) or self.deliveries.is_in_flight(instance.key)
        return instance.key in self._ready or has_more

    def is_quiet(self) -> bool:
        """Whether nothing is under way but timers: no drive, no commit, no callback that is not itself waiting."""
        return (
            not self._ready
            and self.committer.is_idle()
            and not self.deliveries.in_flight()
            and not self.busy_callbacks()
        )

    def busy_callbacks(self) -> list[Scope]:
        """Callbacks in flight that do not wait for a nested step."""
        return [scope for scope in self.attempts.in_flight() if not scope.instance.is_parked(scope)]

    def now_ms(self) -> int:
        return self._effects.now_ms()

    def random(self) -> float:
        return self._effects.random()

    def new_context(self) -> contextvars.Context:
        return self._context.copy()

    def ready(self, instance: Instance) -> None:
        if instance.is_discarded or self._is_halted:  # Also when a verb comes while the callbacks in flight are ended.
            return
        self._ready[instance.key] = instance
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._loop.call_soon(self._pump, context=self._context)

    def when_durable(self, instance: Instance, effect: Callable[..., object], *arguments: Any) -> None:
        self.committer.when_durable(instance.key, effect, arguments)

    def status_changed(self, instance: Instance, status: str) -> None:
        self.when_durable(instance, self._on_status, instance, status)
        if instance.delivery_ms is not None:
            # Begun at the gate and not by the alarm, which could be sooner than the commit.
            self.gated_deliveries.add(instance.key)
            self.when_durable(instance, self.wake_ups.deliver, instance.key)

    def progressed(self, instance: Instance) -> None:
        if instance.key in self.gated_deliveries:
            return
        self.alarms.set_live(instance.key, instance.alarm_ms())

    def has_free_place(self, instance: Instance, request: Request) -> bool:
        if not self.is_stopping and self.attempts.reserve(request):
            return True
        self._starved[instance.key] = None
        return False

    def start_callback(self, instance: Instance, request: Request, scope: Scope) -> None:
        self.attempts.expect(request, scope)
        self.when_durable(instance, self.attempts.begin, scope)

    def stop_callback(self, scope: Scope) -> bool:
        return self.attempts.stop(scope)

    def take_mail(self, instance: Instance) -> bool:
        self.committer.guard(instance.key)
        return self.mailbox.take(instance)

    def finish_later(self, instance: Instance) -> None:
        if instance not in self._graces:
            grace_ms = round(self._settings.finish_grace_s * 1000)
            self._graces[instance] = self._effects.call_after(grace_ms, lambda: self._finish(instance))

    def released(self, instance: Instance) -> None:
        self._rebuilder.released(instance)

    def discard_body(self, execution: Execution) -> None:
        self._loop.call_soon(execution.drop, context=self._context)

    def runtime_of(self, instance: Instance) -> Any:
        """The author's runtime object of an instance."""
        return self._runtime_of(instance)

    def attempt_begins(self, scope: Scope) -> None:
        self._on_attempt(scope)

    def attempt_succeeded(self, scope: Scope, stored: Stored | None) -> None:
        self._report(scope, lambda instance: instance.stepping.succeeded(scope, stored))

    def attempt_failed(self, scope: Scope, error: BaseException) -> None:
        self._report(scope, lambda instance: instance.stepping.failed(scope, error))

    def attempt_released(self, scope: Scope) -> None:
        instance = self.live.get(scope.instance.key)
        if instance is not None and instance.ending is not None and instance.stepping.released(scope):
            self.ready(instance)

    def process_interrupted(self, error: KeyboardInterrupt) -> None:
        self._halt()
        self._on_failure(error)

    def place_is_free(self) -> None:
        # One place, one instance: waking all that starve would cost the square of their number.
        while self._starved:
            key = next(iter(self._starved))
            del self._starved[key]
            if key in self.live:
                self.ready(self.live[key])
                return

    def _report(self, scope: Scope, action: Callable[[Instance], object]) -> None:
        instance = self.live.get(scope.instance.key)
        if instance is not None:
            self.apply(instance, action, is_outcome=True)
            if self.suspects and instance.recoveries == 0:
                self.suspects.clear(instance.key)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        ready, self._ready = self._ready, {}
        for instance in ready.values():
            if not instance.is_discarded and self.suspects.admits(instance):
                self._store.note_driven(instance.key)
                self.guarded(instance, partial(self._drive, instance))
        # Not in a finally: a KeyboardInterrupt that a body raises ends the process, too.
        self._store.note_driven(None)
        if self._starved and not self.is_stopping and self.attempts.has_free_thread():
            self.place_is_free()  # The one that was woken for it had no use for it any more.
        self.committer.schedule()

    def _drive(self, instance: Instance) -> None:
        instance.turn_ms = None
        # A drive may start a callback, and a started attempt must have an owner in the same batch.
        self.wake(instance)
        with self._stall.driving(instance.label):
            instance.pump()
        self.hibernation.look(instance)

    def guarded(self, instance: Instance, action: Callable[[], object]) -> None:
        """Do something with an instance, so that no trouble of this one is trouble for another."""
        try:
            action()
        except KeyboardInterrupt as error:
            self.process_interrupted(error)
            raise
        except DatabaseError as error:
            _logger.warning("%s will be tried again: %s", instance.label(), error)
            self.after(LOOK_AGAIN_MS, partial(self.wake_ups.alarm, instance.key))
        except Exception as error:  # A fault of ours.
            self._rebuilder.broken(instance, error)

    def remove(self, instance: Instance) -> None:
        """Let an instance leave memory; its rows remain."""
        alarm_ms = instance.alarm_ms()
        instance.is_discarded = True
        instance.stepping.drop_body()
        self.residents.remove(instance)
        self.alarms.leave(instance.key, alarm_ms)
        self._ready.pop(instance.key, None)
        self.suspects.clear(instance.key)
        self._starved.pop(instance.key, None)
        self.gated_deliveries.discard(instance.key)
        grace = self._graces.pop(instance, None)
        if grace is not None:
            grace.cancel()
        self._rebuilder.forget(instance.key)

    def wake(self, instance: Instance) -> None:
        """Something happens to an instance: it is owned again, if it was about to hibernate and need not wait."""
        if instance.is_drivable() and instance.owner is None and instance.turn_ms is None:
            instance.owner = self.incarnation
            instance.save_progress()

    def after(self, milliseconds: int, callback: Callable[[], None]) -> None:
        """Call back later, unless the worker has ended by then."""
        self._effects.call_after(milliseconds, lambda: None if self._is_halted else callback())

    def _finish(self, instance: Instance) -> None:
        del self._graces[instance]
        self.guarded(instance, lambda: self.apply(instance, Instance.finish))

    def _committed(self, batch: Batch) -> None:
        self.inputs.confirm(batch.number, batch.refused)
        for key, reason in batch.refused.items():
            self._rebuilder.refused(key, reason)
        self._rebuilder.confirm(batch)
        self.wake_ups.after_commit()

    def _deposed(self, error: DeposedError) -> None:
        self._halt()
        self._on_failure(error)

    async def _let_callbacks_end(self) -> None:
        give_up_s = self._effects.monotonic_s() + self._settings.stop_grace_s
        while (self.busy_callbacks() or self.deliveries.in_flight()) and self._effects.monotonic_s() < give_up_s:
            await pause(self._effects, STOP_LOOK_AGAIN_MS)
