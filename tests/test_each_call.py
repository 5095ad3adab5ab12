"""What a single call of the protocol is for, where nothing else showed that it is made, or when (`mutation.py`)."""

from __future__ import annotations

import threading

import deltalake
import pyarrow as pa
import pytest

from place import Place, commit, rows
from seen import names
from txsink import paths
from txsink.errors import FencedError, InvalidRequestError
from txsink.protocol import preparing
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore

# -- prepare ------------------------------------------------------------------------------------------------


def test_a_fenced_run_hears_so_also_when_the_next_one_has_committed_its_epoch(place: Place) -> None:
    """I10: its files were swept, and it is told why before it is told that the epoch is committed."""
    old = place.sink()
    txn = old.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    commit(place.sink(), 1)
    with pytest.raises(FencedError):
        txn.commit()


def test_a_commit_is_durable_before_a_transaction_whose_files_were_swept_believes_in_it(place: Place) -> None:
    """I3: its process may not have come to sync it."""
    sink, other = place.sink(run="r"), place.sink(run="r", recover=False)
    slow = sink.begin(0)
    slow.add(slow.stager().stage(rows(1)))
    commit(other, 0)
    other.sweep()
    sink.log.store = store = FaultyStore(LocalStore())
    assert slow.commit().outcome == "already-committed"
    assert ("settle", f"{place.path}/{paths.entry_path(other.log.state.version)}") in store.trace


@pytest.mark.parametrize(("run", "error"), [("r1", InvalidRequestError), ("r2", FencedError)])
def test_an_epoch_that_delta_tells_of_is_looked_up_in_the_newest_log(
    place: Place, run: str, error: type[Exception]
) -> None:
    """I1, I10: Delta's log knows only that a later epoch is committed, not by whom, nor that this one was skipped."""
    old = place.sink(run="r1", layout="delta")
    slow = old.begin(1)
    slow.write(rows(1))
    commit(place.sink(run=run), 5)
    with pytest.raises(error, match="retired by" if error is FencedError else "never committed"):
        slow.prepare()


def test_a_run_that_rewinds_hears_that_it_is_fenced_also_when_the_next_one_rewinds(place: Place) -> None:
    """I10."""
    old = place.sink()
    commit(old, 1, 2)
    new = place.sink(recover=False)
    preparing.rewind(new.log, new.identity, new.publisher, 1)
    with pytest.raises(FencedError):
        preparing.rewind(old.log, old.identity, old.publisher, 1)


# -- Delta --------------------------------------------------------------------------------------------------


def test_a_run_that_leaves_nothing_staged_takes_its_mark_away(place: Place) -> None:
    """I9: else each later run would list the table to look for what it left."""
    marks = place.path / paths.MARK_DIRECTORY
    with place.sink(layout="delta") as sink:
        commit(sink, 1)
        assert len(names(marks)) == 1
    assert names(marks) == []


@pytest.mark.parametrize("is_used", [False, True])
def test_a_run_that_is_over_waits_for_the_checkpoint_it_makes(place: Place, is_used: bool) -> None:
    """Whether it leaves its mark or takes it away."""
    sink = place.sink(layout="delta")
    if is_used:
        commit(sink, 1)
    over = threading.Event()
    delta = sink.publisher.delta  # type: ignore[attr-defined]
    delta.upkeep = checkpoint = threading.Thread(target=over.wait)
    checkpoint.start()
    closing = threading.Thread(target=sink.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    over.set()
    closing.join()
    assert not checkpoint.is_alive()


def test_a_delta_table_that_is_there_is_written_into(place: Place) -> None:
    """I1: as such, and as it is partitioned, though a new table would not be one here."""
    deltalake.write_deltalake(str(place.path), pa.table({"id": [1], "day": ["a"]}), partition_by=["day"])
    with place.sink() as sink:
        assert (sink.log.state.layout, sink.log.state.partition_columns) == ("delta", ("day",))
