"""Shutdown: an interrupt in mid back-off, callbacks that end in every way, a pending pause, a lost connection."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.bodies import next_turn
from tests.signals import Gate
from tests.support import Callback, async_test, definition, query, states, step_of

from workerflow import Engine, RetryPolicy, RunStep, WorkflowDefinition
from workerflow.core.model import to_milliseconds
from workerflow.testing.virtual import VirtualEffects

HOUR_S = 3600
PIPE = asyncio.subprocess.PIPE


@asynccontextmanager
async def process_of(program: str, *arguments: str, says: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs this program and has said that it is where the test wants it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *arguments, stdout=PIPE, stderr=PIPE)
    try:
        await hears(process, says)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def hears(process: asyncio.subprocess.Process, line: str) -> None:
    """The process says this next."""
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 50)).decode().strip() == line


RETRIES = """
import asyncio, signal, sys
from workerflow import Engine, RetryPolicy, WorkflowDefinition
signal.signal(signal.SIGINT, signal.default_int_handler)
async def call():
    raise ConnectionError("no answer")
class Retrying(WorkflowDefinition):
    async def execute(self):
        return await self.run("call", call, retry=RetryPolicy(initial=3600, maximum=3600))
async def main():
    async with Engine(sys.argv[1], [Retrying]) as engine:
        handle = engine.get(Retrying, "instance-1")
        await handle.create()
        while not [step for step in await handle.steps() if step.attempts and step.attempts[0].state == "failed"]:
            await asyncio.sleep(0)
        print("waiting", flush=True)
        await handle.result()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@async_test
async def test_an_interrupt_during_a_retry_wait_stops_cleanly_and_the_retry_is_made_later_at_its_time(
    tmp_path: Path,
) -> None:
    answer = Callback("answer")

    class Retrying(WorkflowDefinition[None, str]):
        async def execute(self) -> str:
            result: str = await self.run("call", answer, retry=RetryPolicy(initial=HOUR_S), returns=str)
            return result

    async with process_of(RETRIES, str(tmp_path / "a.db"), says="waiting") as process:
        process.send_signal(signal.SIGINT)
        await hears(process, "interrupted")
        assert process.stderr is not None
        assert await asyncio.wait_for(process.stderr.read(), 20) == b""
        assert await asyncio.wait_for(process.wait(), 20) == 0

    async with Engine(tmp_path / "a.db", [Retrying]) as engine:
        handle = engine.get(Retrying, "instance-1")
        (failed,) = (await step_of(handle, "call", RunStep)).attempts
        assert failed.ended_at is not None
        assert failed.next_attempt_at == failed.ended_at + timedelta(hours=1)
        assert (await handle.info()).alarm_at == failed.next_attempt_at
        assert (await handle.status(), answer.calls) == ("running", 0)

    engine = Engine(tmp_path / "a.db", [Retrying])
    engine._effects = an_hour_later = VirtualEffects(seed=0)
    an_hour_later.move_to(to_milliseconds(failed.next_attempt_at))
    async with engine:
        handle = engine.get(Retrying, "instance-1")
        assert await handle.result(timeout=10) == "answer"
        attempts = (await step_of(handle, "call", RunStep)).attempts
        assert [(attempt.number, attempt.state) for attempt in attempts] == [(1, "failed"), (2, "succeeded")]


SERVES = """
import asyncio, os, sys
from workerflow import Engine, RetryPolicy, Settings, WorkflowDefinition
async def accepts():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
async def finishes():
    await stopping.wait()
    return "finished"
async def fails():
    await stopping.wait()
    raise ValueError("failed while stopping")
async def ignores():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
class Busy(WorkflowDefinition):
    async def execute(self):
        return await self.run("call", globals()[self.input], retry=RetryPolicy(initial=0.01))
async def main():
    global stopping
    stopping = asyncio.Event()
    settings = Settings(stop_grace_s=0.3, finish_grace_s=0.1)
    async with Engine(sys.argv[1], [Busy], settings=settings) as engine:
        for name in sys.argv[2:]:
            handle = engine.get(Busy, name)
            await handle.create(name)
            while not [step for step in await handle.steps() if step.attempts]:
                await asyncio.sleep(0)
        # Said when run_forever() listens to signals.
        asyncio.get_running_loop().call_soon(lambda: print("busy", flush=True))
        await engine.run_forever()
        asyncio.get_running_loop().call_soon(stopping.set)
    print("closed", flush=True)
    os._exit(0)
asyncio.run(main())
"""


@async_test
async def test_at_shutdown_every_callback_in_flight_is_recorded_as_it_ended_and_one_that_does_not_end_by_timeout(
    tmp_path: Path,
) -> None:
    ends = ["accepts", "finishes", "fails", "ignores"]
    async with process_of(SERVES, str(tmp_path / "a.db"), *ends, says="busy") as process:
        process.send_signal(signal.SIGTERM)
        await hears(process, "cancelled")
        await hears(process, "closed")
        assert await asyncio.wait_for(process.wait(), 20) == 0

    again = Callback("again")

    class Busy(WorkflowDefinition[str, str]):
        async def execute(self) -> str:
            result: str = await self.run("call", again, returns=str)
            return result

    async with Engine(tmp_path / "a.db", [Busy], execute=False) as reader:
        rows = {
            name: (state, counts, error)
            for name, state, counts, error in query(
                reader,
                "select instance_id, state, counts, error_name from attempts join instances using (instance_key)",
            )
        }
        assert rows["finishes"] == ("succeeded", 1, None)
        assert rows["fails"] == ("failed", 1, "ValueError")
        # What the stop itself has ended is not held against the step.
        assert rows["accepts"][:2] == rows["ignores"][:2] == ("failed", 0)
    async with Engine(tmp_path / "a.db", [Busy]) as engine:
        results = {name: await engine.get(Busy, name).result(timeout=10) for name in ends}
        assert results == {"accepts": "again", "finishes": "finished", "fails": "again", "ignores": "again"}
        for name in ("accepts", "fails", "ignores"):
            assert states(await step_of(engine.get(Busy, name), "call", RunStep)) == ["failed", "succeeded"]
    assert again.calls == 3


HANGS = """
import asyncio, sys
from workerflow import Engine, WorkflowDefinition
async def call():
    print("called", flush=True)
    await asyncio.Event().wait()
class Two(WorkflowDefinition):
    async def execute(self):
        await self.run("first", call)
        await self.run("second", call)
async def main():
    async with Engine(sys.argv[1], [Two]) as engine:
        await engine.get(Two, "instance-1").create()
        await engine.run_forever()
asyncio.run(main())
"""


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "in-the-mail"])
@async_test
async def test_a_process_killed_while_a_pause_waits_for_its_step_comes_up_paused(
    is_taken: bool, tmp_path: Path
) -> None:
    first, second = Callback("first"), Callback("second")

    class Two(WorkflowDefinition[None, list[str]]):
        async def execute(self) -> list[str]:
            return [await self.run("first", first, returns=str), await self.run("second", second, returns=str)]

    async with process_of(HANGS, str(tmp_path / "a.db"), says="called") as process:
        async with Engine(tmp_path / "a.db", [Two], execute=False) as client:
            handle = client.get(Two, "instance-1")
            if not is_taken:
                process.send_signal(signal.SIGSTOP)  # It cannot hear of the pause any more.
            await handle.pause()
            while is_taken and await handle.status() != "paused":
                await next_turn()
            assert states(await step_of(handle, "first", RunStep)) == ["started"]
        process.kill()
        await process.wait()

    async with Engine(tmp_path / "a.db", [Two]) as engine:
        handle = engine.get(Two, "instance-1")
        while await handle.status() != "paused":
            await next_turn()
        # Neither the next step nor another try of the one that the kill has cut.
        assert (await handle.info()).alarm_at is None
        assert (first.calls, second.calls) == (0, 0)

        await handle.resume()
        assert await handle.result(timeout=10) == ["first", "second"]
        assert (first.calls, second.calls) == (1, 1)
        assert states(await step_of(handle, "first", RunStep)) == ["failed", "succeeded"]


@pytest.mark.parametrize("connection", ["writer", "reader"])
@async_test
async def test_whoever_waits_for_a_result_does_not_hang_when_the_database_connection_is_lost(
    connection: str, tmp_path: Path
) -> None:
    gate = Gate("result")

    @definition
    async def Waiting(self: Any) -> str:
        result: str = await self.run("call", gate, returns=str)
        return result

    async with Engine(tmp_path / "a.db", [Waiting]) as engine:
        handle = engine.get(Waiting, "instance-1")
        await handle.create()
        await gate.begun()
        waiter = asyncio.ensure_future(handle.result())
        await next_turn()
        store: Any = engine._store
        getattr(store, f"_{connection}").raw.close(True)
        gate.open()
        done, _ = await asyncio.wait([waiter], timeout=5)
        assert done
        assert await waiter == "result"
    assert gate.calls == 1
