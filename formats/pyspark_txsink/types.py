"""Spark's types and the table's columns.

Promises: a type that a table cannot give back is refused by name, before a task runs, by both doors alike; what comes
back from a table's columns is what Spark's own reader makes of its files; a column that Spark cannot read is named.
Relies on: pyspark's own conversion to Arrow; `txsink.schema` for what is storable.
Does not promise: to keep Spark's own column metadata, or that a nested part is never null.

    Spark                                          table
    boolean, the numbers, date, binary             the same
    string                                         string; one of a collation, char and varchar are refused
    timestamp, timestamp_ntz                       timestamp[us, UTC], timestamp[us]
    array, map, struct                             the same; a part without a type is refused
    void                                           a column without a type yet, which stands in no file
    variant, geometry, geography, intervals, time, user-defined types    refused
"""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sql, types as kinds
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from txsink import schema
from txsink.errors import InvalidRequestError
from txsink.records import Column

# Spark 4.1 takes no time zone, and means UTC.
_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
_KEPT = frozenset({
    kinds.BooleanType, kinds.ByteType, kinds.ShortType, kinds.IntegerType, kinds.LongType, kinds.FloatType,
    kinds.DoubleType, kinds.DecimalType, kinds.BinaryType, kinds.DateType, kinds.TimestampType, kinds.TimestampNTZType,
})  # fmt: skip
PLAIN_TEXT = StringType()
_INSTEAD = {
    "variant": "Write to_json of it",
    "geometry": "Write st_asbinary of it",
    "geography": "Write st_asbinary of it",
    "void": "Cast it to the type it will have",
}
# What Spark's Parquet reader makes of types it has not.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def columns_of(given: StructType, partition_columns: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of a DataFrame, as a table has them."""
    for field in given.fields:
        if not isinstance(field.dataType, NullType):
            _require_kept(field.dataType, field.name)
    stored = schema.storable(to_arrow_schema(given, **_UTC))
    schema.check_partition_columns(partition_columns, stored)
    if not any(not isinstance(field.dataType, NullType) for field in given.fields):
        raise InvalidRequestError(
            "write rows", "no column has a type, so the files would hold none", "Cast one to the type it will have"
        )
    return schema.columns_of(stored)


def _require_kept(kind: DataType, path: str) -> None:
    if isinstance(kind, ArrayType):
        _require_kept(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        _require_kept(kind.keyType, f"{path}.key")
        _require_kept(kind.valueType, f"{path}.value")
    elif isinstance(kind, StructType) and kind.fields:
        for field in kind.fields:
            _require_kept(field.dataType, f"{path}.{field.name}")
    elif type(kind) not in _KEPT and kind != PLAIN_TEXT:
        advice = _INSTEAD.get(kind.typeName(), "Cast it, or drop it")
        if isinstance(kind, StringType):
            advice = "Cast it to string collate utf8_binary"
        raise InvalidRequestError(
            "write rows",
            f"column {path!r} has type {kind.simpleString()}, which no table gives back as it was",
            advice,
            column=path,
            type=kind.simpleString(),
        )


def fitted(known: tuple[Column, ...], given: tuple[Column, ...], *, merge_schema: bool) -> tuple[Column, ...]:
    """The given columns as a table that knows some has them; refused is what it does not take."""
    merged = schema.merge(known, given, merge_schema=merge_schema, is_converted=True)
    arrow_of(merged, "write rows")
    by_name = {column.name: column for column in merged}
    return tuple(by_name[column.name] for column in given)


def converted(df: DataFrame, columns: tuple[Column, ...], partition_columns: tuple[str, ...]) -> DataFrame:
    """The columns that stand in files and in the names of their directories, in the types of the table."""
    wanted = {field.name: field.dataType for field in struct_of(columns).fields}
    chosen = []
    for field in df.schema.fields:
        kind = wanted[field.name]
        if not isinstance(field.dataType, NullType):
            is_same = _nullable(field.dataType) == _nullable(kind)
            column = sql.col(quoted(field.name))
            chosen.append(column if is_same else column.cast(kind).alias(field.name))
        elif field.name in partition_columns:
            chosen.append(sql.lit(None).cast(PLAIN_TEXT if isinstance(kind, NullType) else kind).alias(field.name))
    return df.select(*chosen)


def _nullable(kind: DataType) -> pa.DataType:
    """The type without what it says of nulls."""
    return schema.storable(to_arrow_schema(StructType([StructField("_", kind)]), **_UTC)).field(0).type


def quoted(name: str) -> str:
    """A column's name, which may hold a dot, for Spark's parser."""
    return f"`{name.replace('`', '``')}`"


def struct_of(columns: tuple[Column, ...], what: str = "read the table") -> StructType:
    """The columns of a table, as Spark has them; a column that Spark cannot read is refused by name."""
    found: StructType = from_arrow_schema(arrow_of(columns, what), prefer_timestamp_ntz=True)
    return found


def arrow_of(columns: tuple[Column, ...], what: str = "read the table") -> pa.Schema:
    """The same in Arrow's types, each of which Spark has."""
    found = []
    for field in schema.schema_of(columns):
        try:
            is_known = schema.storable(pa.schema([field])).field(0).type == field.type
        except InvalidRequestError:
            is_known = False
        if not is_known:
            raise InvalidRequestError(
                what,
                f"column {field.name!r} is of type {field.type}, which Spark cannot read",
                "Read the table with txsink.open_table, or keep a column of a type that Spark has",
                column=field.name,
                type=str(field.type),
            )
        found.append(pa.field(field.name, _widened(field.type)))
    return pa.schema(found)


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_widened(kind.key_type), _widened(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _widened(part.type)) for part in kind])
    return _WIDER.get(kind, kind)
