"""The examples do what they say, whatever is killed."""

import asyncio
import importlib
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from examples import agent, approval, checkout, demo, fan_out, saga

from workerflow import RunStep, WaitStep, WorkflowError, WorkflowFailedError
from workerflow.testing import SimulatedEngine

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith(("_", "demo")))


@pytest.fixture(autouse=True)
def fresh_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a shop, a postbox and so on of its own."""
    monkeypatch.setattr(checkout.Checkout, "shop", checkout.Shop())
    monkeypatch.setattr(approval.Approval, "postbox", approval.Postbox())
    monkeypatch.setattr(fan_out.Book, "renderer", fan_out.Renderer())
    monkeypatch.setattr(saga.Travel, "agency", saga.Agency(sold_out="car"))
    monkeypatch.setattr(agent.Agent, "model", agent.Model())


@pytest.mark.parametrize("name", NAMES)
def test_each_example_runs_to_its_result(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(importlib.import_module(f"examples.{name}").main())
    assert "result: " in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_each_example_says_how_to_run_it(name: str) -> None:
    module = importlib.import_module(f"examples.{name}")
    assert f"python -m examples.{name}" in (module.__doc__ or "")


def test_checkout_ships_only_after_the_cooling_off() -> None:
    async def main() -> tuple[str, str, checkout.Receipt]:
        async with SimulatedEngine([checkout.Checkout]) as engine:
            order = engine.get(checkout.Checkout, "o")
            await order.create(checkout.Order("tea", 900, cooling_off_s=60))
            await order.send("payment.received", checkout.Payment("ch"))
            await engine.advance(59.999)
            before = (await order.steps())[-1].id
            await engine.crash()
            await engine.advance(0.001)
            return before, (await order.steps())[-1].id, await order.result(timeout=5)

    assert asyncio.run(main()) == ("cooling-off", "ship", checkout.Receipt("tea", "parcel-hold-tea"))


def test_checkout_releases_the_goods_when_no_payment_comes() -> None:
    async def main() -> tuple[checkout.Receipt, list[str]]:
        async with SimulatedEngine([checkout.Checkout]) as engine:
            order = engine.get(checkout.Checkout, "o")
            await order.create(checkout.Order("tea", 900))
            await engine.advance(timedelta(days=1))
            return await order.result(timeout=5), [step.id for step in await order.steps()]

    assert asyncio.run(main()) == (checkout.Receipt("tea", None), ["reserve", "payment", "release"])


def test_approval_reminds_until_somebody_decides() -> None:
    async def main() -> tuple[approval.Decision, list[str]]:
        async with SimulatedEngine([approval.Approval]) as engine:
            expense = engine.get(approval.Approval, "e")
            await expense.create(approval.Expense("tea", "Ada", "Grace"))
            await engine.advance(timedelta(days=1, hours=1))
            await engine.crash()
            await expense.send("decision", approval.Decision(False, "Ada"))
            return await expense.result(timeout=5), approval.Approval.postbox.sent

    decision, sent = asyncio.run(main())
    assert decision == approval.Decision(False, "Ada")
    assert sent == ["Ada: please approve: tea", "Ada: reminder 1: tea"]


def test_approval_escalates_and_then_waits_without_a_deadline() -> None:
    async def main() -> tuple[list[str], WaitStep]:
        async with SimulatedEngine([approval.Approval]) as engine:
            expense = engine.get(approval.Approval, "e")
            await expense.create(approval.Expense("tea", "Ada", "Grace"))
            await engine.advance(timedelta(days=400))
            last = (await expense.steps())[-1]
            assert isinstance(last, WaitStep)
            return approval.Approval.postbox.sent, last

    sent, last = asyncio.run(main())
    assert [line.partition(": ")[2] for line in sent] == [
        "please approve: tea",
        "reminder 1: tea",
        "reminder 2: tea",
        "please decide: tea",
    ]
    assert (last.id, last.state, last.timeout_at) == ("decision-of-superior", "waiting", None)


def test_fan_out_keeps_to_its_limit_and_to_the_order_of_the_pages() -> None:
    async def main() -> list[fan_out.Page]:
        async with SimulatedEngine([fan_out.Book]) as engine:
            book = engine.get(fan_out.Book, "b")
            await book.create(8)
            return await book.result(timeout=5)

    pages = asyncio.run(main())
    renderer = fan_out.Book.renderer
    assert [page.number for page in pages] == list(range(1, 9))
    assert renderer.in_flight_peak == fan_out.IN_FLIGHT_MAX
    assert sorted(renderer.rendered) == list(range(1, 9))


def test_saga_undoes_what_was_begun_the_last_first() -> None:
    async def main() -> tuple[saga.Trip, list[int]]:
        async with SimulatedEngine([saga.Travel]) as engine:
            trip = engine.get(saga.Travel, "t")
            await trip.create(["flight", "hotel", "car"])
            await engine.run_until_idle()
            await engine.crash()
            await engine.advance(1)
            steps = [step for step in await trip.steps() if isinstance(step, RunStep)]
            return await trip.result(timeout=5), [len(step.attempts) for step in steps]

    trip, attempts = asyncio.run(main())
    assert trip == saga.Trip([], "no car left")
    assert saga.Travel.agency.journal == ["book flight", "book hotel", "cancel car", "cancel hotel", "cancel flight"]
    assert attempts == [1, 1, 1, 2, 1, 1]


def test_saga_that_succeeds_undoes_nothing() -> None:
    async def main() -> saga.Trip:
        async with SimulatedEngine([saga.Travel]) as engine:
            trip = engine.get(saga.Travel, "t")
            await trip.create(["flight", "hotel"])
            return await trip.result(timeout=5)

    assert asyncio.run(main()) == saga.Trip(["flight-1", "hotel-1"])
    assert saga.Travel.agency.journal == ["book flight", "book hotel"]


def test_agent_asks_the_model_once_per_turn_also_when_the_definition_is_replayed_after_every_step() -> None:
    async def main() -> str:
        async with SimulatedEngine([agent.Agent], always_replay=True) as engine:
            question = engine.get(agent.Agent, "q")
            await question.create("kettle and teapot?")
            return await question.result(timeout=5)

    assert asyncio.run(main()) == "kettle and teapot? 75"
    assert agent.Agent.model.call_count == 4


def test_agent_fails_for_a_tool_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(agent.TOOLS, "add")

    async def main() -> WorkflowError:
        async with SimulatedEngine([agent.Agent]) as engine:
            question = engine.get(agent.Agent, "q")
            await question.create("kettle and teapot?")
            with pytest.raises(WorkflowFailedError) as caught:
                await question.result(timeout=5)
            return caught.value

    error = asyncio.run(main())
    assert isinstance(error, WorkflowFailedError)
    assert (error.error_name, error.error_message) == (
        "NonRetryableStepError",
        "there is no tool 'add'",
    )


@pytest.mark.slow
def test_the_demo_survives_two_kills_and_is_plain_when_piped() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    assert "\033[" not in ended.stdout
    assert ended.stdout.count("SIGKILL") == 2
    assert "  NO " not in ended.stdout
    assert ended.stdout.splitlines()[-1] == "Result: Receipt(sku='tea', parcel='parcel-hold-tea')"


def test_a_demo_that_breaks_a_promise_says_so_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(*_: object) -> tuple[None, None, int]:
        return None, None, 0

    async def promises(*_: object) -> list[tuple[bool, str]]:
        return [(True, "one"), (False, "two")]

    monkeypatch.setattr(demo, "play", play)
    monkeypatch.setattr(demo, "promises", promises)
    assert demo.main() == 1
    assert "  NO   two\n" in capsys.readouterr().out


def test_a_demo_whose_worker_ends_too_early_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(*_: object) -> None:
        raise demo.DemoError("worker 1 ended with 1, before reserve ends")

    monkeypatch.setattr(demo, "play", play)
    assert demo.main() == 1
    assert "worker 1 ended with 1" in capsys.readouterr().out
