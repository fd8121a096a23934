"""Every limit and interval of an engine, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, fields

from workerflow.errors import DefinitionError

NUMBER_MAX = 10**15
"""Above every limit and interval that means anything: 30,000 years in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The limits and intervals of one engine. Every field has a default and may be given by name.

    * ``hibernate_after_s``: an idle instance with no alarm within this time leaves memory once it has been idle
      for as long. 0 makes every idle instance leave at once. Its rows and its alarm remain.
    * ``poll_interval_ms``: how often a worker looks for mail and due alarms when no hint came.
    * ``stop_grace_s``: how long a graceful stop waits for callbacks in flight.
    * ``finish_grace_s``: how long the end of ``execute()`` waits for the async callbacks it cancels.
    * ``lock_timeout_s``: how long opening a file waits for another engine to let go of it.
    * ``busy_timeout_s``: how long a sender waits for a foreign write transaction.
    * ``watchdog_s``: a callback in flight for longer is reported as stuck; a plain one gives its place to others.
    * ``body_stall_s``: a body that does not yield for longer is reported.
    * ``thread_count``: plain functions that run at the same time.
    * ``idle_live_max``: idle instances kept in memory, whatever ``hibernate_after_s`` says.
    * ``handles_per_drive_max``: asyncio callbacks one delivery may cause before the body counts as runaway.
    * ``recoveries_max``: take-overs with attempts in flight and no outcome in between before an instance is held. A
      death of the process while it ran ``execute()`` counts for a third of them.
    * ``delivery_lease_s``: how long a process may take over a completion delivery. On an SQLite file, which one process
      has, a delivery without an answer is tried again at the next start, and never beside one that is under way.
    * ``value_bytes_max`` and ``value_bytes_warn``: size of one stored value at which it is refused, or logged.
    * ``inline_commit_ms``: commits slower than this move to the writer thread.
    * ``synchronous``: SQLite's setting. ``FULL`` loses nothing acknowledged at a power loss; ``NORMAL`` may.

    >>> Settings(hibernate_after_s=0).poll_interval_ms
    500
    """

    hibernate_after_s: float = 10.0
    poll_interval_ms: int = 500
    stop_grace_s: float = 10.0
    finish_grace_s: float = 2.0
    lock_timeout_s: float = 0.0
    busy_timeout_s: float = 30.0
    watchdog_s: float = 1800.0
    body_stall_s: float = 1.0
    thread_count: int = 32
    idle_live_max: int = 10_000
    handles_per_drive_max: int = 250_000
    recoveries_max: int = 10
    delivery_lease_s: float = 1800.0
    value_bytes_max: int = 32 * 1024 * 1024
    value_bytes_warn: int = 1024 * 1024
    inline_commit_ms: float = 5.0
    synchronous: str = "FULL"

    def __post_init__(self) -> None:
        if self.synchronous not in ("FULL", "NORMAL", "EXTRA"):
            raise DefinitionError(f"synchronous={self.synchronous!r} is not known; use 'FULL', 'EXTRA' or 'NORMAL'")
        for field in fields(self):
            if field.name != "synchronous":
                _check(field.name, getattr(self, field.name))


def _check(name: str, value: object) -> None:
    least = 1 if name.endswith(("_max", "_count", "poll_interval_ms")) else 0
    kinds = (int,) if name.endswith(("_max", "_count", "_warn", "poll_interval_ms")) else (int, float)
    # Not isinstance: True is no number of seconds. Written so that NaN is refused, too.
    if type(value) not in kinds or not least <= value <= NUMBER_MAX:  # type: ignore[operator]  # the kinds are numbers
        number = "whole number" if len(kinds) == 1 else "number"
        raise DefinitionError(f"{name}={value!r} must be a {number} from {least} to {NUMBER_MAX}")
