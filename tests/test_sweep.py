"""Clearing up: orphans go, by the log and never by age; what a run may still name stays."""

from __future__ import annotations

import shutil

import pytest

from place import Place, commit, kinds, prepared, rows, stage_only, staged_files
from seen import names, rows_of, staging
from txsink import paths
from txsink.errors import CorruptError, FencedError
from txsink.protocol import fencing, sweeping
from txsink.publish.decision import Action
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink

# -- sweep --------------------------------------------------------------------------------------------------


def test_losing_attempts_are_swept_and_the_reported_one_is_published(place: Place) -> None:
    """F16, S27."""
    sink = place.sink()
    txn = sink.begin(1)
    stager = txn.stager()
    stager.stage(rows(1))
    txn.add(stager.stage(rows(1)))
    txn.commit()
    assert (rows_of(place.path), len(staged_files(place))) == ([1], 1)
    swept = sink.sweep(dry_run=True)
    assert [one.action for one in swept] == [Action.DROP_STAGED]
    assert len(staged_files(place)) == 1
    assert sink.sweep() == swept
    assert (rows_of(place.path), staged_files(place), sink.sweep()) == ([1], [], [])


def test_what_a_live_run_stages_is_not_swept(place: Place) -> None:
    """I8, never by age."""
    sink = place.sink()
    txn = sink.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    pending = prepared(sink, 0, rows(0))
    assert [one.action for one in sink.sweep()] == [Action.KEEP] * 2
    assert len(pending.files) == 1
    txn.commit()
    assert rows_of(place.path) == [0, 1]


def test_a_run_that_never_claimed_is_retired_before_its_files_go_and_stays_fenced(place: Place) -> None:
    """I10."""
    place.write(0, rows(0))
    slow = open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True)
    txn = slow.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    sink = place.sink(recover=False)
    assert staged_files(place) == []
    assert "claim" in kinds(place)
    assert place.table().history(1)[0].note == f"retires {slow.run}"
    with pytest.raises(FencedError) as caught:
        txn.commit()
    assert "retired" in str(caught.value)
    commit(sink, 1)
    with pytest.raises(FencedError), slow.begin(2) as late:
        late.write(rows(2))
    assert rows_of(place.path) == [0, 1]


def test_a_dry_run_retires_nobody_and_says_what_would_be_done(place: Place) -> None:
    sink = place.sink()
    slow = open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True)
    txn = slow.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    before = names(place.path.parent)
    listed = sink.publisher.left(None, ())
    assert [one.action for one in sink.sweep(dry_run=True)] == [Action.DROP_STAGED]
    nobody = fencing.Run("", "", 0)
    swept = sweeping.sweep(sink.log, nobody, sink.publisher, listed, dry_run=True)
    assert [one.action for one in swept] == [Action.RETIRE]
    assert names(place.path.parent) == before


def test_unclaimed_files_of_another_writer_are_left_alone(place: Place) -> None:
    """I15."""
    sink = place.sink()
    other = open_sink(LocalStore(), place.stamps, str(place.path), "v", {}, is_one_shot=True)
    stage_only(other, 1)
    version = sink.log.state.version
    listed = sink.publisher.left(None, ())
    swept = sweeping.sweep(sink.log, sink.identity, sink.publisher, listed)
    assert [one.action for one in swept] == [Action.RETIRE]
    assert len(staged_files(place)) == 1
    assert sink.log.refresh().version == version


def test_a_fenced_run_sweeps_nothing(place: Place) -> None:
    """I10: no delete after the claim that retired it."""
    old = place.sink()
    stage_only(old, 1)
    place.sink("w", recover=False)
    left = staged_files(place)
    with pytest.raises(FencedError):
        old.sweep()
    assert staged_files(place) == left


def test_a_staged_copy_of_a_committed_file_goes_and_the_only_copy_stays(place: Place) -> None:
    """I6, I8."""
    sink = place.sink()
    prepare = prepared(sink, 1, rows(1))
    (copy,) = staging(place.path).rglob("*.parquet")
    data = copy.read_bytes()
    sink.commit(1)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(data)
    assert [one.action for one in sink.sweep()] == [Action.DROP_STAGED]
    assert rows_of(place.path) == [1]
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(data)
    target = place.path / prepare.files[0].path
    for damage in (target.unlink, lambda: target.write_bytes(b"other")):
        damage()
        with pytest.raises(CorruptError, match="may be the only copy"):
            sink.sweep()
        assert copy.read_bytes() == data


def test_files_txsink_did_not_make_are_left_alone(place: Place) -> None:
    sink = place.sink()
    for name in ("notes.txt", "w/notes.txt", f"w/{sink.run}/x.parquet", "w/r/part-1-0-zz.parquet"):
        path = staging(place.path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    assert sink.sweep() == []
    place.sink().close()
    assert len(staged_files(place)) == 4


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_a_sweep_leaves_no_directory_of_what_it_deleted(place: Place, table_layout: str) -> None:
    """I9."""
    dead = place.sink(partition_by=["p"], layout=table_layout)
    dead.begin(1).stager().stage({"id": [1, 2], "p": ["a", "b"]})
    assert list(place.path.parent.rglob("p=*"))
    place.sink()
    assert not list(place.path.parent.rglob("p=*"))
    assert not list(place.path.parent.rglob(dead.run))


def test_half_made_log_objects_are_deleted_and_nothing_else(place: Place) -> None:
    place.write(1, rows(1))
    before = names(place.path)
    for directory in ("_txsink", "_txsink/log", "_txsink/state", "_txsink/files"):
        half = place.path / paths.temporary_path(f"{directory}/x", "ab")
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"half")
    log = place.table().log
    planned = sweeping.temporaries(log, dry_run=True)
    assert len(planned) == 4
    assert len(names(place.path)) == len(before) + 4
    assert sweeping.temporaries(log) == planned
    assert (names(place.path), sweeping.temporaries(log)) == (before, [])


# -- forget -------------------------------------------------------------------------------------------------


def test_an_abort_of_what_was_never_prepared_keeps_what_another_entry_names(place: Place) -> None:
    """I8: the log is asked first."""
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    prepare = prepared(sink, 0, rows(0))
    txn.abort()
    assert [name.rpartition("/")[2] for name in staged_files(place)] == [prepare.files[0].path]
    sink.commit(0)
    assert rows_of(place.path) == [0]


def test_a_run_that_was_retired_forgets_nothing(place: Place) -> None:
    """I10."""
    old = place.sink()
    txn = old.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    new = place.sink(recover=False)
    file = staging(place.path) / "w" / old.run / "part-1-0-abcd.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    txn.abort()
    assert file.exists()
    new.sweep()
    assert not file.exists()


@pytest.mark.parametrize("is_blocked", [False, True], ids=["", "no log"])
def test_a_writer_that_is_closed_after_a_restore_leaves_the_mark_that_leads_to_what_it_had_staged(
    place: Place, *, is_blocked: bool
) -> None:
    """I9. Seen: it deleted the mark of its run, and no sweep found the file that had come back with the table."""
    sink = place.sink(layout="delta")
    txn = sink.begin(0)
    txn.write(rows(0))
    assert txn._stager is not None
    txn._stager.finish()
    copy, gone = place.path.with_name("copy"), place.path.with_name("gone")
    shutil.copytree(place.path, copy)
    txn.commit()
    place.path.rename(gone)
    if is_blocked:
        sink.close()
    copy.rename(place.path)
    sink.close()
    assert len([*place.path.glob("*.parquet")]) == 1
    place.sink().close()
    assert [*place.path.glob("*.parquet"), *place.path.glob(f"{paths.MARK_DIRECTORY}/*/*")] == []


@pytest.mark.parametrize("is_aborted", [False, True], ids=["", "the log is as it was"])
@pytest.mark.parametrize("by", ["this process", "a worker"])
def test_a_writer_whose_mark_is_gone_after_a_restore_leaves_it_once_more(
    place: Place, by: str, *, is_aborted: bool
) -> None:
    """I9. Seen: what it staged then, and died, was found by no sweep."""
    sink = place.sink(layout="delta")
    copy = place.path.with_name("copy")
    shutil.copytree(place.path, copy)
    first = sink.begin(0)
    first.write(rows(0))
    first.abort() if is_aborted else first.commit()
    shutil.rmtree(place.path)
    copy.rename(place.path)
    txn = sink.begin(1)
    if by == "a worker":
        txn.stager().stage(rows(1))
    else:
        txn.write(rows(1))
        assert txn._stager is not None
        txn._stager.finish()
    assert len([*place.path.glob("*.parquet")]) == 1  # and the process died
    place.sink().close()
    assert [*place.path.glob("*.parquet"), *place.path.glob(f"{paths.MARK_DIRECTORY}/*/*")] == []
