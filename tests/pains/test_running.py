"""Running it: crowds that sleep, callbacks that block, engines that come and go."""

import asyncio
import functools
import gc
import threading
from pathlib import Path

import pytest
from tests.support import async_test, definition, query

from workerflow import Engine, Settings
from workerflow.testing import SimulatedEngine

# Crowds that sleep.


@pytest.mark.slow
@async_test
async def test_ten_thousand_sleeping_workflows_take_no_memory_and_no_thread_each():
    @definition
    async def Sleeper(self):
        await self.sleep("hour", 3600)

    settings = Settings(hibernate_after_s=0, synchronous="NORMAL")
    threads = threading.active_count()
    async with SimulatedEngine([Sleeper], settings=settings) as engine:

        async def create(first, last):
            await asyncio.gather(*(engine.get(Sleeper, str(number)).create() for number in range(first, last)))
            await engine.run_until_idle()
            gc.collect()

        await create(0, 1000)
        before = len(gc.get_objects())
        for thousand in range(1, 10):
            await create(1000 * thousand, 1000 * (thousand + 1))
        # A body in memory is dozens of objects, and so is every row that is kept.
        assert len(gc.get_objects()) - before < 9000
        assert sum(isinstance(item, Sleeper) for item in gc.get_objects()) < 10
        assert threading.active_count() - threads < 10
        assert query(engine, "select status, owner, count(*) from instances group by 1, 2") == [
            ("running", None, 10_000)
        ]


# Callbacks that block.


class Blocker:
    """Every kind of plain callable, each of which blocks its thread until it is let go."""

    def __init__(self):
        self.release = threading.Event()
        self.threads = []

    def block(self, *arguments):
        self.threads.append(threading.current_thread())
        assert self.release.wait(50)
        return "released"

    def __call__(self):
        return self.block()

    def kinds(self):
        def wrapper():
            return self.block()

        return {
            "method": self.block,
            "callable-object": self,
            "function": wrapper,
            "partial": functools.partial(self.block, 1),
            "wrapped": functools.wraps(wrapper)(lambda: wrapper()),
            "builtin": functools.partial(next, iter(self.block, "released"), "released"),
        }


@async_test
async def test_a_plain_callable_of_any_kind_blocks_its_own_thread_and_no_timer_of_another_workflow(tmp_path):
    blocker = Blocker()
    kinds = blocker.kinds()

    @definition
    async def Blocking(self):
        return await self.run("block", kinds[self.input], returns=str)

    @definition
    async def Timer(self):
        await self.sleep("moment", 0.05)

    async with Engine(tmp_path / "a.db", [Blocking, Timer]) as engine:
        for kind in kinds:
            await engine.get(Blocking, kind).create(kind)
        for number in range(100):
            await engine.get(Timer, str(number)).create()
        for number in range(100):
            await engine.get(Timer, str(number)).result(timeout=30)
        assert {await engine.get(Blocking, kind).status() for kind in kinds} == {"running"}
        blocker.release.set()
        for kind in kinds:
            assert await engine.get(Blocking, kind).result(timeout=30) == "released"
    assert len(set(blocker.threads)) == len(kinds)
    assert threading.main_thread() not in blocker.threads


# Engines that come and go.


def open_files():
    return {name.resolve() for name in Path("/proc/self/fd").iterdir() if name.exists()}


@pytest.mark.slow
@async_test
async def test_two_engines_on_two_files_opened_and_closed_fifty_times_know_nothing_of_each_other_and_leak_nothing(
    tmp_path,
):
    @definition
    async def Small(self):
        await self.run("plain", int)
        return [self.input, await self.wait("wait", "go")]

    async def once(number):
        async with (
            Engine(tmp_path / "a.db", [Small]) as first,
            Engine(tmp_path / "b.db", [Small]) as second,
            Engine(tmp_path / "a.db", [Small], execute=False) as beside,
        ):
            for name, engine in (("a", first), ("b", second)):
                await engine.get(Small, str(number)).create(name)
            await beside.get(Small, str(number)).send("go", "by mail")
            await second.get(Small, str(number)).send("go", "directly")
            assert await beside.get(Small, str(number)).result(timeout=30) == ["a", "by mail"]
            assert await second.get(Small, str(number)).result(timeout=30) == ["b", "directly"]

    await once("first")
    gc.collect()
    threads, files = threading.active_count(), open_files()
    tasks = len(asyncio.all_tasks())
    for number in range(50):
        await once(number)
    gc.collect()
    assert threading.active_count() <= threads
    assert open_files() - files == set()
    assert len(asyncio.all_tasks()) == tasks
    # The last ones may still be held by what the loop has not forgotten yet.
    engines = [item for item in gc.get_objects() if isinstance(item, Engine) and item.url.startswith(str(tmp_path))]
    assert len(engines) <= 3
