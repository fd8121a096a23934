"""The exceptions of workerflow, all below one base.

WorkflowError
├── NonRetryableStepError       raised by authors: fail this step now, do not retry
├── MaxAttemptsExceededError    a run step failed and has no attempt left
├── WaitTimeoutError            a wait's deadline passed (also a TimeoutError)
├── RecordedError               a recorded failure whose class cannot be made again
├── WorkflowFailedError         the instance ended failed
├── WorkflowCancelledError      the instance ended cancelled
├── WorkflowHeldError           the engine may not drive the instance until a person acts
├── WorkflowStateError          the instance's status does not allow the verb
├── InvalidValueError           a value cannot be stored (also a ValueError)
├── DefinitionError             a definition, or a call it makes, is wrong
├── StepError                   a verb of the step store was refused
├── EngineClosedError           the engine was closed while the call was waiting
├── DatabaseError               the database cannot be used
│   ├── DatabaseLockedError     another engine or process holds the file
│   ├── SchemaVersionError      the database was written by a newer workerflow
│   └── DatabaseUnavailableError  a write or read was refused for now
└── InternalError               an invariant of workerflow itself broke: please report it
"""

from __future__ import annotations

from typing import Any


class WorkflowError(Exception):
    """The base of everything that workerflow raises on purpose.

    >>> issubclass(WaitTimeoutError, WorkflowError)
    True
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds with ``cls(*args)``, and ``args`` is the finished
        # message: constructors that take ids and values would be called wrongly.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[WorkflowError], args: tuple[Any, ...], state: dict[str, Any]) -> WorkflowError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class NonRetryableStepError(WorkflowError):
    """Raise it in a callback to fail the step at once, whatever attempts are left.

    *data* is stored with the failure (JSON values) and is there again when the
    error is raised into ``execute()``, on the first execution and on replay.

    >>> NonRetryableStepError("card declined", {"code": 51}).data
    {'code': 51}
    """

    def __init__(self, message: str = "", data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class MaxAttemptsExceededError(WorkflowError):
    """A run step failed and no attempt is left. ``__cause__`` is the last failure.

    >>> MaxAttemptsExceededError("charge", 3).step_id
    'charge'
    """

    def __init__(self, step_id: str, attempts: int | None = None, last: BaseException | str | None = None) -> None:
        times = "" if attempts is None else f" after {attempts} attempt{'' if attempts == 1 else 's'}"
        failure = "its last failure is the cause of this error" if last is None else f"the last one failed with {last}"
        super().__init__(f"step {step_id!r} failed{times} and has none left; {failure}")
        self.step_id = step_id
        self.attempts = attempts


class WaitTimeoutError(WorkflowError, TimeoutError):
    """The deadline of a wait passed before its event came. It may be caught.

    >>> isinstance(WaitTimeoutError("payment", "payment.received"), TimeoutError)
    True
    """

    def __init__(self, step_id: str, event_name: str) -> None:
        super().__init__(
            f"wait {step_id!r} timed out before event {event_name!r} came; catch WaitTimeoutError to go on without it"
        )
        self.step_id = step_id
        self.event_name = event_name


class RecordedError(WorkflowError):
    """A failure read from its record, whose own class cannot be made again.

    *name* is the class name it had, *message* its text, *data* what it carried.

    >>> str(RecordedError("HTTPStatusError", "503", None))
    'HTTPStatusError: 503'
    """

    def __init__(self, name: str, message: str, data: Any = None) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message
        self.data = data


class WorkflowFailedError(WorkflowError):
    """Raised by ``result()``: the instance ended ``failed``. Carries what was recorded.

    >>> WorkflowFailedError("Checkout", "o-1", "ValueError", "no stock", None, "").error_name
    'ValueError'
    """

    def __init__(
        self, workflow: str, instance_id: str, error_name: str, error_message: str, data: Any, traceback: str
    ) -> None:
        super().__init__(
            f"workflow {workflow!r} instance {instance_id!r} failed with {error_name}: {error_message}; "
            "steps() and the traceback of this error say where"
        )
        self.workflow = workflow
        self.instance_id = instance_id
        self.error_name = error_name
        self.error_message = error_message
        self.data = data
        self.traceback = traceback


class WorkflowCancelledError(WorkflowError):
    """Raised by ``result()``: the instance ended ``cancelled``, with *reason* if one was given.

    >>> WorkflowCancelledError("Checkout", "o-1", "customer left").reason
    'customer left'
    """

    def __init__(self, workflow: str, instance_id: str, reason: str | None) -> None:
        why = "" if reason is None else f": {reason}"
        super().__init__(
            f"workflow {workflow!r} instance {instance_id!r} was cancelled{why}; it has no result; "
            "create another instance to run it again"
        )
        self.workflow = workflow
        self.instance_id = instance_id
        self.reason = reason


class WorkflowHeldError(WorkflowError):
    """The engine may not drive the instance until a person acts; ``resume()`` releases it.

    >>> WorkflowHeldError("Checkout", "o-1", "class missing").reason
    'class missing'
    """

    def __init__(self, workflow: str, instance_id: str, reason: str) -> None:
        super().__init__(
            f"workflow {workflow!r} instance {instance_id!r} is held: {reason}; "
            "mend the cause, then call resume() to release it"
        )
        self.workflow = workflow
        self.instance_id = instance_id
        self.reason = reason


class WorkflowStateError(WorkflowError):
    """The instance's status does not allow what was asked, and nothing was changed.

    >>> WorkflowStateError("cannot resume", "running").status
    'running'
    """

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class InvalidValueError(WorkflowError, ValueError):
    """A value cannot be stored and would not come back as it was; nothing was changed.

    *path* leads to the offending part, in the form ``$.items[3].price``.

    >>> InvalidValueError("input: NaN is not allowed", "$.price").path
    '$.price'
    """

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class DefinitionError(WorkflowError):
    """A definition or a call that it makes is wrong; the message says what and how to mend it.

    >>> raise DefinitionError("step id 'a' was already used")
    Traceback (most recent call last):
    ...
    workerflow.errors.DefinitionError: step id 'a' was already used
    """


class StepError(WorkflowError):
    """The step store refused a verb: unknown step, wrong state, attempt not in progress.

    >>> StepError("step 'a' not found").args
    ("step 'a' not found",)
    """


class EngineClosedError(WorkflowError):
    """The engine was closed, or never opened, when the call needed it.

    >>> issubclass(EngineClosedError, WorkflowError)
    True
    """


class DatabaseError(WorkflowError):
    """The database cannot be used as it is; the message says why and what to do.

    >>> issubclass(DatabaseLockedError, DatabaseError)
    True
    """


class DatabaseLockedError(DatabaseError):
    """Another engine owns the file, or a foreign transaction held it too long.

    >>> issubclass(DatabaseLockedError, DatabaseError)
    True
    """


class SchemaVersionError(DatabaseError):
    """The database has a newer schema than this version of workerflow knows.

    >>> SchemaVersionError("schema 9 is newer than 1").args
    ('schema 9 is newer than 1',)
    """


class DatabaseUnavailableError(DatabaseError):
    """The database refused a read or a write for now: disk full, file gone, I/O error.

    >>> issubclass(DatabaseUnavailableError, DatabaseError)
    True
    """


class InternalError(WorkflowError):
    """An invariant of workerflow itself broke. Please report it with its message.

    >>> issubclass(InternalError, WorkflowError)
    True
    """
