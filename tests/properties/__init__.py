"""Laws that hold for every input, sought by random examples: each test says one, and hypothesis looks for a break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

Test = TypeVar("Test", bound=Callable[..., Any])

# Their assertions are to show their values, too.
pytest.register_assert_rewrite("tests.properties.lives", "tests.properties.watching")


def examples(count: int) -> Callable[[Test], Test]:
    """As many examples as a test may afford; ten times as many with ``--hypothesis-profile thorough``.

    Where every example opens a database, no example is quick: the health check for that would only be noise. A
    failing test looks for its simplest example for minutes, and must not be ended before it has told it.
    """
    scale = settings().max_examples / 100
    chosen = settings(max_examples=round(count * scale), suppress_health_check=list(HealthCheck))
    return lambda test: pytest.mark.slow(pytest.mark.timeout(900)(chosen(test)))
