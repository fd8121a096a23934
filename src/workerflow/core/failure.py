"""Errors to records and back.

An error raised into ``execute()`` is always rebuilt from its record, on the first execution too: otherwise the first
run could tell a class or an attribute apart that a replay does not have, and take another branch.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from typing import Any, NamedTuple

from workerflow.codec import clean_text, dump_json, is_exact_json, load_json
from workerflow.errors import NonRetryableStepError, RecordedError

_logger = logging.getLogger("workerflow")

TRACEBACK_CHARACTERS_MAX = 20_000
DETAIL_CHARACTERS_MAX = 1_000_000
NOTE = "recorded traceback of the callback:"
MESSAGE_CHARACTERS_MAX = 20_000


class Failure(NamedTuple):
    """What is stored of an error. ``detail`` is JSON text."""

    name: str | None
    message: str
    detail: str | None


INTERRUPTED = Failure(
    None, "the attempt was interrupted: its process ended before the outcome was durably recorded", None
)
ABANDONED = Failure(None, "abandoned: the workflow no longer waits for this step", None)
CANCELLED = Failure(None, "cancelled with its workflow", None)
STOPPED = Failure(None, "stopped with its engine; the attempt does not count", None)


def describe(error: BaseException) -> Failure:
    """The record of *error*: its class name, ``Class: text``, and what is needed to make it again."""
    name = clean_text(type(error).__name__)
    text = clean_text(_text(error))
    message = (f"{name}: {text}" if name else text)[:MESSAGE_CHARACTERS_MAX]
    detail: dict[str, Any] = {"traceback": format_traceback(error)}
    if isinstance(error, NonRetryableStepError):
        detail["non_retryable"] = True
    content = _content(error)
    whole = dump_json(detail | content)
    if len(whole) > DETAIL_CHARACTERS_MAX:
        _logger.warning("an error of class %s is recorded without its content: it is too long", name)
        whole = dump_json(detail)
    return Failure(name or None, message, whole)


def _content(error: BaseException) -> dict[str, Any]:
    """What makes an equal error, as far as it is plain JSON data."""
    path = clean_text(f"{type(error).__module__}:{type(error).__qualname__}")
    try:
        arguments, state = list(error.args), dict(getattr(error, "__dict__", {}))
        notes = [note for note in state.pop("__notes__", ()) if not str(note).startswith(NOTE)]
        if notes:
            state["__notes__"] = notes
        if is_exact_json(arguments) and is_exact_json(state):
            return {"type": path, "args": arguments, "state": state}
        data = getattr(error, "data", None)
        if data is not None and is_exact_json(data):
            return {"type": path, "state": {"data": data}}
    except Exception:  # An author's class may raise from anything, also from reading an attribute.
        _logger.debug("an error of class %s could not be read", path, exc_info=True)
    _logger.warning("an error of class %s is recorded without its content: it is not exact JSON", path)
    return {"type": path}


def rebuild(failure: Failure) -> BaseException:
    """An error equal to the recorded one in class, text and attributes; a RecordedError if that cannot be made.

    One that was not to be retried stays a NonRetryableStepError, whatever it carried: who catches it must not miss it.
    """
    detail = {} if failure.detail is None else load_json(failure.detail)
    name = failure.name or "Error"
    text = failure.message.removeprefix(f"{name}: ")
    cls = _find(detail.get("type", ":"))
    if cls is not None and "args" in detail:
        try:
            error = cls.__new__(cls, *detail["args"])
            error.args = tuple(detail["args"])
            error.__dict__.update(detail["state"])
            if clean_text(_text(error))[:MESSAGE_CHARACTERS_MAX].startswith(text[:1000]):
                return _noted(error, detail)
        except Exception:  # A foreign class may refuse in any way; the record below serves every one of them.
            _logger.debug("an error of class %s could not be made again", name, exc_info=True)
    data = detail.get("state", {}).get("data")
    recorded = _noted(RecordedError(name, text, data), detail)
    if not detail.get("non_retryable"):
        return recorded
    stand_in = NonRetryableStepError(text, data)
    stand_in.__cause__ = recorded
    return stand_in


def _noted(error: BaseException, detail: dict[str, Any]) -> BaseException:
    """Let a rebuilt error show where the first one came from: its own traceback begins where it is raised again."""
    error.add_note(f"{NOTE}\n{detail.get('traceback', '')}")
    return error


def error_data(detail: str | None) -> Any:
    """The ``data`` of a recorded error, or None."""
    return None if detail is None else load_json(detail).get("state", {}).get("data")


def error_traceback(detail: str | None) -> str:
    """The traceback text of a recorded error, or an empty string."""
    return "" if detail is None else str(load_json(detail).get("traceback", ""))


def format_traceback(error: BaseException) -> str:
    """The traceback of *error* as text, the middle left out when it is very long."""
    try:
        text = clean_text("".join(traceback.format_exception(error)))
    except Exception:  # Errors whose own __str__ raises must still be recorded.
        return f"(no traceback: {type(error).__name__} cannot be formatted)"
    half = TRACEBACK_CHARACTERS_MAX // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n…\n{text[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # The same: a broken __str__ is the author's, the record is ours.
        return f"({type(error).__name__} whose text cannot be made)"


def _find(path: str) -> type[BaseException] | None:
    module_name, _, qualified_name = path.partition(":")
    try:
        # Perhaps only the callback imports it, and it has not run in this process.
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    except Exception:  # Whatever a module does when it is imported: the record serves.
        return None
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
