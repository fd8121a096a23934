"""Events, changed code and listings: nothing is used twice, taken for something else, or made by looking at it."""

import asyncio
from itertools import permutations

import pytest
from tests.bodies import versions
from tests.support import Callback, async_test, definition, lifecycle, query, started, step_of

from workerflow import UNSET, Engine, WaitStep, WorkflowHeldError
from workerflow.testing import SimulatedEngine


@definition
async def TwoPayments(self):
    return [await self.wait(f"payment-{number}", "paid", int) for number in range(2)]


@pytest.mark.weakness(19)
@pytest.mark.parametrize("sender", ["same process", "another"])
@async_test
async def test_an_event_that_is_sent_again_never_serves_the_next_wait(sender):
    async with (
        started(TwoPayments) as (engine, handle),
        Engine(engine.url, [TwoPayments], execute=False) as client,
    ):
        again = (engine if sender == "same process" else client).get(TwoPayments, "instance-1")
        assert await handle.send("paid", 1, id="webhook-1") == "used"
        for _ in range(3):
            assert await again.send("paid", 1, id="webhook-1") == "duplicate"
            await engine.crash()
        assert (await step_of(handle, "payment-1", WaitStep)).state == "waiting"

        assert await handle.send("paid", 2, id="webhook-2") == "used"

        assert await handle.result(timeout=5) == [1, 2]
        assert await again.send("paid", 1, id="webhook-1") == "duplicate"
        assert [event.id for event in (await handle.info()).inbound_events] == ["webhook-1", "webhook-2"]


@pytest.mark.weakness(19)
@async_test
async def test_a_sender_is_told_what_became_of_its_event_and_unused_ones_stay_visible():
    async with started(TwoPayments) as (engine, handle):
        assert await handle.send("paid", 1, id="a") == "used"
        assert await handle.send("note", "early", id="b") == "queued"
        assert await handle.send("note") == "queued"
        assert await handle.send("note", "other", id="b") == "duplicate"
        assert await handle.send("paid", 2) == "used"
        await engine.run_until_idle()
        assert await handle.send("paid", 3, id="c") == "dropped"
        await engine.crash()

        events = (await handle.info()).inbound_events
        assert [(event.name, event.payload, event.id, event.claimed_by) for event in events] == [
            ("paid", 1, "a", "payment-0"),
            ("note", "early", "b", None),
            ("note", UNSET, None, None),
            ("paid", 2, None, "payment-1"),
        ]


async def run_in_execute(self):
    await self.run("step", Callback())


async def sleep_in_execute(self):
    await self.sleep("step", 60)


async def wait_in_execute(self):
    await self.wait("step", "go")


def beneath(code, parent):
    async def nested(self):
        async def outer():
            await code(self)

        await self.run(parent, outer)

    return nested


# A step that a callback asks for comes last: by then, what is no longer asked for has been abandoned.
KEPT = "select kind, parent_step_id, state, event_name, created_at, resolved_at from steps where step_id = 'step'"

SHAPES = {
    "a run with parent None": run_in_execute,
    "a sleep with parent None": sleep_in_execute,
    "a wait with parent None": wait_in_execute,
    "a run with parent 'parent'": beneath(run_in_execute, "parent"),
    "a wait with parent 'parent'": beneath(wait_in_execute, "parent"),
    "a run with parent 'other'": beneath(run_in_execute, "other"),
}


def then_wait(code):
    async def waiting(self):
        if code is wait_in_execute or code is SHAPES["a wait with parent 'parent'"]:
            return await code(self)
        await code(self)
        await self.wait("end", "go")

    return waiting


@pytest.mark.weakness(20)
@pytest.mark.parametrize(
    ("stored", "asked"),
    # A callback that has returned is not entered again, whatever its new code would ask for.
    [(stored, asked) for stored, asked in permutations(SHAPES, 2) if stored != "a run with parent 'parent'"],
)
@async_test
async def test_a_step_that_has_become_another_holds_the_instance_and_says_what_is_stored_and_what_is_asked(
    stored, asked
):
    workflow, code = versions(then_wait(SHAPES[stored]))

    async with started(workflow) as (engine, handle):
        await engine.advance(60)
        kept = query(engine, KEPT)
        assert len(kept) == 1

        code[0] = then_wait(SHAPES[asked])
        await engine.crash()
        await handle.send("wake")
        await engine.advance(60)

        with pytest.raises(WorkflowHeldError) as held:
            await handle.result(timeout=5)
        message = str(held.value)
        assert "workflow 'Changing' instance 'instance-1' is held" in message
        assert f"step 'step' is stored as {stored}" in message
        assert f"now asks for {asked}" in message
        assert (await handle.info()).held_reason == held.value.reason
        assert query(engine, KEPT) == kept

        code[0] = then_wait(SHAPES[stored])
        await engine.crash()
        await handle.resume()
        await handle.send("go")
        await engine.advance(60)
        assert await handle.status() == "completed"


@pytest.mark.weakness(20)
@async_test
async def test_steps_may_be_reordered_added_and_left_out_between_two_versions():
    calls = {name: Callback(name) for name in ("a", "b", "c", "new")}

    def sequence(*names):
        async def steps(self):
            found = [await self.run(name, calls[name], returns=str) for name in names]
            await self.wait("end", "go")
            return found

        return steps

    workflow, code = versions(sequence("a", "b", "c"))
    async with started(workflow) as (engine, handle):
        code[0] = sequence("new", "c", "a")
        await engine.crash()
        await handle.send("go")

        assert await handle.result(timeout=5) == ["new", "c", "a"]
        assert {name: call.calls for name, call in calls.items()} == {"a": 1, "b": 1, "c": 1, "new": 1}


async def status(handle):
    assert await handle.status() == "pending"


async def steps(handle):
    assert await handle.steps() == []


async def log(handle):
    assert await lifecycle(handle) == []


async def info(handle):
    found = await handle.info()
    assert (found.status, found.input, found.inbound_events) == ("pending", UNSET, [])


async def result(handle):
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0)


async def pause(handle):
    await handle.pause()


@pytest.mark.weakness(21)
@pytest.mark.parametrize("executes", [True, False], ids=["engine", "reader"])
@pytest.mark.parametrize("look", [status, steps, log, info, result, pause])
@async_test
async def test_looking_at_an_unknown_instance_makes_none(look, executes):
    async with SimulatedEngine([TwoPayments]) as engine, Engine(engine.url, [], execute=False) as reader:
        handle = engine.get(TwoPayments, "misspelt") if executes else reader.get("TwoPayments", "misspelt")
        await look(handle)
        await engine.run_until_idle()
        assert await engine.list() == []
        assert query(engine, "select count(*) from instances") == [(0,)]


@pytest.mark.weakness(21)
@async_test
async def test_instances_are_found_by_workflow_and_status_newest_first():
    @definition
    async def Short(self):
        return self.input

    async with SimulatedEngine([TwoPayments, Short]) as engine:
        for number in range(3):
            await engine.get(TwoPayments, f"long-{number}").create()
            await engine.advance(1)
            await engine.get(Short, f"short-{number}").create(number)
            await engine.advance(1)
        await engine.get(TwoPayments, "long-1").cancel()

        async def found(**filters):
            return [summary.id for summary in await engine.list(**filters)]

        assert await found() == ["short-2", "long-2", "short-1", "long-1", "short-0", "long-0"]
        assert await found(workflow=Short) == ["short-2", "short-1", "short-0"]
        assert await found(workflow="TwoPayments", status="running") == ["long-2", "long-0"]
        assert await found(status="cancelled") == ["long-1"]
        assert await found(status="failed") == []
        assert await asyncio.gather(*(engine.get(Short, f"short-{n}").result(timeout=5) for n in range(3))) == [0, 1, 2]
