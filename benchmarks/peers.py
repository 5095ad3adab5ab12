"""Per epoch against deltalake, at several ages of the table.

deltalake does not sync on local disk: what it reports as written is lost by a power cut. So txsink is measured twice,
as it is and with its syncs left out, and deltalake twice as well: `write_deltalake`, and the least it can do for an
exactly-once writer, which is a kept handle brought up to date, a file written beforehand by pyarrow, and one commit
with a `txn` action, its log clean-up switched off.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.transaction import AddAction
from epochs import txsink_write
from measure import Finding, Scale, alternate, ms, p50, scratch, table, unsynced_writer

import txsink

QUIET = PostCommitHookProperties(cleanup_expired_logs=False)


class Delta:
    """A Delta table and its kept handle."""

    def __init__(self, root: Path, rows: pa.Table) -> None:
        self.root = root
        write_deltalake(str(root), rows.slice(0, 0))
        self.handle = DeltaTable(str(root))
        self.schema = self.handle.schema()
        self.committed = 0

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.root), rows, mode="append")
        self.committed += 1

    def commit(self, rows: pa.Table) -> None:
        self.committed += 1
        path = self.root / f"part-{self.committed}.parquet"
        pq.write_table(rows, str(path), compression="zstd")
        self.handle.update_incremental()
        action = AddAction(path.name, path.stat().st_size, {}, 0, True, json.dumps({"numRecords": rows.num_rows}))  # noqa: FBT003
        self.handle.create_write_transaction(
            [action],
            mode="append",
            schema=self.schema,
            commit_properties=CommitProperties(app_transactions=[Transaction("bench", self.committed)]),
            post_commithook_properties=QUIET,
        )


def run(scale: Scale) -> list[Finding]:
    rows, tiny, rounds = table(10_000), table(10), scale.of(40, 10)
    findings: list[Finding] = []
    with scratch(scale.root, "peers") as directory:
        written, committed = Delta(directory / "written", rows), Delta(directory / "committed", rows)
        for age in (10, 100, 1_000, 3_000) if not scale.is_quick else (10, 200):
            for delta in (written, committed):
                while delta.committed < age:
                    delta.commit(tiny)
            grow(directory, age, tiny)
            findings += _compare(directory, rows, rounds, (written, committed), age)
    return findings


def grow(directory: Path, age: int, rows: pa.Table) -> None:
    for name in ("synced", "unsynced"):
        with unsynced_writer(directory / name, "bench") as sink:
            for epoch in range(_next(sink), age):
                txsink_write(sink, epoch, rows)


def _compare(directory: Path, rows: pa.Table, rounds: int, deltas: tuple[Delta, Delta], age: int) -> list[Finding]:
    written, committed = deltas
    with (
        txsink.open_writer(str(directory / "synced"), "bench") as sink,
        unsynced_writer(directory / "unsynced", "bench") as unsynced,
    ):
        times = alternate(
            rounds,
            {
                "txsink": lambda _: txsink_write(sink, _next(sink), rows),
                "unsynced": lambda _: txsink_write(unsynced, _next(unsynced), rows),
                "write_deltalake": lambda _: written.append(rows),
                "create_write_transaction": lambda _: committed.commit(rows),
            },
        )
    middle = {name: p50(seconds) for name, seconds in times.items()}
    goal = None if age <= 100 else 1.0
    return [
        Finding(
            f"age {age:,}: {ours} / deltalake's {theirs}",
            ms(middle[name]),
            ms(middle[theirs]),
            middle[name] / middle[theirs],
            goal,
        )
        for name, ours in (("txsink", "txsink"), ("unsynced", "txsink without its syncs"))
        for theirs in ("write_deltalake", "create_write_transaction")
    ]


def _next(sink: txsink.Writer) -> int:
    last = sink.last_epoch
    return 0 if last is None else last + 1
