"""Per epoch on the Delta layout against `write_deltalake`, on a local disk, at several ages of the table.

All ages are measured in turns, so that each sees the same minutes of the machine. The tables are grown by txsink
without its syncs, which changes no byte, and deltalake gets a copy of each. Both keep house as they do in production:
txsink makes its checkpoints beside the epochs, deltalake within its commits. txsink syncs, deltalake never does.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from epochs import txsink_write
from measure import Finding, Scale, Unsynced, alternate, ms, p50, scratch, table

import txsink
from txsink.environment import stamps
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink

GOALS = {1_000: 0.5, 5_000: 0.5}


def grow(root: Path, epochs: int, rows: pa.Table) -> None:
    with open_sink(LocalStore(Unsynced()), stamps(), str(root), "bench", {"layout": "delta"}) as sink:
        for epoch in range(epochs):
            txsink_write(sink, epoch, rows)


def run(scale: Scale) -> list[Finding]:
    rows, tiny = table(10_000), table(10)
    ages = (20, 200) if scale.is_quick else (100, 1_000, 5_000)
    with scratch(scale.root, "delta") as directory:
        contestants, sinks = {}, []
        for age in ages:
            ours, theirs = directory / f"ours-{age}", directory / f"theirs-{age}"
            grow(ours, age, tiny)
            shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("_txsink"))
            sink = txsink.open_writer(str(ours), "bench")
            sinks.append(sink)
            contestants[f"txsink {age}"] = partial(_write, sink, age, rows)
            contestants[f"deltalake {age}"] = partial(_append, theirs, rows)
        os.sync()  # what growing left to be written is nobody's epoch
        times = alternate(scale.of(120, 20), contestants)
        for sink in sinks:
            sink.close()
    middle = {name: p50(seconds) for name, seconds in times.items()}
    worst = {name: sorted(seconds)[-1 - len(seconds) // 100] for name, seconds in times.items()}
    findings = []
    for age in ages:
        ours, theirs = middle[f"txsink {age}"], middle[f"deltalake {age}"]
        goal = f"version {age:,}: an epoch of 10,000 rows / write_deltalake"
        findings.append(Finding(f"{goal}, p50", ms(ours), ms(theirs), ours / theirs, GOALS.get(age)))
        ours, theirs = worst[f"txsink {age}"], worst[f"deltalake {age}"]
        findings.append(Finding("the same, p99", ms(ours), ms(theirs), ours / theirs))
    for name, limit in (("txsink", 1.2), ("deltalake", None)):
        old, young = middle[f"{name} {ages[-1]}"], middle[f"{name} {ages[0]}"]
        findings.append(
            Finding(f"{name}: p50 at version {ages[-1]:,} / at {ages[0]:,}", ms(old), ms(young), old / young, limit)
        )
    return findings


def _write(sink: txsink.Writer, age: int, rows: pa.Table, number: int) -> None:
    txsink_write(sink, age + number, rows)


def _append(root: Path, rows: pa.Table, number: int) -> None:  # noqa: ARG001 -- epochs have no number there
    write_deltalake(str(root), rows, mode="append")
