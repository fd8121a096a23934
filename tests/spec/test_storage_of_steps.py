"""Section 16: what the database refuses of a step: its place, its fixed columns, and the columns of each kind."""

from __future__ import annotations

import pytest
from tests.storage import (
    CHECK,
    ENDS,
    OF_RUNNING,
    STEP,
    WAIT,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    fixed,
    insert,
    unguarded,
)

STEP_FIXED = "identity, kind, parent, times and limits of a step never change"
RESOLVED = "a step that is resolved stays so"
# Nothing of a resolved step but its state is another then.
BEGINS = "a step begins without an outcome, in an instance that has not ended"
KEPT = "resolved_at = coalesce(resolved_at, created_at), outcome_sequence = coalesce(outcome_sequence, 90)"
PARENT = "the parent of a step must be a run step of the same instance"
# The trigger for the beginning of a step speaks before the shape of an outcome can.
ANY_BEGINNING = "drop trigger steps_begin_open"
# The values of one kind of row, the legal ones first; then each illegal row and how it differs.
STEP_COLUMNS = "kind, max_attempts, state, wake_at, event_name, timeout_at, resolved_at, outcome_sequence"
NEW_STEP = insert("steps", {key: STEP[key] for key in STEP if key != "kind"} | {STEP_COLUMNS: "{}"})
NEW_STEPS: dict[str, tuple[str, dict[str, str]]] = {
    "run": (
        "'run', null, null, null, null, null, null, null",
        {
            "state": "'run', null, 'waiting', null, null, null, null, null",
            "wake_time": "'run', null, null, 5, null, null, null, null",
            "event_name": "'run', null, null, null, 'paid', null, null, null",
            "deadline": "'run', null, null, null, null, 5, null, null",
            "resolution": "'run', null, null, null, null, null, 5, 90",
            "outcome_sequence": "'run', null, null, null, null, null, null, 90",
        },
    ),
    "sleep_waiting": (
        "'sleep', null, 'waiting', 5, null, null, null, null",
        {
            "max_attempts": "'sleep', 3, 'waiting', 5, null, null, null, null",
            "event_name": "'sleep', null, 'waiting', 5, 'paid', null, null, null",
            "deadline": "'sleep', null, 'waiting', 5, null, 5, null, null",
            "resolution": "'sleep', null, 'waiting', 5, null, null, 5, 90",
            "outcome_sequence": "'sleep', null, 'waiting', 5, null, null, null, 90",
            "no_wake_time": "'sleep', null, 'waiting', null, null, null, null, null",
            "no_state": "'sleep', null, null, 5, null, null, null, null",
            "state_of_a_wait": "'sleep', null, 'satisfied', 5, null, null, 5, 90",
        },
    ),
    "wait_waiting": (
        "'wait', null, 'waiting', null, 'paid', null, null, null",
        {
            "max_attempts": "'wait', 3, 'waiting', null, 'paid', null, null, null",
            "wake_time": "'wait', null, 'waiting', 5, 'paid', null, null, null",
            "resolution": "'wait', null, 'waiting', null, 'paid', null, 5, 90",
            "outcome_sequence": "'wait', null, 'waiting', null, 'paid', null, null, 90",
            "no_event_name": "'wait', null, 'waiting', null, null, null, null, null",
            "no_state": "'wait', null, null, null, 'paid', null, null, null",
            "state_of_a_sleep": "'wait', null, 'elapsed', null, 'paid', null, 5, 90",
        },
    ),
}
# Of a step that waits in the database that the engine made: the state it goes to, when, and the number of the outcome.
RESOLVED_STEPS: dict[str, tuple[str, str, dict[str, str]]] = {
    "sleep_elapsed": (
        "'asleep'",
        "'elapsed', created_at, 90",
        {
            "no_resolution": "'elapsed', null, null",
            "no_outcome_sequence": "'elapsed', created_at, null",
            "no_state": "null, created_at, 90",
            "state_of_a_wait": "'timed_out', created_at, 90",
        },
    ),
    "wait_satisfied": (
        "'waiting'",
        "'satisfied', created_at, 90",
        {
            "no_resolution": "'satisfied', null, null",
            "no_outcome_sequence": "'satisfied', created_at, null",
            "no_state": "null, created_at, 90",
            "state_of_a_sleep": "'elapsed', created_at, 90",
        },
    ),
    "wait_timed_out": (
        "'waiting'",
        "'timed_out', created_at, 90",
        {"no_resolution": "'timed_out', null, null", "no_outcome_sequence": "'timed_out', created_at, null"},
    ),
}


def differs(how: str) -> str:
    """The reason for which such a step is refused."""
    return f"{CHECK}{'(outcome_sequence is null)' if how.endswith('outcome_sequence') else 'case kind'}"


STEPS = [
    *cases(
        175,
        id_not_empty=Change(insert("steps", STEP, step_id="{}"), "''", "' '", f"{CHECK}step_id <> ''"),
        **{
            f"id_once_for_{name}": Change(
                insert("steps", row, step_id="{}"),
                taken, "'new'", "UNIQUE constraint failed: steps.instance_key, steps.step_id", unguarded("steps"),
            )
            for name, row, taken in (
                ("run_and_run", STEP, "'done'"),
                ("run_and_sleep", STEP, "'asleep'"),
                ("wait_and_run", {**WAIT, "event_name": "'paid'"}, "'done'"),
                ("wait_and_sleep", {**WAIT, "event_name": "'paid'"}, "'asleep'"),
            )
        },
        id_again_in_another_instance=Change(
            insert("steps", STEP, step_id="'asleep'", instance_key="{}"),
            ":running", ":parked", "UNIQUE constraint failed: steps.instance_key, steps.step_id", unguarded("steps"),
        ),
    ),
    *fixed(
        "steps",
        f"{OF_RUNNING} step_id = 'inner'",
        STEP_FIXED,
        {
            "instance_key": ":parked", "step_id": "'other'", "ordinal": "91", "kind": "'run'", "parent_step_id": "null",
            "created_at": "created_at + 1", "wake_at": "wake_at + 1",
        },
        176,
    ),
    *fixed(
        "steps",
        f"{OF_RUNNING} step_id = 'waiting'",
        STEP_FIXED,
        {"event_name": "'another'", "timeout_at": "null", "parent_step_id": "'done'"},
        176,
    ),
    *fixed("steps", f"{OF_RUNNING} step_id = 'done'", STEP_FIXED, {"max_attempts": "4"}, 35, 176),
    *cases(
        177,
        **{
            f"parent_{name}": Change(insert("steps", STEP, parent_step_id="{}"), parent, "'done'", PARENT)
            for name, parent in (("unknown", "'nope'"), ("a_sleep", "'asleep'"), ("a_wait", "'waiting'"))
        },
        parent_itself=Change(insert("steps", STEP, parent_step_id="{}"), "'new'", "'done'", PARENT),
        parent_itself_by_check=Change(
            insert("steps", STEP, parent_step_id="{}"),
            "'new'", "'done'", f"{CHECK}parent_step_id <> step_id", "drop trigger steps_parent",
        ),
        parent_unknown_by_key=Change(
            insert("steps", STEP, parent_step_id="{}"),
            "'nope'", "'done'", "FOREIGN KEY constraint failed", "drop trigger steps_parent",
        ),
        parent_of_another_instance=Change(
            insert("steps", STEP, parent_step_id="'outer'", instance_key="{}"), ":parked", ":running", PARENT
        ),
        **{
            f"has_{name}": Change(
                f"delete from steps {OF_RUNNING} step_id = {{}}",
                step_id, "'asleep'", "FOREIGN KEY constraint failed",
                f"update instances set purging = 1;\n{also}",
            )
            for name, step_id, also in (
                ("children", "'outer'", "delete from attempts where step_id = 'outer'"),
                ("attempts", "'done'", ""),
                ("a_claim", "'satisfied'", ""),
            )
        },
        of_unknown_instance=Change(
            insert("steps", STEP, instance_key="{}"), "5", ":running", "FOREIGN KEY constraint failed"
        ),
    ),
    *cases(
        178,
        begins_elapsed=Change(
            insert("steps", {**STEP, "wake_at": "5", "state, resolved_at, outcome_sequence": "{}"}, kind="'sleep'"),
            "'elapsed', 5, 90", "'waiting', null, null", BEGINS,
        ),
        **{
            f"begins_{state}": Change(
                insert(
                    "steps",
                    {**STEP, "event_name, timeout_at": "'paid', 5", "state, resolved_at, outcome_sequence": "{}"},
                    kind="'wait'",
                ),
                f"'{state}', 5, 90", "'waiting', null, null", BEGINS,
            )
            for state in ("satisfied", "timed_out")
        },
    ),
    *cases(
        8,
        **{
            f"begins_in_{end}_instance": Change(
                insert("steps", STEP, instance_key="{}"), f":{end}", legal, BEGINS
            )
            for end, legal in zip(ENDS, (":running", ":paused", ":pending"), strict=True)
        },
    ),
    *cases(
        60, 87,
        elapsed_again=Change(
            f"update steps set state = 'waiting', resolved_at = null, outcome_sequence = null {OF_RUNNING} "
            "step_id = {} and kind = 'sleep'",
            "'elapsed'", "'asleep'", RESOLVED,
        ),
        satisfied_again=Change(
            f"update steps set state = 'waiting', resolved_at = null, outcome_sequence = null {OF_RUNNING} "
            "step_id = {} and kind = 'wait'",
            "'satisfied'", "'waiting'", RESOLVED,
        ),
        satisfied_after_its_deadline=Change(
            f"update steps set state = 'satisfied', {KEPT} {OF_RUNNING} step_id = {{}}",
            "'timed-out'", "'waiting'", RESOLVED,
        ),
        timed_out_after_its_event=Change(
            f"update steps set state = 'timed_out', {KEPT} {OF_RUNNING} step_id = {{}}",
            "'satisfied'", "'waiting'", RESOLVED,
        ),
        resolved_at_another_time=Change(
            f"update steps set resolved_at = resolved_at + {{}} {OF_RUNNING} step_id = 'elapsed'", "1", "0", RESOLVED
        ),
        resolved_in_another_order=Change(
            f"update steps set outcome_sequence = outcome_sequence + {{}} {OF_RUNNING} step_id = 'elapsed'",
            "90", "0", RESOLVED,
        ),
    ),
    *cases(
        178,
        **{
            f"{kind}_with_{difference}": Change(NEW_STEP, row, legal, differs(difference), ANY_BEGINNING)
            for kind, (legal, illegal) in NEW_STEPS.items()
            for difference, row in illegal.items()
        },
        **{
            f"{kind}_with_{difference}": Change(
                f"update steps set (state, resolved_at, outcome_sequence) = ({{}}) {OF_RUNNING} step_id = {step_id}",
                row, legal, differs(difference),
            )
            for kind, (step_id, legal, illegal) in RESOLVED_STEPS.items()
            for difference, row in illegal.items()
        },
        wait_timed_out_without_deadline=Change(
            "update steps set state = 'timed_out', resolved_at = created_at, outcome_sequence = 90 "
            "where instance_key = :running and step_id = {}",
            "'new'", "'waiting'", differs("deadline"), NEW_STEP.replace("{}", NEW_STEPS["wait_waiting"][0]),
        ),
        unknown_kind=Change(insert("steps", STEP, kind="{}"), "'walk'", "'run'", f"{CHECK}kind in "),
        no_attempt_allowed=Change(
            insert("steps", STEP, max_attempts="{}"), "0", "1", f"{CHECK}max_attempts >= 1"
        ),
        empty_event_name=Change(
            NEW_STEP, "'wait', null, 'waiting', null, '', null, null, null", NEW_STEPS["wait_waiting"][0],
            f"{CHECK}event_name <> ''",
        ),
        ordinal=Change(insert("steps", STEP, ordinal="{}"), "0", "90", f"{CHECK}ordinal >= 1"),
        outcome_sequence=Change(
            "update steps set state = 'elapsed', resolved_at = created_at, outcome_sequence = {} "
            "where step_id = 'asleep'",
            "0", "90", f"{CHECK}outcome_sequence >= 1",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", STEPS)
def test_an_illegal_change_of_a_step_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)
