"""Spark's driver and executors, really killed: every row is in the table once, through both doors.

Promises: a kill that was planned and did not happen fails the test; skipped, with the reason, where Java or pyspark is
missing.
Relies on: `spark_killed` and `spark_writer_killed`, the drivers; `spark_kill_points`, which says where.
Does not promise: other stores.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_processes
import txsink
from ledger import is_full, report
from seen import names, rows_of, staging
from spark_processes import ROOT, Ended

if reason := spark_processes.missing():
    pytest.skip(reason, allow_module_level=True)

import spark_writer_killed

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
# For the ledger: ten rounds of these lives, ten times as many executors, and ten million rows.
ROUNDS = 10 if is_full() else 1
ROWS_PER_FILE = 50_000 if is_full() else 50
EXECUTOR_KILLS = {"row/each": 10 * ROUNDS, "row/format": 5 * ROUNDS, "seal/format": 5 * ROUNDS}


def source(directory: Path, files: int) -> int:
    """Files of rows that a stream takes; how many rows they have, whose ids are the numbers below that."""
    (directory / "source").mkdir()
    (directory / "kills").mkdir()
    spark_processes.home(directory)
    for number in range(files):
        ids = np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        pq.write_table(pa.table({"id": ids, "p": ids % 2}), directory / "source" / f"{number:03}.parquet")
    return files * ROWS_PER_FILE


def life(
    master: str, directory: Path, files: int, doors: Sequence[str], kills: str
) -> tuple[list[str], dict[str, str]]:
    """The command of a driver, and its environment."""
    given = {"TXSINK_KILLS": str(directory / "kills"), "SPARK_HOME": str(directory / "spark")}
    given["TXSINK_STRIDE"] = str(2 * ROWS_PER_FILE)
    if kills:
        given["TXSINK_KILL"] = kills
    env = spark_processes.environment(ROOT / "tests" / "spark_site", **given)
    return [sys.executable, str(ROOT / "tests" / "spark_killed.py"), master, str(directory), str(files), *doors], env


def live(master: str, directory: Path, files: int, doors: Sequence[str], kills: str) -> Ended:
    """One life of a driver."""
    command, env = life(master, directory, files, doors, kills)
    return spark_processes.run(command, directory, env)


def check(directory: Path, ended: Ended, rows: int) -> None:
    """I1, I5, I9: the three readers see every row once, and nothing is left once a new run has swept."""
    assert ended.code == 0, ended.errors
    by_spark = json.loads(ended.output.splitlines()[-1])
    for door in ("each", "format"):
        table = directory / door
        every_row_once = [rows, rows, 0, rows - 1]
        assert by_spark[door] == every_row_once
        query = "select count(*), count(distinct id), min(id), max(id) from"
        files = f"{table}/**/*.parquet"
        assert list(duckdb.sql(f"{query} read_parquet(?)", params=[files]).fetchall()[0]) == every_row_once
        by_log = txsink.open_table(str(table)).to_arrow()  # noqa: F841 -- duckdb finds it by its name
        assert list(duckdb.sql(f"{query} by_log").fetchall()[0]) == every_row_once
        (writer,) = txsink.open_table(str(table)).writers()
        txsink.open_writer(str(table), writer).close()
        assert names(staging(table)) == []
        assert txsink.open_table(str(table)).verify(deep=True) == []


def delivered(directory: Path) -> int:
    return len(list((directory / "kills").iterdir()))


def test_a_driver_killed_ten_times_writes_every_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S11, S21, S30: while staging, before and after each entry, and in the middle of a publish."""
    rows = source(tmp_path, 200 if is_full() else 30)
    # The same plan with a zero before its number is a plan of its own.
    kills = [f"{kill[:-1]}{'0' * number}{kill[-1]}" for number in range(ROUNDS) for kill in DRIVER_KILLS]
    for kill in kills:
        ended = live("local[2]", tmp_path, 1, [f"{kill.split('/')[1]}=0"], kill)
        assert ended.code == -signal.SIGKILL, f"{kill} was not delivered: {ended.errors}"
    count = delivered(tmp_path)
    with capsys.disabled():
        report("Spark", "local disk", {"Spark's driver killed": (len(kills), count)}, {"rows": rows})
    assert count == len(kills)
    check(tmp_path, live("local[2]", tmp_path, 8, ["each=0", "format=0"], ""), rows)


def test_executors_killed_twenty_times_write_every_row_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S11, S27: in the middle of a task's rows, and when a task has staged a file and nobody knows."""
    kills = EXECUTOR_KILLS
    rows = source(tmp_path, 20 * ROUNDS)
    # The first file that each of five workers stages, one after the other: 1, 01, 001 … are plans of their own. Later
    # files would come or not, as the tasks are spread.
    seals = ";".join(f"executor/format/seal/{'0' * number}1" for number in range(kills["seal/format"]))
    doors = [f"each={kills['row/each']}", f"format={kills['row/format']}"]
    ended = live("local-cluster[2,1,1024]", tmp_path, 2, doors, seals)
    count = delivered(tmp_path)
    with capsys.disabled():
        report("Spark", "local disk", {"Spark's executor killed": (sum(kills.values()), count)}, {"rows": rows})
    assert ended.code == 0, ended.errors
    assert count == sum(kills.values())
    assert f"dead {count}" in ended.output, "Spark has not seen as many executors die"
    check(tmp_path, ended, rows)


# How a driver ends that slept while another one went on: by our fence, or by Spark's own, its log of the batches.
ENDINGS = ("FencedError", "CONCURRENT_STREAM_LOG_UPDATE")


def ending(code: int, errors: str) -> str:
    """Which of the two it was; it went on to neither its end nor a kill."""
    found = [name for name in ENDINGS if name in errors]
    assert code not in (0, -signal.SIGKILL), errors
    assert found, f"ended by something else: {errors}"
    return found[0]


def test_a_driver_that_ended_otherwise_is_no_fenced_one() -> None:
    assert [ending(1, f"a.{name}: gone") for name in ENDINGS] == [*ENDINGS]
    for code, errors in ((0, ENDINGS[0]), (-signal.SIGKILL, ENDINGS[1]), (1, "OutOfMemoryError"), (1, "")):
        with pytest.raises(AssertionError):
            ending(code, errors)


@pytest.mark.parametrize(("door", "point"), [("each", "publish/2"), ("format", "before-commit/2")])
def test_of_two_drivers_of_one_query_the_one_that_slept_is_fenced(door: str, point: str, tmp_path: Path) -> None:
    """S20: it stops in a commit, another driver takes over and finishes, and then it goes on.

    Which of the two fences it meets first is Spark's affair: on a busy machine its own, the log of its batches that the
    other driver has filled, was seen to end it first. Both end it, and neither doubles a row.
    """
    rows = source(tmp_path, 3)
    (beside := tmp_path / "sleeper").mkdir()
    plan = f"sleeper/{door}/{point}"
    command, env = life("local[2]", tmp_path, 1, [f"{door}=0"], plan)
    with spark_processes.started(command, beside, env) as sleeper:
        assert spark_processes.wait_until_stopped(sleeper), (beside / "errors").read_text()
        ended = live("local[2]", tmp_path, 1, [f"{door}=0"], "")
        assert ended.code == 0, ended.errors
        spark_processes.go_on(sleeper.pid)
        code = sleeper.wait(spark_processes.SECONDS)
    assert delivered(tmp_path) == 1
    by = ending(code, (beside / "errors").read_text())
    print("ended by", by)
    assert rows_of(tmp_path / door) == list(range(rows))
    (writer,) = txsink.open_table(str(tmp_path / door)).writers()
    txsink.open_writer(str(tmp_path / door), writer).close()
    assert rows_of(tmp_path / door) == list(range(rows))
    assert names(staging(tmp_path / door)) == []
    assert txsink.open_table(str(tmp_path / door)).verify(deep=True) == []


# -- in Spark's own writer ------------------------------------------------------------------------------------


def write_killed(master: str, directory: Path, epochs: int, point: str) -> Ended:
    """One life of a driver that writes epochs; none but those that are not committed are written."""
    given = {"TXSINK_KILLS": str(directory / "kills"), "SPARK_HOME": str(directory / "spark")}
    env = spark_processes.environment(ROOT / "tests" / "spark_site", **given)
    script = str(ROOT / "tests" / "spark_writer_killed.py")
    return spark_processes.run([sys.executable, script, master, str(directory), str(epochs), point], directory, env)


def check_epochs(directory: Path, ended: Ended) -> None:
    """I1, I9: every row of the epochs that were written, once; what the killed ones left is swept."""
    assert ended.code == 0, ended.errors
    epochs, *by_spark = json.loads(ended.output.splitlines()[-1])
    rows = epochs * spark_writer_killed.ROWS
    assert by_spark == [rows, rows, rows - 1]
    table = directory / "table"
    found = duckdb.sql(
        "select count(*), count(distinct id), max(id) from read_parquet(?)", params=[f"{table}/*.parquet"]
    )
    assert list(found.fetchall()[0]) == by_spark
    txsink.open_writer(str(table), "w").close()
    assert names(staging(table)) == []
    assert txsink.open_table(str(table)).verify(deep=True) == []


@pytest.fixture
def killing(tmp_path: Path) -> Path:
    (tmp_path / "kills").mkdir()
    spark_processes.home(tmp_path)
    return tmp_path


def test_an_executor_killed_while_it_writes_a_file_writes_every_row_once(killing: Path) -> None:
    """S11, S27: the file that the Parquet writer had begun is nobody's."""
    ended = write_killed("local-cluster[2,1,1024]", killing, 1, "executor/writing")
    assert names(killing / "kills") == ["executor-writing"]
    check_epochs(killing, ended)


def test_a_driver_killed_while_it_writes_a_file_writes_every_row_once(killing: Path) -> None:
    """S5, S11: the file and the directories of Spark's committer are swept by the next run."""
    ended = write_killed("local[2]", killing, 1, "driver/writing")
    assert ended.code == -signal.SIGKILL, ended.errors
    assert names(killing / "kills") == ["driver-writing"]
    assert [name for name in names(staging(killing / "table")) if name.endswith(".parquet")], "no file was begun"
    check_epochs(killing, write_killed("local[2]", killing, 1, ""))


def test_an_executor_killed_between_the_commit_of_its_task_and_the_report_writes_every_row_once(killing: Path) -> None:
    """S27: the task is run again, and what its first attempt has committed is replaced, not doubled."""
    ended = write_killed("local-cluster[2,1,1024]", killing, 12, "executor/committed")
    assert ended.code == 0, ended.errors
    again = [name for name in names(killing / "kills") if name.startswith("again-")]
    assert again, f"no kill came before its report: {names(killing / 'kills')}"
    assert again[0].replace("again", "killed") in names(killing / "kills")
    check_epochs(killing, ended)
