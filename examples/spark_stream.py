"""A stream that writes every row once. The one line that matters: `.foreachBatch(pyspark_txsink.each_batch(table))`.

Orders arrive as JSON files, a file is a batch. The stream is stopped and started again on the same checkpoint, as any
deployment does, and DuckDB proves that the directory holds every order once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

import pyspark_txsink
import txsink

Order = tuple[int, str, int]


def order(number: int) -> Order:
    return number, f"shop-{number % 3}", number * 7 % 900


def arrive(source: Path, files: range) -> None:
    """A hundred orders a file."""
    source.mkdir(exist_ok=True)
    for file in files:
        orders = (dict(zip(("id", "shop", "cents"), order(file * 100 + i), strict=True)) for i in range(100))
        (source / f"{file}.json").write_text("\n".join(json.dumps(one) for one in orders))


def run(spark: SparkSession, source: Path, checkpoint: Path, table: Path) -> None:
    """The whole job."""
    orders = spark.readStream.schema("id long, shop string, cents long").option("maxFilesPerTrigger", 1)
    query = (
        orders.json(str(source))
        .writeStream.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(pyspark_txsink.each_batch(str(table), partition_by=["shop"]))
        .start()
    )
    query.awaitTermination()


def seen_by_duckdb(table: Path) -> list[Order]:
    query = "select id, shop, cents from read_parquet(?, hive_partitioning = true) order by all"
    return duckdb.sql(query, params=[f"{table}/**/*.parquet"]).fetchall()


def main() -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        source, checkpoint, table = (Path(directory) / name for name in ("source", "checkpoint", "orders"))
        for files in (range(3), range(3, 5)):
            arrive(source, files)
            run(spark, source, checkpoint, table)
        seen = seen_by_duckdb(table)
        (writer,) = txsink.open_table(str(table)).writers().values()
    spark.stop()
    if seen != [order(number) for number in range(500)] or writer.last_epoch != 4:
        sys.exit(f"NOT exactly once: {len(seen)} rows, the last epoch is {writer.last_epoch}")
    print(f"{len(seen)} orders in {writer.last_epoch + 1} epochs, each exactly once")


if __name__ == "__main__":
    main()
