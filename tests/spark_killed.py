"""A Spark driver that is killed, or whose executors are: a stream for each door, from one source into its own table.

python spark_killed.py MASTER DIRECTORY FILES DOOR=KILLS...

The source lies in DIRECTORY/source; FILES of it are a batch. DIRECTORY/each is written by `each_batch`, and
partitioned; DIRECTORY/format by the format. The first KILLS rows whose ids are multiples of TXSINK_STRIDE kill the
executor that computes them, once each. What `spark_kill_points` is told to do comes besides. Prints how many executors
died, and of each table what Spark sees: how many rows, how many different ids, the least and the greatest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

import pyspark_txsink
import spark_kill_points

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # An executor that is killed fails its tasks, and its shuffle files are lost.
    "spark.task.maxFailures": "100",
    "spark.stage.maxConsecutiveAttempts": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.ui.retainedDeadExecutors": "1000",
    "spark.scheduler.mode": "FAIR",
    # Short lives: what compiles well does not pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def lethal(door: str, kills: int, stride: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Passes its rows on in two halves, and dies between them."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            for one in batch["id"].to_pylist():
                if one % stride == 0 and one // stride < kills:
                    spark_kill_points.kill_executor(f"executor/{door}/row/{one}")
            yield batch.slice(half)

    return pass_on


def main() -> None:
    master, directory, files, *doors = sys.argv[1:]
    builder = SparkSession.builder.master(master)
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    layout: Any = os.environ.get("TXSINK_LAYOUT", "parquet")
    source = spark.readStream.schema("id long, p long").option("maxFilesPerTrigger", files)
    queries = []
    for door, _, kills in (one.partition("=") for one in doors):
        rows = source.parquet(f"{directory}/source").repartition(3)
        if int(kills):
            rows = rows.mapInArrow(lethal(door, int(kills), int(os.environ["TXSINK_STRIDE"])), rows.schema)
        writer = rows.writeStream.option("checkpointLocation", f"{directory}/checkpoint-{door}")
        if door == "each":
            writer = writer.foreachBatch(
                pyspark_txsink.each_batch(f"{directory}/each", partition_by=["p"], layout=layout)
            )
        else:
            writer = writer.format("txsink").option("path", f"{directory}/format").option("layout", layout)
        # A pool of its own, or the streams take turns.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", door)
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    print("dead", sum(not executors.apply(number).isActive() for number in range(executors.size())))
    seen = {}
    if len(doors) > 1:
        for door in ("each", "format"):
            rows = spark.read.parquet(f"{directory}/{door}")
            (found,) = rows.selectExpr("count(*)", "count(distinct id)", "min(id)", "max(id)").collect()
            seen[door] = list(found)
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    os.environ["TXSINK_DRIVER"] = str(os.getpid())
    main()
