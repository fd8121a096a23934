"""Demo: the checkout survives two SIGKILLs. ``make demo``, or ``python -m examples.demo``.

A worker process runs ``examples.checkout`` on an SQLite file. It is killed in the middle of a callback and again during
a sleep, and started again each time; the event comes from another process. Each callback appends a line to an effect
log when it begins and when it ends: that log, and not the database, says which callbacks ran. The demo exits with 1
when the outcome is not as promised.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from examples.checkout import Checkout, Receipt
from examples.demo_processes import COOLING_OFF_S, ORDER_ID, Effect, database, read_effects
from workerflow import Engine, RunStep, SleepStep, WaitStep, WorkflowHandle
from workerflow.errors import WorkflowError

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
"""For one thing to happen. Nothing here waits for a fixed time: everything waits for a sign."""
LOOK_AGAIN_S = 0.01
COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 36, "grey": 90, "bold": 1}


class DemoError(Exception):
    """The demo cannot go on."""


class Screen:
    """Prints lines with their times, in colour on a terminal that wants it."""

    def __init__(self) -> None:
        self._is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._began_s = time.time()

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, or as it is."""
        return f"\033[{COLOURS[colour]}m{text}\033[0m" if self._is_coloured else text

    def line(self, text: str, colour: str | None = None) -> None:
        """Print one line."""
        print(text if colour is None else self.paint(text, colour), flush=True)

    def happened(self, who: str, what: str, colour: str) -> None:
        """Print one line of the timeline."""
        self.line(f"{self.paint(self.seconds(time.time()), 'grey')}  {self.paint(f'{who:<9}', colour)} {what}")

    def seconds(self, moment: float | datetime | None) -> str:
        """A time, counted from the beginning of the demo."""
        if moment is None:
            return " " * 8
        moment = moment.timestamp() if isinstance(moment, datetime) else moment
        return f"{moment - self._began_s:6.2f} s"


class Stage:
    """Starts the processes, waits for their signs, kills them, and shows what happens."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self._folder = folder
        self._screen = screen
        self._processes: list[subprocess.Popen[bytes]] = []
        self._worker_count = 0
        self._shown = 0

    def start_worker(self) -> None:
        """Start the next worker."""
        self._worker_count += 1
        process = self._start("worker")
        self._screen.happened(self._name(), f"starts, as process {process.pid}", "blue")

    async def finish(self, role: str, what: str) -> None:
        """Start a process that does one thing and ends."""
        process = self._start(role)
        if await asyncio.to_thread(process.wait, PATIENCE_S) != 0:
            raise DemoError(f"the {role}'s process ended with {process.returncode}")
        self._processes.remove(process)
        self._screen.happened(role, f"{what}, in a process of its own", "yellow")
        self._show_effects()

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a sign that the worker gives."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not await is_so():
            self._show_effects()
            if (code := self._processes[-1].poll()) is not None:
                raise DemoError(f"{self._name()} ended with {code}, before {what}")
            if time.monotonic() > give_up_s:
                raise DemoError(f"nothing happened for {PATIENCE_S:g} s, waiting until {what}")
            await asyncio.sleep(LOOK_AGAIN_S)
        self._show_effects()

    async def until_effect(self, step: str, phase: str) -> None:
        """Wait for a line of the effect log."""

        async def is_so() -> bool:
            return any((effect.step, effect.phase) == (step, phase) for effect in read_effects(self._folder))

        await self.until(f"{step} {phase}", is_so)

    def kill_worker(self, when: str) -> datetime:
        """Kill the worker as nothing can prevent; gives the time when it was dead."""
        process = self._processes.pop()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._show_effects()
        self._screen.happened("SIGKILL", f"{self._name()} dies {when}", "red")
        return datetime.now().astimezone()

    async def stop_worker(self) -> int:
        """Ask the worker to stop; its exit status."""
        process = self._processes[-1]
        process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(process.wait, PATIENCE_S)
        self._screen.happened(self._name(), f"is told to stop, and exits with {status}", "blue")
        return status

    def clear(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _name(self) -> str:
        return f"worker {self._worker_count}"

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "examples.demo_processes", role, str(self._folder)]
        self._processes.append(process := subprocess.Popen(command, cwd=ROOT))
        return process

    def _show_effects(self) -> None:
        effects = read_effects(self._folder)
        for effect in effects[self._shown :]:
            self._screen.happened(self._name(), f"{effect.step} {effect.phase} (attempt {effect.attempt})", "blue")
        self._shown = len(effects)


async def play(stage: Stage, handle: WorkflowHandle[Receipt]) -> tuple[Receipt, datetime, int]:
    """The story. Gives the result, the time of the second kill and the exit status of the last worker."""

    async def is_cooling_off() -> bool:
        return any(isinstance(step, SleepStep) for step in await handle.steps())

    async def has_ended() -> bool:
        return await handle.status() in ("completed", "failed", "cancelled")

    stage.start_worker()
    await stage.finish("customer", "places the order")
    await stage.until_effect("reserve", "ends")
    await stage.finish("bank", "sends payment.received")
    await stage.until_effect("capture", "begins")
    stage.kill_worker("in the middle of the callback of capture")
    stage.start_worker()
    await stage.until("the sleep is recorded", is_cooling_off)
    killed_at = stage.kill_worker("during the sleep cooling-off")
    stage.start_worker()
    await stage.until("the workflow has ended", has_ended)
    return await handle.result(timeout=PATIENCE_S), killed_at, await stage.stop_worker()


async def show_steps(screen: Screen, handle: WorkflowHandle[Receipt]) -> None:
    """Print what is recorded."""

    def row(step: str, what: str, began: datetime, ended: datetime | None, state: str) -> None:
        times = f"{screen.seconds(began)} to {screen.seconds(ended)}"
        outcome = screen.paint(state, "red" if state.startswith("failed") else "green")
        screen.line(f"  {step:<12} {what:<23} {times}   {outcome}")

    screen.line("\nSteps and attempts, as recorded", "bold")
    for step in await handle.steps():
        if isinstance(step, RunStep):
            for attempt in step.attempts:
                state = f"{attempt.state}: {attempt.error_message}" if attempt.error_message else attempt.state
                state = textwrap.shorten(state, 70, placeholder=" …")
                row(step.id, f"run, attempt {attempt.number}", attempt.started_at, attempt.ended_at, state)
        elif isinstance(step, WaitStep):
            row(step.id, f"wait, {step.event_name}", step.created_at, step.resolved_at, step.state)
        else:
            row(step.id, f"sleep, {COOLING_OFF_S:g} s", step.created_at, step.resolved_at, step.state)


async def promises(
    effects: list[Effect], handle: WorkflowHandle[Receipt], result: Receipt, killed_at: datetime, exit_status: int
) -> list[tuple[bool, str]]:
    """What must be so, and whether it is."""
    begun = {name: [e for e in effects if (e.step, e.phase) == (name, "begins")] for name in (e.step for e in effects)}
    captures = begun["capture"]
    sleep = next(step for step in await handle.steps() if isinstance(step, SleepStep))
    assert sleep.resolved_at is not None
    slept_s = (sleep.resolved_at - sleep.created_at).total_seconds()
    return [
        (len(begun["reserve"]) == 1, "reserve was not run again: its result was recorded before the first kill"),
        (
            [effect.attempt for effect in captures] == [1, 2] and captures[0].process != captures[1].process,
            "capture was run again: it was killed before its outcome was recorded",
        ),
        (len({effect.key for effect in captures}) == 1, "both attempts of capture had the same idempotency key"),
        (len(begun["ship"]) == 1, "ship ran once"),
        (
            [event.claimed_by for event in (await handle.info()).inbound_events] == ["payment"],
            "the event was used once",
        ),
        (sleep.created_at < killed_at < sleep.wake_at, "the second kill came during the sleep"),
        (
            slept_s >= COOLING_OFF_S and sleep.resolved_at >= sleep.wake_at,
            f"the sleep of {COOLING_OFF_S:g} s went on where it was: it took {slept_s:.2f} s in all",
        ),
        (result == Receipt("tea", "parcel-hold-tea"), "the result is that of a run without kills"),
        (exit_status == 0, "the last worker stopped in good order"),
    ]


async def tell(folder: Path, screen: Screen) -> int:
    """Play the story and check it; the exit status of the demo."""
    stage = Stage(folder, screen)
    async with Engine(database(folder), [Checkout], execute=False) as engine:
        handle = engine.get(Checkout, ORDER_ID)
        try:
            result, killed_at, exit_status = await play(stage, handle)
        finally:
            stage.clear()
        await show_steps(screen, handle)
        screen.line("\nPromises, checked by the effect log of the callbacks and the record", "bold")
        checks = await promises(read_effects(folder), handle, result, killed_at, exit_status)
    for is_so, what in checks:
        screen.line(f"  {screen.paint('yes', 'green') if is_so else screen.paint('NO ', 'red')}  {what}")
    if not all(is_so for is_so, _ in checks):
        screen.line("\nNot as promised.", "red")
        return 1
    screen.line(f"\nResult: {result}", "green")
    return 0


def main() -> int:
    """Run the demo; its exit status."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="workerflow-demo-") as name:
        screen.line(f"The checkout example, on {database(Path(name))}\n", "bold")
        try:
            return asyncio.run(tell(Path(name), screen))
        except (DemoError, WorkflowError, subprocess.TimeoutExpired) as error:
            screen.line(f"\nThe demo could not be played to its end: {error}", "red")
            return 1


if __name__ == "__main__":
    sys.exit(main())
