"""Waits: which of a live instance's waits is the next to have an event."""

from __future__ import annotations

from heapq import heappop, heappush

from workerflow.core.journal import Inbound, Journal, JournalStep


class Waits:
    """The waits that have no event yet.

    Events are given out one at a time, in the order in which they were accepted; of several waits for one name, the
    earliest created comes first.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_name: dict[str, set[str]] = {}
        # Names with a wait and an unused event, by the number of that event or of an earlier one. An entry that is not
        # the listed one of its name is out of date.
        self._candidates: list[tuple[int, str]] = []
        self._listed: dict[str, int] = {}

    def watch(self, step: JournalStep) -> None:
        """A wait wants an event."""
        assert step.event_name is not None
        self._by_name.setdefault(step.event_name, set()).add(step.step_id)
        self.look(step.event_name)

    def forget(self, step: JournalStep) -> None:
        """A wait has its outcome, or nobody waits for it any more."""
        if step.event_name is not None:
            self._by_name.get(step.event_name, set()).discard(step.step_id)

    def __bool__(self) -> bool:
        return any(self._by_name.values())

    def clear(self) -> None:
        """There is no body any more."""
        self._by_name.clear()
        self._candidates.clear()
        self._listed.clear()

    def look(self, name: str) -> None:
        """There is a new event or a new wait of this name."""
        unused = self._journal.unclaimed.get(name)
        if unused and self._by_name.get(name):
            self._list(name, unused[0].number)

    def look_at_all(self) -> None:
        """Events were accepted while nobody looked."""
        for name in self._by_name:
            self.look(name)

    def next_match(self) -> tuple[JournalStep, Inbound] | None:
        """The earliest accepted event that a wait can have, and that wait."""
        while self._candidates:
            number, name = self._candidates[0]
            match = self._match_of(name) if self._listed.get(name) == number else None
            if match is not None and match[1].number == number:
                return match
            heappop(self._candidates)
            if self._listed.get(name) == number:
                del self._listed[name]
                if match is not None:
                    self._list(name, match[1].number)
        return None

    def _match_of(self, name: str) -> tuple[JournalStep, Inbound] | None:
        steps = (self._journal.steps[step_id] for step_id in self._by_name.get(name, ()))
        matches = [(step, event) for step in steps if (event := self._journal.event_for(step)) is not None]
        return min(matches, key=lambda match: (match[1].number, match[0].ordinal), default=None)

    def _list(self, name: str, number: int) -> None:
        if number < self._listed.get(name, number + 1):
            self._listed[name] = number
            heappush(self._candidates, (number, name))
