"""1,000 epochs of 10,000 rows against the least that is durable: write, fsync, rename, fsync of the directory."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Finding, Scale, alternate, ms, p50, scratch, sync_directory, table

import txsink

# As txsink writes, but for its page checksums and its choice of dictionary columns.
SETTINGS = {"compression": "zstd"}


def bare_write(directory: Path, number: int, rows: pa.Table) -> None:
    """A Parquet file that is there after a power cut, and no log: nobody knows which epoch it was."""
    hidden, name = str(directory / f".{number}.tmp"), str(directory / f"{number}.parquet")
    with open(hidden, "wb") as file:  # noqa: PTH123 -- as bare as it gets
        pq.write_table(rows, file, **SETTINGS)
        file.flush()
        os.fsync(file.fileno())
    os.rename(hidden, name)  # noqa: PTH104 -- the same
    sync_directory(str(directory))


def txsink_write(sink: txsink.Sink, number: int, rows: pa.Table) -> None:
    with sink.begin(number) as txn:
        txn.write(rows)


def run(scale: Scale) -> list[Finding]:
    rows = table(10_000)
    with scratch(scale.root, "epochs") as directory:
        (directory / "bare").mkdir()
        with txsink.open_writer(str(directory / "table"), "bench") as sink:
            times = alternate(
                scale.of(1_000, 100),
                {
                    "bare": lambda number: bare_write(directory / "bare", number, rows),
                    "txsink": lambda number: txsink_write(sink, number, rows),
                },
            )
    ours, theirs = (sorted(times[name]) for name in ("txsink", "bare"))
    worst = -len(ours) // 100
    return [
        Finding(
            f"{len(ours):,} epochs of 10,000 rows, p50 per epoch / bare durable write",
            ms(p50(ours)),
            ms(p50(theirs)),
            p50(ours) / p50(theirs),
            1.5,
        ),
        Finding("the same, p99", ms(ours[worst]), ms(theirs[worst]), ours[worst] / theirs[worst]),
    ]
