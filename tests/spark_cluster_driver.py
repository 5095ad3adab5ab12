"""What is tried on a cluster, by a driver of its own: each function is a promise, and ends without an error.

python spark_cluster_driver.py MASTER DIRECTORY      prints a JSON object: what became of each promise ("" is success)
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
import pyspark_txsink.fast
import txsink
from pyspark_txsink import arrow
from spark_killed import CONF

# What waits for another attempt of a task: for long, since a busy machine is slow to start one.
WAIT_SECONDS = 300
Promise = Callable[[SparkSession, Path], None]
PROMISES: list[Promise] = []


def promise(function: Promise) -> Promise:
    PROMISES.append(function)
    return function


def seen(spark: SparkSession, table: Path) -> list[int]:
    """The ids: the same for five readers."""
    pattern = f"{table}/**/*.parquet"
    views = [
        sorted(row.id for row in spark.read.option("recursiveFileLookup", "true").parquet(str(table)).collect()),
        sorted(row.id for row in pyspark_txsink.read(spark, str(table)).collect()),
        sorted(row.id for row in spark.read.format("txsink").load(str(table)).collect()),
        sorted(txsink.open_table(str(table)).to_arrow(columns=["id"])["id"].to_pylist()),
        [row[0] for row in duckdb.sql("select id from read_parquet(?) order by id", params=[pattern]).fetchall()],
    ]
    assert all(view == views[0] for view in views), views
    return views[0]


def fast(df: DataFrame, table: str, epoch: int) -> None:
    pyspark_txsink.write(df, table, writer="w", epoch=epoch)


def plain(df: DataFrame, table: str, epoch: int) -> None:
    df.write.format("txsink").mode("append").options(txnAppId="w", txnVersion=str(epoch)).save(table)


DOORS = {"fast": fast, "plain": plain}


@promise
def a_job_is_written_once_and_read_by_all(spark: SparkSession, directory: Path) -> None:
    """S33."""
    for name, write in DOORS.items():
        for epoch in (0, 1, 1):
            write(spark.range(10 * epoch, 10 * epoch + 10, 1, 4), str(directory / name), epoch)
        assert seen(spark, directory / name) == list(range(20))


@promise
def a_stream_is_written_once_through_both_doors(spark: SparkSession, directory: Path) -> None:
    spark.range(0, 50, 1, 5).write.parquet(str(directory / "source"))
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(directory / "source"))
    for name in DOORS:
        table = directory / f"{name}-stream"
        for life in range(2):
            writer = source.writeStream.option("checkpointLocation", str(directory / f"{name}-checkpoint"))
            if name == "fast":
                writer = writer.foreachBatch(pyspark_txsink.each_batch(str(table)))
            else:
                writer = writer.format("txsink").option("path", str(table))
            writer.trigger(availableNow=True).start().awaitTermination()
            if not life:  # as a crash between our commit and Spark's leaves it
                for mark in (directory / f"{name}-checkpoint" / "commits").glob("*2*"):
                    mark.unlink()
        assert seen(spark, table) == list(range(50))
        assert [one.last_epoch for one in txsink.open_table(str(table)).writers().values()] == [2]


@promise
def a_relative_path_is_resolved_on_the_driver_once(spark: SparkSession, directory: Path) -> None:
    """S9: executors run in directories of their own."""
    os.chdir(directory)  # where the JVM was started as well
    for name, write in DOORS.items():
        write(spark.range(3), f"relative/{name}", 0)
        assert seen(spark, directory / "relative" / name) == [0, 1, 2]
        assert sorted(row.id for row in spark.read.format("txsink").load(f"relative/{name}").collect()) == [0, 1, 2]
    each = pyspark_txsink.each_batch("relative/moved")
    (directory / "elsewhere").mkdir()
    os.chdir(directory / "elsewhere")
    source = spark.readStream.schema("id long").parquet(str(directory / "source"))
    writer = source.writeStream.option("checkpointLocation", str(directory / "checkpoint-moved")).foreachBatch(each)
    writer.trigger(availableNow=True).start().awaitTermination()
    os.chdir(directory)
    assert seen(spark, directory / "relative" / "moved") == list(range(50))


@promise
def a_task_that_fails_at_first_counts_once(spark: SparkSession, directory: Path) -> None:
    """S27: its first attempt has passed on rows."""

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    for name, write in DOORS.items():
        write(spark.range(0, 100, 1, 2).mapInArrow(once, "id long"), str(directory / f"{name}-retry"), 0)
        assert seen(spark, directory / f"{name}-retry") == list(range(100))


@promise
def of_two_attempts_of_one_task_one_counts(spark: SparkSession, directory: Path) -> None:
    """S27: Spark starts a second attempt of a slow task, and the slow one goes on when that has ended."""

    def slow(mark: str, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        yield from batches
        if context is None or context.partitionId() != 0:
            return
        if context.attemptNumber():
            Path(mark).touch()
            return
        for _ in range(WAIT_SECONDS * 10):
            if Path(mark).exists():
                return
            time.sleep(0.1)
        raise RuntimeError("no second attempt was started")

    for name, write in DOORS.items():
        mark = directory / f"{name}-mark"
        write(
            spark.range(0, 100, 1, 4).mapInArrow(partial(slow, str(mark)), "id long"),
            str(directory / f"{name}-speculative"),
            0,
        )
        assert mark.exists()
        assert seen(spark, directory / f"{name}-speculative") == list(range(100))


def by_arrow(df: DataFrame, table: Path) -> None:
    """How the fast path stages where Spark's own writer cannot."""
    with txsink.open_writer(str(table), "arrow") as sink, sink.begin(0) as txn:
        arrow.stage(df, txn.stager())


@promise
def an_executor_without_txsink_says_so(spark: SparkSession, directory: Path) -> None:
    table = directory / "hidden"
    plain(spark.range(3), str(table), 0)
    hidden = Path(os.environ["TXSINK_HIDDEN"])
    hidden.touch()
    try:
        fast(spark.range(3, 5), str(table), 1)  # needs nothing there
        for act in (
            lambda: plain(spark.range(9), str(table), 2),
            lambda: spark.read.format("txsink").load(str(table)).collect(),
            lambda: by_arrow(spark.range(9), table),
        ):
            with pytest.raises(
                Exception, match=r"use txsink on an executor: the Python of this worker.*has no module '"
            ):
                act()
    finally:
        hidden.unlink()
    assert seen(spark, table) == sorted([*range(3), 3, 4])


@promise
def rows_on_a_disk_that_the_driver_does_not_see_are_missed(spark: SparkSession, directory: Path) -> None:
    """Executors on other machines would stage there, under the same path."""
    table = directory / "other-disk"
    fast(spark.range(3), str(table), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyspark_txsink.fast, "uri_of", lambda uri, path: f"file://{directory}/another-disk{path}")
        with pytest.raises(txsink.InvalidRequestError, match="100 rows, and 0 of them are found here"):
            fast(spark.range(0, 100, 1, 2), str(table), 1)
    assert seen(spark, table) == [0, 1, 2]


def main() -> None:
    master, directory = sys.argv[1], Path(sys.argv[2])
    builder = SparkSession.builder.master(master)
    own = {
        "spark.task.maxFailures": "4",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        # A worker that has txsink loaded would not miss it.
        "spark.python.worker.reuse": "false",
    }
    for name, value in {**CONF, **own}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
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
