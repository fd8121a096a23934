"""Laws that the simulation has found broken, each alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, started
from workerflow import (
    DatabaseUnavailableError,
    Engine,
    EngineClosedError,
    MaxAttemptsExceededError,
    Receipt,
    RetryPolicy,
    Settings,
    WaitTimeoutError,
    WorkflowCompletionEvent,
    WorkflowRuntime,
)
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore


@async_test
async def test_wait_that_may_take_no_time_has_an_event_that_was_accepted_before_it() -> None:
    @definition
    async def Polling(self: Any) -> str:
        await self.wait("begin", "begin")
        try:
            return str(await self.wait("paid", "paid", str, timeout=0))
        except WaitTimeoutError:
            return "nothing came"

    async with started(Polling) as (_, handle):
        await handle.send("paid", "cash")
        await handle.send("begin")
        assert await handle.result(timeout=5) == "cash"


@async_test
async def test_instance_stopped_while_its_callback_outlived_a_replay_goes_on_at_the_next_start(tmp_path: Path) -> None:
    stock, price = Gate("tea"), Callback(always=ValueError("no price"))
    has_no_price = asyncio.Event()

    @definition
    async def Ordering(self: Any) -> str:
        async def ask_price() -> None:
            try:
                await self.run("price", price, retry=RetryPolicy(max_attempts=2, initial=0))
            except MaxAttemptsExceededError:
                has_no_price.set()

        found, _ = await asyncio.gather(self.run("stock", stock), ask_price())
        return str(found)

    options: dict[str, Any] = {"always_replay": True, "settings": Settings(stop_grace_s=0)}
    async with Engine(tmp_path / "orders.db", [Ordering], **options) as engine:
        await engine.get(Ordering, "order-1").create()
        await has_no_price.wait()
    stock.open()
    async with Engine(tmp_path / "orders.db", [Ordering], **options) as engine:
        assert await engine.get(Ordering, "order-1").result(timeout=5) == "tea"
    assert stock.calls == 2


@pytest.mark.parametrize("has_completion", [False, True])
@async_test
async def test_instance_whose_end_is_not_durable_has_no_delivery_begun_by_a_look_that_was_put_off(
    has_completion: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @definition
    async def Short(self: Any) -> None:
        await self.wait("go", "go")

    class Telling(WorkflowRuntime[None, None]):
        definition = Short

        async def completion(self, event: WorkflowCompletionEvent) -> None:
            told.append(event.id)

    workflow = Telling if has_completion else Short
    sends: list[asyncio.Task[Receipt]] = []
    look, commit = SqliteStore.untaken_mail_of, SqliteStore.commit
    refusals = 3

    def look_but_not_at_first(store: SqliteStore, key: int) -> Any:
        if not sends:
            # With this it ends, before the refused look is tried again.
            sends.append(asyncio.ensure_future(handle.send("more")))
            raise DatabaseUnavailableError("the disk did not answer")
        return look(store, key)

    def commit_but_not_at_first(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        nonlocal refusals
        if sends and refusals:
            refusals -= 1
            raise DatabaseUnavailableError("the disk did not answer")
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)

    monkeypatch.setattr("workerflow.worker.worker.LOOK_AGAIN_MS", 1)
    async with Engine(tmp_path / "short.db", [workflow]) as engine:
        handle = engine.get(workflow, "short")
        await handle.create()
        monkeypatch.setattr(SqliteStore, "untaken_mail_of", look_but_not_at_first)
        monkeypatch.setattr(SqliteStore, "commit", commit_but_not_at_first)
        await handle.send("go")
        await handle.result(timeout=5)
    assert (await sends[0], refusals) == ("queued", 0)
    async with Engine(tmp_path / "short.db", [workflow]) as engine:
        await engine.get(workflow, "short").result(timeout=5)
    assert query(engine, "select alarm_at from instances") == [(None,)]
    assert query(engine, "select attempts, last_error from deliveries") == [(1, None)] * has_completion
    assert len(told) == has_completion


@async_test
async def test_engine_that_is_closing_refuses_what_its_handlers_still_ask_of_it(tmp_path: Path) -> None:
    answers: list[object] = []
    delivering = asyncio.Event()

    @definition
    async def Short(self: Any) -> None: ...

    class Clinging(WorkflowRuntime[None, None]):
        definition = Short

        async def completion(self, event: WorkflowCompletionEvent) -> None:
            delivering.set()
            for _ in range(2):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            try:
                answers.append(await other.send("late"))
            except EngineClosedError as error:
                answers.append(type(error))

    settings = Settings(stop_grace_s=0, finish_grace_s=0.01)
    async with Engine(tmp_path / "clinging.db", [Clinging], settings=settings) as engine:
        other = engine.get(Clinging, "other")
        await engine.get(Clinging, "first").create()
        await delivering.wait()
    assert answers == [EngineClosedError]


@async_test
async def test_engine_whose_closing_was_cancelled_has_freed_its_file(tmp_path: Path) -> None:
    delivering, clinging, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @definition
    async def Short(self: Any) -> None: ...

    class Clinging(WorkflowRuntime[None, None]):
        definition = Short

        async def completion(self, event: WorkflowCompletionEvent) -> None:
            delivering.set()
            while not done.is_set():
                with suppress(asyncio.CancelledError):
                    await done.wait()
                clinging.set()

    settings = Settings(stop_grace_s=0, finish_grace_s=3600, lock_timeout_s=0)
    engine = await Engine(tmp_path / "clinging.db", [Clinging], settings=settings).__aenter__()
    await engine.get(Clinging, "first").create()
    await delivering.wait()
    closing = asyncio.create_task(engine.__aexit__(None, None, None))
    for _ in range(2):  # The stop that lets callbacks end, and what follows it, wait for the handler alike.
        await clinging.wait()
        clinging.clear()
        closing.cancel()
    outcome = await asyncio.gather(closing, return_exceptions=True)
    assert isinstance(outcome[0], asyncio.CancelledError)
    done.set()
    async with Engine(tmp_path / "clinging.db", [Clinging], settings=settings) as another:
        await another.get(Clinging, "first").result(timeout=5)
