"""Races: whoever is first wins, and goes on to have won."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from tests.bodies import AWAKE, Traces, next_turn
from tests.support import async_test, definition, started

NAMES = ("a", "b", "c")


# A replay after each of 500 races would take half a minute and show no more than one after each of 50.
@pytest.mark.parametrize(
    ("races", "options"),
    [pytest.param(500, {"always_replay": False}, marks=pytest.mark.slow), (50, {})],
    ids=["500", "50"],
)
@async_test
async def test_of_hundreds_of_races_in_one_run_each_is_won_by_the_first_to_end_also_on_replay(
    races: int, options: dict[str, Any]
) -> None:
    chosen = random.Random(28)
    turns = [dict(zip(NAMES, chosen.sample(range(6), 3), strict=True)) for _ in range(races)]
    first_to_end: dict[int, str] = {}
    traces = Traces()

    async def call(race: int, name: str) -> str:
        for _ in range(turns[race][name]):
            await next_turn()
        first_to_end.setdefault(race, name)
        return name

    @definition
    async def Races(self: Any) -> list[str]:
        note, winners = traces.begin(), []
        left: list[asyncio.Future[str]] = []
        for race in range(races):
            runners = {self.run(f"{name}-{race}", call, race, name) for name in NAMES}
            (winner,), losers = await asyncio.wait(runners, return_when=asyncio.FIRST_COMPLETED)
            winners.append(winner.result())
            note(winner.result())
            if race % 5 == 0:
                for loser in losers:
                    loser.cancel()
            else:
                # Their outcomes are recorded too: a replay must not take one of them for the first.
                left += losers
        await asyncio.gather(*left)
        await self.wait("end", "end")
        return winners

    async with started(Races, settings=AWAKE, **options) as (engine, handle):
        expected = [first_to_end[race] for race in range(races)]
        assert min(Counter(expected).values()) > races / 6
        for _ in range(2):
            await engine.crash()
        await handle.send("end")
        assert await handle.result(timeout=10) == expected

    assert len(traces.bodies) >= 3
    for winners in traces.bodies:
        assert winners == expected[: len(winners)]
    assert traces.bodies[-1] == expected
