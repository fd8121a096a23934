"""Agent: a model and its tools in a loop, each call a durable step.

Run it with ``python -m examples.agent``. The model is a small function of this file, so the example needs no network;
what matters is where it stands. After a crash no call whose answer is recorded is made, or paid for, again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from workerflow import NonRetryableStepError, RetryPolicy, WorkflowDefinition
from workerflow.testing import SimulatedEngine

TURNS_MAX = 10
"""A model may go round in circles; the loop may not."""
PATIENT = RetryPolicy(max_attempts=5, jitter=0.2)
PRICES = {"kettle": 45, "teapot": 30}
TOOLS: dict[str, Callable[[str], str]] = {
    "price": lambda item: str(PRICES[item]),
    "add": lambda numbers: str(sum(int(number) for number in numbers.split("+"))),
}


@dataclass(frozen=True)
class Turn:
    """What the model says: a tool to call with an argument, or the answer."""

    tool: str | None = None
    argument: str = ""
    answer: str | None = None


class Model:
    """A deterministic stand-in for a language model: it asks for both prices, adds them up, and answers."""

    def __init__(self) -> None:
        self.call_count = 0

    async def think(self, question: str, results: list[str]) -> Turn:
        """Give the next turn, from the question and what the tools have said so far."""
        self.call_count += 1
        if len(results) < len(PRICES):
            return Turn("price", sorted(PRICES)[len(results)])
        if len(results) == len(PRICES):
            return Turn("add", "+".join(results))
        return Turn(answer=f"{question} {results[-1]}")


def use_tool(name: str | None, argument: str) -> str:
    """Call a tool. A model that asks for one that does not exist would do so again: no retry."""
    if name not in TOOLS:
        raise NonRetryableStepError(f"there is no tool {name!r}")
    return TOOLS[name](argument)


class Agent(WorkflowDefinition[str, str]):
    """Let the model use tools until it has an answer."""

    model: ClassVar[Model] = Model()

    async def execute(self) -> str:
        results: list[str] = []
        for number in range(TURNS_MAX):
            # A model is slow and fails now and then: a timeout for each attempt, and more attempts than usual.
            turn = await self.run(f"think-{number}", self.model.think, self.input, results, timeout=60, retry=PATIENT)
            if turn.answer is not None:
                return turn.answer
            results.append(await self.run(f"tool-{number}", use_tool, turn.tool, turn.argument))
        raise RuntimeError(f"no answer after {TURNS_MAX} turns")


async def main() -> None:
    """Ask for a sum."""
    async with SimulatedEngine([Agent]) as engine:
        agent = engine.get(Agent, "question-1")
        await agent.create("kettle and teapot?")
        print("result:", await agent.result(timeout=5))
        print("steps:", ", ".join(step.id for step in await agent.steps()))


if __name__ == "__main__":
    asyncio.run(main())
