"""The rows of a table's files as other programs find them, given the directory: DuckDB, Polars and Spark.

Promises: no schema is handed to them: types are those that they find in the files; what some files lack is null there.
DuckDB and Polars find partition columns in the paths, in the types that they are told (`hive`), else as text.
Does not promise: the partition columns of Spark, nor what readers of a directory guess when they are told nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

NO_COLUMNS = pa.schema([])


def files_in(path: Path) -> list[str]:
    """The data files, none of them below a directory that readers hide."""
    found = [file for file in path.rglob("*.parquet") if not file.relative_to(path).parts[0].startswith("_")]
    return sorted(map(str, found))


@cache
def _duckdb() -> Any:
    connection = duckdb.connect()
    with suppress(duckdb.Error):  # without its extension icu it knows UTC alone
        connection.execute("SET TimeZone = 'UTC'")
    return connection


def by_duckdb(path: Path, names: Sequence[str], hive: pa.Schema = NO_COLUMNS) -> pa.Table:
    chosen = ", ".join(f'"{name}"' for name in [*names, *hive.names])
    told = ", ".join(f"'{field.name}': {_duckdb_type(field.type)}" for field in hive)
    how = f"hive_partitioning = true, hive_types = {{{told}}}" if told else "hive_partitioning = false"
    query = f"SELECT {chosen} FROM read_parquet($files, union_by_name = true, {how})"
    found: pa.Table = _duckdb().sql(query, params={"files": files_in(path)}).to_arrow_table()
    return found


def _duckdb_type(kind: Any) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    if types.is_decimal(kind):
        return f"'DECIMAL({kind.precision}, {kind.scale})'"
    if types.is_integer(kind):
        return str(kind).upper()
    return {"bool": "BOOLEAN", "date32[day]": "DATE", "float": "REAL", "double": "DOUBLE"}.get(str(kind), "VARCHAR")


def by_polars(path: Path, names: Sequence[str], hive: pa.Schema = NO_COLUMNS) -> pa.Table:
    told: Any = pl.from_arrow(hive.empty_table()).schema if len(hive) else None
    frames = []
    for file in files_in(path):
        held = [name for name in pq.read_schema(file).names if name in names]
        frame = pl.scan_parquet(file, hive_partitioning=told is not None, hive_schema=told)
        frames.append(frame.select(*held, *hive.names).collect())
    return pl.concat(frames, how="diagonal").select(*names, *hive.names).to_arrow()


def spark_frame(spark: Any, path: Path, names: Sequence[str]) -> Any:
    """A DataFrame over the table's files."""
    files = files_in(path)
    merges = "true" if len(files) > 1 else "false"
    return spark.read.option("mergeSchema", merges).parquet(*files).select(*(f"`{name}`" for name in names))


def plain(kind: Any) -> pa.DataType:
    """The type without what only tells how Arrow lays it out."""
    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    return pa.timestamp(kind.unit, "UTC") if types.is_timestamp(kind) and kind.tz is not None else kind
