"""current_attempt(): what a running callback may know about itself."""

from __future__ import annotations

from dataclasses import dataclass

from workerflow.core.request import CURRENT_SCOPE
from workerflow.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class CurrentAttempt:
    """The attempt that a callback runs in.

    ``idempotency_key`` is the same for every attempt of a step, and differs between instances, also after one was
    deleted and made anew: give it to the service that you call.

    >>> CurrentAttempt("Checkout", "o-1", "charge", 1, "key").number
    1
    """

    workflow: str
    instance_id: str
    step_id: str
    number: int
    idempotency_key: str


def current_attempt() -> CurrentAttempt:
    """The attempt of the callback that calls this, also in a thread. DefinitionError outside a callback.

    >>> current_attempt()
    Traceback (most recent call last):
    ...
    workerflow.errors.DefinitionError: current_attempt() works only inside a callback of self.run
    """
    scope = CURRENT_SCOPE.get()
    if scope is None:
        raise DefinitionError("current_attempt() works only inside a callback of self.run")
    return CurrentAttempt(
        scope.instance.workflow, scope.instance.instance_id, scope.step_id, scope.attempt, scope.idempotency_key
    )
