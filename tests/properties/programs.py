"""Random workflows: a tree of operations, one definition that interprets any of them, and what a run of it records.

In an *ordered* program no two timers or events ever come at the same moment, so that at any moment one strand of it
moves and what it comes to is the same however it is run. In a free one they tie all the time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

from workerflow import (
    NonRetryableStepError,
    RetryPolicy,
    WaitTimeoutError,
    WorkflowDefinition,
    current_attempt,
)

SLOTS_MAX = 22
"""Each timer has a slot: four times the one before, so that no two sums of them are equal. 4^22 ms are 557 years."""
ALWAYS = RetryPolicy(max_attempts=1000, initial=0)

LEAVES = [
    "run",
    "thread",
    "nothing",
    "flaky",
    "fails",
    "exhausts",
    "sleep",
    "wait",
    "queued",
    "shared",
    "late",
    "overdue",
]
TOP_LEAVES = ["until", "clock", "random"]
NESTED_BRANCHES = ["sequence", "collect", "catch", "nested"]
TOP_BRANCHES = ["gather", "group", "race", "as_completed", "timeout", "cancel"]


class Node(NamedTuple):
    """One operation and what is inside it."""

    kind: str
    parts: tuple[Any, ...] = ()

    def walk(self, path: str = "1") -> Iterator[tuple[str, Node]]:
        """Every operation with its id."""
        yield path, self
        for number, part in enumerate(self.parts):
            yield from part.walk(f"{path}.{number}")


class Program(NamedTuple):
    """A tree, and the order in which its timers are dealt out; None in a free program, where they are all short."""

    root: Node
    order: int | None

    def timers(self) -> list[str]:
        """What needs a moment of its own."""
        return [name for path, node in self.root.walk() for name in _timers_of(path, node)]

    def spans(self) -> dict[str, timedelta]:
        """How long each timer takes. In an ordered program they are even milliseconds; events come at odd ones."""
        names = self.timers()
        if self.order is None:
            return {name: timedelta(seconds=len(name) * 7 % 3) for name in names}
        random.Random(self.order).shuffle(names)
        return {name: timedelta(milliseconds=2 * 4**slot) for slot, name in enumerate(names)}

    def in_callbacks(self) -> set[str]:
        """What is done inside a callback."""
        parents = [f"{path}." for path, node in self.root.walk() if node.kind == "nested"]
        return {path for path, _ in self.root.walk() if path.startswith(tuple(parents))}

    def events(self) -> list[tuple[timedelta, str]]:
        """When which event is sent, after the start; None of them twice."""
        spans, odd = self.spans(), timedelta(milliseconds=self.order is not None)
        found = [(timedelta(0), path) for path, node in self.root.walk() if node.kind == "queued"]
        found += [(spans[path] + odd, path) for path, node in self.root.walk() if node.kind == "wait"]
        found += [(spans[name] + odd, "shared") for name in spans if name.startswith("event")]
        return sorted(found)


def _timers_of(path: str, node: Node) -> list[str]:
    if node.kind in ("gather", "group", "race", "as_completed", "collect"):
        return [f"{path}-start-{number}" for number in range(1, len(node.parts))]
    if node.kind == "shared":
        return [path, f"event-{path}"]
    is_timed = node.kind in ("sleep", "until", "wait", "late", "overdue", "timeout", "cancel", "flaky")
    return [path] if is_timed else []


def trees(leaves: list[str], branches: list[str], max_leaves: int) -> st.SearchStrategy[Node]:
    """Trees of these operations. What is in a nested callback is of the kinds that a callback may do."""

    def node(kinds: list[str], parts: st.SearchStrategy[Node], most: int) -> st.SearchStrategy[Node]:
        return st.builds(Node, st.sampled_from(kinds), st.lists(parts, min_size=1, max_size=most).map(tuple))

    inside = [kind for kind in leaves if kind not in TOP_LEAVES]
    nested = st.recursive(
        st.sampled_from(inside).map(Node), lambda parts: node(NESTED_BRANCHES, parts, 2), max_leaves=3
    )
    top = st.sampled_from(leaves).map(Node) | node(["nested"], nested, 2)
    return st.recursive(top, lambda parts: node([*branches, *branches, "sequence"], parts, 3), max_leaves=max_leaves)


def programs(*, is_ordered: bool, leaves: list[str], max_leaves: int = 8) -> st.SearchStrategy[Program]:
    """Programs of these leaves and every branch."""
    branches = ["sequence", "collect", "catch", *TOP_BRANCHES]
    roots = trees(leaves, branches, max_leaves)
    order = st.integers(0, 10**6) if is_ordered else st.none()
    made = st.builds(Program, roots, order)
    return made.filter(lambda program: len(program.timers()) <= SLOTS_MAX) if is_ordered else made


def described(outcome: Any) -> Any:
    """A result or an error as plain data."""
    if isinstance(outcome, BaseExceptionGroup):
        return [type(outcome).__name__, *map(described, outcome.exceptions)]
    if isinstance(outcome, NonRetryableStepError):
        return ["NonRetryableStepError", outcome.message, outcome.data]
    if isinstance(outcome, BaseException):
        return [type(outcome).__name__]
    return outcome


class Interpreter:
    """Runs a program with the verbs of a definition, and watches what its callbacks and its races do.

    ``failures`` gives how often a step's callback is recorded to have raised; ``broken`` says what must not happen.
    """

    def __init__(self, program: Program, failures: Callable[[str], int]) -> None:
        self.program = program
        self.broken: list[str] = []
        self.entered: Counter[str] = Counter()
        self.recorded: set[str] = set()
        self._spans = program.spans()
        self._in_callbacks = program.in_callbacks()
        self._failures = failures
        self._running: set[str] = set()

    def definition(self) -> type[WorkflowDefinition[Any, Any]]:
        interpreter = self

        class Random(WorkflowDefinition[None, Any]):
            trace: list[str]

            async def execute(self) -> Any:
                self.trace = []
                return [await interpreter._do(self, interpreter.program.root, "1"), self.trace]

        return Random

    async def _do(self, flow: Any, node: Node, path: str) -> Any:
        do = getattr(self, f"_{node.kind}")
        try:
            return await (do(flow, node, path) if node.parts else do(flow, path))
        finally:
            # The order in which callbacks move is not promised, only that of the body.
            if path not in self._in_callbacks:
                flow.trace.append(path)

    def _enter(self) -> str:
        path = current_attempt().step_id
        self.entered[path] += 1
        if path in self.recorded:
            self.broken.append(f"{path} is called again although its outcome is stored")
        return path

    async def _effect(self) -> str:
        return self._enter()

    def _plain_effect(self) -> str:
        return self._enter()

    async def _no_result(self) -> None:
        self._enter()

    async def _failing(self, times: int) -> str:
        path = self._enter()
        if self._failures(path) < times:
            raise ValueError(f"{path} is not ready")
        return path

    async def _refusing(self) -> str:
        path = self._enter()
        raise NonRetryableStepError(path, {"path": path})

    # Leaves.

    async def _run(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._effect, retry=ALWAYS)

    async def _thread(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._plain_effect, retry=ALWAYS)

    async def _nothing(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._no_result, retry=ALWAYS)

    async def _flaky(self, flow: Any, path: str) -> Any:
        pause = RetryPolicy(max_attempts=1000, initial=self._spans[path], maximum=timedelta(days=10**6))
        return await flow.run(path, self._failing, 1, retry=pause)

    async def _quick_flaky(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._failing, 2, retry=ALWAYS)

    async def _fails(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._refusing, retry=ALWAYS)

    async def _exhausts(self, flow: Any, path: str) -> Any:
        return await flow.run(path, self._failing, 1000, retry=RetryPolicy(max_attempts=2, initial=0))

    async def _sleep(self, flow: Any, path: str) -> Any:
        await flow.sleep(path, self._spans[path])

    async def _until(self, flow: Any, path: str) -> Any:
        await flow.sleep_until(path, flow.now() + self._spans[path])

    async def _wait(self, flow: Any, path: str) -> Any:
        return await flow.wait(path, path, str)

    _queued = _wait

    async def _shared(self, flow: Any, path: str) -> Any:
        try:
            return await flow.wait(path, "shared", timeout=self._spans[path])
        except WaitTimeoutError:
            return "none for me"

    async def _late(self, flow: Any, path: str) -> Any:
        try:
            return await flow.wait(path, "never", timeout=self._spans[path])
        except TimeoutError as error:
            return str(error)

    async def _overdue(self, flow: Any, path: str) -> Any:
        return await flow.wait(path, "never", timeout=self._spans[path])

    async def _clock(self, flow: Any, path: str) -> Any:
        return flow.now().isoformat()

    async def _random(self, flow: Any, path: str) -> Any:
        return await self._seen(flow, path, [flow.random.random(), str(flow.uuid())])

    # Branches.

    async def _sequence(self, flow: Any, node: Node, path: str) -> Any:
        return [await self._do(flow, part, f"{path}.{number}") for number, part in enumerate(node.parts)]

    def _strands(self, flow: Any, node: Node, path: str) -> list[Any]:
        """The parts, to be awaited together; all but the first begin at a moment of their own."""

        async def strand(number: int) -> Any:
            if number > 0:
                await flow.sleep(f"{path}-start-{number}", self._spans[f"{path}-start-{number}"])
            return await self._do(flow, node.parts[number], f"{path}.{number}")

        return [strand(number) for number in range(len(node.parts))]

    async def _gather(self, flow: Any, node: Node, path: str) -> Any:
        return await asyncio.gather(*self._strands(flow, node, path))

    async def _collect(self, flow: Any, node: Node, path: str) -> Any:
        return list(map(described, await asyncio.gather(*self._strands(flow, node, path), return_exceptions=True)))

    async def _group(self, flow: Any, node: Node, path: str) -> Any:
        tasks: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(strand) for strand in self._strands(flow, node, path)]
        except ExceptionGroup as errors:
            return described(errors)
        return [task.result() for task in tasks]

    async def _race(self, flow: Any, node: Node, path: str) -> Any:
        tasks = [asyncio.ensure_future(strand) for strand in self._strands(flow, node, path)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winners = [number for number, task in enumerate(tasks) if task.done()]
        finally:
            for task in tasks:
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return await self._seen(flow, path, [winners, *map(described, outcomes)])

    async def _as_completed(self, flow: Any, node: Node, path: str) -> Any:
        found = []
        tasks = [asyncio.ensure_future(strand) for strand in self._strands(flow, node, path)]
        for strand in asyncio.as_completed(tasks):
            try:
                found.append(await strand)
            except Exception as error:
                found.append(described(error))
        return await self._seen(flow, path, found)

    async def _catch(self, flow: Any, node: Node, path: str) -> Any:
        try:
            return await self._sequence(flow, node, path)
        except Exception as error:
            return ["caught", described(error), await self._run(flow, f"{path}-remedy")]

    async def _timeout(self, flow: Any, node: Node, path: str) -> Any:
        try:
            async with flow.timeout(path, self._spans[path]):
                return await self._seen(flow, f"{path}-in-time", await self._sequence(flow, node, path))
        except TimeoutError as error:
            return await self._seen(flow, path, [type(error).__name__])

    async def _cancel(self, flow: Any, node: Node, path: str) -> Any:
        task = asyncio.ensure_future(self._sequence(flow, node, path))
        await flow.sleep(path, self._spans[path])
        task.cancel("enough")
        outcomes = await asyncio.gather(task, return_exceptions=True)
        return await self._seen(flow, path, described(outcomes[0]))

    async def _nested(self, flow: Any, node: Node, path: str) -> Any:
        async def nested() -> Any:
            self._enter()
            return await self._sequence(flow, node, path)

        return await flow.run(path, nested, retry=ALWAYS)

    async def _seen(self, flow: Any, path: str, found: Any) -> Any:
        """What the body has seen is recorded once; a body that is replayed must have seen the same."""
        seen = [found, *flow.trace]

        def echo() -> Any:
            return seen

        recorded = await flow.run(f"{path}-seen", echo, retry=ALWAYS)
        if recorded != seen:
            self.broken.append(f"{path} has seen {recorded}, and in a replay {seen}")
        return found
