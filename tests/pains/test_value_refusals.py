"""A value that cannot be stored is refused at once by the call that supplied it, and nothing of it is left behind."""

import logging
import re

import pytest
from tests.bodies import failure_of
from tests.pains.places import (
    ERRORS,
    RESULTS_OF_STEPS,
    Given,
    in_a_payload,
    in_a_step,
    in_the_data_of_the_end,
    in_the_input,
    in_the_result,
    put,
    workflows,
)
from tests.pains.values import BAD, MISDECLARED, is_same
from tests.support import async_test, definition, query, states, step_of

from workerflow import UNSET, Engine, InvalidValueError, NonRetryableStepError, RunStep, WorkflowFailedError
from workerflow.testing import SimulatedEngine

TABLES = ("instances", "steps", "attempts", "lifecycle_events", "inbound_events", "mail", "deliveries")
UNDECLARED = {name: (make, path) for name, (make, path, _) in BAD.items()}


def rows(engine):
    """How many rows each table has, in committed state."""
    return {table: query(engine, f"select count(*) from {table}")[0][0] for table in TABLES}


def given_values():
    """What is given, and the path that the refusal must name."""
    values = {name: (Given(make), path) for name, (make, path) in UNDECLARED.items()}
    declared = {name: (Given(make, kind), path) for name, (kind, make, path) in MISDECLARED.items()}
    return values | declared


@pytest.mark.parametrize("place", RESULTS_OF_STEPS)
@async_test
async def test_a_result_of_a_step_that_cannot_be_stored_fails_it_at_once_and_for_good(place):
    values = given_values()
    made = workflows(place, {name: given for name, (given, _) in values.items()})
    async with SimulatedEngine(made.values()) as engine:
        for workflow in made.values():
            await engine.get(workflow, "instance-1").create()
        await engine.advance(60)
        await engine.crash()
        for name, (given, path) in values.items():
            handle = engine.get(made[name], "instance-1")
            (attempt,) = (await step_of(handle, "give", RunStep)).attempts
            assert (attempt.state, attempt.error_name) == ("failed", "NonRetryableStepError"), name
            assert (attempt.result_type, attempt.result_json, attempt.next_attempt_at) == (None, None, None), name
            assert f"(at {path})" in str(attempt.error_message), f"{name}: {attempt.error_message}"
            assert (given.calls, given.seen) == (1, []), name
            info = await handle.info()
            assert (info.status, info.alarm_at, info.held) == ("failed", None, None), name
            with pytest.raises(WorkflowFailedError, match=re.escape(f"(at {path})")):
                await handle.result(timeout=5)


@async_test
async def test_a_refused_result_may_be_caught_and_is_the_same_error_after_a_restart():
    caught: dict[str, list[str]] = {}

    @definition
    async def Careful(self):
        async def give():
            return BAD[self.input][0]()

        try:
            await self.run("give", give)
        except NonRetryableStepError as error:
            caught.setdefault(self.input, []).append(str(error))
        return await self.wait("end", "end")

    async with SimulatedEngine([Careful]) as engine:
        for name in BAD:
            await engine.get(Careful, name).create(name)
        await engine.run_until_idle()
        await engine.crash()
        for name in BAD:
            await engine.get(Careful, name).send("end", "caught")
            assert await engine.get(Careful, name).result(timeout=5) == "caught"
            assert len(caught[name]) > 1
            assert len(set(caught[name])) == 1


@async_test
async def test_a_result_of_a_workflow_that_cannot_be_stored_fails_it_at_once():
    values = given_values()
    made = workflows(in_the_result, {name: given for name, (given, _) in values.items()})
    async with SimulatedEngine(made.values()) as engine:
        for workflow in made.values():
            await engine.get(workflow, "instance-1").create()
        await engine.run_until_idle()
        await engine.crash()
        for name, (given, path) in values.items():
            info = await engine.get(made[name], "instance-1").info()
            assert (info.status, info.result, given.calls) == ("failed", UNSET, 1), name
            assert info.failure is not None
            assert info.failure.name == "InvalidValueError", name
            assert f"(at {path})" in info.failure.message, f"{name}: {info.failure.message}"


@pytest.mark.parametrize("by_mail", [False, True], ids=["directly", "by-mail"])
@pytest.mark.parametrize("place", [in_the_input, in_a_payload])
@async_test
async def test_an_input_or_payload_that_cannot_be_stored_is_refused_at_the_call_and_leaves_no_row(place, by_mail):
    values = {name: (Given(make), path) for name, (make, path) in UNDECLARED.items()}
    made = workflows(place, {name: given for name, (given, _) in values.items()})
    async with (
        SimulatedEngine(made.values()) as engine,
        Engine(engine.url, made.values(), execute=False) as client,
    ):
        before = rows(engine)
        for name, (given, path) in values.items():
            handle = (client if by_mail else engine).get(made[name], "instance-1")
            with pytest.raises(InvalidValueError) as refused:
                await (handle.create(given.make()) if place is in_the_input else handle.send("given", given.make()))
            assert refused.value.path == path, f"{name}: {refused.value}"
        await engine.run_until_idle()
        assert rows(engine) == before
        # The same call with a value that will do does what it says.
        handle = engine.get(made["nan"], "instance-1")
        assert await handle.create() is True
        assert await handle.send("given", 1) in ("used", "queued")


@async_test
async def test_an_input_that_is_not_what_the_definition_declares_is_refused_and_leaves_no_row():
    values = {
        # A dict that says the same is welcome where a data class is declared.
        name: (Given(make, kind), path)
        for name, (kind, make, path) in MISDECLARED.items()
        if name not in ("dict-for-a-data-class", "int-for-int-enum", "list-for-tuple")
    }
    made = workflows(in_the_input, {name: given for name, (given, _) in values.items()})
    async with SimulatedEngine(made.values()) as engine:
        before = rows(engine)
        for name, (given, path) in values.items():
            with pytest.raises(InvalidValueError) as refused:
                await put(in_the_input, engine.get(made[name], "instance-1"), given)
            assert refused.value.path == path, f"{name}: {refused.value}"
        assert rows(engine) == before


@async_test
async def test_a_payload_that_is_not_what_the_wait_declares_is_refused_by_the_sender_or_fails_the_workflow():
    values = {name: (Given(make, kind), path) for name, (kind, make, path) in MISDECLARED.items()}
    made = workflows(in_a_payload, {name: given for name, (given, _) in values.items()})
    async with SimulatedEngine(made.values()) as engine:
        for name, (given, _) in values.items():
            handle = engine.get(made[name], "instance-1")
            await handle.create()
            try:
                await handle.send("given", given.make())
            except InvalidValueError:
                await handle.cancel()
            await engine.run_until_idle()
            if await handle.status() == "failed":
                assert (await failure_of(handle)).error_name == "InvalidValueError", name
            for value in given.seen:
                # What another type says in plain JSON is of the declared type when it is heard.
                assert type(value) is given.kind or not is_same(value, given.make()), name
                assert not is_same(value, None), name


@pytest.mark.parametrize("place", ERRORS)
@async_test
async def test_data_of_an_error_that_cannot_be_stored_is_absent_at_once_and_not_only_after_a_restart(place, caplog):
    table = {name: Given(make) for name, (make, _) in UNDECLARED.items()}
    made = workflows(place, table)
    async with SimulatedEngine(made.values()) as engine:
        for name, workflow in made.items():
            caplog.clear()
            handle = engine.get(workflow, "instance-1")
            await handle.create()
            await engine.run_until_idle()
            assert states(await step_of(handle, "give", RunStep)) == ["failed"], name
            assert [record for record in caplog.records if record.levelno == logging.WARNING], name
        await engine.crash()
        for name, workflow in made.items():
            handle = engine.get(workflow, "instance-1")
            await handle.send("end")
            assert await handle.result(timeout=5) is None
            assert (table[name].calls, set(table[name].seen)) == (1, {None}), name
            assert len(table[name].seen) > 1, name


@async_test
async def test_a_workflow_ends_and_can_be_read_whatever_the_data_of_its_last_error():
    table = {name: Given(make) for name, (make, _) in UNDECLARED.items()}
    made = workflows(in_the_data_of_the_end, table)
    async with SimulatedEngine(made.values()) as engine:
        for name, workflow in made.items():
            handle = engine.get(workflow, "instance-1")
            await handle.create()
            with pytest.raises(WorkflowFailedError, match="NonRetryableStepError: declined") as failed:
                await handle.result(timeout=5)
            assert failed.value.data is None, name
            assert failed.value.traceback != "", name
        assert len(await engine.list(status="failed", limit=1000)) == len(made)


WHERE = {in_a_step: "step 'give'", in_a_payload: "event 'given'", in_the_input: "input of", in_the_result: "result of"}


async def messages(place):
    """What is said to each value that cannot be stored, by the call or by the workflow that it fails."""
    made = workflows(place, {name: Given(make) for name, (make, _, _) in BAD.items()})
    said = {}
    async with SimulatedEngine(made.values()) as engine:
        for name, (make, _, _) in BAD.items():
            handle = engine.get(made[name], "instance-1")
            try:
                await put(place, handle, Given(make))
                await handle.result(timeout=5)
            except InvalidValueError as error:
                said[name] = str(error)
            except WorkflowFailedError as error:
                said[name] = error.error_message
    return said


@pytest.mark.parametrize("place", WHERE)
@async_test
async def test_the_message_of_a_refusal_names_the_instance_the_place_and_the_path(place):
    for name, message in (await messages(place)).items():
        for part in (WHERE[place], "'instance-1'", f"(at {BAD[name][1]})"):
            assert part in message, f"{name} without {part}: {message}"


@async_test
async def test_the_message_of_a_refusal_names_the_type_of_the_culprit():
    said = await messages(in_the_result)
    assert [name for name, (_, _, kind) in BAD.items() if kind not in said[name]] == []
