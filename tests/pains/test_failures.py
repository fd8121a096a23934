"""A failure is recorded with a text that can be read, whatever was raised and wherever, and everything goes on."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest
from tests.signals import attempt_states
from tests.support import Callback, async_test, definition, lifecycle, started

from workerflow import (
    DatabaseLockedError,
    DatabaseUnavailableError,
    Engine,
    EngineClosedError,
    InternalError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RunStep,
    SchemaVersionError,
    WaitTimeoutError,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowHeldError,
    WorkflowStateError,
)
from workerflow.testing import SimulatedEngine

TEXTS = {
    "empty": ("", ""),
    "blank": (" \n ", " \n "),
    "lines": ("first\nsecond\r\n\ttab", "first\nsecond\r\n\ttab"),
    "like-a-record": ("ValueError: ValueError: x", "ValueError: ValueError: x"),
    "like-a-template": ("%s {0} {name} $1 ?", "%s {0} {name} $1 ?"),
    "astral": ("🙂 é e\u0301", "🙂 é e\u0301"),
    "controls": ("\x01\x1b[31m\x7f", "\x01\x1b[31m\x7f"),
    "nul": ("a\x00b", "a\\x00b"),
    "surrogate": ("a\ud800\udfff", "a\\ud800\\udfff"),
    "only-nul": ("\x00", "\\x00"),
    "escape-of-nul": ("a\\x00b\\u0000", "a\\x00b\\u0000"),
}
"""The text of an error, and what is recorded of it."""


async def attempts_of(handle):
    """The attempts of the only run step."""
    (step,) = [step for step in await handle.steps() if isinstance(step, RunStep)]
    return step.attempts


async def can_be_read(engine, handle):
    """Everything that shows an instance shows this one."""
    assert await handle.status() == (await handle.info()).status
    assert [summary.id for summary in await engine.list(handle.workflow)] == [handle.id]
    assert await handle.steps() is not None
    assert (await lifecycle(handle))[:2] == ["created", "started"]


@pytest.mark.parametrize("where", ["callback", "thread", "body"])
@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS.keys())
@async_test
async def test_a_text_of_an_error_is_recorded_so_that_it_can_be_read_and_is_the_same_after_a_restart(
    text, shown, where
):
    caught = []

    def plain():
        raise ValueError(text)

    async def on_the_loop():
        plain()

    @definition
    async def Careless(self):
        if where == "body":
            plain()
        try:
            await self.run("step", plain if where == "thread" else on_the_loop, max_attempts=1)
        except MaxAttemptsExceededError as error:
            caught.append((type(error.__cause__).__name__, str(error), str(error.__cause__)))
        return await self.wait("end", "end")

    async with started(Careless) as (engine, handle):
        await engine.crash()
        await can_be_read(engine, handle)
        if where == "body":
            with pytest.raises(WorkflowFailedError) as failed:
                await handle.result(timeout=5)
            assert (failed.value.error_name, failed.value.error_message) == ("ValueError", shown)
            return
        (attempt,) = await attempts_of(handle)
        assert (attempt.error_name, attempt.error_message) == ("ValueError", f"ValueError: {shown}")
        await handle.send("end", "went on")
        assert await handle.result(timeout=5) == "went on"
        assert len(caught) > 1
        assert len(set(caught)) == 1


@pytest.mark.parametrize("error", [NonRetryableStepError(""), NonRetryableStepError(), NonRetryableStepError("", 0)])
@async_test
async def test_a_non_retryable_error_without_a_text_has_one_attempt_and_is_no_success(error):
    callback = Callback(always=error)

    @definition
    async def Charge(self):
        await self.run("charge", callback, max_attempts=5)

    async with started(Charge) as (engine, handle):
        await engine.advance(600)
        (attempt,) = await attempts_of(handle)
        assert (attempt.state, attempt.error_name, attempt.next_attempt_at) == ("failed", "NonRetryableStepError", None)
        assert (callback.calls, await handle.status()) == (1, "failed")


OWN = [
    DatabaseLockedError("locked"),
    DatabaseUnavailableError("full"),
    SchemaVersionError("newer"),
    EngineClosedError("closed"),
    InternalError("broken"),
    WorkflowStateError("not now", "paused"),
    WorkflowHeldError("Other", "other-1", "missing"),
    WorkflowFailedError("Other", "other-1", "ValueError", "no", None, ""),
    WorkflowCancelledError("Other", "other-1", "no"),
    WaitTimeoutError("other", "paid"),
    MaxAttemptsExceededError("other", 3),
]


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
@async_test
async def test_an_error_of_the_engine_itself_in_an_authors_mouth_is_an_ordinary_failure(error):
    """As when a callback asks another workflow for its result: it means nothing for this one."""
    callback = Callback(always=error)

    @definition
    async def Asking(self):
        await self.run("ask", callback, max_attempts=2)

    @definition
    async def Bystander(self):
        return await self.run("step", Callback("fine"), returns=str)

    async with SimulatedEngine([Asking, Bystander]) as engine:
        for workflow in (Asking, Bystander):
            await engine.get(workflow, "instance-1").create()
        await engine.advance(60)
        handle = engine.get(Asking, "instance-1")
        attempts = await attempts_of(handle)
        assert [(one.state, one.error_name) for one in attempts] == [("failed", type(error).__name__)] * len(attempts)
        assert callback.calls == len(attempts)
        assert (await handle.status(), (await handle.info()).held) == ("failed", None)
        assert await engine.get(Bystander, "instance-1").result(timeout=5) == "fine"


@pytest.mark.parametrize("change", ["deleted", "renamed", "other-arguments", "no-error-any-more", "module-gone"])
@pytest.mark.parametrize("base", [ValueError, NonRetryableStepError])
@async_test
async def test_a_failure_whose_class_has_changed_since_can_be_read_and_takes_the_same_branch(base, change, monkeypatch):
    errors = ModuleType("errors_that_change")
    declined: Any = type("Declined", (base,), {"__module__": errors.__name__})
    monkeypatch.setattr(errors, "Declined", declined, raising=False)
    monkeypatch.setitem(sys.modules, errors.__name__, errors)
    raised = declined("no")
    branches = []

    @definition
    async def Charge(self):
        if self.input == "body":
            raise raised
        try:
            await self.run("charge", Callback(always=raised), max_attempts=1)
        except NonRetryableStepError as error:
            branches.append(["non-retryable", str(error).rsplit(": ", 1)[-1]])
        except MaxAttemptsExceededError as error:
            branches.append(["exhausted", str(error.__cause__).rsplit(": ", 1)[-1]])
        return await self.wait("end", "end")

    async with SimulatedEngine([Charge]) as engine:
        for name in ("body", "step"):
            await engine.get(Charge, name).create(name)
        await engine.run_until_idle()
        change_class(errors, change, monkeypatch)
        await engine.crash()
        handle = engine.get(Charge, "step")
        await handle.send("end", "went on")
        assert await handle.result(timeout=5) == "went on"
        assert [attempt.error_message for attempt in await attempts_of(handle)] == ["Declined: no"]
        assert {str(branch) for branch in branches} == {str(branches[0])}
        assert len(branches) > 1
        assert branches[0][0] == ("exhausted" if base is ValueError else "non-retryable")
        with pytest.raises(WorkflowFailedError, match="Declined: no") as failed:
            await engine.get(Charge, "body").result(timeout=5)
        assert (failed.value.error_name, failed.value.error_message) == ("Declined", "no")
        assert "raise raised" in failed.value.traceback
        assert await lifecycle(engine.get(Charge, "body")) == ["created", "started", "failed"]
        assert len(await engine.list()) == 2


def change_class(errors, change, monkeypatch):
    """What a deploy may have done to a class of the author's."""
    declined = errors.Declined
    if change == "no-error-any-more":
        monkeypatch.setattr(errors, "Declined", int)
        return
    if change == "other-arguments":

        def new(cls, *, code):
            return declined.__new__(cls)

        monkeypatch.setattr(errors, "Declined", type("Declined", (declined,), {"__new__": new}))
        return
    monkeypatch.delattr(errors, "Declined")
    if change == "renamed":
        monkeypatch.setattr(errors, "Refused", declined, raising=False)
    if change == "module-gone":
        monkeypatch.delitem(sys.modules, errors.__name__)


PLACES = ("first", "between", "last", "finally", "deep", "task", "generator", "after-a-caught-error", "constructor")


@pytest.mark.parametrize("place", PLACES)
@async_test
async def test_an_error_outside_any_step_fails_the_workflow_at_once_and_no_step_is_tried_again(place):
    """With its type, message and traceback; and never by way of a silent second execution."""
    step = Callback("fine")

    class StrayError(Exception):
        pass

    def stray():
        raise StrayError("astray")

    async def deep():
        stray()

    async def values():
        yield 1
        stray()

    @definition
    async def Straying(self):
        if place == "first":
            stray()
        await self.run("one", step, returns=str)
        if place == "between":
            stray()
        try:
            await self.run("two", step, returns=str)
            if place == "after-a-caught-error":
                raise KeyError("caught")
        except KeyError:
            stray()
        finally:
            if place == "finally":
                stray()
        if place == "deep":
            await deep()
        if place == "task":
            await asyncio.create_task(deep())
        if place == "generator":
            [value async for value in values()]
        stray()

    def constructor(self):
        stray()

    workflow = type("Constructed", (Straying,), {"__init__": constructor}) if place == "constructor" else Straying
    async with started(workflow) as (engine, handle):
        with pytest.raises(WorkflowFailedError) as failed:
            await handle.result(timeout=5)
        assert (failed.value.error_name, failed.value.error_message) == ("StrayError", "astray")
        assert "in stray" in failed.value.traceback
        calls = {"first": 0, "constructor": 0, "between": 1}.get(place, 2)
        await engine.advance(3600)
        await engine.crash()
        assert step.calls == calls
        assert list(attempt_states(await handle.steps()).values()) == [["succeeded"]] * calls
        assert (await lifecycle(handle), (await handle.info()).alarm_at) == (["created", "started", "failed"], None)


@async_test
async def test_a_client_beside_the_owner_is_told_of_a_failure_as_the_owner_is():
    @definition
    async def Failing(self):
        raise NonRetryableStepError("declined", {"code": 51})

    async with started(Failing) as (engine, handle), Engine(engine.url, [Failing], execute=False) as client:
        told = []
        for reader in (handle, client.get(Failing, handle.id)):
            with pytest.raises(WorkflowFailedError) as failed:
                await reader.result(timeout=5)
            told.append((str(failed.value), failed.value.data, failed.value.traceback))
        assert told[0] == told[1]
        assert told[0][1] == {"code": 51}
