"""txsink in Spark: the format `txsink`, and the fast path, where Spark's own Parquet writer stages.

    df.writeStream.foreachBatch(pyspark_txsink.each_batch(path)).start()       the fast path of a stream
    pyspark_txsink.write(df, path, writer="nightly", epoch=7)                  the fast path of a batch job
    pyspark_txsink.read(spark, path, version=None)                             exactly the committed files
    pyspark_txsink.register(spark)                                             the format, where Spark does not find it

Promises: importing this module cannot fail where pyspark is, because Spark drops every Python data source when the
import of one fails. All else is imported when it is called.
Relies on: Spark finding `DefaultSource` in packages named `pyspark_*`.
Does not promise: anything with a Spark older than 4.1.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from txsink.choices import Compression, Layout, Mode, OnNewCheckpoint, PartitionOverwrite
    from txsink.protocol.outcome import Result
    from txsink.store.opening import AnyPath

__all__ = ["DefaultSource", "each_batch", "read", "register", "write"]


_Call = TypeVar("_Call", bound="Callable[..., Any]")


def _public(call: _Call) -> _Call:
    """`txsink.options.public`, of which nothing is imported before the first call."""

    @wraps(call)
    def checked(*args: Any, **given: Any) -> Any:
        from txsink.options import require_known  # noqa: PLC0415 -- nothing may fail when Spark imports this module

        require_known(call, given)
        return call(*args, **given)

    return cast("_Call", checked)


@_public
def each_batch(
    path: str,
    *,
    mode: Mode = "append",
    partition_overwrite: PartitionOverwrite = "static",
    metadata: Mapping[str, Any] | None = None,
    partition_by: str | Iterable[str] | None = None,
    layout: Layout | None = None,
    merge_schema: bool = False,
    staging_path: AnyPath | None = None,
    storage_options: Mapping[str, object] | None = None,
    compression: Compression = "zstd",
    target_file_bytes: int | None = None,
    max_records_per_file: int | None = None,
    txn_app_id: str | None = None,
    on_new_checkpoint: OnNewCheckpoint = "fail",
) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls: each micro-batch becomes one epoch of the writer named after the query.

    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `mode`: `append`, or `overwrite` what was committed when the epoch is prepared.
    - `partition_overwrite`: `static`: an overwrite replaces all; `dynamic`: only the partitions that it writes to.
    - `metadata`: plain JSON that is kept with the epoch, such as the offsets of a source.
    - `partition_by`: the columns that are kept in the paths of files; set when the table is made.
    - `layout`: of a new table: `parquet` or `delta`; `delta` by default on S3 and where a Delta table is.
    - `merge_schema`: accept columns that the table does not have yet; they are added to it.
    - `staging_path`: another place for the staged files of a new table, on the table's file system.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    - `compression`: `zstd`, `snappy`, `gzip`, `lz4` or `none`.
    - `target_file_bytes`: how large a file should become, by a shuffle; by default Spark's partitions are the files.
    - `max_records_per_file`: rows of a file, at most.
    - `txn_app_id`: a writer's name of your own; by default the id of the query.
    - `on_new_checkpoint`: what to do when the query began anew: `fail`, or `resume` after the last epoch.
    """
    given = locals()
    from pyspark_txsink import fast  # noqa: PLC0415

    return fast.each_batch(**given)


@_public
def write(
    df: DataFrame,
    path: str,
    *,
    writer: str,
    epoch: int,
    mode: Mode = "append",
    partition_overwrite: PartitionOverwrite = "static",
    metadata: Mapping[str, Any] | None = None,
    partition_by: str | Iterable[str] | None = None,
    layout: Layout | None = None,
    merge_schema: bool = False,
    staging_path: AnyPath | None = None,
    storage_options: Mapping[str, object] | None = None,
    compression: Compression = "zstd",
    target_file_bytes: int | None = None,
    max_records_per_file: int | None = None,
) -> Result:
    """Write a DataFrame as one epoch. Calling it again with the same writer and epoch writes nothing.

    - `df`: the rows.
    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `writer`: the name of who writes; a newer run of it fences this one.
    - `epoch`: the number of what is written; the writer's epochs grow, and each is committed once.
    - `mode`: `append`, or `overwrite` what was committed when the epoch is prepared.
    - `partition_overwrite`: `static`: an overwrite replaces all; `dynamic`: only the partitions that it writes to.
    - `metadata`: plain JSON that is kept with the epoch, such as the offsets of a source.
    - `partition_by`: the columns that are kept in the paths of files; set when the table is made.
    - `layout`: of a new table: `parquet` or `delta`; `delta` by default on S3 and where a Delta table is.
    - `merge_schema`: accept columns that the table does not have yet; they are added to it.
    - `staging_path`: another place for the staged files of a new table, on the table's file system.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    - `compression`: `zstd`, `snappy`, `gzip`, `lz4` or `none`.
    - `target_file_bytes`: how large a file should become, by a shuffle; by default Spark's partitions are the files.
    - `max_records_per_file`: rows of a file, at most.
    """
    given = locals()
    from pyspark_txsink import fast  # noqa: PLC0415

    return fast.write(**given)


@_public
def read(
    spark: SparkSession,
    path: str,
    version: int | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
) -> DataFrame:
    """The committed files at a version, read by Spark's own reader.

    - `spark`: the session that reads.
    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `version`: a version of the table; by default the newest.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    """
    from pyspark_txsink import table  # noqa: PLC0415

    return table.read(spark, path, version, storage_options)


def register(spark: SparkSession) -> None:
    """Make the format known to a session whose Spark looks for it with another Python than the one that runs this.

    Its Python workers then run this interpreter, unless PYSPARK_PYTHON names one. To be called before the first of them
    starts.
    """
    context = None if type(spark).__module__.startswith("pyspark.sql.connect") else spark.sparkContext
    if context is not None and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable
    spark.dataSource.register(DefaultSource)


class DefaultSource(DataSource):
    """The format `txsink`, as Spark looks for it."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "txsink"

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark_txsink import parcel  # noqa: PLC0415

        return parcel.sent(parcel.restored, type(self), dict(self.__dict__))

    def schema(self) -> StructType:
        """The columns of the table at the version that is read."""
        from pyspark_txsink import reader  # noqa: PLC0415

        return reader.schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the committed files."""
        from pyspark_txsink import reader  # noqa: PLC0415

        return reader.reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Refused, in words of ours."""
        from txsink.errors import InvalidRequestError  # noqa: PLC0415

        found = "the format does not read streams, it reads one version of a table"
        advice = "Use spark.read.format('txsink'), or pyspark_txsink.read, again for each newer version"
        raise InvalidRequestError("read a stream", found, advice)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 -- Spark's signature
        """Writes a batch job as one epoch."""
        from pyspark_txsink import writers  # noqa: PLC0415

        return writers.BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Writes each micro-batch as one epoch."""
        from pyspark_txsink import writers  # noqa: PLC0415

        return writers.StreamWriter(self.options, schema, overwrite=overwrite)
