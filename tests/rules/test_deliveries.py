"""Deliveries and hooks: whatever a handler does, it is told once, told again when it failed, and harms no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support import async_test, definition, query

from workerflow import EngineClosedError, WorkflowCompletionEvent, WorkflowRuntime
from workerflow.store.base import Batch, StoreBusyError
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine

DAY = timedelta(days=1)


class RudeError(BaseException):
    """Neither an Exception nor one that anybody knows."""


class TextRaisesError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


BASE_ERRORS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "generator": GeneratorExit,
    "rude": RudeError,
}


@definition
async def Ends(self: Any) -> str:
    return "done"


def delivering(handler: Callable[[WorkflowCompletionEvent], None]) -> type[WorkflowRuntime[Any, Any]]:
    """A runtime whose completion handler is this function."""

    async def completion(self: Any, event: WorkflowCompletionEvent) -> None:
        handler(event)

    return type("Delivering", (WorkflowRuntime,), {"definition": Ends, "completion": completion})


@pytest.mark.parametrize("make", BASE_ERRORS.values(), ids=BASE_ERRORS.keys())
@async_test
async def test_a_handler_that_raises_what_ends_a_process_is_called_again_and_the_engine_goes_on(
    make: Callable[[], BaseException],
) -> None:
    calls: list[str] = []

    def handler(event: WorkflowCompletionEvent) -> None:
        calls.append(event.instance_id)
        if calls.count("bad") == 1 and event.instance_id == "bad":
            raise make()

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        await engine.get(runtime, "bad").create()
        await engine.run_until_idle()
        assert query(engine, "select attempts, last_error is not null from deliveries") == [(1, 1)]
        await engine.get(runtime, "good").create()
        # A second, and not the half hour that a handler has which gives no answer.
        await engine.advance(1)
        assert sorted(calls) == ["bad", "bad", "good"]
        await engine.advance(DAY)
        assert sorted(calls) == ["bad", "bad", "good"]


@pytest.mark.parametrize("make", BASE_ERRORS.values(), ids=BASE_ERRORS.keys())
@async_test
async def test_a_status_hook_that_raises_what_ends_a_process_keeps_nothing_from_happening(
    make: Callable[[], BaseException],
) -> None:
    class Raising(WorkflowRuntime[None, Any]):
        definition = Ends

        def on_status_change(self, status: str) -> None:
            raise make()

    calls: list[int] = []

    async def call() -> str:
        calls.append(1)
        return "called"

    @definition
    async def Calling(self: Any) -> Any:
        return await self.run("call", call)

    async with SimulatedEngine([Raising, Calling]) as engine:
        handles = [engine.get(workflow, str(number)) for number in range(5) for workflow in (Raising, Calling)]
        # In one batch: the answers and the callbacks of the others wait behind the hooks.
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(handle.create() for handle in handles)) == [True] * 10
        assert [await handle.result(timeout=5) for handle in handles] == ["done", "called"] * 5
        assert len(calls) == 5


@pytest.mark.parametrize("hook", ["completion", "on_status_change"])
@async_test
async def test_a_keyboard_interrupt_in_a_hook_stops_the_engine(hook: str) -> None:
    def interrupt(self: Any, _: Any) -> None:
        raise KeyboardInterrupt

    async def interrupt_later(self: Any, _: Any) -> None:
        raise KeyboardInterrupt

    member = interrupt_later if hook == "completion" else interrupt
    runtime = type("Interrupted", (WorkflowRuntime,), {"definition": Ends, hook: member})
    async with SimulatedEngine([runtime]) as engine:
        waiting: Any = asyncio.ensure_future(engine.get(runtime, "nobody creates it").result(timeout=10))
        # Whether the answer comes before the interrupt is of no interest.
        await asyncio.gather(engine.get(runtime, "instance-1").create(), return_exceptions=True)
        with pytest.raises(EngineClosedError):
            await waiting
        with pytest.raises(EngineClosedError):
            await engine.get(runtime, "instance-2").create()


@async_test
async def test_a_completion_is_delivered_once_however_slowly_the_end_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    commit = SqliteStore.commit

    def slow(store: SqliteStore, batch: Batch, *, busy_timeout_ms: int) -> None:
        if busy_timeout_ms == 0:
            # The first try, on the loop: the second is made in a thread, while the loop goes on.
            raise StoreBusyError("another transaction is open")
        asyncio.run_coroutine_threadsafe(turns(20), loop).result(20)
        commit(store, batch, busy_timeout_ms=busy_timeout_ms)

    async def turns(count: int) -> None:
        for _ in range(count):
            turn: asyncio.Future[None] = loop.create_future()
            loop.call_later(0, turn.set_result, None)
            await turn

    def handler(event: WorkflowCompletionEvent) -> None:
        calls[event.instance_id] += 1
        # The end that it is told of is durable.
        assert query(engine, "select status from instances where instance_id = ?", event.instance_id) == [
            ("completed",)
        ]

    runtime = delivering(handler)
    monkeypatch.setattr(SqliteStore, "commit", slow)
    async with SimulatedEngine([runtime]) as engine:
        for number in range(10):
            # Side by side: timers that are due are to fire while the end is being written.
            await asyncio.gather(engine.get(runtime, str(number)).create(), engine.run_until_idle())
        await engine.advance(DAY)
        assert calls == {str(number): 1 for number in range(10)}
        assert (
            query(engine, "select attempts, delivered_at is not null, last_error from deliveries")
            == [(1, 1, None)] * 10
        )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ValueError("cannot read caf\udce9.pdf"), "ValueError: cannot read caf\\udce9.pdf"),
        (lambda: ValueError("a\x00b"), "ValueError: a\\x00b"),
        (TextRaisesError, "TextRaisesError: "),
        (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    ],
    ids=["surrogate", "nul", "text-raises", "huge"],
)
@async_test
async def test_an_error_of_a_handler_is_recorded_whatever_its_text_is(
    make: Callable[[], BaseException], text: str
) -> None:
    calls: list[str] = []

    def handler(event: WorkflowCompletionEvent) -> None:
        calls.append(event.id)
        if len(calls) == 1:
            raise make()

    runtime = delivering(handler)
    async with SimulatedEngine([runtime]) as engine:
        handle = engine.get(runtime, "instance-1")
        start = engine.now()
        await handle.create()
        await engine.run_until_idle()

        ((attempts, error),) = query(engine, "select attempts, last_error from deliveries")
        assert attempts == 1
        assert error.startswith(text)
        assert len(error) <= 20_000
        info = await handle.info()
        assert (info.held, info.alarm_at) == (None, start + timedelta(seconds=1))
        await engine.advance(1)
        assert calls == [calls[0]] * 2
        assert query(engine, "select attempts, delivered_at is not null from deliveries") == [(2, 1)]


@async_test
async def test_one_error_however_large_takes_little_room_wherever_it_is_recorded() -> None:
    size = 5_000_000

    class FatError(Exception):
        def __init__(self) -> None:
            super().__init__("text " + "x" * size, ["y" * size])
            self.body = "z" * size

    async def fails() -> None:
        raise FatError

    @definition
    async def InCallback(self: Any) -> None:
        await self.run("call", fails, max_attempts=2)

    @definition
    async def InBody(self: Any) -> None:
        raise FatError

    @definition
    async def InCause(self: Any) -> None:
        raise ValueError("follows") from FatError()

    def handler(event: WorkflowCompletionEvent) -> None:
        raise FatError

    runtime = delivering(handler)
    workflows: list[Any] = [InCallback, InBody, InCause, runtime]
    async with SimulatedEngine(workflows) as engine:
        for workflow in workflows:
            await engine.get(workflow, "instance-1").create()
        await engine.advance(5)
        assert sorted(summary.status for summary in await engine.list()) == ["completed", *["failed"] * 3]
        query(engine, "pragma wal_checkpoint")
        ((pages, page_bytes),) = query(engine, "select * from pragma_page_count, pragma_page_size")
        assert pages * page_bytes < 2_000_000
