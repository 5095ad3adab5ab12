"""What is tried through Spark Connect, against a server of this process: each function is a promise.

python spark_connect_driver.py DIRECTORY      prints a JSON object: what became of each promise ("" is success)
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_txsink
import txsink
from pyspark_txsink.listener import Listener, Report
from seen import rows_of
from spark_killed import CONF

Promise = Callable[[SparkSession, Path], None]
PROMISES: list[Promise] = []


def promise(function: Promise) -> Promise:
    PROMISES.append(function)
    return function


@promise
def the_format_writes_a_job_once_and_reads_it(spark: SparkSession, directory: Path) -> None:
    table = directory / "plain"
    for epoch in (0, 1, 1):
        rows = spark.range(10 * epoch, 10 * epoch + 10, 1, 4)
        rows.write.format("txsink").mode("append").options(txnAppId="w", txnVersion=str(epoch)).save(str(table))
    assert rows_of(table) == list(range(20))
    assert sorted(row.id for row in spark.read.format("txsink").load(str(table)).collect()) == list(range(20))


@promise
def the_fast_path_writes_a_job_once_and_reads_it(spark: SparkSession, directory: Path) -> None:
    """The server's rows are counted: its disk need not be this process's."""
    table = directory / "fast"
    for epoch in (0, 1, 1):
        rows = spark.range(10 * epoch, 10 * epoch + 10, 1, 4)
        pyspark_txsink.write(rows, str(table), writer="w", epoch=epoch)
    assert rows_of(table) == list(range(20))
    assert sorted(row.id for row in pyspark_txsink.read(spark, str(table)).collect()) == list(range(20))


@promise
def rows_on_the_disk_of_a_server_elsewhere_are_missed(spark: SparkSession, directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyspark_txsink.fast, "uri_of", lambda uri, path: f"file://{directory}/another-disk{path}")
        with pytest.raises(txsink.InvalidRequestError, match="100 rows, and 0 of them are found here"):
            pyspark_txsink.write(spark.range(100), str(directory / "missed"), writer="w", epoch=0)


@promise
def a_stream_through_the_format_is_written_once_and_told_of(spark: SparkSession, directory: Path) -> None:
    spark.range(0, 20, 1, 2).write.parquet(str(directory / "source"))
    table = directory / "stream"
    reports: list[Report] = []
    spark.streams.addListener(Listener(str(table), reports.append))
    for life in range(2):
        source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(directory / "source"))
        writer = source.writeStream.format("txsink").option("checkpointLocation", str(directory / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(table))
        query.awaitTermination()
        if not life:
            (directory / "checkpoint" / "commits" / "1").unlink()
            (directory / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert rows_of(table) == list(range(20))
    assert [one.last_epoch for one in txsink.open_table(str(table)).writers().values()] == [1]
    for _ in range(600):
        if len(reports) == 3:
            break
        query.awaitTermination(1)
    assert sorted(one.epoch for one in reports) == [0, 1, 1], reports


@promise
def each_batch_is_refused_with_what_to_use_instead(spark: SparkSession, directory: Path) -> None:
    source = spark.readStream.schema("id long").parquet(str(directory / "source"))
    writer = source.writeStream.foreachBatch(pyspark_txsink.each_batch(str(directory / "each")))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint-each")).trigger(availableNow=True)
    with pytest.raises(Exception, match="Write the stream with format"):
        writer.start().awaitTermination()
    assert not (directory / "each").exists()


def main() -> None:
    directory = Path(sys.argv[1])
    builder = SparkSession.builder.remote("local[2]")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    told = {}
    for one in PROMISES:
        try:
            one(spark, directory)
            told[one.__name__] = ""
        except Exception:  # noqa: BLE001 -- told, and not raised: the others are tried as well
            told[one.__name__] = traceback.format_exc()
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
