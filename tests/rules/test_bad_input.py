"""What is wrong is refused at the call that supplied it: clearly, by an error of ours, with nothing half written."""

import math
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from tests.support import async_test, definition, query, started

from workerflow import (
    DefinitionError,
    Engine,
    RetryPolicy,
    RunStep,
    Settings,
    WorkflowDefinition,
    WorkflowError,
    WorkflowHandle,
    WorkflowRuntime,
)
from workerflow.testing import SimulatedEngine

# All tables that a row could be left in by a call that was refused.
TABLES = ("instances", "steps", "attempts", "lifecycle_events", "inbound_events", "mail", "deliveries")

BAD_IDS: dict[str, Any] = {
    "empty": "",
    "of-10-kB": "x" * 10_000,
    "one-too-long": "x" * 501,
    "line-feed": "order\n1",
    "tab": "\torder",
    "delete": "order\x7f",
    "nul": "order\x00",
    "lone-surrogate": "order\ud800",
    "number": 1042,
    "bytes": b"order",
    "none": None,
    "list": ["order"],
}
GOOD_IDS = {
    "one-character": "x",
    "longest": "x" * 500,
    "not-ascii": "Ünïcode-€-日本-🙂",
    "quotes-and-sql": "'; drop table instances; --",
    "blanks-within": "order 1042",
    "like-a-path": "../../etc/passwd?a=1#b",
}


def rows(engine: Engine) -> dict[str, int]:
    """How many rows each table has, in committed state."""
    return {table: query(engine, f"select count(*) from {table}")[0][0] for table in TABLES}


async def run_steps(handle: WorkflowHandle[Any]) -> list[RunStep]:
    """The run steps of an instance, in creation order."""
    return [step for step in await handle.steps() if isinstance(step, RunStep)]


async def nothing(*arguments: Any) -> None:
    return None


@definition
async def Listener(self):
    return await self.wait("wait", "paid")


@definition
async def Good(self):
    return await self.run("step", nothing)


async def goes_on(engine: Engine) -> None:
    """Whatever one call or instance did wrong, another instance of the engine is not hurt."""
    handle = engine.get(Good, "bystander")
    assert await handle.create() is True
    assert await handle.result(timeout=5) is None
    assert "bystander" in {summary.id for summary in await engine.list()}
    assert (await handle.info()).status == "completed"


# Ids and names.


@pytest.mark.parametrize("instance_id", BAD_IDS.values(), ids=BAD_IDS.keys())
@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
@async_test
async def test_a_bad_instance_id_is_refused_when_the_handle_is_asked_for(instance_id, execute, tmp_path):
    engine = Engine(tmp_path / "a.db", [Listener], execute=execute)
    with pytest.raises(DefinitionError, match=r"instance id .*(must be|are allowed|remove them|printable)"):
        engine.get(Listener, instance_id)


@async_test
async def test_a_bad_event_name_or_id_is_refused_at_send_and_makes_no_instance():
    async with SimulatedEngine([Listener]) as engine, Engine(engine.url, [Listener], execute=False) as client:
        for sender in (engine, client):
            for text in BAD_IDS.values():
                with pytest.raises(DefinitionError, match="event name "):
                    await sender.get(Listener, "instance-1").send(text)
                if text is not None:  # No id at all is allowed.
                    with pytest.raises(DefinitionError, match="event id "):
                        await sender.get(Listener, "instance-1").send("paid", id=text)
        await engine.run_until_idle()
        assert set(rows(engine).values()) == {0}


@pytest.mark.parametrize("name", BAD_IDS.values(), ids=BAD_IDS.keys())
@pytest.mark.parametrize("kind", ["definition", "runtime"])
def test_a_bad_workflow_name_is_refused_when_it_is_registered(kind, name):
    named: Any = type("Named", (WorkflowDefinition,), {"execute": Good.execute, "name": name})
    if kind == "runtime":
        named = type("Named", (WorkflowRuntime,), {"definition": Good, "name": name})
    with pytest.raises(DefinitionError, match="name "):
        Engine("a.db", [named])


@pytest.mark.parametrize("name", BAD_IDS.values(), ids=BAD_IDS.keys())
@pytest.mark.parametrize("execute", [True, False], ids=["executing", "beside"])
def test_a_bad_workflow_name_is_refused_by_get(execute, name, tmp_path):
    engine = Engine(tmp_path / "a.db", [Good], execute=execute)
    with pytest.raises(DefinitionError):
        engine.get(name, "instance-1")


@pytest.mark.parametrize("text", GOOD_IDS.values(), ids=GOOD_IDS.keys())
@async_test
async def test_every_printable_id_and_name_of_up_to_500_characters_works(text):
    async def execute(self):
        await self.run(f"{text[:499]}1", nothing)
        return await self.wait(text, text)

    workflow = type("Named", (WorkflowDefinition,), {"execute": execute, "name": text})
    async with SimulatedEngine([workflow]) as engine:
        handle = engine.get(text, text)
        await handle.create()
        await engine.run_until_idle()
        await engine.crash()
        await handle.send(text, 7, id=text)
        assert await handle.result(timeout=5) == 7
        assert [step.id for step in await handle.steps()] == [f"{text[:499]}1", text]
        assert [(summary.workflow, summary.id) for summary in await engine.list(text)] == [(text, text)]


# What is registered.


class Plain(WorkflowDefinition[Any, Any]):
    def execute(self):
        return 1


class Generator(WorkflowDefinition[Any, Any]):
    async def execute(self):
        yield 1


class WithoutExecute(WorkflowDefinition[Any, Any]):
    pass


class NotAFunction(WorkflowDefinition[Any, Any]):
    execute = 5  # type: ignore[assignment]


class TakesAnArgument(WorkflowDefinition[Any, Any]):
    async def execute(self, order):  # type: ignore[override]
        return order


class TakesAKeyword(WorkflowDefinition[Any, Any]):
    async def execute(self, *, order):  # type: ignore[override]
        return order


class Static(WorkflowDefinition[Any, Any]):
    @staticmethod
    async def execute():
        return 1


class UnknownInputType(WorkflowDefinition["Missing", int]):  # type: ignore[name-defined]
    async def execute(self) -> int:
        return 1


class InputWithoutJson(WorkflowDefinition[threading.Lock, int]):
    async def execute(self) -> int:
        return 1


class WithoutDefinition(WorkflowRuntime[Any, Any]):
    pass


class DefinitionIsNoClass(WorkflowRuntime[Any, Any]):
    definition = Good()  # type: ignore[assignment]


class DefinitionIsNoDefinition(WorkflowRuntime[Any, Any]):
    definition = WithoutExecute


class AsyncStatusHook(WorkflowRuntime[Any, Any]):
    definition = Good

    async def on_status_change(self, status: str) -> None:  # type: ignore[override]
        """Nobody would await it."""


class PlainCompletion(WorkflowRuntime[Any, Any]):
    definition = Good

    def completion(self, event: Any) -> None:  # type: ignore[override]
        """Its delivery would be tried again for ever."""


BAD_WORKFLOWS: dict[str, Any] = {
    "without-execute": WithoutExecute,
    "plain-execute": Plain,
    "generator": Generator,
    "not-a-function": NotAFunction,
    "takes-an-argument": TakesAnArgument,
    "takes-a-keyword": TakesAKeyword,
    "static": Static,
    "unknown-input-type": UnknownInputType,
    "input-without-json": InputWithoutJson,
    "runtime-without-definition": WithoutDefinition,
    "definition-is-no-class": DefinitionIsNoClass,
    "definition-is-no-definition": DefinitionIsNoDefinition,
    "async-status-hook": AsyncStatusHook,
    "plain-completion": PlainCompletion,
    "the-base-of-definitions": WorkflowDefinition,
    "the-base-of-runtimes": WorkflowRuntime,
    "an-instance": Good(),
    "a-name": "Good",
    "a-function": Good.execute,
    "another-class": int,
    "an-alias": WorkflowDefinition[int, int],
    "none": None,
}


@pytest.mark.parametrize("workflow", BAD_WORKFLOWS.values(), ids=BAD_WORKFLOWS.keys())
def test_a_class_that_cannot_be_a_workflow_is_refused_when_it_is_registered(workflow):
    with pytest.raises(DefinitionError) as caught:
        Engine("a.db", [Listener, workflow])
    blamed = [workflow, getattr(workflow, "definition", workflow)]
    assert any(name in str(caught.value) for item in blamed for name in (getattr(item, "__name__", "-"), repr(item)))


@pytest.mark.parametrize("workflow", BAD_WORKFLOWS.values(), ids=BAD_WORKFLOWS.keys())
def test_a_class_that_cannot_be_a_workflow_is_refused_by_get(workflow):
    with pytest.raises(DefinitionError):
        Engine("a.db", [Listener]).get(workflow, "instance-1")


def test_two_workflows_of_one_name_are_refused_with_the_name():
    other = type("Other", (WorkflowDefinition,), {"execute": Good.execute, "name": "Good"})
    runtime = type("Good", (WorkflowRuntime,), {"definition": Listener})
    for second in (Good, other, runtime):
        with pytest.raises(DefinitionError, match="two workflows have the name 'Good'"):
            Engine("a.db", [Good, second])


def test_a_workflow_that_is_not_registered_is_refused_by_an_engine_that_executes():
    engine = Engine("a.db", [Good])
    for workflow in (Listener, "Listener"):
        with pytest.raises(DefinitionError, match="'Listener' is not registered with this engine; it knows Good"):
            engine.get(workflow, "instance-1")


# The engine and its settings.

BAD_ENGINES: dict[str, Callable[[], Any]] = {
    "url-empty": lambda: Engine("", []),
    "url-number": lambda: Engine(5, []),  # type: ignore[arg-type]
    "url-none": lambda: Engine(None, []),  # type: ignore[arg-type]
    "url-bytes": lambda: Engine(b"a.db", []),  # type: ignore[arg-type]
    "url-in-memory": lambda: Engine(":memory:", []),
    "url-sqlite-in-memory": lambda: Engine("sqlite:///:memory:", []),
    "url-without-a-path": lambda: Engine("sqlite:///", []),
    "url-two-slashes": lambda: Engine("sqlite://a.db", []),
    "url-of-another-database": lambda: Engine("mysql://localhost/a", []),
    "url-nul": lambda: Engine("a\0.db", []),
    "workflows-none": lambda: Engine("a.db", None),  # type: ignore[arg-type]
    "workflows-one-class": lambda: Engine("a.db", Good),  # type: ignore[arg-type]
    "workflows-a-text": lambda: Engine("a.db", "Good"),  # type: ignore[arg-type]
    "settings-dict": lambda: Engine("a.db", [], settings={"thread_count": 1}),  # type: ignore[arg-type]
    "settings-class": lambda: Engine("a.db", [], settings=Settings),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", BAD_ENGINES.values(), ids=BAD_ENGINES.keys())
def test_bad_arguments_of_an_engine_are_refused(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DefinitionError) as caught:
        make()
    assert len(str(caught.value)) > 30
    assert list(tmp_path.iterdir()) == []


NUMBERS = [name for name in Settings.__slots__ if name != "synchronous"]
COUNTS = [name for name in NUMBERS if not name.endswith(("_s", "inline_commit_ms"))]
NO_NUMBERS = [math.nan, math.inf, -1, -0.5, 1e300, 10**400, True, None, "fast", "5", timedelta(seconds=1), [1]]


@pytest.mark.parametrize("name", NUMBERS)
def test_settings_out_of_range_are_refused(name):
    for value in (*NO_NUMBERS, *([1.5] if name in COUNTS else [])):
        with pytest.raises(DefinitionError, match=f"{name}=") as caught:
            Settings(**{name: value})  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "full", "OFF", "FULL; drop table instances", 2, True])
def test_settings_for_durability_that_are_not_known_are_refused(value):
    with pytest.raises(DefinitionError, match="synchronous="):
        Settings(synchronous=value)


BAD_LISTS: dict[str, dict[str, Any]] = {
    "limit-zero": {"limit": 0},
    "limit-beyond": {"limit": 1001},
    "limit-true": {"limit": True},
    "limit-text": {"limit": "5"},
    "limit-none": {"limit": None},
    "status-unknown": {"status": "done"},
    "status-list": {"status": ["running"]},
    "workflow-number": {"workflow": 5},
    "workflow-empty": {"workflow": ""},
    "workflow-class": {"workflow": int},
    "after-text": {"after": "instance-1"},
    "after-handle": {"after": object()},
}


@pytest.mark.parametrize("arguments", BAD_LISTS.values(), ids=BAD_LISTS.keys())
@async_test
async def test_bad_arguments_of_list_are_refused(arguments):
    async with SimulatedEngine([Good]) as engine:
        with pytest.raises(DefinitionError):
            await engine.list(**arguments)
        await goes_on(engine)


@pytest.mark.parametrize("timeout", ["5", math.nan, True, [5], -1, timedelta(seconds=-1)])
@async_test
async def test_a_timeout_of_result_that_is_no_duration_is_refused(timeout):
    async with started(Listener) as (_, handle):
        with pytest.raises(DefinitionError, match="timeout"):
            await handle.result(timeout=timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0), 0.01, timedelta(milliseconds=10)])
@async_test
async def test_result_gives_up_after_its_timeout_and_the_instance_goes_on(timeout):
    async with started(Listener) as (_, handle):
        with pytest.raises(TimeoutError):
            await handle.result(timeout=timeout)
        await handle.send("paid", 1)
        assert await handle.result(timeout=timedelta(seconds=5)) == 1


@pytest.mark.parametrize("reason", [5, b"late", {"why": "late"}, ["late"], "late\x00", "late\ud800", True])
@async_test
async def test_a_reason_that_is_no_text_is_refused_and_cancels_nothing(reason):
    async with (
        started(Listener) as (engine, handle),
        Engine(engine.url, [Listener], execute=False) as client,
    ):
        before = rows(engine)
        for canceller in (handle, client.get(Listener, "instance-1"), client.get(Listener, "unknown")):
            with pytest.raises(DefinitionError, match="cancellation reason"):
                await canceller.cancel(reason)
        await engine.run_until_idle()
        assert await handle.status() == "running"
        assert rows(engine) == before


# The verbs of a definition.

BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "run-callback-number": lambda self: self.run("a", 5),
    "run-callback-none": lambda self: self.run("a", None),
    "run-callback-text": lambda self: self.run("a", "nothing"),
    "run-arguments-swapped": lambda self: self.run(nothing, "a"),
    "run-limit-zero": lambda self: self.run("a", nothing, max_attempts=0),
    "run-limit-negative": lambda self: self.run("a", nothing, max_attempts=-1),
    "run-limit-true": lambda self: self.run("a", nothing, max_attempts=True),
    "run-limit-float": lambda self: self.run("a", nothing, max_attempts=2.0),
    "run-limit-text": lambda self: self.run("a", nothing, max_attempts="3"),
    "run-limit-list": lambda self: self.run("a", nothing, max_attempts=[3]),
    "run-limit-beyond-sql": lambda self: self.run("a", nothing, max_attempts=2**63),
    "run-retry-number": lambda self: self.run("a", nothing, retry=3),
    "run-retry-zero": lambda self: self.run("a", nothing, retry=0),
    "run-retry-class": lambda self: self.run("a", nothing, retry=RetryPolicy),
    "run-retry-and-limit": lambda self: self.run("a", nothing, retry=RetryPolicy(), max_attempts=3),
    "run-returns-value": lambda self: self.run("a", nothing, returns=5),
    "run-returns-without-json": lambda self: self.run("a", nothing, returns=threading.Lock),
    "run-returns-unknown": lambda self: self.run("a", nothing, returns="Missing"),
    "run-timeout-nan": lambda self: self.run("a", nothing, timeout=math.nan),
    "run-timeout-infinite": lambda self: self.run("a", nothing, timeout=math.inf),
    "run-timeout-negative": lambda self: self.run("a", nothing, timeout=-1),
    "run-timeout-text": lambda self: self.run("a", nothing, timeout="1"),
    "run-timeout-true": lambda self: self.run("a", nothing, timeout=True),
    "sleep-nan": lambda self: self.sleep("a", math.nan),
    "sleep-infinite": lambda self: self.sleep("a", math.inf),
    "sleep-negative": lambda self: self.sleep("a", -1),
    "sleep-negative-timedelta": lambda self: self.sleep("a", timedelta(seconds=-1)),
    "sleep-longest-timedelta": lambda self: self.sleep("a", timedelta.max),
    "sleep-shortest-timedelta": lambda self: self.sleep("a", timedelta.min),
    "sleep-beyond-float": lambda self: self.sleep("a", 10**400),
    "sleep-none": lambda self: self.sleep("a", None),
    "sleep-true": lambda self: self.sleep("a", True),
    "sleep-text": lambda self: self.sleep("a", "1 hour"),
    "sleep-moment": lambda self: self.sleep("a", datetime(2031, 1, 1, tzinfo=UTC)),
    "sleep-until-naive": lambda self: self.sleep_until("a", datetime(2031, 1, 1)),
    "sleep-until-date": lambda self: self.sleep_until("a", date(2031, 1, 1)),
    "sleep-until-number": lambda self: self.sleep_until("a", 5),
    "sleep-until-text": lambda self: self.sleep_until("a", "2031-01-01"),
    "sleep-until-none": lambda self: self.sleep_until("a", None),
    "wait-type-value": lambda self: self.wait("a", "paid", 5),
    "wait-type-without-json": lambda self: self.wait("a", "paid", threading.Lock),
    "wait-timeout-nan": lambda self: self.wait("a", "paid", timeout=math.nan),
    "wait-timeout-infinite": lambda self: self.wait("a", "paid", timeout=math.inf),
    "wait-timeout-negative": lambda self: self.wait("a", "paid", timeout=-1),
    "wait-timeout-text": lambda self: self.wait("a", "paid", timeout="1"),
    "wait-timeout-and-deadline": lambda self: self.wait(
        "a", "paid", timeout=1, deadline=datetime(2031, 1, 1, tzinfo=UTC)
    ),
    "wait-deadline-naive": lambda self: self.wait("a", "paid", deadline=datetime(2031, 1, 1)),
    "wait-deadline-number": lambda self: self.wait("a", "paid", deadline=5),
    "timeout-nan": lambda self: self.timeout("a", math.nan),
    "timeout-negative": lambda self: self.timeout("a", -1),
    "timeout-text": lambda self: self.timeout("a", "1"),
}


for _name, _text in BAD_IDS.items():
    BAD_CALLS[f"run-id-{_name}"] = partial(lambda text, self: self.run(text, nothing), _text)
    BAD_CALLS[f"sleep-id-{_name}"] = partial(lambda text, self: self.sleep(text, 1), _text)
    BAD_CALLS[f"wait-id-{_name}"] = partial(lambda text, self: self.wait(text, "paid"), _text)
    BAD_CALLS[f"wait-event-{_name}"] = partial(lambda text, self: self.wait("a", text), _text)


def refusal(self: Any, name: str) -> str:
    """What the call raises, which must be before anything is awaited."""
    try:
        BAD_CALLS[name](self)
    except DefinitionError as error:
        return f"{error}"
    return "accepted"


@definition
async def CallerInBody(self):
    return refusal(self, self.input)


@definition
async def CallerInCallback(self):
    async def callback():
        return refusal(self, self.input)

    return await self.run("outer", callback)


@pytest.mark.parametrize("workflow", [CallerInBody, CallerInCallback], ids=["body", "callback"])
@pytest.mark.parametrize("verb", ["run", "sleep", "wait", "timeout"])
@async_test
async def test_a_bad_argument_of_a_verb_raises_definition_error_at_the_call_and_hurts_nobody(verb, workflow):
    async with SimulatedEngine([workflow, Good]) as engine:
        messages = {}
        for name in BAD_CALLS:
            if name.startswith(f"{verb}-"):
                handle = engine.get(workflow, name)
                await handle.create(name)
                messages[name] = await handle.result(timeout=5)
                expected = ["outer"] if workflow is CallerInCallback else []
                assert [step.id for step in await handle.steps()] == expected, name
        assert {name: message for name, message in messages.items() if len(message) < 20} == {}
        await goes_on(engine)


@async_test
async def test_a_bad_argument_that_nobody_catches_fails_the_workflow_once_and_says_why():
    @definition
    async def Careless(self):
        await self.run("fine", nothing)
        await self.sleep("nap", -5)

    async with started(Careless) as (_, handle):
        failure = (await handle.info()).failure
        assert failure is not None
        assert (await handle.status(), failure.name) == ("failed", "DefinitionError")
        assert "sleep 'nap': -5" in failure.message
        assert [step.id for step in await handle.steps()] == ["fine"]


@async_test
async def test_a_bad_argument_in_a_callback_fails_the_step_without_a_retry():
    calls = []

    @definition
    async def Careless(self):
        async def callback():
            calls.append(1)
            await self.sleep("nap", math.nan)

        await self.run("outer", callback, max_attempts=5)

    async with started(Careless) as (_, handle):
        (step,) = await run_steps(handle)
        assert [(attempt.state, attempt.error_name) for attempt in step.attempts] == [("failed", "DefinitionError")]
        assert (len(calls), await handle.status()) == (1, "failed")


LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
LAST_SECOND_S = 253_402_300_799


async def fails() -> None:
    raise ValueError("not now")


FAR_CALLS: dict[str, Callable[[Any], Any]] = {
    "sleep-beyond-9999": lambda self: self.sleep("a", LAST_SECOND_S),
    "sleep-until-the-last-moment": lambda self: self.sleep_until("a", LAST_MOMENT),
    "sleep-until-the-last-moment-of-another-zone": lambda self: self.sleep_until(
        "a", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    ),
    "sleep-until-the-first-moment": lambda self: self.sleep_until(
        "a", datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))
    ),
    "sleep-400-days": lambda self: self.sleep("a", timedelta(days=400)),
    "sleep-a-nanosecond": lambda self: self.sleep("a", 1e-9),
    "wait-timeout-beyond-9999": lambda self: self.wait("a", "paid", timeout=LAST_SECOND_S),
    "wait-timeout-zero": lambda self: self.wait("a", "paid", timeout=0),
    "wait-deadline-the-last-moment": lambda self: self.wait("a", "paid", deadline=LAST_MOMENT),
    "timeout-beyond-9999": lambda self: self.timeout("a", LAST_SECOND_S).__aenter__(),
    "run-timeout-beyond-9999": lambda self: self.run("a", nothing, timeout=LAST_SECOND_S),
    "run-timeout-zero": lambda self: self.run("a", nothing, timeout=0),
    "retry-beyond-9999": lambda self: self.run(
        "a", fails, retry=RetryPolicy(initial=LAST_SECOND_S, maximum=LAST_SECOND_S, jitter=1)
    ),
    "limit-largest": lambda self: self.run("a", nothing, max_attempts=1_000_000),
}


@pytest.mark.parametrize("name", FAR_CALLS.keys())
@async_test
async def test_an_extreme_argument_is_refused_at_the_call_or_it_works_and_everything_can_be_read(name):
    @definition
    async def Far(self):
        try:
            asked = FAR_CALLS[self.input](self)
        except DefinitionError as error:
            return str(error)
        try:
            await asked
        except WorkflowError as error:
            return type(error).__name__
        return "done"

    async with SimulatedEngine([Far, Good]) as engine:
        handle = engine.get(Far, "instance-1")
        await handle.create(name)
        await engine.run_until_idle()
        await engine.crash()
        assert await handle.status() in ("running", "completed")
        assert (await handle.info()).held is None
        assert len(await handle.steps()) <= 1
        await goes_on(engine)
        await handle.cancel()
        assert await handle.status() == "cancelled" or (await handle.info()).result


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": 1.5},
        {"max_attempts": "3"},
        {"max_attempts": 2**63},
        {"initial": -1},
        {"initial": math.nan},
        {"initial": "1"},
        {"initial": True},
        {"maximum": math.inf},
        {"maximum": timedelta(seconds=-1)},
        {"max_elapsed": math.nan},
        {"max_elapsed": -0.1},
        {"factor": 0.5},
        {"factor": math.nan},
        {"factor": math.inf},
        {"factor": True},
        {"factor": "2"},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": math.nan},
        {"retry_on": "ValueError"},
        {"retry_on": ValueError("x")},
        {"retry_on": [ValueError]},
        {"retry_on": (ValueError, "TimeoutError")},
        {"retry_on": int},
        pytest.param({"retry_on": nothing}, id="retry_on-async"),
    ],
    ids=str,
)
def test_a_retry_policy_out_of_range_is_refused_when_it_is_made(arguments):
    (name,) = arguments
    with pytest.raises(DefinitionError, match=name):
        RetryPolicy(**arguments)


@async_test
async def test_a_predicate_of_a_retry_policy_that_raises_fails_the_step_and_keeps_the_first_error():
    def predicate(error: BaseException) -> bool:
        raise RuntimeError("the predicate is broken")

    @definition
    async def Careless(self):
        await self.run("step", fails, retry=RetryPolicy(retry_on=predicate))

    async with started(Careless) as (_, handle):
        (step,) = await run_steps(handle)
        assert [attempt.error_message for attempt in step.attempts] == ["ValueError: not now"]
        assert await handle.status() == "failed"


# The clock of a simulated engine.


@pytest.mark.parametrize("duration", [-1, math.nan, math.inf, True, None, "1 day", timedelta.min, timedelta.max])
@async_test
async def test_the_virtual_clock_moves_by_durations_only(duration):
    async with SimulatedEngine([Good]) as engine:
        before = engine.now()
        with pytest.raises(DefinitionError, match="advance"):
            await engine.advance(duration)
        assert engine.now() == before
        await goes_on(engine)
