"""Engine: the composition root. It opens the database and gives handles to instances."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, get_args
from weakref import WeakKeyDictionary

from workerflow.core.instance import Instance
from workerflow.core.model import InstanceSummary, Status, optional_datetime, to_datetime, to_milliseconds
from workerflow.core.request import Scope
from workerflow.definition import WorkflowDefinition, checked_id
from workerflow.effects import Effects, SystemEffects, pause, set_done
from workerflow.errors import DatabaseLockedError, DefinitionError, EngineClosedError
from workerflow.handle import WorkflowHandle
from workerflow.runtime import WorkflowRuntime
from workerflow.settings import Settings
from workerflow.store.base import DeposedError, StoreBusyError
from workerflow.store.sqlite.hints import HintListener, send_hint
from workerflow.store.sqlite.store import SqliteStore
from workerflow.worker.ports import LocalPort, MailPort
from workerflow.worker.registry import Registered, Registry
from workerflow.worker.worker import Worker

_logger = logging.getLogger("workerflow")

ResultT = TypeVar("ResultT")
LOCK_LOOK_AGAIN_MS = 50
RESULT_LOOK_AGAIN_MS = 20


class Engine:
    """Durable workflows on one database: ``async with Engine("checkout.db", [Checkout]) as engine:``.

    *url* is a path or ``sqlite:///path``. *workflows* are definitions, or runtimes that name theirs. With
    ``execute=False`` it creates, sends and reads but executes nothing: for web processes and tools, beside the one
    engine per file that executes. *always_replay* rebuilds the body after every step: slow, for checking definitions.
    Everything is used on the loop that opened it. Opening takes up what an earlier process left; closing waits
    ``stop_grace_s`` for callbacks in flight.

    Raises DefinitionError for bad arguments; opening raises DatabaseLockedError, SchemaVersionError or DatabaseError.

    >>> Engine("orders.db", [], execute=False).url
    'orders.db'
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        workflows: Iterable[type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]]],
        *,
        execute: bool = True,
        always_replay: bool = False,
        settings: Settings | None = None,
    ) -> None:
        given: object = url
        if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
            raise DefinitionError(f"url={url!r} must be a path or a text such as sqlite:///path")
        if not isinstance(settings, Settings | None):
            raise DefinitionError(f"settings={settings!r} must be a Settings(…)")
        self.url = os.fspath(url)
        self._path = _sqlite_path(self.url)
        self._registry = Registry(workflows)
        self._execute = execute
        self._always_replay = always_replay
        self._settings = settings or Settings()
        self._effects: Effects = SystemEffects()
        self._store: SqliteStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = 0
        self._worker: Worker | None = None
        self._sender: ThreadPoolExecutor | None = None
        self._hints: HintListener | None = None
        self._stop_asked: asyncio.Event | None = None
        self._failure: BaseException | None = None
        # One per instance in memory: it goes when the instance hibernates.
        self._runtimes: WeakKeyDictionary[Instance, WorkflowRuntime[Any, Any]] = WeakKeyDictionary()
        self._changes: dict[tuple[str, str], set[asyncio.Future[None]]] = {}

    def __repr__(self) -> str:
        return f"Engine({self.url!r})"

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise DefinitionError(f"this engine on {self.url} is open already; make another one")
        self._failure = None
        self._stop_asked = asyncio.Event()
        self._loop, self._process_id = asyncio.get_running_loop(), os.getpid()
        store = self._make_store()
        incarnation = await self._open(store)
        self._store = store
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="workerflow-sender")
        if self._execute:
            try:
                self._begin(store, incarnation)
            except BaseException:
                await self._abort()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def get(
        self, workflow: type[WorkflowDefinition[Any, ResultT]] | type[WorkflowRuntime[Any, ResultT]] | str, id: str
    ) -> WorkflowHandle[ResultT]:
        """The handle of an instance. Touches nothing.

        *workflow* is a registered class or its name; with ``execute=False`` any name will do. Raises DefinitionError.
        """
        entry = self._registry.resolve(workflow, allow_unknown=not self._execute)
        checked_id(id, "instance id")
        return WorkflowHandle(entry, id, lambda: self._port(entry, id), self._changed)

    async def list(
        self,
        workflow: type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]] | str | None = None,
        status: Status | None = None,
        limit: int = 100,
        after: InstanceSummary | None = None,
    ) -> list[InstanceSummary]:
        """A page of instances, newest first, from committed state; *after* is the last summary of the page before.

        *limit* is 1 to 1000. Raises DefinitionError for bad arguments, EngineClosedError and DatabaseError.
        """
        if type(limit) is not int or not 1 <= limit <= 1000:
            raise DefinitionError(f"limit={limit!r} must be a whole number from 1 to 1000")
        if status is not None and status not in get_args(Status):
            raise DefinitionError(f"status={status!r} is not known; it is one of {', '.join(get_args(Status))}")
        name = None if workflow is None else self._registry.resolve(workflow, allow_unknown=True).name
        store = self._require_store()
        cursor = None
        if after is not None:
            if not isinstance(after, InstanceSummary):
                raise DefinitionError(f"after={after!r} must be the last summary of the page before")
            row = store.find(after.workflow, after.id)
            cursor = (to_milliseconds(after.created_at), 0 if row is None else row.key)
        return [
            InstanceSummary(
                row.workflow,
                row.instance_id,
                row.status,
                row.held_reason,
                to_datetime(row.created_at),
                to_datetime(row.updated_at),
                optional_datetime(row.alarm_at),
            )
            for row in store.list(name, status, cursor, limit)
        ]

    async def run_forever(self) -> None:
        """Work until SIGTERM or SIGINT, then return; leaving the ``async with`` closes gracefully.

        A second signal ends the process at once: nothing recorded is lost by that. Raises what stopped the engine.
        """
        self._require_store()
        assert self._stop_asked is not None
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        with suppress(ValueError, RuntimeError, NotImplementedError):  # Not in the main thread: others must stop it.
            for number in numbers:
                loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._stop_asked.wait()
        finally:
            for number in numbers:
                # The second one is for the impatient: it meets the system's default, which ends the process.
                if loop.remove_signal_handler(number):
                    signal.signal(number, signal.SIG_DFL)
        if self._failure is not None:
            raise self._failure

    def _signalled(self, number: int) -> None:
        _logger.info("signal %d: stopping; a second one ends the process at once", number)
        assert self._stop_asked is not None
        self._stop_asked.set()

    async def _open(self, store: SqliteStore) -> int:
        """Open the file for as long as others may hold it; gives the worker's incarnation, 0 if there is none."""
        began_s = self._effects.monotonic_s()
        while True:
            waited_s = self._effects.monotonic_s() - began_s
            try:
                return self._open_now(store)
            except StoreBusyError:
                if waited_s >= self._settings.busy_timeout_s:
                    raise
            except DatabaseLockedError:
                if waited_s >= self._settings.lock_timeout_s:
                    raise
            await pause(self._effects, LOCK_LOOK_AGAIN_MS)

    def _make_store(self) -> SqliteStore:
        return SqliteStore(self._path, synchronous=self._settings.synchronous)

    def _open_now(self, store: SqliteStore) -> int:
        now_ms = self._effects.now_ms()
        store.open(execute=self._execute, now_ms=now_ms)
        try:
            return store.begin_worker(os.getpid(), now_ms, self._registry.names()) if self._execute else 0
        except BaseException:
            store.close()
            raise

    def _begin(self, store: SqliteStore, incarnation: int) -> None:
        self._worker = Worker(
            store,
            self._registry,
            self._effects,
            self._settings,
            incarnation,
            always_replay=self._always_replay,
            on_status=self._status_changed,
            on_attempt=self._attempt_begins,
            on_failure=self._failed,
            runtime_of=self._runtime,
        )
        self._worker.start()
        self._hints = HintListener(self._path, self._worker.wake_ups.poll)

    async def _close(self) -> None:
        worker = self._worker
        try:
            if worker is not None and self._failure is None and not self._is_orphaned():
                await worker.stop()
        finally:
            await self._abort()

    def _is_orphaned(self) -> bool:
        """Whether the loop that opened the engine is gone: only what needs no loop can be freed then."""
        return self._loop is not None and self._loop.is_closed()

    async def _abort(self) -> None:
        # At once: what is asked of it while its callbacks end would else go to itself by mail.
        store, self._store = self._store, None
        worker, self._worker = self._worker, None
        try:
            if worker is not None:
                if self._is_orphaned():
                    worker.abandon()
                else:
                    await worker.abort()
        finally:
            self._free(store)

    def _free(self, store: SqliteStore | None) -> None:
        """Let go of everything that the process holds, also when waiting for the callbacks was cancelled."""
        hints, self._hints = self._hints, None
        if hints is not None:
            hints.close()
        if self._sender is not None:
            self._sender.shutdown(wait=True)
        if store is not None:
            store.close()
        self._runtimes.clear()
        for waiters in self._changes.values():
            for waiter in waiters:
                set_done(waiter)
        self._changes.clear()

    async def _restart(self) -> None:
        """Drop everything in memory, as a crash would, and begin again on the same file."""
        self._failure = None
        store = self._require_store()
        if self._worker is not None:
            await self._worker.abort()
        if self._hints is not None:
            self._hints.close()
        store.close()
        self._begin(store, self._open_now(store))
        for waiters in list(self._changes.values()):
            for waiter in list(waiters):
                set_done(waiter)

    def _require_store(self) -> SqliteStore:
        if self._store is None:
            raise EngineClosedError(f"the engine on {self.url} is not open; use it inside 'async with Engine(…)'")
        if self._failure is not None:
            raise EngineClosedError(f"the engine on {self.url} has stopped: {self._failure}") from self._failure
        if os.getpid() != self._process_id:
            raise EngineClosedError(
                f"the engine on {self.url} was opened before this process was forked; open another one here"
            )
        if asyncio._get_running_loop() is not self._loop:
            raise EngineClosedError(
                f"the engine on {self.url} was opened on another event loop; use it there, for example with "
                "asyncio.run_coroutine_threadsafe"
            )
        return self._store

    def _port(self, entry: Registered, instance_id: str) -> LocalPort | MailPort:
        store = self._require_store()
        if self._worker is not None:
            return LocalPort(self._worker, store, self._settings, entry, instance_id)
        return MailPort(store, self._settings, self._effects, self._send, entry, instance_id)

    async def _send(self, *arguments: Any) -> str:
        store = self._require_store()
        # One thread: the connection can be in one transaction only.
        outcome: str = await asyncio.get_running_loop().run_in_executor(self._sender, store.send, *arguments)
        send_hint(self._path)
        return outcome

    def _runtime(self, instance: Instance) -> WorkflowRuntime[Any, Any]:
        runtime = self._runtimes.get(instance)
        if runtime is None:
            entry = self._registry.resolve(instance.workflow, allow_unknown=True)
            runtime = entry.runtime(self._port(entry, instance.instance_id), instance.instance_id)
            self._runtimes[instance] = runtime
        return runtime

    def _status_changed(self, instance: Instance, status: str) -> None:
        name = (instance.workflow, instance.instance_id)
        for waiter in self._changes.pop(name, ()):
            set_done(waiter)
        entry = self._registry.by_name(instance.workflow)
        if entry is None or status == "held" or entry.runtime.on_status_change is WorkflowRuntime.on_status_change:
            return
        try:
            self._runtime(instance).on_status_change(status)
        except KeyboardInterrupt as error:
            self._failed(error)
        except BaseException:  # A hook is best effort: it must not stop what it watches, not even with SystemExit.
            _logger.exception("on_status_change(%r) of %s raised", status, instance.label())

    def _attempt_begins(self, scope: Scope) -> None:
        """A callback is about to be entered; its attempt is durable. For those who watch."""

    def _changed(self, workflow: str, instance_id: str) -> asyncio.Future[None]:
        """A future that is done when the instance may have ended or been held."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._worker is not None:
            name = (workflow, instance_id)
            self._changes.setdefault(name, set()).add(change)
            change.add_done_callback(lambda _: self._forget_change(name, change))
        else:
            timer = self._effects.call_after(RESULT_LOOK_AGAIN_MS, functools.partial(set_done, change))
            change.add_done_callback(lambda _: timer.cancel())
        return change

    def _forget_change(self, name: tuple[str, str], change: asyncio.Future[None]) -> None:
        waiting = self._changes.get(name, set())
        waiting.discard(change)
        if not waiting:
            self._changes.pop(name, None)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, DeposedError):
            _logger.critical("the engine on %s has lost its database and stops: %s", self.url, error)
        self._failure = EngineClosedError(f"the engine on {self.url} stopped: {error!r}")
        self._failure.__cause__ = error
        for waiters in self._changes.values():
            for waiter in waiters:
                set_done(waiter)
        if self._stop_asked is not None:
            self._stop_asked.set()


def _sqlite_path(url: str) -> Path:
    if url.startswith(("postgresql://", "postgres://")):
        raise DefinitionError(
            f"{url.split('@')[-1]!r}: PostgreSQL is not supported yet; give the path of an SQLite file"
        )
    path = url.removeprefix("sqlite:///")
    if "://" in path or not path or path == ":memory:" or "\0" in path:
        raise DefinitionError(f"{url!r} is not a database; give a path or sqlite:///path (durable state needs a file)")
    # One lock per file, whatever name it is opened by.
    return Path(os.path.realpath(path))
