"""Arrow data is brought to the columns and types that a table keeps.

Promises: `conform` loses nothing: what does not fit is InvalidRequestError naming column, value and type.
Relies on: pyarrow's checked casts; `schema.merge`, which has decided that the types go together.
Does not promise: to keep what is no value: the metadata of fields, and whether they were declared non-null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from txsink.errors import InvalidRequestError
from txsink.records import Column
from txsink.schema import STORED_AS, is_list_view, parts_of, schema_of, storable

Data = TypeVar("Data", pa.Table, pa.RecordBatch)
_SHOWN_CHARS = 80
DEPTH_MAX = 48  # a list or map takes two levels of a Parquet schema, of which pyarrow reads 100


def conform(data: Data, target: pa.Schema, what: str = "write rows") -> Data:
    """`data` with the columns, order and types of `target`; columns it has not are null."""
    if data.schema.equals(target):
        return data
    known = set(data.schema.names)
    arrays: list[Any] = [
        _converted(data.column(field.name), field, what) if field.name in known else pa.nulls(data.num_rows, field.type)
        for field in target
    ]
    return type(data).from_arrays(arrays, schema=target)


def require_shallow(given: pa.Schema, what: str) -> None:
    """Refuse a column that is nested so deep that its files could be written, and not be read."""
    for field in given:
        parts, depth = parts_of(field.type), 0
        while parts and depth <= DEPTH_MAX:
            parts, depth = [inner for part in parts for inner in parts_of(part)], depth + 1
        if depth > DEPTH_MAX:
            raise too_deep(field.name, what)


def too_deep(column: object, what: str) -> InvalidRequestError:
    """The error for a column that is nested too deep."""
    found = f"column {column!r} is nested more than {DEPTH_MAX} deep, which readers refuse"
    return InvalidRequestError(what, found, "Cast it to a string, or flatten it", column=column)


def require_kept(columns: tuple[Column, ...], types: str, what: str) -> None:
    """Refuse a column whose type a table of these types keeps as another one."""
    given = schema_of(columns)
    for field, stored in zip(given, storable(given, what, types), strict=True):
        if field.type != stored.type:
            found = f"column {field.name!r} is {field.type}, and a table of types={types!r} keeps {stored.type} of it"
            advice = f"Give it as {stored.type}, in the data and in its files"
            raise InvalidRequestError(what, found, advice, column=field.name, type=str(field.type))


def require_typed(data: pa.Table, target: pa.Schema, partition_columns: Sequence[str], what: str) -> None:
    """Refuse rows that no file could hold: a file needs a column, and a column in a file a type."""
    if not data.num_rows:
        return
    if not data.num_columns:
        raise InvalidRequestError(what, f"{data.num_rows} rows without a column were given", "Give the rows a column")
    kinds = {field.name: field.type for field in target if field.name not in partition_columns}
    if all(map(pa.types.is_null, kinds.values())):
        name = next(iter(kinds))
        found = f"column {name!r} has no type yet: its values are all null, and no other column has one"
        raise InvalidRequestError(what, found, "Give the data a schema", column=name, type="null")


def require_sound(data: pa.Table, what: str) -> None:
    """Refuse what Arrow can hold and readers cannot: text that is not UTF-8, and a key that a map holds twice."""
    for name, column in zip(data.column_names, data.columns, strict=True):
        kind = str(column.type)
        if _holds(column.type, pa.types.is_string):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                found = f"column {name!r} holds text that is not UTF-8: {error}"
                raise InvalidRequestError(what, found, "Give it as binary", column=name, type=kind) from error
        if _holds(column.type, pa.types.is_map):
            for key in filter(None, map(_repeated_key, column.chunks)):
                found = f"column {name!r} holds a map with the key {key} twice"
                raise InvalidRequestError(what, found, "Give each key once", column=name, value=key, type=kind)


def _holds(kind: pa.DataType, is_meant: Callable[[pa.DataType], bool]) -> bool:
    return is_meant(kind) or any(_holds(part, is_meant) for part in parts_of(kind))


def _repeated_key(array: Any) -> str:
    """A key that stands twice in one map, at any depth; empty when none does."""
    if pa.types.is_struct(array.type):
        parts = [array.field(index) for index in range(array.type.num_fields)]
    elif pa.types.is_list(array.type):
        parts = [array.values]
    elif pa.types.is_map(array.type):
        keys = pa.ListArray.from_arrays(array.offsets, array.keys)
        pairs = pa.table({"map": pc.list_parent_indices(keys), "key": _comparable(pc.list_flatten(keys))})
        counts = pairs.group_by(["map", "key"]).aggregate([([], "count_all")])
        again = counts.filter(pc.greater(counts["count_all"], 1))
        if again.num_rows:
            return _shown(again["key"][0], repr)
        parts = [array.keys, array.items]
    else:
        parts = []
    return next(filter(None, map(_repeated_key, parts)), "")


def _comparable(keys: Any) -> Any:
    """The keys, of which two are equal if readers take them for one key: 0.0 and -0.0 are one."""
    kind = keys.type
    if pa.types.is_nested(kind):
        return pa.array([repr(_plain(key)) for key in keys], pa.string())
    if not pa.types.is_floating(kind):
        return keys
    numbers = keys.cast(pa.float64())
    return pc.if_else(pc.is_nan(numbers), math.nan, pc.add(numbers, 0.0))


def _plain(key: Any) -> Any:
    """A key that holds others, in Python's values, which are the same if the keys are."""
    if not key.is_valid:
        return None
    if pa.types.is_struct(key.type):
        return {field.name: _plain(key[index]) for index, field in enumerate(key.type)}
    if pa.types.is_nested(key.type):
        return [_plain(part) for part in key.values]
    if pa.types.is_floating(key.type):
        return float(key.as_py()) + 0.0
    return key.value if pa.types.is_temporal(key.type) else key.as_py()


def _converted(column: Any, field: pa.Field[Any], what: str) -> Any:
    try:
        return _cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        value = _first_unfit(column, field.type)
        raise InvalidRequestError(
            what,
            f"column {field.name!r} does not fit {field.type} without loss: {value}: {error}",
            f"Cast it to {field.type} yourself, rounding as you see fit",
            column=field.name,
            value=value,
            type=str(column.type),
        ) from error


def _cast(column: Any, kind: pa.DataType) -> Any:
    column = _each(column, _castable)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        # Offsets beyond 2 GiB stop the cast even of a small slice: a copy starts at 0.
        return _each(column, lambda chunk: pa.concat_arrays([chunk])).cast(kind)


def _first_unfit(column: Any, kind: pa.DataType) -> str:
    """The first value that does not fit, found by halves."""
    while len(column) > 1:
        half = column.slice(0, len(column) // 2)
        try:
            _cast(half, kind)
            column = column.slice(len(half))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = half
    return _shown(column[0], str) if len(column) else ""


def _shown(value: Any, form: Callable[[Any], str]) -> str:
    try:
        return form(value.as_py())[:_SHOWN_CHARS]
    except (OverflowError, ValueError):  # a time that Python has no object for, or what holds one
        if pa.types.is_dictionary(value.type):
            return _shown(value.value, form)
        return str(getattr(value, "value", f"a value of type {value.type}"))


def _each(column: Any, change: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        # Without chunks the type would be lost: an empty array carries it.
        chunks = column.chunks or [pa.nulls(0, column.type)]
        return pa.chunked_array([change(chunk) for chunk in chunks])
    return change(column)


def _castable(chunk: Any) -> Any:
    """The chunk in a form that pyarrow casts, and casts right."""
    kind = chunk.type
    if pa.types.is_run_end_encoded(kind):
        return pc.call_function("run_end_decode", [chunk])
    if pa.types.is_dictionary(kind) and kind.value_type in {pa.string_view(), pa.binary_view()}:
        return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(STORED_AS[kind.value_type]))
    if not is_list_view(kind):
        return chunk
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(chunk), 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, chunk.flatten(), mask=chunk.is_null())
