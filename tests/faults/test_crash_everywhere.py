"""crash_everywhere: what it reports of a workflow, and that it finds what is wrong with one."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.support import async_test, definition, run
from workerflow import DefinitionError, NonRetryableStepError, RetryPolicy, WorkflowRuntime, current_attempt
from workerflow.testing import SimulatedEngine, crash_everywhere

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


async def echo(value: str) -> str:
    return value


@definition
async def EveryPrimitive(self: Any) -> str:
    async def outer() -> str:
        return str(await self.run("inner", echo, "inner"))

    parts = [await self.run("first", echo, "first"), await self.run("outer", outer)]
    await self.sleep("pause", HOUR)
    try:
        await self.wait("never", "never", timeout=HOUR)
    except TimeoutError:
        parts.append(await self.wait("go", "go", str))
    return "+".join(parts)


class Telling(WorkflowRuntime[Any, Any]):
    definition = EveryPrimitive
    name = "Telling"

    async def completion(self, event: Any) -> None:
        pass


@pytest.mark.parametrize("at", ["before commit", "after commit", "both"])
def test_a_workflow_of_every_primitive_ends_the_same_after_each_crash(at: Any) -> None:
    report = crash_everywhere(EveryPrimitive, events=[("go", "went", 3 * HOUR)], at=at)

    assert report.differences == ()
    assert report.facts["result"] == '"first+inner+went"'
    assert report.facts["step 'never'"] == "timed_out"
    assert report.points > 3 * report.commits
    assert set(report.starts) == {"first", "outer", "inner"}


def test_every_commit_is_crashed_on_both_sides() -> None:
    crashed: list[str] = []

    async def commits_of_an_undisturbed_run() -> int:
        async with SimulatedEngine([EveryPrimitive]) as engine:
            store = engine._require_store()
            commit = store.commit

            def counting(*arguments: Any, **options: Any) -> None:
                crashed.append("a commit")
                commit(*arguments, **options)

            store.commit = counting  # type: ignore[method-assign]
            handle = engine.get(EveryPrimitive, "crash-everywhere")
            await handle.create()
            await engine.advance(3 * HOUR)
            await handle.send("go", "went")
            await engine.run_until_idle()
        return len(crashed)

    commits = run(commits_of_an_undisturbed_run)

    before = crash_everywhere(EveryPrimitive, events=[("go", "went", 3 * HOUR)], at="before commit")
    after = crash_everywhere(EveryPrimitive, events=[("go", "went", 3 * HOUR)], at="after commit")

    assert (before.commits, after.commits) == (commits, commits)


def test_a_crash_while_a_completion_is_delivered_changes_nothing() -> None:
    events = [("go", "went", 3 * HOUR)]
    told, untold = (
        crash_everywhere(workflow, events=events, at="before commit") for workflow in (Telling, EveryPrimitive)
    )

    assert told.is_same
    assert told.commits > untold.commits


@pytest.mark.normal_only("it counts the entries of execute()")
def test_a_result_that_depends_on_what_is_not_recorded_is_found_with_its_point() -> None:
    bodies: list[int] = []

    @definition
    async def Counting(self: Any) -> int:
        bodies.append(1)
        await self.run("step", echo, "x")
        return len(bodies)

    report = crash_everywhere(Counting, at="after commit", before_each=bodies.clear)

    assert not report.is_same
    assert str(report.first_difference) == "crash after commit 1: result is '2', undisturbed it is '1'"
    assert "seed 0" in str(report)


@pytest.mark.normal_only("in the other modes it never works, also undisturbed")
def test_a_callback_that_writes_to_its_definition_is_found() -> None:
    @definition
    async def Writing(self: Any) -> int:
        self.total = 0

        async def add() -> None:
            self.total += 1

        await self.run("add", add)
        await self.sleep("later", 1)
        return int(self.total)

    assert not crash_everywhere(Writing).is_same


def test_a_step_that_may_start_once_only_fails_when_it_is_cut() -> None:
    @definition
    async def Once(self: Any) -> None:
        await self.run("once", echo, "x", at_most_once=True)

    report = crash_everywhere(Once)

    assert report.starts == {"once": 1}
    assert report.first_difference is not None
    assert "interrupted" in str(report.first_difference)


@pytest.mark.normal_only("which commits a recovery has depends on the mode")
def test_starts_are_the_most_of_any_run_with_two_crashes() -> None:
    calls = Counter[str]()
    most = Counter[str]()

    async def called() -> None:
        calls["step"] += 1

    def before_each() -> None:
        most.update({"step": max(0, calls["step"] - most["step"])})
        calls.clear()

    @definition
    async def Stepping(self: Any) -> None:
        await self.run("step", called)

    report = crash_everywhere(Stepping, before_each=before_each)

    assert report.starts == {"step": most["step"]} == {"step": 3}


def test_events_come_at_their_times_and_each_once() -> None:
    @definition
    async def Listening(self: Any) -> list[Any]:
        began = self.now()
        heard = []
        for number in range(3):
            value = await self.wait(f"wait-{number}", "tick", int)
            heard.append([value, (self.now() - began) // HOUR])
        return heard

    report = crash_everywhere(Listening, events=[("tick", 2, 2 * HOUR), ("tick", 0), ("tick", 1, HOUR)])

    assert report.is_same
    assert report.facts["result"] == "[[0,0],[1,1],[2,2]]"


def test_a_workflow_that_fails_must_fail_the_same() -> None:
    @definition
    async def Failing(self: Any) -> None:
        async def refuse() -> None:
            raise NonRetryableStepError("no")

        await self.run("refuse", refuse)

    report = crash_everywhere(Failing)

    assert report.is_same
    assert report.facts["failure"] == "no"


def test_the_same_seed_gives_the_same_identifiers_and_another_seed_others() -> None:
    @definition
    async def Drawing(self: Any) -> list[Any]:
        await self.run("step", echo, "x")
        return [str(self.uuid()), self.random.random()]

    one, again, other = (crash_everywhere(Drawing, seed=seed, at="after commit") for seed in (1, 1, 2))

    assert one.is_same
    assert one == again
    assert one.facts["result"] != other.facts["result"]


def test_a_workflow_that_waits_for_ever_is_refused_with_what_it_waits_for() -> None:
    @definition
    async def Waiting(self: Any) -> None:
        await self.wait("approval", "approved")

    with pytest.raises(DefinitionError, match=r"does not end.*step 'approval' is waiting.*events="):
        crash_everywhere(Waiting)


def test_a_workflow_that_no_two_runs_of_end_the_same_is_refused() -> None:
    generator = random.Random(0)

    async def draw() -> float:
        return generator.random()

    @definition
    async def Rolling(self: Any) -> float:
        return float(await self.run("draw", draw))

    with pytest.raises(DefinitionError, match="two undisturbed runs do not end the same"):
        crash_everywhere(Rolling)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"at": "commit"}, "at='commit' is not known"),
        ({"events": [("go", 1, -1)]}, "time of event 'go'"),
        ({"events": [("go", 1, 0, 0)]}, r"event \('go', 1, 0, 0\)"),
        ({"events": [7]}, "event 7"),
        ({"events": "go"}, "events='go'"),
    ],
    ids=["side", "negative-time", "four-parts", "number", "text"],
)
def test_bad_options_are_refused_at_the_call(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        crash_everywhere(EveryPrimitive, **options)


@async_test
async def test_it_may_be_called_and_awaited_where_a_loop_runs() -> None:
    @definition
    async def Short(self: Any) -> str:
        return str(await self.run("step", echo, "x"))

    report = await crash_everywhere(Short)

    assert report.is_same


def test_retries_continue_after_each_crash() -> None:
    @definition
    async def Retrying(self: Any) -> str:
        async def flaky() -> str:
            if current_attempt().number < 3:
                raise ValueError("not yet")
            return "done"

        return str(await self.run("flaky", flaky, retry=RetryPolicy(max_attempts=10)))

    assert crash_everywhere(Retrying).is_same


def test_the_fixture_fails_the_test_with_the_report_and_the_marker_gives_its_options(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from workerflow import WorkflowDefinition

        bodies = []

        class Counting(WorkflowDefinition[None, int]):
            async def execute(self) -> int:
                bodies.append(1)
                await self.sleep("sleep", 1)
                return len(bodies)

        class Quiet(WorkflowDefinition[None, None]):
            async def execute(self) -> None:
                await self.sleep("sleep", 1)

        @pytest.mark.crash_everywhere(seed=41, before_each=bodies.clear)
        def test_counting(crash_everywhere):
            crash_everywhere(Counting)

        def test_quiet(crash_everywhere):
            assert crash_everywhere(Quiet).is_same
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*commits, seed 41: *ended differently*", "*first: crash *result is*"])
