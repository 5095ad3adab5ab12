"""An outcome is committed, not committed or unknown, and unknown deletes nothing (I11)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from txsink.environment import stamps
from txsink.errors import OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, fail_before
from txsink.writing.opening import open_sink, open_writer

ROW = pa.table({"x": [1]})


def test_an_epoch_whose_abort_was_acknowledged_never_commits(tmp_path: Path) -> None:
    """I11: the put of the prepare entry lands, and the look back at the entry before it fails."""
    for call in itertools.count(1):
        path = str(tmp_path / str(call))
        store = FaultyStore(LocalStore())
        txn = open_sink(store, stamps(), path, "w", {}).begin(1)
        txn.write(ROW)
        store.plan.append(fail_before(store.calls + call))
        try:
            txn.prepare()
        except TxsinkError:
            txn.abort()
        else:
            break
        if txn.outcome == "aborted":
            assert open_writer(path, "w").last_epoch is None, f"store call {call}: aborted, then committed"


def test_unavailable_means_that_nothing_landed(tmp_path: Path) -> None:
    """I11."""
    unknown = 0
    for call in itertools.count(1):
        path = tmp_path / str(call)
        store = FaultyStore(LocalStore())
        txn = open_sink(store, stamps(), str(path), "w", {}).begin(1)
        txn.write(ROW)
        store.plan.append(fail_before(store.calls + call))
        try:
            txn.prepare()
        except UnavailableError:
            entries = (path / "_txsink" / "log").iterdir()
            assert not any(b'"kind":"prepare"' in entry.read_bytes() for entry in entries), call
        except OutcomeUnknownError:
            unknown += 1
        else:
            break
    assert unknown


def test_what_a_closed_writer_had_prepared_is_committed_by_the_next(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with open_writer(path, "w") as sink:
        txn = sink.begin(1)
        txn.write(ROW)
        txn.prepare()
    assert open_writer(path, "w").last_epoch == 1


@pytest.mark.parametrize("ends", ["closed", "aborted", "died"])
def test_no_empty_directory_stays_in_the_staging_root(tmp_path: Path, ends: str) -> None:
    """I9."""
    path = str(tmp_path / "t")
    sink = open_writer(path, "w", row_group_rows=1)
    txn = sink.begin(1)
    txn.write(ROW)
    if ends != "closed":
        txn.prepare()
        if ends == "died":  # in the middle of its commit
            sink.publisher.publish(sink.log.prepare_entry(sink.log.state.pending[0].prepared))
        sink = open_writer(path, "w", recover=ends == "died")
    if ends == "aborted":
        sink.abort(1)
    sink.close()
    assert list((tmp_path / ".t.txsink" / "w").rglob("*")) == []
