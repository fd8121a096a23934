"""Section 16: no row is deleted or replaced but by a purge, and what only one row may hold only grows."""

from __future__ import annotations

import pytest
from tests.storage import (
    ATTEMPT,
    CHECK,
    CREATE_MAIL,
    DELIVERY,
    ENDED_LOG,
    INBOUND,
    INSTANCE,
    LIFECYCLE,
    LOG,
    MAIL,
    METADATA,
    ONE_EVENT,
    SENT,
    STEP,
    TAKEN,
    TWO_CLAIMERS,
    WORKER,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    claim,
    claimer,
    insert,
    unguarded,
)

ONE_ROW = "the schema version is never replaced"
NEVER_DELETED = "drop trigger workerflow_meta_delete"
METADATA_ROWS = cases(
    174,
    one_metadata_row=Change(
        insert("workerflow_meta", METADATA, only_row="{}"),
        "2", "1", f"{CHECK}only_row = 1", f"{NEVER_DELETED};\ndelete from workerflow_meta",
    ),
    **{
        f"metadata_{name}": Change(
            f"delete from workerflow_meta where only_row = {{}};\n{statement}", "2", "1", reason, before
        )
        for name, statement, reason, before in (
            (
                "once", insert("workerflow_meta", METADATA),
                "UNIQUE constraint failed: workerflow_meta.only_row", unguarded("workerflow_meta", NEVER_DELETED),
            ),
            ("inserted_again", insert("workerflow_meta", METADATA), ONE_ROW, NEVER_DELETED),
            (
                "replaced", insert("workerflow_meta", METADATA, schema_version="9").replace("insert", "replace"),
                ONE_ROW, NEVER_DELETED,
            ),
        )
    },
    metadata_deleted=Change(
        "{}", "delete from workerflow_meta", "update workerflow_meta set schema_version = 2",
        "the schema version is never deleted",
    ),
)  # fmt: skip

FOLLOWS = "an attempt may follow only a failed one that is not the outcome of its step"
GROWS = "incarnation and batch number of a worker only grow"
WORKERS = cases(
    one_row_per_worker=Change(
        insert("workers", WORKER, worker_id="{}"),
        "1", "2", "UNIQUE constraint failed: workers.worker_id", unguarded("workers"),
    ),
    worker_deleted=Change(
        "{}", "delete from workers", "update workers set heartbeat_at = 5",
        "a worker is never deleted: its incarnation would begin anew",
    ),
    incarnation=Change(insert("workers", WORKER, incarnation="{}"), "0", "1", f"{CHECK}incarnation >= 1"),
    batch_number=Change(insert("workers", WORKER, batch_number="{}"), "-1", "0", f"{CHECK}batch_number >= 0"),
    workflows_no_json=Change(insert("workers", WORKER, workflows="{}"), "'W'", "'[]'", f"{CHECK}json_valid(workflows)"),
    incarnation_only_grows=Change(
        "update workers set incarnation = {}", "4", "6", GROWS, "update workers set incarnation = 5"
    ),
    batch_number_only_grows=Change(
        "update workers set batch_number = {}", "batch_number - 1", "batch_number + 1", GROWS
    ),
    batch_number_begins_again=Change(
        "update workers set incarnation = incarnation + {}, batch_number = 0", "0", "1", GROWS
    ),
)  # fmt: skip

BARE = insert("instances", INSTANCE, instance_key="6", instance_id="'bare'")
DELETED: dict[str, tuple[str, str, str]] = {
    "instances": (
        "instance_id = 'new'",
        "an instance may be deleted only while it is being purged",
        insert("instances", INSTANCE),
    ),
    "steps": ("step_id = 'asleep'", "a step may be deleted only while its instance is being purged", ""),
    "attempts": ("step_id = 'outer'", "an attempt may be deleted only while its instance is being purged", ""),
    "lifecycle_events": ("type = 'paused'", LOG, ""),
    "inbound_events": ("name = 'unused'", "an event may be deleted only while its instance is being purged", ""),
    "deliveries": ("number = 3", "a delivery may be deleted only while its instance is being purged", ""),
    "mail": ("event_id = 'm-1'", "mail may be deleted only while its instance is being purged", SENT),
}
PURGES = cases(
    177, 184,
    **{
        table: Change(
            f"update instances set purging = {{}} where instance_id <> 'pending';\ndelete from {table} where {where}",
            "0", "1", reason, f"update instances set purging = 1 where instance_id = 'pending';\n{before}",
        )
        for table, (where, reason, before) in DELETED.items()
    },
)  # fmt: skip

# In a statement that replaces, SQLite deletes the row in the way without telling the triggers for deletes.
REPLACED = {
    "workers": "a worker is never replaced",
    "instances": "an instance is never replaced",
    "steps": "a step is never replaced",
    "attempts": "an attempt is never replaced",
    "lifecycle_events": f"{LOG}: no line of it is replaced",
    "inbound_events": "an accepted event is never replaced",
    "deliveries": "a delivery is never replaced",
    "mail": "mail is never replaced",
}
REPLACEMENTS = cases(
    **{
        f"{table}_by_{column}": Change(
            insert(table, row, **{column: "{}"}).replace("insert", "replace"), old, new, REPLACED[table], before
        )
        for table, row, column, old, new, before in (
            ("workers", WORKER, "worker_id", "1", "2", ""),
            ("instances", INSTANCE, "instance_key", ":completed", "5", ""),
            ("instances", INSTANCE, "instance_id", "'bare'", "'new'", BARE),
            ("steps", STEP, "step_id", "'done'", "'new'", ""),
            ("attempts", ATTEMPT, "number", "1", "2", ""),
            ("lifecycle_events", LIFECYCLE, "number", "2", "3", ""),
            ("inbound_events", INBOUND, "number", "1", "3", ""),
            ("inbound_events", INBOUND, "event_id", "'e-1'", "'e-2'", ""),
            ("deliveries", DELIVERY, "instance_key", ":failed", ":parked", ENDED_LOG),
            ("mail", MAIL, "mail_id", "1", "2", TAKEN),
            ("mail", MAIL, "event_id", "'m-1'", "'m-2'", TAKEN),
            ("mail", {**MAIL, "name": "null"}, "kind", "'create'", "'pause'", CREATE_MAIL),
        )
    },
    **{
        f"{table}_{name}_of_the_same_instance": Change(
            insert(table, {**row, "instance_key": "{}"}), old, new, REPLACED[table], before
        )
        for table, name, row, old, new, before in (
            ("steps", "id", {**STEP, "step_id": "'asleep'"}, ":running", ":parked", ""),
            ("lifecycle_events", "number", {**LIFECYCLE, "number": "3"}, ":paused", ":running", ""),
            ("inbound_events", "number", {**INBOUND, "number": "2"}, ":running", ":parked", ""),
            ("inbound_events", "event_id", {**INBOUND, "event_id": "'e-1'"}, ":running", ":parked", ""),
            ("mail", "event_id", {**MAIL, "event_id": "'m-1'"}, ":running", ":parked", SENT),
            ("mail", "create", {**MAIL, "kind": "'create'", "name": "null"}, ":running", ":parked", CREATE_MAIL),
        )
    },
    claim_of_the_same_instance=Change(
        "update inbound_events set claimed_by = 'claimer', claimed_at = 5 where number = 90 and instance_key = {}",
        ":running", ":parked", ONE_EVENT,
        f"{TWO_CLAIMERS};\n{claimer('claimer', instance_key=':parked')}"
        + insert("inbound_events", INBOUND, instance_key=":parked"),
    ),
    attempt_in_flight=Change(
        insert("attempts", ATTEMPT, step_id="{}").replace("insert", "replace"), "'outer'", "'retrying'", FOLLOWS
    ),
    claim=Change(
        claim(90).replace("update", "update or replace"),
        "'claimer'", "'claimer-2'", ONE_EVENT, TWO_CLAIMERS,
    ),
)  # fmt: skip

LASTING = [*METADATA_ROWS, *WORKERS, *PURGES, *REPLACEMENTS]


@pytest.mark.parametrize("change", LASTING)
def test_an_illegal_change_of_a_lasting_row_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)
