"""A worker process for the crowd test: serves workflows until it is killed. Arguments: database, effect log."""

from __future__ import annotations

import asyncio
import os
import sys

from workerflow import Engine, RetryPolicy, WorkflowDefinition, current_attempt

STEPS = 5


async def effect() -> int:
    attempt = current_attempt()
    line = f"{attempt.instance_id} {attempt.step_id}\n".encode()
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.write(1, line)
    # A real wait, for the disk, in which a kill may find it.
    await asyncio.to_thread(os.fsync, descriptor)
    os.close(descriptor)
    return 1


class Crowd(WorkflowDefinition[None, int]):
    async def execute(self) -> int:
        total = 0
        quick = RetryPolicy(max_attempts=50, initial=0.01)
        for number in range(STEPS):
            total += await self.run(f"step-{number}", effect, retry=quick)
            if number == 1:
                await self.sleep("sleep", 0.2)
            if number == 3:
                total += await self.wait("wait", "go", int)
        return total


async def main() -> None:
    async with Engine(sys.argv[1], [Crowd]) as engine:
        os.write(1, b"open\n")
        await engine.run_forever()


if __name__ == "__main__":
    asyncio.run(main())
