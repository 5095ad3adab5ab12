"""Planning to read a table of 100,000 files: `pyspark_txsink.read` against `spark.read.parquet` on the list of files.

Planning ends when Spark knows its tasks. Spark is given the columns; else it would look for them in the files.
"""

from __future__ import annotations

import spark_lab
from measure import Finding, Scale, Unsynced, alternate, p50, scratch
from pyspark.sql import DataFrame

import pyspark_txsink
import txsink
from txsink.environment import stamps
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink

FILES_PER_EPOCH = 500


def run(scale: Scale) -> list[Finding]:
    return spark_lab.with_each_peer(__file__, scale, ("none",))


def measure(peer: str, scale: Scale) -> list[Finding]:
    files = scale.of(100_000, 2_000)
    with scratch(scale.root, "read") as directory:
        path = str(directory / "table")
        grow(path, files)
        spark = spark_lab.session(peer, directory)
        columns = pyspark_txsink.read(spark, path).schema
        table = txsink.open_table(path)
        names = [f"file://{path}/{one.path}" for one in table.files()]
        times = alternate(
            scale.of(5, 3),
            {
                "read()": lambda _: plan(pyspark_txsink.read(spark, path)),
                "spark.read.parquet": lambda _: plan(spark.read.schema(columns).parquet(*names)),
                "files()": lambda _: txsink.open_table(path).files(),
            },
        )
        spark.stop()
    middle = {name: p50(seconds) for name, seconds in times.items()}
    theirs = middle["spark.read.parquet"]
    return [
        Finding(
            f"{files:,} files: {name} / spark.read.parquet(*files)",
            s(middle[name]),
            s(theirs),
            middle[name] / theirs,
            limit,
        )
        for name, limit in (("read()", 2.0), ("files()", None))
    ]


def plan(df: DataFrame) -> int:
    return df.rdd.getNumPartitions()


def s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def grow(path: str, files: int) -> None:
    """Files of one row."""
    with open_sink(LocalStore(Unsynced()), stamps(), path, "bench", {"file_rows_max": 1}) as sink:
        for epoch in range(files // FILES_PER_EPOCH):
            with sink.begin(epoch) as txn:
                txn.write({"id": list(range(FILES_PER_EPOCH))})


if __name__ == "__main__":
    spark_lab.child(measure)
