"""Fan out: many steps, a bounded number of them in flight.

Run it with ``python -m examples.fan_out``. The semaphore is asyncio's own: what asyncio has for coordination works
inside ``execute()`` and is replayed exactly.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from workerflow import WorkflowDefinition
from workerflow.testing import SimulatedEngine

IN_FLIGHT_MAX = 3


@dataclass(frozen=True)
class Page:
    """One rendered page."""

    number: int
    bytes: int


class Renderer:
    """The world outside. It counts how many pages it renders at a time."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.in_flight_peak = 0
        self.rendered: list[int] = []

    async def render(self, number: int) -> Page:
        """Render one page; later pages are quicker, so that they end in another order than they began."""
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        try:
            await asyncio.sleep(0.01 / number)
        finally:
            self.in_flight -= 1
        self.rendered.append(number)
        return Page(number, 1000 * number)


class Book(WorkflowDefinition[int, list[Page]]):
    """Render all pages of a book. The result is in the order of the pages, whichever was ready first."""

    renderer: ClassVar[Renderer] = Renderer()

    async def execute(self) -> list[Page]:
        places = asyncio.Semaphore(IN_FLIGHT_MAX)
        return await asyncio.gather(*(self._page(number, places) for number in range(1, self.input + 1)))

    async def _page(self, number: int, places: asyncio.Semaphore) -> Page:
        async with places:
            # The id says which page it is: a step is found again by its id, not by its turn.
            return await self.run(f"page-{number}", self.renderer.render, number)


async def main() -> None:
    """Render ten pages, three at a time."""
    async with SimulatedEngine([Book]) as engine:
        book = engine.get(Book, "book-1")
        await book.create(10)
        pages = await book.result(timeout=5)
        print("result:", *(page.number for page in pages))
        print("at a time:", Book.renderer.in_flight_peak)


if __name__ == "__main__":
    asyncio.run(main())
