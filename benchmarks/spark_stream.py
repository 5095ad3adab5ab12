"""A stream of 1,000-row batches: `each_batch` against Spark's file sink, Delta and Iceberg; and in an old table.

The queries run in turns, some batches a turn, each on its own checkpoint; the first batch of a turn, which starts
the query, does not count. Measured is what Spark reports for a batch: all of it (`triggerExecution`: the checkpoint
included, which is most of a small batch) and the sink alone (`addBatch`). A batch is one task and one file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark_lab
from measure import Finding, Scale, ms, p50, scratch
from pyspark.sql import SparkSession

import pyspark_txsink

Start = Callable[[Any], Any]


def run(scale: Scale) -> list[Finding]:
    return spark_lab.with_each_peer(__file__, scale)


class Stream:
    """One query, run in turns. `seconds`: by kind of time and batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path, start: Start) -> None:
        self._spark, self._checkpoint, self._start = spark, checkpoint, start
        self.seconds: dict[str, dict[int, float]] = {"triggerExecution": {}, "addBatch": {}}

    def turn(self, until: int) -> None:
        """Run until this batch is done."""
        options = {"rowsPerBatch": "1000", "numPartitions": "1"}
        rows = self._spark.readStream.format("rate-micro-batch").options(**options).load()
        writer = spark_lab.columns(rows, "value").writeStream.option("checkpointLocation", str(self._checkpoint))
        query = self._start(writer.trigger(processingTime="0 seconds"))
        while not query.awaitTermination(0.2):  # raises what the query died of
            last = query.lastProgress
            if last is not None and last["batchId"] >= until:
                break
        progress = [json.loads(one.json) if hasattr(one, "json") else one for one in query.recentProgress]
        query.stop()
        for one in progress[1:]:
            for kind, known in self.seconds.items():
                if kind in one["durationMs"]:
                    known[one["batchId"]] = one["durationMs"][kind] / 1e3

    def p50(self, kind: str) -> float:
        return p50(list(self.seconds[kind].values()))


def measure(peer: str, scale: Scale) -> list[Finding]:
    batches, turns = scale.of(100, 12), scale.of(5, 3)
    with scratch(scale.root, "stream") as directory:
        spark = spark_lab.session(peer, directory)
        starts = contestants(peer, directory)
        streams = {name: Stream(spark, directory / f"checkpoint-{n}", start) for n, (name, start) in enumerate(starts)}
        warm_up(spark, directory, peer)
        names = list(streams)
        for number in range(turns):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                streams[name].turn((number + 1) * batches // turns - 1)
        findings = [
            Finding(
                f"1,000 rows a batch, {batches} batches, Spark {spark.version}, {what}: p50 of {ours} / {theirs}",
                ms(streams[ours].p50(kind)),
                ms(streams[theirs].p50(kind)),
                streams[ours].p50(kind) / streams[theirs].p50(kind),
                limit if kind == "triggerExecution" else None,
            )
            for ours, theirs, limit in compared(peer)
            for kind, what in (("triggerExecution", "whole"), ("addBatch", "sink"))
        ]
        if peer == "none":
            findings += flatness(spark, directory, scale.of(3_000, 60))
        spark.stop()
    return findings


def compared(peer: str) -> list[tuple[str, str, float | None]]:
    own: list[tuple[str, str, float | None]] = [("each_batch", "file sink", 0.85 if peer == "none" else None)]
    if peer == "delta":
        own = [("each_batch, Delta layout", peer, 1.0), ("each_batch, Delta layout", "file sink", None), *own]
    return own if peer == "none" else [("each_batch", peer, 1.0), (peer, "file sink", None), *own]


def contestants(peer: str, directory: Path) -> list[tuple[str, Start]]:
    def path(name: str) -> str:
        return str(directory / name)

    found: list[tuple[str, Start]] = [
        ("each_batch", lambda writer: writer.foreachBatch(pyspark_txsink.each_batch(path("ours"))).start()),
        ("file sink", lambda writer: writer.format("parquet").start(path("parquet"))),
    ]
    if peer == "delta":
        ours = pyspark_txsink.each_batch(path("ours-delta"), layout="delta")
        found.append(("each_batch, Delta layout", lambda writer: writer.foreachBatch(ours).start()))
        found.append(("delta", lambda writer: writer.format("delta").start(path("delta"))))
    if peer == "iceberg":
        found.append(
            ("iceberg", lambda writer: writer.format("iceberg").toTable(f"ice.{directory.name.replace('-', '_')}.t"))
        )
    return found


def warm_up(spark: SparkSession, directory: Path, peer: str) -> None:
    """The JVM compiles what all of them run."""
    for number, (_, start) in enumerate(contestants(peer, directory / "warm-up")):
        Stream(spark, directory / f"warm-up-{number}", start).turn(10)


def flatness(spark: SparkSession, directory: Path, batches: int) -> list[Finding]:
    """One query that is not interrupted: late batches against early ones, and whether every so many are slow."""
    (_, start), *_ = contestants("none", directory / "flat")
    stream = Stream(spark, directory / "checkpoint-flat", start)
    stream.turn(batches)
    found = stream.seconds["triggerExecution"]
    sixth = batches // 6
    early = [found[number] for number in range(sixth // 5, sixth // 5 + sixth) if number in found]
    late = [found[number] for number in range(batches - sixth, batches) if number in found]
    findings = [
        Finding(
            f"{batches:,} batches: p95 of the last {len(late)} / p95 of {sixth // 5} to {sixth // 5 + sixth}",
            ms(p95(late)),
            ms(p95(early)),
            p95(late) / p95(early),
            1.2,
        )
    ]
    middle = p50(list(found.values()))
    for step in (8, 10, 16, 32):
        slowest = max(
            p50([found[n] for n in range(first, batches, step) if n in found] or [0.0]) for first in range(step)
        )
        findings.append(Finding(f"p50 of the slowest of every {step} / p50", ms(slowest), ms(middle), slowest / middle))
    return findings


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 95 // 100]


if __name__ == "__main__":
    spark_lab.child(measure)
