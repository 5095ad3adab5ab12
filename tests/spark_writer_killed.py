"""A Spark driver whose own Parquet writer is killed: in the middle of a file, or when a task has committed unreported.

python spark_writer_killed.py MASTER DIRECTORY EPOCHS POINT

Writes epochs of ROWS rows, in two tasks each, into DIRECTORY/table through the fast path. The kill comes once:

    executor/writing      the executor, while a file that its Parquet writer has begun is not ended
    driver/writing        the driver with its JVM, in the same moment
    executor/committed    the executor, as soon as its task's files lie where the job's commit will find them. Nobody
                          can hold the report up: so every epoch tries, until a task is run again that had committed
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

import pyspark_txsink
import spark_kill_points
from spark_killed import CONF

ROWS = 400_000


def lethal(directory: str, epoch: int, point: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Passes its rows on, and kills when the time has come."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        whom, _, when = point.partition("/")
        is_first = context.partitionId() == 0 and context.attemptNumber() == 0
        if context.partitionId() == 0 and not is_first and when == "committed":
            # That this task runs again says that nobody heard of its commit.
            (Path(os.environ["TXSINK_KILLS"]) / f"again-{epoch}").touch()
        if is_first and when == "committed":
            kill_when_committed(directory, epoch)
        for number, batch in enumerate(batches):
            yield batch
            # By then more was passed on than any buffer between here and the writer holds.
            if is_first and when == "writing" and number == 12:
                wait_for_file(directory)
                kill = {"executor": spark_kill_points.kill_executor, "driver": spark_kill_points.kill_driver}[whom]
                kill(f"{whom}-writing")

    return pass_on


def wait_for_file(directory: str) -> None:
    """Until this task's file is there, begun and not ended."""
    while not any(attempt.glob("*_m_000000_*/*.parquet") for attempt in attempts(directory)):
        os.sched_yield()


def attempts(directory: str) -> list[Path]:
    """Where Spark's committer has the attempts of the job's tasks."""
    return list(Path(directory).glob(".table.txsink/*/*/*/guest-*/_temporary/0/_temporary"))


def kill_when_committed(directory: str, epoch: int) -> None:
    """Another process watches for the task's directory, and kills the executor when it is there."""
    executor = spark_kill_points.executor_of(os.getpid())
    (attempt,) = attempts(directory)
    if os.fork():
        return
    os.setsid()  # it outlives the worker, which falls with the executor
    if os.geteuid() == 0:
        os.nice(-10)
    while attempt.parent.exists():
        if any("_m_000000" in name for name in os.listdir(attempt.parent) if name.startswith("task_")):  # noqa: PTH208
            os.kill(executor, signal.SIGKILL)
            (Path(os.environ["TXSINK_KILLS"]) / f"killed-{epoch}").touch()
            break
    os._exit(0)


def main() -> None:
    master, directory, epochs, point = sys.argv[1:]
    builder = SparkSession.builder.master(master)
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    kills, done = Path(os.environ["TXSINK_KILLS"]), 0
    for epoch in range(int(epochs)):
        rows = spark.range(epoch * ROWS, (epoch + 1) * ROWS, 1, 2)
        if point and not list(kills.glob("again-*")):
            rows = rows.mapInArrow(lethal(directory, epoch, point), "id long")
        pyspark_txsink.write(rows, f"{directory}/table", writer="w", epoch=epoch)
        done += 1
        if list(kills.glob("again-*")):
            break
    read = pyspark_txsink.read(spark, f"{directory}/table").selectExpr(
        "count(*) n", "count(distinct id) d", "max(id) m"
    )
    print(json.dumps([done, *read.first()]))
    spark.stop()


if __name__ == "__main__":
    os.environ["TXSINK_DRIVER"] = str(os.getpid())
    main()
