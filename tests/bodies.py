"""What the tests of bodies share: traces of bodies, compositions of asyncio, and programs that change."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support import Callback, definition, states, step_of
from workerflow import (
    RunStep,
    Settings,
    WorkflowDefinition,
    WorkflowFailedError,
)

HOUR = timedelta(hours=1)


AWAKE = Settings(hibernate_after_s=10**7)
"""A crash then finds the instance in memory, and it is replayed at once."""


class Traces:
    """What each body of a workflow did, body by body."""

    def __init__(self) -> None:
        self.bodies: list[list[Any]] = []
        self._ended = 0

    def begin(self) -> Callable[[Any], None]:
        """A new body begins; gives the function that notes what it does."""
        number = self._ended = len(self.bodies)
        self.bodies.append([])
        return lambda item: self.bodies[number].append(item) if number >= self._ended else None

    def repeated(self) -> list[Any]:
        """What the last body did, as the one before it had done; what all the others did is a beginning of it."""
        *_, before, last = self.bodies
        assert before == last
        for body in self.bodies:
            assert last[: len(body)] == body
        return last

    def end(self) -> None:
        """What the bodies of now do from here on, when they are dropped, is not noted."""
        self._ended = len(self.bodies)


async def failure_of(handle):
    with pytest.raises(WorkflowFailedError) as failed:
        await handle.result(timeout=5)
    return failed.value


async def step_has_succeeded(handle, step_id):
    """Return when the only attempt of the step is recorded as succeeded."""
    while states(await step_of(handle, step_id, RunStep)) != ["succeeded"]:
        await next_turn()


async def next_turn():
    """Let the loop go round once."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


def versions(*codes):
    """A definition whose code can be exchanged between two replays: ``code[0]`` is what ``execute()`` does."""
    code = list(codes)

    @definition
    async def Changing(self):
        return await code[0](self)

    return Changing, code


def named(name, execute):
    """A class of this name, as another version of the same program would have it."""
    return type(name, (WorkflowDefinition,), {"execute": execute, "name": name, "__module__": __name__})


async def with_gather(self, note):
    note(await asyncio.gather(*(self.run(f"run-{number}", Callback(number), returns=int) for number in range(5))))


async def with_task_group(self, note):
    async def branch(number):
        await self.sleep(f"sleep-{number}", 10 - number)
        note(number)
        return number

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(number)) for number in range(5)]
    note([task.result() for task in tasks])


async def with_a_task_group_of_steps(self, note):
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(self.run(f"run-{number}", Callback(number), returns=int), name=f"named-{number}")
            for number in range(3)
        ]
        sleep = group.create_task(self.sleep("sleep", 1))
    note([task.result() for task in tasks])
    note(sleep.result())


async def with_a_task_group_that_aborts(self, note):
    async def failing():
        await self.sleep("before", 1)
        raise ValueError("group")

    async def cancelled(number):
        try:
            await self.sleep(f"long-{number}", 1000)
        finally:
            note(number)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            for number in range(10):
                group.create_task(cancelled(number))
    except* ValueError as failures:
        note([repr(error) for error in failures.exceptions])


async def with_wait(self, note):
    sleeps = {self.sleep(f"sleep-{number}", number) for number in range(5)}
    while sleeps:
        done, sleeps = await asyncio.wait(sleeps, return_when=asyncio.FIRST_COMPLETED)
        note(len(done))
        note(self.now())


async def with_as_completed(self, note):
    async def branch(number):
        await self.sleep(f"sleep-{number}", 10 - number)
        return number

    for next_one in asyncio.as_completed([branch(number) for number in range(5)]):
        note(await next_one)


async def with_queue(self, note):
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)

    async def produce():
        for number in range(6):
            await self.run(f"run-{number}", Callback())
            await queue.put(number)

    async def consume(name):
        for index in range(3):
            note((name, await queue.get()))
            await self.sleep(f"{name}-{index}", 1 if name == "quick" else 3)

    await asyncio.gather(produce(), consume("quick"), consume("slow"))


async def with_lock_and_semaphore(self, note):
    lock, semaphore = asyncio.Lock(), asyncio.Semaphore(2)

    async def branch(number):
        async with semaphore:
            await self.sleep(f"sleep-{number}", 5 - number)
            async with lock:
                note(number)
                await self.run(f"run-{number}", Callback())
                note(number)

    await asyncio.gather(*(branch(number) for number in range(5)))


async def with_event_and_condition(self, note):
    event, condition = asyncio.Event(), asyncio.Condition()
    is_ready = False

    async def setter():
        nonlocal is_ready
        await self.sleep("sleep", 1)
        event.set()
        await self.run("run", Callback())
        async with condition:
            is_ready = True
            condition.notify_all()

    async def waiter(number):
        await event.wait()
        note(("event", number))
        async with condition:
            await condition.wait_for(lambda: is_ready)
        note(("condition", number))

    await asyncio.gather(setter(), *(waiter(number) for number in range(3)))


async def with_async_generator(self, note):
    async def ticks():
        try:
            for number in range(3):
                await self.sleep(f"tick-{number}", 1)
                yield number
        finally:
            note("closed")

    async for number in ticks():
        note(number)
        if number == 1:
            break
    await self.sleep("after", 1)


async def with_cancellation(self, note):
    async def branch():
        try:
            await self.sleep("long", 1000)
        except asyncio.CancelledError:
            note("cancelled")
            await self.run("cleanup", Callback())
            raise

    task = asyncio.create_task(branch())
    await self.sleep("short", 1)
    task.cancel("enough")
    note(repr(await asyncio.gather(task, return_exceptions=True)))


COMPOSITIONS = [
    with_gather, with_task_group, with_a_task_group_of_steps, with_a_task_group_that_aborts, with_wait,
    with_as_completed, with_queue, with_lock_and_semaphore, with_event_and_condition, with_async_generator,
    with_cancellation,
]  # fmt: skip
