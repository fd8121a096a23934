"""What tests share: a loop for an async test, a definition made of a function, an instance under way, a callback."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import apsw

from workerflow import (
    UNSET,
    Engine,
    RunStep,
    SleepStep,
    WaitStep,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowRuntime,
)
from workerflow.testing import SimulatedEngine

ResultT = TypeVar("ResultT")
StepT = TypeVar("StepT", RunStep, SleepStep, WaitStep)


def run(coroutine_function: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run an async function without arguments on a loop of its own."""
    return asyncio.run(coroutine_function())


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate an async test, so that it runs on a loop of its own. Fixtures are passed on."""

    @functools.wraps(test)
    def run_test(*arguments: Any, **fixtures: Any) -> None:
        run(lambda: test(*arguments, **fixtures))

    return run_test


def definition(execute: Callable[[Any], Coroutine[Any, Any, Any]]) -> type[WorkflowDefinition[Any, Any]]:
    """Decorate an async function of ``self``: it becomes the ``execute()`` of a definition of the function's name."""
    return type(execute.__name__, (WorkflowDefinition,), {"execute": execute, "__module__": execute.__module__})


class Callback:
    """An async callback that counts its calls: it raises *errors*, one a call, and after them returns *result*.

    With *always* it raises that error at every call.
    """

    def __init__(
        self, result: Any = None, *, errors: Sequence[BaseException] = (), always: BaseException | None = None
    ) -> None:
        self.calls = 0
        self._result = result
        self._errors = errors
        self._always = always

    async def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self._always is not None:
            raise self._always
        if self.calls <= len(self._errors):
            raise self._errors[self.calls - 1]
        return self._result


@asynccontextmanager
async def started(
    workflow: type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]], input: Any = UNSET, **options: Any
) -> AsyncIterator[tuple[SimulatedEngine, WorkflowHandle[Any]]]:
    """A simulated engine, and an instance of *workflow* that has gone as far as it can without time or events."""
    async with SimulatedEngine([workflow], **options) as engine:
        handle = engine.get(workflow, "instance-1")
        await handle.create(input)
        await engine.run_until_idle()
        yield engine, handle


async def lifecycle(handle: WorkflowHandle[Any]) -> list[str]:
    """The types of the instance's lifecycle events, oldest first."""
    return [event.type for event in await handle.events()]


async def step_of(handle: WorkflowHandle[Any], step_id: str, kind: type[StepT]) -> StepT:
    """The step of this id, which must exist and be of this kind."""
    (step,) = [step for step in await handle.steps() if step.id == step_id]
    assert isinstance(step, kind)
    return step


def states(step: RunStep) -> list[str]:
    """The states of the attempts of a run step, oldest first."""
    return [attempt.state for attempt in step.attempts]


def query(engine: Engine, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows that an SQL statement gives on a connection of its own to the engine's file: committed state only."""
    connection = apsw.Connection(engine.url)
    try:
        return list(connection.execute(statement, values))
    finally:
        connection.close()
