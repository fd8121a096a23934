"""Durable workflows for Python: definitions that survive a SIGKILL, on an SQLite file, without a server."""

from workerflow.codec import UNSET
from workerflow.core.context import WorkflowRuntimeContext
from workerflow.core.model import (
    InboundEvent,
    InstanceInfo,
    InstanceSummary,
    Receipt,
    RecordedFailure,
    RunStep,
    RunStepAttempt,
    SleepStep,
    WaitStep,
    WorkflowCompletionEvent,
    WorkflowEvent,
)
from workerflow.core.retry import RetryPolicy
from workerflow.current import CurrentAttempt, current_attempt
from workerflow.definition import WorkflowDefinition
from workerflow.engine import Engine
from workerflow.errors import (
    DatabaseError,
    DatabaseLockedError,
    DatabaseUnavailableError,
    DefinitionError,
    EngineClosedError,
    InternalError,
    InvalidValueError,
    MaxAttemptsExceededError,
    NonRetryableStepError,
    RecordedError,
    SchemaVersionError,
    StepError,
    WaitTimeoutError,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowFailedError,
    WorkflowHeldError,
    WorkflowStateError,
)
from workerflow.handle import WorkflowHandle
from workerflow.runtime import WorkflowRuntime
from workerflow.settings import Settings

__all__ = [
    "UNSET",
    "CurrentAttempt",
    "DatabaseError",
    "DatabaseLockedError",
    "DatabaseUnavailableError",
    "DefinitionError",
    "Engine",
    "EngineClosedError",
    "InboundEvent",
    "InstanceInfo",
    "InstanceSummary",
    "InternalError",
    "InvalidValueError",
    "MaxAttemptsExceededError",
    "NonRetryableStepError",
    "Receipt",
    "RecordedError",
    "RecordedFailure",
    "RetryPolicy",
    "RunStep",
    "RunStepAttempt",
    "SchemaVersionError",
    "Settings",
    "SleepStep",
    "StepError",
    "WaitStep",
    "WaitTimeoutError",
    "WorkflowCancelledError",
    "WorkflowCompletionEvent",
    "WorkflowDefinition",
    "WorkflowError",
    "WorkflowEvent",
    "WorkflowFailedError",
    "WorkflowHandle",
    "WorkflowHeldError",
    "WorkflowRuntime",
    "WorkflowRuntimeContext",
    "WorkflowStateError",
    "current_attempt",
]
