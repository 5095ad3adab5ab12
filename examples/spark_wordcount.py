"""Counting words in a stream that is killed: the counts are right, as if nothing had happened.

Each batch replaces the table by all counts so far (`outputMode("complete")`, `mode="overwrite"`). The stream runs in
a process of its own, which is killed with its JVM (SIGKILL, no clean-up of any kind) when one of the two files of an
epoch is published, and is started again. DuckDB proves the result.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import duckdb
from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812 -- as everybody writes it
)

import pyspark_txsink
import txsink
from txsink.store.local.store import LocalStore

LINES = ["to be or not to be", "that is the question", "to die to sleep", "no more", "to sleep perchance to dream"]
FATAL_EPOCH = 2


def count_words(directory: Path) -> None:
    """The whole job."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "lines"))
    counts = lines.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
    query = (
        counts.writeStream.outputMode("complete")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(pyspark_txsink.each_batch(str(directory / "counts"), mode="overwrite"))
        .start()
    )
    query.awaitTermination()
    spark.stop()


def die_in_mid_publish() -> None:
    """From now on the publish of one epoch is the end of this process and its JVM."""
    move, published = LocalStore.move, Counter[str]()

    def dying_move(self: LocalStore, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if moves and "/_txsink/" not in moves[0][1]:  # not those of replaced files
            published["epochs"] += 1
            if published["epochs"] > FATAL_EPOCH:
                move(self, moves[:1])
                os.killpg(0, signal.SIGKILL)
        return move(self, moves)

    LocalStore.move = dying_move  # type: ignore[method-assign]


def start(directory: Path, *arguments: str) -> int:
    """The script in a process of its own, with a session of its own: the JVM dies with it."""
    command = [sys.executable, __file__, str(directory), *arguments]
    return subprocess.run(command, check=False, start_new_session=True).returncode


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "lines").mkdir()
        for number, line in enumerate(LINES):
            (directory / "lines" / f"{number}.txt").write_text(line)
        first = start(directory, "--die")
        pending = [(one.epoch, one.state) for one in txsink.open_table(directory / "counts").pending()]
        print(f"the first process ended with {first}; pending: {pending}")
        second = start(directory)
        query = "select word, count from read_parquet(?) order by all"
        seen = duckdb.sql(query, params=[f"{directory}/counts/*.parquet"]).fetchall()
    for word, count in seen:
        print(f"{count:>5} {word}")
    is_exact = seen == sorted(Counter(" ".join(LINES).split()).items())
    if (first, second) != (-signal.SIGKILL, 0) or [epoch for epoch, _ in pending] != [FATAL_EPOCH] or not is_exact:
        sys.exit("NOT exactly once")
    print("every word counted exactly once")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        if "--die" in sys.argv:
            die_in_mid_publish()
        count_words(Path(sys.argv[1]))
