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
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from txsink.protocol.outcome import Result

__all__ = ["DefaultSource", "each_batch", "read", "register", "write"]


def each_batch(path: str, **options: Any) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls: each micro-batch becomes one epoch of the writer named after the query."""
    from pyspark_txsink import fast  # noqa: PLC0415 -- nothing may fail when Spark imports this module

    return fast.each_batch(path, **options)


def write(df: DataFrame, path: str, **options: Any) -> Result:
    """Write a DataFrame as one epoch. Calling it again with the same writer and epoch writes nothing."""
    from pyspark_txsink import fast  # noqa: PLC0415

    return fast.write(df, path, **options)


def read(spark: SparkSession, path: str, version: int | None = None, **options: Any) -> DataFrame:
    """The committed files at a version, read by Spark's own reader."""
    from pyspark_txsink import table  # noqa: PLC0415

    return table.read(spark, path, version, **options)


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
