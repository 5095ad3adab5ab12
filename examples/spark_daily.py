"""A batch job with one partition a day: a retry changes nothing, a re-run of a day replaces that day, once.

The writer is the job and its day, so that days can be filled in at the same time; the epoch is the revision of the
day's data. Who repeats a revision (a scheduler, after a time-out) writes nothing. DuckDB proves the result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
Order = tuple[int, int, str]


def orders(day: str, revision: int) -> list[Order]:
    """A thousand orders a day; a later revision has other amounts, and one order less."""
    first = DAYS.index(day) * 1000
    return [(number, number * 7 % 900 + revision, day) for number in range(first, first + 1000 - revision)]


def run(df: DataFrame, table: Path, day: str, revision: int) -> str:
    """The whole job."""
    result = pyspark_txsink.write(
        df,
        str(table),
        writer=f"orders-{day}",
        epoch=revision,
        mode="overwrite",
        partition_overwrite="dynamic",
        partition_by=["day"],
    )
    return result.outcome


def seen_by_duckdb(table: Path) -> list[Order]:
    query = "select id, cents, day::varchar from read_parquet(?, hive_partitioning = true) order by all"
    return duckdb.sql(query, params=[f"{table}/**/*.parquet"]).fetchall()


def main() -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "orders"
        # Each run twice, and the second day once more with corrected data.
        for day, revision in (*((day, 0) for day in DAYS), (DAYS[1], 1)):
            df = spark.createDataFrame(orders(day, revision), "id long, cents long, day string")
            outcomes += [run(df, table, day, revision) for _ in range(2)]
            print(f"{day}, revision {revision}: {outcomes[-2]}, and again: {outcomes[-1]}")
        seen = seen_by_duckdb(table)
    spark.stop()
    expected = [*orders(DAYS[0], 0), *orders(DAYS[1], 1), *orders(DAYS[2], 0)]
    if seen != expected or outcomes != 4 * ["committed", "already-committed"]:
        sys.exit(f"NOT exactly once: {len(seen)} rows, {len(expected)} expected")
    print(f"{len(seen)} orders, each exactly once, the second day as corrected")


if __name__ == "__main__":
    main()
