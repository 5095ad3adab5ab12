"""Whether an epoch costs the same in an old table as in a young one.

The old table is grown to epoch 9,000 without fsync, which changes no byte. Then the two are written in turns: the
young one from epoch 100 to 1,000, the old one from 9,000 to 9,900, so that both see the same minute of the machine.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from epochs import txsink_write
from measure import Finding, Scale, alternate, ms, p50, scratch, table, unsynced_writer

import txsink

TINY = 10


def run(scale: Scale) -> list[Finding]:
    return [_compare(scale, rows) for rows in (table(TINY), table(10_000))]


def _compare(scale: Scale, rows: pa.Table) -> Finding:
    old_from, rounds = scale.of(9_000, 900), scale.of(900, 90)
    with scratch(scale.root, "flat") as directory:
        starts = {"young": 100, "old": old_from}
        for name, count in starts.items():
            grow(directory / name, count)
        with (
            txsink.open_writer(str(directory / "young"), "bench") as young,
            txsink.open_writer(str(directory / "old"), "bench") as old,
        ):
            times = alternate(
                rounds,
                {
                    "young": lambda number: txsink_write(young, starts["young"] + number, rows),
                    "old": lambda number: txsink_write(old, starts["old"] + number, rows),
                },
            )
    ours, theirs = p50(times["old"]), p50(times["young"])
    return Finding(
        f"{rows.num_rows:,} rows per epoch: p50 of epochs {old_from:,}+ / p50 of epochs 100+ ({rounds} each)",
        ms(ours),
        ms(theirs),
        ours / theirs,
        1.1,
    )


def grow(root: Path, epochs: int, every: int = 1) -> None:
    """A table with `epochs` epochs of one small file; with `every`, only each of so many has a file."""
    rows = table(TINY)
    with unsynced_writer(root, "bench") as sink:
        for number in range(epochs):
            with sink.begin(number) as txn:
                if number % every == 0:
                    txn.write(rows)
