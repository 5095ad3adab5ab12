"""What a write asks of Spark's session: settings for its length, and rows brought together into files of a size.

Promises: a setting is what it was once the last write that needs it has ended; rows and partitions stay what they are.
Relies on: adaptive execution, which knows how many bytes a shuffle made, and cuts them anew.
Does not promise: sizes to the byte, or sizes of its own to each of two writes that one session runs at once: the first
decides. The settings also hold for what else the write's own plan shuffles.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pyspark_txsink.types import quoted

# What a session may say of the bytes and names of files. Timestamps as every reader knows them: what Spark writes by
# default (INT96) wraps around outside 1677 to 2262; days of the calendar that every reader has; decimals and lists as
# every reader finds them; the committers whose left-overs are known.
BYTES = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
}
_SHUFFLED_BYTES = 1.75  # of a row, for each byte it takes in Parquet: 1.7 to 2.1 were measured, lz4 against zstd
# So many pieces to make files of. One task sorts more than 200 into one file, and gives fewer a file each.
_PIECES = 256
_lock = threading.Lock()
_held: dict[tuple[str, str], tuple[int, str | None]] = {}


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for the length of a block, which others may share."""
    # No public name tells sessions apart but in Spark Connect.
    session = spark.session_id if is_connect(spark) else spark._jsparkSession.sessionUUID()  # noqa: SLF001
    with _lock:
        for name, value in wanted.items():
            count, before = _held.get((session, name), (0, None))
            if not count:
                before = spark.conf.get(name, None)
                spark.conf.set(name, value)
            _held[session, name] = (count + 1, before)
    try:
        yield
    finally:
        with _lock:
            for name in wanted:
                count, before = _held.pop((session, name))
                if count > 1:
                    _held[session, name] = (count - 1, before)
                elif before is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, before)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: no JVM to ask, and files lie where the server is."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def sizes(target_file_bytes: int | None) -> dict[str, str]:
    """The settings under which what `gathered` returns makes files of about that size."""
    if target_file_bytes is None:
        return {}
    return {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{int(target_file_bytes * _SHUFFLED_BYTES)}b",
    }


def gathered(df: DataFrame, partition_columns: Sequence[str], target_file_bytes: int | None) -> DataFrame:
    """The same rows in as many tasks as there are to be files, those of a partition together.

    Asked for under the settings of `sizes`: else Spark drops the hint at once.
    """
    if target_file_bytes is None:
        return df
    # By name, which may hold a dot: the hint takes no column that is resolved already.
    return df.hint("rebalance", _PIECES, *(col(quoted(name)) for name in partition_columns))
