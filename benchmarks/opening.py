"""Opening a writer on a table of 100,000 epochs against one of 100.

Both are grown without fsync (every tenth epoch has a file, the others none), then opened in turns on the real
store. After each round both commit one epoch, untimed, as a job does that was started to write something.
"""

from __future__ import annotations

from pathlib import Path

from flat import grow
from measure import Finding, Scale, alternate, ms, p50, scratch, table

import txsink


def run(scale: Scale) -> list[Finding]:
    ages = {"young": 100, "old": scale.of(100_000, 2_000)}
    rows = table(10)
    with scratch(scale.root, "opening") as directory:
        for name, epochs in ages.items():
            grow(directory / name, epochs, every=10)

        def commit(number: int) -> None:
            for name, epochs in ages.items():
                txsink.write(str(directory / name), rows, writer="bench", epoch=epochs + 1_000 + number)

        times = alternate(
            scale.of(200, 50),
            {name: lambda _, root=directory / name: _open(root) for name in ages},
            after=commit,
        )
    ours, theirs = p50(times["old"]), p50(times["young"])
    return [
        Finding(f"open a writer at {ages['old']:,} epochs / at 100", ms(ours), ms(theirs), ours / theirs, 3.0),
        Finding(
            "the same, slowest", ms(max(times["old"])), ms(max(times["young"])), max(times["old"]) / max(times["young"])
        ),
    ]


def _open(root: Path) -> None:
    txsink.open_writer(str(root), "bench").close()
