"""Columns: the schema a table keeps, how data is made to fit it, and partition values as text. Pure, pyarrow.

Promises: `storable` is the one place that decides which Arrow types a table holds, each of which Spark 4 reads
back as it was; `conform` loses nothing: what does not fit is InvalidRequestError naming the column;
`partition_values(partition_text(values, column), values.type)` gives the values back, null for null and for "".
Relies on: pyarrow's checked casts.
Does not promise: to widen. int32 data does not go into an int64 column: the producer casts, or the type is another.

    given                                       stored
    dictionary, run-end encoded                 the type of its values
    large_*, *_view, fixed-size binary or list  string, binary, list
    timestamp of any unit, of any zone          timestamp[us] without a zone, or timestamp[us, UTC]
    float16, date64, decimal32/64/256           float32, date32, decimal128
    null                                        null: no type yet; the first data with a type gives it one
    time, duration, interval, union, extension  refused

Every stored field is nullable, nested ones too: what a producer declares non-null, its data need not keep.
"""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from txsink.entry import Column
from txsink.errors import CorruptError, InvalidRequestError
from txsink.layout import NAME_BYTES_MAX, NULL_PARTITION, escape

Data = TypeVar("Data", pa.Table, pa.RecordBatch)

_KEPT = {
    *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
}
_STORED_AS: dict[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_DECIMAL_DIGITS_MAX = 38
_PLAIN_EXPONENTS = range(-3, 7)  # where Java writes a floating-point number without an exponent
_CIVIL = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?")


# -- types --------------------------------------------------------------------------------------------


def storable(schema: pa.Schema, what: str = "write rows") -> pa.Schema:
    """`schema` as a table keeps it; InvalidRequestError names the first column that cannot be kept."""
    try:
        return _stored_schema(schema)
    except InvalidRequestError as error:
        raise InvalidRequestError(what, error.found, error.advice, **error.context) from None


@lru_cache(maxsize=64)
def _stored_schema(schema: pa.Schema) -> pa.Schema:
    _check_names(schema, "")
    return pa.schema([pa.field(field.name, _stored_top(field)) for field in schema])


def _stored_top(field: pa.Field[Any]) -> pa.DataType:
    # These two have no sound cast while nested (pyarrow 26 makes broken lists of list views that hold nulls).
    if pa.types.is_run_end_encoded(field.type):
        return _stored(field.type.value_type, field.name)
    if _is_list_view(field.type):
        return pa.list_(_stored(field.type.value_type, f"{field.name}.element"))
    return _stored(field.type, field.name)


def _stored(kind: pa.DataType, path: str) -> pa.DataType:
    types = pa.types
    if kind in _KEPT:
        return kind
    if kind in _STORED_AS:
        return _STORED_AS[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind):
        return _stored(kind.value_type, path)
    if types.is_fixed_size_binary(kind) and not isinstance(kind, pa.BaseExtensionType):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_stored(kind.value_type, f"{path}.element"))
    if types.is_map(kind):
        return pa.map_(_stored(kind.key_type, f"{path}.key"), _stored(kind.item_type, f"{path}.value"))
    if types.is_struct(kind) and kind.num_fields:
        _check_names(kind, f"{path}.")
        return pa.struct([pa.field(part.name, _stored(part.type, f"{path}.{part.name}")) for part in kind])
    found = f"column {path!r} is of type {kind}, which Spark cannot read"
    raise InvalidRequestError("", found, _advice(kind), column=path, type=str(kind))


def _advice(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_decimal(kind):
        return f"Cast it to a decimal of at most {_DECIMAL_DIGITS_MAX} digits and a scale from 0 to its precision"
    if types.is_time(kind) or types.is_duration(kind) or types.is_interval(kind):
        return "Cast it to an integer or to a string"
    if isinstance(kind, pa.BaseExtensionType):
        return f"Cast it to its storage type, {kind.storage_type}"
    if types.is_struct(kind):
        return "Give the struct a field, or drop it"
    return "Cast it to a type the documentation of txsink.schema lists, or drop it"


def _check_names(fields: Iterable[pa.Field[Any]], prefix: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        name = prefix + field.name
        if not field.name or "\x00" in field.name:
            fault = "holds a NUL character" if field.name else "is empty"
            raise InvalidRequestError("", f"the column name {name!r} {fault}", "Rename the column", column=name)
        if other := seen.get(field.name.lower()):
            found = f"the columns {other!r} and {name!r} have the same name but for case"
            raise InvalidRequestError("", found, "Rename one: Spark does not tell them apart", column=name)
        seen[field.name.lower()] = name


def _is_list_view(kind: pa.DataType) -> bool:
    return pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


# -- columns as the log keeps them --------------------------------------------------------------------


@lru_cache(maxsize=64)
def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of `storable(schema)`, readable and exact."""
    return tuple(_column(field) for field in storable(schema))


def _column(field: pa.Field[Any]) -> Column:
    exact = pa.schema([field]).serialize().to_pybytes()
    return Column(field.name, str(field.type), base64.b64encode(exact).decode())


@lru_cache(maxsize=64)
def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """The inverse of `columns_of`; CorruptError when a recorded type cannot be read."""
    return pa.schema([_field(column) for column in columns])


def _field(column: Column) -> pa.Field[Any]:
    try:
        found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(column.arrow, validate=True)))
        if found.names == [column.name]:
            return storable(found).field(0)
        problem = f"it names {found.names}"
    except (pa.ArrowException, ValueError, OSError) as error:
        problem = str(error)
    raise CorruptError(
        f"read the type of column {column.name!r}",
        f"its recorded type is no Arrow field of that name ({problem})",
        "Restore the log from a copy",
        column=column.name,
    )


def merge(
    known: tuple[Column, ...], new: tuple[Column, ...], *, merge_schema: bool, what: str = "write rows"
) -> tuple[Column, ...]:
    """The columns of a table that holds `known` and takes in `new`: table order first, new ones after."""
    if known == new:
        return known
    if not known:
        merged = {column.name: column for column in new}
    else:
        merged = {column.name: column for column in known}
        spelled = {name.lower(): name for name in merged}
        for column in new:
            name = spelled.get(column.name.lower())
            if name is None and not merge_schema:
                raise _new_column(column, list(merged), what)
            if name not in (None, column.name):
                found = f"column {column.name!r} differs only by case from the table's {name!r}"
                raise InvalidRequestError(what, found, f"Name it {name!r}", column=column.name)
            merged[column.name] = _retyped(merged[column.name], column, what) if name else column
    columns = tuple(merged.values())
    for field in schema_of(columns):
        _check_typed(field.type, field.name, what)
    return columns


def _new_column(column: Column, names: list[str], what: str) -> InvalidRequestError:
    near = difflib.get_close_matches(column.name, names, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    advice = "Pass merge_schema=True to add it, or drop it from the data"
    found = f"the table has no column {column.name!r}{hint}"
    return InvalidRequestError(what, found, advice, column=column.name, type=column.type)


def _retyped(known: Column, new: Column, what: str) -> Column:
    if known == new:
        return known
    field = _field(known)
    kind = _unified(field.type, _field(new).type)
    if kind is None:
        raise InvalidRequestError(
            what,
            f"column {known.name!r} is {known.type} in the table and {new.type} in the data",
            f"Cast it to {known.type}, or write it under another name",
            column=known.name,
            known=known.type,
            given=new.type,
        )
    return _column(field.with_type(kind))


def _unified(known: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The one type both are, where null fits every type; None when they differ."""
    if known == new or pa.types.is_null(new):
        return known
    if pa.types.is_null(known):
        return new
    if pa.types.is_list(known) and pa.types.is_list(new):
        element = _unified(known.value_type, new.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(known) and pa.types.is_map(new):
        key, item = _unified(known.key_type, new.key_type), _unified(known.item_type, new.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        kinds = [_unified(ours.type, theirs.type) for ours, theirs in zip(known, new, strict=False)]
        parts = [(part.name, kind) for part, kind in zip(known, kinds, strict=False) if kind is not None]
        if [part.name for part in known] == [part.name for part in new] == [name for name, _ in parts]:
            return pa.struct(parts)
    return None


def _check_typed(kind: pa.DataType, path: str, what: str, depth: int = 0) -> None:
    """Refuse a nested part without a type: Spark would take it for integers, and fail on what comes later."""
    if pa.types.is_null(kind) and depth:
        raise InvalidRequestError(
            what, f"column {path!r} has no type yet: its values are all null", "Give the data a schema", column=path
        )
    for index in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        part = kind.field(index)
        _check_typed(part.type, f"{path}.{part.name}", what, depth + 1)


# -- data ---------------------------------------------------------------------------------------------


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


def _converted(column: Any, field: pa.Field[Any], what: str) -> Any:
    try:
        column = _each(column, _castable)
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid:
            # Offsets beyond 2 GiB stop the cast even of a small slice: a copy starts at 0.
            return _each(column, lambda chunk: pa.concat_arrays([chunk])).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequestError(
            what,
            f"column {field.name!r} does not fit {field.type} without loss: {error}",
            f"Cast it to {field.type} yourself, rounding as you see fit",
            column=field.name,
            type=str(column.type),
        ) from error


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
        return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(_STORED_AS[kind.value_type]))
    if not _is_list_view(kind):
        return chunk
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(chunk), 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, chunk.flatten(), mask=chunk.is_null())


# -- partition values ---------------------------------------------------------------------------------


def check_partition_columns(columns: Sequence[str], schema: pa.Schema, what: str = "write rows") -> None:
    """Refuse partition columns that a table of this (stored) schema cannot have."""
    for column in columns:
        if problem := _partition_problem(column, columns, schema):
            found = f"{column!r} cannot be a partition column: {problem}"
            raise InvalidRequestError(what, found, "Partition by another column", column=column)
    if columns and len(columns) == len(schema):
        found = "every column is a partition column, so the files would hold none"
        raise InvalidRequestError(what, found, "Leave one column out")


def _partition_problem(column: str, columns: Sequence[str], schema: pa.Schema) -> str | None:
    if column not in schema.names:
        near = difflib.get_close_matches(column.lower(), [name.lower() for name in schema.names], 1)
        hint = [f"; did you mean {name!r}?" for name in schema.names if name.lower() in near]
        return f"the data has no such column{''.join(hint[:1])}"
    if column.startswith(("_", ".")):
        return "readers hide directories whose names begin with '_' or '.'"
    if columns.count(column) > 1:
        return "it is named twice"
    kind = schema.field(column).type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return f"a value of type {kind} has no text form"
    return None


def partition_text(values: pa.Array[Any], column: str, what: str = "write rows") -> list[str | None]:
    """The values as Spark writes them into paths (timestamps of a zone: in UTC); null and "" are both None."""
    texts: list[str | None] = _spelled(values)
    for text in texts:
        if text and (problem := _text_problem(text, column, values.type)):
            found = f"a value of partition column {column!r} {problem}"
            advice = "Change the value, or partition by another column"
            raise InvalidRequestError(what, found, advice, column=column, value=text[:NAME_BYTES_MAX])
    return [text or None for text in texts]


def _spelled(values: pa.Array[Any]) -> list[str | None]:
    kind = values.type
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if pa.types.is_timestamp(kind):
        return [text and text.removesuffix("Z").rstrip("0").rstrip(".") for text in texts]
    if pa.types.is_decimal(kind):
        return [text and f"{Decimal(text):f}" for text in texts]
    if pa.types.is_floating(kind):
        return [text and _spelled_float(text) for text in texts]
    return texts


def _spelled_float(text: str) -> str:
    """Arrow's shortest digits in Java's notation: 1.0, 1.0E10, NaN, -Infinity."""
    number = Decimal(text)
    if number.is_nan():
        return "NaN"
    sign = "-" if number.is_signed() else ""
    if number.is_infinite():
        return f"{sign}Infinity"
    if not number:
        return f"{sign}0.0"
    if number.adjusted() in _PLAIN_EXPONENTS:
        plain = f"{number:f}"
        return plain if "." in plain else f"{plain}.0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"


def _text_problem(text: str, column: str, kind: pa.DataType) -> str | None:
    if "\x00" in text:
        return "holds a NUL character"
    if text == NULL_PARTITION:
        return f"is {NULL_PARTITION!r}, which stands for null in paths"
    if pa.types.is_temporal(kind) and not _CIVIL.fullmatch(text):
        return f"lies outside the years 0000 to 9999: {text}"
    if (size := len(f"{escape(column)}={escape(text)}".encode())) > NAME_BYTES_MAX:
        return f"takes {size} bytes in a path (with the column's name, escaped), at most {NAME_BYTES_MAX} fit"
    return None


def partition_values(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array[Any]:
    """The inverse of `partition_text`; CorruptError for a text that is no value of the type."""
    try:
        if pa.types.is_null(kind):
            return pa.array(texts, kind)
        if pa.types.is_timestamp(kind):
            return pa.array(texts, pa.string()).cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        advice = "Look at the names of the table's directories"
        raise CorruptError(f"read partition values as {kind}", str(error), advice) from error
