"""1,000 epochs of 10,000 rows against the least that is durable: write, fsync, rename, fsync of the directory.

The floor is that write with the system calls an epoch needs besides (two durable entries, a durable staged name) and
no other work. It is made once with its syncs in turn and once with those overlapped that do not wait for each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread

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


def floor(directory: Path, number: int, rows: pa.Table, *, overlaps: bool) -> None:
    """What is left of an epoch when nothing is checked."""
    run, log, table = (directory / name for name in ("run", "log", "table"))
    staged, goal = run / f"{number}.parquet", table / f"{number}.parquet"
    with staged.open("wb") as file:
        pq.write_table(rows, file, **SETTINGS)
        file.flush()
        data = partial(os.fsync, file.fileno())
        name = partial(sync_directory, str(run))
        if not overlaps:
            data()
            name()
        put(log, f"{number}-prepare", (data, name) if overlaps else ())
    os.link(staged, goal)
    publish = partial(sync_directory, str(table))
    if not overlaps:
        publish()
    put(log, f"{number}-commit", (publish,) if overlaps else ())
    staged.unlink()


def put(log: Path, name: str, meanwhile: Sequence[Callable[[], None]]) -> None:
    """A durable entry; what else is to be durable before it has its name is synced by threads meanwhile."""
    hidden = log / f".{name}.tmp"
    with hidden.open("wb") as file:
        file.write(b"x" * 500)
        file.flush()
        threads = [Thread(target=sync) for sync in meanwhile]
        for thread in threads:
            thread.start()
        os.fsync(file.fileno())
        for thread in threads:
            thread.join()
    os.link(hidden, log / name)
    sync_directory(str(log))
    hidden.unlink()


def txsink_write(sink: txsink.Writer, number: int, rows: pa.Table) -> None:
    with sink.begin(number) as txn:
        txn.write(rows)


def run(scale: Scale) -> list[Finding]:
    rows = table(10_000)
    with scratch(scale.root, "epochs") as directory:
        (directory / "bare").mkdir()
        for kind in ("turn", "overlap"):
            for name in ("run", "log", "table"):
                (directory / kind / name).mkdir(parents=True)
        with txsink.open_writer(str(directory / "table"), "bench") as sink:
            times = alternate(
                scale.of(1_000, 100),
                {
                    "bare": lambda number: bare_write(directory / "bare", number, rows),
                    "txsink": lambda number: txsink_write(sink, number, rows),
                    "turn": lambda number: floor(directory / "turn", number, rows, overlaps=False),
                    "overlap": lambda number: floor(directory / "overlap", number, rows, overlaps=True),
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
        *(
            Finding(
                f"{what} / bare durable write", ms(p50(times[name])), ms(p50(theirs)), p50(times[name]) / p50(theirs)
            )
            for what, name in (("floor: its system calls alone", "turn"), ("floor, syncs overlapped", "overlap"))
        ),
    ]
