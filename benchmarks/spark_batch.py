"""A batch job of 10 million rows: `write()` against `df.write.parquet`, Delta and Iceberg.

The format stands against a sink that discards what it gets. All compress with zstd. The rows are made while they are
written, in two tasks, which costs all contestants the same: the `noop` line tells how much. Iceberg writes without
the shuffle it makes by default for partitions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import spark_lab
from measure import Finding, Scale, alternate, p50, scratch
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

import pyspark_txsink

Write = Callable[[int], object]


def run(scale: Scale) -> list[Finding]:
    return spark_lab.with_each_peer(__file__, scale)


class Discard(DataSource):
    """An Arrow sink that only takes."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001
        return Discarding()


class Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


def measure(peer: str, scale: Scale) -> list[Finding]:
    rows, rounds = scale.of(10_000_000, 200_000), scale.of(7, 3)
    findings: list[Finding] = []
    with scratch(scale.root, "spark") as directory:
        spark = spark_lab.session(peer, directory)
        spark.dataSource.register(Discard)
        df = spark_lab.columns(spark.range(rows), "id")
        for by in ((), ("shop",)):
            writes = contestants(peer, df, directory, by)
            for write in writes.values():
                write(-1)
            clear(directory, df, peer)
            times = alternate(rounds, writes, after=lambda _: clear(directory, df, peer))
            middle = {name: p50(seconds) for name, seconds in times.items()}
            what = f"{rows:,} rows{', 20 partitions' if by else ''}, Spark {spark.version}"
            findings += [
                Finding(
                    f"{what}: {ours} / {theirs}, throughput", *speeds(rows, middle, ours, theirs), limit, is_most=False
                )
                for ours, theirs, limit in compared(peer)
                if ours in middle and theirs in middle
            ]
        spark.stop()
    return findings


def compared(peer: str) -> list[tuple[str, str, float | None]]:
    if peer == "none":
        return [
            ("write()", "df.write.parquet", 0.97),
            ("write()", "the same as snappy", None),
            ("noop", "df.write.parquet", None),
            ("format", "discard", 0.9),
            ("format", "df.write.parquet", None),
        ]
    layout: list[tuple[str, str, float | None]] = [("write(), Delta layout", peer, 0.95)]
    return [
        *(layout if peer == "delta" else []),
        ("write()", peer, 1.5 if peer == "delta" else 1.0),
        ("write()", "df.write.parquet", None),
        (peer, "df.write.parquet", None),
    ]


def contestants(peer: str, df: DataFrame, directory: Path, by: tuple[str, ...]) -> dict[str, Write]:
    def path(name: str) -> str:
        return str(directory / name)

    def parquet(name: str, **options: str) -> Write:
        return lambda _: df.write.options(**options).partitionBy(*by).parquet(path(name))

    def formatted(number: int) -> None:
        options = {"txnAppId": "bench", "txnVersion": str(number + 1), "partitionBy": ",".join(by)}
        df.write.format("txsink").mode("append").options(**options).save(path("format"))

    found: dict[str, Write] = {
        "write()": lambda number: pyspark_txsink.write(
            df, path("write"), writer="bench", epoch=number + 1, partition_by=by
        ),
        "df.write.parquet": parquet("parquet"),
    }
    if peer == "none":
        found |= {
            "the same as snappy": parquet("snappy", compression="snappy"),
            "noop": lambda _: df.write.format("noop").mode("overwrite").save(),
            "format": formatted,
            "discard": lambda _: df.write.format("discard").mode("append").save(),
        }
    if peer == "delta":
        found["write(), Delta layout"] = lambda number: pyspark_txsink.write(
            df, path("write-delta"), writer="bench", epoch=number + 1, partition_by=by, layout="delta"
        )
        found["delta"] = lambda _: df.write.format("delta").partitionBy(*by).save(path("delta"))
    if peer == "iceberg":
        found["iceberg"] = lambda _: iceberg(df, by)
    return found


def iceberg(df: DataFrame, by: tuple[str, ...]) -> None:
    writer = df.writeTo("ice.bench.t").tableProperty("write.distribution-mode", "none").option("fanout-enabled", "true")
    for name in by:
        writer = writer.partitionedBy(df[name])
    writer.create()


def clear(directory: Path, df: DataFrame, peer: str) -> None:
    if peer == "iceberg":
        df.sparkSession.sql("drop table ice.bench.t purge")
    for one in directory.iterdir():
        if one.name != "iceberg":
            shutil.rmtree(one)


def speeds(rows: int, middle: dict[str, float], ours: str, theirs: str) -> tuple[str, str, float]:
    one, other = (f"{rows / middle[name] / 1e6:.2f} M rows/s" for name in (ours, theirs))
    return one, other, middle[theirs] / middle[ours]


if __name__ == "__main__":
    spark_lab.child(measure)
