"""A workload that uses every primitive, its driver, and its effect log.

The driver may be killed anywhere and started again: it asks again for what it has not been told is done, and looks
first whether all that it was told is still so.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from workerflow import (
    Engine,
    RetryPolicy,
    Settings,
    WorkflowCancelledError,
    WorkflowCompletionEvent,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowRuntime,
    current_attempt,
)
from workerflow.errors import DatabaseError

AnswerT = TypeVar("AnswerT")

EXPECTED = "plain+inner+hold+flaky+early+late+last"
PATIENCE_S = 40.0


class EffectLog:
    """What the outside world has seen, one line each: it survives whatever the database does not."""

    def __init__(self) -> None:
        self.path = Path()
        self.listeners: list[Callable[[str], None]] = []

    def write(self, line: str) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        for listener in self.listeners:
            listener(line)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def has(self, line: str) -> bool:
        return line in self.lines()


LOG = EffectLog()
REACHED = asyncio.Event()
DELIVERED = asyncio.Event()


def started() -> None:
    attempt = current_attempt()
    LOG.write(f"start {attempt.step_id} {attempt.number}")


def plain() -> str:
    started()
    return "plain"


async def hold() -> str:
    started()
    return "hold"


async def inner() -> str:
    started()
    return "inner"


async def flaky() -> str:
    started()
    if current_attempt().number == 1:
        raise ValueError("the first try fails")
    return "flaky"


async def last() -> str:
    started()
    return "last"


class ErrandDefinition(WorkflowDefinition[str, str]):
    async def execute(self) -> str:
        quick = RetryPolicy(max_attempts=20, initial=0.003, factor=1)
        first = await self.run("plain", plain, retry=quick)

        async def outer() -> str:
            started()
            return await self.run("inner", inner, retry=quick)

        both = asyncio.gather(self.run("outer", outer, retry=quick), self.run("hold", hold, retry=quick))
        parts = [first, *await both]
        await self.sleep("sleep", 0.003)
        parts.append(await self.run("flaky", flaky, retry=quick))
        try:
            await self.wait("never", "never", timeout=0.003)
        except TimeoutError:
            parts.append(await self.wait("queued", "early", str))
        late = self.wait("used", "late", str, timeout=3600)
        REACHED.set()
        parts.append(await late)
        parts.append(await self.run("last", last, retry=quick))
        return "+".join(parts)


class Errand(WorkflowRuntime[str, str]):
    definition = ErrandDefinition

    async def completion(self, event: WorkflowCompletionEvent) -> None:
        LOG.write(f"completion {event.id} {event.status}")
        DELIVERED.set()


class Idle(WorkflowDefinition[None, None]):
    async def execute(self) -> None:
        await self.wait("for ever", "nothing")


def engine_on(path: Path, mode: str, **settings: Any) -> Engine:
    """An engine that runs in a mode of the suite."""
    if mode == "hibernating":
        settings["hibernate_after_s"] = 0.0
    return Engine(path, [Errand, Idle], always_replay=mode == "always-replay", settings=Settings(**settings))


async def tick() -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.call_later(0.001, done.set)
    await done.wait()


async def insist(what: str, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Ask until the database allows it, as a caller would."""
    while True:
        try:
            return await ask()
        except DatabaseError as error:
            LOG.write(f"refused {what} {type(error).__name__}")
            await tick()


async def once(what: str, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until it is acknowledged, but never again after that, unless it was lost."""
    lines = LOG.lines()
    if lines.count(f"acknowledged {what}") == sum(line.startswith(f"lost {what}:") for line in lines):
        LOG.write(f"asking {what}")
        await insist(what, ask)
        LOG.write(f"acknowledged {what}")


async def drive(path: Path, mode: str = "normal", opened: Callable[[], None] = lambda: None, **settings: Any) -> None:
    """Bring the workload to its end. *opened* is called when the engine is open."""
    asyncio.get_running_loop().set_exception_handler(_unheard)
    async with asyncio.timeout(PATIENCE_S):
        engine = await insist("open", lambda: engine_on(path, mode, **settings).__aenter__())
        try:
            opened()
            await look(engine, path)
            await ask_everything(engine, path)
        finally:
            await engine.__aexit__(None, None, None)
    LOG.write("closed")


def _unheard(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    LOG.write(f"error unheard: {context['message']} {context.get('exception')!r}")


async def ask_everything(engine: Engine, path: Path) -> None:
    errand, idle = engine.get(Errand, "e-1"), engine.get(Idle, "i-1")
    await once("create", lambda: errand.create("input"))
    await once("pause", errand.pause)
    await once("early", lambda: errand.send("early", "early", id="early"))
    receipt = await insist("duplicate", lambda: errand.send("early", "another", id="early"))
    if receipt != "duplicate":
        LOG.write(f"lost early: sent again it is {receipt}")
    await once("resume", lambda: resume(errand))
    await once("idle", lambda: idle.create())
    await once("cancel", lambda: cancel_by_mail(path))
    if not LOG.has("acknowledged late"):
        await REACHED.wait()
    await once("late", lambda: errand.send("late", "late", id="late"))
    LOG.write(f"result {await insist('result', lambda: errand.result())}")
    try:
        await insist("cancelled", lambda: idle.result())
    except WorkflowCancelledError as error:
        LOG.write(f"cancelled {error.reason}")
    if not any(line.startswith("completion") for line in LOG.lines()):
        await DELIVERED.wait()


async def resume(errand: WorkflowHandle[str]) -> None:
    if await errand.status() == "paused":
        await errand.resume()


async def cancel_by_mail(path: Path) -> None:
    async with Engine(path, [Idle], execute=False) as sender:
        await sender.get(Idle, "i-1").cancel("no more")


async def look(engine: Engine, path: Path) -> None:
    """Whether what was acknowledged to an earlier driver is still so."""
    errand, idle = engine.get(Errand, "e-1"), engine.get(Idle, "i-1")
    lines = LOG.lines()
    info = await insist("info", errand.info)
    idle_status = await insist("status", idle.status)
    events = Counter(event.id for event in info.inbound_events)
    is_resumed = "asking resume" in lines
    for what, is_kept, found in (
        ("create", info.status != "pending", info.status),
        ("pause", info.status == "paused" or is_resumed, info.status),
        ("early", events["early"] == 1, events),
        ("resume", info.status != "paused", info.status),
        ("idle", idle_status != "pending", idle_status),
        ("cancel", idle_status == "cancelled" or has_cancel_in_mail(path), idle_status),
        ("late", events["late"] == 1, events),
    ):
        if f"acknowledged {what}" in lines and not is_kept:
            LOG.write(f"lost {what}: {found}")
    if f"result {EXPECTED}" in lines and info.status != "completed":
        LOG.write(f"lost result: {info.status}")


def has_cancel_in_mail(path: Path) -> bool:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs="unix")
    try:
        return bool(connection.execute("select 1 from mail where kind = 'cancel'").fetchall())
    except apsw.IOError:  # The log was deleted under us: no new connection can read.
        return True
    finally:
        connection.close()
