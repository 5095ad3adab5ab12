"""Spark's driver and executors, really killed: every row is in the table once, through both doors.

Promises: a kill that was planned and did not happen fails the test; skipped, with the reason, where Java or pyspark is
missing.
Relies on: `spark_killed`, the driver; `spark_kill_points`, which says where.
Does not promise: kills inside Spark's own Parquet writer, but for those of the executor it runs in.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_processes
import txsink
from seen import names, rows_of, staging
from spark_processes import ROOT, Ended

if reason := spark_processes.missing():
    pytest.skip(reason, allow_module_level=True)

# Each ends one life of a driver. The number is the call, counted in the process that makes it.
DRIVER_KILLS = (
    "driver/each/adopt/2",
    "driver/each/before-prepare/1",
    "driver/each/publish/2",
    "driver/each/before-commit/1",
    "driver/each/after-commit/2",
    "driver/format/seal/2",
    "driver/format/before-prepare/2",
    "driver/format/publish/1",
    "driver/format/after-prepare/1",
    "driver/format/after-commit/2",
)
ROWS_PER_FILE = 50


def source(directory: Path, files: int) -> list[int]:
    """Files of rows that a stream takes in their order; all ids."""
    (directory / "source").mkdir()
    (directory / "kills").mkdir()
    spark_processes.home(directory)
    for number in range(files):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        table = pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array([one % 2 for one in ids], pa.int64())})
        pq.write_table(table, directory / "source" / f"{number:03}.parquet")
    return list(range(files * ROWS_PER_FILE))


def live(master: str, directory: Path, files: int, doors: Sequence[str], kills: str) -> Ended:
    """One life of a driver."""
    given = {"TXSINK_KILLS": str(directory / "kills"), "SPARK_HOME": str(directory / "spark")}
    if kills:
        given["TXSINK_KILL"] = kills
    env = spark_processes.environment(ROOT / "tests" / "spark_site", **given)
    command = [sys.executable, str(ROOT / "tests" / "spark_killed.py"), master, str(directory), str(files), *doors]
    return spark_processes.run(command, directory, env)


def check(directory: Path, ended: Ended, expected: list[int]) -> None:
    """I1, I5, I9: the three readers see every row once, and nothing is left once a new run has swept."""
    assert ended.code == 0, ended.errors
    by_spark = json.loads(ended.output.splitlines()[-1])
    for door in ("each", "format"):
        table = directory / door
        assert by_spark[door] == expected
        assert rows_of(table) == expected
        found = duckdb.sql("select id from read_parquet(?) order by id", params=[f"{table}/**/*.parquet"]).fetchall()
        assert [row[0] for row in found] == expected
        (writer,) = txsink.open_table(str(table)).writers()
        txsink.open_writer(str(table), writer).close()
        assert names(staging(table)) == []
        assert txsink.open_table(str(table)).verify(deep=True) == []


def delivered(directory: Path) -> int:
    return len(list((directory / "kills").iterdir()))


def test_a_driver_killed_ten_times_writes_every_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S11, S21, S30: while staging, before and after each entry, and in the middle of a publish."""
    expected = source(tmp_path, 30)
    for kill in DRIVER_KILLS:
        ended = live("local[2]", tmp_path, 1, [f"{kill.split('/')[1]}=0"], kill)
        assert ended.code == -signal.SIGKILL, f"{kill} was not delivered: {ended.errors}"
    count = delivered(tmp_path)
    with capsys.disabled():
        print(f"\n{count} of {len(DRIVER_KILLS)} kills of the driver delivered")
    assert count == len(DRIVER_KILLS)
    check(tmp_path, live("local[2]", tmp_path, 8, ["each=0", "format=0"], ""), expected)


def test_executors_killed_twenty_times_write_every_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S11, S27: in the middle of a task's rows, and when a task has staged a file and nobody knows."""
    expected = source(tmp_path, 20)
    seals = ";".join(f"executor/format/seal/{number}" for number in range(1, 6))
    ended = live("local-cluster[2,1,1024]", tmp_path, 2, ["each=10", "format=5"], seals)
    count = delivered(tmp_path)
    with capsys.disabled():
        print(f"\n{count} of 20 kills of executors delivered")
    assert ended.code == 0, ended.errors
    assert count == 20
    assert f"dead {count}" in ended.output, "Spark has not seen as many executors die"
    check(tmp_path, ended, expected)
