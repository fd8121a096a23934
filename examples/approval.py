"""Approval: ask, remind, escalate. A wait with a deadline in a loop.

Run it with ``python -m examples.approval``. Five days pass on a virtual clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from workerflow import WaitTimeoutError, WorkflowDefinition
from workerflow.testing import SimulatedEngine

PATIENCE = timedelta(days=1)
REMINDERS = 2


@dataclass(frozen=True)
class Expense:
    """What is to be approved, by whom, and who decides if that person is silent."""

    purpose: str
    approver: str
    superior: str


@dataclass(frozen=True)
class Decision:
    """The payload of the event ``decision``, and the result."""

    is_approved: bool
    by: str


class Postbox:
    """The world outside: here a list instead of a mail server."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str, text: str) -> None:
        """Send a message. A plain function: it runs in a thread."""
        self.sent.append(f"{to}: {text}")


class Approval(WorkflowDefinition[Expense, Decision]):
    """Ask the approver, remind twice, then ask the superior, who may take as long as it takes."""

    postbox: ClassVar[Postbox] = Postbox()

    async def execute(self) -> Decision:
        expense = self.input
        await self.run("ask", self.postbox.send, expense.approver, f"please approve: {expense.purpose}")
        for number in range(REMINDERS + 1):
            try:
                # Each round is a step of its own, so each has an id of its own.
                return await self._decision(f"decision-{number}", PATIENCE)
            except WaitTimeoutError:
                if number < REMINDERS:
                    text = f"reminder {number + 1}: {expense.purpose}"
                    await self.run(f"remind-{number + 1}", self.postbox.send, expense.approver, text)
        await self.run("escalate", self.postbox.send, expense.superior, f"please decide: {expense.purpose}")
        return await self._decision("decision-of-superior", None)

    async def _decision(self, step_id: str, patience: timedelta | None) -> Decision:
        decision: Decision = await self.wait(step_id, "decision", Decision, timeout=patience)
        return decision


async def main() -> None:
    """Nobody answers for three days; then the superior does."""
    async with SimulatedEngine([Approval]) as engine:
        expense = engine.get(Approval, "expense-7")
        await expense.create(Expense("a new kettle", approver="Ada", superior="Grace"))
        await engine.advance(timedelta(days=4))
        await engine.crash()
        await expense.send("decision", Decision(is_approved=True, by="Grace"))
        print("result:", await expense.result(timeout=5))
        print(*Approval.postbox.sent, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
