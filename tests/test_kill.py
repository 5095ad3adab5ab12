"""Real processes, really killed: every row is there once, and nothing acknowledged is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import txsink
from killed import EPOCHS, ROWS
from ledger import is_full, report
from txsink import paths

PRODUCER = Path(__file__).with_name("killed.py")
KILLS = 60
SECONDS_MAX = 600  # for a life, on a busy machine
SEEDS = range(20261118, 20261118 + (10 if is_full() else 1))


def start(table: Path, call: int, *epochs: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PRODUCER), str(table), str(call), *map(str, epochs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def acknowledged(output: str) -> set[int]:
    return {int(line.split()[1]) for line in output.splitlines() if line.startswith("committed")}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_producer_killed_sixty_times_writes_every_row_once(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I5, I9: two kills of three before a chosen store call, the third after a chosen line of output."""
    chance = random.Random(seed)
    table, kills, told = tmp_path / "orders", 0, set[int]()
    # Opening takes about 25 store calls and an epoch about 14, so that every phase of both is hit.
    for number in range(KILLS):
        by_call = number % 3 != 0
        lines = chance.randrange(1, 4)
        # It goes on after that line, but not to its end, however long the kill takes to come.
        child = start(table, chance.randrange(1, 60)) if by_call else start(table, 0, lines + 2)
        if not by_call:
            for _ in range(lines):
                assert child.stdout is not None
                told |= acknowledged(child.stdout.readline())
            child.kill()
        output, errors = child.communicate(timeout=SECONDS_MAX)
        told |= acknowledged(output)
        assert child.returncode == -signal.SIGKILL, errors
        kills += 1
        is_made = (table / paths.entry_path(0)).exists()
        committed = txsink.open_table(str(table)).writers().get("orders") if is_made else None
        last = -1 if committed is None or committed.last_epoch is None else committed.last_epoch
        assert last >= max(told, default=-1), "an acknowledged epoch is gone"
    output, errors = start(table, 0).communicate(timeout=SECONDS_MAX)
    assert kills == KILLS, "fewer kills were delivered than planned"
    assert max(acknowledged(output)) == EPOCHS - 1, errors
    with capsys.disabled():
        faults = {"kill before a store call": (KILLS, kills)}
        report("kills", "local disk", faults, {"epochs committed": EPOCHS})

    query = "select count(*), count(distinct id), min(id), max(id) from read_parquet(?, hive_partitioning = true)"
    (seen,) = duckdb.sql(query, params=[f"{table}/**/*.parquet"]).fetchall()
    assert seen == (EPOCHS * ROWS, EPOCHS * ROWS, 0, EPOCHS * ROWS - 1)
    by_log = txsink.open_table(str(table)).to_arrow()["id"].to_pylist()
    assert sorted(by_log) == list(range(EPOCHS * ROWS))
    assert [one for one in Path(paths.default_staging_root(str(table))).rglob("*") if one.is_file()] == []
