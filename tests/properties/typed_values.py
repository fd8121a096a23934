"""Types that can be declared, each with a strategy for values of exactly that type, made together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, TypedDict, Union
from uuid import UUID

import attrs
import msgspec
import pydantic
from hypothesis import strategies as st

NAMES = ["a", "b", "c_d", "e2"]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_numbers = itertools.count()


class Typed(NamedTuple):
    """A type and its values. ``form`` is what its JSON looks like, for unions: two of one form cannot be told apart."""

    annotation: Any
    values: st.SearchStrategy[Any]
    form: str
    is_hashable: bool = True
    is_known_to_pydantic: bool = False

    def __repr__(self) -> str:
        return str(self.annotation)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


SCALARS = [
    Typed(type(None), st.none(), "null"),
    Typed(bool, st.booleans(), "bool"),
    Typed(int, st.integers(), "number"),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False), "number"),
    Typed(str, TEXT, "text"),
    Typed(bytes, st.binary(max_size=8), "text"),
    Typed(UUID, st.uuids(), "text"),
    Typed(Decimal, st.decimals(allow_nan=False, allow_infinity=False), "text"),
    Typed(datetime, st.datetimes(timezones=OFFSETS), "text"),
    Typed(date, st.dates(), "text"),
    Typed(time, st.times(timezones=OFFSETS), "text"),
    Typed(timedelta, st.timedeltas(), "text"),
    Typed(Colour, st.sampled_from(Colour), "text"),
    Typed(Level, st.sampled_from(Level), "number"),
    Typed(Literal["x", "y"], st.sampled_from(["x", "y"]), "text"),
    Typed(Literal[1, 2, "z"], st.sampled_from([1, 2, "z"]), "any"),
]
SCALARS = [scalar._replace(is_known_to_pydantic=True) for scalar in SCALARS]
KEYS = [item for item in SCALARS if item.annotation in (str, int, UUID, date, datetime, bytes, Colour, Level)]


def named(kind: str) -> str:
    """A name of its own for every class made: some libraries remember them by name."""
    return f"{kind}{next(_numbers)}"


@st.composite
def fields(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> dict[str, Typed]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {name: draw(inner) for name in names}


def built(cls: Callable[..., Any], members: dict[str, Typed], form: str = "object", is_hashable: bool = False) -> Typed:
    values = st.fixed_dictionaries({name: member.values for name, member in members.items()})
    return Typed(cls, values.map(lambda chosen: cls(**chosen)), form, is_hashable)


def annotated(members: dict[str, Typed]) -> list[tuple[str, Any]]:
    return [(name, member.annotation) for name, member in members.items()]


def a_dataclass(members: dict[str, Typed]) -> Typed:
    return built(dataclasses.make_dataclass(named("Data"), annotated(members)), members)


def a_frozen_dataclass(members: dict[str, Typed]) -> Typed:
    cls = dataclasses.make_dataclass(named("Frozen"), annotated(members), frozen=True, slots=True)
    return built(cls, members, is_hashable=all(member.is_hashable for member in members.values()))


def a_struct(members: dict[str, Typed]) -> Typed:
    return built(msgspec.defstruct(named("Struct"), annotated(members)), members)


def an_array_struct(members: dict[str, Typed]) -> Typed:
    return built(msgspec.defstruct(named("Array"), annotated(members), array_like=True), members, "array")


def an_attrs_class(members: dict[str, Typed]) -> Typed:
    attributes = {name: attrs.field(type=member.annotation) for name, member in members.items()}
    return built(attrs.make_class(named("Attrs"), attributes), members)


def a_typed_dict(members: dict[str, Typed]) -> Typed:
    return built(TypedDict(named("Row"), dict(annotated(members))), members)  # type: ignore[operator]


def a_named_tuple(members: dict[str, Typed]) -> Typed:
    cls: Any = NamedTuple(named("Point"), annotated(members))  # type: ignore[misc]
    return built(cls, members, "array", all(member.is_hashable for member in members.values()))


def a_model(members: dict[str, Typed]) -> Typed:
    """A pydantic model of those fields that pydantic has a schema for."""
    known = {name: member for name, member in members.items() if member.is_known_to_pydantic}
    options: Any = {name: (member.annotation, ...) for name, member in known.items()}
    return built(pydantic.create_model(named("Model"), **options), known)._replace(is_known_to_pydantic=True)


WILD = [
    Typed(float, st.floats(), "number"),
    Typed(Decimal, st.decimals(), "text", is_hashable=False),  # a signaling NaN is not
    Typed(str, st.text(st.characters(categories=None)), "text"),
    Typed(datetime, st.datetimes(timezones=st.none() | st.timezones()), "text"),
    Typed(time, st.times(timezones=st.none() | st.timezones()), "text"),
    Typed(Any, st.binary() | st.tuples(st.integers()) | TEXT, "any"),
    Typed(int, st.booleans() | st.floats() | st.sampled_from(Level), "number"),
]

RECORDS: list[Callable[[dict[str, Typed]], Typed]] = [
    a_dataclass, a_frozen_dataclass, a_struct, an_array_struct, an_attrs_class, a_typed_dict, a_named_tuple,
]  # fmt: skip


def of(generic: Any, *arguments: Any) -> Any:
    """A generic type with computed arguments."""
    return generic[arguments]


def a_list(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return inner.map(
        lambda item: item._replace(
            annotation=of(list, item.annotation),
            values=st.lists(item.values, max_size=3),
            form="array",
            is_hashable=False,
        )
    )


def a_tuple_of_many(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return inner.map(
        lambda item: item._replace(
            annotation=of(tuple, item.annotation, ...),
            values=st.lists(item.values, max_size=3).map(tuple),
            form="array",
        )
    )


def a_tuple(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.lists(inner, max_size=3).map(
        lambda members: Typed(
            of(tuple, *(member.annotation for member in members)),
            st.tuples(*(member.values for member in members)),
            "array",
            all(member.is_hashable for member in members),
            all(member.is_known_to_pydantic for member in members),
        )
    )


def a_set(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return inner.filter(lambda item: item.is_hashable).map(
        lambda item: item._replace(
            annotation=of(set, item.annotation),
            values=st.lists(item.values, max_size=3, unique=True).map(set),
            form="array",
            is_hashable=False,
        )
    )


def a_frozenset(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return inner.filter(lambda item: item.is_hashable).map(
        lambda item: item._replace(
            annotation=of(frozenset, item.annotation),
            values=st.lists(item.values, max_size=3, unique=True).map(frozenset),
            form="array",
        )
    )


def a_dict(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.tuples(st.sampled_from(KEYS), inner).map(
        lambda pair: pair[1]._replace(
            annotation=of(dict, pair[0].annotation, pair[1].annotation),
            values=st.dictionaries(pair[0].values, pair[1].values, max_size=3),
            form="object",
            is_hashable=False,
        )
    )


def an_optional(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return inner.map(
        lambda item: item._replace(annotation=of(Union, item.annotation, None), values=st.none() | item.values)
    )


def a_union(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.lists(inner, min_size=2, max_size=4, unique_by=lambda item: item.form).map(
        lambda members: Typed(
            of(Union, *(member.annotation for member in members)),
            st.one_of(*(member.values for member in members)),
            "any",
            all(member.is_hashable for member in members),
            all(member.is_known_to_pydantic for member in members),
        )
    )


CONTAINERS = [a_list, a_tuple, a_tuple_of_many, a_set, a_frozenset, a_dict, an_optional, a_union]


def types(leaves: list[Typed], records: list[Callable[[dict[str, Typed]], Typed]]) -> st.SearchStrategy[Typed]:
    """Types made of these, to any depth."""

    def larger(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
        of_fields = st.builds(lambda make, members: make(members), st.sampled_from(records), fields(inner))
        return st.one_of(of_fields, *(make(inner) for make in CONTAINERS))

    return st.recursive(st.sampled_from(leaves), larger, max_leaves=6)


TYPES = types(SCALARS, RECORDS)
"""With values that can be stored."""

WILD_TYPES = types([*SCALARS, *WILD, *WILD], [*RECORDS, a_model])
"""With values some of which cannot."""
