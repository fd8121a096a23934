"""Laws that the simulation has found broken, each alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.signals import Gate
from tests.support import Callback, async_test, definition, started
from workerflow import Engine, MaxAttemptsExceededError, RetryPolicy, Settings, WaitTimeoutError


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
