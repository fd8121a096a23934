"""Values come back as they were or are refused at once: nothing vanishes, is changed, or hangs a step."""

import asyncio
import math
import threading
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests.signals import attempt_states
from tests.support import Callback, async_test, definition, query, started, states, step_of

from workerflow import InvalidValueError, NonRetryableStepError, RunStep, WorkflowFailedError
from workerflow.testing import SimulatedEngine


class Empty:
    """An object whose attributes no JSON text would hold."""

    def __init__(self):
        self.secret = 1


def cyclic():
    value: dict[str, list[Any]] = {"items": []}
    value["items"].append(value)
    return value


def deep():
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


# What JSON makes null, drops, turns into text or {}, or chokes on; and where it is.
LOSSY = {
    "not a number": ({"price": math.nan}, "$.price"),
    "infinite": ([1.5, -math.inf], "$[1]"),
    "function": ({"name": "tea", "callback": print}, "$.callback"),
    "object": ({"item": Empty()}, "$.item"),
    "set": ({"tags": {"a", "b"}}, "$.tags"),
    "tuple": ({"pair": (1, 2)}, "$.pair"),
    "number as key": ({"by_year": {2030: "tea"}}, "$.by_year"),
    "bytes": ({"data": b"\x00\xff"}, "$.data"),
    "date": ({"on": date(2030, 1, 1)}, "$.on"),
    "naive time": ({"at": datetime(2030, 1, 1)}, "$.at"),
    "decimal": ({"price": Decimal("1.10")}, "$.price"),
    "complex": ([1j], "$[0]"),
    "lock": ({"lock": threading.Lock()}, "$.lock"),
    "iterator": ({"rows": iter([1, 2])}, "$.rows"),
    "half a character": ({"name": "\ud800"}, "$.name"),
    "unset": ({"note": msgspec.UNSET}, "$.note"),
    "cycle": (cyclic(), "$"),
    "too deep": (deep(), "$"),
}
lossy = pytest.mark.parametrize(("value", "path"), LOSSY.values(), ids=LOSSY)


async def create(handle, value):
    await handle.create(value)


async def send(handle, value):
    await handle.send("event", value)


@pytest.mark.weakness(17)
@pytest.mark.parametrize("verb", [create, send])
@lossy
@async_test
async def test_what_would_come_back_changed_is_refused_at_the_call_that_gave_it_and_makes_nothing(verb, value, path):
    @definition
    async def Accepting(self):
        return self.input

    async with SimulatedEngine([Accepting]) as engine:
        handle = engine.get(Accepting, "instance-1")
        with pytest.raises(InvalidValueError) as refused:
            await verb(handle, value)
        assert refused.value.path.startswith(path)
        assert await engine.list() == []


@pytest.mark.weakness(17, 18)
@lossy
@async_test
async def test_a_result_that_would_come_back_changed_ends_its_attempt_at_once_and_may_be_caught(value, path):
    make = Callback(value)

    @definition
    async def Catching(self):
        try:
            await self.run("make", make)
        except NonRetryableStepError as error:
            await self.run("undo", Callback())
            await self.wait("go", "go")
            return [str(error), error.data["path"]]

    async with started(Catching) as (engine, handle):
        assert states(await step_of(handle, "make", RunStep)) == ["failed"]
        await engine.crash()
        await handle.send("go")

        message, where = await handle.result(timeout=5)
        assert "step 'make'" in message
        assert where.startswith(path)
        assert make.calls == 1
        assert query(engine, "select count(*) from attempts where state = 'started'") == [(0,)]


@pytest.mark.weakness(17)
@lossy
@async_test
async def test_a_result_of_execute_that_would_come_back_changed_fails_the_workflow_and_says_where(value, path):
    @definition
    async def Giving(self):
        await self.run("call", Callback())
        return value

    async with started(Giving) as (_, handle):
        with pytest.raises(WorkflowFailedError) as failed:
            await handle.result(timeout=5)
        assert failed.value.error_name == "InvalidValueError"
        assert f"at {path}" in failed.value.error_message


# Borderline values that JSON can hold, if it is done with care.
EXACT: list[Any] = [
    0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 2**53 + 1, -(2**63), 2**64, 10**400, 1.0, 1, True, None, "",
    "\U0001f375", "2030-01-01T00:00:00Z", {"": None}, {"a": {}}, [[], {}], {"b": 1, "a": 2},
]  # fmt: skip


def exactly(value):
    """A text that tells 1, 1.0 and True apart, and the order of keys."""
    return repr(value)


@pytest.mark.weakness(17)
@pytest.mark.parametrize("value", EXACT, ids=lambda value: exactly(value)[:30])
@async_test
async def test_what_is_accepted_is_the_same_everywhere_on_the_first_execution_and_on_replay(value):
    seen = []

    @definition
    async def Passing(self):
        found = [self.input, await self.run("call", Callback(value)), await self.wait("event", "event")]
        seen.append([exactly(item) for item in found])
        await self.wait("go", "go")
        return value

    async with started(Passing, value) as (engine, handle):
        await handle.send("event", value)
        await engine.run_until_idle()
        await engine.crash()
        await handle.send("go")

        assert exactly(await handle.result(timeout=5)) == exactly(value)
        assert len(seen) >= 2
        assert seen == [[exactly(value)] * 3] * len(seen)


@pytest.mark.weakness(17)
@async_test
async def test_the_object_that_a_callback_keeps_is_not_the_one_that_the_body_gets():
    kept: dict[str, list[Any]] = {"items": [1]}
    seen: list[Any] = []

    async def make():
        return kept

    @definition
    async def Sharing(self):
        made = await self.run("make", make, returns=dict)
        await self.run("change", change)
        seen.append(list(made["items"]))
        made["items"].append("changed by the body")
        await self.wait("go", "go")

    async def change():
        kept["items"].append("changed by a callback")

    async with started(Sharing) as (engine, handle):
        await engine.crash()
        await handle.send("go")
        await handle.result(timeout=5)

    assert seen == [[1]] * len(seen)
    assert len(seen) >= 2


@pytest.mark.weakness(18)
@async_test
async def test_results_that_cannot_be_stored_beside_others_harm_only_their_own_steps():
    @definition
    async def Mixed(self):
        results = await asyncio.gather(
            *(self.run(name, Callback(value)) for name, (value, _) in LOSSY.items()),
            *(self.run(f"good-{number}", Callback(number), returns=int) for number in range(5)),
            return_exceptions=True,
        )
        return [result for result in results if isinstance(result, int)]

    async with started(Mixed) as (_, handle):
        assert await handle.result(timeout=5) == list(range(5))
        found = attempt_states(await handle.steps())
        assert [found[name] for name in LOSSY] == [["failed"]] * len(LOSSY)
