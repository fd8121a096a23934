"""Values that broke other engines: each comes back equal and of its own type, or is refused at once, everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import io
import logging
import math
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pydantic
import pytest
from tests.support import async_test, definition, query, started, states

from workerflow import (
    DatabaseLockedError,
    DatabaseUnavailableError,
    DefinitionError,
    Engine,
    EngineClosedError,
    InvalidValueError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RunStep,
    Settings,
    WorkflowCancelledError,
    WorkflowDefinition,
    WorkflowFailedError,
    WorkflowHandle,
)
from workerflow.store.base import DeposedError, StoreBusyError
from workerflow.testing import SimulatedEngine

Make = Callable[[], Any]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    pass


@dataclasses.dataclass
class Order:
    sku: str
    at: datetime
    tags: set[str]
    price: Decimal


class Item(msgspec.Struct):
    sku: str
    counts: dict[int, tuple[int, ...]]


class Model(pydantic.BaseModel):
    sku: str
    colour: Colour


Point = namedtuple("Point", "x y")


class Hostile:
    """An object that raises from whatever is asked of it."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __reduce__(self) -> Any:
        raise ValueError("no copy")


def cycle() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


# Without a declared type.
VALUES: dict[str, Make] = {
    "none": lambda: None,
    "true": lambda: True,
    "zero": lambda: 0,
    "negative-zero": lambda: -0.0,
    "float": lambda: 0.1 + 0.2,
    "smallest-float": lambda: 5e-324,
    "largest-float": lambda: sys.float_info.max,
    "whole-float": lambda: 1.0,
    "largest-64-bit": lambda: 2**63 - 1,
    "smallest-64-bit": lambda: -(2**63),
    "unsigned-64-bit": lambda: 2**64 - 1,
    "beyond-64-bit": lambda: 2**64,
    "far-beyond-64-bit": lambda: 10**5000,
    "empty-text": lambda: "",
    "text": lambda: 'Ünïcode 🙂 \u2028 "quoted" \\u0000 \x7f \x1b',
    "nested": lambda: {"a": [1, {"b": None, "": []}], "ä": [[], {}]},
    "set": lambda: {1, 2},
    "frozen-set": lambda: frozenset({1}),
    "generator": lambda: (number for number in range(3)),
    "iterator": lambda: iter([1]),
    "range": lambda: range(3),
    "open-file": lambda: io.StringIO("text"),
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "nan-within": lambda: {"price": [1.0, -math.inf]},
    "cycle": cycle,
    "too-deep": deep,
    "lone-surrogate": lambda: "a\ud800",
    "nul": lambda: "a\x00b",
    "nul-in-a-key": lambda: {"a\x00b": 1},
    "naive-time": lambda: datetime(2031, 1, 1),
    "aware-time": lambda: datetime(2031, 1, 1, tzinfo=UTC),
    "date": lambda: date(2031, 1, 1),
    "duration": lambda: timedelta(1),
    "tuple": lambda: (1, 2),
    "named-tuple": lambda: Point(1, 2),
    "number-keys": lambda: {1: "a"},
    "none-key": lambda: {None: 1},
    "ordered-dict": lambda: OrderedDict(a=1),
    "bytes": lambda: b"abc",
    "byte-array": lambda: bytearray(b"abc"),
    "decimal": lambda: Decimal("1.10"),
    "complex": lambda: 1j,
    "uuid": lambda: uuid.UUID(int=1),
    "enum": lambda: Colour.RED,
    "number-enum": lambda: Level.LOW,
    "text-subclass": lambda: Name("a"),
    "function": lambda: len,
    "class": lambda: int,
    "object": object,
    "hostile-object": Hostile,
    "hostile-object-within": lambda: {"a": [Hostile()]},
    "error": lambda: ValueError("x"),
}


def is_same(value: Any, again: Any) -> bool:
    """Equal, and of the same types all through."""
    if type(value) is not type(again):
        return False
    if isinstance(value, list):
        return len(value) == len(again) and all(map(is_same, value, again))
    if isinstance(value, dict):
        return list(value) == list(again) and all(map(is_same, value.values(), again.values()))
    return bool(value == again)


async def run_steps(handle: WorkflowHandle[Any]) -> list[RunStep]:
    """The run steps of an instance, in creation order."""
    return [step for step in await handle.steps() if isinstance(step, RunStep)]


def message_of(step: RunStep) -> str:
    """What the first attempt failed with."""
    return str(step.attempts[0].error_message)


async def refusal(call: Awaitable[Any]) -> str:
    """The message and path with which a value is refused; empty when it is not."""
    try:
        await call
    except InvalidValueError as error:
        return f"{error} {error.path}"
    return ""


async def as_input(make: Make, engine: SimulatedEngine, seen: list[Any]) -> bool:
    handle: WorkflowHandle[Any] = engine.get("AsInput", "instance-1")
    message = await refusal(handle.create(make()))
    assert "input of workflow 'AsInput' instance 'instance-1'" in message or not message
    assert bool(message) == (await engine.list("AsInput") == [])
    return not message


async def as_payload(make: Make, engine: SimulatedEngine, seen: list[Any]) -> bool:
    handle: WorkflowHandle[Any] = engine.get("AsPayload", "instance-1")
    await handle.create()
    await engine.run_until_idle()
    message = await refusal(handle.send("given", make()))
    assert "payload of event 'given'" in message or not message
    assert bool(message) == ((await handle.info()).inbound_events == [])
    return not message


async def as_step_result(make: Make, engine: SimulatedEngine, seen: list[Any]) -> bool:
    handle: WorkflowHandle[Any] = engine.get("AsStepResult", "instance-1")
    await handle.create()
    await engine.run_until_idle()
    (step,) = await run_steps(handle)
    if states(step) == ["succeeded"]:
        return True
    # At once and without a retry: the callback would give the same value again.
    (attempt,) = step.attempts
    assert (attempt.state, attempt.error_name, attempt.next_attempt_at) == ("failed", "NonRetryableStepError", None)
    assert "result of step 'give'" in message_of(step)
    assert "(at $" in message_of(step)
    assert await handle.status() == "failed"
    return False


async def as_result(make: Make, engine: SimulatedEngine, seen: list[Any]) -> bool:
    handle: WorkflowHandle[Any] = engine.get("AsResult", "instance-1")
    await handle.create()
    await engine.run_until_idle()
    if await handle.status() == "completed":
        seen.append(await handle.result(timeout=5))
        return True
    failure = (await handle.info()).failure
    assert failure is not None
    assert failure.name == "InvalidValueError"
    assert "result of workflow 'AsResult' instance 'instance-1'" in failure.message
    return False


def places(make: Make, seen: list[Any], kind: Any = Any) -> list[type[WorkflowDefinition[Any, Any]]]:
    """Definitions with a value of this type in each of the four places."""

    class AsInput(WorkflowDefinition[kind, None]):
        async def execute(self) -> None:
            seen.append(self.input)
            await self.wait("end", "end")

    class AsPayload(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            seen.append(await self.wait("wait", "given", kind))
            await self.wait("end", "end")

    class AsStepResult(WorkflowDefinition[None, None]):
        async def execute(self) -> None:
            async def give() -> Any:
                return make()

            seen.append(await self.run("give", give, returns=None if kind is Any else kind))
            await self.wait("end", "end")

    class AsResult(WorkflowDefinition[None, kind]):
        async def execute(self) -> Any:
            return make()

    return [AsInput, AsPayload, AsStepResult, AsResult]


PUTS = [as_input, as_payload, as_step_result, as_result]


async def restart(engine: SimulatedEngine) -> None:
    """Crash, and replay every instance that waits for its end."""
    await engine.crash()
    for summary in await engine.list(status="running"):
        await engine.get(summary.workflow, summary.id).send("end")
    await engine.run_until_idle()


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES.keys())
@async_test
async def test_a_value_comes_back_the_same_or_is_refused_wherever_it_is_given(make: Make) -> None:
    verdicts = []
    for put in PUTS:
        seen: list[Any] = []
        async with SimulatedEngine(places(make, seen)) as engine:
            accepted = await put(make, engine, seen)
            await engine.run_until_idle()
            await restart(engine)
            verdicts.append(accepted)
            if accepted:
                # Negative zero has become zero on the first execution already.
                expected = make() if make is not VALUES["negative-zero"] else seen[0]
                assert all(is_same(expected, value) for value in seen), put.__name__
                assert len(seen) > 1 or put is as_result, put.__name__
            assert [summary.held for summary in await engine.list()] in ([None], []), put.__name__
    assert len(set(verdicts)) == 1, dict(zip([put.__name__ for put in PUTS], verdicts, strict=True))


TYPED: dict[str, tuple[Any, Make]] = {
    "tuple": (tuple[int, str], lambda: (1, "a")),
    "number-keys": (dict[int, list[str]], lambda: {1: ["a"], -5: []}),
    "set": (set[str], lambda: {"a", "b"}),
    "frozen-set": (frozenset[int], lambda: frozenset({1})),
    "uuid": (uuid.UUID, lambda: uuid.UUID(int=7)),
    "decimal": (Decimal, lambda: Decimal("1.10")),
    "aware-time": (datetime, lambda: datetime(2031, 1, 1, 12, 30, 0, 123456, timezone(timedelta(hours=2)))),
    "date": (date, lambda: date(2031, 1, 1)),
    "duration": (timedelta, lambda: timedelta(days=1, microseconds=1)),
    "enum": (Colour, lambda: Colour.RED),
    "bytes": (bytes, lambda: bytes(range(256))),
    "200-KB-of-bytes": (bytes, lambda: bytes(range(256)) * 800),
    "dataclass": (Order, lambda: Order("tea", datetime(2031, 1, 1, tzinfo=UTC), {"a"}, Decimal("1.10"))),
    "struct": (Item, lambda: Item("tea", {1: (1, 2)})),
    "model": (Model, lambda: Model(sku="tea", colour=Colour.RED)),
    "list-of-models": (list[Model], lambda: [Model(sku="tea", colour=Colour.RED)]),
    "optional": (Order | None, lambda: None),
}


@pytest.mark.parametrize(("kind", "make"), TYPED.values(), ids=TYPED.keys())
@async_test
async def test_a_value_of_a_declared_type_has_it_on_the_first_execution_and_after_a_restart(
    kind: Any, make: Make
) -> None:
    for put in PUTS:
        seen: list[Any] = []
        async with SimulatedEngine(places(make, seen, kind)) as engine:
            if put is as_payload:
                # The sender does not know the wait's type: it may send what says the same in plain JSON.
                await engine.get("AsPayload", "instance-1").create()
                text = msgspec.json.encode(make(), enc_hook=lambda model: model.model_dump(mode="json"))
                await engine.get("AsPayload", "instance-1").send("given", msgspec.json.decode(text))
            else:
                assert await put(make, engine, seen), put.__name__
            await engine.run_until_idle()
            await restart(engine)
            assert len(seen) > 1 or put is as_result, put.__name__
            for value in seen:
                assert type(value) is type(make()), put.__name__
                assert value == make(), put.__name__


@async_test
async def test_what_the_caller_does_to_a_value_afterwards_changes_nothing() -> None:
    seen: list[Any] = []
    handed: list[list[Any]] = []

    @definition
    async def Keeper(self: Any) -> None:
        async def give() -> list[int]:
            handed.append([1])
            return handed[-1]

        seen.extend([self.input, await self.run("give", give), await self.wait("wait", "given")])
        handed[-1].append("changed by the callback's owner")
        await self.wait("end", "end")

    value, payload = {"a": [1]}, [1]
    async with started(Keeper, value) as (engine, handle):
        value["a"].append(2)
        await handle.send("given", payload)
        payload.append(2)
        await engine.run_until_idle()
        for _ in range(2):
            await engine.crash()
            await engine.run_until_idle()
        await handle.send("end")
        await handle.result(timeout=5)
        times, rest = divmod(len(seen), 3)
        assert (times > 1, rest) == (True, 0)
        assert seen == [{"a": [1]}, [1], [1]] * times
        assert (await handle.info()).input == {"a": [1]}


# Size.


async def stored_bytes(engine: Engine) -> int:
    """The bytes of all pages that the database uses, once its log is in it."""
    query(engine, "pragma wal_checkpoint(truncate)")
    ((pages, unused, size),) = query(
        engine,
        "select page_count, freelist_count, page_size from pragma_page_count, pragma_freelist_count, pragma_page_size",
    )
    return int((pages - unused) * size)


@async_test
async def test_a_value_of_16_mb_is_stored_once_at_about_its_own_size() -> None:
    text = "x" * (16 * 1024 * 1024 - 100)

    @definition
    async def Large(self: Any) -> None:
        async def give() -> str:
            return text

        assert await self.run("give", give) == text
        await self.wait("end", "end")

    async with started(Large) as (engine, handle):
        await engine.crash()
        await engine.run_until_idle()
        assert (await handle.info()).held is None
        assert len(text) < await stored_bytes(engine) < 1.05 * len(text)


async def over_limit(value: Any) -> dict[str, str]:
    """What each place says to a value that is too large for an engine with a limit of 1000 bytes."""
    said = {}
    seen: list[Any] = []
    workflows = places(lambda: value, seen)
    async with SimulatedEngine(workflows, settings=Settings(value_bytes_max=1000)) as engine:
        async with Engine(engine.url, workflows, execute=False, settings=Settings(value_bytes_max=1000)) as client:
            for name, sender in (("owner", engine), ("beside", client)):
                for place, verb in (
                    ("input", lambda handle: handle.create(value)),
                    ("payload", lambda handle: handle.send("given", value)),
                ):
                    with pytest.raises(InvalidValueError) as caught:
                        await verb(sender.get("AsInput", "instance-1"))
                    said[f"{place} {name}"] = str(caught.value)
            assert await client.list() == []
        assert not await _is_refused_with_limit(engine, "AsStepResult", said)
        assert not await _is_refused_with_limit(engine, "AsResult", said)
    return said


async def _is_refused_with_limit(engine: SimulatedEngine, workflow: str, said: dict[str, str]) -> bool:
    handle: WorkflowHandle[Any] = engine.get(workflow, "instance-1")
    await handle.create()
    await engine.run_until_idle()
    failure = (await handle.info()).failure
    steps = await run_steps(handle)
    said[workflow] = (message_of(steps[0]) if steps else failure and failure.message) or "accepted"
    return await handle.status() != "failed"


@async_test
async def test_a_value_over_the_limit_is_refused_everywhere_naming_place_size_and_limit() -> None:
    said = await over_limit("x" * 999)
    assert len(said) == 6
    for place, message in said.items():
        assert "1001 bytes" in message, place
        assert "limit is 1000" in message, place
    assert "'give'" in said["AsStepResult"]


@async_test
async def test_a_value_at_the_limit_is_accepted_everywhere() -> None:
    seen: list[Any] = []
    for put in PUTS:
        async with SimulatedEngine(places(lambda: "x" * 998, seen), settings=Settings(value_bytes_max=1000)) as engine:
            assert await put(lambda: "x" * 998, engine, seen), put.__name__


@async_test
async def test_a_value_that_is_large_but_allowed_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async with SimulatedEngine(places(lambda: "x" * 2000, []), settings=Settings(value_bytes_warn=1000)) as engine:
        await as_step_result(lambda: None, engine, [])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("'give'" in text and "'instance-1'" in text and "2002 bytes" in text for text in warnings)


@async_test
async def test_a_reason_over_the_limit_is_refused_and_cancels_nothing() -> None:
    @definition
    async def Idle(self: Any) -> None:
        await self.wait("end", "end")

    async with started(Idle, settings=Settings(value_bytes_max=1000)) as (_, handle):
        with pytest.raises((DefinitionError, InvalidValueError), match="1000"):
            await handle.cancel("x" * 5000)
        assert await handle.status() == "running"
        await handle.cancel("x" * 900)
        with pytest.raises(WorkflowCancelledError) as caught:
            await handle.result(timeout=5)
        assert caught.value.reason == "x" * 900


# Errors.


class WithResponseError(NonRetryableStepError):
    """As authors write them: with something that no database can store."""

    def __init__(self, message: str, response: Any) -> None:
        super().__init__(message)
        self.response = response


class TwoArgumentsError(NonRetryableStepError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class SilentNonRetryableError(NonRetryableStepError):
    def __str__(self) -> str:
        raise ValueError("no text")


NON_RETRYABLE: dict[str, tuple[Make, str]] = {
    "plain": (lambda: NonRetryableStepError("declined", {"code": 51}), "declined"),
    "empty": (lambda: NonRetryableStepError(""), ""),
    "data-set": (lambda: NonRetryableStepError("declined", {1}), "declined"),
    "data-tuple": (lambda: NonRetryableStepError("declined", (1, 2)), "declined"),
    "data-nan": (lambda: NonRetryableStepError("declined", math.nan), "declined"),
    "data-cycle": (lambda: NonRetryableStepError("declined", cycle()), "declined"),
    "data-hostile": (lambda: NonRetryableStepError("declined", Hostile()), "declined"),
    "data-huge": (lambda: NonRetryableStepError("declined", "x" * 5_000_000), "declined"),
    "text-nul": (lambda: NonRetryableStepError("de\x00clined"), "clined"),
    "text-surrogate": (lambda: NonRetryableStepError("declined \ud800"), "declined"),
    "text-huge": (lambda: NonRetryableStepError("declined" + "x" * 5_000_000), "declined"),
    "text-number": (lambda: NonRetryableStepError(5), "5"),  # type: ignore[arg-type]
    "text-raises": (lambda: SilentNonRetryableError("declined"), ""),
    "subclass-with-an-object": (lambda: WithResponseError("declined", object()), "declined"),
    "subclass-of-two-arguments": (lambda: TwoArgumentsError(51, "declined"), "declined"),
}


@pytest.mark.parametrize(("make", "text"), NON_RETRYABLE.values(), ids=NON_RETRYABLE.keys())
@async_test
async def test_a_non_retryable_error_stays_one_whatever_it_carries(make: Make, text: str) -> None:
    caught = []

    @definition
    async def Charge(self: Any) -> str:
        async def charge() -> None:
            raise make()

        try:
            await self.run("charge", charge, max_attempts=5)
        except NonRetryableStepError as error:
            caught.append(error)
        await self.wait("end", "end")
        return "compensated"

    async with started(Charge) as (engine, handle):
        (step,) = await run_steps(handle)
        assert [(attempt.state, attempt.next_attempt_at) for attempt in step.attempts] == [("failed", None)]
        assert text in message_of(step)
        await engine.crash()
        await handle.send("end")
        assert await handle.result(timeout=5) == "compensated"
    first, *others = caught
    assert others
    for again in others:
        assert (type(first), first.args, first.data) == (type(again), again.args, again.data)


@async_test
async def test_data_of_an_error_that_cannot_be_stored_is_not_dropped_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @definition
    async def Charge(self: Any) -> None:
        async def charge() -> None:
            raise NonRetryableStepError("declined", {"codes": {51}})

        await self.run("charge", charge)

    async with started(Charge) as (_, handle):
        failure = (await handle.info()).failure
        assert failure is not None
        assert failure.data is None
    assert "NonRetryableStepError" in caplog.text


class TextRaisesError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class TextIsNoTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class ReprRaisesError(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


class DataRaisesError(Exception):
    def __init__(self) -> None:
        super().__init__("text")
        self.response = object()

    @property
    def data(self) -> Any:
        raise ValueError("no data")


class ArgumentsRaiseError(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise ValueError("no arguments")


class AttributesRaiseError(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError("no attributes")


class NeedsKeywordsError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def chain() -> BaseException:
    error = ValueError("the first")
    for number in range(5000):
        follower = ValueError(f"number {number}")
        follower.__cause__ = error
        error = follower
    return error


def its_own_cause() -> BaseException:
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


UNREADABLE: dict[str, tuple[Make, str]] = {
    "text-raises": (TextRaisesError, "TextRaisesError"),
    "text-is-no-text": (TextIsNoTextError, "TextIsNoTextError"),
    "repr-raises": (lambda: ReprRaisesError("text"), "ReprRaisesError: text"),
    "data-raises": (DataRaisesError, "DataRaisesError: text"),
    "arguments-raise": (lambda: ArgumentsRaiseError("text"), "ArgumentsRaiseError: text"),
    "attributes-raise": (lambda: AttributesRaiseError("text"), "AttributesRaiseError: text"),
    "needs-keywords": (lambda: NeedsKeywordsError(code=5), "NeedsKeywordsError: code 5"),
    "nul": (lambda: ValueError("a\x00b"), "ValueError: a\\x00b"),
    "surrogate": (lambda: ValueError("a\ud800b"), "ValueError: a\\ud800b"),
    "hostile-argument": (lambda: ValueError(Hostile()), "ValueError"),
    "cycle-argument": (lambda: ValueError(cycle()), "ValueError: "),
    "huge-number": (lambda: ValueError(10**5000), "ValueError"),
    "long-chain": (chain, "ValueError: number 4999"),
    "its-own-cause": (its_own_cause, "ValueError: its own cause"),
    "group": (lambda: ExceptionGroup("two", [ValueError("a"), TypeError("b")]), "ExceptionGroup: two"),
    "key": (lambda: KeyError("a"), "KeyError: 'a'"),
    "undecodable": (lambda: UnicodeDecodeError("utf8", b"\xff", 0, 1, "why"), "UnicodeDecodeError: "),
    "file": (lambda: FileNotFoundError(2, "No such file", "a.txt"), "FileNotFoundError: [Errno 2] No such file"),
    "stop": (lambda: StopAsyncIteration("over"), "StopAsyncIteration: over"),
    "assertion": (AssertionError, "AssertionError: "),
    "system-exit-text": (lambda: SystemExit("bye"), "SystemExit: bye"),
    # The engine's own words in the author's mouth mean nothing special.
    "database-busy": (lambda: apsw.BusyError("locked"), "BusyError: locked"),
    "database-constraint": (lambda: apsw.ConstraintError("not unique"), "ConstraintError: not unique"),
    "unavailable": (lambda: DatabaseUnavailableError("disk full"), "DatabaseUnavailableError: disk full"),
    "locked": (lambda: DatabaseLockedError("locked"), "DatabaseLockedError: locked"),
    "engine-closed": (lambda: EngineClosedError("closed"), "EngineClosedError: closed"),
    "store-busy": (lambda: StoreBusyError("busy"), "StoreBusyError: busy"),
    "deposed": (lambda: DeposedError("deposed"), "DeposedError: deposed"),
}


@pytest.mark.parametrize("where", ["callback", "thread", "body"])
@pytest.mark.parametrize(("make", "text"), UNREADABLE.values(), ids=UNREADABLE.keys())
@async_test
async def test_an_error_that_cannot_be_read_is_recorded_all_the_same(make: Make, text: str, where: str) -> None:
    calls = []

    def plain() -> None:
        calls.append(1)
        raise make()

    async def on_the_loop() -> None:
        plain()

    @definition
    async def Careless(self: Any) -> str:
        if where == "body":
            raise make()
        with contextlib.suppress(MaxAttemptsExceededError):
            await self.run("step", plain if where == "thread" else on_the_loop, max_attempts=2)
        await self.wait("end", "end")
        return "went on"

    async with SimulatedEngine([Careless]) as engine:
        handle = engine.get(Careless, "instance-1")
        await handle.create()
        await engine.advance(10)
        if where == "body":
            failure = (await handle.info()).failure
            assert failure is not None
            assert f"{failure.name}: {failure.message}".startswith(text)
            with pytest.raises(WorkflowFailedError):
                await handle.result(timeout=5)
        else:
            (step,) = await run_steps(handle)
            assert [attempt.state for attempt in step.attempts] == ["failed", "failed"]
            assert all(str(attempt.error_message).startswith(text) for attempt in step.attempts)
            assert len(calls) == 2
            await engine.crash()
            await handle.send("end")
            assert await handle.result(timeout=5) == "went on"
            assert len(calls) == 2
        assert [summary.held for summary in await engine.list()] == [None]


@async_test
async def test_a_callback_that_runs_out_of_an_iterator_has_failed_and_nothing_hangs() -> None:
    def plain() -> int:
        return next(iter([]))

    @definition
    async def Careless(self: Any) -> None:
        await self.run("step", plain, max_attempts=1)

    async with started(Careless) as (_, handle):
        (step,) = await run_steps(handle)
        assert [attempt.state for attempt in step.attempts] == ["failed"]
        assert "StopIteration" in message_of(step)
        assert await handle.status() == "failed"


@async_test
async def test_an_error_with_a_huge_text_is_recorded_in_short() -> None:
    @definition
    async def Careless(self: Any) -> None:
        async def step() -> None:
            raise ValueError("begin " + "x" * 20_000_000, ["y" * 20_000_000])

        await self.run("step", step, max_attempts=1)

    async with started(Careless) as (engine, handle):
        (step,) = await run_steps(handle)
        assert message_of(step).startswith("ValueError: ('begin xxx")
        assert await handle.status() == "failed"
        assert await stored_bytes(engine) < 5_000_000


MODULE = """
class {name}({base}):
    pass
"""


@pytest.mark.parametrize("base", ["ValueError", "NonRetryableStepError"])
@async_test
async def test_an_error_whose_module_the_next_process_has_not_imported_yet_takes_the_same_branch(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client library that only the callback imports."""
    (tmp_path / "late_errors.py").write_text(
        "from workerflow import NonRetryableStepError\n" + MODULE.format(name="Declined", base=base)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds: list[str] = []

    @definition
    async def Charge(self: Any) -> str:
        async def charge() -> None:
            from late_errors import Declined  # type: ignore[import-not-found]

            raise Declined("no")

        try:
            await self.run("charge", charge, max_attempts=1)
        except NonRetryableStepError as error:
            kinds.append(f"non-retryable {type(error).__name__}")
        except MaxAttemptsExceededError as error:
            cause = error.__cause__
            kinds.append(f"{type(cause).__name__} {isinstance(cause, ValueError)}")
        return str(await self.wait("end", "end"))

    async with started(Charge) as (engine, handle):
        del sys.modules["late_errors"]
        await engine.crash()
        await handle.send("end", "ended")
        assert await handle.result(timeout=5) == "ended"
    sys.modules.pop("late_errors", None)
    assert len(kinds) > 1
    assert len(set(kinds)) == 1


@pytest.mark.parametrize("base", ["ValueError", "NonRetryableStepError"])
@async_test
async def test_an_error_whose_class_was_deleted_since_is_read_as_a_record_and_everything_works(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "changing_errors.py"
    path.write_text("from workerflow import NonRetryableStepError\n" + MODULE.format(name="Declined", base=base))
    monkeypatch.syspath_prepend(str(tmp_path))
    import changing_errors  # type: ignore[import-not-found]

    @definition
    async def Charge(self: Any) -> str:
        async def charge() -> None:
            raise changing_errors.Declined("no")

        try:
            await self.run("charge", charge, max_attempts=1)
        except NonRetryableStepError:
            branch = "non-retryable"
        except MaxAttemptsExceededError as error:
            branch = f"exhausted: {error.__cause__}"
        await self.wait("end", "end")
        return branch

    async with started(Charge) as (engine, handle):
        del changing_errors.Declined
        await engine.crash()
        await handle.send("end")
        branch = await handle.result(timeout=5)
        assert branch == ("non-retryable" if base == "NonRetryableStepError" else "exhausted: Declined: no")
        (step,) = await run_steps(handle)
        assert message_of(step) == "Declined: no"
        assert len(await engine.list()) == 1
    del sys.modules["changing_errors"]


# Callables of every kind.


class Service:
    async def method(self) -> str:
        return "method"

    def plain_method(self) -> str:
        return "plain method"

    @classmethod
    async def class_method(cls) -> str:
        return "class method"

    @staticmethod
    def static_method() -> str:
        return "static method"

    async def __call__(self) -> str:
        return "called"


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


CALLABLES: dict[str, tuple[Any, Any]] = {
    "method": (Service().method, "method"),
    "plain-method": (Service().plain_method, "plain method"),
    "class-method": (Service.class_method, "class method"),
    "static-method": (Service.static_method, "static method"),
    "callable-object": (Service(), "called"),
    "builtin": (lambda: max(1, 2), 2),
    "lambda-of-a-coroutine": (lambda: Service().method(), "method"),
    "class": (dict, {}),
    "generator": (generator, None),
    "async-generator": (async_generator, None),
}


@pytest.mark.parametrize(("callback", "result"), CALLABLES.values(), ids=CALLABLES.keys())
@async_test
async def test_a_callback_may_be_any_callable_and_what_is_none_fails_its_step_at_once(
    callback: Any, result: Any
) -> None:
    @definition
    async def Caller(self: Any) -> Any:
        return await self.run("step", callback)

    async with started(Caller) as (_, handle):
        (step,) = await run_steps(handle)
        if result is None:
            assert states(step) == ["failed"]
            assert "generator" in message_of(step)
        else:
            assert states(step) == ["succeeded"]
            assert await handle.result(timeout=5) == result


@async_test
async def test_a_payload_that_is_not_of_the_awaited_type_fails_the_workflow_with_its_path_and_may_be_caught() -> None:
    @definition
    async def Strict(self: Any) -> str:
        try:
            await self.wait("wait", "given", list[Item])
        except InvalidValueError as error:
            if self.input == "catch":
                return error.path
            raise
        return "accepted"

    async with SimulatedEngine([Strict]) as engine:
        for choice in ("catch", "let go"):
            handle = engine.get(Strict, choice)
            await handle.create(choice)
            await handle.send("given", [{"sku": "tea", "counts": {}}, {"sku": 5, "counts": {}}])
        assert await engine.get(Strict, "catch").result(timeout=5) == "$[1].sku"
        with pytest.raises(WorkflowFailedError, match=r"InvalidValueError: .*\$\[1\]\.sku"):
            await engine.get(Strict, "let go").result(timeout=5)


@async_test
async def test_a_cancelled_caller_of_result_ends_only_its_waiting() -> None:
    @definition
    async def Idle(self: Any) -> Any:
        return await self.wait("end", "end")

    async with started(Idle) as (_, handle):
        waiting = asyncio.ensure_future(handle.result())
        await handle.status()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await handle.send("end", 1)
        assert await handle.result(timeout=5) == 1
