"""What a Parquet footer says of its rows, in the form Delta's readers skip files by. Pure.

Promises: a least or greatest value never excludes a row that is there: strings are cut so that they still bound, a
floating-point column has bounds only if it is known to hold no NaN (which sorts above all, and which footers leave out)
and no infinity (which JSON cannot say), binary columns have none; what a footer does not say is left out. A commit
tells bounds of every column that the table wants them of, or of none: deltalake's dataset takes a bound that is missing
beside others for null and drops the file, while it reads one with counts alone. Of a struct it tells all or nothing.
Relies on: the footer's own statistics; for floating-point columns, what `nans_in` found in the rows.
Does not promise: tight bounds, nor anything about values in lists and maps.

Worked example: `{"numRecords":2,"minValues":{"id":1},"maxValues":{"id":7},"nullCount":{"id":0}}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set as AbstractSet
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Leaf: TypeAlias = tuple[str, ...]  # a column, by the names on the way to it

COLUMNS_MAX = 32
_TEXT_CHARS = 32
_LAST_CHAR = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
_COUNT, _NAMES = "delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"
_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`.,]+?))\s*([.,]|$)")

_encoder = msgspec.json.Encoder()
_Tree: TypeAlias = dict[str, Any]


class _Told(msgspec.Struct):
    numRecords: int  # noqa: N815 -- Delta's names
    minValues: _Tree = {}  # noqa: N815
    maxValues: _Tree = {}  # noqa: N815
    nullCount: _Tree = {}  # noqa: N815


# Numbers stay as they are spelled: a decimal has more digits than a float.
_told = msgspec.json.Decoder(_Told, float_hook=lambda text: msgspec.Raw(text.encode()))


class _Rows(msgspec.Struct):
    numRecords: int  # noqa: N815


class _Place(NamedTuple):
    """A column of a schema: how many stand before it in a Parquet file, and its type; lists and maps are one each."""

    leaf: Leaf
    kind: pa.DataType
    number: int


class Indexed(NamedTuple):
    """Which columns a table wants statistics of: the `first` so many (-1: all), or those below `names`."""

    first: int = COLUMNS_MAX
    names: tuple[Leaf, ...] | None = None

    @staticmethod
    def of(properties: Mapping[str, str | None]) -> Indexed:
        """What a table's properties say; all columns when nobody can tell."""
        if (text := properties.get(_NAMES)) is not None:
            return Indexed(-1, _named(text))
        text = properties.get(_COUNT)
        try:
            return Indexed() if text is None else Indexed(int(text))
        except ValueError:
            return Indexed(-1)

    def leaves(self, schema: pa.Schema) -> list[_Place]:
        """Those of a schema that can have statistics."""
        found = _leaves(schema)
        if self.names is not None:
            found = [one for one in found if any(one.leaf[: len(name)] == name for name in self.names)]
        elif self.first >= 0:
            found = found[: self.first]
        return [one for one in found if not pa.types.is_nested(one.kind)]


def nans_in(rows: pa.Table, indexed: Indexed = Indexed()) -> set[Leaf]:  # noqa: B008 -- a tuple
    """The floating-point columns that hold a NaN."""
    found = set()
    for place in indexed.leaves(rows.schema):
        if pa.types.is_floating(place.kind):
            values = rows.column(place.leaf[0])
            for name in place.leaf[1:]:
                values = pc.struct_field(values, name)
            if pc.any(pc.is_nan(values)).as_py():
                found.add(place.leaf)
    return found


def doubtful(footer: pq.FileMetaData, indexed: Indexed) -> list[Leaf]:
    """The floating-point columns with bounds, which hold a NaN or none, as only their rows show."""
    found = []
    for place in indexed.leaves(footer.schema.to_arrow_schema()):
        groups = [footer.row_group(at).column(place.number).statistics for at in range(footer.num_row_groups)]
        if pa.types.is_floating(place.kind) and any(one is not None and one.has_min_max for one in groups):
            found.append(place.leaf)
    return found


def of_footer(footer: pq.FileMetaData, nans: AbstractSet[Leaf] | None = None, indexed: Indexed = Indexed()) -> str:  # noqa: B008 -- a tuple
    """All that is known of a file's columns, as JSON; `nans`: the columns with a NaN, if that is known."""
    told = _Told(footer.num_rows)
    for leaf, kind, index in indexed.leaves(footer.schema.to_arrow_schema()):
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not found or any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            _put(told.nullCount, leaf, sum(one.null_count for one in found))
        bounded = [one for one in found if one.num_values]
        is_known = not pa.types.is_floating(kind) or (nans is not None and leaf not in nans)
        if is_known and bounded and all(one.has_min_max for one in bounded):
            with suppress(OverflowError, ValueError):  # times that Python has no object for
                least = _least(kind, min(one.min for one in bounded))
                greatest = _greatest(kind, max(one.max for one in bounded))
                if least is not None and greatest is not None:
                    _put(told.minValues, leaf, least)
                    _put(told.maxValues, leaf, greatest)
    return _encoder.encode(told).decode()


def fitted(text: str, wanted: pa.Schema, indexed: Indexed, absent: AbstractSet[str] = frozenset()) -> str | None:
    """What a commit tells of a file, `wanted` being the table's columns that files hold; `absent`: this one does not.

    None when it is not known how many nulls a column of these has, so that the file itself has to be asked.
    """
    if not text:
        return None
    told = _told.decode(text)
    fit, has_bounds = _Told(told.numRecords), True
    places, cut, unbounded = _parts(wanted, indexed)
    for leaf, kind, _ in places:
        if leaf[0] in cut:
            continue
        nulls = told.numRecords if leaf[0] in absent else _get(told.nullCount, leaf)
        if nulls is None:
            return None
        _put(fit.nullCount, leaf, nulls)
        least, greatest = _get(told.minValues, leaf), _get(told.maxValues, leaf)
        if least is not None and greatest is not None and leaf[0] not in unbounded:
            _put(fit.minValues, leaf, least)
            _put(fit.maxValues, leaf, greatest)
        elif len(leaf) == 1 and nulls != told.numRecords and not pa.types.is_binary(kind):
            has_bounds = False
    return _said(fit, has_bounds=has_bounds)


def counted(rows: int) -> str:
    """What is told of a file of which nothing else is known."""
    return _said(_Told(rows), has_bounds=False)


def rows_in(text: object) -> int | None:
    """How many rows another program says a file has; None when it does not, or nobody can read it."""
    try:
        rows = msgspec.json.decode(text, type=_Rows).numRecords if isinstance(text, str) else -1
    except (ValueError, RecursionError):
        return None
    return rows if rows >= 0 else None


def nulls_in(text: str, leaf: Leaf) -> int | None:
    """How many nulls a column has, if that is known."""
    found = _get(_told.decode(text).nullCount, leaf) if text else None
    return None if found is None else int(found)


def _said(told: _Told, *, has_bounds: bool) -> str:
    body: _Tree = {"numRecords": told.numRecords}
    if has_bounds and told.minValues:
        body |= {"minValues": told.minValues, "maxValues": told.maxValues}
    if told.nullCount:
        body["nullCount"] = told.nullCount
    return _encoder.encode(body).decode()


def _leaves(schema: pa.Schema) -> list[_Place]:
    """The columns in order, structs by their fields."""
    waiting: list[tuple[Leaf, pa.DataType]] = [((field.name,), field.type) for field in schema]
    found, index = [], 0
    while waiting:
        path, kind = waiting.pop(0)
        if pa.types.is_struct(kind):
            waiting[:0] = [((*path, part.name), part.type) for part in kind]
        else:
            found.append(_Place(path, kind, index))
            index += _width(kind)
    return found


@lru_cache(maxsize=64)
def _parts(wanted: pa.Schema, indexed: Indexed) -> tuple[list[_Place], set[str], set[str]]:
    """What is told; the structs of which nothing is, since Polars cannot read a part; those without bounds."""
    places = indexed.leaves(wanted)
    cut = {place.leaf[0] for place in {*_leaves(wanted)} - {*places} if place.leaf[0] in _structs(wanted)}
    return places, cut, {place.leaf[0] for place in places if pa.types.is_binary(place.kind)}


def _structs(schema: pa.Schema) -> set[str]:
    return {field.name for field in schema if pa.types.is_struct(field.type)}


def _width(kind: pa.DataType) -> int:
    """How many columns of a Parquet file hold it."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_width(kind.field(at).type) for at in range(kind.num_fields))


def _named(text: str) -> tuple[Leaf, ...]:
    """Names as Spark's SQL has them, with commas between."""
    found, leaf, at = [], [], 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return ((),)  # below which all columns are
        leaf.append(part[1].replace("``", "`") if part[1] else part[2])
        if part[3] != ".":
            found.append(tuple(leaf))
            leaf = []
        at = part.end()
    return tuple(found)


def _put(tree: _Tree, path: Leaf, value: object) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _get(tree: Any, path: Leaf) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _least(kind: pa.DataType, value: Any) -> object:
    if pa.types.is_string(kind):
        return value[:_TEXT_CHARS]
    return _plain(kind, -0.0 if value == 0 and isinstance(value, float) else value)


def _greatest(kind: pa.DataType, value: Any) -> object:
    if not pa.types.is_string(kind) or len(value) <= _TEXT_CHARS:
        return _plain(kind, 0.0 if value == 0 and isinstance(value, float) else value)
    kept = value[:_TEXT_CHARS].rstrip(_LAST_CHAR)
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if after in _SURROGATES else after)


def _plain(kind: pa.DataType, value: Any) -> object:
    """The value as Delta spells it in JSON; None when it has none."""
    if not isinstance(value, bool | int | float | str | Decimal | date):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return msgspec.Raw(f"{value:f}".encode())  # deltalake takes one with an exponent for null
    if isinstance(value, datetime):
        if kind.unit == "ns":
            return None  # it would be cut
        if kind.tz is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
