"""Hints: a datagram on a local socket beside the file tells its owner that there is mail.

A hint only shortens the wait: with every one lost, polling finds the mail.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ADDRESS_BYTES_MAX = 100
"""A little below the 108 bytes that Linux has for the path of a local socket."""


def hint_address(path: Path) -> str | None:
    """Where the owner of a database file listens; None when the path is too long for a socket."""
    address = f"{path}-hint"
    return address if len(address.encode()) <= ADDRESS_BYTES_MAX else None


class HintListener:
    """Calls *on_hint* on the running loop when somebody sends a hint."""

    def __init__(self, path: Path, on_hint: Callable[[], None]) -> None:
        self._address = hint_address(path)
        self._socket: socket.socket | None = None
        self._on_hint = on_hint
        self._loop = asyncio.get_running_loop()
        if self._address is not None:
            self._listen(self._address)

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            Path(self._address or "").unlink(missing_ok=True)

    def _listen(self, address: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        try:
            # What an earlier owner left behind: the file lock says that there is no other one now.
            Path(address).unlink(missing_ok=True)
            listener.bind(address)
            self._loop.add_reader(listener, self._read, listener)
        except (OSError, NotImplementedError):  # No local sockets here: polling does.
            listener.close()
            return
        self._socket = listener

    def _read(self, listener: socket.socket) -> None:
        try:
            while listener.recv(16):
                pass
        except OSError:  # Empty.
            pass
        self._on_hint()


def send_hint(path: Path) -> None:
    """Tell the owner of the file, if there is one that listens."""
    address = hint_address(path)
    if address is None:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with suppress(OSError):  # Nobody listens, or its queue is full of hints already.
            sender.sendto(b"!", address)
