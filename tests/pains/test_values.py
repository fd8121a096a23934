"""A value that can be stored comes back equal and of the same type, from every place, at once and after a restart."""

import msgspec
import pytest
from tests.pains.places import (
    ERRORS,
    RESULTS_OF_STEPS,
    Given,
    in_a_payload,
    in_the_data_of_the_end,
    in_the_input,
    in_the_result,
    put,
    workflows,
)
from tests.pains.values import DECLARED, GOOD, is_same
from tests.support import async_test, definition, lifecycle, started, step_of

from workerflow import UNSET, Engine, WaitStep, WorkflowCancelledError, WorkflowFailedError
from workerflow.testing import SimulatedEngine


async def comes_back(place, table):
    """Take each value to the place, crash, and let every instance go on to its end."""
    made = workflows(place, table)
    async with SimulatedEngine(made.values()) as engine:
        handles = {name: engine.get(workflow, "instance-1") for name, workflow in made.items()}
        for name, handle in handles.items():
            await put(place, handle, table[name])
        await engine.run_until_idle()
        first = {name: list(given.seen) for name, given in table.items()}
        await engine.crash()
        for handle in handles.values():
            await handle.send("end")
        for name, handle in handles.items():
            given = table[name]
            result = await handle.result(timeout=5)
            if place is in_the_result:
                first[name] = [result]
                given.seen.append(await handle.result(timeout=5))
            else:
                assert len(given.seen) > len(first[name]), f"{name} was not seen again"
            assert first[name], f"{name} was not seen at first"
            for value in [*first[name], *given.seen]:
                assert is_same(given.make(), value), f"{name} came back as {value!r}"


@pytest.mark.parametrize("place", [*RESULTS_OF_STEPS, *ERRORS, in_the_input, in_a_payload, in_the_result])
@async_test
async def test_exact_json_comes_back_as_it_was_from_every_place_without_a_declared_type(place):
    await comes_back(place, {name: Given(make) for name, make in GOOD.items()})


@pytest.mark.parametrize("place", [*RESULTS_OF_STEPS, in_the_input, in_the_result])
@async_test
async def test_a_value_of_a_declared_type_comes_back_as_it_was_from_every_place(place):
    await comes_back(place, {name: Given(make, kind) for name, (kind, make) in DECLARED.items()})


def as_json(make):
    """What a sender that does not know the type of the wait says instead."""
    text = msgspec.json.encode(make(), enc_hook=lambda model: model.model_dump(mode="json"))
    return lambda: msgspec.json.decode(text)


@async_test
async def test_a_payload_in_plain_json_comes_to_the_wait_as_the_type_that_it_declares():
    for name, (kind, make) in DECLARED.items():
        given, plain = Given(make, kind), Given(as_json(make))
        made = workflows(in_a_payload, {name: given})
        async with started(made[name]) as (engine, handle):
            await handle.send("given", plain.make())
            await engine.crash()
            await handle.send("end")
            assert await handle.result(timeout=5) is None
            assert len(given.seen) > 0
            assert all(is_same(make(), value) for value in given.seen), name


@async_test
async def test_the_data_of_the_error_that_ends_a_workflow_is_there_for_whoever_asks_after_a_restart():
    table = {name: Given(make) for name, make in GOOD.items()}
    made = workflows(in_the_data_of_the_end, table)
    async with SimulatedEngine(made.values()) as engine:
        for workflow in made.values():
            await engine.get(workflow, "instance-1").create()
        await engine.run_until_idle()
        await engine.crash()
        for name, workflow in made.items():
            with pytest.raises(WorkflowFailedError) as failed:
                await engine.get(workflow, "instance-1").result(timeout=5)
            assert is_same(failed.value.data, GOOD[name]()), name


@async_test
async def test_what_readers_see_of_a_value_is_what_was_given_also_beside_the_owner():
    @definition
    async def Shown(self):
        await self.wait("wait", "given")
        return self.input

    async with SimulatedEngine([Shown]) as engine, Engine(engine.url, [Shown], execute=False) as client:
        for name, make in GOOD.items():
            await client.get(Shown, name).create(make())
            await client.get(Shown, name).send("given", make())
        await client.get(Shown, "nothing").create()
        await client.get(Shown, "nothing").send("given")
        await engine.run_until_idle()
        await engine.crash()
        for name, make in GOOD.items() | {"nothing": lambda: UNSET}.items():
            for reader in (engine, client):
                info = await reader.get(Shown, name).info()
                wait = await step_of(reader.get(Shown, name), "wait", WaitStep)
                shown = [info.input, info.inbound_events[0].payload, wait.payload]
                assert all(is_same(make(), value) for value in shown), name
                result = None if name == "nothing" else make()
                assert is_same(await reader.get(Shown, name).result(timeout=5), result), name


REASONS = [
    "",
    "late",
    "a: b\nc\t",
    "🙂 é e\u0301",
    "\"\\u0000' ; drop table instances --",
    "\x01\x7f\ufeff",
    "x" * 10_000,
]


@pytest.mark.parametrize("by_mail", [False, True], ids=["directly", "by-mail"])
@async_test
async def test_the_reason_of_a_cancellation_comes_back_as_it_was_given(by_mail):
    @definition
    async def Idle(self):
        await self.wait("end", "end")

    async with SimulatedEngine([Idle]) as engine, Engine(engine.url, [Idle], execute=False) as client:
        for number in range(len(REASONS)):
            await engine.get(Idle, str(number)).create()
        for number, reason in enumerate(REASONS):
            await (client if by_mail else engine).get(Idle, str(number)).cancel(reason)
        await engine.run_until_idle()
        await engine.crash()
        for number, reason in enumerate(REASONS):
            handle = engine.get(Idle, str(number))
            with pytest.raises(WorkflowCancelledError) as cancelled:
                await handle.result(timeout=5)
            assert cancelled.value.reason == reason
            assert await lifecycle(handle) == ["created", "started", "cancelled"]
            assert [event.cancellation_reason for event in await handle.events()] == [None, None, reason]
