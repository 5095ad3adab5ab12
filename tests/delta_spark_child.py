"""Spark with Delta's own jars: python delta_spark_child.py DIRECTORY, in `.venv-bench-delta`.

One stream of files moves from Delta's sink to txsink and back, under one `txnAppId`; each move replays the batch that
the other has committed. Then Spark reads what txsink wrote, by version. Prints one line of JSON for each thing seen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
import txsink
from delta_tables import LIFE, TYPES

OLD = 1_700_000_000
APP, PACKAGE = "the-stream", "io.delta:delta-spark_2.13:4.4.0"
CONF = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def tell(**seen: Any) -> None:
    print(json.dumps(seen, default=str), flush=True)


class Stream:
    """Files of ten rows, a batch each, into one Delta table by whichever sink; one checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.path = str(directory / "moved")
        (directory / "source").mkdir()
        self.files = 0

    def run(self, sink: str) -> None:
        """Two files more."""
        for number in range(self.files, self.files + 2):
            ids = pa.array(range(10 * number, 10 * number + 10), pa.int64())
            file = self.directory / "source" / f"{number}.parquet"
            pq.write_table(pa.table({"id": ids}), file)
            os.utime(file, (OLD + number, OLD + number))  # the source takes the oldest first
        self.files += 2
        source = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        df = source.parquet(str(self.directory / "source")).selectExpr("id", "cast(id % 3 as string) p")
        writer = df.writeStream.option("checkpointLocation", str(self.directory / "checkpoint"))
        by = {"delta": self.by_delta, "txsink": pyspark_txsink.each_batch(self.path, txn_app_id=APP)}[sink]
        writer.trigger(availableNow=True).foreachBatch(by).start().awaitTermination()
        rows = sorted(row.id for row in self.spark.read.format("delta").load(self.path).collect())
        tell(moved=sink, rows=rows, ours=self.ours())

    def by_delta(self, df: DataFrame, batch: int) -> None:
        options = {"txnAppId": APP, "txnVersion": str(batch)}
        df.write.format("delta").mode("append").partitionBy("p").options(**options).save(self.path)

    def ours(self) -> list[int] | None:
        if not (Path(self.path) / "_txsink").exists():
            return None
        return sorted(txsink.open_table(self.path).to_arrow()["id"].to_pylist())

    def forget_commit(self) -> None:
        """As a crash between the sink's commit and Spark's leaves it: the other sink gets the batch once more."""
        commits = self.directory / "checkpoint" / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def moves(spark: SparkSession, directory: Path) -> None:
    stream = Stream(spark, directory)
    for sink in ("delta", "txsink", "delta", "txsink"):
        if stream.files:
            stream.forget_commit()
        stream.run(sink)
    spark.sql(f"optimize delta.`{stream.path}`").collect()
    tell(optimized=sorted(row.id for row in spark.read.format("delta").load(stream.path).collect()), ours=stream.ours())
    stream.run("txsink")
    spark.sql(f"restore table delta.`{stream.path}` to version as of 0").collect()
    tell(restored=sorted(row.id for row in spark.read.format("delta").load(stream.path).collect()), ours=stream.ours())
    stream.run("delta")


def reads(spark: SparkSession, directory: Path) -> None:
    path = str(directory / "output @#output")
    with txsink.open_writer(path, "w", layout="delta", partition_by=["p"], merge_schema=True) as sink:
        for epoch, rows, options in LIFE:
            with sink.begin(epoch, **options) as txn:
                if rows is not None:
                    txn.write(rows)
    history = [one for one in txsink.open_table(path).history()[::-1] if one.kind == "commit"]
    for at, entry in enumerate(history):
        found = spark.read.format("delta").option("versionAsOf", at).load(path)
        ours = txsink.open_table(path).to_arrow(entry.version)
        tell(version=at, spark=texts(found, ours.column_names), ours=sorted(map(str, map(list_of, ours.to_pylist()))))
    types = str(directory / "types")
    txsink.write(types, pa.table(TYPES), writer="w", epoch=0, layout="delta")
    found = spark.read.format("delta").load(types)
    ours = txsink.open_table(types).to_arrow()
    tell(version="types", spark=texts(found, ours.column_names), ours=sorted(map(str, map(list_of, ours.to_pylist()))))


def texts(df: DataFrame, names: list[str]) -> list[str]:
    arrow = df.toArrow().select(names)
    return sorted(map(str, map(list_of, arrow.to_pylist())))


def list_of(row: dict[str, Any]) -> list[Any]:
    return list(row.values())


def refused(spark: SparkSession, directory: Path) -> None:
    """What only Delta's own reader applies."""
    for name, properties, sql in (
        ("vectors", "'delta.enableDeletionVectors' = 'true'", "delete from delta.`{}` where id = 3"),
        ("mapped", "'delta.columnMapping.mode' = 'name'", "alter table delta.`{}` rename column id to number"),
    ):
        path = str(directory / name)
        spark.sql(f"create table delta.`{path}` (id long) using delta tblproperties ({properties})")
        spark.range(10).coalesce(1).write.format("delta").mode("append").save(path)
        told = []
        try:
            pyspark_txsink.write(spark.range(10, 12), path, writer="w", epoch=0)
            spark.sql(sql.format(path)).collect()
            pyspark_txsink.read(spark, path).collect()
        except txsink.InvalidRequestError as error:
            told = [error.found, error.advice]
        tell(refused=name, told=told)


def session(more: Mapping[str, str] | None = None) -> SparkSession | None:
    """Spark with Delta's jars; None, and the reason is told, when they cannot be fetched."""
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**CONF, **(more or {})}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 -- whatever Spark's package resolver raises
        tell(missing=f"Spark cannot fetch {PACKAGE}: {type(error).__name__}")
        return None
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    directory = Path(sys.argv[1])
    spark = session()
    if spark is None:
        return
    for act in (reads, refused, moves):
        act(spark, directory)
    spark.stop()


if __name__ == "__main__":
    main()
