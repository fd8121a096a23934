"""What a seed decides beforehand: the programs, the instances with all that is asked of them, and the faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.properties.programs import LEAVES, NESTED_BRANCHES, TOP_BRANCHES, TOP_LEAVES, Node, Program
from workerflow import Settings

SURE = ["run", "run", "nothing", "flaky", "quick_flaky", "sleep", "until", "wait", "wait", "queued", "late"]
"""Leaves that come to the same whatever the time, and do not fail."""
FAILING = ["fails", "exhausts", "overdue"]
ANY = [*(leaf for leaf in LEAVES if leaf != "thread"), "quick_flaky"]

AT_COMMIT = ("crash before commit", "crash after commit", "unknown, not written", "unknown, written")
FOR_A_WHILE = ("unreachable", "busy", "slow")
AT_ONCE = ("crash", "stop", "clock forth", "clock back")
KINDS = (*AT_COMMIT, *FOR_A_WHILE, *AT_ONCE)

HOUR_MS = 3_600_000
FAULTS_BEGIN_MS = 9_000


class Fault(NamedTuple):
    """*number* is the commit that it waits for, or for how many milliseconds it lasts."""

    at_ms: int
    kind: str
    number: int


class Ask(NamedTuple):
    """A verb, and when: ``is_mail`` asks it of an engine that does not execute."""

    at_ms: int
    verb: str
    name: str = ""
    event_id: str | None = None
    is_mail: bool = False


@dataclass(frozen=True)
class Life:
    """An instance: its program's number, and what is asked of it. Each list is asked by one person, in its order."""

    id: str
    program: int
    asks: tuple[Ask, ...]
    controls: tuple[Ask, ...] = ()


@dataclass(frozen=True)
class Plan:
    seed: int
    programs: tuple[Program, ...]
    sure: tuple[int, ...]
    """The programs that come to the same end whatever the time."""
    lives: tuple[Life, ...]
    faults: tuple[Fault, ...]
    settings: Settings
    always_replay: bool

    def undisturbed(self) -> Plan:
        """One instance of each sure program, on a quiet day."""
        lives = tuple(
            Life(f"model-{number}", number, _undisturbed_asks(self.programs[number], 0)) for number in self.sure
        )
        return replace(self, lives=lives, faults=(), always_replay=False, settings=_settings(hibernate_after_s=10**9))


def draw(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    count = chance.randint(1, 5)
    sure = tuple(number for number in range(count) if chance.random() < 0.6)
    programs = tuple(Program(_tree(chance, is_sure=number in sure), None) for number in range(count))
    lives = tuple(
        _life(chance, f"instance-{index}", number, programs[number])
        for index, number in enumerate(chance.randrange(count) for _ in range(chance.choice([1, 3, 8, 16, 30])))
    )
    faults = tuple(sorted(_fault(chance) for _ in range(chance.choice([0, 1, 2, 4, 8, 12]))))
    settings = _settings(
        hibernate_after_s=chance.choice([0, 0, 0.5, 2, 10**9]),
        poll_interval_ms=chance.choice([500, 2000, 10_000]),
        stop_grace_s=chance.choice([0, 1, 10]),
        finish_grace_s=chance.choice([0, 0.3, 2]),
        idle_live_max=chance.choice([1, 3, 10_000]),
        inline_commit_ms=chance.choice([0, 5, 5]),
    )
    return Plan(seed, programs, sure, lives, faults, settings, chance.random() < 0.2)


def _settings(**given: float) -> Settings:
    return Settings(synchronous="NORMAL", recoveries_max=1000, **given)  # type: ignore[arg-type]  # by name


def _fault(chance: random.Random) -> Fault:
    kind = chance.choice(KINDS)
    if kind in AT_COMMIT:
        number = chance.choice([1, 1, 2, 3, 5, 8, 20])
    elif kind in FOR_A_WHILE:
        number = chance.choice([20, 200, 2000, 8000])
    else:
        number = (
            chance.choice([50, 1000, 60_000, HOUR_MS]) if kind.startswith("clock") else chance.choice([0, 50, 3000])
        )
    return Fault(chance.randint(0, FAULTS_BEGIN_MS), kind, number)


def _life(chance: random.Random, id: str, number: int, program: Program) -> Life:
    began_ms = chance.randint(0, 4000)
    asks = [replaced for ask in _undisturbed_asks(program, began_ms) for replaced in _varied(chance, ask)]
    controls = []
    at_ms = began_ms
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2])):
        at_ms += chance.choice([0, 1, 500, 2000])
        controls.append(Ask(at_ms, "pause", is_mail=chance.random() < 0.4))
        at_ms += chance.choice([0, 1, 500, 2000])
        if chance.random() < 0.7:
            controls.append(Ask(at_ms, "resume", is_mail=chance.random() < 0.4))
    if chance.random() < 0.1:
        controls.append(Ask(at_ms + chance.choice([0, 1, 500, 2000]), "cancel", is_mail=chance.random() < 0.4))
    return Life(id, number, tuple(sorted(asks, key=lambda ask: ask.at_ms)), tuple(controls))


def _undisturbed_asks(program: Program, began_ms: int) -> tuple[Ask, ...]:
    """The creation and every event, each once, with an id."""
    events = [(round(at.total_seconds() * 1000), name) for at, name in program.events()]
    asks = [Ask(began_ms + at_ms, "send", name, f"{number} {name}") for number, (at_ms, name) in enumerate(events)]
    return (Ask(began_ms, "create"), *asks)


def _varied(chance: random.Random, ask: Ask) -> list[Ask]:
    """An event may come too early or late, more than once, without an id, and by mail."""
    found = []
    for _ in range(chance.choice([1, 1, 1, 2, 3]) if ask.verb == "send" else 1):
        at_ms = ask.at_ms + chance.choice([0, 0, 1, 700, 2500, -1500])
        event_id = None if chance.random() < 0.3 else ask.event_id
        found.append(Ask(max(at_ms, 0), ask.verb, ask.name, event_id, chance.random() < 0.4))
    return found


def _tree(chance: random.Random, *, is_sure: bool) -> Node:
    kinds = ["sequence", "sequence", "collect", "catch", "nested", "gather", "group"]
    parts = _parts(chance, kinds if is_sure else [*kinds, *TOP_BRANCHES], 3, is_sure=is_sure, can_fail=True)
    return Node("sequence", (*parts, Node("run")))


def _parts(
    chance: random.Random, branches: Sequence[str], depth: int, *, is_sure: bool, can_fail: bool
) -> tuple[Node, ...]:
    return tuple(
        _node(chance, branches, depth - 1, is_sure=is_sure, can_fail=can_fail) for _ in range(chance.randint(1, 3))
    )


def _node(chance: random.Random, branches: Sequence[str], depth: int, *, is_sure: bool, can_fail: bool) -> Node:
    """With *can_fail* a failure of it comes to the same whatever else goes on."""
    if depth > 0 and branches and chance.random() < 0.6:
        kind = chance.choice(branches)
        if kind == "nested":
            # A callback that fails is called again, and its steps fail again: a thousand times.
            return Node(kind, _parts(chance, NESTED_BRANCHES, depth, is_sure=True, can_fail=False))
        fails = can_fail and kind not in ("gather", "group")
        return Node(kind, _parts(chance, branches, depth, is_sure=is_sure, can_fail=fails))
    leaves = [*ANY, *TOP_LEAVES] if not is_sure else [*SURE, *FAILING] if can_fail else SURE
    is_nested = "gather" not in branches
    return Node(chance.choice([leaf for leaf in leaves if not (is_nested and leaf in TOP_LEAVES)]))
