"""txsink on Spark: a stream, killed in the middle of a publish, started again, proved by DuckDB.

What `make demo` runs where Spark is. It writes to `demo-data/` and leaves the table there to look at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb

import txsink
from txsink.store.local.store import LocalStore

FILES, ROWS_PER_FILE, FATAL_EPOCH = 6, 20_000, 3
ROOT = Path("demo-data").resolve()
SOURCE, CHECKPOINT, TABLE, SPARKS_LOG = (ROOT / name for name in ("source", "checkpoint", "orders", "spark.log"))
Totals = tuple[int, int, int]


def cents(number: int) -> int:
    return 100 + number * 7 % 90_000


def make_source() -> None:
    """The source: JSON files, dense ids, so that a lost or doubled row shows in any count."""
    SOURCE.mkdir(parents=True)
    for file in range(FILES):
        ids = range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE)
        rows = ({"order_id": i, "day": f"2026-01-0{i % 4 + 1}", "cents": cents(i)} for i in ids)
        (SOURCE / f"{file}.json").write_text("\n".join(map(json.dumps, rows)))


def stream() -> None:
    """The job: each file is a micro-batch, each micro-batch is an epoch."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- slow to import, and the parent has no use for it

    import pyspark_txsink  # noqa: PLC0415

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    orders = spark.readStream.schema("order_id long, day date, cents long").option("maxFilesPerTrigger", 1)
    query = (
        orders.json(str(SOURCE))
        .writeStream.option("checkpointLocation", str(CHECKPOINT))
        .trigger(availableNow=True)
        .foreachBatch(pyspark_txsink.each_batch(str(TABLE), partition_by=["day"]))
        .start()
    )
    query.awaitTermination()
    spark.stop()


def die_in_mid_publish() -> None:
    """From now on, the publish of one epoch kills this process and Spark's JVM, with no clean-up of any kind."""
    move, calls = LocalStore.move, [0]

    def dying_move(self: LocalStore, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if calls[0] == FATAL_EPOCH:
            move(self, moves[:2])
            print(f"   published {len(moves[:2])} of {len(moves)} files of epoch {FATAL_EPOCH}, and now: kill -9")
            sys.stdout.flush()
            os.killpg(0, signal.SIGKILL)
        calls[0] += 1
        return move(self, moves)

    LocalStore.move = dying_move  # type: ignore[method-assign]


def start(role: str) -> int:
    """The job in a process of its own; its session lets the JVM die with it."""
    began = time.monotonic()
    with SPARKS_LOG.open("a") as log:
        command = [sys.executable, __file__, role]
        code = subprocess.run(command, stderr=log, check=False, start_new_session=True).returncode
    how = "killed (SIGKILL), with its JVM" if code == -signal.SIGKILL else f"ended with {code}"
    print(f"   it was {how} after {time.monotonic() - began:.0f} s" if code else "   it read all files and ended")
    return code


def seen_by_duckdb() -> Totals:
    """What an independent reader of the plain directory sees: rows, distinct ids, sum of the money."""
    query = "select count(*), count(distinct order_id), sum(cents) from read_parquet(?, hive_partitioning = true)"
    (row,) = duckdb.sql(query, params=[f"{TABLE}/**/*.parquet"]).fetchall()
    return row[0], row[1], int(row[2])


def show_epochs() -> None:
    table = txsink.open_table(TABLE)
    for name, known in table.writers().items():
        print(f"   query {name[:8]}: last committed epoch {known.last_epoch}")
    for item in table.pending():
        print(f"   epoch {item.epoch} is {item.state}: {item.files} files, {item.rows:,} rows")


def main() -> int:
    """The story, in four steps. Exit code 0 only if the proof holds."""
    shutil.rmtree(ROOT, ignore_errors=True)
    make_source()
    count = FILES * ROWS_PER_FILE
    print(f"1. A Spark stream writes {count:,} orders, {FILES} batches, to {TABLE}", flush=True)
    first = start("--die")
    print("2. What the crash left, as the log tells it")
    show_epochs()
    print("3. The stream starts again, on the same checkpoint", flush=True)
    second = start("--run")
    show_epochs()
    print("4. The proof, by DuckDB over the plain directory")
    expected = (count, count, sum(map(cents, range(count))))
    seen = seen_by_duckdb()
    print(
        "   rows {:,}, distinct ids {:,}, cents {:,}; ".format(*seen)
        + "the source has {0:,} and {2:,}".format(*expected)
    )
    is_exact = (first, second, seen) == (-signal.SIGKILL, 0, expected)
    print("   every row exactly once" if is_exact else f"   NOT exactly once; what Spark said is in {SPARKS_LOG}")
    return 0 if is_exact else 1


if __name__ == "__main__":
    if len(sys.argv) == 1:
        raise SystemExit(main())
    if sys.argv[1] == "--die":
        die_in_mid_publish()
    stream()
