"""What a Parquet footer says of its rows, in the form Delta's readers skip files by. Pure.

Promises: a least or greatest value never excludes a row that is there: strings are cut so that they still bound, a
floating-point column has a greatest value only if it has no NaN, which sorts above all and which footers leave out,
binary columns have none; what a footer does not say is left out. At most the first 32 columns are told, fields of
structs counted one by one.
Relies on: the footer's own statistics; for floating-point columns, what `nans_in` found in the rows, or Parquet's own
Java writer, which gives a column with a NaN no bounds at all.
Does not promise: tight bounds, nor anything about values in lists and maps.

Worked example: `{"numRecords":2,"minValues":{"id":1},"maxValues":{"id":7},"nullCount":{"id":0}}`.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Leaf: TypeAlias = tuple[str, ...]  # a column, by the names on the way to it

COLUMNS_MAX = 32
_JAVA = "parquet-mr"
_TEXT_CHARS = 32
_LAST_CHAR = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)

_encoder = msgspec.json.Encoder(decimal_format="number")


def of_region(region: bytes, nans: AbstractSet[Leaf] | None = None) -> str:
    """The statistics of a file, from its footer region; `nans`: the columns with a NaN, if that is known."""
    return of_footer(pq.read_metadata(pa.BufferReader(region)), nans)


def nans_in(rows: pa.Table) -> set[Leaf]:
    """The floating-point columns that hold a NaN."""
    found = set()
    for path, kind in _leaves(rows.schema)[:COLUMNS_MAX]:
        if pa.types.is_floating(kind):
            values = rows.column(path[0])
            for name in path[1:]:
                values = pc.struct_field(values, name)
            if pc.any(pc.is_nan(values)).as_py():
                found.add(path)
    return found


def of_footer(footer: pq.FileMetaData, nans: AbstractSet[Leaf] | None = None) -> str:
    """The statistics of a file as JSON."""
    if nans is None and str(footer.created_by).startswith(_JAVA):
        nans = frozenset()
    told: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    leaves = _leaves(footer.schema.to_arrow_schema())
    at = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    for path, kind in leaves[:COLUMNS_MAX]:
        index = at.get(".".join(path))
        groups = range(0 if index is None else footer.num_row_groups)
        found = [footer.row_group(group).column(index).statistics for group in groups]
        if not found or any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            _put(told["nullCount"], path, sum(one.null_count for one in found))
        bounded = [one for one in found if one.num_values]
        if bounded and all(one.has_min_max for one in bounded):
            with suppress(OverflowError, ValueError):  # times that Python has no object for
                _put(told["minValues"], path, _least(kind, min(one.min for one in bounded)))
                if not pa.types.is_floating(kind) or (nans is not None and path not in nans):
                    _put(told["maxValues"], path, _greatest(kind, max(one.max for one in bounded)))
    return _encoder.encode(told).decode()


def _leaves(schema: pa.Schema) -> list[tuple[Leaf, pa.DataType]]:
    """The columns that can have statistics, structs by their fields, in order."""
    waiting: list[tuple[Leaf, pa.DataType]] = [((field.name,), field.type) for field in schema]
    found = []
    while waiting:
        path, kind = waiting.pop(0)
        if pa.types.is_struct(kind):
            waiting[:0] = [((*path, part.name), part.type) for part in kind]
        elif not pa.types.is_nested(kind) and not any("." in name for name in path):
            found.append((path, kind))
    return found


def _put(tree: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    if value is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _least(kind: pa.DataType, value: Any) -> object:
    if pa.types.is_string(kind):
        return value[:_TEXT_CHARS]
    return _plain(kind, value)


def _greatest(kind: pa.DataType, value: Any) -> object:
    if not pa.types.is_string(kind) or len(value) <= _TEXT_CHARS:
        return _plain(kind, value)
    kept = value[:_TEXT_CHARS].rstrip(_LAST_CHAR)
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if after in _SURROGATES else after)


def _plain(kind: pa.DataType, value: Any) -> object:
    """The value as Delta spells it in JSON; None when it has none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | date):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        if kind.tz is None:
            return value.isoformat(timespec="microseconds")
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
