"""Columns: the schema a table keeps, how data is made to fit it, and partition values as text. Pure, pyarrow.

Promises: `storable` is the one place that decides which Arrow types a table holds, each of which Spark 4 reads
back as it was; `merge` decides which data a column takes: of its type, or, where the data is still in memory and can
be converted, of a type each of whose values it holds exactly (docs/types.md lists them);
`partition_values(partition_text(values, column), values.type)` gives the values back; "" is refused, for readers take
it for null.
Relies on: pyarrow's checked casts.
Does not promise: to change the type of a column. int64 data does not go into an int32 column.

    given                                       stored
    dictionary, run-end encoded                 the type of its values
    large_*, *_view, fixed-size binary or list  string, binary, list
    timestamp of any unit, of any zone          timestamp[us] without a zone, or timestamp[us, UTC]
    float16, date64, decimal32/64/256           float32, date32, decimal128
    null                                        null: no type yet; the first data with a type gives it one
    time, duration, interval, union, extension  refused

A table created with `types="arrow"` keeps float16, time, nanoseconds and decimals of 39 to 76 digits; Spark has none.

Every stored field is nullable, nested ones too: what a producer declares non-null, its data need not keep.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from txsink.errors import CorruptError, InvalidRequestError, did_you_mean
from txsink.paths import NAME_BYTES_MAX, NULL_PARTITION, escape
from txsink.records import Column

_KEPT = {
    *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
}
STORED_AS: dict[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
# What a table whose types are Arrow's holds besides: Spark 4 reads none of it.
_OF_ARROW = {pa.float16(), pa.time32("ms"), pa.time64("us"), pa.time64("ns")}
_DIGITS_MAX = 38
_PLAIN_EXPONENTS = range(-3, 7)  # where Java writes a floating-point number without an exponent
_CIVIL = re.compile(r"(?!0000)\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?)?")


# -- types --------------------------------------------------------------------------------------------


def storable(schema: pa.Schema, what: str = "write rows", types: str = "spark") -> pa.Schema:
    """`schema` as a table of these `types` keeps it; InvalidRequestError names the first column that it cannot."""
    try:
        return _stored_schema(schema, types)
    except InvalidRequestError as error:
        raise InvalidRequestError(what, error.found, error.advice, **error.context) from None


@lru_cache(maxsize=64)
def _stored_schema(schema: pa.Schema, types: str) -> pa.Schema:
    _check_names(schema, "")
    return pa.schema([pa.field(field.name, _stored_top(field, is_arrow=types == "arrow")) for field in schema])


def _stored_top(field: pa.Field[Any], *, is_arrow: bool) -> pa.DataType:
    # These two have no sound cast while nested (pyarrow 26 makes broken lists of list views that hold nulls).
    if pa.types.is_run_end_encoded(field.type):
        return _stored(field.type.value_type, field.name, is_arrow=is_arrow)
    if is_list_view(field.type):
        return pa.list_(_stored(field.type.value_type, f"{field.name}.element", is_arrow=is_arrow))
    return _stored(field.type, field.name, is_arrow=is_arrow)


def _stored(kind: pa.DataType, path: str, *, is_arrow: bool) -> pa.DataType:
    types = pa.types
    if kind in _KEPT or (is_arrow and kind in _OF_ARROW):
        return kind
    if kind in STORED_AS:
        return STORED_AS[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("ns" if is_arrow and kind.unit == "ns" else "us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision and (is_arrow or kind.precision <= _DIGITS_MAX):
        return kind if kind.precision > _DIGITS_MAX else pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind):
        return _stored(kind.value_type, path, is_arrow=is_arrow)
    if types.is_fixed_size_binary(kind) and not isinstance(kind, pa.BaseExtensionType):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_stored(kind.value_type, f"{path}.element", is_arrow=is_arrow))
    if types.is_map(kind):
        key = _stored(kind.key_type, f"{path}.key", is_arrow=is_arrow)
        return pa.map_(key, _stored(kind.item_type, f"{path}.value", is_arrow=is_arrow))
    if types.is_struct(kind) and kind.num_fields:
        _check_names(kind, f"{path}.")
        kinds = [_stored(part.type, f"{path}.{part.name}", is_arrow=is_arrow) for part in kind]
        return pa.struct([pa.field(part.name, one) for part, one in zip(kind, kinds, strict=True)])
    found = f"column {path!r} is of type {kind}, which {'no table holds' if is_arrow else 'Spark cannot read'}"
    raise InvalidRequestError("", found, _advice(kind), column=path, type=str(kind))


def _advice(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_decimal(kind):
        return f"Cast it to a decimal of at most {_DIGITS_MAX} digits and a scale from 0 to its precision"
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
        if other := seen.get(folded(field.name)):
            found = f"the columns {other!r} and {name!r} have the same name but for case"
            raise InvalidRequestError("", found, "Rename one: Spark does not tell them apart", column=name)
        seen[folded(field.name)] = name


def folded(name: str) -> str:
    """What Spark compares names by: two are the same to Java's `equalsIgnoreCase` if this is the same."""
    raised = "".join(char.upper() if len(char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in raised)


def is_list_view(kind: pa.DataType) -> bool:
    """Whether it is a list of either view type."""
    return pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)


# -- columns as the log keeps them --------------------------------------------------------------------


@lru_cache(maxsize=64)
def columns_of(schema: pa.Schema, types: str = "spark") -> tuple[Column, ...]:
    """The columns of `storable(schema)`, readable and exact."""
    return tuple(_column(field) for field in storable(schema, types=types))


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
            return storable(found, types="arrow").field(0)
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
    known: tuple[Column, ...],
    new: tuple[Column, ...],
    *,
    merge_schema: bool,
    what: str = "write rows",
    is_converted: bool = False,
) -> tuple[Column, ...]:
    """The columns of a table that holds `known` and takes in `new`: table order first, new ones after.

    `is_converted`: the data will be converted to the table's types, so that narrower ones do as well.
    """
    if known == new:
        return known
    if not known:
        merged = {column.name: column for column in new}
    else:
        merged = {column.name: column for column in known}
        spelled = {folded(name): name for name in merged}
        for column in new:
            name = spelled.get(folded(column.name))
            if name is None and not merge_schema:
                raise _new_column(column, list(merged), what)
            if name not in (None, column.name):
                found = f"column {column.name!r} differs only by case from the table's {name!r}"
                raise InvalidRequestError(what, found, f"Name it {name!r}", column=column.name)
            merged[column.name] = (
                _retyped(merged[column.name], column, what, is_converted=is_converted) if name else column
            )
    columns = tuple(merged.values())
    for field in schema_of(columns):
        _check_typed(field.type, field.name, what)
    return columns


def _new_column(column: Column, names: list[str], what: str) -> InvalidRequestError:
    otherwise = "Pass merge_schema=True to add it, or drop it from the data"
    advice = did_you_mean(column.name, names, otherwise, or_else=True)
    found = f"the table has no column {column.name!r}"
    return InvalidRequestError(what, found, advice, column=column.name, type=column.type)


def _retyped(known: Column, new: Column, what: str, *, is_converted: bool) -> Column:
    if known == new:
        return known
    field = _field(known)
    kind = _unified(field.type, _field(new).type, is_converted=is_converted)
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


def _unified(known: pa.DataType, new: pa.DataType, *, is_converted: bool) -> pa.DataType | None:
    """The one type both are, where null fits every type; None when they differ."""
    if known == new or pa.types.is_null(new) or (is_converted and _holds(known, new)):
        return known
    if pa.types.is_null(known):
        return new
    if not _is_same_form(known, new):
        return None
    pairs = zip(parts_of(known), parts_of(new), strict=True)
    kinds: list[Any] = [_unified(ours, theirs, is_converted=is_converted) for ours, theirs in pairs]
    if None in kinds:
        return None
    if pa.types.is_list(known):
        return pa.list_(kinds[0])
    if pa.types.is_map(known):
        return pa.map_(*kinds)
    return pa.struct([field.with_type(kind) for field, kind in zip(known, kinds, strict=True)])


def parts_of(kind: Any) -> list[pa.DataType]:
    """The types of what a value of the type holds; none of a plain type."""
    if not pa.types.is_nested(kind):
        return []
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def _is_same_form(known: pa.DataType, new: pa.DataType) -> bool:
    """Whether both are lists, both maps, or both structs of the same fields."""
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return [part.name for part in known] == [part.name for part in new]
    return any(is_form(known) and is_form(new) for is_form in (pa.types.is_list, pa.types.is_map))


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether every value of the one plain type is a value of the other."""
    types = pa.types
    if types.is_integer(wide) and types.is_integer(narrow):
        if types.is_signed_integer(wide) is types.is_signed_integer(narrow):
            return bool(wide.bit_width > narrow.bit_width)
        return types.is_signed_integer(wide) and wide.bit_width > narrow.bit_width
    if types.is_decimal(wide) and types.is_decimal(narrow):
        return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
    return bool(types.is_float64(wide) and types.is_float32(narrow))


def _check_typed(kind: pa.DataType, path: str, what: str, depth: int = 0) -> None:
    """Refuse a nested part without a type: Spark would take it for integers, and fail on what comes later."""
    if pa.types.is_null(kind) and depth:
        found = f"column {path!r} has no type yet: its values are all null"
        raise InvalidRequestError(what, found, "Give the data a schema", column=path, type=str(kind))
    for index in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        part = kind.field(index)
        _check_typed(part.type, f"{path}.{part.name}", what, depth + 1)


# -- partition values ---------------------------------------------------------------------------------


def check_partition_columns(columns: Sequence[str], schema: pa.Schema, what: str = "write rows") -> None:
    """Refuse partition columns that a table of this (stored) schema cannot have."""
    for column in columns:
        if problem := _partition_problem(column, columns, schema):
            found, known = f"{column!r} cannot be a partition column: {problem}", column in schema.names
            context = {"column": column} | ({"type": str(schema.field(column).type)} if known else {})
            otherwise = "Give another partition_by: an empty table takes it"
            advice = did_you_mean(column, [] if known else schema.names, otherwise, or_else=True)
            raise InvalidRequestError(what, found, advice, **context)
    if columns and len(columns) == len(schema):
        found = "every column is a partition column, so the files would hold none"
        raise InvalidRequestError(what, found, "Leave one column out")


def _partition_problem(column: str, columns: Sequence[str], schema: pa.Schema) -> str | None:
    if column not in schema.names:
        return "the data has no such column"
    if column.startswith(("_", ".")):
        return "readers hide directories whose names begin with '_' or '.'"
    if columns.count(column) > 1:
        return "it is named twice"
    kind = schema.field(column).type
    has_none = pa.types.is_nested(kind) or pa.types.is_binary(kind) or kind in _OF_ARROW or pa.types.is_decimal256(kind)
    if has_none or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return f"a value of type {kind} has no text form"
    return None


def partition_text(values: pa.Array[Any], column: str, what: str = "write rows") -> list[str | None]:
    """The values as Spark writes them into paths (timestamps of a zone: in UTC); None for null."""
    texts: list[str | None] = _spelled(values)
    for text in texts:
        if text is not None and (problem := _text_problem(text, column, values.type)):
            found = f"a value of partition column {column!r} {problem}"
            advice = "Change the value, or partition by another column"
            context = {"column": column, "value": text[:NAME_BYTES_MAX], "type": str(values.type)}
            raise InvalidRequestError(what, found, advice, **context)
    return texts


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
    if not text:
        return "is empty, which every reader takes for null"
    if "\x00" in text:
        return "holds a NUL character"
    if text == NULL_PARTITION:
        return f"is {NULL_PARTITION!r}, which stands for null in paths"
    if pa.types.is_temporal(kind) and not _CIVIL.fullmatch(text):
        return f"lies outside the years 0001 to 9999: {text}"
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
        advice = "Remove the file with the program that wrote it, or write the table again with mode='overwrite'"
        raise CorruptError(f"read partition values as {kind}", str(error), advice) from error
