"""Make a failing plan smaller: leave out whatever it fails without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan found by leaving out instances, faults, and what is asked, each alone, again and again."""
    smaller: Plan | None = plan
    while smaller is not None:
        plan = smaller
        smaller = next((candidate for candidate in _candidates(plan) if fails(candidate)), None)
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    half = len(plan.lives) // 2
    yield from (replace(plan, lives=lives) for lives in (plan.lives[:half], plan.lives[half:]) if lives and half)
    yield from (replace(plan, lives=lives) for lives in _without_one(plan.lives) if lives)
    yield from (replace(plan, faults=faults) for faults in _without_one(plan.faults))
    for index, life in enumerate(plan.lives):
        smaller = [replace(life, controls=controls) for controls in _without_one(life.controls)]
        # Without one of each event it would wait for ever, and without its creation it would not begin.
        smaller += [
            replace(life, asks=asks)
            for asks in _without_one(life.asks)
            if {ask[1:3] for ask in asks} == {ask[1:3] for ask in life.asks}
        ]
        for other in smaller:
            yield replace(plan, lives=(*plan.lives[:index], other, *plan.lives[index + 1 :]))
    if plan.always_replay:
        yield replace(plan, always_replay=False)


def _without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]
