"""Promises of the README that have no better place."""

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from workerflow import DatabaseLockedError, Engine, EngineClosedError, MaxAttemptsExceededError, WorkflowDefinition
from workerflow.store.sqlite.store import SqliteStore
from workerflow.testing import SimulatedEngine


class Once(WorkflowDefinition[None, str]):
    began: ClassVar[asyncio.Event]
    calls: ClassVar[int]

    async def execute(self) -> str:
        try:
            await self.run("charge", self.charge, at_most_once=True)
        except MaxAttemptsExceededError as error:
            return f"{error.step_id} is in doubt"
        return "charged"

    @classmethod
    async def charge(cls) -> None:
        cls.calls += 1
        cls.began.set()
        await asyncio.Event().wait()


class Nothing(WorkflowDefinition[None, None]):
    async def execute(self) -> None:
        return None


def test_an_interrupted_attempt_that_may_run_at_most_once_fails_and_is_not_run_again() -> None:
    async def main() -> tuple[str, int]:
        Once.began, Once.calls = asyncio.Event(), 0
        async with SimulatedEngine([Once]) as engine:
            handle = engine.get(Once, "o")
            await handle.create()
            await Once.began.wait()
            await engine.crash()
            await engine.advance(3600)
            return await handle.result(timeout=5), Once.calls

    assert asyncio.run(main()) == ("charge is in doubt", 1)


def test_a_second_engine_on_the_same_file_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with Engine(tmp_path / "one.db", [Nothing]) as first:
            with pytest.raises(DatabaseLockedError, match="in use by another engine"):
                async with Engine(tmp_path / "one.db", [Nothing]):
                    pass
            await first.get(Nothing, "n").create()
            await first.get(Nothing, "n").result(timeout=30)

    asyncio.run(main())


def test_an_engine_that_lost_its_database_writes_nothing_and_says_so(tmp_path: Path) -> None:
    async def main() -> str:
        async with Engine(tmp_path / "one.db", [Nothing]) as engine:
            usurper = SqliteStore(tmp_path / "one.db", synchronous="FULL")
            usurper.open(execute=False, now_ms=0)
            usurper.begin_worker(1, 0, [])
            with pytest.raises(EngineClosedError):
                await asyncio.wait_for(engine.get(Nothing, "n").create(), 5)
            with pytest.raises(EngineClosedError, match="has stopped"):
                await engine.get(Nothing, "n").status()
            found = usurper.find("Nothing", "n")
            usurper.close()
        return "nothing" if found is None else found.status

    assert asyncio.run(main()) == "nothing"
