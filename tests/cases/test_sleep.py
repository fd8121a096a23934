"""Sleep: wake times in any time zone, and a process that is killed in mid sleep."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.support import async_test, definition, started, step_of

from workerflow import Engine, SleepStep, WaitTimeoutError, WorkflowDefinition

MILLISECOND = timedelta(milliseconds=1)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("moment", "instant"),
    [
        (datetime(2030, 1, 2, 3, tzinfo=UTC), datetime(2030, 1, 2, 3, tzinfo=UTC)),
        (datetime(2030, 1, 2, 3, tzinfo=ZoneInfo("Asia/Kolkata")), datetime(2030, 1, 1, 21, 30, tzinfo=UTC)),
        (datetime(2030, 1, 2, 3, tzinfo=ZoneInfo("America/New_York")), datetime(2030, 1, 2, 8, tzinfo=UTC)),
        (datetime(2030, 7, 2, 3, tzinfo=ZoneInfo("America/New_York")), datetime(2030, 7, 2, 7, tzinfo=UTC)),
        (datetime(2030, 1, 2, 3, tzinfo=timezone(-timedelta(hours=11.5))), datetime(2030, 1, 2, 14, 30, tzinfo=UTC)),
        # The hour that there is twice when summer ends, and the one that there is not when it begins.
        (datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=0), datetime(2030, 10, 27, 0, 30, tzinfo=UTC)),
        (datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), datetime(2030, 10, 27, 1, 30, tzinfo=UTC)),
        (datetime(2030, 3, 31, 2, 30, tzinfo=BERLIN), datetime(2030, 3, 31, 1, 30, tzinfo=UTC)),
    ],
    ids=str,
)
@pytest.mark.parametrize("verb", ["sleep_until", "deadline"])
@async_test
async def test_a_wake_time_in_any_zone_is_the_instant_that_it_names(
    verb: str, moment: datetime, instant: datetime
) -> None:
    @definition
    async def Waking(self: Any) -> str:
        if verb == "sleep_until":
            await self.sleep_until("wake", moment)
        else:
            with contextlib.suppress(WaitTimeoutError):
                await self.wait("wake", "never", deadline=moment)
        woke: str = self.now().isoformat()
        return woke

    async with started(Waking) as (engine, handle):
        assert (await handle.info()).alarm_at == instant
        await engine.advance(instant - engine.now() - MILLISECOND)
        assert await handle.status() == "running"
        await engine.crash()
        assert await handle.status() == "running"
        await engine.advance(MILLISECOND)
        assert await handle.result(timeout=5) == instant.isoformat()


SLEEPS = """
import asyncio, sys
from workerflow import Engine, WorkflowDefinition
class Sleeping(WorkflowDefinition):
    async def execute(self):
        await self.sleep("night", 0.4)
async def main():
    async with Engine(sys.argv[1], [Sleeping]) as engine:
        handle = engine.get(Sleeping, "instance-1")
        began = asyncio.get_running_loop().time()
        await handle.create()
        while not await handle.steps():
            await asyncio.sleep(0)
        print(began, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@async_test
async def test_a_sleep_of_a_killed_process_is_over_in_the_next_one_and_not_earlier_than_asked(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    woken: list[float] = []

    class Sleeping(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            await self.sleep("night", 0.4)
            woken.append(loop.time())

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SLEEPS, str(tmp_path / "a.db"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    began = float(await asyncio.wait_for(process.stdout.readline(), 50))
    process.kill()
    await process.communicate()

    async with Engine(tmp_path / "a.db", [Sleeping]) as engine:
        handle = engine.get(Sleeping, "instance-1")
        await handle.result(timeout=30)
        step = await step_of(handle, "night", SleepStep)
    # The clock of a loop is the machine's: it goes on from process to process.
    assert [moment - began >= 0.4 for moment in woken] == [True]
    assert step.wake_at - step.created_at == timedelta(seconds=0.4)
    assert step.resolved_at is not None
    assert step.resolved_at >= step.wake_at
