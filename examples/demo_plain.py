"""txsink in plain Python: write epochs, die in the middle of a publish, recover, prove every row is there once.

What `make demo` runs where Spark is not. It writes to `demo-data/` and leaves the table there to look at.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa

import txsink
from txsink.environment import stamps
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink

ROWS_PER_EPOCH = 50_000
EPOCHS = 6
FATAL_EPOCH = 3
FIRST_DAY = dt.date(2026, 1, 1)


def orders(epoch: int) -> pa.Table:
    """One epoch of orders over four days: ids are dense, so a lost or doubled row shows in any count."""
    ids = range(epoch * ROWS_PER_EPOCH, (epoch + 1) * ROWS_PER_EPOCH)
    return pa.table(
        {
            "order_id": pa.array(ids, pa.int64()),
            "day": pa.array([FIRST_DAY + dt.timedelta(days=i % 4) for i in ids], pa.date32()),
            "customer": pa.array([f"customer-{i % 997}" for i in ids]),
            "cents": pa.array([100 + i * 7 % 90_000 for i in ids], pa.int64()),
        }
    )


class DyingStore(LocalStore):
    """A disk whose writer is killed (SIGKILL, no clean-up of any kind) after publishing two of an epoch's files."""

    def move(self, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        super().move(moves[:2])
        print(f"  published {len(moves[:2])} of {len(moves)} files of this epoch, and now: kill -9", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return []


def write_epochs(path: str, first: int, *, dies_at: int | None) -> None:
    """The producer: resumes after the last committed epoch, as every restart does."""
    with txsink.open_writer(path, "orders", partition_by=["day"]) as writer:
        if writer.recovered and writer.recovered.committed:
            print(f"  recovery finished epoch {writer.recovered.committed[0]}, which the dead process had prepared")
        start = first if writer.last_epoch is None else writer.last_epoch + 1
        end = EPOCHS if dies_at is None else dies_at
        for epoch in range(start, end):
            with writer.begin(epoch, metadata={"next_order": (epoch + 1) * ROWS_PER_EPOCH}) as txn:
                txn.write(orders(epoch))
            print(f"  epoch {epoch}: {txn.result().rows:,} rows in {txn.result().files} files committed")
    if dies_at is not None:
        with open_sink(DyingStore(), stamps(), path, "orders", {}) as writer:
            txn = writer.begin(dies_at)
            txn.write(orders(dies_at))
            txn.commit()


def child(path: str) -> int:
    """Run the producer in a process of its own, which will not survive."""
    command = [sys.executable, __file__, "--path", path, "--die"]
    return subprocess.run(command, check=False).returncode


def seen_by_duckdb(path: str) -> tuple[int, int, int]:
    """What an independent reader of the plain directory sees: rows, distinct ids, sum of the money."""
    query = "select count(*), count(distinct order_id), sum(cents) from read_parquet(?, hive_partitioning = true)"
    (row,) = duckdb.sql(query, params=[f"{path}/**/*.parquet"]).fetchall()
    return row[0], row[1], int(row[2])


def main() -> int:
    """The story, in five steps. Exit code 0 only if the proof holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", default="demo-data/orders")
    parser.add_argument("--die", action="store_true")
    arguments = parser.parse_args()
    path = str(Path(arguments.path).resolve())
    if arguments.die:
        write_epochs(path, 0, dies_at=FATAL_EPOCH)
        return 1
    shutil.rmtree(Path(path).parent, ignore_errors=True)

    print(f"1. A producer writes epochs of {ROWS_PER_EPOCH:,} orders to {path}")
    code = child(path)
    print(f"   it ended with {'SIGKILL' if code == -signal.SIGKILL else code}")

    print("2. What the crash left, as the log tells it")
    table = txsink.open_table(path)
    for item in table.pending():
        print(f"   epoch {item.epoch} of {item.writer!r} is {item.state}: {item.files} files, {item.rows:,} rows")
    print(f"   rows an independent reader (DuckDB) sees now: {seen_by_duckdb(path)[0]:,}")

    print("3. The producer starts again")
    write_epochs(path, 0, dies_at=None)
    again = txsink.write(path, orders(EPOCHS - 1), writer="orders", epoch=EPOCHS - 1)
    print(f"   writing epoch {EPOCHS - 1} once more, as a replay would: {again.outcome}")

    print("4. The log")
    for record in reversed(txsink.open_table(path).history()):
        epoch = "" if record.epoch is None else f"epoch {record.epoch}"
        print(
            f"   {record.version:>3}  {record.kind:<12}{record.writer or '':<8}{epoch:<9}run {(record.run or '-')[:8]}"
        )

    print("5. The proof, by DuckDB over the plain directory")
    expected = EPOCHS * ROWS_PER_EPOCH
    money = sum(sum(orders(epoch)["cents"].to_pylist()) for epoch in range(EPOCHS))
    rows, distinct, cents = seen_by_duckdb(path)
    print(f"   rows {rows:,}, distinct ids {distinct:,}, cents {cents:,}; written {expected:,} and {money:,}")
    is_exact = code == -signal.SIGKILL and (rows, distinct, cents) == (expected, expected, money)
    print("   every row exactly once" if is_exact else "   NOT exactly once")
    return 0 if is_exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
