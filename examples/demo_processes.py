"""The processes that ``examples.demo`` starts, and the effect log that they write.

``python -m examples.demo_processes ROLE FOLDER``, where the role is worker, customer or bank.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.checkout import Checkout, Order, Payment, Shop
from workerflow import Engine, current_attempt

ORDER_ID = "order-1042"
COOLING_OFF_S = 3.0
"""Long enough to be killed in, on a slow machine too."""
HANGING_S = 300.0


@dataclass(frozen=True)
class Effect:
    """One line of the effect log: a callback begins or ends."""

    step: str
    attempt: int
    key: str
    phase: str
    process: int


def database(folder: Path) -> Path:
    """Where the workflow is stored."""
    return folder / "checkout.db"


def read_effects(folder: Path) -> list[Effect]:
    """The effect log so far."""
    log = folder / "effects.log"
    return [Effect(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def note_effect(folder: Path, phase: str) -> None:
    """Append a line about the callback that calls this."""
    attempt = current_attempt()
    effect = Effect(attempt.step_id, attempt.number, attempt.idempotency_key, phase, os.getpid())
    # One write to a file opened for appending: whole lines only, whatever is killed when.
    descriptor = os.open(folder / "effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{json.dumps(asdict(effect))}\n".encode())
    finally:
        os.close(descriptor)


class LoggedShop(Shop):
    """The shop of the example, with each call noted. The bank does not answer the first time it is asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def reserve(self, sku: str) -> str:
        """Put the goods aside."""
        return await self._noted(super().reserve(sku))

    async def capture(self, payment: Payment, cents: int) -> str:
        """Take the money. The first attempt hangs, so that there is a middle to be killed in."""
        call = super().capture(payment, cents)
        return await self._noted(_hang(call) if current_attempt().number == 1 else call)

    async def ship(self, hold: str) -> str:
        """Hand the parcel over."""
        return await self._noted(super().ship(hold))

    async def _noted(self, call: Awaitable[str]) -> str:
        note_effect(self._folder, "begins")
        result = await call
        note_effect(self._folder, "ends")
        return result


async def _hang(call: Awaitable[str]) -> str:
    await asyncio.sleep(HANGING_S)
    return await call


async def worker(folder: Path) -> None:
    """Execute workflows until told to stop."""

    class LoggedCheckout(Checkout):
        name = "Checkout"
        shop = LoggedShop(folder)

    async with Engine(database(folder), [LoggedCheckout]) as engine:
        await engine.run_forever()


async def customer(folder: Path) -> None:
    """Place the order, as a web process would: it executes nothing."""
    async with Engine(database(folder), [Checkout], execute=False) as engine:
        await engine.get(Checkout, ORDER_ID).create(Order("tea", 900, COOLING_OFF_S))


async def bank(folder: Path) -> None:
    """Send the event."""
    async with Engine(database(folder), [Checkout], execute=False) as engine:
        await engine.get(Checkout, ORDER_ID).send("payment.received", Payment("ch_1"), id="ch_1")


ROLES: dict[str, Callable[[Path], Awaitable[None]]] = {"worker": worker, "customer": customer, "bank": bank}


async def main(role: str, folder: Path) -> None:
    """Play one role."""
    await ROLES[role](folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
