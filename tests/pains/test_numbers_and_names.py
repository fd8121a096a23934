"""A number or a name that means nothing is refused by every call that takes one, and nobody else is hurt by it."""

import enum
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from tests.support import async_test, definition, query, started, states

from workerflow import DefinitionError, Engine, RetryPolicy, RunStep, Settings
from workerflow.testing import SimulatedEngine

TABLES = ("instances", "steps", "attempts", "lifecycle_events", "inbound_events", "mail", "deliveries")


async def nothing():
    return None


BAD_NUMBERS: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "negative-infinity": -math.inf,
    "negative": -1,
    "slightly-negative": -0.001,
    "hardly-negative": -1e-9,
    "negative-timedelta": timedelta(microseconds=-1),
    "longest-timedelta": timedelta.max,
    "shortest-timedelta": timedelta.min,
    "beyond-float": 10**400,
    "true": True,
    "text": "1",
    "bytes": b"1",
    "list": [1],
    "complex": 1j,
    "fraction": Fraction(1, 2),
    "decimal": Decimal(1),
    "moment": datetime(2031, 1, 1, tzinfo=UTC),
    "function": nothing,
}

VERBS = {
    "sleep": lambda self, value: self.sleep("a", value),
    "wait-timeout": lambda self, value: self.wait("a", "paid", timeout=value),
    "run-timeout": lambda self, value: self.run("a", nothing, timeout=value),
    "timeout": lambda self, value: self.timeout("a", value),
    "max-attempts": lambda self, value: self.run("a", nothing, max_attempts=value),
    "retry": lambda self, value: self.run("a", nothing, retry=value),
    "id-of-run": lambda self, value: self.run(value, nothing),
    "id-of-sleep": lambda self, value: self.sleep(value, 1),
    "id-of-sleep-until": lambda self, value: self.sleep_until(value, datetime(2031, 1, 1, tzinfo=UTC)),
    "id-of-wait": lambda self, value: self.wait(value, "paid"),
    "id-of-timeout": lambda self, value: self.timeout(value, 1),
    "event-of-wait": lambda self, value: self.wait("a", value),
}
NUMBERS = [name for name in VERBS if not name.startswith(("id-", "event-"))]
NAMES = [name for name in VERBS if name.startswith(("id-", "event-"))]

BAD_NAMES: dict[str, Any] = {
    "empty": "",
    "of-10-kB": "x" * 10_000,
    "one-too-long": "é" * 501,
    "line-feed": "order\n1",
    "first-control": "\x01",
    "last-control": "order\x9f",
    "delete": "order\x7f",
    "nul": "order\x00",
    "lone-surrogate": "\udfff",
    "number": 1042,
    "bytes": b"order",
    "none": None,
    "true": True,
    "list": ["order"],
    "function": nothing,
}


def rows(engine):
    """How many rows each table has, in committed state."""
    return {table: query(engine, f"select count(*) from {table}")[0][0] for table in TABLES}


async def refused_in(place, verb, values):
    """What the verb says to each value, asked in the body or in a callback, each in an instance of its own."""
    said = {}

    @definition
    async def Asking(self):
        async def ask():
            try:
                asked = VERBS[verb](self, values[self.input])
                if verb == "id-of-timeout":  # It asks for its step when it is entered.
                    await asked.__aenter__()
            except DefinitionError as error:
                said[self.input] = str(error)

        await (self.run("outer", ask) if place == "callback" else ask())
        return await self.run("after", nothing)

    async with SimulatedEngine([Asking]) as engine:
        for name in values:
            await engine.get(Asking, name).create(name)
        for name in values:
            assert await engine.get(Asking, name).result(timeout=5) is None
            steps = await engine.get(Asking, name).steps()
            assert [step.id for step in steps] == ["outer", "after"][place == "body" :]
            assert all(states(step) == ["succeeded"] for step in steps if isinstance(step, RunStep))
    return said


@pytest.mark.parametrize("place", ["body", "callback"])
@pytest.mark.parametrize("verb", NUMBERS)
@async_test
async def test_a_number_that_means_nothing_is_refused_by_every_verb_and_the_workflow_can_go_on(verb, place):
    said = await refused_in(place, verb, BAD_NUMBERS)
    assert BAD_NUMBERS.keys() - said.keys() == set()
    assert [message for message in said.values() if "'a'" not in message] == []


@pytest.mark.parametrize("place", ["body", "callback"])
@pytest.mark.parametrize("verb", NAMES)
@async_test
async def test_a_name_that_cannot_be_one_is_refused_by_every_verb_and_the_workflow_can_go_on(verb, place):
    said = await refused_in(place, verb, BAD_NAMES)
    assert BAD_NAMES.keys() - said.keys() == set()
    assert max(map(len, said.values())) < 500


@definition
async def Listener(self):
    return await self.wait("wait", "paid")


CALLS = {
    "result": lambda engine, handle, value: handle.result(timeout=value),
    "advance": lambda engine, handle, value: engine.advance(value),
    "limit": lambda engine, handle, value: engine.list(limit=value),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@async_test
async def test_a_number_that_means_nothing_is_refused_by_handle_and_engine(call):
    async with started(Listener) as (engine, handle):
        before = (rows(engine), engine.now())
        for name, value in BAD_NUMBERS.items():
            if call is CALLS["result"] and name == "infinity":
                continue
            with pytest.raises(DefinitionError):
                await call(engine, handle, value)
        assert (rows(engine), engine.now()) == before
        await handle.send("paid", 1)
        assert await handle.result(timeout=5) == 1


@pytest.mark.parametrize("field", ["initial", "factor", "maximum", "jitter", "max_elapsed", "max_attempts"])
def test_a_number_that_means_nothing_is_refused_by_a_retry_policy(field):
    for value in BAD_NUMBERS.values():
        with pytest.raises(DefinitionError, match=field):
            RetryPolicy(**{field: value})


@pytest.mark.parametrize("field", [name for name in Settings.__slots__ if name != "synchronous"])
def test_a_number_that_means_nothing_is_refused_by_the_settings(field):
    for value in BAD_NUMBERS.values():
        with pytest.raises(DefinitionError, match=field):
            Settings(**{field: value})


@pytest.mark.parametrize("beside", [False, True], ids=["owner", "beside"])
@async_test
async def test_a_name_that_cannot_be_one_is_refused_by_handle_and_engine_and_leaves_no_row(beside):
    async with SimulatedEngine([Listener]) as owner, Engine(owner.url, [Listener], execute=False) as client:
        engine = client if beside else owner
        handle = engine.get(Listener, "instance-1")
        before = rows(owner)
        for name, value in BAD_NAMES.items():
            with pytest.raises(DefinitionError):
                engine.get(Listener, value)
            with pytest.raises(DefinitionError):
                engine.get(value, "instance-1")
            with pytest.raises(DefinitionError):
                await handle.send(value)
            if name != "none":
                with pytest.raises(DefinitionError):
                    await handle.send("paid", id=value)
                with pytest.raises(DefinitionError):
                    await engine.list(value)
        assert rows(owner) == before


class Order(enum.StrEnum):
    FIRST = "order-1"
    PAID = "paid"


class Text(str):
    pass


@pytest.mark.parametrize("beside", [False, True], ids=["owner", "beside"])
@pytest.mark.parametrize("kind", [str, Order, Text])
@async_test
async def test_a_name_of_a_kind_of_text_is_the_same_as_its_text(kind, beside):
    @definition
    async def Named(self):
        await self.run(kind("order-1"), nothing)
        await self.sleep(Text("sleep"), 1)
        return await self.wait("wait", kind("paid"))

    async with SimulatedEngine([Named]) as owner, Engine(owner.url, [Named], execute=False) as client:
        engine = client if beside else owner
        handle = engine.get(Named, kind("order-1"))
        await handle.create()
        await handle.send(kind("paid"), 1, id=kind("order-1"))
        await owner.advance(1)
        assert await owner.get(Named, "order-1").result(timeout=5) == 1
        assert await handle.send("paid", 1, id="order-1") == "duplicate"
        assert [step.id for step in await handle.steps()] == ["order-1", "sleep", "wait"]
        (event,) = (await handle.info()).inbound_events
        assert [type(text) for text in (event.name, event.id)] == [str, str]
