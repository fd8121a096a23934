"""Run a seed: a quiet day for what must come of it, the run itself, and a replay of the journals that it leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.simulation.clock import StuckError
from tests.simulation.judge import fingerprint, judge, outcomes, sure_outcomes
from tests.simulation.plan import AT_COMMIT, AT_ONCE, Plan
from tests.simulation.world import World, in_folder
from workerflow import WorkflowError

VERBS = ("create", "send", "pause", "resume", "cancel")
REACHABLE = (
    *AT_COMMIT,
    *AT_ONCE,
    *(f"unreachable: {what}" for what in ("commit", "recover", "read", "send", "open")),
    *(f"busy: {what}" for what in ("commit", "send", "open")),
    "slow: commit",
    *(f"{verb} {way}" for verb in VERBS for way in ("directly", "by mail")),
    *(f"{verb} refused" for verb in VERBS),
    "event without an id",
    "event that is repeated",
    "callback cut",
    "hibernating at a death",
    "start that fails",
)
"""What a long run must have met: a fault that never comes looks as if all was well."""


def repeat(seed: int) -> str:
    """How to see the run of a seed again."""
    return f"seed {seed}; to repeat it: python -m tests.simulation --seed {seed}"


@dataclass
class Verdict:
    """What came of a plan. ``broken`` is empty when all was well."""

    broken: list[str]
    fingerprint: str
    reached: Counter[str]
    lines: list[tuple[Any, ...]]


def run(plan: Plan) -> Verdict:
    expected = {}
    if plan.sure:
        with in_folder(plan.undisturbed()) as quiet:
            _play(quiet)
            if quiet.broken:
                return Verdict([f"on a quiet day: {line}" for line in quiet.broken], "", quiet.reached, quiet.log.lines)
            expected = sure_outcomes(quiet)
    with in_folder(plan) as world:
        _play(world)
        if not world.broken:
            judge(world, expected)
        found = fingerprint(world)
        if not world.broken:
            _replay(world)
        return Verdict(world.broken, found, world.reached, world.log.lines)


def _play(world: World) -> None:
    with asyncio.Runner(loop_factory=world.loop) as runner:
        try:
            runner.run(world.live())
        except StuckError as error:
            world.log.broken.append(f"{error}: {world.open_ends()}")
        except WorkflowError as error:  # Somebody got an answer that no careful caller expects.
            world.log.broken.append(f"{type(error).__name__}: {error}")


def _replay(world: World) -> None:
    """A fresh engine on the same journals comes to the same, and calls nothing again."""
    before = outcomes(world)
    entered = world.log.entered.copy()
    world.reopen()
    with asyncio.Runner(loop_factory=world.loop) as runner:
        try:
            runner.run(world.live_again())
        except StuckError as error:
            world.log.broken.append(f"in the replay: {error}: {world.open_ends()}")
    after = outcomes(world)
    for id, outcome in before.items():
        world.log.check(after[id] == outcome, f"the journal of {id} comes to {after[id]} instead of {outcome}")
    world.log.check(world.log.entered == entered, f"a replay calls {world.log.entered - entered}")
