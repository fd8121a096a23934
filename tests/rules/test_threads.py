"""Plain functions and their threads: every place is given back, used once more, and asked for by as few as possible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import async_test, definition, query

from workerflow import Engine, Settings, WaitTimeoutError, WorkflowHeldError
from workerflow.core.instance import Instance
from workerflow.testing import SimulatedEngine


@pytest.mark.parametrize("thread_count", [1, 8])
@async_test
async def test_waiting_for_a_thread_costs_a_workflow_the_same_however_many_wait(
    thread_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumps = 0
    pump = Instance.pump

    def counted(instance: Instance) -> None:
        nonlocal pumps
        pumps += 1
        pump(instance)

    monkeypatch.setattr(Instance, "pump", counted)

    @definition
    async def Plain(self: Any) -> int:
        result: int = await self.run("step", int, "7", returns=int)
        return result

    async with SimulatedEngine([Plain], settings=Settings(thread_count=thread_count)) as engine:
        handles = [engine.get(Plain, str(number)) for number in range(300)]
        await asyncio.gather(*(handle.create() for handle in handles))
        await engine.run_until_idle()
        assert {await handle.result(timeout=5) for handle in handles} == {7}

    # Once to ask, once to get a place, once to go on.
    assert pumps <= 5 * 300


class Late:
    """A plain callable that gives a coroutine, when it is let go."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.begun = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> Coroutine[Any, Any, str]:
        self.begun.set()
        assert self.release.wait(20)
        return self._effect()

    async def _effect(self) -> str:
        self.effects.append("happened")
        return "late"

    async def has_begun(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.wait, 20)


@pytest.mark.parametrize("end", ["cancel", "timeout", "abandon", "end of execute"])
@async_test
async def test_a_coroutine_that_a_thread_gives_after_its_attempt_has_ended_is_not_run(end: str) -> None:
    late = Late()

    @definition
    async def Overtaken(self: Any) -> None:
        call = asyncio.ensure_future(self.run("call", late, returns=str, timeout=60, max_attempts=1))
        await self.wait("stop", "stop")
        if end != "end of execute":
            call.cancel()
            await self.wait("end", "end")

    @definition
    async def Next(self: Any) -> Any:
        return await self.run("step", int, "7", returns=int)

    # One thread: the next workflow has it when the late outcome has been dealt with.
    async with SimulatedEngine([Overtaken, Next], settings=Settings(thread_count=1)) as engine:
        handle = engine.get(Overtaken, "instance-1")
        await handle.create()
        await late.has_begun()
        if end == "cancel":
            await handle.cancel()
        elif end == "timeout":
            await engine.advance(60)
        else:
            await handle.send("stop")
        following = engine.get(Next, "instance-1")
        await following.create()
        late.release.set()

        assert await following.result(timeout=10) == 7
        await engine.run_until_idle()
        assert late.effects == []


@async_test
async def test_a_coroutine_that_a_thread_gives_after_the_engine_was_closed_is_not_run(tmp_path: Path) -> None:
    late = Late()
    before = set(threading.enumerate())

    @definition
    async def Overtaken(self: Any) -> None:
        await self.run("call", late, returns=str)

    async with Engine(tmp_path / "a.db", [Overtaken], settings=Settings(stop_grace_s=0)) as engine:
        await engine.get(Overtaken, "instance-1").create()
        await late.has_begun()
    late.release.set()
    for thread in set(threading.enumerate()) - before:
        # What a thread has to say is on the loop before its end is.
        if thread.name.startswith("workerflow"):
            await asyncio.get_running_loop().run_in_executor(None, thread.join, 20)
            assert not thread.is_alive()
    assert late.effects == []
    assert query(engine, "select state, counts from attempts") == [("failed", 0)]


REFUSED = """
create trigger refused before insert on attempts when new.step_id = 'refused'
begin select raise(abort, 'this start is refused'); end
"""


@async_test
async def test_a_plain_callback_whose_start_is_refused_gives_its_thread_back() -> None:
    @definition
    async def Named(self: Any) -> Any:
        await self.wait("go", "go")
        return await self.run(self.input, int, "7", returns=int)

    async with SimulatedEngine([Named], settings=Settings(thread_count=1)) as engine:
        query(engine, REFUSED)
        for number in range(3):
            handle = engine.get(Named, f"refused-{number}")
            await handle.create("refused")
            with pytest.raises(WorkflowHeldError):
                await handle.send("go")
            await engine.run_until_idle()
            assert (await handle.info()).held is not None
        await engine.get(Named, "good").create("good")
        await engine.get(Named, "good").send("go")
        assert await engine.get(Named, "good").result(timeout=5) == 7


@pytest.mark.parametrize("seed", range(4))
@async_test
async def test_a_plain_callback_whose_start_is_held_back_by_mail_gives_its_thread_back(seed: int) -> None:
    """The mail comes between the look for it and the commit; the seed says which of the two is driven first."""

    @definition
    async def Poster(self: Any) -> None:
        await self.sleep("minute", 60)
        post(engine)

    @definition
    async def Waiting(self: Any) -> Any:
        with pytest.raises(WaitTimeoutError):
            await self.wait("payment", "paid", timeout=60)
        return await self.run("step", int, "7", returns=int)

    def post(engine: Engine) -> None:
        database = apsw.Connection(engine.url)
        database.execute(
            "insert into mail (instance_key, kind, name, sent_at) "
            "select instance_key, 'event', 'other', created_at from instances where workflow = 'Waiting'"
        )
        assert database.changes() == 5
        database.close()

    # More instances than threads: one place that is lost is missed at once.
    async with SimulatedEngine([Poster, Waiting], seed, settings=Settings(thread_count=1)) as engine:
        await engine.get(Poster, "instance-1").create()
        handles = [engine.get(Waiting, str(number)) for number in range(5)]
        for handle in handles:
            await handle.create()
        await engine.advance(60)
        for handle in handles:
            assert await handle.result(timeout=5) == 7
            assert [event.name for event in (await handle.info()).inbound_events] == ["other"]


@pytest.mark.parametrize("where", ["body", "callback"])
@async_test
async def test_a_plain_callback_that_waits_for_a_thread_and_is_not_wanted_any_more_leaves_it_to_the_next(
    where: str,
) -> None:
    late = Late()

    @definition
    async def Busy(self: Any) -> Any:
        return await self.run("busy", late, returns=str)

    @definition
    async def Fickle(self: Any) -> None:
        call = asyncio.ensure_future(self.run("step", int, "7", returns=int))
        await self.wait("stop", "stop")
        call.cancel()
        await self.wait("end", "end")

    @definition
    async def Patient(self: Any) -> Any:
        return await self.run("step", int, "7", returns=int)

    async with SimulatedEngine([Busy, Fickle, Patient], settings=Settings(thread_count=1)) as engine:
        await engine.get(Busy, "instance-1").create()
        await late.has_begun()
        fickle = engine.get(Fickle, "instance-1")
        await fickle.create()
        patient = engine.get(Patient, "instance-1")
        await patient.create()
        await (fickle.cancel() if where == "callback" else fickle.send("stop"))
        late.release.set()
        assert await patient.result(timeout=10) == 7
