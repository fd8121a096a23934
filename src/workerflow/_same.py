"""Walks over values: where two of them differ, and what in one of them cannot be stored.

Both walks go level by level and not by recursion: their reach then depends on the value alone, and
not on how deep in the stack the caller happens to be. Nothing here knows how values are encoded.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

NESTING_MAX = 200
"""How many levels of containers a value may have.

Encoder and decoder stop somewhere between 900 and 3000 levels, depending on the stack they are
called from. A fixed limit far below refuses at the call, and never at the replay.
"""

NOT_FINITE = "NaN or infinite numbers are not allowed; use None, a string, or leave the number out"
NOT_JSON = "cannot be durably serialized as JSON"

_LEAVES = frozenset((str, int, float, bool, type(None), bytes, bytearray, date, timedelta, UUID))
_UNTEXTUAL = re.compile("[\x00\ud800-\udfff]")

ABSENT = object()
"""Stands for the part that only the other one of two compared values has."""

Pairs = Iterable[tuple[Any, Any, Any]]


class Place(NamedTuple):
    """One part of a walked value, linked to the part that holds it."""

    parent: Place | None
    key: Any
    original: Any
    decoded: Any

    def path(self) -> str:
        """Return the way to this place, as in ``$.items[3].price``."""
        steps: list[str] = []
        place = self
        while place.parent is not None:
            named = isinstance(place.key, str) and place.key.isidentifier()
            steps.append(f".{place.key}" if named else f"[{reprlib.repr(place.key)}]")
            place = place.parent
        return "$" + "".join(reversed(steps))

    def depth(self) -> int:
        """Return how many containers hold this place."""
        return 0 if self.parent is None else sum(1 for _ in self.holders())

    def holders(self) -> Iterable[Place]:
        """Yield the places that hold this one, the nearest first."""
        place = self.parent
        while place is not None:
            yield place
            place = place.parent


def difference(original: Any, decoded: Any) -> Place | None:
    """Return the first place where *decoded* is not *original* again, in type and value.

    Two differences are accepted: an int where a float was declared, when it is the same number;
    and a time zone replaced by its offset, because JSON holds the offset only.
    """
    level = [Place(None, None, original, decoded)]
    for _ in range(NESTING_MAX + 1):
        below: list[Place] = []
        for place in level:
            pairs = _pairs(place.original, place.decoded)
            if pairs is None:
                return place
            for key, first, second in pairs:
                kind = type(first)
                # Leaves are settled here: one Place per container, and not per number, is what
                # keeps long lists cheap. NaN is not equal to itself and so becomes a place.
                if kind is not type(second) or kind not in _LEAVES or first != second:
                    below.append(Place(place, key, first, second))
        if not below:
            return None
        level = below
    return level[0]


def _pairs(original: Any, decoded: Any) -> Pairs | None:
    """Return the parts still to compare as (key, original, decoded), or None for a difference here."""
    kind = type(original)
    if kind is not type(decoded):
        return () if kind is int and type(decoded) is float and original == decoded else None
    if isinstance(original, (list, tuple)):
        return zip(itertools.count(), original, decoded) if len(original) == len(decoded) else None
    if kind is dict:
        return _dict_pairs(original, decoded)
    if isinstance(original, (set, frozenset)):
        found = {element: element for element in decoded}
        same_size = len(original) == len(decoded)
        return [(one, one, found.get(one, ABSENT)) for one in original] if same_size else None
    if isinstance(original, (datetime, time)):
        return () if _same_time(original, decoded) else None
    if kind is Decimal:
        # as_tuple, because 1.10 and 1.1 are equal but print differently; NaN equals itself there.
        return () if original.is_finite() and original.as_tuple() == decoded.as_tuple() else None
    if field_names(kind) is not None:
        first, second = _state(original), _state(decoded)
        return [(key, first.get(key, ABSENT), second.get(key, ABSENT)) for key in first | second]
    return () if bool(original == decoded) else None


def _dict_pairs(original: dict[Any, Any], decoded: dict[Any, Any]) -> Pairs | None:
    if len(original) != len(decoded):
        return None
    # By position and not by look-up: JSON text keeps the order, and a look-up would find 1 for True.
    keys = zip(original, original, decoded, strict=True)
    return itertools.chain(keys, zip(original, original.values(), decoded.values(), strict=True))


def _same_time(original: datetime | time, decoded: datetime | time) -> bool:
    offset = original.utcoffset()
    # Not ``==``: a datetime in the repeated hour of a zone equals nothing in another zone (PEP 495),
    # so the clock reading and the offset are compared. None is a naive time: never storable.
    same_offset = offset is not None and offset == decoded.utcoffset()
    return same_offset and original.replace(tzinfo=None) == decoded.replace(tzinfo=None)


def field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, Struct, attrs class or pydantic model; None for other types."""
    return _field_names(kind)


@functools.lru_cache(maxsize=4096)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    return () if is_pydantic(kind) else None


def is_pydantic(kind: Any) -> bool:
    """Say whether *kind* is a pydantic model, without importing pydantic: a model's author has done that."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, getattr(pydantic, "BaseModel", ()))


def _state(value: Any) -> dict[str, Any]:
    """Return everything that an instance holds: its fields, and whatever else was put on it."""
    kind = type(value)
    state = {name: getattr(value, name, ABSENT) for name in field_names(kind) or ()}
    for name, held in getattr(value, "__dict__", {}).items():
        # A cached_property keeps its value there too: it is computed again, so nothing is lost.
        if name not in state and not isinstance(getattr(kind, name, None), functools.cached_property):
            state[name] = held
    if is_pydantic(kind):
        state |= value.__pydantic_extra__ or {}
        state |= value.__pydantic_private__ or {}
    return state


def defect(value: Any, encode: Callable[[Any], object]) -> tuple[Place, str] | None:
    """Return the first part of *value* that cannot be stored and why, or None when no part is to blame.

    For values already refused: it is slower than `difference`, and needs no decoded value.
    """
    level = [Place(None, None, value, None)]
    while level:
        below: list[Place] = []
        for place in level:
            parts = _parts(place.original)
            reason = leaf_defect(place.original) if parts is None else _holder_defect(place)
            if reason is None and parts is None:
                reason = _encoding_defect(place, encode)
            if reason is not None:
                return place, reason
            below += [Place(place, key, part, None) for key, part in parts or ()]
        level = below
    return None


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a container as (key, part), or None when *value* is not a container."""
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, dict):
        return itertools.chain(zip(value, value, strict=True), value.items())
    if isinstance(value, (set, frozenset)):
        return ((element, element) for element in value)
    return None if field_names(type(value)) is None else _state(value).items()


def _holder_defect(place: Place) -> str | None:
    if any(holder.original is place.original for holder in place.holders()):
        return f"a {type(place.original).__name__} that contains itself {NOT_JSON}"
    return nesting_defect(place)


def nesting_defect(place: Place) -> str | None:
    """Say that *place* lies too deep, or None."""
    too_deep = f"nested deeper than {NESTING_MAX} levels, which {NOT_JSON}; store a flatter value"
    return too_deep if place.depth() > NESTING_MAX else None


def _encoding_defect(place: Place, encode: Callable[[Any], object]) -> str | None:
    if any(is_pydantic(type(holder.original)) for holder in place.holders()):
        return None  # Models have serializers of their own for more types than we know.
    try:
        encode(place.original)
    except Exception as error:
        return f"{shown(place.original)} {NOT_JSON}: {error}"
    return None


def leaf_defect(value: Any) -> str | None:
    """Say why a single value cannot be stored whatever type is declared for it, or None."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{shown(value)} cannot be stored: {NOT_FINITE}"
    if isinstance(value, Decimal) and not value.is_finite():
        return f"{shown(value)} cannot be stored: {NOT_FINITE}"
    if isinstance(value, str) and (found := _UNTEXTUAL.search(value)):
        return (
            f"the {type(value).__name__} has {found[0]!r} at index {found.start()}: NUL characters and lone surrogates "
            "are not allowed, because not every database can store them; remove them, or store bytes"
        )
    if isinstance(value, (datetime, time)) and value.utcoffset() is None:
        return (
            f"{shown(value)} is naive, so which instant it means would depend on the reader; "
            "use an aware one, such as datetime.now(timezone.utc)"
        )
    return None


def shown(value: Any) -> str:
    """Return *value* with its type for a message: short, and without raising."""
    try:
        return f"{type(value).__name__} {reprlib.repr(value)}"
    except ValueError:
        return type(value).__name__  # An int of more digits than Python prints.
