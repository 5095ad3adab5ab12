"""Writers that sleep while Delta's log is cleaned up: no dead commit ever counts (I1, I3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from place import Place, rows
from txsink.delta.log import _files_in
from txsink.errors import InvalidRequestError
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.opening import open_sink


def ids(path: Path) -> list[int]:
    return sorted(pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())["id"].to_pylist())


def opened(place: Place, store: Any, writer: str = "w") -> Any:
    return open_sink(store, place.stamps, str(place.path), writer, {"layout": "delta"})


def clean_up(path: Path, first: int, commits: int = 3) -> None:
    """Others commit, make a checkpoint, and forget every commit below it."""
    for at in range(commits):
        deltalake.write_deltalake(str(path), pa.table({"id": pa.array([first + at], pa.int64())}), mode="append")
    table = deltalake.DeltaTable(str(path))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table = deltalake.DeltaTable(str(path))
    table.create_checkpoint()
    table.cleanup_metadata()


def test_a_commit_into_a_slot_that_was_cleaned_up_is_made_again(place: Place) -> None:
    """At every store call of a commit the log moves on and forgets; the rows are there once afterwards."""
    reached = 0
    for call in range(1, 60):
        place.path = place.path.parent / f"t{call}"
        store = FaultyStore(LocalStore())
        sink = opened(place, store)
        for epoch in (0, 1):
            with sink.begin(epoch) as txn:
                txn.write(rows(epoch))
        store.plan.append(delay(store.calls + call, lambda: clean_up(place.path, 100)))
        with sink.begin(2) as txn:
            txn.write(rows(2))
        if not store.delivered:
            break
        reached += not (place.path / "_delta_log" / f"{1:020d}.json").exists()
        assert ids(place.path) == [0, 1, 2, 100, 101, 102]
        assert sorted(place.table().to_arrow()["id"].to_pylist()) == [0, 1, 2, 100, 101, 102]
        sink.close()
    assert reached > 5


@pytest.mark.parametrize("call", ["prepare", "commit", "abort"])
def test_a_writer_that_opened_at_a_checkpoint_outlives_the_clean_up_of_it(place: Place, call: str) -> None:
    """What deltalake read when the writer opened is gone when Delta's record of an epoch is asked for."""
    with opened(place, LocalStore()) as sink, sink.begin(0) as txn:
        txn.write(rows(0))
    clean_up(place.path, 100)
    deltalake.write_deltalake(str(place.path), pa.table({"id": pa.array([200], pa.int64())}), mode="append")
    sink = opened(place, LocalStore())
    txn = sink.begin(1)
    txn.write(rows(1))
    if call != "prepare":
        txn.prepare()
    clean_up(place.path, 300)
    clean_up(place.path, 400)
    if call == "abort":
        sink.abort(1)
        txn = sink.begin(1)
        txn.write(rows(1))
    if call != "commit":
        txn.prepare()
    sink.commit(1)
    with sink.begin(2) as txn:
        txn.write(rows(2))
    assert sink.last_epoch == 2
    assert ids(place.path) == [0, 1, 2, 100, 101, 102, 200, 300, 301, 302, 400, 401, 402]


def test_a_dead_commit_of_another_sleeper_is_not_believed(place: Place) -> None:
    """Two writers slept; what one of them put into a slot that is free again is not what the other goes on from."""
    first, second = opened(place, LocalStore()), opened(place, LocalStore(), "v")
    with first.begin(0) as txn:
        txn.write(rows(0))
    second.publisher.delta.refresh()
    clean_up(place.path, 100)
    # What a third one put there, and has not found out about yet.
    dead = place.path / "_delta_log" / f"{1:020d}.json"
    assert not dead.exists()
    dead.write_text('{"txn":{"appId":"v","version":7}}\n')
    assert second.publisher.delta.refresh().version > 1
    assert second.publisher.last_epoch("v") is None
    with second.begin(7) as txn:
        txn.write(rows(7))
    assert ids(place.path) == [0, 7, 100, 101, 102]


def test_the_middle_of_a_clean_up_fools_nobody(place: Place) -> None:
    """Commits go in any order: the one before a slot may stand when the slot is free again."""
    sink = opened(place, LocalStore())
    for epoch in (0, 1):
        with sink.begin(epoch) as txn:
            txn.write(rows(epoch))
    log = place.path / "_delta_log"
    kept = (log / f"{1:020d}.json").read_bytes()
    clean_up(place.path, 100)
    (log / f"{1:020d}.json").write_bytes(kept)
    with sink.begin(2) as txn:
        txn.write(rows(2))
    assert ids(place.path) == [0, 1, 2, 100, 101, 102]


def test_a_table_made_anew_under_the_path_takes_nothing_of_an_open_writer(place: Place) -> None:
    """Also when it has come to the very version that the writer knew."""
    sink = opened(place, LocalStore())
    for epoch in (0, 1):
        with sink.begin(epoch) as txn:
            txn.write(rows(epoch))
    log = place.path / "_delta_log"
    for one in log.iterdir():
        one.unlink()
    for at in range(2):
        deltalake.write_deltalake(str(place.path), pa.table({"id": pa.array([50 + at], pa.int64())}), mode="append")
    txn = sink.begin(2)
    txn.write(rows(2))
    with pytest.raises(Exception, match="the Delta table is another"):
        txn.commit()
    sink.abort(2)
    assert sink.pending == []
    assert [path.name for path in place.path.glob("part-2-*.parquet")] == []


class WithVectors:
    """A table whose files have deletion vectors, as deltalake shows it."""

    def protocol(self) -> Any:
        return type("Protocol", (), {"reader_features": ["deletionVectors"]})

    def deletion_vectors(self) -> Any:
        return pa.table({"filepath": ["x"]}).to_reader()


def test_files_whose_deletion_vectors_nobody_tells_are_not_replaced() -> None:
    """A remove action without its vector removes nothing: the rows would stay beside the new ones (I1)."""
    with pytest.raises(InvalidRequestError, match="deletionVectors"):
        _files_in(WithVectors())
