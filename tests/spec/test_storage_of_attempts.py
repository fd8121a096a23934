"""Section 16: what the database refuses of an attempt: its beginning, its order, and the columns of each end."""

from __future__ import annotations

import re
from itertools import product

import pytest
from tests.storage import (
    ATTEMPT,
    CHECK,
    ENDS,
    FIRST,
    OF_RUNNING,
    STEP,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    fixed,
    insert,
    unguarded,
)

BEGINS = "an attempt must begin as started, of a run step of an instance that has not ended"
FOLLOWS = "an attempt may follow only a failed one that is not the outcome of its step"
ENDED = "an attempt that has ended stays so, and its identity never changes"
OUTCOME_COLUMNS = (
    "(state, ended_at, result_type, result_json, error_name, error_message, error_detail, next_attempt_at, "
    "outcome_sequence)"
)
FINALS = {
    "started": "('started', null, null, null, null, null, null, null, null)",
    "succeeded": "('succeeded', started_at, 'none', null, null, null, null, null, 90)",
    "failed": "('failed', started_at, null, null, 'Error', 'no', null, null, 90)",
}
OUTCOMES: dict[str, dict[str, str]] = {
    "started": {"state": "'started'"},
    "succeeded": {
        "state": "'succeeded'", "ended_at": "started_at", "result_type": "'json'", "result_json": "'7'",
        "outcome_sequence": "90",
    },
    "succeeded_with_none": {
        "state": "'succeeded'", "ended_at": "started_at", "result_type": "'none'", "outcome_sequence": "90",
    },
    "failed": {"state": "'failed'", "ended_at": "started_at", "error_message": "'no'", "outcome_sequence": "90"},
    "failed_for_now": {
        "state": "'failed'", "ended_at": "started_at", "error_message": "'no'", "next_attempt_at": "5",
    },
}  # fmt: skip
ERROR = {"error_name": "'Error'", "error_message": "'no'", "error_detail": "'{}'"}
RESULT = {"result_type": "'none'", "result_json": "'7'"}
ILLEGAL_ENDS: dict[str, dict[str, str]] = {
    "started": {"ended_at": "started_at", **RESULT, **ERROR, "next_attempt_at": "5", "outcome_sequence": "90"},
    "succeeded": {
        "ended_at": "null", "result_type": "null", "result_json": "null", **ERROR, "next_attempt_at": "5",
        "outcome_sequence": "null",
    },
    "succeeded_with_none": {"result_json": "'7'"},
    "failed": {"ended_at": "null", "error_message": "null", **RESULT, "next_attempt_at": "5"},
    "failed_for_now": {"outcome_sequence": "90"},
}  # fmt: skip


def ending(kind: str, **columns: str) -> str:
    """The outcome columns of an attempt of this kind, with some of them otherwise."""
    values = {**OUTCOMES[kind], **columns}
    return ", ".join(values.get(column, "null") for column in re.findall(r"\w+", OUTCOME_COLUMNS))


END = f"update attempts set {OUTCOME_COLUMNS} = ({{}}) where step_id = 'outer'"


def end(reason: str, kind: str, **columns: str) -> Change:
    """A case of an attempt that ends with these columns otherwise than its kind allows."""
    return Change(END, ending(kind, **columns), ending(kind), f"{CHECK}{reason}")


ATTEMPTS = [
    *cases(
        179,
        **{
            f"of_{name}": Change(
                insert("attempts", FIRST, step_id="{}"), step_id, "'new'", BEGINS, insert("steps", STEP)
            )
            for name, step_id in (("a_sleep", "'asleep'"), ("a_wait", "'waiting'"), ("no_step", "'nope'"))
        },
        of_a_step_of_another_instance=Change(
            insert("attempts", FIRST, instance_key="{}"), ":parked", ":running", BEGINS, insert("steps", STEP)
        ),
        of_no_step_by_key=Change(
            insert("attempts", FIRST, step_id="{}"),
            "'nope'", "'new'", "FOREIGN KEY constraint failed",
            f"drop trigger attempts_begin_started;\n{insert('steps', STEP)}",
        ),
        **{
            f"of_{end}_instance": Change(
                insert("attempts", ATTEMPT, instance_key="{}"), f":{end}", ":running", BEGINS
            )
            for end in ENDS
        },
    ),
    *cases(
        180,
        one_in_flight=Change(
            insert("attempts", ATTEMPT, step_id="{}"),
            "'outer'", "'retrying'", "UNIQUE constraint failed: attempts.instance_key, attempts.step_id",
            "drop trigger attempts_follow_failures",
        ),
        one_of_a_number=Change(
            insert("attempts", ATTEMPT, number="{}"),
            "1", "2", "UNIQUE constraint failed: attempts.instance_key, attempts.step_id, attempts.number",
            unguarded("attempts"),
        ),
    ),
    *cases(
        181,
        begins_as_succeeded=Change(insert("attempts", ATTEMPT, state="{}"), "'succeeded'", "'started'", BEGINS),
        begins_as_failed=Change(insert("attempts", ATTEMPT, state="{}"), "'failed'", "'started'", BEGINS),
        **{
            f"{step_id}_to_{state}": Change(
                f"update attempts set {OUTCOME_COLUMNS} = {outcome} {OF_RUNNING} step_id = {{}}",
                f"'{step_id}'", "'outer'", ENDED,
            )
            for step_id, (state, outcome) in product(("done", "lost", "retrying"), FINALS.items())
        },
        after_a_success=Change(
            insert("attempts", ATTEMPT, step_id="{}"), "'done'", "'retrying'", FOLLOWS
        ),
        after_a_failure_for_good=Change(
            insert("attempts", ATTEMPT, step_id="{}"), "'lost'", "'retrying'", FOLLOWS
        ),
        after_a_failure_in_another_instance=Change(
            insert("attempts", ATTEMPT, step_id="'outer'", instance_key="{}"),
            ":running", ":paused", FOLLOWS,
            f"{insert('steps', STEP, step_id=repr('outer'), instance_key=':paused')};\n"
            f"{insert('attempts', FIRST, step_id=repr('outer'), instance_key=':paused')};\n"
            f"update attempts set state = 'failed', ended_at = 5, error_message = 'no', next_attempt_at = 5 "
            "where instance_key = :paused and step_id = 'outer'",
        ),
        after_a_gap=Change(insert("attempts", ATTEMPT, number="{}"), "3", "2", FOLLOWS),
    ),
    *fixed(
        "attempts",
        f"{OF_RUNNING} step_id = 'outer'",
        ENDED,
        {"instance_key": ":parked", "step_id": "'done'", "number": "2", "started_at": "started_at + 1"},
        181,
    ),
    *cases(
        182,
        **{
            f"{kind}_with{'out' * (value == 'null')}_{column}": end("case state", kind, **{column: value})
            for kind, columns in ILLEGAL_ENDS.items()
            for column, value in columns.items()
        },
        end_before_start=end("ended_at >= started_at", "succeeded", ended_at="started_at - 1"),
        result_no_json=end("result_json is null or", "succeeded", result_json="'{7'"),
        result_of_unknown_type=end("result_type in", "succeeded", result_type="'xml'"),
        error_detail_no_json=end("error_detail is null or", "failed", error_detail="'{7'"),
        unknown_state=Change(
            f"drop trigger attempts_begin_started;\n{insert('attempts', ATTEMPT, state='{}')}",
            "'lost'", "'started'", f"{CHECK}state in",
        ),
        number=Change(
            insert("attempts", FIRST, number="{}"), "0", "1", f"{CHECK}number >= 1", insert("steps", STEP)
        ),
        outcome_sequence=end("outcome_sequence >= 1", "failed", outcome_sequence="0"),
        counts_or_not=Change(
            f"update attempts set counts = {{}}, {OUTCOME_COLUMNS} = ({ending('failed')}) where step_id = 'outer'",
            "2", "0", f"{CHECK}counts in",
        ),
        started_that_does_not_count=Change(
            insert("attempts", ATTEMPT, counts="{}"), "0", "1", f"{CHECK}counts = 1 or state = 'failed'"
        ),
        **{
            f"{kind}_that_does_not_count": Change(
                f"update attempts set counts = 0, {END.removeprefix('update attempts set ')}",
                ending(kind), ending("failed"), f"{CHECK}counts = 1 or state = 'failed'",
            )
            for kind in ("succeeded", "succeeded_with_none")
        },
    ),
    *cases(
        183,
        error_name_empty=Change(
            END, ending("failed", error_name="''"), ending("failed", error_name="'E'"), f"{CHECK}error_name <> ''"
        ),
        error_name_missing=Change(
            END, ending("failed", error_name="''"), ending("failed", error_name="null"), f"{CHECK}error_name <> ''"
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", ATTEMPTS)
def test_an_illegal_change_of_an_attempt_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)
