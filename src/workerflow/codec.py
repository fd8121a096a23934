"""Turns values into JSON text and back; refuses, at once, what would not come back as it was.

This is the only module that uses msgspec. Storing is encoding, decoding to the declared type, and
comparing: what is handed on is the decoded value, so the first execution sees what a replay will.
Accepted though not identical: an int for a declared float, and a time zone for its offset
(``ZoneInfo("Europe/Berlin")`` comes back as ``+01:00``). Which fields of a pydantic model were set
explicitly (``model_fields_set``) is not kept. Pydantic models need pydantic 2.11.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple, Never, NoReturn, get_args
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, UnsetType

from workerflow import _returns, _same
from workerflow.errors import DefinitionError, InvalidValueError

__all__ = [
    "BYTES_MAX",
    "UNDECLARED",
    "UNSET",
    "Stored",
    "UnsetType",
    "ValueType",
    "checked_text",
    "clean_text",
    "dump_json",
    "is_exact_json",
    "load_json",
    "result_type",
    "store_self_declared",
    "value_type",
]

BYTES_MAX = 32 * 1024 * 1024

_ANNOTATE = "annotate the callback's return type or pass returns="
_MAKE_EXACT = "make it a dataclass with annotated fields, or turn it into plain JSON values"


class Stored(NamedTuple):
    """The exact JSON text of a value, and the value as a replay will see it.

    >>> UNDECLARED.store([1, "a"], "result of step 'a'")
    Stored(text='[1,"a"]', value=[1, 'a'])
    """

    text: str
    value: Any


class ValueType:
    """A declared type, able to store and load its values. Made by `value_type` and `result_type`.

    >>> value_type(tuple[int, ...]).store((1, 2), "input")
    Stored(text='[1,2]', value=(1, 2))
    """

    __slots__ = ("_decode", "_remedy", "name")

    def __init__(self, annotation: Any, remedy: str | None = None) -> None:
        """Make a type that msgspec supports; *remedy* is given for, and marks, a type that declares nothing."""
        self.name = _type_name(annotation)
        self._remedy = remedy
        self._decode = msgspec.json.Decoder(annotation, dec_hook=_decode_hook).decode

    def store(self, value: Any, where: str, bytes_max: int = BYTES_MAX) -> Stored:
        """Return the text and the decoded value, or raise InvalidValueError with the path to the defect.

        >>> value_type(list[float]).store([1.5, float("inf")], "result of step 'a'")
        Traceback (most recent call last):
        ...
        workerflow.errors.InvalidValueError: result of step 'a': float inf cannot be stored: \
NaN or infinite numbers are not allowed; use None, a string, or leave the number out (at $[1])
        """
        try:
            encoded = _encode(value)
        except Exception as error:
            raise _refusal(where, value, f"{_same.shown(value)} {_same.NOT_JSON}: {error}") from error
        if len(encoded) > bytes_max:
            raise InvalidValueError(
                f"{where}: the value has {len(encoded)} bytes as JSON and the limit is {bytes_max}; "
                "store it elsewhere, such as in a file or a table, and hand on a reference to it"
            )
        text = encoded.decode()
        if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
            raise _refusal(where, value, "NUL characters are not allowed in text")
        if self._remedy is not None and _is_scalar(value):
            return Stored(text, value)
        return Stored(text, self._same_again(value, encoded, where))

    def _same_again(self, value: Any, encoded: bytes, where: str) -> Any:
        try:
            decoded = self._decode(encoded)
        except Exception as error:
            # The cause in the value comes first: NaN is encoded as null, and a message about null would mislead.
            message = f"the value does not match its declared type {self.name}: {_without_path(error)}"
            raise _refusal(where, value, message, _path_of(error)) from error
        try:
            place = _same.difference(value, decoded)
        except Exception as error:
            # A comparison of the author's own that raises, such as the one of an array.
            raise _refusal(where, value, f"{_same.shown(value)} cannot be compared: {error}") from error
        if place is None:
            return decoded
        reason = _same.leaf_defect(place.original) or _same.nesting_defect(place) or self._mismatch(place)
        raise _invalid(where, reason, place.path())

    def _mismatch(self, place: _same.Place) -> str:
        remedy = self._remedy or "return exactly what is declared, or declare what is returned"
        if place.decoded is _same.ABSENT:
            return f"{_same.shown(place.original)} would be lost: type {self.name} has no place for it; {remedy}"
        if place.original is _same.ABSENT:
            return f"{_same.shown(place.decoded)} would be added when it is read again; {remedy}"
        declared = f"the declared type {self.name} expects" if self._remedy is None else "it would come back as"
        return f"got {_same.shown(place.original)}, but {declared} {_same.shown(place.decoded)}; {remedy}"

    def load(self, text: str, where: str) -> Any:
        """Return the value of stored *text*, or raise InvalidValueError when it is not of this type.

        >>> value_type(set[int]).load("[1]", "input")
        {1}
        """
        try:
            return self._decode(text)
        except Exception as error:
            message = f"the stored JSON does not match the declared type {self.name}: {_without_path(error)}"
            raise _invalid(where, message, _path_of(error)) from error


def value_type(annotation: Any, where: str = "type") -> ValueType:
    """Return the type that *annotation* declares, or raise DefinitionError when it cannot be supported.

    >>> value_type(dict[int, str]).load('{"1": "a"}', "input")
    {1: 'a'}
    """
    try:
        if isinstance(annotation, str):
            annotation = _returns.evaluated(annotation, {}, {})
        if annotation is None:
            annotation = type(None)
        try:
            hash(annotation)
        except TypeError:
            return _declared(annotation)
        return _cached(annotation)
    except Exception as error:
        raise DefinitionError(
            f"{where}: values of type {_type_name(annotation)} cannot be stored: {error}; "
            "declare a dataclass, a TypedDict, a list, a dict or another type with a JSON form"
        ) from error


def _declared(annotation: Any) -> ValueType:
    if annotation in (Any, object, inspect.Parameter.empty, Never, NoReturn):
        return UNDECLARED
    for kind in _custom_types(msgspec.inspect.type_info(annotation)):
        if kind is not object and not _same.is_pydantic(kind):
            raise TypeError(f"{_type_name(kind)} has no JSON form")
    return ValueType(annotation)


_cached = functools.lru_cache(maxsize=4096, typed=True)(_declared)


def _custom_types(info: msgspec.inspect.Type) -> Iterator[type]:
    """Yield the types in *info* that msgspec leaves to hooks; it only notices them when decoding."""
    pending: list[Any] = [info]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, msgspec.inspect.CustomType):
            yield node.cls
        elif isinstance(node, tuple):
            pending += node
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))  # A recursive type holds itself.
            pending += [getattr(node, name) for name in node.__struct_fields__]


# Evaluating an annotation costs more than the rest of a step.
_RESULT_TYPES: WeakKeyDictionary[Callable[..., Any], ValueType] = WeakKeyDictionary()


def result_type(callback: Callable[..., Any], where: str) -> ValueType:
    """Return the type that a callback's return annotation declares; UNDECLARED when it has none.

    Of a class it is the class. Only that one annotation is evaluated: parameters may name types
    that exist for type checkers only.

    >>> def reserve(order: "Missing") -> tuple[int, int]: ...
    >>> result_type(reserve, "step 'reserve'").name
    'tuple[int, int]'
    """
    if type(callback) is not FunctionType or callback.__closure__ is not None:
        # A function made anew for every call would only fill the cache, and its variables may change.
        return value_type(_returns.return_annotation(callback, where), where)
    known = _RESULT_TYPES.get(callback)
    if known is None:
        known = _RESULT_TYPES[callback] = value_type(_returns.return_annotation(callback, where), where)
    return known


def store_self_declared(value: Any, where: str, bytes_max: int = BYTES_MAX) -> Stored:
    """Store an input or a payload: an instance with declared fields counts as declared by its class.

    >>> class Order(msgspec.Struct):
    ...     quantity: int
    >>> store_self_declared(Order(2), "input")
    Stored(text='{"quantity":2}', value=Order(quantity=2))
    """
    kind = type(value)
    if _same.field_names(kind) is None:
        return _PLAIN.store(value, where, bytes_max)
    try:
        declared = value_type(kind, where)
    except DefinitionError as error:
        raise InvalidValueError(str(error)) from error
    return declared.store(value, where, bytes_max)


def dump_json(value: Any) -> str:
    """Return the JSON text of an internal record made of plain JSON types.

    >>> dump_json({"a": [1, None]})
    '{"a":[1,null]}'
    """
    return msgspec.json.encode(value).decode()


def load_json(text: str) -> Any:
    """Return the record of text made by `dump_json`.

    >>> load_json('{"a":[1,null]}')
    {'a': [1, None]}
    """
    return msgspec.json.decode(text)


def checked_text(text: str, what: str) -> str:
    r"""Return *text*, or raise DefinitionError when it is no text that every database can store.

    >>> checked_text("a\0", "step id")
    Traceback (most recent call last):
    ...
    workerflow.errors.DefinitionError: step id 'a\x00' has NUL characters or lone surrogates; remove them
    """
    if not isinstance(text, str):
        raise DefinitionError(f"{what} must be a str, got {_same.shown(text)}")
    if _same.leaf_defect(text) is not None:
        raise DefinitionError(f"{what} {reprlib.repr(text)} has NUL characters or lone surrogates; remove them")
    return text


def checked_json(text: str, what: str) -> str:
    """Return *text*, or raise InvalidValueError when it is not the JSON text of a value that can be stored.

    >>> checked_json("[1]", "result")
    '[1]'
    """
    try:
        value = load_json(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _invalid(what, f"{_same.shown(text)} is not JSON text: {error}", "$") from error
    UNDECLARED.store(value, what)
    return text


def clean_text(text: str) -> str:
    r"""Return *text* with NUL and lone surrogates made visible, for texts that must be recorded anyway.

    >>> print(clean_text("a\0b\ud800"))
    a\x00b\ud800
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def is_exact_json(value: Any) -> bool:
    """Say whether *value* comes back as it is without a declared type.

    >>> is_exact_json({"a": [1, 2]}), is_exact_json((1, 2))
    (True, False)
    """
    try:
        UNDECLARED.store(value, "value", sys.maxsize)
    except InvalidValueError:
        return False
    return True


def _is_scalar(value: Any) -> bool:
    kind = type(value)
    return kind is str or kind is int or value is None or kind is bool or (kind is float and math.isfinite(value))


def _encode_hook(value: Any) -> Any:
    if _same.is_pydantic(type(value)):
        # round_trip leaves out computed fields. What the dump changes, the comparison finds: no warnings.
        return value.model_dump(mode="json", round_trip=True, by_alias=False, warnings=False)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


def _decode_hook(kind: type, decoded: Any) -> Any:
    if not _same.is_pydantic(kind):
        return decoded  # ``object`` inside a type, as in dict[str, object].
    # From JSON and not from the objects: a strict model takes a date from JSON text only.
    return kind.model_validate_json(msgspec.json.encode(decoded), by_name=True, by_alias=False)  # type: ignore[attr-defined] # a pydantic model, not imported here


_encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode


def _refusal(where: str, value: Any, message: str, path: str = "$") -> InvalidValueError:
    """Make the error for a refused value: of the part that is to blame, else *message*."""
    found = _same.defect(value, _encode)
    return _invalid(where, message, path) if found is None else _invalid(where, found[1], found[0].path())


def _invalid(where: str, reason: str, path: str) -> InvalidValueError:
    return InvalidValueError(clean_text(f"{where}: {reason} (at {path})"), path)


def _path_of(error: Exception) -> str:
    found = re.search(r"`(\$[^`]*)`$", str(error))
    return "$" if found is None else found[1]


def _without_path(error: Exception) -> str:
    return re.sub(r" - at `\$[^`]*`$", "", str(error))


def _type_name(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__qualname__ if plain else str(annotation).removeprefix("typing.")


UNDECLARED = ValueType(Any, _ANNOTATE)
"""No annotation, or Any: exact JSON types only, because nothing says what else to make of the text.

>>> UNDECLARED.load("[1]", "input")
[1]
"""

_PLAIN = ValueType(Any, _MAKE_EXACT)
