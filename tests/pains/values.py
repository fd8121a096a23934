"""Values of every kind: what comes back as it was, what cannot, and what happens to both in one place of a workflow."""

import enum
import io
import math
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Flags(enum.IntFlag):
    A = 1


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Table(dict[str, int]):
    pass


class Row(list[int]):
    pass


class Plain:
    pass


Point = namedtuple("Point", "x y")


@dataclass
class Order:
    sku: str
    price: float = 0.5
    at: datetime = datetime(2031, 1, 1, tzinfo=UTC)
    tags: set[str] = field(default_factory=set)


class SpecialOrder(Order):
    pass


class Item(msgspec.Struct):
    sku: str
    counts: dict[int, tuple[int, ...]] = {}


class Model(pydantic.BaseModel):
    sku: str
    colour: Colour = Colour.RED


def nested(levels, leaf=1):
    value = leaf
    for _ in range(levels):
        value = [value]
    return value


def endless_list():
    value: list[Any] = [1]
    value.append(value)
    return value


def endless_dict():
    value: dict[str, Any] = {"a": {}}
    value["a"]["b"] = value
    return value


def with_attribute(value, name):
    setattr(value, name, 1)
    return value


GOOD = {
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "one": lambda: 1,
    "one-as-float": lambda: 1.0,
    "negative-zero": lambda: -0.0,
    "negative-zero-within": lambda: {"a": [-0.0, 0.0, 0]},
    "smallest-float": lambda: 5e-324,
    "largest-float": lambda: 1.7976931348623157e308,
    "float-beyond-53-bits": lambda: float(2**53 + 2),
    "int-beyond-53-bits": lambda: [2**53 + 1, -(2**53) - 1],
    "largest-64-bit": lambda: 2**63 - 1,
    "smallest-64-bit": lambda: -(2**63),
    "largest-unsigned": lambda: {"a": 2**64 - 1},
    "beyond-64-bit": lambda: [2**64, -(2**63) - 1],
    "far-beyond-64-bit": lambda: {"a": 10**4000, "b": -(10**300)},
    "empty-text": lambda: "",
    "controls": lambda: "\x01\x1f\x7f\x85\u2028\ufeff\uffff",
    "astral-text": lambda: "🙂 é e\u0301 日本",
    "escapes": lambda: '\\u0000 \\ " / \\ud800',
    "like-a-number": lambda: ["1", "NaN", "null", "true", "2031-01-01T00:00:00Z"],
    "empty-containers": lambda: [[], {}, "", {"": {"": []}}],
    "key-order": lambda: {"b": 1, "a": 2, "": 3, "é": 4},
    "keys-like-others": lambda: {"1": 1, "true": 2, "null": 3, "__class__": 4, "$": 5, "a.b": 6},
    "one-object-twice": lambda: [[1]] * 2,
    "200-levels": lambda: nested(200),
    "300-KB": lambda: "é" * 150_000,
}
"""Exact JSON: accepted everywhere without a declared type."""

BAD = {
    "set": (lambda: {1}, "$", "set"),
    "set-within": (lambda: {"a": [0, {1}]}, "$.a[1]", "set"),
    "frozen-set": (lambda: frozenset({1}), "$", "frozenset"),
    "generator": (lambda: (one for one in "ab"), "$", "generator"),
    "iterator": (lambda: iter([1]), "$", "list_iterator"),
    "open-file": (lambda: [io.BytesIO()], "$[0]", "BytesIO"),
    "nan": (lambda: math.nan, "$", "float"),
    "infinity": (lambda: [1.0, math.inf], "$[1]", "float"),
    "negative-infinity": (lambda: {"a": -math.inf}, "$.a", "float"),
    "nan-deep-within": (lambda: {"a": [{"b": [math.nan]}]}, "$.a[0].b[0]", "float"),
    "list-within-itself": (endless_list, "$[1]", "list"),
    "dict-within-itself": (endless_dict, "$.a.b", "dict"),
    "1000-levels": (lambda: nested(1000), "$" + "[0]" * 201, "levels"),
    "surrogate": (lambda: "a\ud800", "$", "str"),
    "surrogate-within": (lambda: {"a": ["\udfff"]}, "$.a[0]", "str"),
    "surrogate-in-key": (lambda: {"a": {"\ud800": 1}}, "$.a['\\ud800']", "str"),
    "pair-of-surrogates": (lambda: "\ud83d\ude42", "$", "str"),
    "nul": (lambda: "a\x00", "$", "str"),
    "nul-in-key": (lambda: {"\x00": 1}, "$['\\x00']", "str"),
    "int-of-5000-digits": (lambda: {"a": 10**5000}, "$.a", "int"),
    "naive-time": (lambda: datetime(2031, 1, 1), "$", "datetime"),
    "aware-time": (lambda: [datetime(2031, 1, 1, tzinfo=UTC)], "$[0]", "datetime"),
    "time-of-day": (lambda: time(1, 2), "$", "time"),
    "date": (lambda: date(2031, 1, 1), "$", "date"),
    "duration": (lambda: timedelta(1), "$", "timedelta"),
    "bytes": (lambda: b"a", "$", "bytes"),
    "byte-array": (lambda: bytearray(b"a"), "$", "bytearray"),
    "memory": (lambda: memoryview(b"a"), "$", "memoryview"),
    "tuple": (lambda: (1, 2), "$", "tuple"),
    "tuple-within": (lambda: {"a": [(1,)]}, "$.a[0]", "tuple"),
    "named-tuple": (lambda: Point(1, 2), "$", "Point"),
    "int-key": (lambda: {"a": {1: "a"}}, "$.a[1]", "int"),
    "bool-key": (lambda: {True: "a"}, "$", "bool"),
    "float-key": (lambda: {1.5: "a"}, "$[1.5]", "float"),
    "none-key": (lambda: {None: "a"}, "$", "NoneType"),
    "tuple-key": (lambda: {(1, 2): "a"}, "$", "tuple"),
    "keys-that-become-one": (lambda: {"1": "a", 1: "b"}, "$", "dict"),
    "decimal": (lambda: Decimal("1.10"), "$", "Decimal"),
    "fraction": (lambda: Fraction(1, 3), "$", "Fraction"),
    "complex": (lambda: 1j, "$", "complex"),
    "uuid": (lambda: uuid.UUID(int=1), "$", "UUID"),
    "path": (lambda: PurePosixPath("a"), "$", "PurePosixPath"),
    "enum": (lambda: Colour.RED, "$", "Colour"),
    "int-enum": (lambda: [Level.LOW], "$[0]", "Level"),
    "str-enum": (lambda: Word.YES, "$", "Word"),
    "flags": (lambda: Flags.A, "$", "Flags"),
    "str-subclass": (lambda: [Text("a")], "$[0]", "Text"),
    "str-subclass-key": (lambda: {Text("a"): 1}, "$.a", "Text"),
    "int-subclass": (lambda: Number(1), "$", "Number"),
    "float-subclass": (lambda: Real(1), "$", "Real"),
    "dict-subclass": (lambda: Table(a=1), "$", "Table"),
    "list-subclass": (lambda: Row([1]), "$", "Row"),
    "ordered-dict": (lambda: OrderedDict(a=1), "$", "OrderedDict"),
    "default-dict": (lambda: defaultdict(list, a=[]), "$", "defaultdict"),
    "counter": (lambda: Counter("a"), "$", "Counter"),
    "deque": (lambda: deque([1]), "$", "deque"),
    "other-mappings": (lambda: [ChainMap({"a": 1}), UserDict(a=1)], "$[0]", "ChainMap"),
    "mapping-proxy": (lambda: MappingProxyType({"a": 1}), "$", "mappingproxy"),
    "range": (lambda: range(3), "$", "range"),
    "object": (lambda: {"a": Plain()}, "$.a", "Plain"),
    "name-space": (lambda: SimpleNamespace(a=1), "$", "SimpleNamespace"),
    "function": (lambda: [nested], "$[0]", "function"),
    "class": (lambda: Plain, "$", "type"),
    "module": (lambda: math, "$", "module"),
    "error": (lambda: {"error": ValueError("a")}, "$.error", "ValueError"),
    "not-implemented": (lambda: NotImplemented, "$", "NotImplementedType"),
    "data-class-within": (lambda: [Order("tea")], "$[0]", "Order"),
}
"""Refused everywhere without a declared type: how to make it, the path to the culprit, and the culprit's type."""

DECLARED = {
    "tuple": (tuple[int, str], lambda: (1, "a")),
    "tuple-of-any-length": (tuple[float, ...], lambda: (0.5, -0.0)),
    "set": (set[str], lambda: {"a", "b"}),
    "frozen-set": (frozenset[int], lambda: frozenset({1})),
    "int-keys": (dict[int, list[str]], lambda: {1: ["a"], -5: []}),
    "float-keys": (dict[float, int], lambda: {1.5: 1}),
    "uuid-keys": (dict[uuid.UUID, int], lambda: {uuid.UUID(int=1): 1}),
    "enum-keys": (dict[Word, int], lambda: {Word.YES: 1}),
    "uuid": (uuid.UUID, lambda: uuid.UUID(int=7)),
    "decimal": (Decimal, lambda: Decimal("1.10")),
    "decimals": (list[Decimal], lambda: [Decimal("1E+5"), Decimal("-0.00"), Decimal(10) ** 40]),
    "aware-time": (datetime, lambda: datetime(2031, 1, 1, 12, 30, 0, 123456, timezone(timedelta(hours=-3.5)))),
    "time-of-a-zone": (datetime, lambda: datetime(2031, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    "date": (date, lambda: date(1, 1, 1)),
    "duration": (timedelta, lambda: timedelta(days=-1, microseconds=1)),
    "enum": (Colour, lambda: Colour.RED),
    "int-enum": (Level, lambda: Level.LOW),
    "str-enum": (Word, lambda: Word.YES),
    "bytes": (bytes, lambda: bytes(range(256))),
    "byte-array": (bytearray, lambda: bytearray(b"\x00")),
    "named-tuple": (Point, lambda: Point(1, [2])),
    "data-class": (Order, lambda: Order("tea", 1.5, datetime(2031, 1, 1, tzinfo=UTC), {"a"})),
    "struct": (Item, lambda: Item("tea", {1: (1, 2)})),
    "model": (Model, lambda: Model(sku="tea")),
    "models": (dict[str, Model], lambda: {"a": Model(sku="tea")}),
    "optional": (Order | None, lambda: None),
    "union": (int | str, lambda: "1"),
    "bool": (bool, lambda: True),
    "float": (float, lambda: -0.0),
}
"""A declared type and a value of it that is no exact JSON, or that a weaker codec takes for another type."""

MISDECLARED = {
    "nan-in-a-data-class": (Order, lambda: Order("tea", math.nan), "$.price"),
    "infinity-in-a-tuple": (tuple[float, ...], lambda: (1.0, math.inf), "$[1]"),
    "decimal-nan": (list[Decimal], lambda: [Decimal("NaN")], "$[0]"),
    "decimal-infinity": (Decimal, lambda: Decimal("-Infinity"), "$"),
    "naive-time": (datetime, lambda: datetime(2031, 1, 1), "$"),
    "naive-time-in-a-data-class": (Order, lambda: Order("tea", at=datetime(2031, 1, 1)), "$.at"),
    "surrogate-in-a-struct": (Item, lambda: Item("\ud800"), "$.sku"),
    "nul-in-a-model": (Model, lambda: Model(sku="\x00"), "$.sku"),
    "nul-in-a-set": (set[str], lambda: {"\x00"}, "$['\\x00']"),
    "int-of-5000-digits": (list[int], lambda: [10**5000], "$[0]"),
    "bool-for-int": (int, lambda: True, "$"),
    "int-for-bool": (bool, lambda: 1, "$"),
    "int-enum-for-int": (int, lambda: Level.LOW, "$"),
    "int-for-int-enum": (Level, lambda: 1, "$"),
    "str-enum-for-str": (list[str], lambda: [Word.YES], "$[0]"),
    "str-subclass-for-str": (str, lambda: Text("a"), "$"),
    "list-for-tuple": (tuple[int, ...], lambda: [1], "$"),
    "tuple-for-list": (list[int], lambda: (1,), "$"),
    "set-for-frozen-set": (frozenset[int], lambda: {1}, "$"),
    "bool-keys-for-int-keys": (dict[int, str], lambda: {True: "a"}, "$"),
    "ordered-dict-for-dict": (dict[str, int], lambda: OrderedDict(a=1), "$"),
    "dict-for-a-data-class": (Order, lambda: {"sku": "tea"}, "$"),
    "subclass-of-a-data-class": (Order, lambda: SpecialOrder("tea"), "$"),
    "attribute-that-is-no-field": (Order, lambda: with_attribute(Order("tea"), "extra"), "$.extra"),
    "text-for-a-number": (list[int], lambda: ["1"], "$[0]"),
    "none-for-text": (str, lambda: None, "$"),
}
"""A declared type, a value that cannot be stored as one, and the path to the culprit."""


def is_same(value, again):
    """Equal, and of the same types all through; unlike ``==``, tells -0.0 from 0.0 and 1 from True."""
    if type(value) is not type(again):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(again) and all(map(is_same, value, again))
    if isinstance(value, dict):
        return is_same(list(value), list(again)) and is_same(list(value.values()), list(again.values()))
    return value == again and (not isinstance(value, float) or repr(value) == repr(again))
