"""Section 14: the verbs of the step store, WorkflowRuntimeContext."""

from datetime import UTC, datetime, timedelta

import pytest

from workerflow import RetryPolicy, RunStep, RunStepAttempt, StepError, WorkflowRuntimeContext

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


def only_step(context: WorkflowRuntimeContext) -> RunStep:
    (step,) = context.steps()
    assert isinstance(step, RunStep)
    return step


def last_attempt(context: WorkflowRuntimeContext) -> RunStepAttempt:
    return only_step(context).attempts[-1]


@pytest.mark.spec(146)
def test_a_new_run_step_has_three_attempts_no_parent_and_none_begun():
    step = WorkflowRuntimeContext().get_or_create_run_step("charge", now=NOW)

    assert (step.id, step.type, step.max_attempts, step.parent_step_id) == ("charge", "run", 3, None)
    assert step.created_at == NOW
    assert list(step.attempts) == []


@pytest.mark.spec(146)
def test_a_run_step_keeps_the_parent_it_was_created_with():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("outer", now=NOW)

    inner = context.get_or_create_run_step("inner", now=NOW, parent_step_id="outer")

    assert inner.parent_step_id == "outer"
    assert [step.parent_step_id for step in context.steps()] == [None, "outer"]


@pytest.mark.spec(146)
def test_a_run_step_with_an_unknown_parent_is_refused_and_nothing_is_created():
    context = WorkflowRuntimeContext()

    with pytest.raises(StepError, match="not found"):
        context.get_or_create_run_step("inner", now=NOW, parent_step_id="outer")

    assert context.steps() == []


@pytest.mark.spec(147)
def test_asking_twice_for_a_run_step_gives_equal_steps_and_creates_one():
    context = WorkflowRuntimeContext()

    first = context.get_or_create_run_step("charge", now=NOW)
    second = context.get_or_create_run_step("charge", now=LATER)

    assert second == first
    assert context.steps() == [first]


@pytest.mark.spec(35, 147)
def test_another_limit_in_the_second_call_is_ignored():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW, max_attempts=2)

    assert context.get_or_create_run_step("charge", now=LATER, max_attempts=9).max_attempts == 2


@pytest.mark.spec(148)
def test_attempts_stay_empty_until_one_is_started():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    assert list(only_step(context).attempts) == []

    context.handle_run_attempt_started("charge", now=NOW)

    assert len(only_step(context).attempts) == 1


@pytest.mark.spec(149)
def test_the_limit_of_attempts_is_stored_and_reported():
    context = WorkflowRuntimeContext()

    assert context.get_or_create_run_step("charge", now=NOW, max_attempts=5).max_attempts == 5
    assert only_step(context).max_attempts == 5


@pytest.mark.spec(150)
def test_starting_gives_a_started_attempt_and_the_step_lists_exactly_that_one():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)

    attempt = context.handle_run_attempt_started("charge", now=LATER)

    assert (attempt.state, attempt.step_id, attempt.number, attempt.started_at) == ("started", "charge", 1, LATER)
    assert attempt.ended_at is None
    assert list(only_step(context).attempts) == [attempt]


@pytest.mark.spec(151)
def test_starting_an_attempt_of_an_unknown_step_is_not_found():
    with pytest.raises(StepError, match="not found"):
        WorkflowRuntimeContext().handle_run_attempt_started("charge", now=NOW)


@pytest.mark.spec(152)
def test_a_second_attempt_cannot_start_while_one_is_in_progress():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    first = context.handle_run_attempt_started("charge", now=NOW)

    with pytest.raises(StepError, match="already in progress"):
        context.handle_run_attempt_started("charge", now=LATER)

    assert list(only_step(context).attempts) == [first]


@pytest.mark.spec(153)
def test_succeeding_with_json_text_stores_that_text_in_the_one_attempt():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    context.handle_run_attempt_started("charge", now=NOW)

    attempt = context.handle_run_attempt_succeeded("charge", "0", now=LATER)

    assert (attempt.state, attempt.result_type, attempt.result_json) == ("succeeded", "json", "0")
    assert attempt.ended_at == LATER
    assert list(only_step(context).attempts) == [attempt]


@pytest.mark.spec(154)
def test_succeeding_without_text_stores_the_absent_result():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    context.handle_run_attempt_started("charge", now=NOW)

    attempt = context.handle_run_attempt_succeeded("charge", now=LATER)

    assert (attempt.state, attempt.result_type, attempt.result_json) == ("succeeded", "none", None)
    assert last_attempt(context) == attempt


@pytest.mark.spec(155)
def test_succeeding_an_unknown_step_is_not_found():
    with pytest.raises(StepError, match="not found"):
        WorkflowRuntimeContext().handle_run_attempt_succeeded("charge", "0", now=NOW)


@pytest.mark.spec(156)
def test_a_step_without_a_started_attempt_cannot_succeed():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)

    with pytest.raises(StepError, match=r"(?i)no attempt in progress"):
        context.handle_run_attempt_succeeded("charge", "0", now=NOW)

    assert list(only_step(context).attempts) == []


@pytest.mark.spec(156)
def test_a_step_whose_attempt_has_ended_cannot_succeed_once_more():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    context.handle_run_attempt_started("charge", now=NOW)
    ended = context.handle_run_attempt_succeeded("charge", "1", now=NOW)

    with pytest.raises(StepError, match=r"(?i)no attempt in progress"):
        context.handle_run_attempt_succeeded("charge", "2", now=LATER)

    assert list(only_step(context).attempts) == [ended]


@pytest.mark.spec(156, 160)
def test_an_outcome_that_names_an_unknown_attempt_is_not_found():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    started = context.handle_run_attempt_started("charge", now=NOW)

    with pytest.raises(StepError, match="not found"):
        context.handle_run_attempt_succeeded("charge", "0", now=LATER, attempt_id="nobody")
    with pytest.raises(StepError, match="not found"):
        context.handle_run_attempt_failed("charge", "Error: no", now=LATER, attempt_id="nobody")

    assert list(only_step(context).attempts) == [started]


@pytest.mark.spec(157)
def test_the_last_allowed_failure_stores_its_message_and_plans_no_next_attempt():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW, max_attempts=1)
    context.handle_run_attempt_started("charge", now=NOW)

    attempt = context.handle_run_attempt_failed("charge", "ValueError: no stock", now=LATER, error_name="ValueError")

    assert (attempt.state, attempt.error_message, attempt.error_name) == (
        "failed",
        "ValueError: no stock",
        "ValueError",
    )
    assert attempt.next_attempt_at is None
    assert attempt.ended_at == LATER
    assert list(only_step(context).attempts) == [attempt]


@pytest.mark.spec(157)
def test_a_failure_with_attempts_left_plans_the_next_one():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW, max_attempts=2)
    context.handle_run_attempt_started("charge", now=NOW)

    attempt = context.handle_run_attempt_failed("charge", "ValueError: no stock", now=LATER)

    assert attempt.next_attempt_at == LATER + timedelta(milliseconds=250)


@pytest.mark.spec(158)
def test_a_non_retryable_failure_plans_no_next_attempt_however_many_are_left():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW, max_attempts=10)
    context.handle_run_attempt_started("charge", now=NOW)

    attempt = context.handle_run_attempt_failed("charge", "Error: declined", now=LATER, is_non_retryable=True)

    assert attempt.state == "failed"
    assert attempt.next_attempt_at is None
    assert list(only_step(context).attempts) == [attempt]


@pytest.mark.spec(159)
def test_failing_an_unknown_step_is_not_found():
    with pytest.raises(StepError, match="not found"):
        WorkflowRuntimeContext().handle_run_attempt_failed("charge", "Error: no", now=NOW)


@pytest.mark.spec(160)
def test_a_step_without_an_attempt_cannot_fail():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)

    with pytest.raises(StepError, match=r"(?i)no attempt in progress"):
        context.handle_run_attempt_failed("charge", "Error: no", now=NOW)

    assert list(only_step(context).attempts) == []


@pytest.mark.spec(161)
def test_an_outcome_for_an_ended_attempt_is_refused_and_leaves_the_newer_one_alone():
    context = WorkflowRuntimeContext()
    context.get_or_create_run_step("charge", now=NOW)
    first = context.handle_run_attempt_started("charge", now=NOW)
    context.handle_run_attempt_failed("charge", "Error: no", now=NOW, retry=RetryPolicy(initial=0))
    second = context.handle_run_attempt_started("charge", now=LATER)
    before = only_step(context)

    with pytest.raises(StepError, match="not in progress"):
        context.handle_run_attempt_succeeded("charge", "1", now=LATER, attempt_id=first.id)
    with pytest.raises(StepError, match="not in progress"):
        context.handle_run_attempt_failed("charge", "Error: late", now=LATER, attempt_id=first.id)

    assert only_step(context) == before
    assert context.handle_run_attempt_succeeded("charge", "2", now=LATER, attempt_id=second.id).state == "succeeded"
    assert last_attempt(context).result_json == "2"
