"""Reading a table as format `txsink`: the committed files of one version, one task each.

Promises: exactly the rows of committed epochs; files that a filter on partition columns excludes are not read.
Relies on: `Table`, which finds files that an overwrite is taking away just now.
Does not promise: Spark's own speed. `pyspark_txsink.read` has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
)
from pyspark.sql.types import StructType

from pyspark_txsink import options, parcel, types
from txsink.reading.table import Table, open_table
from txsink.staging.conform import conform


def schema_of(given: Mapping[str, str]) -> StructType:
    """The columns of the table at the version that is read."""
    found = options.parse(given)
    table = _open(found)
    return types.struct_of(table.columns(found.version))


def reader_of(given: Mapping[str, str], columns: StructType) -> Reader:
    """One that prunes, where Spark asks for that (spark.sql.python.filterPushdown.enabled), in a worker of its own."""
    is_asked = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return PruningReader(given, columns) if is_asked else Reader(given, columns)


class Reader(DataSourceReader):
    """Reads one version."""

    def __init__(self, given: Mapping[str, str], columns: StructType) -> None:
        self._given = options.parse(given)
        self._names = columns.fieldNames()
        self._filters: list[Filter] = []
        table = _open(self._given)
        self._version = table.version if self._given.version is None else self._given.version
        self._partition_columns = table.partition_columns

    def __reduce__(self) -> tuple[Any, ...]:
        return parcel.sent(parcel.restored, type(self), dict(self.__dict__))

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file."""
        files = _open(self._given).files(self._version)
        wanted = [file.path for file in files if all(_fits(one, file.partition) for one in self._filters)]
        return [InputPartition(path) for path in wanted] or [InputPartition("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one file."""
        if partition.value:
            table = _open(self._given)
            batches = table.to_reader(self._version, self._names, [partition.value])
            known = types.arrow_of(table.columns(self._version))
            columns = pa.schema([known.field(name) for name in self._names])
            for batch in batches:
                yield conform(batch, columns, "read rows")


class PruningReader(Reader):
    """Reads one version, without the files that a filter excludes. Spark refuses it unless its pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Keep what tells files apart; Spark applies every filter once more."""
        for one in filters:
            if _column(one) in self._partition_columns:
                self._filters.append(one)
            yield one


def _open(given: options.Given) -> Table:
    return open_table(given.path, storage_options=given.storage_options or None)


def _column(one: Filter) -> str | None:
    known = isinstance(one, EqualTo | EqualNullSafe | In | IsNull | IsNotNull)
    return one.attribute[0] if known and len(one.attribute) == 1 else None


def _fits(one: Filter, values: Mapping[str, Any]) -> bool:
    """Whether a file may hold rows that pass."""
    value = values[one.attribute[0]]
    match one:
        case EqualTo() | EqualNullSafe():
            return _is_same(value, one.value)
        case In():
            return any(_is_same(value, item) for item in one.value)
        case IsNull():
            return value is None
        case _:
            return value is not None


def _is_same(value: Any, other: Any) -> bool:
    """As Spark compares: NaN is NaN."""
    return bool(value == other or (value != value and other != other))  # noqa: PLR0124 -- what NaN is
