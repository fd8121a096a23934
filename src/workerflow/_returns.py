"""Finds the type that a callback's return annotation declares.

Only that one annotation is evaluated: parameters may name types that exist for type checkers only.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any, get_args, get_origin, get_type_hints

from workerflow.errors import DefinitionError

_UNWRAPPINGS_MAX = 100


def return_annotation(callback: Callable[..., Any], where: str) -> Any:
    """Return the resolved annotation, without its awaitable; Any when there is none; a class for itself.

    Raises DefinitionError when a string in the annotation cannot be resolved.
    """
    function = _unwrapped(callback, where)
    if isinstance(function, type):
        return function
    annotation = _annotations(function).get("return", Any)
    if annotation is Any:
        return Any
    try:
        resolved = evaluated(annotation, getattr(function, "__globals__", {}), _local_names(function))
    except Exception as error:
        name = f"{function.__module__}.{function.__qualname__}"
        raise DefinitionError(
            f"{where}: the return annotation {annotation!r} of callback {name} cannot be resolved: {error}; "
            "import the type at run time (not only under TYPE_CHECKING), or pass returns="
        ) from error
    return _awaited(resolved)


def evaluated(annotation: Any, global_names: dict[str, Any], local_names: dict[str, Any]) -> Any:
    """Return *annotation* with the names in its strings resolved, at any depth."""
    # get_type_hints also resolves strings inside, as in list["Order"]. It reads any object's annotations.
    holder = types.SimpleNamespace(__annotations__={"return": annotation})
    return get_type_hints(holder, global_names, local_names, include_extras=True)["return"]


def _unwrapped(callback: Any, where: str) -> Any:
    for _ in range(_UNWRAPPINGS_MAX):
        if isinstance(callback, functools.partial):
            callback = callback.func
        elif isinstance(callback, types.MethodType):
            callback = callback.__func__
        elif hasattr(callback, "__wrapped__"):
            callback = callback.__wrapped__
        elif inspect.isroutine(callback) or isinstance(callback, type):
            return callback
        else:
            callback = type(callback).__call__
    raise DefinitionError(f"{where}: callback of {type(callback)} is wrapped more than {_UNWRAPPINGS_MAX} times")


def _annotations(function: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        # Plain access would evaluate every annotation there, and one unknown name would fail them all.
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return getattr(function, "__annotations__", None) or {}


def _local_names(function: Any) -> dict[str, Any]:
    names = {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}
    for name, cell in zip(
        getattr(getattr(function, "__code__", None), "co_freevars", ()),
        getattr(function, "__closure__", None) or (),
        strict=True,
    ):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue  # A variable of the enclosing function that is not assigned yet.
    return names


def _awaited(annotation: Any) -> Any:
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or not issubclass(origin, Awaitable):
        return annotation
    return (get_args(annotation) or (Any,))[-1]
