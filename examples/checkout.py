"""Checkout: reserve the goods, wait for the payment, take the money, wait a little, ship.

``python -m examples.checkout`` runs it on a virtual clock, ``python -m examples.demo`` in processes that are killed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from workerflow import RetryPolicy, WaitTimeoutError, WorkflowDefinition, current_attempt
from workerflow.testing import SimulatedEngine


@dataclass(frozen=True)
class Order:
    """What the customer wants. An order that has been paid may be taken back during *cooling_off_s*."""

    sku: str
    cents: int
    cooling_off_s: float = 3600.0


@dataclass(frozen=True)
class Payment:
    """The payload of the event ``payment.received``."""

    charge: str


@dataclass(frozen=True)
class Receipt:
    """The result. *parcel* is None when the payment never came."""

    sku: str
    parcel: str | None


class Shop:
    """The world outside. Only callbacks talk to it, and each method may be called more than once for one order."""

    async def reserve(self, sku: str) -> str:
        """Put the goods aside."""
        return f"hold-{sku}"

    async def release(self, hold: str) -> None:
        """Put them back."""

    async def capture(self, payment: Payment, cents: int) -> str:
        """Take the money, once: the key is the same for every attempt, so the bank knows a repeated call."""
        return f"{payment.charge}/{current_attempt().idempotency_key[:8]}"

    async def ship(self, hold: str) -> str:
        """Hand the parcel over."""
        return f"parcel-{hold}"


class Checkout(WorkflowDefinition[Order, Receipt]):
    """One order from reservation to parcel. Subclass it with another ``shop`` to give it another world."""

    name = "Checkout"
    shop: ClassVar[Shop] = Shop()

    async def execute(self) -> Receipt:
        order = self.input
        hold = await self.run("reserve", self.shop.reserve, order.sku)
        try:
            payment = await self.wait("payment", "payment.received", Payment, timeout=timedelta(days=1))
        except WaitTimeoutError:
            await self.run("release", self.shop.release, hold)
            return Receipt(order.sku, parcel=None)
        await self.run("capture", self.shop.capture, payment, order.cents, retry=RetryPolicy(max_attempts=5))
        await self.sleep("cooling-off", order.cooling_off_s)
        return Receipt(order.sku, await self.run("ship", self.shop.ship, hold))


async def main() -> None:
    """Sell tea, and crash while the order is cooling off."""
    async with SimulatedEngine([Checkout]) as engine:
        order = engine.get(Checkout, "order-1042")
        await order.create(Order("tea", 900))
        print("event:", await order.send("payment.received", Payment("ch_1"), id="ch_1"))
        await engine.advance(timedelta(minutes=30))
        await engine.crash()
        await engine.advance(timedelta(minutes=30))
        print("result:", await order.result(timeout=5))


if __name__ == "__main__":
    asyncio.run(main())
