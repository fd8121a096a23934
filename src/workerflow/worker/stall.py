"""StallWatcher: report a body that does not yield."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_logger = logging.getLogger("workerflow")


class StallWatcher:
    """A thread that looks, twice per *seconds*, whether the same drive is still going on.

    It counts drives instead of reading a clock: what matters is that nothing moved between two looks.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = max(seconds, 0.05)
        self._label: Callable[[], str] | None = None
        self._drive_count = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="workerflow-stall-watcher", daemon=True)
        self._thread.start()

    @contextmanager
    def driving(self, label: Callable[[], str]) -> Iterator[None]:
        """Around each drive."""
        self._drive_count += 1
        self._label = label
        try:
            yield
        finally:
            self._label = None

    def close(self) -> None:
        """End the thread. It waits for nothing else, so this takes no time."""
        self._closed.set()
        self._thread.join(timeout=1)

    def _watch(self) -> None:
        seen = reported = 0
        while not self._closed.wait(self._seconds):
            count, label = self._drive_count, self._label
            if label is not None and count == seen and count != reported:
                reported = count
                _logger.warning(
                    "execute() of %s has not yielded for more than %g s and stops every other instance; "
                    "move the long work into a callback: await self.run('some-id', function)",
                    label(),
                    self._seconds,
                )
            seen = count
