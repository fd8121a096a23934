"""Waits that race each other and events that race deadlines: what nobody has heard is left to the next wait."""

import asyncio
from datetime import timedelta

import pytest
from tests.bodies import next_turn
from tests.support import async_test, definition, started

from workerflow import Engine, Receipt, WaitTimeoutError
from workerflow.testing import SimulatedEngine


async def turns(count):
    """Let the loop make so many turns."""
    for _ in range(count):
        await next_turn()


@definition
async def Race(self):
    waits = {name: self.wait(name, name) for name in "ab"}
    await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
    heard = [name for name, wait in waits.items() if wait.done()]
    for wait in waits.values():
        wait.cancel()
    for number, other in enumerate(sorted(set("ab") - set(heard))):
        try:
            heard.append(await self.wait(f"other-{number}", other, timeout=60))
        except WaitTimeoutError:
            heard.append(f"{other} is lost")
    return heard


@pytest.mark.parametrize("sent", ["ab", "ba"])
@pytest.mark.parametrize("how", ["at-once", "paused", "paused-and-crashed", "by-mail"])
@async_test
async def test_the_event_of_a_wait_that_lost_a_race_is_left_to_the_next_wait(how, sent):
    async with started(Race) as (engine, handle), Engine(engine.url, [Race], execute=False) as client:
        sender = client.get(Race, handle.id) if how == "by-mail" else handle
        if how.startswith("paused"):
            await handle.pause()
        await asyncio.gather(*(sender.send(name, name) for name in sent))
        if how == "paused-and-crashed":
            await engine.crash()
        if how.startswith("paused"):
            await handle.resume()
        await engine.advance(60)
        # The one that was accepted first wins, and the other one is heard by the wait that comes after.
        assert await handle.result(timeout=5) == list(sent)
        used = {event.name: event.claimed_by for event in (await handle.info()).inbound_events}
        assert used == {sent[0]: sent[0], sent[1]: "other-0"}


@definition
async def TwoChances(self):
    heard = []
    for name in ("first", "second"):
        try:
            heard.append([name, await self.wait(name, "paid", timeout=10)])
        except WaitTimeoutError:
            heard.append([name, "nothing"])
    return heard


@pytest.mark.parametrize("by_mail", [False, True], ids=["directly", "by-mail"])
@async_test
async def test_an_event_at_any_turn_around_the_deadline_is_used_by_one_wait_and_its_sender_knows(by_mail):
    outcomes = set()
    async with (
        SimulatedEngine([TwoChances]) as engine,
        Engine(engine.url, [TwoChances], execute=False) as client,
    ):
        client._effects = engine._effects  # The same clock.
        for count in range(40):
            handle = engine.get(TwoChances, str(count))
            await handle.create()
            await engine.run_until_idle()
            moving = asyncio.ensure_future(engine.advance(10))
            await turns(count)
            receipt = await (client if by_mail else engine).get(TwoChances, str(count)).send("paid", count)
            await moving
            await engine.run_until_idle()
            (event,) = (await handle.info()).inbound_events
            await engine.advance(20)
            heard = await handle.result(timeout=5)
            expected = {
                "first": [["first", count], ["second", "nothing"]],
                "second": [["first", "nothing"], ["second", count]],
            }
            assert heard == expected[str(event.claimed_by)]
            assert receipt in ((Receipt.queued,) if by_mail else (Receipt.used, Receipt.queued))
            outcomes.add(event.claimed_by)
    # A client sends in a thread: the clock has moved before.
    assert outcomes == {"second"} | ({"first"} if not by_mail else outcomes)


@pytest.mark.parametrize("by_mail", [False, True], ids=["directly", "by-mail"])
@pytest.mark.parametrize(("early", "user"), [(1, "first"), (0, "second"), (-1, "second")])
@async_test
async def test_an_event_in_the_millisecond_of_the_deadline_is_late_and_left_to_the_next_wait(early, user, by_mail):
    """The clock stands at the deadline, and the timer has not fired yet."""
    async with started(TwoChances) as (engine, handle), Engine(engine.url, [TwoChances], execute=False) as client:
        client._effects = engine._effects  # The same clock.
        moment = timedelta(seconds=10) - early * timedelta(milliseconds=1)
        engine._virtual.move_to(engine._virtual.now_ms() + moment // timedelta(milliseconds=1))
        await (client if by_mail else engine).get(TwoChances, handle.id).send("paid", 1)
        await engine.run_until_idle()
        (event,) = (await handle.info()).inbound_events
        assert event.claimed_by == user


@definition
async def AgainstASleep(self):
    sleep, wait = self.sleep("sleep", 10), self.wait("wait", "paid")
    await asyncio.wait({sleep, wait}, return_when=asyncio.FIRST_COMPLETED)
    return "event" if wait.done() else "time"


@definition
async def AgainstATimeout(self):
    try:
        async with self.timeout("limit", 10):
            await self.wait("wait", "paid")
    except TimeoutError:
        return "time"
    return "event"


@definition
async def AgainstAWait(self):
    timed = asyncio.ensure_future(self.wait("timed", "other", timeout=10))
    wait = self.wait("wait", "paid")
    await asyncio.wait({timed, wait}, return_when=asyncio.FIRST_COMPLETED)
    if timed.done():
        assert isinstance(timed.exception(), WaitTimeoutError)
    return "event" if wait.done() else "time"


@pytest.mark.parametrize("workflow", [AgainstASleep, AgainstATimeout, AgainstAWait])
@pytest.mark.parametrize("hindrance", ["none", "paused", "paused-and-crashed", "down"])
@pytest.mark.parametrize(("at", "winner"), [(9, "event"), (11, "time")])
@async_test
async def test_of_an_event_and_a_deadline_the_earlier_is_heard_first_whatever_kept_the_workflow(
    at, winner, hindrance, workflow
):
    async with started(workflow) as (engine, handle), Engine(engine.url, [workflow], execute=False) as client:
        client._effects = engine._effects  # The same clock.
        if hindrance == "down":
            # The clock moves, and nobody looks at what is due before the engine starts again.
            engine._virtual.move_to(engine._virtual.now_ms() + 1000 * at)
            await client.get(workflow, handle.id).send("paid")
            engine._virtual.move_to(engine._virtual.now_ms() + 10_000)
            await engine.crash()
        elif hindrance == "none":
            await engine.advance(at)
            await handle.send("paid")
        else:
            await handle.pause()
            await engine.advance(at)
            await handle.send("paid")
            await engine.advance(10)
            if hindrance == "paused-and-crashed":
                await engine.crash()
            await handle.resume()
        assert await handle.result(timeout=5) == winner


@definition
async def Closing(self):
    first = await self.wait("first", "paid")
    await self.wait("end", "end")
    return first


@async_test
async def test_of_ten_accepted_events_the_nine_that_nobody_used_stay_visible_through_every_kind_of_end():
    for verb in ("end", "cancel", "crash"):
        async with started(Closing) as (engine, handle):
            receipts = [await handle.send("paid", number, id=f"event-{number}") for number in range(10)]
            assert receipts == [Receipt.used] + [Receipt.queued] * 9
            if verb == "crash":
                await engine.crash()
            await (handle.cancel() if verb == "cancel" else handle.send("end"))
            await engine.run_until_idle()
            events = [event for event in (await handle.info()).inbound_events if event.name == "paid"]
            assert [(event.payload, event.claimed_by) for event in events] == [
                (number, None if number else "first") for number in range(10)
            ]
            assert await handle.send("paid", 10) == Receipt.dropped
            # Also after the end, a sender that repeats itself learns that it was heard before.
            assert await handle.send("paid", 3, id="event-3") == Receipt.duplicate
