"""A writer's work that takes every road into a table, and what must be there after any part of it.

Each epoch commits in another way: by `write`, by the two-phase verbs, after an abort, by a stager, by pyarrow's own C++
writer (files of another program, adopted), without rows, by an overwrite of one partition. What it has committed (or
prepared, in two phases) it tells in a file beside, which is what "acknowledged" means here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from seen import names, staging
from txsink.environment import stamps
from txsink.errors import TxsinkError
from txsink.paths import partition_directory
from txsink.reading.table import open_table
from txsink.schema import columns_of
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

ROWS = 6
Row = tuple[int, int]
Say = Callable[[int], None]  # that an epoch cannot be lost any more


class OwnError(Exception):
    """What the work does without txsink has failed: another program's files, telling."""


@contextmanager
def own() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OwnError from error


def rows_of(epoch: int) -> list[Row]:
    return [(one, one % 2) for one in range(epoch * ROWS, (epoch + 1) * ROWS)]


def data_of(rows: list[Row]) -> pa.Table:
    return pa.table({"id": [one for one, _ in rows], "day": [day for _, day in rows]})


# -- the roads ------------------------------------------------------------------------------------------------


def by_write(sink: Writer, epoch: int, say: Say) -> None:
    with sink.begin(epoch, metadata={"next": epoch + 1}) as txn:
        txn.write(data_of(rows_of(epoch)))


def by_two_phases(sink: Writer, epoch: int, say: Say) -> None:
    txn = sink.begin(epoch)
    txn.write(data_of(rows_of(epoch)))
    txn.prepare()
    say(epoch)  # from here on recovery commits it
    txn.commit()


def after_an_abort(sink: Writer, epoch: int, say: Say) -> None:
    dropped = sink.begin(epoch)
    dropped.write(data_of(rows_of(epoch)))  # the same rows: a crash before the abort lands rolls forward
    dropped.prepare()
    dropped.abort()
    by_write(sink, epoch, say)


def by_a_stager(sink: Writer, epoch: int, say: Say) -> None:
    with sink.begin(epoch) as txn:
        txn.add(txn.stager().stage(data_of(rows_of(epoch))))


def by_another_program(sink: Writer, epoch: int, say: Say) -> None:
    """Its files are opened, written and closed by C++, without any sync."""
    with sink.begin(epoch) as txn:
        guest = txn.guest()
        for day in (0, 1):
            directory = Path(guest.path) / partition_directory(["day"], [str(day)])
            rows = data_of([row for row in rows_of(epoch) if row[1] == day])
            with own():
                directory.mkdir(parents=True)
                pq.write_table(rows.select(["id"]), str(directory / "part-0.parquet"))
        txn.add(guest.adopt(columns_of(rows.schema), sink.log.stamps.new_id))


def without_rows(sink: Writer, epoch: int, say: Say) -> None:
    sink.begin(epoch).commit()


def by_overwrite(sink: Writer, epoch: int, say: Say) -> None:
    with sink.begin(epoch, mode="overwrite", partition_overwrite="dynamic") as txn:
        txn.write(data_of(odd(epoch)))


def odd(epoch: int) -> list[Row]:
    return [row for row in rows_of(epoch) if row[1] == 1]


ROADS: tuple[Callable[[Writer, int, Say], None], ...] = (
    by_write,
    by_two_phases,
    by_another_program,
    by_a_stager,
    after_an_abort,
    by_overwrite,
    without_rows,
    by_write,
)
LAST = len(ROADS) - 1


def content(last: int | None) -> list[Row]:
    """The rows of a table whose last committed epoch that is."""
    found: list[Row] = []
    for epoch in range(0 if last is None else last + 1):
        if ROADS[epoch] is by_overwrite:
            found = [row for row in found if row[1] == 0] + odd(epoch)
        elif ROADS[epoch] is not without_rows:
            found += rows_of(epoch)
    return sorted(found)


def travel(path: Path, told: Path, system: ModuleType = os, after: Callable[[], object] = int) -> None:
    """Do what is left of the work, telling each epoch once it is committed; `after` that, something else."""

    def say(epoch: int) -> None:
        with own():
            tell(told, epoch)
        after()

    store = LocalStore(system)
    with open_sink(store, stamps(), str(path), "orders", {"partition_by": ("day",)}) as sink:
        for epoch in range(0 if sink.last_epoch is None else sink.last_epoch + 1, len(ROADS)):
            ROADS[epoch](sink, epoch, say)
            say(epoch)


def tell(told: Path, epoch: int) -> None:
    # It is no part of the table: told in one call that a fault can hit, but that nothing tears.
    handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, b"%d\n" % epoch)
    finally:
        os.close(handle)


def acknowledged(told: Path) -> int:
    return max(map(int, told.read_text().split()), default=-1) if told.exists() else -1


# -- what is seen -----------------------------------------------------------------------------------------------


def by_log(path: Path) -> list[Row]:
    found = open_table(str(path)).to_arrow()
    return pairs(found) if found.num_columns else []


def pairs(table: Any) -> list[Row]:
    return sorted(zip(table["id"].to_pylist(), table["day"].to_pylist(), strict=True))


def by_duckdb(path: Path) -> list[Row]:
    if not any(path.rglob("*.parquet")):
        return []
    query = "select id, day from read_parquet(?, hive_partitioning = true) order by id, day"
    with duckdb.connect() as engine:
        return engine.execute(query, [f"{path}/**/*.parquet"]).fetchall()


def faults_before_recovery(path: Path) -> list[str]:
    """What no reader may see at any moment: a part of an epoch (by the log), a row twice (in the directory)."""
    if not any(path.glob("_txsink/log/*.json")):
        return []  # what is acknowledged and gone is seen after recovery
    committed = open_table(str(path)).writers().get("orders")
    last = None if committed is None else committed.last_epoch
    found: list[str] = []
    try:
        rows = by_log(path)
    except TxsinkError as error:
        # Files that an overwrite has begun to replace wait for recovery, and the reader is told so.
        rows = content(last)
        if not open_table(str(path)).pending():
            found.append(f"I1: a reader of the log fails: {error}")
    if rows != content(last):
        found.append(f"I2: before recovery the log shows {len(rows)} rows of epochs up to {last}")
    twice = [row for row, count in Counter(by_duckdb(path)).items() if count > 1]
    return [*found, *(f"I1: the directory shows {row} twice" for row in twice)]


def faults_of(path: Path, told: Path) -> list[str]:
    """All that is wrong after any crash: looked at, recovered, looked at, worked on to the end, looked at."""
    found = faults_before_recovery(path)
    with open_sink(LocalStore(), stamps(), str(path), "orders", {"partition_by": ("day",)}) as sink:
        last = sink.last_epoch
        if acknowledged(told) > (-1 if last is None else last):
            found.append(f"I3: epoch {acknowledged(told)} was acknowledged, {last} is the last one")
        found += seen_wrong(path, last)
    travel(path, told)
    return [*found, *(f"at the end: {one}" for one in seen_wrong(path, LAST))]


def seen_wrong(path: Path, last: int | None) -> list[str]:
    expected = content(last)
    found = []
    for reader, rows in (("the log", by_log(path)), ("the directory", by_duckdb(path))):
        if rows != expected:
            lost, more = (sorted((Counter(a) - Counter(b)).elements()) for a, b in ((expected, rows), (rows, expected)))
            found.append(f"I1: {reader} at epoch {last}: lost {lost}, too many {more}")
    found += [f"I6: {one.where} {one.what}" for one in open_table(str(path)).verify(deep=True)]
    if staging(path).exists():
        found += [f"I9: {name} is left in staging" for name in names(staging(path))]
    return found
