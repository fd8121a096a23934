"""The workflows that an engine knows: name, definition, runtime class."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

from workerflow.definition import WorkflowDefinition, check_definition, checked_id, workflow_name
from workerflow.errors import DefinitionError
from workerflow.runtime import WorkflowRuntime, delivers_completion

Definition = type[WorkflowDefinition[Any, Any]]
Runtime = type[WorkflowRuntime[Any, Any]]


class Registered(NamedTuple):
    """One workflow. ``definition`` is None for a name that only a client without the class uses."""

    name: str
    definition: Definition | None
    runtime: Runtime
    delivers_completion: bool


class Registry:
    """All workflows of one engine, by name."""

    def __init__(self, workflows: Iterable[Definition | Runtime]) -> None:
        self._by_name: dict[str, Registered] = {}
        if isinstance(workflows, type | str) or not isinstance(workflows, Iterable):
            raise DefinitionError(f"workflows={workflows!r} must be a list of definitions and runtimes: [YourWorkflow]")
        for workflow in workflows:
            entry = _registered(workflow)
            if entry.name in self._by_name:
                raise DefinitionError(f"two workflows have the name {entry.name!r}; set name = '…' in one class")
            self._by_name[entry.name] = entry

    def names(self) -> list[str]:
        """All names."""
        return list(self._by_name)

    def by_name(self, name: str) -> Registered | None:
        """The workflow of this name, if it is registered."""
        return self._by_name.get(name)

    def resolve(self, workflow: Any, *, allow_unknown: bool) -> Registered:
        """The workflow that a caller means by a class or a name."""
        given = None if isinstance(workflow, str) else _registered(workflow)
        name = workflow if given is None else given.name
        entry = self._by_name.get(name) or self._by_definition(workflow)
        if entry is not None:
            return entry
        if allow_unknown:
            return given or Registered(checked_id(name, "workflow name"), None, WorkflowRuntime, False)
        raise DefinitionError(
            f"workflow {name!r} is not registered with this engine; it knows {', '.join(self._by_name) or 'none'}: "
            "add its class to the engine's workflows"
        )

    def _by_definition(self, workflow: Any) -> Registered | None:
        # A definition that is registered by its runtime alone means that runtime.
        entries = [entry for entry in self._by_name.values() if entry.definition is workflow]
        return entries[0] if len(entries) == 1 else None


def _check_hooks(runtime: Runtime) -> None:
    if inspect.iscoroutinefunction(runtime.on_status_change):
        raise DefinitionError(f"on_status_change() of runtime {runtime.__name__} is async; write: def on_status_change")
    if not inspect.iscoroutinefunction(runtime.completion):
        raise DefinitionError(f"completion() of runtime {runtime.__name__} is not async; write: async def completion")


def _registered(workflow: Any) -> Registered:
    if isinstance(workflow, type) and issubclass(workflow, WorkflowRuntime):
        definition = getattr(workflow, "definition", None)
        if definition is None:
            raise DefinitionError(f"runtime {workflow.__name__} has no definition; set definition = Yours in it")
        check_definition(definition)
        # The runtime is what callers name; its definition may serve several runtimes.
        _check_hooks(workflow)
        names = (workflow.__dict__, definition.__dict__, {"name": workflow.__name__})
        name = checked_id(next(names["name"] for names in names if "name" in names), "workflow name")
        return Registered(name, definition, workflow, delivers_completion(workflow))
    check_definition(workflow)
    return Registered(workflow_name(workflow), workflow, WorkflowRuntime, False)
