"""A world: one database, a process that executes and is started again when it has ended, and people who ask."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw

from tests.simulation.clock import Clock, ProcessEffects, SimulatedLoop
from tests.simulation.faults import Process, Trouble, settings_of_sender
from tests.simulation.plan import Ask, Fault, Life, Plan
from tests.simulation.workflows import Log, Simulated
from workerflow import DatabaseError, EngineClosedError, WorkflowStateError

TURNS_MAX = 400_000
HEALED_MS = 600_000
"""In this time, and what the clock was set back by, every answer must come; and after the last fault every end."""
LONG_NAME = "simulated-" + "database" * 14
"""Too long for the address of a socket: hints are simulated, too."""

STARTED = (
    "select instance_id, step_id, number from attempts join instances using (instance_key) where state = 'started'"
)
HIBERNATING = "select count(*) from instances where status = 'running' and owner is null"
STATUSES = "select instance_id, workflow, status, held_reason from instances order by instance_id"
OPEN_DELIVERIES = "select count(*) from deliveries where delivered_at is null"
EVENT = """
select count(*) from (select name, event_id, instance_key from inbound_events
    union all select name, event_id, instance_key from mail where kind = 'event')
join instances using (instance_key) where instance_id = ? and name = ? and (event_id = ? or ? is null)
"""
STATUS = "select status from instances where instance_id = ?"
MAIL = "select count(*) from mail join instances using (instance_key) where instance_id = ? and kind = ?"
LIFECYCLE = (
    "select count(*) from lifecycle_events join instances using (instance_key) where instance_id = ? and type = ?"
)
OUTCOMES = "select instance_id, status, result_json, failure_name, failure_message from instances"

OPEN = """
select instance_id, instances.status, alarm_at, owner, held_reason,
    (select group_concat(step_id) from steps where steps.instance_key = instances.instance_key and state = 'waiting')
from instances where status in ('pending', 'initialized', 'running', 'paused') limit 8
"""
REOPEN = (
    "update mail set taken_at = 0, outcome = '' where taken_at is null",
    "delete from deliveries",
    "delete from lifecycle_events where type in ('completed', 'failed')",
    "update instances set status = 'running', owner = 1, result_type = null, result_json = null, failure_name = null,"
    " failure_message = null, failure_detail = null where status in ('completed', 'failed')",
)


class World:
    """One run of a plan. ``log`` is what happened outside of the engine, ``broken`` what must not have happened."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan = plan
        self.path = path
        self.clock = Clock(TURNS_MAX)
        self.reached: Counter[str] = Counter()
        self.cut: Counter[tuple[str, str, int]] = Counter()
        """How often each attempt was under way when its process ended."""
        self.deaths = 0
        self._chance = random.Random(f"run {plan.seed}")
        self._trouble = Trouble(self.clock, self._chance, self.reached)
        self.log = Log(self.clock, self._chance, self.rows)
        self.workflows = [
            Simulated(number, program, self.log, may_repeat=plan.always_replay)
            for number, program in enumerate(plan.programs)
        ]
        self._registered = [workflow.registered for workflow in self.workflows]
        self._process: Process | None = None
        self._mail: Process | None = None
        self._is_over = False
        self._ended: dict[str, tuple[Any, ...]] = {}
        self._connection: apsw.Connection | None = None

    @property
    def broken(self) -> list[str]:
        return [*self.log.broken, *(line for workflow in self.workflows for line in workflow.broken)]

    def loop(self) -> SimulatedLoop:
        return SimulatedLoop(self.clock, self._chance)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Committed state, on a connection of its own."""
        if self._connection is None:
            self._connection = apsw.Connection(str(self.path))
        return list(self._connection.execute(statement, values))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def live(self) -> None:
        """Everything that is planned, then heal, and go on until everything has ended."""
        back_ms = sum(fault.number for fault in self.plan.faults if fault.kind == "clock back")
        self.clock.deadline_ms = HEALED_MS + back_ms
        # The first one makes the tables.
        self._mail = await self._start(self._make(execute=False, settings=settings_of_sender()))
        keeper = asyncio.create_task(self._keep_running())
        keeper.add_done_callback(self._keeper_ended)
        people = [
            asyncio.create_task(self._person(life, asks))
            for life in self.plan.lives
            for asks in (life.asks, life.controls)
        ]
        people += [asyncio.create_task(self._disturb(fault)) for fault in self.plan.faults]
        for person in people:
            await person
        self._trouble.heal()
        self.clock.deadline_ms = self.clock.passed_ms + HEALED_MS + back_ms
        await self._let_everything_end()
        self._is_over = True
        if self._process is not None:
            self._process.has_ended.set()
        await keeper
        await self._mail.die()

    def open_ends(self) -> list[Any]:
        """What keeps the world from its end: instances that have none."""
        return self.rows(OPEN) if self.rows("select 1 from sqlite_schema limit 1") else ["no database"]

    def reopen(self) -> None:
        """Let everything that was not cancelled run again from its journal, as if its end had been lost."""
        triggers = self.rows("select name from sqlite_schema where type = 'trigger'")
        for statement in [*(f"drop trigger {name}" for (name,) in triggers), *REOPEN]:
            self.rows(statement)

    async def live_again(self) -> None:
        """Until everything has ended."""
        self.clock.deadline_ms = self.clock.passed_ms + HEALED_MS
        process = await self._start(self._make(settings=self.plan.settings, always_replay=self.plan.always_replay))
        while not self.broken and any(status == "running" for _, _, status, _ in self.rows(STATUSES)):
            await self.clock.wait(10)
        await process.die()

    def _make(self, **options: Any) -> Process:
        effects = ProcessEffects(self.clock, self._chance)
        return Process(self.path, self._registered, self._trouble, effects, **options)

    async def _start(self, process: Process) -> Process:
        while True:
            try:
                return await process.__aenter__()
            except DatabaseError:
                self.reached["start that fails"] += 1
                await self.clock.wait(100)

    # The process that executes.

    async def _keep_running(self) -> None:
        while not self._is_over:
            made = self._make(settings=self.plan.settings, always_replay=self.plan.always_replay)
            process = self._process = await self._start(made)
            self.log.add("started", str(self.deaths))
            await process.has_ended.wait()
            self.log.check(process.is_blameless, f"an engine ends by itself: {process.failure!r}")
            await process.die()
            self._process = None
            self._note_death()
            await self.clock.wait(self._chance.choice([0, 10, 500, 3000]))

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and keeper.exception() is not None:
            self.clock.stop(f"the process cannot be run: {keeper.exception()!r}")

    def _note_death(self) -> None:
        self.deaths += 1
        self.log.lives += 1
        self.log.add("ended", str(self.deaths))
        started = self.rows(STARTED)
        self.cut.update(started)
        self.reached["callback cut"] += len(started)
        self.reached["hibernating at a death"] += self.rows(HIBERNATING)[0][0]
        self.note_ends()

    def note_ends(self) -> None:
        """What has ended must never change."""
        for id, *outcome in self.rows(OUTCOMES):
            if outcome[0] in ("completed", "failed", "cancelled"):
                before = self._ended.setdefault(id, tuple(outcome))
                self.log.check(before == tuple(outcome), f"{id} had ended as {before}, and now as {outcome}")

    async def _disturb(self, fault: Fault) -> None:
        await self.clock.wait(fault.at_ms)
        self.log.add("fault", fault.kind, str(fault.number))
        process = self._process
        if fault.kind.startswith("clock"):
            self.reached[fault.kind] += 1
            self.clock.set_wall(fault.number if fault.kind == "clock forth" else -fault.number)
        elif fault.kind not in ("crash", "stop"):
            self._trouble.begin(fault)
        elif process is not None and not process.has_ended.is_set():
            self.reached[fault.kind] += 1
            if fault.kind == "stop":
                await process.stop()
            process.has_ended.set()

    # The people.

    async def _person(self, life: Life, asks: tuple[Ask, ...]) -> None:
        for ask in asks:
            await self.clock.wait(max(ask.at_ms - self.clock.passed_ms, 0))
            self.reached[f"{ask.verb} {'by mail' if ask.is_mail else 'directly'}"] += 1
            await self._ask(life, ask)

    async def _ask(self, life: Life, ask: Ask) -> None:
        """Ask until there is an answer, as a careful caller would; then it must be durable."""
        arguments = {"payload": ask.name, "id": ask.event_id} if ask.verb == "send" else {}
        names = [ask.name] if ask.verb == "send" else []
        while True:
            process = self._mail if ask.is_mail else self._process
            try:
                if process is None:
                    raise EngineClosedError("not started")
                handle: Any = process.get(f"program-{life.program}", life.id)
                answer = await getattr(handle, ask.verb)(*names, **arguments)
                break
            except WorkflowStateError as error:
                answer = f"refused: {error.status}"
                break
            except (EngineClosedError, DatabaseError) as error:
                self.reached[f"{ask.verb} refused"] += 1
                self.log.add("no answer", life.id, ask.verb, type(error).__name__)
                await self.clock.wait(self._chance.choice([0, 20, 300]))
        self.log.add("answer", life.id, ask.verb, ask.name, str(answer))
        self.reached["event without an id"] += ask.verb == "send" and ask.event_id is None
        self.reached["event that is repeated"] += str(answer) == "duplicate"
        self._check_answer(life, ask, str(answer))
        if ask.is_mail and self._chance.random() < 0.5 and self._process is not None:
            self._process.hint()

    def _check_answer(self, life: Life, ask: Ask, answer: str) -> None:
        if answer == "False" or answer.startswith("refused") or answer == "dropped":
            return
        is_mailed = ask.is_mail and self.rows(MAIL, life.id, "event" if ask.verb == "send" else ask.verb)[0][0] > 0
        if ask.verb == "send":
            is_durable = self.rows(EVENT, life.id, ask.name, ask.event_id, ask.event_id)[0][0] > 0
        elif ask.verb == "cancel":
            is_durable = self.rows(STATUS, life.id) in [[("completed",)], [("failed",)], [("cancelled",)]]
        else:
            wanted = {"create": "started", "resume": "resumed"}.get(ask.verb, "created")
            is_durable = ask.verb == "pause" or self.rows(LIFECYCLE, life.id, wanted)[0][0] > 0
        self.log.check(is_durable or is_mailed, f"{ask} of {life.id} is answered with {answer} and not durable")

    async def _let_everything_end(self) -> None:
        """Resume what is paused; nothing needs more."""
        while True:
            await self.clock.wait(1000)
            found = self.rows(STATUSES)
            for id, workflow, status, held in found:
                self.log.check(held is None, f"{id} is held: {held}")
                if status == "paused":
                    await self._ask(Life(id, int(workflow.split("-")[1]), ()), Ask(0, "resume"))
            is_ended = all(status in ("completed", "failed", "cancelled") for _, _, status, _ in found)
            if self.broken or (is_ended and self.rows(OPEN_DELIVERIES) == [(0,)]):
                return


@contextmanager
def in_folder(plan: Plan) -> Iterator[World]:
    """A world with a database that goes with it. Its engines keep quiet: they have much to complain about."""
    loggers = [logging.getLogger(name) for name in ("workerflow", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    memory = Path("/dev/shm")
    try:
        with TemporaryDirectory(dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True) as folder:
            world = World(plan, Path(folder, LONG_NAME))
            yield world
            world.close()
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
