"""The places in which an author or a caller hands over a value, each with a definition that takes it there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import new_class
from typing import Any

from workerflow import MaxAttemptsExceededError, NonRetryableStepError, WorkflowDefinition, WorkflowHandle


@dataclass
class Given:
    """A value and its declared type, what the bodies have seen of it, and how often a callback was called."""

    make: Callable[[], Any]
    kind: Any = Any
    seen: list[Any] = field(default_factory=list)
    calls: int = 0

    def returns(self) -> Any:
        return None if self.kind is Any else self.kind


Place = Callable[[Given], Callable[[Any], Any]]


def in_a_step(given):
    async def execute(self):
        async def give():
            given.calls += 1
            return given.make()

        given.seen.append(await self.run("give", give, returns=given.returns()))
        await self.wait("end", "end")

    return execute


def in_a_thread(given):
    async def execute(self):
        def give():
            given.calls += 1
            return given.make()

        given.seen.append(await self.run("give", give, returns=given.returns()))
        await self.wait("end", "end")

    return execute


def in_a_nested_step(given):
    async def execute(self):
        async def give():
            given.calls += 1
            return given.make()

        async def outer():
            given.seen.append(await self.run("give", give, returns=given.returns()))
            await self.wait("end", "end")

        await self.run("outer", outer)

    return execute


def in_the_input(given):
    async def execute(self):
        given.seen.append(self.input)
        await self.wait("end", "end")

    return execute


def in_a_payload(given):
    async def execute(self):
        given.seen.append(await self.wait("wait", "given", given.kind))
        await self.wait("end", "end")

    return execute


def in_the_result(given):
    async def execute(self):
        given.calls += 1
        return given.make()

    return execute


def in_the_data_of_an_error(given):
    async def execute(self):
        async def give():
            given.calls += 1
            raise NonRetryableStepError("declined", given.make())

        try:
            await self.run("give", give)
        except NonRetryableStepError as error:
            given.seen.append(error.data)
        await self.wait("end", "end")

    return execute


class CardError(Exception):
    def __init__(self, data):
        super().__init__("declined")
        self.data = data


def in_the_data_of_a_foreign_error(given):
    async def execute(self):
        async def give():
            given.calls += 1
            raise CardError(given.make())

        try:
            await self.run("give", give, max_attempts=1)
        except MaxAttemptsExceededError as error:
            given.seen.append(getattr(error.__cause__, "data", "no data"))
        await self.wait("end", "end")

    return execute


def in_the_data_of_the_end(given):
    async def execute(self):
        given.calls += 1
        raise NonRetryableStepError("declined", given.make())

    return execute


RESULTS_OF_STEPS = (in_a_step, in_a_thread, in_a_nested_step)
ERRORS = (in_the_data_of_an_error, in_the_data_of_a_foreign_error)


def workflows(place: Place, table: dict[str, Given]) -> dict[str, type[WorkflowDefinition[Any, Any]]]:
    """For each value of the table a definition, of the value's name, that takes it to this place."""

    def made(name: str, given: Given) -> Any:
        base: Any = WorkflowDefinition
        kinds = (given.kind if place is in_the_input else Any, given.kind if place is in_the_result else Any)
        members = {"execute": place(given), "name": name, "__module__": __name__}
        return new_class("Given", (base[kinds],), exec_body=lambda own: own.update(members))

    return {name: made(name, given) for name, given in table.items()}


async def put(place: Place, handle: WorkflowHandle[Any], given: Given) -> None:
    """Start the instance, so that the value comes to its place."""
    await (handle.create(given.make()) if place is in_the_input else handle.create())
    if place is in_a_payload:
        await handle.send("given", given.make())
