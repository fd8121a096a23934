"""Running it: starts, stops, idling, crowds, callers that give up, threads, loops and extreme settings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support import Callback, async_test, definition, lifecycle, query, run, started

from workerflow import (
    Engine,
    RetryPolicy,
    Settings,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowHeldError,
    WorkflowRuntime,
    WorkflowStateError,
)
from workerflow.testing import SimulatedEngine


def sql(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """The rows that a statement gives on a file that no engine has open."""
    connection = apsw.Connection(str(path))
    try:
        return list(connection.execute(statement))
    finally:
        connection.close()


async def call(value: Any = None) -> Any:
    return value


def plain_call(value: Any = None) -> Any:
    return value


@definition
async def Everything(self: Any) -> list[Any]:
    """A bit of each verb, quickly."""

    async def outer() -> Any:
        return await self.run("inner", call, 1)

    first = await asyncio.gather(self.run("a", call, "a"), self.run("b", plain_call, "b"), self.sleep("nap", 0.01))
    return [first[:2], await self.run("outer", outer), await self.wait("wait", "go")]


async def runs_everything(engine: Engine, instance_id: str = "n") -> None:
    handle = engine.get(Everything, instance_id)
    assert await handle.create() is True
    await handle.send("go", "gone")
    assert await handle.result(timeout=30) == [["a", "b"], 1, "gone"]


# Starts.


@async_test
async def test_instances_whose_class_is_missing_at_start_are_held_and_all_others_go_on(tmp_path: Path) -> None:
    @definition
    async def Gone(self: Any) -> Any:
        await self.run("step", call)
        return await self.wait("wait", "go")

    @definition
    async def Other(self: Any) -> Any:
        return await self.wait("wait", "go")

    async with Engine(tmp_path / "a.db", [Gone, Other]) as engine:
        for workflow in (Gone, Other):
            for number in range(3):
                await engine.get(workflow, str(number)).create()
        await engine.get(Gone, "unstarted").send("go", "early")
        await engine.get(Gone, "paused").create()
        await engine.get(Gone, "paused").pause()

    async with (
        Engine(tmp_path / "a.db", [Other]) as engine,
        Engine(tmp_path / "a.db", [Other], execute=False) as client,
    ):
        for number in range(3):
            await engine.get(Other, str(number)).send("go", number)
            assert await engine.get(Other, str(number)).result(timeout=30) == number
            # Mail is what makes the worker look at an instance that nothing else wakes.
            await client.get("Gone", str(number)).send("go", number)
            with pytest.raises(WorkflowHeldError, match="no definition named 'Gone' is registered"):
                await client.get("Gone", str(number)).result(timeout=30)
            assert await client.get("Gone", str(number)).status() == "running"
        assert await client.get("Gone", "unstarted").status() == "pending"
        assert await client.get("Gone", "paused").status() == "paused"
        assert {summary.workflow for summary in await engine.list()} == {"Gone", "Other"}

    async with Engine(tmp_path / "a.db", [Gone, Other]) as engine:
        for number in range(3):
            await engine.get(Gone, str(number)).resume()
            assert await engine.get(Gone, str(number)).result(timeout=30) == number
        await engine.get(Gone, "unstarted").create()
        assert await engine.get(Gone, "unstarted").result(timeout=30) == "early"


CREATES_AND_DIES = """
import asyncio, os, sys
from workerflow import Engine, WorkflowDefinition
class Good(WorkflowDefinition):
    async def execute(self):
        return self.input
async def main():
    async with Engine(sys.argv[1], [Good], execute=sys.argv[2] == "True") as engine:
        await engine.get(Good, "n").create(7)
        os._exit(0)
asyncio.run(main())
"""


@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@async_test
async def test_what_was_created_in_the_statement_before_the_process_died_is_there_at_the_next_start(
    execute: bool, tmp_path: Path
) -> None:
    class Good(WorkflowDefinition[int, int]):
        async def execute(self) -> int:
            return self.input

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CREATES_AND_DIES, str(tmp_path / "a.db"), str(execute)
    )
    assert await asyncio.wait_for(process.wait(), 50) == 0
    async with Engine(tmp_path / "a.db", [Good]) as engine:
        assert await engine.get(Good, "n").result(timeout=30) == 7
        assert await lifecycle(engine.get(Good, "n")) == ["created", "started", "completed"]


# Stops.

SERVES = """
import asyncio, os, sys
from workerflow import Engine, Settings, WorkflowDefinition
started = 0
async def slow():
    global started
    started += 1
    if started == 20:
        print("busy", flush=True)
    if sys.argv[2] == "stuck":
        await asyncio.Event().wait()
    return 1
class Busy(WorkflowDefinition):
    async def execute(self):
        return await self.run("slow", slow)
class Sleeping(WorkflowDefinition):
    async def execute(self):
        await self.sleep("night", 36000)
async def main():
    async with Engine(sys.argv[1], [Busy, Sleeping], settings=Settings(stop_grace_s=float(sys.argv[3]))) as engine:
        for number in range(20):
            await engine.get(Sleeping, str(number)).create()
            await engine.get(Busy, str(number)).create()
        await engine.run_forever()
    print("closed", flush=True)
    os._exit(0)
asyncio.run(main())
"""


@asynccontextmanager
async def serving(path: Path, kind: str, grace_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVES, str(path), kind, str(grace_s), stdin=-1, stdout=-1
    )
    assert process.stdout is not None
    try:
        assert (await asyncio.wait_for(process.stdout.readline(), 50)).strip() == b"busy"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@async_test
async def test_a_signal_lets_callbacks_finish_and_releases_everything(number: signal.Signals, tmp_path: Path) -> None:
    async with serving(tmp_path / "a.db", "quick", 10) as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).strip() == b"closed"
        assert await asyncio.wait_for(process.wait(), 20) == 0
    rows = sql(tmp_path / "a.db", "select workflow, status, owner, count(*) from instances group by 1, 2, 3")
    assert sorted(rows) == [("Busy", "completed", None, 20), ("Sleeping", "running", None, 20)]


@async_test
async def test_a_second_signal_ends_the_process_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path / "a.db", "stuck", 1000) as process:
        # The second one may only come when the first has been heard: until then they are one.
        while process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(asyncio.shield(process.wait()), 0.2)
            except TimeoutError:
                continue
        assert process.returncode == -signal.SIGTERM

    class Busy(WorkflowDefinition[None, int]):
        async def execute(self) -> int:
            return await self.run("slow", call, 2, retry=RetryPolicy(initial=0.01), returns=int)

    class Sleeping(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            await self.sleep("night", 36000)

    async with Engine(tmp_path / "a.db", [Busy, Sleeping]) as engine:
        for number in range(20):
            assert await engine.get(Busy, str(number)).result(timeout=30) == 2
            assert await engine.get(Sleeping, str(number)).status() == "running"


@async_test
async def test_a_stop_ends_after_its_grace_though_callbacks_are_stuck_and_their_attempts_do_not_count(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "a.db", "stuck", 0.2) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).strip() == b"closed"
    rows = sql(tmp_path / "a.db", "select state, counts, count(*) from attempts group by 1, 2")
    assert rows == [("failed", 0, 20)]


@async_test
async def test_an_error_in_the_block_closes_the_engine_and_comes_through(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Everything])

    async def fails() -> None:
        async with engine:
            await engine.get(Everything, "n").create()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    async with engine:
        await engine.get(Everything, "n").send("go", "gone")
        assert await engine.get(Everything, "n").result(timeout=30) == [["a", "b"], 1, "gone"]


@async_test
async def test_thousands_of_sleeping_workflows_cost_no_thread_each_and_stop_quickly(tmp_path: Path) -> None:
    @definition
    async def Sleeper(self: Any) -> None:
        await self.sleep("hour", 3600)

    threads = threading.active_count()
    engine = Engine(tmp_path / "a.db", [Sleeper], settings=Settings(synchronous="NORMAL"))
    await engine.__aenter__()
    await asyncio.gather(*(engine.get(Sleeper, str(number)).create() for number in range(3000)))
    assert threading.active_count() - threads < 10
    began = asyncio.get_running_loop().time()
    await engine.__aexit__(None, None, None)
    assert asyncio.get_running_loop().time() - began < 20
    assert query(engine, "select status, owner, count(*) from instances group by 1, 2") == [("running", None, 3000)]


@async_test
async def test_hibernating_instances_are_not_kept_in_memory() -> None:
    def bodies() -> int:
        gc.collect()
        return sum(isinstance(item, Sleeper) for item in gc.get_objects())

    @definition
    async def Sleeper(self: Any) -> None:
        await self.sleep("month", timedelta(days=30))

    async with SimulatedEngine([Sleeper], settings=Settings(hibernate_after_s=1)) as engine:
        for number in range(200):
            await engine.get(Sleeper, str(number)).create()
        await engine.advance(timedelta(minutes=1))
        assert bodies() < 10
        await engine.advance(timedelta(days=30))
        assert query(engine, "select status, count(*) from instances group by 1") == [("completed", 200)]
        assert bodies() < 10


# Idling.


@pytest.mark.parametrize("hibernate_after_s", [0, 10])
@async_test
async def test_an_engine_that_has_nothing_to_do_writes_nothing(hibernate_after_s: float) -> None:
    @definition
    async def Idle(self: Any) -> None:
        await asyncio.gather(self.wait("wait", "go"), self.sleep("year", timedelta(days=365)))

    async with SimulatedEngine([Idle], settings=Settings(hibernate_after_s=hibernate_after_s)) as engine:
        for number in range(50):
            await engine.get(Idle, str(number)).create()
        await engine.advance(60)
        reader = apsw.Connection(engine.url)
        before = list(reader.execute("pragma data_version"))
        await engine.advance(timedelta(days=300))
        assert list(reader.execute("pragma data_version")) == before
        reader.close()


@async_test
async def test_a_real_engine_that_polls_writes_nothing_either(tmp_path: Path) -> None:
    @definition
    async def Idle(self: Any) -> None:
        await self.wait("wait", "go")

    async with Engine(tmp_path / "a.db", [Idle], settings=Settings(poll_interval_ms=1)) as engine:
        await engine.get(Idle, "n").create()
        await engine.get(Idle, "n").events()
        reader = apsw.Connection(engine.url)
        before = list(reader.execute("pragma data_version"))
        with pytest.raises(TimeoutError):
            # Waiting for a result that does not come gives it 200 ms, and many polls.
            await engine.get(Idle, "n").result(timeout=0.2)
        assert list(reader.execute("pragma data_version")) == before
        reader.close()


# Crowds.


@async_test
async def test_a_crowd_with_readers_and_senders_beside_it_never_hears_that_the_database_is_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problems: list[BaseException] = []
    is_over = threading.Event()

    def reads_all_the_time() -> None:
        reader = apsw.Connection(str(tmp_path / "a.db"))
        try:
            while not is_over.is_set():
                # Longer transactions than a reader should have.
                with reader:
                    for table in ("instances", "steps", "attempts", "inbound_events"):
                        list(reader.execute(f"select count(*) from {table}"))
        except BaseException as error:
            problems.append(error)
        finally:
            reader.close()

    async with (
        Engine(tmp_path / "a.db", [Everything]) as engine,
        Engine(tmp_path / "a.db", [Everything], execute=False) as client,
    ):
        reading = threading.Thread(target=reads_all_the_time)
        reading.start()
        try:

            async def one(number: int) -> Any:
                handle = (engine, client)[number % 2].get(Everything, str(number))
                await handle.create()
                await client.get(Everything, str(number)).send("go", number)
                return await handle.result(timeout=50)

            results = await asyncio.gather(*(one(number) for number in range(200)))
        finally:
            is_over.set()
            reading.join()
    assert results == [[["a", "b"], 1, number] for number in range(200)]
    assert problems == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@async_test
async def test_a_function_that_blocks_its_thread_holds_up_no_timer_and_no_other_workflow(tmp_path: Path) -> None:
    release = threading.Event()

    def blocks() -> str:
        release.wait()
        return "released"

    @definition
    async def Blocking(self: Any) -> Any:
        return await self.run("blocks", blocks)

    @definition
    async def Quick(self: Any) -> Any:
        await self.sleep("moment", 0.05)
        return await self.run("step", plain_call, "quick")

    async with Engine(tmp_path / "a.db", [Blocking, Quick], settings=Settings(thread_count=4)) as engine:
        for number in range(3):
            await engine.get(Blocking, str(number)).create()
        for number in range(50):
            await engine.get(Quick, str(number)).create()
        for number in range(50):
            assert await engine.get(Quick, str(number)).result(timeout=20) == "quick"
        assert {await engine.get(Blocking, str(number)).status() for number in range(3)} == {"running"}
        release.set()
        assert await engine.get(Blocking, "0").result(timeout=20) == "released"


@async_test
async def test_more_blocking_functions_than_threads_all_get_their_turn() -> None:
    running, most = [], []

    def busy(number: int) -> int:
        running.append(number)
        most.append(len(running))
        running.remove(number)
        return number

    @definition
    async def Wide(self: Any) -> list[int]:
        return list(await asyncio.gather(*(self.run(f"step-{number}", busy, number) for number in range(100))))

    for threads in (1, 3):
        async with started(Wide, settings=Settings(thread_count=threads)) as (_, handle):
            assert await handle.result(timeout=20) == list(range(100))
        assert max(most) <= threads
        most.clear()


# Callers that give up, and callers in the wrong place.


async def turns(count: int) -> None:
    for _ in range(count):
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


@async_test
async def test_a_caller_that_is_cancelled_in_any_verb_at_any_moment_harms_nothing() -> None:
    async with (
        SimulatedEngine([Everything]) as engine,
        Engine(engine.url, [Everything], execute=False) as client,
    ):
        for count in range(20):
            for source in (engine, client):
                name = f"{count}-{source is engine}"
                handle = source.get(Everything, name)
                for verb in (handle.create(), handle.send("go", 1, id="go"), handle.pause(), handle.result()):
                    task = asyncio.ensure_future(verb)
                    await turns(count)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                # Done or not done, and never half: the same calls again lead to the end. What a cancelled caller had
                # begun to send is sent all the same; a client sends in order, so this one comes after it.
                await handle.send("go", 1, id="go")
                await engine.run_until_idle()
                own = engine.get(Everything, name)
                await own.create()
                await own.send("go", 1, id="go")
                while await own.status() != "completed":
                    # What a cancelled caller asked for may still come: a pause, too.
                    with contextlib.suppress(WorkflowStateError):
                        await own.resume()
                    await engine.advance(1)
                assert await own.result(timeout=5) == [["a", "b"], 1, 1]
                events = (await own.info()).inbound_events
                assert [event.claimed_by for event in events] == ["wait"]


def test_one_engine_object_serves_one_loop_after_another(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "a.db", [Everything])

    async def once(number: int) -> None:
        async with engine:
            await runs_everything(engine, str(number))

    for number in range(3):
        run(partial(once, number))


def test_an_engine_may_live_in_another_thread(tmp_path: Path) -> None:
    outcomes: list[Any] = []

    async def serve() -> None:
        async with Engine(tmp_path / "a.db", [Everything]) as engine:
            serving = asyncio.ensure_future(engine.run_forever())
            await runs_everything(engine)
            serving.cancel()
            outcomes.extend(await asyncio.gather(serving, return_exceptions=True))

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    thread.join(50)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError]


def test_the_debug_mode_of_asyncio_finds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def everything() -> None:
        asyncio.get_running_loop().slow_callback_duration = 60
        async with (
            Engine(tmp_path / "a.db", [Everything], settings=Settings(hibernate_after_s=0)) as engine,
            Engine(tmp_path / "a.db", [Everything], execute=False) as client,
        ):
            await client.get(Everything, "by-mail").create()
            await client.get(Everything, "by-mail").send("go", 1)
            await runs_everything(engine)
            assert await client.get(Everything, "by-mail").result(timeout=30) == [["a", "b"], 1, 1]

    asyncio.run(everything(), debug=True)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@async_test
async def test_a_callback_may_use_the_engine_that_calls_it(tmp_path: Path) -> None:
    engines: list[Engine] = []

    @definition
    async def Child(self: Any) -> Any:
        return self.input * 2

    @definition
    async def Parent(self: Any) -> Any:
        async def start_child(number: int) -> int:
            handle = engines[0].get(Child, f"child-{number}")
            await handle.create(number)
            return int(await handle.result(timeout=30))

        return await asyncio.gather(*(self.run(f"child-{number}", start_child, number) for number in range(5)))

    @definition
    async def Itself(self: Any) -> Any:
        async def send() -> None:
            await engines[0].get(Itself, self.input).send("go", "from the callback")

        await self.run("send", send)
        return await self.wait("wait", "go")

    @definition
    async def Suicide(self: Any) -> Any:
        async def cancel() -> None:
            await engines[0].get(Suicide, self.input).cancel("by its own callback")

        await self.run("cancel", cancel)
        return "never"

    async with Engine(tmp_path / "a.db", [Child, Parent, Itself, Suicide]) as engine:
        engines.append(engine)
        for workflow in (Parent, Itself, Suicide):
            await engine.get(workflow, "n").create("n")
        assert await engine.get(Parent, "n").result(timeout=30) == [0, 2, 4, 6, 8]
        assert await engine.get(Itself, "n").result(timeout=30) == "from the callback"
        with pytest.raises(Exception, match="by its own callback"):
            await engine.get(Suicide, "n").result(timeout=30)
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]


@async_test
async def test_hooks_that_use_their_runtimes_verbs_neither_hang_nor_harm() -> None:
    told: list[str] = []
    tasks: list[asyncio.Future[Any]] = []

    class Hooked(WorkflowRuntime[Any, Any]):
        definition = Everything

        def on_status_change(self, status: str) -> None:
            told.append(f"{status} {self.get_status()} {len(self.get_workflow_events())}")
            if status == "running" and len(tasks) == 0:
                tasks.append(asyncio.ensure_future(self.handle_inbound_event("go", "from the hook")))

        async def completion(self, event: Any) -> None:
            # All of these are no-ops on an ended instance, or say so.
            await self.cancel()
            await self.pause()
            assert await self.create() is False
            assert await self.handle_inbound_event("go") == "dropped"
            told.append(f"delivered {event.status}")

    async with SimulatedEngine([Hooked]) as engine:
        handle = engine.get(Hooked, "n")
        await handle.create()
        await engine.advance(60)
        assert await handle.result(timeout=5) == [["a", "b"], 1, "from the hook"]
        assert told == ["running running 2", "completed completed 3", "delivered completed"]


# Settings at their ends.

EXTREMES: dict[str, Settings] = {
    "no-hibernation": Settings(hibernate_after_s=1_000_000),
    "hibernation-at-once": Settings(hibernate_after_s=0),
    "one-idle-instance": Settings(idle_live_max=1),
    "one-thread": Settings(thread_count=1),
    "poll-all-the-time": Settings(poll_interval_ms=1),
    "poll-hardly-ever": Settings(poll_interval_ms=1_000_000),
    "no-grace": Settings(stop_grace_s=0, finish_grace_s=0),
    "no-waiting-for-locks": Settings(busy_timeout_s=0, lock_timeout_s=0),
    "commits-in-the-thread": Settings(inline_commit_ms=0),
    "commits-on-the-loop": Settings(inline_commit_ms=1_000_000),
    "watchdog-at-once": Settings(watchdog_s=0, body_stall_s=0),
    "lease-at-once": Settings(delivery_lease_s=0),
    "warn-of-every-value": Settings(value_bytes_warn=0),
    "values-of-ten-bytes": Settings(value_bytes_max=10),
    "extra": Settings(synchronous="EXTRA"),
    "normal": Settings(synchronous="NORMAL"),
}


@pytest.mark.parametrize("settings", EXTREMES.values(), ids=EXTREMES.keys())
@async_test
async def test_every_setting_works_at_its_ends(settings: Settings, tmp_path: Path) -> None:
    delivered: list[str] = []

    @definition
    async def Small(self: Any) -> Any:
        return [await self.run("a", call, 1), await self.run("b", plain_call, 2), await self.wait("wait", "go")]

    class Runtime(WorkflowRuntime[Any, Any]):
        definition = Small

        async def completion(self, event: Any) -> None:
            delivered.append(event.id)

    async with Engine(tmp_path / "a.db", [Runtime], settings=settings) as engine:
        handles = [engine.get(Runtime, str(number)) for number in range(5)]
        await asyncio.gather(*(handle.create() for handle in handles))
        await asyncio.gather(*(handle.send("go", 3) for handle in handles))
        for handle in handles:
            assert await handle.result(timeout=30) == [1, 2, 3]
        while len(set(delivered)) < 5:
            await turns(1)
    assert query(engine, "select count(*) from deliveries where delivered_at is null") == [(0,)]


@async_test
async def test_a_workflow_that_kills_its_process_again_and_again_is_held_and_resume_gives_it_another_chance() -> None:
    gate: list[asyncio.Event] = []

    @definition
    async def Poison(self: Any) -> Any:
        async def waits() -> str:
            gate.append(asyncio.Event())
            await gate[-1].wait()
            return "alive"

        async def outer() -> Any:
            return await self.run("inner", waits, retry=RetryPolicy(max_attempts=None, initial=0, maximum=0))

        return await self.run("outer", outer)

    async with SimulatedEngine([Poison, Everything], settings=Settings(recoveries_max=3)) as engine:
        handle = engine.get(Poison, "n")
        await handle.create()
        crashes = 0
        while (await handle.info()).held is None:
            while len(gate) <= crashes:
                await turns(1)
            # Not engine.crash(), which waits for the callback that is in flight again.
            crashes += 1
            crashing = asyncio.ensure_future(engine.crash())
            while not crashing.done():
                if len(gate) > crashes:
                    crashing.cancel()
                await turns(1)
        assert crashes == 4
        with pytest.raises(WorkflowHeldError, match="4 times in a row"):
            await handle.result(timeout=5)
        before = len(gate)
        await handle.resume()
        moving = asyncio.ensure_future(engine.advance(1))
        while len(gate) == before:
            await turns(1)
        gate[-1].set()
        await moving
        assert await handle.result(timeout=5) == "alive"


@async_test
async def test_failures_keep_type_message_data_and_traceback_for_whoever_asks_later() -> None:
    class CardError(Exception):
        def __init__(self, message: str, data: Any) -> None:
            super().__init__(message)
            self.data = data

    @definition
    async def Failing(self: Any) -> None:
        await self.run("fine", call)
        raise CardError("declined", {"code": 51})

    async with started(Failing) as (engine, handle):
        await engine.crash()
        for _ in range(2):
            with pytest.raises(WorkflowFailedError) as caught:
                await handle.result(timeout=5)
            assert (caught.value.error_name, caught.value.error_message) == ("CardError", "declined")
            assert caught.value.data == {"code": 51}
            assert "in Failing" in caught.value.traceback


@async_test
async def test_pages_of_the_list_show_every_instance_once_whatever_their_times() -> None:
    @definition
    async def Short(self: Any) -> None:
        return None

    async with SimulatedEngine([Short, Everything]) as engine:
        names = [f"{number}" for number in range(45)]
        for number, name in enumerate(names):
            await engine.get(Short if number % 3 else Everything, name).create()
            if number % 10 == 0:
                await engine.advance(1)
        await engine.run_until_idle()
        for size in (1, 7, 45, 1000):
            seen, after = [], None
            while page := await engine.list(limit=size, after=after):
                assert len(page) <= size
                seen += [summary.id for summary in page]
                after = page[-1]
            assert sorted(seen) == sorted(names)
            assert len(seen) == 45
        times = [summary.created_at for summary in await engine.list(limit=1000)]
        assert times == sorted(times, reverse=True)
        assert len(await engine.list(Short, status="completed")) == 30
        assert len(await engine.list("Everything", status="running")) == 15


@async_test
async def test_a_callback_of_one_instance_that_fails_for_ever_does_not_slow_the_others_down() -> None:
    failing = Callback(always=ValueError("down"))

    @definition
    async def Endless(self: Any) -> None:
        await self.run("step", failing, retry=RetryPolicy(max_attempts=None, initial=1, factor=1, maximum=1))

    async with SimulatedEngine([Endless, Everything]) as engine:
        await engine.get(Endless, "n").create()
        await engine.advance(100)
        assert 100 <= failing.calls <= 102
        await engine.get(Everything, "n").create()
        await engine.advance(1)
        await engine.get(Everything, "n").send("go", 1)
        assert await engine.get(Everything, "n").result(timeout=5) == [["a", "b"], 1, 1]
        assert await engine.get(Endless, "n").status() == "running"
