"""Laws of stored values: they come back equal and of the same type, or are refused at once."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Never, NoReturn, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerflow import codec
from workerflow.codec import UNDECLARED, result_type, store_self_declared, value_type
from workerflow.errors import DefinitionError, InvalidValueError

if TYPE_CHECKING:
    from somewhere import Invisible  # type: ignore[import-not-found] # known to no one at run time

WHERE = "result of step 'reserve' (callback shop.reserve)"
ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Content = TypeVar("Content")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    A = "a"


class Mixed(Enum):
    A = 1
    B = "b"


class Text(str):
    pass


class Point(NamedTuple):
    x: int
    y: float = 0.5


Pair = namedtuple("Pair", "a b")


class Row(TypedDict):
    a: int


@dataclass
class Item:
    price: float
    when: datetime | None = None


@dataclass
class Order:
    items: list[Item] = field(default_factory=list)


@dataclass
class SpecialOrder(Order):
    note: str = ""


@dataclass(frozen=True)
class Box(Generic[Content]):
    content: Content


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Counting:
    total: int
    doubled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total += 1


@dataclass
class Caching:
    a: int

    @functools.cached_property
    def twice(self) -> int:
        return self.a * 2


class Struct(msgspec.Struct):
    a: int
    b: msgspec.UnsetType | str = msgspec.UNSET


@attrs.define
class Attrs:
    a: int
    _hidden: int = 3


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    a: int = pydantic.Field(alias="A")
    when: datetime
    cost: Decimal = Decimal("1.10")
    ratio: float | None = None
    _private: int = 0

    @pydantic.computed_field  # type: ignore[prop-decorator] # pydantic's own documented form
    @property
    def twice(self) -> int:
        return self.a * 2


@dataclass
class Holder:
    model: Model


class Arbitrary:
    pass


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def model(**changes: Any) -> Model:
    return Model(**{"A": 1, "when": NOON, **changes})


ROUND_TRIPS: list[Any] = [
    (int, 2**70),
    (float, 3),
    (float, -0.0),
    (bool, True),
    (None, None),
    (str, 'quote " backslash \\u0000 \\\\u0000 é \U0001f600'),
    (list[int], [1]),
    (list, [1, "a"]),
    (dict, {"a": 1}),
    (dict[int, str], {1: "a", 0: "b"}),
    (dict[UUID, int], {ID: 1}),
    (dict[Level, int], {Level.LOW: 1}),
    (dict[date, int], {date(2026, 1, 1): 1}),
    (dict[str, object], {"a": [1]}),
    (tuple[int, ...], (1, 2)),
    (tuple, (1, "a")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    pytest.param(set[Box[int]], {Box(1), Box(2)}, id="set-of-dataclasses"),
    (int | None, None),
    (int | str, "a"),
    (Literal["a", 1], 1),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Name, Name.A),
    (Point, Point(1, 2.0)),
    (Pair, Pair(1, "x")),
    (Row, {"a": 1}),
    pytest.param(Order, Order([Item(1.5, NOON)]), id="dataclass"),
    (Box[int], Box(1)),
    (Tree, Tree([Tree([])])),
    (Struct, Struct(1)),
    (Attrs, Attrs(1)),
    pytest.param(Model, model(), id="model"),
    pytest.param(list[Model], [model(), model(cost=Decimal("2"))], id="list-of-models"),
    pytest.param(dict[str, Model | None], {"a": model(), "b": None}, id="dict-of-models"),
    pytest.param(Holder, Holder(model()), id="dataclass-with-a-model"),
    (NOON.__class__, NOON),
    pytest.param(
        datetime,
        datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=-3, minutes=30))),
        id="time-with-an-offset",
    ),
    (date, date(2026, 3, 1)),
    (time, time(1, 2, 3, tzinfo=UTC)),
    (timedelta, timedelta(days=-1, microseconds=3)),
    (UUID, ID),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("1E+5")),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"\x00")),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=str)
def test_value_of_a_declared_type_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    declared = value_type(annotation)
    stored = declared.store(value, WHERE)
    assert stored.value == value
    assert type(stored.value) is (float if annotation is float else type(value))
    assert declared.load(stored.text, WHERE) == stored.value


@pytest.mark.parametrize("value", [None, True, 0, -5, 2**64, 1.5, 1e300, "a", "", [], {}, [1, {"a": [None, False]}]])
def test_exact_json_needs_no_declared_type(value: Any) -> None:
    stored = UNDECLARED.store(value, WHERE)
    assert stored == (codec.dump_json(value), value)
    assert type(stored.value) is type(value)
    assert codec.is_exact_json(value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ((1, 2), "$"),
        ({"a": (1, 2)}, "$.a"),
        ({1: 2}, "$[1]"),
        ({1: 2, "1": 3}, "$"),
        ([{1}], "$[0]"),
        (Level.LOW, "$"),
        ([Name.A], "$[0]"),
        ({Name.A: 1}, "$.a"),
        (OrderedDict(a=1), "$"),
        (Point(1), "$"),
        (NOON, "$"),
        ({"a b": Decimal("1")}, "$['a b']"),
        ({"a": ID}, "$.a"),
        (b"a", "$"),
        (Order(), "$"),
        (Struct(1), "$"),
        pytest.param(model(), "$", id="model"),
        ([Attrs(1)], "$[0]"),
        pytest.param(msgspec.Raw(b"1"), "$", id="raw"),
    ],
    ids=str,
)
def test_undeclared_value_that_would_come_back_changed_is_refused_with_the_remedy(value: Any, path: str) -> None:
    with pytest.raises(InvalidValueError, match=r"annotate the callback's return type or pass returns=") as caught:
        UNDECLARED.store(value, WHERE)
    assert caught.value.path == path
    assert str(caught.value).startswith(WHERE + ": ")
    assert not codec.is_exact_json(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Any, math.nan, "$"),
        (Any, {"a": [1, -math.inf]}, "$.a[1]"),
        (float, math.inf, "$"),
        (float | None, math.nan, "$"),
        (set[float], {math.nan}, "$[nan]"),
        (Any, {math.nan: 1}, "$[nan]"),
        pytest.param(
            Order, Order([Item(1.0), Item(2.0), Item(3.0), Item(math.nan)]), "$.items[3].price", id="in-a-dataclass"
        ),
        (Decimal, Decimal("NaN"), "$"),
        (list[Decimal], [Decimal("Infinity")], "$[0]"),
        (list[Decimal], [Decimal("sNaN")], "$[0]"),
        pytest.param(Model, model(ratio=math.nan), "$.ratio", id="in-a-model"),
        (Point, Point(1, math.nan), "$[1]"),
        (int, math.nan, "$"),
    ],
    ids=str,
)
def test_nan_and_infinity_anywhere_are_refused_with_their_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(InvalidValueError, match="NaN or infinite numbers are not allowed") as caught:
        value_type(annotation).store(value, WHERE)
    assert caught.value.path == path


def test_nan_inside_a_dataclass_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidValueError, match=r"NaN or infinite numbers are not allowed.*at \$\.items\[0\]\.price"):
        store_self_declared(Order([Item(math.nan)]), "input")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (cyclic(), "$[0].again"),
        (print, "$"),
        ({"a": [lambda: 1]}, "$.a[0]"),
        (object(), "$"),
        (iter([1]), "$"),
        (1 + 2j, "$"),
        (Text("a"), "$"),
        ({(1, 2): 3}, "$"),
        (codec.UNSET, "$"),
        (10**5000, "$"),
        (nested(500), "$" + "[0]" * 201),
        (nested(20_000), "$" + "[0]" * 201),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_json_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be durably serialized as JSON") as caught:
        UNDECLARED.store(value, WHERE)
    assert caught.value.path == path


def test_value_at_the_nesting_limit_is_stored_however_deep_the_caller_is() -> None:
    def deep_in_the_stack(frames: int) -> Any:
        return deep_in_the_stack(frames - 1) if frames else UNDECLARED.store(nested(200), WHERE)

    assert deep_in_the_stack(300).value == nested(200)


def test_cycle_through_dataclasses_is_refused() -> None:
    tree = Tree([])
    tree.children.append(tree)
    with pytest.raises(InvalidValueError, match="contains itself"):
        value_type(Tree).store(tree, WHERE)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (datetime, datetime(2026, 1, 1), "$"),
        (time, time(1, 2), "$"),
        pytest.param(time, time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "$", id="time-of-a-zone"),
        pytest.param(Order, Order([Item(1.0, datetime(2026, 1, 1))]), "$.items[0].when", id="in-a-dataclass"),
        pytest.param(Model, model(when=datetime(2026, 1, 1)), "$.when", id="in-a-model"),
        (Any, [datetime(2026, 1, 1)], "$[0]"),
        (dict[datetime, int], {datetime(2026, 1, 1): 1}, None),
    ],
    ids=str,
)
def test_naive_time_is_refused_with_the_remedy(annotation: Any, value: Any, path: str | None) -> None:
    with pytest.raises(InvalidValueError, match=r"naive.*use an aware one") as caught:
        value_type(annotation).store(value, WHERE)
    assert path is None or caught.value.path == path


@pytest.mark.parametrize("fold", [0, 1])
def test_time_zone_comes_back_as_its_offset_also_in_the_repeated_hour(fold: int) -> None:
    repeated = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    again = value_type(datetime).store(repeated, WHERE).value
    assert again.utcoffset() == repeated.utcoffset() == timedelta(hours=2 - fold)
    assert again.timestamp() == repeated.timestamp()


def test_offset_with_seconds_is_refused_because_json_times_have_none() -> None:
    local_mean_time = datetime(2026, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    with pytest.raises(InvalidValueError):
        value_type(datetime).store(local_mean_time, WHERE)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Any, "a\0b", "$"),
        (str, "\0", "$"),
        (Any, ["\ud800"], "$[0]"),
        (Any, {"a\0": 1}, r"$['a\x00']"),
        (Any, {"a": {"\udfff": 1}}, r"$.a['\udfff']"),
        (SpecialOrder, SpecialOrder(note="\\\0"), "$.note"),
    ],
)
def test_nul_and_lone_surrogates_are_refused_with_their_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(InvalidValueError, match="NUL characters and lone surrogates are not allowed") as caught:
        value_type(annotation).store(value, WHERE)
    assert caught.value.path == path
    assert codec.clean_text(str(caught.value)) == str(caught.value)


def test_text_that_spells_an_escaped_nul_is_no_nul() -> None:
    for text in ("\\u0000", '"\\u0000', "\\\\u0000"):
        assert UNDECLARED.store(text, WHERE).value == text


@pytest.mark.parametrize(
    ("annotation", "value", "words", "path"),
    [
        (int, "x", "Expected `int`, got `str`", "$"),
        (int, True, "Expected `int`, got `bool`", "$"),
        (bool, 1, "Expected `bool`, got `int`", "$"),
        pytest.param(Order, Order([Item("x")]), "Expected `float`, got `str`", "$.items[0].price", id="wrong-field"),  # type: ignore[arg-type] # wrong on purpose
        pytest.param(
            list[int],
            (1, 2),
            "got tuple (1, 2), but the declared type list[int] expects list [1, 2]",
            "$",
            id="tuple-for-list",
        ),
        (Order, SpecialOrder(), "got SpecialOrder", "$"),
        (Order, {"items": []}, "got dict {'items': []}", "$"),
        (datetime, "2026-01-01T00:00:00Z", "got str '2026-01-01T00:00:00Z'", "$"),
        (Decimal, 1.5, "got float 1.5", "$"),
        (float, 2**53 + 1, "got int", "$"),
        (dict[str, int], {1: 2}, "got int 1", "$[1]"),
        (Row, {"a": 1, "b": 2}, "got dict", "$"),
        (None, 1, "Expected `null`, got `int`", "$"),
        (str, Text("a"), "Text 'a' cannot be durably", "$"),
        (str, Name.A, "got Name", "$"),
        (int, Level.LOW, "got Level", "$"),
        pytest.param(
            list[Model], [model().model_dump()], "1 validation error for Model", "$[0]", id="dict-for-a-model"
        ),
        (Attrs, Attrs(1, 4), "got int 4", "$._hidden"),
        (Counting, Counting(1), "got int 2", "$.total"),
    ],
    ids=str,
)
def test_value_that_is_not_of_its_declared_type_is_refused_naming_expected_and_got(
    annotation: Any, value: Any, words: str, path: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        value_type(annotation).store(value, WHERE)
    assert words in str(caught.value)
    assert caught.value.path == path


def test_attribute_that_is_no_field_is_refused_and_not_lost() -> None:
    order = Order()
    order.extra = 1  # type: ignore[attr-defined] # the author's mistake
    with pytest.raises(InvalidValueError, match="int 1 would be lost") as caught:
        value_type(Order).store(order, WHERE)
    assert caught.value.path == "$.extra"


def test_private_attribute_of_a_model_is_refused_and_not_lost() -> None:
    changed = model()
    changed._private = 7
    with pytest.raises(InvalidValueError) as caught:
        value_type(Model).store(changed, WHERE)
    assert caught.value.path == "$._private"


def test_cached_property_does_not_hinder_storing() -> None:
    value = Caching(2)
    assert value.twice == 4
    assert value_type(Caching).store(value, WHERE).value == value


def test_value_over_the_limit_is_refused_naming_size_and_limit() -> None:
    assert UNDECLARED.store("é", WHERE, 4).text == '"é"'
    with pytest.raises(InvalidValueError, match=r"5 bytes as JSON and the limit is 4; store it elsewhere.*reference"):
        UNDECLARED.store("abc", WHERE, 4)


def test_comparison_that_raises_is_a_refusal() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

    class Holding(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        inner: Any

        @pydantic.field_serializer("inner")
        def _text(self, inner: Any) -> str:
            return "text"

        @pydantic.field_validator("inner", mode="before")
        @classmethod
        def _object(cls, inner: Any) -> Any:
            return Hostile()

    with pytest.raises(InvalidValueError, match="cannot be compared"):
        value_type(Holding).store(Holding(inner=1), WHERE)


@pytest.mark.parametrize(
    "value", [Order([Item(1.0)]), Struct(1), Attrs(1), model(), Box(1)], ids=lambda value: type(value).__name__
)
def test_instance_with_fields_declares_itself_as_input(value: Any) -> None:
    stored = store_self_declared(value, "input")
    assert stored.value == value
    assert type(stored.value) is type(value)


def test_input_without_fields_must_be_exact_json() -> None:
    assert store_self_declared({"a": 1}, "input").text == '{"a":1}'
    with pytest.raises(InvalidValueError, match="make it a dataclass"):
        store_self_declared([Order()], "input")


def test_input_whose_class_has_a_field_without_json_form_is_refused() -> None:
    @dataclass
    class Wrong:
        socket: Callable[[], None]

    with pytest.raises(InvalidValueError, match=r"^input: "):
        store_self_declared(Wrong(print), "input")


@pytest.mark.parametrize(
    "annotation",
    [
        Arbitrary,
        list[Arbitrary],
        complex,
        Order | SpecialOrder,
        Mixed,
        Callable[[int], int],
        Iterator[int],
        OrderedDict[str, int],
        "Missing",
        "list[",
        list["Missing"],  # type: ignore[name-defined] # noqa: F821 # wrong on purpose
        3,
    ],
    ids=str,
)
def test_type_without_json_form_is_refused_when_declared(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^step 'a': values of type .* cannot be stored"):
        value_type(annotation, "step 'a'")


@pytest.mark.parametrize("annotation", [Any, object, Never, NoReturn, "object"], ids=str)
def test_type_that_says_nothing_is_undeclared(annotation: Any) -> None:
    assert value_type(annotation) is UNDECLARED


def test_equal_types_share_one_value_type() -> None:
    assert value_type(dict[str, Order]) is value_type(dict[str, Order])


def test_stored_text_of_another_type_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidValueError, match=r"^input: the stored JSON does not match") as caught:
        value_type(Order).load('{"items":[{"price":"x"}]}', "input")
    assert caught.value.path == "$.items[0].price"
    with pytest.raises(InvalidValueError):
        UNDECLARED.load("[", "input")
    with pytest.raises(InvalidValueError) as caught:
        value_type(list[Model]).load('[{"a":1}]', "input")
    assert caught.value.path == "$[0]"


def test_return_annotation_alone_is_evaluated() -> None:
    def callback(order: Invisible) -> tuple[int, ...]: ...  # type: ignore[empty-body]

    assert result_type(callback, "step 'a'") is value_type(tuple[int, ...])


def test_return_annotation_that_exists_for_type_checkers_only_is_refused_naming_the_callback() -> None:
    def callback() -> list[Invisible]: ...  # type: ignore[empty-body]

    with pytest.raises(
        DefinitionError, match=r"^step 'a': .*<locals>\.callback.*import the type at run time.*returns="
    ):
        result_type(callback, "step 'a'")


def test_return_annotation_finds_names_of_the_enclosing_function() -> None:
    @dataclass
    class Local:
        a: int

    def callback() -> Local:
        return Local(1)

    assert result_type(callback, "step 'a'").load('{"a":1}', "input") == Local(1)


class Shop:
    def reserve(self) -> Order: ...  # type: ignore[empty-body]

    def __call__(self) -> Point: ...  # type: ignore[empty-body]


def reserve(a: int) -> Order: ...  # type: ignore[empty-body]


@functools.wraps(reserve)
def wrapping(*args: Any) -> Any: ...


async def reserve_later() -> Order: ...  # type: ignore[empty-body]


def awaitable() -> Awaitable[Order]: ...  # type: ignore[empty-body]


def coroutine() -> Coroutine[Any, Any, Order]: ...  # type: ignore[empty-body]


def nothing() -> None: ...


def never() -> NoReturn:
    raise ValueError


def unannotated(a: int): ...


CALLBACKS: dict[str, tuple[Callable[..., Any], Any]] = {
    "function": (reserve, Order),
    "partial": (functools.partial(reserve, 1), Order),
    "partial-of-a-partial": (functools.partial(functools.partial(Shop().reserve)), Order),
    "method": (Shop().reserve, Order),
    "method-of-the-class": (Shop.reserve, Order),
    "object-that-is-called": (Shop(), Point),
    "wrapper": (wrapping, Order),
    "cache": (functools.lru_cache(reserve), Order),
    "coroutine-function": (reserve_later, Order),
    "awaitable": (awaitable, Order),
    "coroutine": (coroutine, Order),
    "none": (nothing, None),
    "class": (Order, Order),
    "never": (never, Any),
    "without-annotation": (unannotated, Any),
    "lambda": (lambda: 1, Any),
    "builtin": (len, Any),
    "method-of-a-builtin": ([].append, Any),
}


@pytest.mark.parametrize(("callback", "annotation"), CALLBACKS.values(), ids=CALLBACKS.keys())
def test_result_type_is_found_through_wrappers(callback: Callable[..., Any], annotation: Any) -> None:
    assert result_type(callback, "step 'a'") is value_type(annotation)


@pytest.mark.parametrize("text", ["", "a", "é\U0001f600", "\\x00"])
def test_storable_text_is_left_alone(text: str) -> None:
    assert codec.checked_text(text, "id") == codec.clean_text(text) == text


@pytest.mark.parametrize("text", ["\0", "\ud800", None, 1, b"a"])
def test_text_that_some_database_cannot_store_is_refused(text: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^step id "):
        codec.checked_text(text, "step id")


@given(st.text(st.characters(categories=None)))
def test_cleaned_text_is_always_storable(text: str) -> None:
    assert codec.checked_text(codec.clean_text(text), "error text") is not None


def test_pydantic_is_not_imported_by_the_codec() -> None:
    program = "import sys, workerflow.codec as c; c.value_type(list[int]); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None)) | st.binary()
)
VALUES = st.recursive(
    SCALARS | st.decimals() | st.dates() | st.datetimes(timezones=st.none() | st.timezones()) | st.uuids(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers() | st.text())
        | st.builds(Box, inner)
    ),
    max_leaves=12,
)
TYPES: list[Any] = [
    *(Any, dict, list, tuple, set, Box, Box[Any], list[float], float, int, str, bytes, Decimal, date, datetime),
    *(
        UUID,
        dict[int, Any],
        dict[str, float],
        tuple[Any, Any],
        list[bytes],
        set[int],
        list[Box[Decimal]],
        Box[datetime],
    ),
]


def exactly_same(first: Any, second: Any) -> bool:
    """Compare in the plain recursive way that the codec avoids."""
    if type(first) is int and type(second) is float:
        return first == second
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(exactly_same, first, second))
    if isinstance(first, dict):
        return exactly_same(list(first.items()), list(second.items()))
    if isinstance(first, (set, frozenset)):
        return first == second and sorted(map(repr, first)) == sorted(map(repr, second))
    if isinstance(first, Box):
        return exactly_same(first.content, second.content)
    if isinstance(first, datetime):
        return first.isoformat() == second.isoformat() and first.tzinfo is not None
    return repr(first) == repr(second) and first == first


@given(VALUES, st.sampled_from(TYPES))
def test_value_comes_back_the_same_or_is_refused(value: Any, annotation: Any) -> None:
    declared = value_type(annotation)
    try:
        stored: codec.Stored | None = declared.store(value, WHERE)
    except InvalidValueError as error:
        refusal = error
        stored = None
    if stored is None:
        assert str(refusal).startswith(WHERE + ": ")
        assert refusal.path.startswith("$")
    else:
        assert exactly_same(value, stored.value)
        assert exactly_same(stored.value, declared.load(stored.text, WHERE))
        assert "\0" not in stored.text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner)
    ),
)


@given(JSON)
def test_exact_json_is_never_refused(value: Any) -> None:
    stored = UNDECLARED.store(value, WHERE)
    assert exactly_same(value, stored.value)
    assert exactly_same(UNDECLARED.load(stored.text, WHERE), value)
