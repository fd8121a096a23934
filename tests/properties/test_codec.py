"""Any value of any type that can be declared comes back the same, in value and in type, or is refused at the call."""

from __future__ import annotations

import dataclasses
import math
from datetime import date, datetime, time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.properties.typed_values import TYPES, WILD_TYPES, Typed
from workerflow.codec import UNDECLARED, Stored, ValueType, store_self_declared, value_type
from workerflow.errors import DefinitionError, InvalidValueError


def parts(value: Any) -> list[tuple[Any, Any]] | None:
    """What a value is made of, by name or place; None for one that is not made of others."""
    if isinstance(value, dict):
        return [*enumerate(value), *value.items()]
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    for names in ("__struct_fields__", "__attrs_attrs__"):
        if hasattr(value, names):
            found = [getattr(item, "name", item) for item in getattr(value, names)]
            return [(name, getattr(value, name)) for name in found]
    return list(vars(value).items()) if hasattr(type(value), "model_fields") else None


def is_same(first: Any, second: Any) -> bool:
    """Whether the second is the first again: of the same type all the way down, and as it would be printed.

    An int where a float is declared may come back as that float.
    """
    if type(first) is int and type(second) is float:
        return bool(first == second)
    if type(first) is not type(second):
        return False
    if isinstance(first, set | frozenset):
        return len(first) == len(second) and all(any(is_same(item, other) for other in second) for item in first)
    made_of, again = parts(first), parts(second)
    if made_of is None or again is None:
        if isinstance(first, datetime | time):
            # A naive one has no meaning that could come back.
            return first.utcoffset() is not None and first.isoformat() == str(second.isoformat())
        return repr(first) == repr(second)
    return len(made_of) == len(again) and all(
        is_same(name, other_name) and is_same(part, other)
        for (name, part), (other_name, other) in zip(made_of, again, strict=True)
    )


def declared(typed: Typed) -> ValueType | None:
    """The type, or None where JSON could not tell the members of a union apart: that is refused at the declaration."""
    try:
        return value_type(typed.annotation)
    except DefinitionError as refusal:
        reason = str(refusal)
    assert "union" in reason
    return None


def stored(kind: ValueType, value: Any) -> Stored | None:
    try:
        return kind.store(value, "result of step 'a'")
    except InvalidValueError as refusal:
        path = refusal.path
    assert path.startswith("$")
    return None


@examples(400)
@given(TYPES, st.data())
def test_a_value_of_its_declared_type_is_stored_and_comes_back_the_same(typed: Typed, data: st.DataObject) -> None:
    value = data.draw(typed.values)
    kind = declared(typed)
    if kind is not None:
        text, again = kind.store(value, "result of step 'a'")
        assert is_same(value, again)
        assert is_same(value, kind.load(text, "stored result"))


@examples(400)
@given(WILD_TYPES, WILD_TYPES, st.data())
def test_a_value_comes_back_the_same_or_is_refused_whatever_type_is_declared(
    typed: Typed, other: Typed, data: st.DataObject
) -> None:
    value = data.draw(typed.values)
    for kind in (declared(typed), declared(other)):
        found = None if kind is None else stored(kind, value)
        if kind is not None and found is not None:
            assert is_same(value, found.value)
            assert is_same(value, kind.load(found.text, "stored result"))


def is_exact_json(value: Any) -> bool:
    """What JSON itself can hold, on every database."""
    if type(value) is str:
        return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value)
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(is_exact_json(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_exact_json(key) and is_exact_json(item) for key, item in value.items())
    return type(value) in (int, bool, type(None))


TEXT = st.text(st.characters(categories=None), max_size=3) | st.sampled_from(["a", "\\u0000", "\0", "\ud800"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from([b"a", date(2030, 1, 1), 1j])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "\0", 1]), inner, max_size=2)
        | st.tuples(inner)
        | st.sets(st.integers(), max_size=2)
    ),
    max_leaves=5,
)


@examples(500)
@given(VALUES)
def test_without_a_declaration_exact_json_comes_back_the_same_and_all_else_is_refused(value: Any) -> None:
    found = stored(UNDECLARED, value)
    assert (found is not None) == is_exact_json(value)
    if found is not None:
        assert is_same(value, found.value)
        assert is_same(value, UNDECLARED.load(found.text, "stored result"))


@examples(200)
@given(WILD_TYPES, st.data())
def test_an_input_or_payload_comes_back_the_same_or_is_refused(typed: Typed, data: st.DataObject) -> None:
    value = data.draw(typed.values)
    try:
        text, again = store_self_declared(value, "input")
    except InvalidValueError:
        return
    assert is_same(value, again)
    assert is_same(value, value_type(type(value)).load(text, "stored input"))


@examples(300)
@given(WILD_TYPES, WILD_TYPES, st.data())
def test_stored_text_of_another_type_is_refused_or_read_but_never_breaks_the_reader(
    typed: Typed, other: Typed, data: st.DataObject
) -> None:
    writer, reader = declared(typed), declared(other)
    found = None if writer is None else stored(writer, data.draw(typed.values))
    if found is not None and reader is not None:
        try:
            again = reader.load(found.text, "stored input")
        except InvalidValueError:
            return
        assert stored(reader, again) is None or is_same(again, reader.load(reader.store(again, "input").text, "input"))
