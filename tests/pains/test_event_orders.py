"""Every order of what can happen to a wait: one order decides, nothing is lost, and every sender is told the truth."""

import pytest
from tests.pains.orders import orders, play
from tests.support import async_test


@pytest.mark.slow
@async_test
async def test_every_order_of_a_send_a_wait_and_two_other_happenings_ends_as_the_model_says():
    scripts = list(orders("SF", "GMDPXKE", 2))
    assert await play(scripts) == len(scripts) == 2 + 7 * 6 + 21 * 24


@async_test
async def test_every_order_of_a_send_and_a_wait_around_a_pause_ends_as_the_model_says():
    scripts = list(orders("SFPR", "GMDXKE", 1))
    assert await play(scripts) == len(scripts) == (24 + 6 * 120) // 2


@pytest.mark.slow
@async_test
async def test_every_order_of_two_sends_and_two_waits_ends_as_the_model_says():
    scripts = list(orders("SMFG", "DPXKE", 1))
    assert await play(scripts) == len(scripts) == 24 + 5 * 120


@pytest.mark.slow
@async_test
async def test_every_order_of_a_send_a_wait_and_three_other_happenings_ends_as_the_model_says():
    scripts = list(orders("SF", "GDPE", 3))
    assert await play(scripts) == len(scripts) == 2 + 4 * 6 + 6 * 24 + 4 * 120
