"""Attempts while other things happen: durable before every try, not early, and counted when they are cut."""

import asyncio
from datetime import timedelta

import pytest
from tests.bodies import AWAKE
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import RunStep, current_attempt
from workerflow.testing import SimulatedEngine

MILLISECOND = timedelta(milliseconds=1)


class FailsThenHangs:
    """A callback that fails at its first call, hangs at its second, and returns at the third."""

    def __init__(self):
        self.calls = 0
        self.hangs = asyncio.Event()

    async def __call__(self):
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError("no answer")
        if self.calls == 2:
            self.hangs.set()
            await asyncio.Event().wait()
        return "done"


async def crash_in_second_call(engine, call):
    # It would wait for the callback that hangs.
    advancing = asyncio.ensure_future(engine.advance(250 * MILLISECOND))
    await call.hangs.wait()
    advancing.cancel()
    await asyncio.gather(advancing, return_exceptions=True)
    await engine.crash()


@pytest.mark.spec(28)
@async_test
async def test_the_attempt_of_a_retry_and_of_a_nested_step_is_durable_before_its_callback_begins():
    seen = []

    async def look():
        step_id, attempts = current_attempt().step_id, "select state from attempts where step_id = ? order by number"
        seen.append((step_id, [state for (state,) in query(engine, attempts, step_id)]))
        if len(seen) == 1:
            raise ConnectionError("no answer")

    @definition
    async def Looking(self):
        async def outer():
            await look()
            await self.run("inner", look)

        await self.run("retried", look)
        await self.run("outer", outer)

    async with SimulatedEngine([Looking]) as engine:
        await engine.get(Looking, "instance-1").create()
        await engine.advance(1)

    assert seen == [
        ("retried", ["started"]),
        ("retried", ["failed", "started"]),
        ("outer", ["started"]),
        ("inner", ["started"]),
    ]


@pytest.mark.spec(47)
@pytest.mark.parametrize("disturbance", ["event", "create", "pause and resume", "another branch", "crash"])
@async_test
async def test_nothing_that_happens_during_the_back_off_brings_the_retry_forward(disturbance):
    call, other = Callback("called", errors=[ConnectionError("no answer")]), Callback()

    @definition
    async def Retrying(self):
        async def branch():
            await self.wait("go", "go")
            await self.run("other", other)

        called, _ = await asyncio.gather(self.run("call", call, returns=str), branch())
        return called

    async with started(Retrying, settings=AWAKE) as (engine, handle):
        due_at = engine.now() + 250 * MILLISECOND
        await engine.advance(100 * MILLISECOND)
        if disturbance == "event":
            await handle.send("nobody waits for it")
        elif disturbance == "create":
            assert await handle.create() is False
        elif disturbance == "pause and resume":
            await handle.pause()
            await handle.resume()
        elif disturbance == "another branch":
            await handle.send("go")
        else:
            await engine.crash()
        await engine.advance(149 * MILLISECOND)

        assert call.calls == 1
        assert (await handle.info()).alarm_at == due_at
        assert other.calls == (1 if disturbance == "another branch" else 0)

        await engine.advance(MILLISECOND)

        assert call.calls == 2
        assert (await step_of(handle, "call", RunStep)).attempts[1].started_at == due_at
        await handle.send("go")
        assert await handle.result(timeout=5) == "called"


@pytest.mark.spec(52)
@async_test
async def test_an_interrupted_attempt_is_followed_by_the_wait_that_its_number_calls_for():
    call = FailsThenHangs()

    @definition
    async def Calling(self):
        return await self.run("call", call, returns=str)

    async with started(Calling) as (engine, handle):
        await crash_in_second_call(engine, call)

        failed, interrupted = (await step_of(handle, "call", RunStep)).attempts
        assert failed.error_name == "ConnectionError"
        assert (interrupted.state, interrupted.error_name) == ("failed", None)
        assert interrupted.next_attempt_at == engine.now() + 500 * MILLISECOND
        await engine.advance(499 * MILLISECOND)
        assert call.calls == 2
        await engine.advance(MILLISECOND)

        assert await handle.result(timeout=5) == "done"
        assert states(await step_of(handle, "call", RunStep)) == ["failed", "failed", "succeeded"]


@pytest.mark.spec(52)
@async_test
async def test_an_interruption_of_the_last_allowed_attempt_fails_the_workflow_by_name_of_the_limit():
    call = FailsThenHangs()

    @definition
    async def Calling(self):
        await self.run("call", call, max_attempts=2)

    async with started(Calling) as (engine, handle):
        await crash_in_second_call(engine, call)
        await engine.advance(3600)

        assert [attempt.next_attempt_at for attempt in (await step_of(handle, "call", RunStep)).attempts][1] is None
        info = await handle.info()
        assert (info.status, info.alarm_at) == ("failed", None)
        assert info.failure is not None
        assert info.failure.name == "MaxAttemptsExceededError"
        assert "'call'" in info.failure.message
        assert "interrupted" in info.failure.message
        assert call.calls == 2
