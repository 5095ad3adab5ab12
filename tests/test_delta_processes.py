"""Eight real processes on one Delta table: each epoch of each writer lands once; of one writer one run lives (I10)."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from txsink.errors import FencedError
from txsink.writing.opening import open_writer

PROCESSES, EPOCHS = 8, 25


def write(path: str, writer: str, number: int, start: Any, told: Any) -> None:
    """A process: as many epochs as it gets to write."""
    sink = open_writer(path, writer, layout="delta")
    start.wait(60)
    done = []
    try:
        for _ in range(EPOCHS):
            epoch = 0 if sink.last_epoch is None else sink.last_epoch + 1
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch], "by": [number]})
            if txn.outcome == "committed":
                done.append(epoch)
        sink.close()
        told.put((number, "lived", done))
    except FencedError:
        told.put((number, "fenced", done))


def run(path: Path, writers: list[str]) -> list[tuple[int, str, list[int]]]:
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=write, args=(str(path), writer, number, start, told))
        for number, writer in enumerate(writers)
    ]
    for one in processes:
        one.start()
    found = [told.get(timeout=300) for _ in processes]
    for one in processes:
        one.join(60)
        assert one.exitcode == 0
    return found


def rows_of(path: Path) -> Counter[tuple[int, int]]:
    table = pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())
    versions = sorted(int(one.name[:20]) for one in (path / "_delta_log").glob("*.json"))
    assert versions == list(range(len(versions)))
    return Counter(zip(table["by"].to_pylist(), table["id"].to_pylist(), strict=True))


@pytest.mark.parametrize("is_one_writer", [False, True])
def test_eight_processes_write_every_epoch_once(tmp_path: Path, is_one_writer: bool) -> None:
    path = tmp_path / "T"
    told = run(path, ["w" if is_one_writer else f"w{number}" for number in range(PROCESSES)])
    seen = rows_of(path)
    lived = [number for number, end, _ in told if end == "lived"]
    acknowledged = {(number, epoch) for number, _, done in told for epoch in done}
    assert set(seen.values()) == {1}
    assert acknowledged <= seen.keys()
    if not is_one_writer:
        assert sorted(lived) == list(range(PROCESSES))
        assert seen.keys() == {(number, epoch) for number in range(PROCESSES) for epoch in range(EPOCHS)}
        return
    assert len(lived) == 1
    assert sorted(epoch for _, epoch in seen) == list(range(EPOCHS))
