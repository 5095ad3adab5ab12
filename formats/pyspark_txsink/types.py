"""Spark's types and the table's columns.

Promises: a type that a table cannot hold is refused by name; what comes back from a table's columns is what Spark
would infer from its files.
Relies on: pyspark's own conversion to Arrow; `txsink.schema` for what is storable.
Does not promise: to keep Spark's own column metadata.
"""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from txsink import schema
from txsink.entry import Column
from txsink.errors import InvalidRequestError

# Spark 4.1 takes no time zone, and means UTC.
_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def columns_of(given: StructType, partition_columns: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of a DataFrame, as a table has them."""
    stored = schema.storable(_arrow(given))
    schema.check_partition_columns(partition_columns, stored)
    return schema.columns_of(stored)


def _arrow(given: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(given, **_UTC)
    except PySparkTypeError as error:
        for field in given.fields if len(given) > 1 else ():
            _arrow(StructType([field]))  # raises for the one it is
        raise InvalidRequestError(
            "write rows",
            f"column {given[0].name!r} has type {given[0].dataType.simpleString()}, which Arrow and Parquet lack",
            "Cast it, or leave it out",
            column=given[0].name,
        ) from error


def struct_of(columns: tuple[Column, ...]) -> StructType:
    """The columns of a table, as Spark has them."""
    found: StructType = from_arrow_schema(schema.schema_of(columns), prefer_timestamp_ntz=True)
    return found
