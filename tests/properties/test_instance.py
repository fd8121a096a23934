"""Whatever is asked of an instance and whenever its process dies, every commit keeps the laws, and it can end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given

from tests.properties import examples
from tests.properties.lives import STRANDS, Command, Life, Operation, commands
from tests.signals import Gate
from tests.support import Callback, async_test, definition
from workerflow.testing import SimulatedEngine


@pytest.mark.spec(8, 10, 16, 17, 22, 28, 76, 119, 121, 131)
@examples(80)
@given(strands=STRANDS, commands=commands())
def test_an_instance_keeps_every_law_at_every_commit_and_has_a_way_to_its_end(
    strands: list[list[Operation]], commands: list[Command]
) -> None:
    asyncio.run(Life(strands).live(commands))


@pytest.mark.normal_only("only there execute() is entered once by each process")
@async_test
async def test_a_verb_that_is_called_while_the_process_dies_enters_no_body_in_it() -> None:
    gate, entries = Gate(), Callback()

    @definition
    async def Living(self: Any) -> None:
        await entries()
        await self.run("step", gate)

    async with SimulatedEngine([Living]) as engine:
        handle = engine.get(Living, "instance-1")
        await handle.create()
        await gate.begun()
        asked = asyncio.ensure_future(handle.create())
        await engine.crash()
        await asyncio.gather(asked, return_exceptions=True)
        assert entries.calls == 2
