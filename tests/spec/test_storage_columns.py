"""Section 16: every column holds values of its own kind only, and every rule of the schema is tried."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw
import pytest
from tests.spec.test_storage_of_attempts import ATTEMPTS
from tests.spec.test_storage_of_events_and_mail import EVENTS
from tests.spec.test_storage_of_instances import INSTANCES
from tests.spec.test_storage_of_lasting_rows import LASTING
from tests.spec.test_storage_of_steps import STEPS
from tests.storage import (
    ATTEMPT,
    CHECK,
    DELIVERY,
    ENDED_LOG,
    INBOUND,
    INSTANCE,
    LIFECYCLE,
    MAIL,
    SENT,
    STEP,
    WAIT,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    database,
    insert,
)

TIMES = [
    *cases(
        186,
        **{
            f"{table}_{column}_not_negative": Change(statement, "-1", "0", f"{CHECK}{column} >= 0", before)
            for table, column, statement, before in (
                ("instances", "created_at", insert("instances", INSTANCE, created_at="{}"), ""),
                ("instances", "alarm_at", "update instances set alarm_at = {}", ""),
                ("instances", "held_at", "update instances set held_reason = 'why', held_at = {}", ""),
                ("steps", "created_at", insert("steps", STEP, created_at="{}"), ""),
                ("steps", "wake_at", insert("steps", {**WAIT, "wake_at": "{}"}, kind="'sleep'"), ""),
                ("steps", "timeout_at", insert("steps", {**WAIT, "event_name": "'paid'", "timeout_at": "{}"}), ""),
                ("attempts", "started_at", insert("attempts", ATTEMPT, started_at="{}"), ""),
                (
                    "attempts", "next_attempt_at",
                    "update attempts set state = 'failed', ended_at = started_at, error_message = 'no', "
                    "next_attempt_at = {} where step_id = 'outer'", "",
                ),
                ("lifecycle_events", "recorded_at", insert("lifecycle_events", LIFECYCLE, recorded_at="{}"), ""),
                ("inbound_events", "received_at", insert("inbound_events", INBOUND, received_at="{}"), ""),
                (
                    "inbound_events", "claimed_at",
                    insert("inbound_events", INBOUND, claimed_by="'asleep'", claimed_at="{}"),
                    "drop trigger inbound_events_begin_unclaimed",
                ),
                ("deliveries", "next_attempt_at", insert("deliveries", DELIVERY, next_attempt_at="{}"), ENDED_LOG),
                (
                    "deliveries", "delivered_at",
                    insert("deliveries", DELIVERY, next_attempt_at="null", delivered_at="{}"), ENDED_LOG,
                ),
                ("mail", "sent_at", insert("mail", MAIL, sent_at="{}"), ""),
                ("mail", "taken_at", "update mail set taken_at = {}, outcome = 'used'", SENT),
                ("workers", "started_at", "update workers set started_at = {}", ""),
                ("workers", "heartbeat_at", "update workers set heartbeat_at = {}", ""),
                ("workers", "lease_expires_at", "update workers set lease_expires_at = {}", ""),
                ("workerflow_meta", "created_at", "update workerflow_meta set created_at = {}", ""),
            )
        },
        updated_before_created=Change(
            insert("instances", INSTANCE, updated_at="{}"), "4", "5", f"{CHECK}updated_at >= created_at"
        ),
        resolved_before_created=Change(
            "update steps set state = 'elapsed', resolved_at = created_at - {}, outcome_sequence = 90 "
            "where step_id = 'asleep'",
            "1", "0", f"{CHECK}resolved_at >= created_at",
        ),
        abandoned_before_created=Change(
            "update steps set abandoned_at = created_at - {} where step_id = 'asleep'",
            "1", "0", f"{CHECK}abandoned_at >= created_at",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", TIMES)
def test_a_time_before_its_beginning_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)


# "!": never null. "=": the key that SQLite gives when there is none. The others may be null where the shape allows it.
INTEGERS = {
    "workerflow_meta": "only_row= schema_version! created_at!",
    "workers": "worker_id= incarnation! batch_number! process_id! started_at! heartbeat_at! lease_expires_at",
    "instances": "instance_key= held_at alarm_at owner recoveries! purging! created_at! updated_at!",
    "steps": "instance_key! ordinal! max_attempts wake_at timeout_at created_at! resolved_at outcome_sequence "
    "abandoned_at",
    "attempts": "instance_key! number! started_at! ended_at next_attempt_at counts! outcome_sequence",
    "lifecycle_events": "instance_key! number! recorded_at!",
    "inbound_events": "instance_key! number! received_at! claimed_at",
    "deliveries": "instance_key= number! attempts! next_attempt_at delivered_at",
    "mail": "mail_id= instance_key! sent_at! taken_at",
}
TEXTS = {
    "workerflow_meta": "",
    "workers": "workflows!",
    "instances": "workflow! instance_id! nonce! status! input result_type result_json failure_name failure_message "
    "failure_detail held_reason",
    "steps": "step_id! kind! parent_step_id state event_name",
    "attempts": "step_id! state! result_type result_json error_name error_message error_detail",
    "lifecycle_events": "type! reason",
    "inbound_events": "name! payload event_id claimed_by",
    "deliveries": "last_error",
    "mail": "kind! name payload event_id reason outcome",
}
COLUMNS = [
    (table, column.rstrip("!="), kind, column[-1])
    for kind, tables in (("INTEGER", INTEGERS), ("TEXT", TEXTS))
    for table, columns in tables.items()
    for column in columns.split()
]


def refusal_of(table: str, column: str, value: str) -> str:
    """Why *value* in this column is refused, when no trigger speaks first and the rows stay as they are."""
    with database(SENT) as connection:
        for (trigger,) in list(connection.execute("select name from sqlite_schema where type = 'trigger'")):
            connection.execute(f"drop trigger {trigger}")
        rows = list(connection.execute(f"select * from {table}"))
        connection.execute(f"update {table} set {column} = {column}")
        assert connection.changes() == len(rows) > 0
        with pytest.raises((apsw.ConstraintError, apsw.MismatchError)) as refusal:
            connection.execute(f"update {table} set {column} = {value}")
        assert list(connection.execute(f"select * from {table}")) == rows
        return str(refusal.value)


@pytest.mark.spec(186)
@pytest.mark.parametrize(("table", "column", "kind", "mark"), COLUMNS, ids=[f"{row[0]}-{row[1]}" for row in COLUMNS])
def test_a_column_takes_values_of_its_own_type_only(table: str, column: str, kind: str, mark: str) -> None:
    values = ["x'00'", "'word'", "1.5"] if kind == "INTEGER" else ["x'00'"]
    for value in values:
        stored_as = {"x": "BLOB", "'": "TEXT", "1": "REAL"}[value[0]]
        reason = f"cannot store {stored_as} value in {kind} column {table}.{column}"
        assert refusal_of(table, column, value) == ("datatype mismatch" if mark == "=" else reason)


MANDATORY = [(table, column) for table, column, _, mark in COLUMNS if mark == "!"]


@pytest.mark.spec(186)
@pytest.mark.parametrize(("table", "column"), MANDATORY, ids=[f"{row[0]}-{row[1]}" for row in MANDATORY])
def test_a_column_that_every_row_needs_is_never_null(table: str, column: str) -> None:
    assert refusal_of(table, column, "null") == f"NOT NULL constraint failed: {table}.{column}"


def test_the_columns_that_are_tried_are_those_of_the_schema() -> None:
    with database() as connection:
        tables = [row[0] for row in connection.execute("select name from sqlite_schema where sql like 'create table%'")]
        found = {
            (table, name, kind, bool(mandatory))
            for table in tables
            if not table.startswith("sqlite_")
            for _, name, kind, mandatory, *_ in connection.execute(f"pragma table_info({table})")
        }
    assert {(table, column, kind, mark == "!") for table, column, kind, mark in COLUMNS} == found


def test_every_rule_of_the_schema_has_a_case() -> None:
    tried: dict[str, set[str]] = {}
    for case in [*INSTANCES, *STEPS, *ATTEMPTS, *EVENTS, *LASTING, *TIMES]:
        change: Change = case.values[0]
        table = re.findall(
            r"(?:\binto|\bupdate|\bupdate or replace|\bfrom) (?!or\b)(\w+)", f"{change.statement} {change.refused}"
        )[-1]
        tried.setdefault(table, set()).add(change.reason)
    with database() as connection:
        rules = [*_checks(connection), *_triggers(connection), *_keys(connection)]
    assert len(rules) > 100
    assert [(table, rule) for table, rule in rules if not any(rule.startswith(reason) for reason in tried[table])] == []


def _checks(connection: apsw.Connection) -> Iterator[tuple[str, str]]:
    for table, text in connection.execute("select name, sql from sqlite_schema where type = 'table'"):
        for start in re.finditer(r"\bcheck \(", text):
            depth, end = 1, start.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            yield table, CHECK + text[start.end() : end - 1].strip()


def _triggers(connection: apsw.Connection) -> Iterator[tuple[str, str]]:
    for table, text in connection.execute("select tbl_name, sql from sqlite_schema where type = 'trigger'"):
        yield table, re.findall(r"raise\(abort, '(.+)'\)", text)[0]


def _keys(connection: apsw.Connection) -> Iterator[tuple[str, str]]:
    for table in INTEGERS:
        indexes = [row[1] for row in connection.execute(f"pragma index_list({table})") if row[2]]
        keys = [[row[2] for row in connection.execute(f"pragma index_info({index})")] for index in indexes]
        columns = list(connection.execute(f"pragma table_info({table})"))
        for key in [*keys, [row[1] for row in columns if row[5]]]:
            yield table, "UNIQUE constraint failed: " + ", ".join(f"{table}.{column}" for column in key)
        if list(connection.execute(f"pragma foreign_key_list({table})")):
            yield table, "FOREIGN KEY constraint failed"
