"""Workflows that do the worst, each among fifty good ones, in a process that is started again when it ends.

For each it is stated how it ends: held or failed with a reason, completed, or still running and harmless. The good
ones must end in any case. Run as a script it prints how often each poison ended its process, and how long the good ones
took from the last start.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import re
import resource
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.processes import (
    GOODS,
    NOW_S,
    Child,
    Good,
    folder,
    options,
    repeated,
    rows_of,
    say,
    stored_effects,
)
from tests.faults.table import Budget, Cell, Row, main
from workerflow import (
    Engine,
    EngineClosedError,
    RetryPolicy,
    WorkflowCompletionEvent,
    WorkflowDefinition,
    WorkflowError,
    WorkflowRuntime,
)

RECOVERIES_MAX = 3
BEAT_S = 0.05
SILENT_S = 0.5
"""A loop that has not turned for so long is taken for dead, and its process is killed: what a supervisor does."""
ENDLESS = RetryPolicy(max_attempts=None, initial=0.01, factor=1)
ONCE = RetryPolicy(max_attempts=1)

HELD_KILLS = r"running held: its process ended \d+ times in a row .* kills the process"
HELD_BODY = r"(pending|initialized|running) held: "


@dataclass(frozen=True)
class Poison:
    """*execute* is the body; with *callback*, the body is one run of it. *ends*: how the instance is found at last.

    *kills*: how often its process may end, at least and at most, before the good ones are through. *hangs*: the process
    must be killed from outside. *says*: what must have been logged. *cut*: cancel it when the others are through.
    """

    name: str
    ends: str
    execute: Callable[[Any], Awaitable[Any]] | None = None
    callback: Callable[[], Any] | None = None
    retry: RetryPolicy = ENDLESS
    at_most_once: bool = False
    kills: tuple[int, int] = (0, 0)
    hangs: bool = False
    says: str = ""
    cut: bool = False
    hooks: dict[str, Any] = field(default_factory=dict)
    workflow: type[WorkflowRuntime[Any, Any]] | None = None
    is_registered: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    patience_s: float = 6.0

    def runtime(self) -> type[WorkflowRuntime[Any, Any]]:
        if self.workflow is not None:
            return self.workflow
        execute = self.execute or self._run_callback
        definition = type("Poison", (WorkflowDefinition,), {"execute": lambda definition: execute(definition)})
        # execute() must be seen to be async.
        definition.execute = _async(execute)  # type: ignore[attr-defined]
        return type("PoisonRuntime", (WorkflowRuntime,), {"definition": definition, **self.hooks})

    async def _run_callback(self, definition: Any) -> Any:
        if self.callback is None:
            return await definition.run("first", _nothing)
        if self.at_most_once:
            return await definition.run("poison", self.callback, retry=self.retry, at_most_once=True)
        return await definition.run("poison", self.callback, retry=self.retry)


def _async(execute: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    async def run(definition: Any) -> Any:
        return await execute(definition)

    return run


async def _nothing() -> None:
    pass


# What kills the process.


def exits() -> None:
    os._exit(17)


async def exits_async() -> None:
    os._exit(17)


async def segfaults() -> None:
    ctypes.string_at(0)


async def aborts() -> None:
    os.abort()


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


async def exits_in_nested_callback(self: Any) -> None:
    async def outer() -> None:
        await self.run("inner", exits_async, retry=ENDLESS)

    await self.run("outer", outer)


async def exits_in_body(self: Any) -> None:
    os._exit(17)


async def exits_in_body_after_a_sleep(self: Any) -> None:
    await self.sleep("sleep", 0.05)
    os._exit(17)


# What does not let the loop turn.


async def spins(self: Any) -> None:
    while True:
        pass


async def spins_after_a_sleep(self: Any) -> None:
    await self.sleep("sleep", 0.05)
    while True:
        pass


async def spins_after_a_callback(self: Any) -> None:
    await self.run("first", _nothing, retry=ENDLESS)
    while True:
        pass


async def yields_for_ever(self: Any) -> None:
    while True:  # noqa: ASYNC110  # that is the poison
        await asyncio.sleep(0)  # noqa: TID251  # the body's loop has no timers: this only yields


def blocks_for_ever() -> None:
    threading.Event().wait()


async def blocks_the_loop() -> None:
    threading.Event().wait(0.5)


async def blocks_the_loop_for_ever() -> None:
    threading.Event().wait()


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


async def ignores_its_cancellation() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def takes_every_thread(self: Any) -> None:
    await asyncio.gather(*(self.run(f"block-{number}", blocks_for_ever) for number in range(40)))


async def takes_every_thread_for_a_moment(self: Any) -> None:
    await asyncio.gather(
        *(self.run(f"block-{number}", blocks_for_ever, timeout=0.2, retry=ONCE) for number in range(40)),
        return_exceptions=True,
    )


async def steps_for_ever(self: Any) -> None:
    for number in itertools.count():
        await self.run(f"step-{number}", _nothing)


def steps(count: int) -> Callable[[Any], Awaitable[None]]:
    async def execute(self: Any) -> None:
        for number in range(count):
            await self.run(f"step-{number}", _nothing)

    return execute


async def sleeps_nothing_for_ever(self: Any) -> None:
    for number in itertools.count():
        await self.sleep(f"sleep-{number}", 0)


async def asks_for_a_crowd_of_steps(self: Any) -> int:
    return len(await asyncio.gather(*(self.run(f"step-{number}", _nothing) for number in range(2000))))


async def swallows_cancellation(self: Any) -> None:
    for number in itertools.count():
        try:
            await self.wait(f"wait-{number}", "never")
        except asyncio.CancelledError:
            continue


async def swallows_cancellation_on_one_event(self: Any) -> None:
    event = asyncio.Event()
    while True:
        try:
            await asyncio.gather(event.wait(), self.wait("wait", "never"))
        except BaseException:
            continue


# What raises.


def recurses() -> None:
    recurses()


async def recurses_async() -> None:
    await recurses_async()


async def recurses_in_body(self: Any) -> None:
    recurses()


async def recurses_in_body_async(self: Any) -> None:
    await recurses_async()


def nested_value() -> Any:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


async def nested_value_of_body(self: Any) -> Any:
    return nested_value()


def large_value() -> str:
    return "x" * 100_000_000


async def large_value_of_body(self: Any) -> str:
    return large_value()


class Own(BaseException):
    """Neither an Exception nor one of Python's own."""


class UnspeakableError(Exception):
    """Its text cannot be made, nor its repr."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def raising(error: type[BaseException]) -> Callable[[], None]:
    def raises() -> None:
        raise error("poison")

    return raises


def raising_async(error: type[BaseException]) -> Callable[[], Awaitable[None]]:
    async def raises() -> None:
        raise error("poison")

    return raises


def raising_in_body(error: type[BaseException]) -> Callable[[Any], Awaitable[None]]:
    async def execute(self: Any) -> None:
        raise error("poison")

    return execute


class BrokenDefinition(WorkflowDefinition[None, None]):
    """Its constructor raises."""

    def __init__(self) -> None:
        raise ValueError("no definition today")

    async def execute(self) -> None:
        pass


class Broken(WorkflowRuntime[None, None]):
    definition = BrokenDefinition


# Hooks.


def status_raises(self: Any, status: str) -> None:
    raise SystemExit("hook")


def status_exits(self: Any, status: str) -> None:
    os._exit(17)


def status_hangs(self: Any, status: str) -> None:
    threading.Event().wait()


async def completion_raises(self: Any, event: WorkflowCompletionEvent) -> None:
    raise SystemExit("hook")


async def completion_waits_for_ever(self: Any, event: WorkflowCompletionEvent) -> None:
    await asyncio.Event().wait()


async def completion_exits(self: Any, event: WorkflowCompletionEvent) -> None:
    os._exit(17)


async def completion_hangs(self: Any, event: WorkflowCompletionEvent) -> None:
    threading.Event().wait()


DEATHS = (2, 10)
"""Few: it is told apart from those that were in flight beside it, and held."""
STALL = r"execute\(\) of .* has not yielded .* self.run"


def errors() -> list[Poison]:
    """Each error, raised in each place: the instance fails with its name."""
    table = []
    for error in (ValueError, MemoryError, RecursionError, SystemExit, GeneratorExit, asyncio.CancelledError, Own,
                  StopIteration, StopAsyncIteration, UnspeakableError):  # fmt: skip
        # A coroutine cannot raise StopIteration: Python makes a RuntimeError of it.
        name = "RuntimeError" if error is StopIteration else error.__name__
        ends = f"failed {name}:"
        table += [
            Poison(f"{error.__name__} in execute()", ends, raising_in_body(error)),
            Poison(
                f"{error.__name__} in an async callback",
                f"failed MaxAttempts.*{name}",
                callback=raising_async(error),
                retry=ONCE,
            ),
            Poison(
                f"{error.__name__} in a plain callback",
                f"failed MaxAttempts.*{error.__name__}",
                callback=raising(error),
                retry=ONCE,
            ),
        ]
    return table


POISONS = [
    # Kills the process.
    Poison("exit in a plain callback", HELD_KILLS, callback=exits, kills=DEATHS),
    Poison("exit in an async callback", HELD_KILLS, callback=exits_async, kills=DEATHS),
    Poison("exit in a nested callback", HELD_KILLS, exits_in_nested_callback, kills=DEATHS),
    Poison("exit with two attempts", r"failed MaxAttempts.*interrupted", callback=exits_async,
           retry=RetryPolicy(max_attempts=2, initial=0.01), kills=(2, 2)),
    Poison("exit at most once", r"failed .*interrupted", callback=exits_async, at_most_once=True, retry=ONCE,
           kills=(1, 1)),
    Poison("segmentation fault", HELD_KILLS, callback=segfaults, kills=DEATHS),
    Poison("abort", HELD_KILLS, callback=aborts, kills=DEATHS),
    Poison("a callback that stops the loop", "completed", callback=stops_the_loop, kills=(1, 1)),
    Poison("exit in execute()", HELD_BODY, exits_in_body, kills=(1, 10)),
    Poison("exit in execute() after a sleep", HELD_BODY, exits_in_body_after_a_sleep, kills=(1, 10)),
    Poison("KeyboardInterrupt in execute()", HELD_BODY, raising_in_body(KeyboardInterrupt), kills=(1, 10)),
    Poison("KeyboardInterrupt in an async callback", HELD_KILLS, callback=raising_async(KeyboardInterrupt),
           kills=DEATHS),
    Poison("KeyboardInterrupt in a plain callback", HELD_KILLS, callback=raising(KeyboardInterrupt), kills=DEATHS),
    # Does not let the loop turn.
    Poison("a body that never yields", HELD_BODY, spins, hangs=True, says=STALL, kills=(1, 10)),
    Poison("a body that never yields after a sleep", HELD_BODY, spins_after_a_sleep, hangs=True, says=STALL,
           kills=(1, 10)),
    Poison("a body that never yields after a callback", HELD_BODY, spins_after_a_callback, hangs=True, says=STALL,
           kills=(1, 10)),
    Poison("a body that yields for ever", r"running held: .*without a wait", yields_for_ever,
           settings={"handles_per_drive_max": 50_000}),
    Poison("a plain callback that blocks for ever", "running$", callback=blocks_for_ever),
    Poison("an async callback that blocks the loop", "completed", callback=blocks_the_loop),
    Poison("an async callback that blocks the loop for ever", HELD_KILLS, callback=blocks_the_loop_for_ever, hangs=True,
           kills=DEATHS),
    Poison("an async callback that waits for ever", "running$", callback=waits_for_ever),
    Poison("an async callback that ignores its cancellation", "cancelled", callback=ignores_its_cancellation, cut=True),
    # Until the watchdog gives their places to others: half an hour, unless the settings say otherwise.
    Poison("blocking callbacks in every thread", "running$", takes_every_thread, settings={"watchdog_s": 0.5}),
    Poison("blocking callbacks in every thread, with a timeout", "completed|running$", takes_every_thread_for_a_moment),
    Poison("steps for ever", "cancelled", steps_for_ever, cut=True),
    Poison("sleeps of nothing for ever", "cancelled", sleeps_nothing_for_ever, cut=True),
    Poison("two thousand steps at once", "completed", asks_for_a_crowd_of_steps),
    Poison("a body that swallows cancellation", "cancelled", swallows_cancellation, cut=True),
    Poison("a body that swallows everything", "cancelled", swallows_cancellation_on_one_event, cut=True),
    # Raises.
    *errors(),
    Poison("recursion in execute()", "failed RecursionError:", recurses_in_body),
    Poison("recursion of coroutines in execute()", "failed RecursionError:", recurses_in_body_async),
    Poison("recursion in an async callback", "failed .*RecursionError", callback=recurses_async, retry=ONCE),
    Poison("recursion in a plain callback", "failed .*RecursionError", callback=recurses, retry=ONCE),
    Poison("a deep value from a callback", "failed NonRetryable.*deep", callback=nested_value),
    Poison("a deep value from execute()", "failed InvalidValue.*deep", nested_value_of_body),
    Poison("100 MB from a callback", "failed NonRetryable.*bytes", callback=large_value),
    Poison("100 MB from execute()", "failed InvalidValue.*bytes", large_value_of_body),
    # Is not there, or not whole.
    Poison("a class that is not registered", "running held: no definition named", is_registered=False),
    Poison("a constructor that raises", "failed ValueError: no definition today", workflow=Broken),
    # Hooks.
    Poison("a status hook that raises", "completed", hooks={"on_status_change": status_raises}),
    Poison("a status hook that exits", "completed", hooks={"on_status_change": status_exits}, kills=(1, 2)),
    Poison("a status hook that hangs", "completed", hooks={"on_status_change": status_hangs}, hangs=True, kills=(1, 2)),
    Poison("a completion that raises", "completed", hooks={"completion": completion_raises}),
    Poison("a completion that waits for ever", "completed", hooks={"completion": completion_waits_for_ever}),
    Poison("a completion that exits", "completed", hooks={"completion": completion_exits}, kills=(1, 10)),
    Poison("a completion that hangs", "completed", hooks={"completion": completion_hangs}, hangs=True, kills=(1, 10)),
]  # fmt: skip
LONG_POISONS = [
    Poison(f"{count} steps", "completed", steps(count), patience_s=200) for count in (1, 12_500, 25_000, 50_000)
]
"""Time and memory that grow with the steps; for the script only."""
BY_NAME = {poison.name: poison for poison in [*POISONS, *LONG_POISONS]}


# The processes.


async def create_everything(path: Path, poison: Poison) -> None:
    """By mail, the poison in the middle: whoever takes the mail meets it before half of the others."""
    async with Engine(path, [Good], execute=False) as engine:
        for number in range(GOODS):
            if number == GOODS // 2:
                await engine.get("Poison", "poison").create()
            await engine.get(Good, str(number)).create()


def say_memory() -> None:
    say(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


async def serve(path: Path, poison: Poison, mode: str) -> None:
    runtime = poison.runtime()
    runtime.definition.name = "Poison"
    workflows: list[Any] = [Good, runtime] if poison.is_registered else [Good]
    settings = {
        "recoveries_max": RECOVERIES_MAX, "body_stall_s": 0.1, "stop_grace_s": 0.3, "finish_grace_s": 0.1
    } | poison.settings  # fmt: skip
    async with Engine(path, workflows, **options(mode, **settings)) as engine:
        say("serving")
        loop = asyncio.get_running_loop()

        def beat() -> None:
            say("beat")
            loop.call_later(BEAT_S, beat)

        beat()

        async def watch(number: int) -> None:
            try:
                say(f"good {number} {await engine.get(Good, str(number)).result()}")
            except EngineClosedError:
                return  # A KeyboardInterrupt has stopped the engine.
            except WorkflowError as error:
                say(f"bad {number} {error}")

        async def watch_poison() -> None:
            if not poison.is_registered:
                return
            try:
                await engine.get(runtime, "poison").result()
                say_memory()
                say("poison completed")
            except WorkflowError as error:
                say(f"poison {type(error).__name__}")

        async def watch_all() -> None:
            await asyncio.gather(*(watch(number) for number in range(GOODS)))
            say_memory()
            if poison.cut:
                await engine.get(runtime, "poison").cancel("cut off")
            say("through")

        watching = [asyncio.ensure_future(watch_all()), asyncio.ensure_future(watch_poison())]
        await engine.run_forever()
        for task in watching:
            task.cancel()
    say("closed")
    # asyncio.run would wait for ever for a callback that ignores its cancellation.
    os._exit(0)


@dataclass
class Life:
    """What became of one process: did it end by itself or was it killed, and were the good ones through."""

    child: Child
    is_through: bool = False
    is_killed: bool = False
    is_stuck: bool = False
    through_s: float = 0.0


def poison_end(path: Path) -> str:
    """How the poison is found in committed state."""
    found = rows_of(
        path, "select status, held_reason, failure_name, failure_message from instances where workflow = 'Poison'"
    )
    if not found:
        return "not there"
    status, held, name, message = found[0]
    return f"{status}{'' if held is None else f' held: {held}'}{'' if message is None else f' {name}: {message}'}"


def live(path: Path, poison: Poison, mode: str) -> Life:
    """One process, until it ends, hangs, or everything is as it shall be; then it is stopped gracefully."""
    life = Life(Child(serve, path, poison, mode))
    child = life.child
    give_up_s = child.began_s + poison.patience_s
    is_serving = False
    while True:
        try:
            line = child.line(SILENT_S if poison.hangs and is_serving else 5)
        except TimeoutError:
            child.signal(signal.SIGKILL)
            child.ends()
            life.is_killed = True
            return life
        if line is None:
            child.ends()
            life.is_killed = True
            return life
        is_serving |= line == "serving"
        if line == "through":
            life.is_through = True
            life.through_s = NOW_S()
        if (
            life.is_through
            and (line.startswith("poison") or line == "beat")
            and re.match(poison.ends, poison_end(path))
        ):
            break
        if NOW_S() > give_up_s:
            life.is_stuck = True
            break
    child.signal(signal.SIGTERM)
    child.ends(5)
    return life


def poisoned(poison: Poison, mode: str) -> Row:
    """One poison among the good ones, started again as often as it takes."""
    row = Row(poison.name)
    with folder() as place:
        path = place / "poison.db"
        Child(create_everything, path, poison).ends()
        heard: list[str] = []
        kills = 0
        while True:
            stored = stored_effects(path)
            life = live(path, poison, mode)
            heard += life.child.heard
            row.points += 1
            row.cells[Cell("poison", poison.name, "good", "recovery" if kills else "first run")] += 1
            row.duplicates += len(twice := repeated(life.child, stored))
            row.problems += [f"{line} again" for line in twice]
            kills += life.is_killed
            if life.is_through:
                row.longest_recovery_s = life.through_s - life.child.began_s
            if not life.is_killed or kills > poison.kills[1]:
                break
        goods = {line for line in heard if line.startswith("good")}
        missing = GOODS - len({line for line in goods if line.endswith(" 2")})
        row.lost = missing
        if missing:
            row.problems.append(f"{missing} good ones have not ended after {kills} ends of the process")
        row.problems += [line for line in heard if line.startswith("bad")][:3]
        if life.is_stuck:
            row.problems.append("not as stated in time")
        if not life.is_killed and life.child.code != 0 and kills < poison.kills[1]:
            kills += 1  # It was as stated a moment before it did its worst.
        elif not life.is_killed and life.child.code != 0:
            row.problems.append(f"exit code {life.child.code} after SIGTERM: {life.child.heard[-3:]}")
        if not poison.kills[0] <= kills <= poison.kills[1]:
            row.problems.append(f"its process ended {kills} times: {life.child.heard[-3:]}")
        if not re.match(poison.ends, end := poison_end(path)):
            row.problems.append(f"found: {end[:300]}")
        if poison.says and not any(re.search(poison.says, line) for line in heard):
            row.problems.append(f"not said: {poison.says}")
        row.problems += [line for line in heard if "please report this" in line][:3]
        memory = [float(line.split()[1]) for line in heard if line.startswith("memory")]
        row.measured = {"ends of the process": kills, "MiB": max(memory, default=0.0)}
    return row


def swept(names: list[str], mode: str) -> list[Row]:
    """The poisons of these names."""
    return [poisoned(BY_NAME[name], mode) for name in names]


def sweep(budget: Budget) -> list[Row]:
    return [poisoned(poison, budget.mode) for poison in budget.sample([*POISONS, *LONG_POISONS], "poisons")]


if __name__ == "__main__":
    main(sweep)
