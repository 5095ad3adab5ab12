"""Reading a table with Spark's own Parquet reader: exactly the committed files of one version.

Promises: no file that no commit names is read, and none is read twice, whatever lies in the directory.
Relies on: `Table.files`; Spark's reader, which prunes partitions and pushes filters down as ever.
Does not promise: to follow the table. A DataFrame is of one version.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_txsink import types
from pyspark_txsink.fast import _uri
from txsink.snapshot import columns_at
from txsink.table import open_table


def read(spark: SparkSession, path: str, version: int | None = None, **options: Any) -> DataFrame:
    """See `pyspark_txsink.read`."""
    table = open_table(path, storage_options=options.pop("storage_options", None))
    at = table.version if version is None else version
    files = table.files(version)
    columns = types.struct_of(columns_at(table.log, at))
    if not files:
        return spark.createDataFrame([], columns)
    if version is not None and not {file.path for file in files} <= {file.path for file in table.files()}:
        # Replaced since, and kept where Spark's reader does not look.
        return spark.read.format("txsink").option("versionAsOf", at).load(path)
    paths = [_uri(path, f"{table.path}/{file.path}") for file in files]
    reader = spark.read.schema(columns).option("basePath", _uri(path, table.path))
    return reader.parquet(*paths)
