"""Two hundred workflows in a worker process that is killed twenty times."""

from __future__ import annotations

import asyncio
import os
import random
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path

import apsw
import pytest

from tests.faults.crowd import STEPS, Crowd
from workerflow import Engine, Receipt

WORKFLOWS = 200
KILLS = 20


def start_worker(database: Path, log: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("crowd.py")
    return subprocess.Popen([sys.executable, script, database, log], stdout=subprocess.PIPE)


def wait_for_some(worker: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Until the open worker has begun some callbacks, or begins none for a while: it may be killed in its sleep."""
    assert worker.stdout is not None
    assert select.select([worker.stdout], [], [], 60)[0], "the worker does not open the database"
    wanted = chance.randrange(1, 60)
    while wanted > 0 and select.select([worker.stdout], [], [], chance.uniform(0.1, 0.4))[0]:
        wanted -= os.read(worker.stdout.fileno(), 4096).count(b"\n")


def recorded(database: Path) -> set[str]:
    connection = apsw.Connection(str(database))
    rows = connection.execute(
        "select instance_id, step_id from attempts join instances using (instance_key) where state = 'succeeded'"
    )
    found = {f"{instance_id} {step_id}" for instance_id, step_id in rows}
    connection.close()
    return found


async def create_and_send(database: Path) -> Counter[Receipt]:
    receipts: Counter[Receipt] = Counter()
    async with Engine(database, [Crowd], execute=False) as engine:
        for number in range(WORKFLOWS):
            handle = engine.get(Crowd, f"c-{number}")
            await handle.create()
            receipts[await handle.send("go", 1, id="go")] += 1
            receipts[await handle.send("go", 100, id="go")] += 1
    return receipts


async def results(database: Path) -> list[int]:
    async with Engine(database, [Crowd], execute=False) as engine:
        return [await engine.get(Crowd, f"c-{number}").result(timeout=60) for number in range(WORKFLOWS)]


@pytest.mark.slow
def test_workflows_killed_twenty_times_all_finish_and_repeat_nothing_recorded(tmp_path: Path) -> None:
    seed = random.Random().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    database, log = tmp_path / "crowd.db", tmp_path / "effects.log"
    repeated: list[str] = []
    kills = unfinished = 0
    log.touch()
    receipts = asyncio.run(create_and_send(database))

    while kills < KILLS:
        before = recorded(database)
        seen = log.read_bytes().count(b"\n")
        worker = start_worker(database, log)
        wait_for_some(worker, chance)
        worker.kill()
        worker.communicate()
        kills += 1
        unfinished += len(recorded(database)) < WORKFLOWS * STEPS
        repeated += [line for line in log.read_text().splitlines()[seen:] if line in before]
    before, seen = recorded(database), len(log.read_text().splitlines())
    worker = start_worker(database, log)
    try:
        totals = asyncio.run(results(database))
    finally:
        worker.terminate()
        worker.communicate(timeout=20)

    repeated += [line for line in log.read_text().splitlines()[seen:] if line in before]
    assert receipts == {Receipt.queued: WORKFLOWS, Receipt.duplicate: WORKFLOWS}
    assert totals == [STEPS + 1] * WORKFLOWS
    assert repeated == []
    assert unfinished > KILLS // 2
    assert worker.returncode == 0
