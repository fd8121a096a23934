"""What must hold of a world that has come to its end."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.simulation.world import World
from workerflow.core.failure import INTERRUPTED, STOPPED

TABLES = {
    "instances": "*",
    "steps": "*",
    "attempts": "*",
    "lifecycle_events": "*",
    "inbound_events": "*",
    "deliveries": "*",
    "mail": "*",
    "workers": "worker_id, incarnation, batch_number, started_at, heartbeat_at",
}
"""All that is stored but the id of the process, which no seed gives."""

OUTCOMES = """
select instance_id, workflow, status, result_json, failure_name,
    case failure_name when 'MaxAttemptsExceededError' then '' else failure_message end
from instances order by 1
"""
"""Of attempts that are used up, the last may have been interrupted: the message tells of it."""
LOGS = """
select instance_id, group_concat(type, ' ' order by number) from lifecycle_events join instances using (instance_key)
group by instance_id
"""
EARLY = """
select instance_id, step_id, kind from steps join instances using (instance_key)
where (kind = 'sleep' and resolved_at < wake_at) or (state = 'timed_out' and resolved_at < timeout_at)
union all
select instance_id, later.step_id, later.number from attempts as later
join attempts as before on before.instance_key = later.instance_key and before.step_id = later.step_id
    and before.number = later.number - 1 and later.started_at < before.next_attempt_at
join instances on instances.instance_key = later.instance_key
"""
UNORDERED = """
select instance_id, later.name, later.number from inbound_events as earlier
join inbound_events as later on later.instance_key = earlier.instance_key and later.name = earlier.name
    and later.number > earlier.number and later.claimed_by is not null
join instances on instances.instance_key = earlier.instance_key
left join steps as first on first.instance_key = earlier.instance_key and first.step_id = earlier.claimed_by
left join steps as second on second.instance_key = later.instance_key and second.step_id = later.claimed_by
where first.outcome_sequence is null or first.outcome_sequence > second.outcome_sequence
"""
ATTEMPTS = """
select instance_id, step_id, number, state, error_message from attempts join instances using (instance_key)
"""
STEPS = """
select instance_id, steps.step_id, coalesce(steps.state, attempts.state), attempts.result_json
from steps join instances using (instance_key)
left join attempts on attempts.instance_key = steps.instance_key and attempts.step_id = steps.step_id
    and attempts.outcome_sequence is not null
order by 1, 2
"""

LEFT = "select instance_id, owner, alarm_at from instances where owner is not null or alarm_at is not null"
UNTAKEN = """
select instance_id, kind from mail join instances using (instance_key)
where taken_at is null and status not in ('completed', 'failed', 'cancelled')
"""


def fingerprint(world: World) -> str:
    """The same for two runs of the same seed: of all that was stored, and all that happened outside."""
    found = hashlib.sha256(repr(world.log.lines).encode())
    for table, columns in TABLES.items():
        found.update(repr(world.rows(f"select {columns} from {table} order by 1, 2, 3")).encode())
    return found.hexdigest()


def outcomes(world: World) -> dict[str, tuple[Any, ...]]:
    """By instance: its workflow, and how it has ended."""
    return {row[0]: row[1:] for row in world.rows(OUTCOMES)}


def sure_outcomes(world: World) -> dict[str, Any]:
    """By workflow: how its instance has ended, and what its steps came to."""
    steps: dict[str, list[Any]] = {}
    for id, *step in world.rows(STEPS):
        steps.setdefault(id, []).append(step)
    return {workflow: _sure(outcome, steps.get(id, [])) for id, (workflow, *outcome) in outcomes(world).items()}


def _sure(outcome: list[Any], steps: list[Any]) -> Any:
    """Without the order in which the parts of the program ended: that is a matter of time."""
    status, result, *failure = outcome
    return status, None if result is None else json.loads(result)[0], *failure, steps


def judge(world: World, expected: dict[str, Any]) -> None:
    """Note everything in ``world.log`` that is not as it must be. *expected* is what sure programs come to."""
    check, rows = world.log.check, world.rows
    world.note_ends()
    for id, line in rows(LOGS):
        check(_is_legal(line.split()), f"{id} has the lifecycle {line}")
    for what, statement in (("early", EARLY), ("out of order", UNORDERED), ("left", LEFT), ("untaken", UNTAKEN)):
        found = rows(statement)
        check(not found, f"{what}: {found[:5]}")
    _judge_attempts(world)
    _judge_deliveries(world)
    _judge_outcomes(world, expected)


def _is_legal(types: list[str]) -> bool:
    *middle, end = types[1:]
    is_run = middle[:1] == ["started"] and middle[1::2] == ["paused"] * len(middle[1::2])
    resumes = middle[2::2]
    is_run &= resumes == ["resumed"] * len(resumes)
    is_paused = len(middle) % 2 == 0
    ends = ["cancelled"] if is_paused else ["completed", "failed", "cancelled"]
    return types[0] == "created" and end in ends and (is_run or not middle)


def _judge_attempts(world: World) -> None:
    """A callback begins once more for each time that it was cut off, and not more often."""
    check = world.log.check
    entered: dict[tuple[str, str], int] = {}
    for (id, step, _), times in world.log.entered.items():
        entered[id, step] = entered.get((id, step), 0) + times
    cut: dict[tuple[str, str], int] = {}
    for (id, step, _), times in world.cut.items():
        cut[id, step] = cut.get((id, step), 0) + times
    for id, step, number, state, message in world.rows(ATTEMPTS):
        key = (id, step, number)
        check(state != "started", f"attempt {key} is open")
        check(message != INTERRUPTED.message or key in world.cut, f"attempt {key} is interrupted, but was not cut off")
        if message == STOPPED.message:
            cut[id, step] = cut.get((id, step), 0) + 1
        check(state != "succeeded" or world.log.entered[key] > 0, f"attempt {key} has succeeded without its callback")
    if not world.plan.always_replay:
        for (id, step), times in entered.items():
            allowed = 1 + world.log.raised[id, step] + cut.get((id, step), 0)
            check(times <= allowed, f"callback {id} {step} began {times} times, and {allowed} are explained")


def _judge_deliveries(world: World) -> None:
    for id, (workflow, status, *_) in outcomes(world).items():
        heard = world.log.delivered.get(id, [])
        delivers = int(workflow.split("-")[1]) % 2 == 0
        world.log.check(bool(heard) == delivers and len(set(heard)) <= 1, f"{id} was delivered as {heard}")
        world.log.check(all(line.endswith(f" {status}") for line in heard), f"{id} is {status}, delivered as {heard}")


def _judge_outcomes(world: World, expected: dict[str, Any]) -> None:
    steps: dict[str, list[Any]] = {}
    for id, *step in world.rows(STEPS):
        steps.setdefault(id, []).append(step)
    cancelled = {life.id for life in world.plan.lives for ask in life.controls if ask.verb == "cancel"}
    for id, (workflow, *outcome) in outcomes(world).items():
        if outcome[0] == "cancelled":
            world.log.check(id in cancelled, f"{id} is cancelled, and nobody asked for it")
        elif workflow in expected:
            found = _sure(outcome, steps.get(id, []))
            world.log.check(found == expected[workflow], f"{id} came to {found} instead of {expected[workflow]}")
