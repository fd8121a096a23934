"""What must come of an instance that listens on two branches, whatever happens to it in whatever order.

A model in a few lines, without a database, and the same instance in an engine. One letter is one happening:

S send, M send from an engine beside, F reach the first wait, G reach the second one, D let the time of a wait pass,
P pause, R resume, X crash, K cancel, E end.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator

from tests.support import definition, lifecycle

from workerflow import Engine, WaitStep, WaitTimeoutError
from workerflow.testing import SimulatedEngine

TIMEOUT_S = 10
OPENS = {"F": "first", "G": "second"}
SHARED = "DX"
"""What happens to all instances of an engine at once."""


@definition
async def Listener(self):
    heard = []

    async def listen(name):
        await self.wait(f"open-{name}", f"open-{name}")
        try:
            heard.append([name, await self.wait(name, "paid", timeout=TIMEOUT_S)])
        except WaitTimeoutError:
            heard.append([name, "nothing"])

    branches = [asyncio.create_task(listen(name)) for name in OPENS.values()]
    await self.wait("end", "end")
    for branch in branches:
        branch.cancel()
    return heard


def orders(always: str, others: str, most: int) -> Iterator[str]:
    """Every order of *always* together with at most so many of *others*; nothing is resumed before it is paused."""
    for count in range(most + 1):
        for chosen in itertools.combinations(others, count):
            for order in itertools.permutations(always + "".join(chosen)):
                script = "".join(order)
                if "R" not in script or -1 < script.find("P") < script.find("R"):
                    yield script


class Model:
    """What must be true after each happening."""

    def __init__(self) -> None:
        self.status = "running"
        self.now = 0
        self.events: list[tuple[str, int, int]] = []
        self.claims: dict[int, str] = {}
        self.deadlines: dict[str, int] = {}
        self.heard: list[list[object]] = []

    def act(self, letter: str, number: int) -> str:
        """Let it happen; gives the receipt of what is sent."""
        if letter in "SMFGE":
            return self._send(letter, number)
        if letter == "D":
            self.now += TIMEOUT_S
        elif self.status not in ("completed", "cancelled"):
            self.status = {"P": "paused", "R": "running", "K": "cancelled"}.get(letter, self.status)
        self._drive()
        return ""

    def _send(self, letter: str, number: int) -> str:
        if self.status in ("completed", "cancelled"):
            return "dropped"
        self.events.append((letter, number, self.now))
        self._drive()
        return "used" if number in self.claims and letter != "M" else "queued"

    def _drive(self) -> None:
        """Let be heard what has come, in the order of its time; a deadline before what comes in its moment."""
        while self.status == "running" and (heard := self._next()) is not None:
            number, wait = heard
            if number is not None:
                self.claims[number] = wait
            if wait == "end":
                self.status = "completed"
            elif wait.startswith("open-"):
                self.deadlines[wait.removeprefix("open-")] = self.now + TIMEOUT_S
            else:
                self._end(wait, "nothing" if number is None else number)

    def _next(self) -> tuple[int | None, str] | None:
        first = min(self.deadlines, key=self.deadlines.__getitem__, default="")
        deadline = self.deadlines.get(first, self.now + 1)
        for letter, number, sent_at in self.events:
            if deadline <= sent_at:
                break
            if number not in self.claims and (wait := self._wait_for(letter, sent_at)) is not None:
                return number, wait
        return (None, first) if deadline <= self.now else None

    def _wait_for(self, letter: str, sent_at: int) -> str | None:
        """The oldest wait that an event can still satisfy."""
        if letter == "E":
            return "end"
        if letter in OPENS:
            return f"open-{OPENS[letter]}"
        return next((name for name, deadline in self.deadlines.items() if sent_at < deadline), None)

    def _end(self, wait: str, heard: object) -> None:
        del self.deadlines[wait]
        self.heard.append([wait, heard])


class Actor:
    """One instance to which it happens, beside its model."""

    def __init__(self, engine: SimulatedEngine, client: Engine, script: str) -> None:
        self.script = script
        self.handle = engine.get(Listener, script)
        self._beside = client.get(Listener, script)
        self._model = Model()

    async def act(self, number: int, letter: str) -> None:
        expected = self._model.act(letter, number)
        receipt = await self._act(number, letter)
        assert receipt == expected, f"{self.script} at {number}"

    async def _act(self, number: int, letter: str) -> str:
        if letter in "SM":
            return await (self.handle if letter == "S" else self._beside).send("paid", number)
        if letter in "FGE":
            return await self.handle.send(f"open-{OPENS[letter]}" if letter in OPENS else "end", number)
        if letter == "P":
            await self.handle.pause()
        elif letter == "R" and await self.handle.status() == "paused":
            await self.handle.resume()
        elif letter == "K":
            await self.handle.cancel()
        return ""

    async def check(self) -> None:
        """The instance shows what the model says."""
        model, info = self._model, await self.handle.info()
        assert info.status == model.status, self.script
        shown = {event.payload: event.claimed_by for event in info.inbound_events}
        assert shown == {number: model.claims.get(number) for _, number, _ in model.events}, self.script
        waits = {step.id: step for step in await self.handle.steps() if isinstance(step, WaitStep)}
        satisfied = {step.payload: step.id for step in waits.values() if step.state == "satisfied"}
        assert satisfied == model.claims, self.script
        ends = [kind for kind in await lifecycle(self.handle) if kind in ("completed", "failed", "cancelled")]
        assert ends == [model.status][: model.status in ("completed", "cancelled")], self.script
        if model.status == "completed":
            assert await self.handle.result(timeout=5) == model.heard, self.script


async def play(scripts: Iterable[str]) -> int:
    """Do each script to an instance of its own, those with the same shared happenings in one engine."""
    played = 0
    for pattern, group in itertools.groupby(sorted(scripts, key=_shared), _shared):
        async with (
            SimulatedEngine([Listener]) as engine,
            Engine(engine.url, [Listener], execute=False) as client,
        ):
            client._effects = engine._effects  # The same clock.
            actors = [Actor(engine, client, script) for script in group]
            await asyncio.gather(*(actor.handle.create() for actor in actors))
            await engine.run_until_idle()
            # Whatever has happened, the last three lead to the end.
            for number, shared in enumerate(pattern + "-D-"):
                if shared == "D":
                    await engine.advance(TIMEOUT_S)
                elif shared == "X":
                    await engine.crash()
                letters = [(actor.script + "RDE")[number] for actor in actors]
                await asyncio.gather(*(actor.act(number, one) for actor, one in zip(actors, letters, strict=True)))
                await engine.run_until_idle()
            for actor in actors:
                await actor.check()
            played += len(actors)
    return played


def _shared(script: str) -> str:
    return "".join(letter if letter in SHARED else "-" for letter in script)
