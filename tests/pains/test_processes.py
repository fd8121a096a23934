"""Several processes on one file: whoever asks first is heard, once, and what was acknowledged survives the process."""

import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import async_test, definition, lifecycle

from workerflow import Engine, WorkflowCancelledError

PROGRAM = """
import asyncio, json, os, sys
from workerflow import Engine, WorkflowDefinition
class Once(WorkflowDefinition):
    async def execute(self):
        return await self.wait("wait", "paid")
async def main(path, execute, name):
    async with Engine(path, [Once], execute=execute == "executing") as engine:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        {body}
asyncio.run(main(*sys.argv[1:]))
"""

RACES = PROGRAM.replace(
    "{body}",
    """
        async def race(handle):
            created = await handle.create(name)
            sends = [handle.send("paid", name, id="event-1") for _ in range(3)]
            return created, await asyncio.gather(*sends)
        print(json.dumps(await asyncio.gather(*(race(engine.get(Once, str(n))) for n in range(20)))), flush=True)
""".strip(),
)

ASKS_AND_DIES = PROGRAM.replace(
    "{body}",
    """
        for what in ("created", "sent", "paused", "resumed", "cancelled"):
            handle = engine.get(Once, what)
            if what != "sent":
                await handle.create(what)
            if what == "sent":
                await handle.send("paid", what)
            if what in ("paused", "resumed"):
                await handle.pause()
            if what == "resumed":
                await handle.resume()
            if what == "cancelled":
                await handle.cancel(what)
        os._exit(0)
""".strip(),
)


@definition
async def Once(self):
    return [self.input, await self.wait("wait", "paid")]


@asynccontextmanager
async def process(program: str, path: Path, execute: str, name: str):
    """A process that has opened its engine and goes on when it is told to."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), execute, name, stdin=-1, stdout=-1, limit=2**20
    )
    assert child.stdout is not None
    try:
        assert (await asyncio.wait_for(child.stdout.readline(), 50)).strip() == b"ready"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@pytest.mark.slow
@async_test
async def test_of_processes_that_create_and_send_at_once_one_creates_and_one_event_of_an_id_is_used(tmp_path):
    async with Engine(tmp_path / "a.db", [Once]) as engine, AsyncExitStack() as stack:
        names = ["one", "two", "three"]
        children = [
            await stack.enter_async_context(process(RACES, tmp_path / "a.db", "beside", name)) for name in names
        ]
        for child in children:
            child.stdin.write(b"\n")
        handles = [engine.get(Once, str(number)) for number in range(20)]
        own = [(await handle.create("own"), [await handle.send("paid", "own", id="event-1")]) for handle in handles]
        told = {"own": own}
        for name, child in zip(names, children, strict=True):
            told[name] = json.loads(await asyncio.wait_for(child.stdout.readline(), 50))
        for number, handle in enumerate(handles):
            input_value, payload = await handle.result(timeout=30)
            created = [name for name, answers in told.items() if answers[number][0]]
            assert created == [input_value]
            (event,) = (await handle.info()).inbound_events
            assert (event.id, event.payload, event.claimed_by) == ("event-1", payload, "wait")
            receipts: dict[str, Any] = {name: answers[number][1] for name, answers in told.items()}
            assert set(receipts[payload]) - {"duplicate"} in ({"used"}, {"queued"})
            # Mail that was on its way when the owner had its own first is a duplicate later.
            assert "dropped" not in {receipt for answers in receipts.values() for receipt in answers}
            assert sum(answers.count("used") for answers in receipts.values()) <= 1
            assert await lifecycle(handle) == ["created", "started", "completed"]


@pytest.mark.parametrize("execute", ["executing", "beside"])
@async_test
async def test_every_verb_that_has_returned_counts_though_the_process_ends_in_the_next_statement(execute, tmp_path):
    async with Engine(tmp_path / "a.db", [Once]):
        pass
    async with process(ASKS_AND_DIES, tmp_path / "a.db", execute, "asker") as child:
        child.stdin.write(b"\n")
        assert await asyncio.wait_for(child.wait(), 50) == 0
    async with Engine(tmp_path / "a.db", [Once]) as engine:
        assert await engine.get(Once, "sent").create("sent") is True
        for name in ("created", "resumed"):
            await engine.get(Once, name).send("paid", name)
        for name in ("created", "sent", "resumed"):
            assert await engine.get(Once, name).result(timeout=30) == [name, name]
        with pytest.raises(WorkflowCancelledError, match="cancelled"):
            await engine.get(Once, "cancelled").result(timeout=30)
        paused = engine.get(Once, "paused")
        await paused.resume()
        assert await lifecycle(paused) == ["created", "started", "paused", "resumed"]


CROWD = PROGRAM.replace(
    "{body}",
    """
        handles = [engine.get(Once, str(number)) for number in range(300)]
        await asyncio.gather(*(handle.send("paid", name) for handle in handles))
        print(len([await handle.info() for handle in handles]), flush=True)
""".strip(),
)


@pytest.mark.slow
@async_test
async def test_no_process_of_several_that_use_one_file_hears_that_it_is_locked(tmp_path, caplog):
    """One executes, one sends, one sends and reads; each instance needs what both of them send."""

    @definition
    async def Once(self):
        return sorted([await self.wait("wait-1", "paid"), await self.wait("wait-2", "paid")])

    async with Engine(tmp_path / "a.db", [Once]) as engine, AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(process(CROWD, tmp_path / "a.db", "beside", name)) for name in ("a", "b")
        ]
        for child in children:
            child.stdin.write(b"\n")
        handles = [engine.get(Once, str(number)) for number in range(300)]
        await asyncio.gather(*(handle.create() for handle in handles))
        results = await asyncio.gather(*(handle.result(timeout=50) for handle in handles))
        for child in children:
            assert (await asyncio.wait_for(child.stdout.readline(), 50)).strip() == b"300"
    assert results == [["a", "b"]] * 300
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert [text for text in errors if "lock" in text] == []
