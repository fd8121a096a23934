"""Section 16: what the database refuses of the lifecycle log, of events, of deliveries and of mail."""

from __future__ import annotations

import pytest
from tests.storage import (
    CHECK,
    CREATE_MAIL,
    DELIVERY,
    ENDED_LOG,
    ENDS,
    INBOUND,
    LIFECYCLE,
    LOG,
    MAIL,
    ONE_EVENT,
    SENT,
    TAKEN,
    TWO_CLAIMERS,
    Change,
    assert_accepted,
    assert_refused,
    cases,
    claim,
    claimer,
    fixed,
    insert,
    unguarded,
)

EVENT_FIXED = "an accepted event never changes, and a claimed one stays claimed"
CLAIM = "an event can be claimed only by a satisfied wait for its name"
EVENT_BEGINS = "an event is accepted first and claimed afterwards, by an instance that has not ended"
DELIVERED = "what is delivered stays so"
MAIL_BEGINS = "mail is sent to an instance that has not ended, and taken afterwards"
MAIL_FIXED = "mail never changes, and taken mail stays taken"
ENDED_AND_LEGAL = tuple(zip(ENDS, (":running", ":paused", ":pending"), strict=True))
UNUSED = "where instance_key = :running and name = 'unused'"
OPEN = f"{ENDED_LOG};\n{insert('deliveries', DELIVERY)}"
EVENTS = [
    *cases(
        184,
        log_changed=Change(
            "{}", "update lifecycle_events set recorded_at = 5", insert("lifecycle_events", LIFECYCLE), LOG
        ),
        log_once_per_number=Change(
            insert("lifecycle_events", LIFECYCLE, number="{}"),
            "2", "3", "UNIQUE constraint failed: lifecycle_events.instance_key, lifecycle_events.number",
            unguarded("lifecycle_events"),
        ),
        log_of_an_unknown_instance=Change(
            insert("lifecycle_events", LIFECYCLE, instance_key="{}"), "5", ":running", "FOREIGN KEY constraint failed"
        ),
    ),
    *cases(
        185,
        begins_unclaimed=Change(
            insert("inbound_events", {**INBOUND, "claimed_by, claimed_at": "{}"}),
            "'satisfied', 5", "null, null", EVENT_BEGINS,
        ),
        event_once_per_number=Change(
            insert("inbound_events", INBOUND, number="{}"),
            "2", "3", "UNIQUE constraint failed: inbound_events.instance_key, inbound_events.number",
            unguarded("inbound_events"),
        ),
        event_once_per_id=Change(
            insert("inbound_events", INBOUND, event_id="{}"),
            "'e-1'", "'e-2'", "UNIQUE constraint failed: inbound_events.instance_key, inbound_events.event_id",
            unguarded("inbound_events"),
        ),
        event_of_an_unknown_instance=Change(
            insert("inbound_events", INBOUND, instance_key="{}"), "5", ":running", "FOREIGN KEY constraint failed"
        ),
        **{
            f"claimed_by_{name}": Change(claim(2), step_id, "'claimer'", CLAIM, claimer("claimer") + before)
            for name, step_id, before in (
                ("a_waiting_wait", "'waiting'", ""),
                ("a_timed_out_wait", "'timed-out'", ""),
                ("a_sleep", "'asleep'", ""),
                ("no_step", "'nope'", ""),
                ("a_wait_for_another_name", "'other'", claimer("other", "another")),
                ("an_abandoned_wait", "'left'", claimer("left", abandoned_at="6")),
                ("a_wait_of_another_instance", "'far'", claimer("far", instance_key=":parked")),
            )
        },
        claimed_by_no_step_by_key=Change(
            claim(2), "'nope'", "'claimer'", "FOREIGN KEY constraint failed",
            claimer("claimer") + "drop trigger inbound_events_claimed_by_wait",
        ),
    ),
    *cases(
        77,
        **{
            f"event_to_{end}_instance": Change(
                insert("inbound_events", INBOUND, instance_key="{}"), f":{end}", legal, EVENT_BEGINS
            )
            for end, legal in ENDED_AND_LEGAL
        },
        **{
            f"mail_to_{end}_instance": Change(insert("mail", MAIL, instance_key="{}"), f":{end}", legal, MAIL_BEGINS)
            for end, legal in ENDED_AND_LEGAL
        },
    ),
    *cases(
        89, 185,
        two_for_one_wait=Change(
            claim(90), "'claimer'", "'claimer-2'",
            ONE_EVENT,
            f"drop trigger inbound_events_claim_never_replaced;\n{TWO_CLAIMERS}",
        ),
    ),
    *fixed(
        "inbound_events", UNUSED, EVENT_FIXED,
        {
            "instance_key": ":parked", "number": "91", "name": "'other'", "payload": "null", "event_id": "null",
            "received_at": "received_at + 1",
        },
        185,
    ),
    *cases(
        185,
        claimed_by_another=Change(
            "update inbound_events set claimed_by = 'claimer', claimed_at = 5 "
            "where instance_key = :running and number = {}",
            "1", "90", EVENT_FIXED, claimer("claimer", "used") + insert("inbound_events", INBOUND, name="'used'"),
        ),
        claim_taken_back=Change(
            "{}",
            "update inbound_events set claimed_by = null, claimed_at = null where claimed_by = 'satisfied'",
            claim(2).replace("{}", "'claimer'"), EVENT_FIXED,
            claimer("claimer") + "drop trigger inbound_events_claimed_by_wait",
        ),
    ),
    *cases(
        187,
        one_delivery_per_instance=Change(
            insert("deliveries", DELIVERY, instance_key="{}"),
            ":failed", ":parked", "UNIQUE constraint failed: deliveries.instance_key",
            unguarded("deliveries", ENDED_LOG),
        ),
        delivery_of_an_unknown_event=Change(
            insert("deliveries", DELIVERY, number="{}"), "90", "3", "FOREIGN KEY constraint failed", ENDED_LOG
        ),
        delivery_of_an_unknown_instance=Change(
            insert("deliveries", DELIVERY, instance_key="{}"), "5", ":parked", "FOREIGN KEY constraint", ENDED_LOG
        ),
        delivery_of_a_pause=Change(
            insert("deliveries", DELIVERY, instance_key="{}"),
            ":paused", ":parked", "a delivery tells of the end of its instance", ENDED_LOG,
        ),
        delivery_of_no_end=Change(
            insert("deliveries", DELIVERY, number="{}"),
            "2", "3", "a delivery tells of the end of its instance", ENDED_LOG,
        ),
    ),
    *fixed(
        "deliveries", "where instance_key = :parked", "a delivery stays that of its lifecycle event",
        {"instance_key": ":paused", "number": "2"},
        187,
        before=OPEN,
    ),
    *cases(
        187, 217,
        delivered_again=Change(
            "update deliveries set delivered_at = 5, next_attempt_at = null where instance_key = {}",
            ":cancelled", ":parked", DELIVERED, OPEN,
        ),
        delivered_and_open_again=Change(
            "update deliveries set delivered_at = null, next_attempt_at = 5 where instance_key = {}",
            ":cancelled", ":parked", DELIVERED, OPEN,
        ),
        delivered_and_tried_again=Change(
            "update deliveries set attempts = attempts + 1, last_error = 'no' where instance_key = {}",
            ":cancelled", ":parked", DELIVERED, OPEN,
        ),
    ),
    *cases(
        mail_of_an_unknown_instance=Change(
            insert("mail", MAIL, instance_key="{}"), "5", ":running", "FOREIGN KEY constraint failed"
        ),
        mail_once_per_key=Change(
            insert("mail", MAIL, mail_id="{}"),
            "1", "2", "UNIQUE constraint failed: mail.mail_id", unguarded("mail", SENT),
        ),
        mail_once_per_event_id=Change(
            insert("mail", MAIL, event_id="{}"),
            "'m-1'", "'m-2'", "UNIQUE constraint failed: mail.instance_key, mail.event_id", unguarded("mail", SENT),
        ),
        one_create_in_the_mail=Change(
            insert("mail", MAIL, kind="{}", name="null"),
            "'create'", "'pause'", "UNIQUE constraint failed: mail.instance_key",
            unguarded("mail", CREATE_MAIL),
        ),
        mail_taken_before_it_is_sent=Change(
            insert("mail", {**MAIL, "taken_at, outcome": "{}"}), "6, 'used'", "null, null", MAIL_BEGINS
        ),
        mail_taken_twice=Change(
            "update mail set outcome = 'queued', taken_at = 7 where event_id = {}", "'m-1'", "'m-2'", MAIL_FIXED,
            f"{TAKEN};\n{insert('mail', MAIL, event_id=repr('m-2'))}",
        ),
        mail_given_back=Change(
            "{}", "update mail set outcome = null, taken_at = null", "update mail set kind = kind where kind = 'pause'",
            MAIL_FIXED, f"{TAKEN};\n{insert('mail', MAIL, kind=repr('pause'), name='null')}",
        ),
    ),
    *fixed(
        "mail", "where kind = 'event'", MAIL_FIXED,
        {
            "mail_id": "2", "instance_key": ":parked", "name": "'other'", "payload": "'2'", "event_id": "'m-2'",
            "sent_at": "6",
        },
        before=SENT,
    ),
    *fixed(
        "mail", "", MAIL_FIXED, {"reason": "'other'", "kind": "'pause'"},
        before=insert("mail", MAIL, kind="'cancel'", name="null"),
    ),
    *cases(
        184,
        log_of_unknown_type=Change(
            insert("lifecycle_events", LIFECYCLE, type="{}"), "'initialized'", "'resumed'", f"{CHECK}type in"
        ),
        log_number=Change(insert("lifecycle_events", LIFECYCLE, number="{}"), "0", "3", f"{CHECK}number >= 1"),
    ),
    *cases(
        133,
        reason_of_a_pause=Change(
            insert("lifecycle_events", {**LIFECYCLE, "reason": "'why'"}, type="{}"),
            "'paused'", "'cancelled'", f"{CHECK}reason is null or type = 'cancelled'",
        ),
    ),
    *cases(
        82, 185,
        event_name_empty=Change(insert("inbound_events", INBOUND, name="{}"), "''", "' '", f"{CHECK}name <> ''"),
        event_id_empty=Change(insert("inbound_events", INBOUND, event_id="{}"), "''", "' '", f"{CHECK}event_id <> ''"),
        event_number=Change(insert("inbound_events", INBOUND, number="{}"), "0", "3", f"{CHECK}number >= 1"),
        payload_no_json=Change(
            insert("inbound_events", INBOUND, payload="{}"), "'{7'", "'null'", f"{CHECK}payload is null or"
        ),
        payload_not_a_number=Change(
            insert("inbound_events", INBOUND, payload="{}"), "'NaN'", "null", f"{CHECK}payload is null or"
        ),
        claimed_by_nobody=Change(
            f"update inbound_events set claimed_at = {{}} {UNUSED}", "5", "null", f"{CHECK}(claimed_by is null)"
        ),
        claimed_at_no_time=Change(
            "drop trigger inbound_events_begin_unclaimed;\n"
            + insert("inbound_events", {**INBOUND, "claimed_by, claimed_at": "{}"}),
            "'asleep', null", "'asleep', 5", f"{CHECK}(claimed_by is null)",
        ),
    ),
    *cases(
        187,
        delivery_tries=Change(
            insert("deliveries", DELIVERY, attempts="{}"), "-1", "0", f"{CHECK}attempts >= 0", ENDED_LOG
        ),
        delivered_and_to_be_tried=Change(
            insert("deliveries", DELIVERY, delivered_at="{}"),
            "5", "null", f"{CHECK}(next_attempt_at is null)", ENDED_LOG,
        ),
        neither_delivered_nor_to_be_tried=Change(
            insert("deliveries", DELIVERY, next_attempt_at="null", delivered_at="{}"),
            "null", "5", f"{CHECK}(next_attempt_at is null)", ENDED_LOG,
        ),
    ),
    *cases(
        mail_of_unknown_kind=Change(
            insert("mail", MAIL, name="null", kind="{}"), "'greet'", "'pause'", f"{CHECK}kind in"
        ),
        mail_name_empty=Change(insert("mail", MAIL, name="{}"), "''", "' '", f"{CHECK}name <> ''"),
        mail_payload_no_json=Change(insert("mail", MAIL, payload="{}"), "'{7'", "'7'", f"{CHECK}payload is null or"),
        mail_event_id_empty=Change(insert("mail", MAIL, event_id="{}"), "''", "' '", f"{CHECK}event_id <> ''"),
        mail_event_without_name=Change(insert("mail", MAIL, name="{}"), "null", "'paid'", f"{CHECK}(kind = 'event')"),
        mail_name_of_a_pause=Change(insert("mail", MAIL, kind="{}"), "'pause'", "'event'", f"{CHECK}(kind = 'event')"),
        mail_reason_of_a_pause=Change(
            insert("mail", {**MAIL, "reason": "'why'"}, name="null", kind="{}"),
            "'pause'", "'cancel'", f"{CHECK}reason is null or kind = 'cancel'",
        ),
        mail_taken_without_outcome=Change(
            "update mail set taken_at = 6, outcome = {}", "null", "'used'", f"{CHECK}(taken_at is null)", SENT
        ),
        mail_outcome_of_untaken=Change(
            insert("mail", MAIL, outcome="{}"), "'used'", "null", f"{CHECK}(taken_at is null)"
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", EVENTS)
def test_an_illegal_change_of_an_event_or_mail_is_refused_and_its_legal_twin_accepted(change: Change) -> None:
    assert_refused(change)
    assert_accepted(change)
