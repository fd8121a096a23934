"""Saga: when a step fails for good, undo what was begun, the last first.

Run it with ``python -m examples.saga``. The error that a step raises is the same on the first execution and on every
replay, so ``try`` and ``except`` do what they say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from workerflow import MaxAttemptsExceededError, NonRetryableStepError, RetryPolicy, WorkflowDefinition
from workerflow.testing import SimulatedEngine

UNTIL_DONE = RetryPolicy(max_attempts=None)
"""An undo must not be given up: it is tried until it succeeds."""


@dataclass(frozen=True)
class Trip:
    """What was booked. *problem* says why, when that is nothing."""

    bookings: list[str]
    problem: str | None = None


class Agency:
    """The world outside: one thing is sold out, and the first cancellation meets a busy line."""

    def __init__(self, sold_out: str) -> None:
        self.sold_out = sold_out
        self.is_busy = True
        self.journal: list[str] = []

    async def book(self, what: str) -> str:
        """Book one thing and give its reference."""
        if what == self.sold_out:
            raise NonRetryableStepError(f"no {what} left", {"what": what})
        self.journal.append(f"book {what}")
        return f"{what}-1"

    async def cancel(self, what: str) -> None:
        """Cancel a booking, if there is one; a second time does no harm."""
        if self.is_busy:
            self.is_busy = False
            raise ConnectionError("the line is busy")
        self.journal.append(f"cancel {what}")


class Travel(WorkflowDefinition[list[str], Trip]):
    """Book everything or nothing."""

    agency: ClassVar[Agency] = Agency(sold_out="car")

    async def execute(self) -> Trip:
        begun: list[str] = []
        bookings: list[str] = []
        try:
            for what in self.input:
                # Noted before it is tried: a booking that failed may still have arrived.
                begun.append(what)
                bookings.append(await self.run(f"book-{what}", self.agency.book, what))
        except (NonRetryableStepError, MaxAttemptsExceededError) as problem:
            for what in reversed(begun):
                await self.run(f"cancel-{what}", self.agency.cancel, what, retry=UNTIL_DONE)
            return Trip([], str(problem))
        return Trip(bookings)


async def main() -> None:
    """Flight and hotel are booked, the car is not to be had, so all is cancelled."""
    async with SimulatedEngine([Travel]) as engine:
        trip = engine.get(Travel, "trip-1")
        await trip.create(["flight", "hotel", "car"])
        await engine.advance(1)  # The second try of a cancellation waits for its time.
        print("result:", await trip.result(timeout=5))
        print(*Travel.agency.journal, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
