"""What ``asyncio.as_completed`` was given, in the order given.

It puts its awaitables into a set before it makes tasks of them. In a body futures hash by creation number, but
coroutine objects hash by address: their tasks would begin in another order on every replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import FrameType
from typing import Any

FRAMES_MAX = 4
"""How far ``create_task`` may be below ``as_completed``: by way of ensure_future and a comprehension."""

# The function itself, or from Python 3.13 on the iterator that it returns; and the name of what it was given.
_PLACES = {asyncio.as_completed.__code__: "fs"}
_ITERATOR = getattr(asyncio.tasks, "_AsCompletedIterator", None)
if _ITERATOR is not None:
    _PLACES[_ITERATOR.__init__.__code__] = "aws"


def given_to_as_completed(frame: FrameType | None) -> Sequence[Any] | None:
    """The awaitables of the ``as_completed`` that *frame* is called by, if it is called by one and they have an order.

    Coroutines in a set or a generator have none that a replay could find again: their steps are still matched by id.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        if frame.f_code in _PLACES:
            given = frame.f_locals[_PLACES[frame.f_code]]
            return given if isinstance(given, Sequence) else None
        frame = frame.f_back
    return None
