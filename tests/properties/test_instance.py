"""Whatever is asked of an instance and whenever its process dies, every commit keeps the laws, and it can end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given

from tests.properties import examples
from tests.properties.lives import STRANDS, Command, Life, Operation, commands


@pytest.mark.spec(8, 10, 16, 17, 22, 28, 76, 119, 121, 131)
@examples(80)
@given(strands=STRANDS, commands=commands())
def test_an_instance_keeps_every_law_at_every_commit_and_has_a_way_to_its_end(
    strands: list[list[Operation]], commands: list[Command]
) -> None:
    asyncio.run(Life(strands).live(commands))
