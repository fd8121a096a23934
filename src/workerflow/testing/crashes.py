"""crash_everywhere: run a workflow, crash it at every commit, and see whether it ends the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, product
from typing import Any, Literal

from workerflow.codec import UNSET
from workerflow.core.model import TERMINAL
from workerflow.definition import WorkflowDefinition
from workerflow.errors import DefinitionError
from workerflow.runtime import WorkflowRuntime
from workerflow.testing.crashing import Moment, Point
from workerflow.testing.scenario import Run, Scenario

MOMENTS: dict[str, tuple[Moment, ...]] = {
    "before commit": ("before commit",),
    "after commit": ("after commit",),
    "both": ("before commit", "after commit"),
}
DIFFERENCES_SHOWN = 3
RECOVERY_COMMITS = 3
"""The commits of a recovery that are crashed, too: taking over, and what follows from it. Later ones are as before."""


@dataclass(frozen=True)
class Difference:
    """A crash, or a crash and one in its recovery, after which something was not as in the undisturbed run."""

    points: tuple[Point, ...]
    what: str

    def __str__(self) -> str:
        return f"crash {', then '.join(map(str, self.points))}: {self.what}"


@dataclass(frozen=True)
class CrashReport:
    """What ``crash_everywhere`` found.

    * ``commits``: commits of the undisturbed run; ``points``: crashes, and pairs of crashes, that were tried.
    * ``facts``: what the undisturbed run recorded: status, result, and the outcome of each step and event.
    * ``differences``: each crash after which that was not so. Empty: the workflow survives.
    * ``starts``: by step id, the most times that its callback was entered in one run. A step with more than one needs
      an effect that may happen again (idempotent), or ``at_most_once``.
    * ``seed``: repeats all of it.

    It may be awaited, for the looks of an async test; that gives the report itself.
    """

    seed: int
    commits: int
    points: int
    facts: dict[str, Any]
    differences: tuple[Difference, ...]
    starts: dict[str, int]

    @property
    def is_same(self) -> bool:
        """Whether the workflow ended the same after every crash."""
        return not self.differences

    @property
    def first_difference(self) -> Difference | None:
        """The first crash that mattered."""
        return next(iter(self.differences), None)

    def __await__(self) -> Generator[None, None, CrashReport]:
        yield from ()
        return self

    def __str__(self) -> str:
        lines = [f"{self.points} crashes at {self.commits} commits, seed {self.seed}: "]
        lines[0] += "the same every time" if self.is_same else f"{len(self.differences)} ended differently"
        lines += [f"  first: {self.first_difference}"] if self.differences else []
        lines += [f"  {step_id}: entered up to {times} times" for step_id, times in self.starts.items()]
        return "\n".join(lines)


def crash_everywhere(
    definition: type[WorkflowDefinition[Any, Any]] | type[WorkflowRuntime[Any, Any]],
    input: Any = UNSET,
    *,
    events: Sequence[tuple[Any, ...] | str] = (),
    at: Literal["before commit", "after commit", "both"] = "both",
    seed: int = 0,
    before_each: Callable[[], object] = lambda: None,
) -> CrashReport:
    """Run a workflow undisturbed, then once per commit with a crash there, and with a second crash in the recovery.

    Every run has a database, an event loop and a virtual clock of its own, restarts on that database after a crash,
    and goes on to the end; *before_each* is called before it, to reset what callbacks write to. *events* are names, or
    tuples of name, payload, and time after ``create()`` (seconds or a timedelta). A crash may come before an event is
    acknowledged: it is then sent again with the same id. *at* is the side of the commit: before it, all that the
    batch holds is lost; after it, all of it is durable and nothing else has happened. *seed* gives ids, jitter and
    ``self.random``.

    Callbacks are called for real. Where a real crash would just stop them, this one cancels those in flight, and a
    plain function in its thread goes on to its end, unheard. It blocks, and works in a thread of its own, so it may be
    called where a loop runs.

    Raises DefinitionError when the undisturbed run does not end, or does not end the same twice.

    >>> from workerflow import WorkflowDefinition
    >>> async def charge() -> str:
    ...     return "paid"
    >>> class Payment(WorkflowDefinition[None, str]):
    ...     async def execute(self) -> str:
    ...         paid = await self.run("charge", charge)
    ...         return paid + await self.wait("address", "address", str)
    >>> report = crash_everywhere(Payment, events=[("address", " in Rome", 60)])
    >>> report.is_same, report.starts["charge"] > 1
    (True, True)
    """
    if at not in MOMENTS:
        raise DefinitionError(f"at={at!r} is not known; it is one of {', '.join(map(repr, MOMENTS))}")
    scenario = Scenario(definition, input, events, seed, before_each)
    with ThreadPoolExecutor(1, thread_name_prefix="workerflow-crashes") as thread:
        return thread.submit(_sweep, scenario, MOMENTS[at], seed).result()


def _sweep(scenario: Scenario, moments: tuple[Moment, ...], seed: int) -> CrashReport:
    undisturbed = _undisturbed(scenario)
    commits = 0
    points = 0
    differences = []
    starts = Counter(undisturbed.starts)
    for crashes, run in _runs(scenario, moments):
        points += 1
        commits = max(commits, crashes[0].number)
        starts |= run.starts
        what = _difference(undisturbed.facts, run.facts)
        if what is not None:
            differences.append(Difference(crashes, what))
    return CrashReport(seed, commits, points, undisturbed.facts, tuple(differences), dict(sorted(starts.items())))


def _runs(scenario: Scenario, moments: tuple[Moment, ...]) -> Iterator[tuple[tuple[Point, ...], Run]]:
    """Every run that reached its crashes, those with one before those with two: the first difference is a simple one.

    They are not counted beforehand: how many commits there are varies.
    """
    firsts = []
    for moment in moments:
        for number in count(1):
            first = Point(moment, number)
            run = scenario.run(first)
            if run.missed:
                break
            firsts.append(first)
            yield (first,), run
    seconds = [Point(moment, number) for moment in moments for number in range(1, RECOVERY_COMMITS + 1)]
    for points in product(firsts, seconds):
        run = scenario.run(*points)
        if not run.missed:
            yield points, run


def _undisturbed(scenario: Scenario) -> Run:
    first, second = scenario.run(), scenario.run()
    if first.facts["status"] not in TERMINAL:
        open_steps = [f"{name} is {state}" for name, state in first.facts.items() if name.startswith("step")]
        raise DefinitionError(
            f"the workflow does not end, it is {first.facts['status']} ({', '.join(open_steps) or 'without a step'}); "
            "give what it waits for in events="
        )
    what = _difference(first.facts, second.facts)
    if what is not None:
        raise DefinitionError(
            f"two undisturbed runs do not end the same, so crashes cannot be judged: {what}; let callbacks return the "
            "same for the same arguments, and reset in before_each what they write to"
        )
    return first


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    differing = [name for name in expected | found if expected.get(name) != found.get(name)]
    return (
        "; ".join(
            f"{name} is {found.get(name)!r}, undisturbed it is {expected.get(name)!r}"
            for name in differing[:DIFFERENCES_SHOWN]
        )
        or None
    )
