"""Spark's types and the table's columns.

Promises: a type that a table cannot hold is refused by name; what comes back from a table's columns is what Spark
would infer from its files.
Relies on: pyspark's own conversion to Arrow; `txsink.schema` for what is storable.
Does not promise: to keep Spark's own column metadata.
"""

from __future__ import annotations

import inspect

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from txsink import schema
from txsink.entry import Column

# Spark 4.1 takes no time zone, and means UTC.
_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def columns_of(given: StructType, partition_columns: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of a DataFrame, as a table has them."""
    stored = schema.storable(to_arrow_schema(given, **_UTC))
    schema.check_partition_columns(partition_columns, stored)
    return schema.columns_of(stored)


def struct_of(columns: tuple[Column, ...]) -> StructType:
    """The columns of a table, as Spark has them."""
    found: StructType = from_arrow_schema(schema.schema_of(columns), prefer_timestamp_ntz=True)
    return found
