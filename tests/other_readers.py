"""The rows of a table's files as other programs find them, given the directory: DuckDB, Polars and Spark.

Promises: no schema is handed to them: types are those that they find in the files; what some files lack is null there.
Does not promise: the values of partition columns, of which readers of a directory guess the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa


def files_in(path: Path) -> list[str]:
    """The data files, none of them below a directory that readers hide."""
    found = [file for file in path.rglob("*.parquet") if not file.relative_to(path).parts[0].startswith("_")]
    return sorted(map(str, found))


@cache
def _duckdb() -> Any:
    return duckdb.connect()


def by_duckdb(path: Path, names: Sequence[str]) -> pa.Table:
    chosen = ", ".join(f'"{name}"' for name in names)
    call = "read_parquet($files, union_by_name = true, hive_partitioning = false)"
    query = f"SELECT {chosen} FROM {call}"
    found: pa.Table = _duckdb().sql(query, params={"files": files_in(path)}).to_arrow_table()
    return found


def by_polars(path: Path, names: Sequence[str]) -> pa.Table:
    frames = [pl.read_parquet(file, hive_partitioning=False) for file in files_in(path)]
    return pl.concat(frames, how="diagonal").select(names).to_arrow()


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
