"""SIGKILL before, in the middle of, and after every write, sync, truncation and deletion; and again in the recovery."""

from __future__ import annotations

from pathlib import Path

from tests.faults.disk import Strike
from tests.faults.judgement import damage, judge, recorded, repeated
from tests.faults.table import PLACES, Budget, Filling, Row, main
from tests.faults.trial import TRIES, Ending, copied, folder, least, live
from tests.faults.workload import LOG

KINDS = ("write", "sync", "truncate", "delete")
OPENINGS = (0.4, 0.65, 0.9)
"""How far the first life gets before it is killed, for the recoveries that are killed, too: in parts of its writes."""


def sweep(budget: Budget) -> list[Row]:
    with folder() as empty:
        first = _sweep_from(empty, "first run", 0, budget)
    recoveries = Row("SIGKILL in the recovery")
    for number, part in enumerate(OPENINGS):
        with folder() as state:
            _open(state, part, budget.mode)
            if budget.points is None or number == budget.seed % len(OPENINGS):
                recoveries.add(_sweep_from(state, "recovery", 1, budget))
    return [first, recoveries]


def _open(state: Path, part: float, mode: str) -> None:
    with folder() as place:
        writes = live(place, mode=mode).operations["write"]
    ending = live(state, Strike(("write",), round(writes * part), "after"), mode=mode)
    assert ending.is_killed


def _sweep_from(state: Path, run: str, kills: int, budget: Budget) -> Row:
    row = Row(f"SIGKILL in the {run}")

    def undisturbed() -> Ending:
        with copied(state) as place:
            return live(place, mode=budget.mode)

    counts = least(undisturbed)
    points = [
        Strike((kind,), number, place)
        for kind in KINDS
        for number in range(1, counts[kind] + 1)
        for place in PLACES[kind]
    ]
    filling = Filling(row, run)

    def strike(kind: str, place: str, number: int) -> Ending:
        return _kill(state, run, kills, Strike((kind,), number, place), row, filling, budget.mode)

    for point in budget.sample(points, row.fault):
        for _ in range(TRIES):
            ending = strike(point.kinds[0], point.place, point.number)
            if ending.reached is not None:
                break
        else:
            row.miss(f"{run}, {point}", is_past_end=not ending.has_come_to(point))
    if budget.points is None:
        filling.fill(strike)
    return row


def _kill(state: Path, run: str, kills: int, point: Strike, row: Row, filling: Filling, mode: str) -> Ending:
    """The life that is killed, and one after it, and what they broke. Nothing if it did not come to the point."""
    with copied(state) as place:
        database = place / "work.db"
        repeats: list[str] = []
        endings = []
        for strike in (point, None):
            before, seen = recorded(database), len(LOG.lines())
            endings.append(live(place, strike, mode=mode))
            reached = endings[0].reached
            if reached is None:
                return endings[0]
            repeats += repeated(LOG.lines(), seen, before)
            if strike is not None:
                for primitive in reached.primitives:
                    filling.note(reached.name, point.place, primitive, point.number)
        verdict = judge(LOG.lines(), kills + 1, mode)
        row.longest_recovery_s = max(row.longest_recovery_s, endings[1].recovery_s)
        row.record(
            f"{run}, {point.place} {point.kinds[0]} {point.number}",
            verdict.lost,
            [*verdict.duplicates, *repeats],
            [*verdict.others, *damage(database)],
        )
    return endings[0]


if __name__ == "__main__":
    main(sweep)
