"""Section 16: what the database refuses of an instance: its life, its fixed columns, and the columns of each status."""

from __future__ import annotations

from itertools import product

import pytest
from tests.storage import (
    CHECK,
    ENDS,
    INSTANCE,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    fixed,
    insert,
    unguarded,
)

STATUSES = ("pending", "initialized", "running", "paused", *ENDS)
LEGAL_MOVES = {
    "pending": {"initialized", "cancelled"},
    "initialized": {"running", "cancelled"},
    "running": {"paused", "completed", "failed", "cancelled"},
    "paused": {"running", "cancelled"},
    **{end: set() for end in ENDS},
}
# What goes with a status, so that only the move itself can be the reason of a refusal.
WITH_STATUS = {
    "completed": ", owner = null, result_type = 'none'",
    "failed": ", owner = null, failure_message = 'no'",
    "cancelled": ", owner = null",
}


@pytest.mark.spec(8, 9, 174)
@pytest.mark.parametrize(("old", "new"), [*product(STATUSES, STATUSES)])
def test_a_status_moves_only_as_the_table_of_moves_allows(old: str, new: str) -> None:
    instance = {"running": "parked", "initialized": "pending"}.get(old, old)
    before = "update instances set status = 'initialized' where instance_id = 'pending'" if old == "initialized" else ""
    # With the columns of the new status only where they may change at all.
    also = WITH_STATUS.get(new, "") if LEGAL_MOVES[old] and new != old else ""
    move = Change(
        f"update instances set status = '{new}'{also} where instance_id = '{instance}'",
        "", "", "illegal status transition", before,
    )  # fmt: skip
    if new == old or new in LEGAL_MOVES[old]:
        assert_accepted(move)
    else:
        assert_refused(move)


NO_TRIGGERS = "drop trigger instances_begin_pending;\ndrop trigger instances_transitions"
COMPLETE = "update instances set status = 'completed', owner = null, {} where instance_id = 'parked'"
FAIL = "update instances set status = 'failed', owner = null, {} where instance_id = 'parked'"
RUNNING = "update instances set {} where instance_id = 'parked'"
NOT_FAILED = f"{CHECK}status = 'failed' or"
OUTCOME = "identity, creation, input and outcome of an instance never change"
INSTANCES = [
    *cases(
        174,
        one_row_per_instance=Change(
            insert("instances", INSTANCE, instance_id="{}"),
            "'parked'", "'new'", "UNIQUE constraint failed: instances.workflow, instances.instance_id",
            unguarded("instances"),
        ),
        one_row_per_workflow_and_id=Change(
            insert("instances", INSTANCE, instance_id="'parked'", workflow="{}"),
            "'Delivering'", "'Other'", "an instance is never replaced",
        ),
        one_row_per_key=Change(
            insert("instances", INSTANCE, instance_key="{}"),
            ":parked", "5", "UNIQUE constraint failed: instances.instance_key", unguarded("instances"),
        ),
    ),
    *cases(
        5, 8,
        begins_as_pending=Change(
            insert("instances", INSTANCE, status="{}"), "'running'", "'pending'", "an instance must begin as pending"
        ),
        runs_after_its_end=Change(
            "update instances set status = 'running' where instance_id = {}",
            "'completed'", "'paused'", "illegal status transition",
        ),
    ),
    *fixed(
        "instances",
        "where instance_id = 'parked'",
        OUTCOME,
        {"instance_key": "5", "workflow": "'Other'", "instance_id": "'other'", "nonce": "'other'", "created_at": "5"},
        11,
    ),
    *fixed("instances", "where instance_id = 'parked'", OUTCOME, {"updated_at": "updated_at - 1"}, 11),
    *fixed("instances", "where instance_id = 'parked'", OUTCOME, {"input": "'2'"}, 19),
    *fixed(
        "instances",
        "where instance_id = 'completed'",
        OUTCOME,
        {"result_json": "'8'", "result_type": "'none'", "failure_name": "'Error'"},
    ),
    *fixed(
        "instances",
        "where instance_id = 'failed'",
        OUTCOME,
        {"failure_name": "'Other'", "failure_message": "'other'", "failure_detail": "null"},
    ),
    *fixed("instances", "where instance_id = 'cancelled'", OUTCOME, {"failure_detail": "'1'"}),
    *cases(
        19,
        input_while_pending=Change(
            "update instances set input = {} where instance_id = 'pending'",
            "'1'", "null", f"{CHECK}status <> 'pending' or input is null",
        ),
        input_when_initialized=Change(
            "update instances set status = 'initialized', input = {} where instance_id = 'pending'",
            "'{1'", "'1'", f"{CHECK}input is null or json_valid(input)",
        ),
    ),
    *(
        case
        for end, also in WITH_STATUS.items()
        for case in cases(
            132,
            **{
                f"{end}_without_attempts": Change(
                    f"update instances set status = '{end}'{also} where instance_id = {{}}",
                    "'running'", "'parked'", "an instance cannot end while an attempt is started",
                )
            },
        )
    ),
    *cases(
        18, 19,
        input_null_and_none=Change(
            "update instances set status = 'initialized', input = {} where instance_id = 'pending'",
            "''", "'null'", f"{CHECK}input is null or",
        ),
    ),
    *cases(
        4,
        unknown_status=Change(
            insert("instances", INSTANCE, status="{}"), "'asleep'", "'running'", f"{CHECK}status in", NO_TRIGGERS
        ),
    ),
    *cases(
        workflow_empty=Change(insert("instances", INSTANCE, workflow="{}"), "''", "'W'", f"{CHECK}workflow <> ''"),
        instance_id_empty=Change(
            insert("instances", INSTANCE, instance_id="{}"), "''", "'i'", f"{CHECK}instance_id <> ''"
        ),
        result_of_unknown_type=Change(
            COMPLETE, "result_type = 'xml', result_json = '7'", "result_type = 'json', result_json = '7'",
            f"{CHECK}result_type in",
        ),
        result_no_json=Change(
            COMPLETE, "result_type = 'json', result_json = '{7'", "result_type = 'json', result_json = '7'",
            f"{CHECK}result_json is null or",
        ),
        result_missing=Change(COMPLETE, "result_type = null", "result_type = 'none'", f"{CHECK}(result_type is null)"),
        result_of_a_running_one=Change(
            RUNNING, "result_type = 'none'", "result_type = null", f"{CHECK}(result_type is null)"
        ),
        result_text_missing=Change(
            COMPLETE, "result_type = 'json'", "result_type = 'json', result_json = '7'", f"{CHECK}(result_json is null)"
        ),
        result_text_of_none=Change(
            COMPLETE, "result_type = 'none', result_json = '7'", "result_type = 'none'", f"{CHECK}(result_json is null)"
        ),
        result_text_of_a_running_one=Change(
            RUNNING, "result_json = '7'", "result_json = null", f"{CHECK}(result_json is null)"
        ),
        failure_missing=Change(
            FAIL, "failure_name = 'E'", "failure_message = 'no'", f"{CHECK}(failure_message is null)"
        ),
        failure_message_of_a_running_one=Change(
            RUNNING, "failure_message = 'no'", "failure_message = null", f"{CHECK}(failure_message is null)"
        ),
        failure_name_of_a_running_one=Change(RUNNING, "failure_name = 'E'", "failure_name = null", NOT_FAILED),
        failure_detail_of_a_running_one=Change(RUNNING, "failure_detail = '1'", "failure_detail = null", NOT_FAILED),
        failure_name_of_a_completed_one=Change(
            COMPLETE, "result_type = 'none', failure_name = 'E'", "result_type = 'none'", NOT_FAILED
        ),
        failure_name_empty=Change(
            FAIL, "failure_message = 'no', failure_name = ''", "failure_message = 'no', failure_name = 'E'",
            f"{CHECK}failure_name <> ''",
        ),
        failure_detail_no_json=Change(
            FAIL, "failure_message = 'no', failure_detail = '{7'", "failure_message = 'no', failure_detail = '7'",
            f"{CHECK}failure_detail is null or",
        ),
        held_without_a_time=Change(
            RUNNING, "held_reason = 'why'", "held_reason = 'why', held_at = 5", f"{CHECK}(held_reason is null)"
        ),
        held_without_a_reason=Change(
            RUNNING, "held_at = 5", "held_reason = 'why', held_at = 5", f"{CHECK}(held_reason is null)"
        ),
        owned_after_its_end=Change(
            "update instances set owner = {} where instance_id = 'completed'", "1", "null", f"{CHECK}status not in"
        ),
        recoveries=Change(RUNNING, "recoveries = -1", "recoveries = 0", f"{CHECK}recoveries >= 0"),
        purging=Change(RUNNING, "purging = 2", "purging = 1", f"{CHECK}purging in"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", INSTANCES)
def test_an_illegal_change_of_an_instance_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)
