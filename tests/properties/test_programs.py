"""Whatever a workflow is made of and however it is cut, it comes to the same end on the same way."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.properties.programs import LEAVES, TOP_LEAVES, Program, programs
from tests.properties.runs import MODES, Run
from tests.support import async_test, definition, started
from workerflow.testing.crashing import Point

# An attempt that a crash cuts off counts and waits for its retry, so a program with limits or pauses ends otherwise;
# and an instance whose creation is lost has other random numbers when it is created again.
CRASHABLE = [*(leaf for leaf in LEAVES if leaf not in ("flaky", "exhausts")), "quick_flaky", "until", "clock"]


@examples(40)
@given(programs(is_ordered=True, leaves=[*LEAVES, *TOP_LEAVES]))
def test_replaying_always_or_hibernating_at_once_changes_nothing_that_is_recorded(program: Program) -> None:
    live = Run(program, "live").play()
    assert live.record.instance[0][:3] in [("completed", None, None), ("failed", None, None)]
    for mode in ("replaying", "hibernating"):
        other = Run(program, mode).play()
        assert other.interpreter.broken == []
        assert other.record == live.record


@examples(40)
@given(programs(is_ordered=True, leaves=CRASHABLE), st.sampled_from([*MODES]), st.data())
def test_a_crash_at_any_commit_and_again_in_the_recovery_changes_nothing_but_adds_interrupted_attempts(
    program: Program, mode: str, data: st.DataObject
) -> None:
    whole = Run(program, mode).play()
    points = crash_points(data, whole.commits)
    crashed = Run(program, mode, points).play()
    assert crashed.interpreter.broken == []
    assert crashed.record.without_interruptions() == whole.record.without_interruptions()


@examples(40)
@given(
    programs(is_ordered=False, leaves=[*CRASHABLE, "flaky", "random"]),
    st.sampled_from([*MODES]),
    st.data(),
)
def test_what_a_body_has_seen_it_sees_again_also_when_much_happens_at_once(
    program: Program, mode: str, data: st.DataObject
) -> None:
    whole = Run(program, mode).play()
    crashed = Run(program, mode, crash_points(data, whole.commits)).play()
    for run in (whole, crashed):
        assert run.interpreter.broken == []
        assert run.record.instance[0][:3] in [("completed", None, None), ("failed", None, None)]


def crash_points(data: st.DataObject, commits: int) -> list[Point]:
    """A commit of the first run, and perhaps others of the recovery.

    How many commits there are may depend on the speed of threads, so what is drawn must not.
    """
    moments: st.SearchStrategy[Any] = st.sampled_from(["before commit", "after commit"])
    first = Point(data.draw(moments), 1 + data.draw(st.integers(0, 999)) * commits // 1000)
    later = st.builds(Point, moments, st.integers(1, 4))
    return [first, *data.draw(st.lists(later, max_size=2))]


@async_test
async def test_as_completed_begins_its_coroutines_in_the_same_order_on_every_replay() -> None:
    def echo(drawn: float) -> float:
        return drawn

    @definition
    async def Drawing(self: Any) -> Any:
        async def draw(number: int) -> list[float]:
            drawn = self.random.random()
            return [drawn, await self.run(f"step-{number}", echo, drawn)]

        pairs = [await found for found in asyncio.as_completed([draw(number) for number in range(8)])]
        await self.wait("end", "end")
        return pairs

    async with started(Drawing) as (engine, handle):
        await engine.crash()
        await handle.send("end")
        pairs = await handle.result(timeout=5)
        assert [drawn for drawn, _ in pairs] == [recorded for _, recorded in pairs]
