"""What ``asyncio.as_completed`` was given, in the order given.

It puts its awaitables into a set before it makes tasks of them. In a body futures hash by creation number, but
coroutine objects hash by address: their tasks would begin in another order on every replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import FrameType
from typing import Any

from workerflow.errors import DefinitionError

FRAMES_MAX = 4
"""How far ``create_task`` may be below ``as_completed``: by way of ensure_future and a comprehension."""

# The function itself, or from Python 3.13 on the iterator that it returns; and the name of what it was given.
_PLACES = {asyncio.as_completed.__code__: "fs"}
_ITERATOR = getattr(asyncio.tasks, "_AsCompletedIterator", None)
if _ITERATOR is not None:
    _PLACES[_ITERATOR.__init__.__code__] = "aws"


def given_to_as_completed(frame: FrameType | None) -> Sequence[Any] | None:
    """The awaitables of the ``as_completed`` that *frame* is called by, or None if it is not called by one.

    Raises DefinitionError when they have no order that a replay could repeat.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        if frame.f_code in _PLACES:
            given = frame.f_locals[_PLACES[frame.f_code]]
            if isinstance(given, Sequence):
                return given
            raise DefinitionError(
                f"as_completed() in execute() was given coroutines in a {type(given).__name__}, whose order no replay "
                "could repeat; give it a list"
            )
        frame = frame.f_back
    return None
