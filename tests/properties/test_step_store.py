"""Any sequence of the step store's verbs does what the specification says, also in the database, or is refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.properties.step_model import LAST_TIME, Record, RefusedError, StepModel
from workerflow import RetryPolicy, RunStep, RunStepAttempt, WorkflowError, WorkflowRuntimeContext
from workerflow.codec import dump_json
from workerflow.core.journal import Journal
from workerflow.core.load import fill_journal
from workerflow.core.model import to_milliseconds
from workerflow.core.rows import Rows
from workerflow.store.base import Batch
from workerflow.store.sqlite.store import SqliteStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)

RUNS, SLEEPS, WAITS = ["r", "r2", "é 💥'\"\\"], ["s", "s2"], ["w", "w2", "w3"]


def mostly(*usual: Any, now_and_then: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One of the usual values nine times out of ten: what is always refused finds nothing."""
    return st.integers(0, 9).flatmap(lambda tenth: now_and_then if tenth == 9 else st.sampled_from(usual))


ANY_ID = st.sampled_from([*RUNS, *SLEEPS, *WAITS, ""])
PARENTS = mostly(None, "r", now_and_then=st.none() | ANY_ID)
# Clocks are set back and forth, so a verb's time may be earlier than that of the verb before.
TIMES = (
    st.timedeltas(timedelta(seconds=-2), timedelta(seconds=2)).map(lambda offset: NOW + offset)
    | st.just(NOW)
    | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))
    | st.sampled_from([LAST_TIME, LAST_TIME + timedelta(microseconds=1)])
)
DEADLINES = st.booleans().flatmap(lambda has_one: TIMES if has_one else st.none())
EVENTS = mostly("paid", "sent", now_and_then=st.just(""))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text('aé💥"\\/ \n', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)
POLICIES = st.none() | st.builds(
    RetryPolicy,
    initial=st.sampled_from([0.0, 0.001, 3.0]),
    factor=st.sampled_from([1, 2, 10]),
    maximum=st.sampled_from([0.5, 60.0]),
    max_elapsed=st.sampled_from([None, 0, 1]),
)
# Which attempt an outcome names: the one in progress, the n-th, or one that nobody knows.
PLACES = mostly(-1, now_and_then=st.integers(0, 3) | st.none())


def call(verb: str, *arguments: st.SearchStrategy[Any], **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(verb), st.tuples(*arguments), st.fixed_dictionaries(options))


RUN_IDS, SLEEP_IDS, WAIT_IDS = (mostly(*usual, now_and_then=ANY_ID) for usual in (RUNS, SLEEPS, WAITS))
# The n-th step for which the verb is allowed just then, or any.
FITTING = mostly(0, 1, 2, now_and_then=ANY_ID)
LIMITS = mostly(1, 2, 3, None, now_and_then=st.integers(-1, 0))
CALLS = st.one_of(
    call("get_or_create_run_step", RUN_IDS, now=TIMES, max_attempts=LIMITS, parent_step_id=PARENTS),
    call("get_or_create_sleep_step", SLEEP_IDS, TIMES, now=TIMES, parent_step_id=PARENTS),
    call("get_or_create_wait_step", WAIT_IDS, EVENTS, now=TIMES, timeout_at=DEADLINES, parent_step_id=PARENTS),
    call("handle_run_attempt_started", FITTING, now=TIMES),
    call("handle_run_attempt_started", FITTING, now=TIMES),
    call("handle_run_attempt_succeeded", FITTING, st.none() | JSON.map(dump_json), now=TIMES, place=PLACES),
    call(
        "handle_run_attempt_failed",
        FITTING,
        st.sampled_from(["ValueError: no stock", ""]),
        now=TIMES,
        error_name=st.sampled_from([None, "", "ValueError"]),
        is_non_retryable=mostly(False, now_and_then=st.booleans()),
        retry=POLICIES,
        place=PLACES,
    ),
    call("handle_sleep_step_elapsed", FITTING, now=TIMES),
    call("handle_wait_step_timed_out", FITTING, now=TIMES),
    call("has_in_progress_child_steps", RUN_IDS),
    call("accept", st.sampled_from(["paid", "sent"]), st.none() | JSON, TIMES),
    st.just(("save", (), {})),
    st.just(("take_over", (), {})),
)


class Database:
    """A real file, on which every example has an instance of its own."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path, synchronous="NORMAL")
        self.store.open(execute=True, now_ms=0)
        self._incarnation = self.store.begin_worker(1, 0, [])
        self._batches = 0
        self._instances = 0

    def journal(self) -> Journal:
        """The journal of a new instance."""
        self._instances += 1
        journal = Journal(self._instances, Rows())
        journal.rows.instance_insert.append((journal.instance_key, "W", str(self._instances), "nonce", 0))
        return journal

    def commit(self, rows: Rows) -> None:
        """Write what was appended since the last time; nothing of it may be refused."""
        if rows.is_empty():
            return
        self._batches += 1
        batch = Batch(self._batches, self._incarnation, rows.take())
        self.store.commit(batch, busy_timeout_ms=0)
        assert batch.refused == {}

    def read(self, key: int) -> Journal:
        """The journal as a take-over would find it."""
        record = self.store.load(key)
        assert record is not None
        journal = Journal(key, Rows())
        fill_journal(journal, record)
        return journal


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("steps") / "steps.db")
    yield database
    database.store.close()


def contents(journal: Journal) -> dict[str, Any]:
    """Everything that a journal holds, to be compared; ``first_later`` is known to those only that made the step."""
    return {
        "steps": [
            {
                name: getattr(step, name)
                for name in step.__slots__
                if name not in ("attempts", "children", "claimed", "first_later")
            }
            | {
                "attempts": [{name: getattr(attempt, name) for name in attempt.__slots__} for attempt in step.attempts],
                "children": [child.step_id for child in step.children],
                "claimed": step.claimed,
            }
            for step in journal.steps.values()
        ],
        "unclaimed": {name: list(events) for name, events in journal.unclaimed.items() if events},
        "rest": (journal.next_sequence, journal.next_acceptance, journal.event_ids),
    }


def without_attempt_ids(record: Record | RunStepAttempt | bool) -> Record | RunStepAttempt | bool:
    """The id of an attempt is the store's own affair, as long as it is unique."""
    if isinstance(record, RunStepAttempt):
        return replace(record, id="")
    if isinstance(record, RunStep):
        assert len({attempt.id for attempt in record.attempts}) == len(record.attempts)
        return replace(record, attempts=[replace(attempt, id="") for attempt in record.attempts])
    return record


class Twins:
    """The step store and its model side by side; what is asked of the one is asked of the other."""

    def __init__(self, database: Database) -> None:
        self.model = StepModel()
        self._database = database
        self._journal = database.journal()
        self._context = WorkflowRuntimeContext(self._journal)

    def do(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if arguments and isinstance(arguments[0], int):
            fitting = self.model.fitting(verb)
            if not fitting:
                return
            arguments = (fitting[arguments[0] % len(fitting)], *arguments[1:])
        if verb == "handle_wait_step_timed_out" and arguments[0] in self.model.endless_waits():
            return  # Allowed in memory, where no deadline is as good as a passed one, but no row can say so.
        if hasattr(self, verb):
            getattr(self, verb)(*arguments, **options)
        else:
            if "place" in options:
                self.save()
            self._ask(verb, arguments, options)
        assert [without_attempt_ids(step) for step in self._context.steps()] == list(self.model.steps.values())
        ended = sorted((step.sequence, step.step_id) for step in self._journal.steps.values() if step.sequence)
        assert [step_id for _, step_id in ended] == self.model.outcomes

    def accept(self, name: str, payload: Any, now: datetime) -> None:
        """An event comes in. No verb of the step store: it is there for the waits to come."""
        self.model.accept(name, payload, now)
        self._journal.accept(name, dump_json(payload), None, to_milliseconds(now))

    def save(self) -> None:
        """What has begun is durable before it can end: an outcome never shares a batch with its own start."""
        self._database.commit(self._journal.rows)

    def take_over(self) -> None:
        """The process dies, and the next one goes on with what it reads."""
        self.save()
        stored, self._journal = self._journal, self._database.read(self._journal.instance_key)
        assert contents(self._journal) == contents(stored)
        self._context = WorkflowRuntimeContext(self._journal)

    def _ask(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        named = {name: value for name, value in options.items() if name != "place" and value is not None}
        if options.get("place", -1) != -1:
            named["attempt_id"] = self._attempt_id(arguments[0], options["place"])
        if "max_attempts" in options:
            named["max_attempts"] = options["max_attempts"]  # None is a limit, too: none.
        ask = functools.partial(getattr(self._context, verb), *arguments, **named)
        try:
            expected = getattr(self.model, verb)(*arguments, **options)
        except RefusedError as refusal:
            before, rows = contents(self._journal), self._rows()
            with pytest.raises(WorkflowError, match=str(refusal)):
                ask()
            assert (contents(self._journal), self._rows()) == (before, rows)
        else:
            assert without_attempt_ids(ask()) == expected

    def _attempt_id(self, step_id: str, place: int | None) -> str:
        steps = [step for step in self._context.steps() if isinstance(step, RunStep) and step.id == step_id]
        attempts = steps[0].attempts if steps else []
        return attempts[place].id if place is not None and place < len(attempts) else "nobody"

    def _rows(self) -> dict[str, list[Any]]:
        return {name: list(getattr(self._journal.rows, name)) for name in Rows.__slots__}


@pytest.mark.spec(35, 55, 66, 73, 74, 92, 93, 94, 100, *range(146, 162), *range(175, 187))
@examples(250)
@given(
    calls=st.lists(st.lists(CALLS, min_size=2, max_size=14), min_size=6, max_size=6).map(lambda parts: [*chain(*parts)])
)
def test_any_sequence_of_verbs_does_what_the_specification_says_also_in_the_database(
    database: Database, calls: list[Any]
) -> None:
    twins = Twins(database)
    for verb, arguments, options in calls:
        twins.do(verb, arguments, options)
    twins.take_over()


WILD = st.text(st.characters(categories=None), max_size=6) | st.sampled_from(["\0", "\ud800", "a\0b", "é💥", "\x7f"])
WILD_JSON = (
    WILD
    | WILD.map(json.dumps)
    | st.integers(1, 2000).map(lambda depth: "[" * depth + "]" * depth)
    | st.sampled_from(["1e999", "-0", "NaN", "[1,]", " 1 ", "01", '"\\u0000"', '"\\ud800"', "1" * 5000, "{}x", ""])
)
WILD_TIMES = st.datetimes(timezones=st.just(UTC))


@examples(150)
@given(step_id=WILD, parent=st.none() | WILD, name=WILD, message=WILD, result=WILD_JSON)
def test_any_text_is_stored_as_it_is_or_refused_by_the_verb_that_got_it(
    database: Database, step_id: str, parent: str | None, name: str, message: str, result: str
) -> None:
    unstorable_is_refused(
        database,
        ("get_or_create_run_step", (step_id,), {"now": NOW}),
        ("get_or_create_sleep_step", (f"{step_id}s", NOW), {"now": NOW, "parent_step_id": parent}),
        ("get_or_create_wait_step", (f"{step_id}w", name), {"now": NOW}),
        ("get_or_create_run_step", ("r",), {"now": NOW}),
        ("handle_run_attempt_started", ("r",), {"now": NOW}),
        (
            "handle_run_attempt_failed",
            ("r", message),
            {"error_name": name, "retry": RetryPolicy(initial=0), "now": NOW},
        ),
        ("handle_run_attempt_started", ("r",), {"now": NOW}),
        ("handle_run_attempt_succeeded", ("r", result), {"now": NOW}),
    )


@examples(100)
@given(times=st.lists(WILD_TIMES, min_size=8, max_size=8))
def test_any_time_is_stored_or_refused_by_the_verb_that_got_it(database: Database, times: list[datetime]) -> None:
    unstorable_is_refused(
        database,
        ("get_or_create_run_step", ("r",), {"now": times[0]}),
        ("get_or_create_sleep_step", ("s", times[1]), {"now": times[2]}),
        ("get_or_create_wait_step", ("w", "paid"), {"now": times[3], "timeout_at": times[4]}),
        ("handle_run_attempt_started", ("r",), {"now": times[5]}),
        ("handle_run_attempt_failed", ("r", "no"), {"now": times[6]}),
        ("handle_wait_step_timed_out", ("w",), {"now": times[7]}),
    )


def unstorable_is_refused(database: Database, *calls: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    """Every call either leaves rows that the database takes and gives back, or raises and leaves all as it was."""
    journal = database.journal()
    for verb, arguments, options in calls:
        database.commit(journal.rows)
        before = contents(journal)
        try:
            getattr(WorkflowRuntimeContext(journal), verb)(*arguments, **options)
        except WorkflowError:
            assert contents(journal) == before
            assert journal.rows.is_empty()
    database.commit(journal.rows)
    assert contents(database.read(journal.instance_key)) == contents(journal)
