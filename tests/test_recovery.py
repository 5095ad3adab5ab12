"""After a crash: what was prepared is finished, what was not is dropped, and nothing goes that may still be named."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import FaultyStore, crash_before
from place import Place, begin_publish, prepared
from seen import by_directory, names, rows_of, small_blocks, staging
from simdisk import Crash
from txsink import layout, recovery, transaction
from txsink.decision import Action
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError
from txsink.recovery import Recovered
from txsink.sink import open_sink, open_writer
from txsink.store import Store
from txsink.store.local import LocalStore
from txsink.writer import Sink

__all__ = ["small_blocks"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "T")


def rows(*ids: int) -> dict[str, list[int]]:
    return {"id": list(ids)}


def staged_files(place: Place) -> list[str]:
    root = staging(place.path)
    return names(root) if root.exists() else []


def kinds(place: Place) -> list[str]:
    return [one.kind for one in place.table().history()][::-1]


def commit(sink: Sink, *epochs: int) -> None:
    for epoch in epochs:
        with sink.begin(epoch) as txn:
            txn.write(rows(epoch))


def copied(place: Place, number: int) -> Place:
    """The table and what is staged for it, somewhere else; ids go on."""
    there = Place(place.path.parent / f"{place.path.name}{number}")
    there.stamps = place.stamps
    shutil.copytree(place.path, there.path)
    if staging(place.path).exists():
        shutil.copytree(staging(place.path), staging(there.path))
    return there


def stage_only(sink: Sink, epoch: int) -> None:
    """A worker staged a file, and its coordinator died."""
    txn = sink.begin(epoch)
    txn.stager().stage(rows(epoch))


# -- recover ------------------------------------------------------------------------------------------------


def test_opening_finishes_what_was_prepared_and_drops_what_was_only_staged(place: Place) -> None:
    dead = place.sink()
    prepared(dead, 1, rows(1))
    prepared(dead, 2, rows(2))
    stage_only(dead, 3)
    with place.sink() as sink:
        assert sink.recovered == Recovered([1, 2], [], None)
        assert (sink.last_epoch, sink.pending) == (2, [])
    assert (rows_of(place.path), staged_files(place)) == ([1, 2], [])


def test_restoring_at_a_checkpoint_commits_what_it_covers_and_aborts_the_rest(place: Place) -> None:
    """F7."""
    dead = place.sink()
    for epoch in (1, 2, 3):
        prepared(dead, epoch, rows(epoch))
    with place.sink(recover=False) as sink:
        assert (sink.recovered, sink.pending) == (None, [1, 2, 3])
        assert sink.recover(up_to=1) == Recovered([1], [2, 3], None)
    assert (rows_of(place.path), staged_files(place)) == ([1], [])
    assert kinds(place)[-3:] == ["abort", "abort", "maintenance"]
    with place.sink() as sink:
        commit(sink, 2)
    assert rows_of(place.path) == [1, 2]


def test_restoring_below_what_is_committed_stops_with_the_choices(place: Place) -> None:
    commit(place.sink(), 1, 2, 3)
    before = names(place.path)
    with place.sink(recover=False) as sink:
        prepared(sink, 4, rows(4))
        with pytest.raises(ConflictError, match="Choose on_newer='skip'.*or on_newer='rewind'") as caught:
            sink.recover(up_to=1)
        assert caught.value.context == {"writer": "w", "up_to": 1, "last_epoch": 3}
        assert (sink.pending, [name for name in before if name not in names(place.path)]) == ([4], [])
        assert sink.recover(up_to=1, on_newer="skip") == Recovered([], [4], None)
        assert sink.begin(2).outcome == "already-committed"
    assert rows_of(place.path) == [1, 2, 3]


def test_a_choice_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="on_newer='drop'"):
        place.sink().recover(up_to=1, on_newer="drop")
    with pytest.raises(InvalidRequestError, match="the epoch is -1"):
        place.sink().recover(up_to=-1)


@pytest.mark.parametrize("on_newer", ["fail", "rewind"])
def test_what_began_to_replace_files_goes_forward_and_the_choice_is_asked_for_after_it(
    place: Place, on_newer: str
) -> None:
    commit(place.sink(), 1)
    dead = place.sink()
    begin_publish(dead, prepared(dead, 2, rows(2), mode="overwrite"))
    with place.sink(recover=False) as sink:
        # A rewind cannot bring back what epoch 2 replaced, so both choices end in a refusal.
        with pytest.raises(ConflictError):
            sink.recover(up_to=1, on_newer=on_newer)
        assert (sink.last_epoch, sink.pending) == (2, [])
    assert rows_of(place.path) == [2]


def test_recovering_twice_is_recovering_once(place: Place) -> None:
    """I12."""
    dead = place.sink()
    for epoch in (1, 2):
        prepared(dead, epoch, rows(epoch))
    with place.sink(recover=False) as sink:
        sink.recover(up_to=1)
        before = names(place.path.parent)
        assert sink.recover(up_to=1) == Recovered([], [], None)
        assert sink.recover() == Recovered([], [], None)
    assert [name for name in names(place.path.parent) if name not in before] == []
    assert rows_of(place.path) == [1]


def test_a_writer_recovers_its_own_transactions_only(place: Place) -> None:
    """I15, S29."""
    other = place.sink("v")
    prepared(other, 1, rows(10))
    stage_only(other, 2)
    with place.sink("w") as sink:
        commit(sink, 1)
        assert sink.sweep() == []
    assert (rows_of(place.path), other.pending, len(staged_files(place))) == ([1], [1], 2)
    other.commit(1)
    assert rows_of(place.path) == [1, 10]


def test_six_crashes_in_a_row_converge(place: Place) -> None:
    """F27, I12: each recovery dies a little later than the one before."""
    with place.sink() as sink:
        commit(sink, 1)
    dead = place.sink()
    for epoch, mode in ((2, "append"), (3, "overwrite"), (4, "append")):
        prepared(dead, epoch, rows(epoch), mode=mode)
    dead.abort(4)
    stage_only(dead, 5)
    for step in itertools.count(1):
        there = copied(place, step)
        crashes = 0
        for number in range(6):
            store = FaultyStore(LocalStore(), [crash_before(step * (number + 1))])
            try:
                open_sink(store, there.stamps, str(there.path), "w", {}).close()
            except Crash:
                crashes += 1
                continue
            break
        there.sink().close()
        assert (rows_of(there.path), staged_files(there)) == ([3], [])
        if not crashes:
            break
    assert step > 20


# -- aborts -------------------------------------------------------------------------------------------------


def test_an_abort_that_died_before_its_deletions_is_finished_by_the_next_run(place: Place) -> None:
    """I9."""
    dead = place.sink(partition_by=["p"])
    prepared(dead, 1, {"id": [1, 2], "p": ["a", "b"]})
    pending = dead.log.state.pending_of("w")[0]
    entry = dead.log.prepare_entry(pending.prepared)
    dead.log.store.move(
        [(f"{staging(place.path)}/w/{dead.run}/{entry.files[0].path}", f"{place.path}/{entry.files[0].path}")]
    )
    transaction.abort(dead.log, dead.identity, pending)
    assert len(by_directory(place.path)) == 1
    with place.sink() as sink:
        assert sink.log.state.aborting == ()
    assert (rows_of(place.path), staged_files(place)) == ([], [])


def test_a_fenced_run_finishes_no_abort(place: Place) -> None:
    """I10."""
    old = place.sink()
    prepared(old, 1, rows(1))
    transaction.abort(old.log, old.identity, old.log.state.pending_of("w")[0])
    new = place.sink(recover=False)
    old.log.refresh()
    with pytest.raises(FencedError):
        recovery.finish_aborts(old.log, old.identity, old.publisher)
    assert new.log.state.aborting != ()
    new.recover()
    assert (new.log.state.aborting, staged_files(place)) == ((), [])


def test_aborts_that_somebody_cleaned_meanwhile_need_no_second_entry(place: Place) -> None:
    one = place.sink(run="r")
    prepared(one, 1, rows(1))
    transaction.abort(one.log, one.identity, one.log.state.pending_of("w")[0])
    two = place.sink(run="r")
    assert two.log.state.aborting == ()
    recovery.finish_aborts(one.log, one.identity, one.publisher)
    assert kinds(place).count("maintenance") == 1


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
    listed = recovery.staged_names(sink.log.store, str(staging(place.path)))
    assert [one.action for one in sink.sweep(dry_run=True)] == [Action.DROP_STAGED]
    nobody = transaction.Run("", "", 0)
    swept = recovery.sweep(sink.log, nobody, str(staging(place.path)), listed, dry_run=True)
    assert [one.action for one in swept] == [Action.RETIRE]
    assert names(place.path.parent) == before


def test_unclaimed_files_of_another_writer_are_left_alone(place: Place) -> None:
    """I15."""
    sink = place.sink()
    other = open_sink(LocalStore(), place.stamps, str(place.path), "v", {}, is_one_shot=True)
    stage_only(other, 1)
    listed = recovery.staged_names(sink.log.store, str(staging(place.path)))
    swept = recovery.sweep(sink.log, sink.identity, str(staging(place.path)), listed)
    assert [one.action for one in swept] == [Action.RETIRE]
    assert len(staged_files(place)) == 1


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
        with pytest.raises(CorruptError, match="perhaps|may be the only copy"):
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


def test_half_made_log_objects_are_deleted_and_nothing_else(place: Place) -> None:
    place.write(1, rows(1))
    before = names(place.path)
    for directory in ("_txsink", "_txsink/log", "_txsink/state", "_txsink/files"):
        half = place.path / layout.temporary_path(f"{directory}/x", "ab")
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"half")
    log = place.table().log
    planned = recovery.temporaries(log, dry_run=True)
    assert len(planned) == 4
    assert len(names(place.path)) == len(before) + 4
    assert recovery.temporaries(log) == planned
    assert (names(place.path), recovery.temporaries(log)) == (before, [])


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


# -- expiry -------------------------------------------------------------------------------------------------


@pytest.fixture
def aged(place: Place, small_blocks: None) -> Sink:  # noqa: F811 -- the fixture, not the import
    """A writer whose table has 30 entries, some of them overwrites."""
    sink = place.sink()
    for epoch in range(14):
        with sink.begin(epoch, mode="overwrite" if epoch in {3, 9} else "append") as txn:
            txn.write(rows(epoch))
    return sink


def test_expiry_deletes_old_entries_and_removed_files_and_the_table_stays_whole(place: Place, aged: Sink) -> None:
    head = aged.log.state.version
    assert len(names(place.path / layout.REMOVED_DIRECTORY)) == 9
    boundary = recovery.expire(aged.log, head - 3)
    assert head - 8 < boundary <= head - 3
    versions = [layout.parse_version(name) for name in names(place.path / layout.LOG_DIRECTORY)]
    assert versions == list(range(boundary, head + 2))
    assert names(place.path / layout.REMOVED_DIRECTORY) == []
    assert rows_of(place.path) == [9, 10, 11, 12, 13]
    table = place.table()
    assert (table.boundary, table.verify(deep=True)) == (boundary, [])
    assert sorted(table.to_arrow(boundary)["id"].to_pylist())[:2] == [9, 10]
    commit(aged, 14)
    assert aged.begin(2).outcome == "already-committed"
    with place.sink() as sink:
        commit(sink, 15)
    assert rows_of(place.path) == [9, 10, 11, 12, 13, 14, 15]


def test_files_that_a_retained_version_still_names_stay(place: Place, aged: Sink) -> None:
    """I8."""
    before = 9
    boundary = recovery.expire(aged.log, before)
    assert boundary <= before
    table = place.table()
    for version in range(boundary, aged.log.state.version + 1):
        table.to_arrow(version)
    assert table.verify(deep=True) == []


def test_expiry_again_or_too_early_changes_nothing(place: Place, aged: Sink) -> None:
    boundary = recovery.expire(aged.log, 20)
    before = names(place.path)
    assert [recovery.expire(aged.log, at) for at in (20, 3, 0)] == [boundary] * 3
    assert names(place.path) == before


def test_a_table_without_summaries_does_not_expire(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1)
    assert recovery.expire(sink.log, 2) == 0
    assert kinds(place)[-1] == "commit"


@pytest.mark.usefixtures("small_blocks")
def test_what_a_pending_transaction_needs_does_not_expire(place: Place) -> None:
    """I8."""
    waiting = place.sink("v")
    entry = prepared(waiting, 1, rows(100))
    sink = place.sink()
    commit(sink, *range(12))
    assert recovery.expire(sink.log, sink.log.state.version) <= entry.version
    waiting.commit(1)
    assert rows_of(place.path) == [*range(12), 100]
    sink.log.refresh()
    commit(sink, 12, 13)
    assert recovery.expire(sink.log, sink.log.state.version) > entry.version
    assert rows_of(place.path) == [*range(14), 100]


def test_an_expiry_that_dies_anywhere_is_finished_by_the_next(place: Place, small_blocks: None) -> None:  # noqa: F811
    """I12, I13."""
    sink = place.sink()
    for epoch in range(9):
        with sink.begin(epoch, mode="overwrite" if epoch == 3 else "append") as txn:
            txn.write(rows(epoch))
    for call in itertools.count(1):
        there = copied(place, call)
        store = FaultyStore(LocalStore(), [crash_before(call)])
        log = there.table(LocalStore()).log
        log.store = store
        try:
            recovery.expire(log, 16)
        except Crash:
            pass
        else:
            break
        assert rows_of(there.path) == list(range(3, 9))
        with there.sink() as next_run:
            commit(next_run, 9)
            boundary = recovery.expire(next_run.log, 16)
        assert rows_of(there.path) == list(range(3, 10))
        kept = [layout.parse_version(name) for name in names(there.path / layout.LOG_DIRECTORY)]
        assert kept[0] == boundary
        assert [*kept] == list(range(kept[0], (kept[-1] or 0) + 1))
    assert call > 20


# -- moved tables -------------------------------------------------------------------------------------------


def test_a_table_can_be_renamed_when_nothing_is_pending(place: Place, tmp_path: Path) -> None:
    commit(place.sink(), 1)
    place.path.rename(tmp_path / "U")
    moved = Place(tmp_path / "U")
    with open_writer(str(moved.path), "w") as sink:
        commit(sink, 2)
    assert rows_of(moved.path) == [1, 2]
    assert not (tmp_path / ".T.txsink" / "w").exists() or names(tmp_path / ".T.txsink") == []


def test_a_table_renamed_with_a_pending_transaction_says_what_is_missing_and_can_be_moved_back(
    place: Place, tmp_path: Path
) -> None:
    dead = place.sink()
    commit(dead, 1)
    prepared(dead, 2, rows(2))
    place.path.rename(tmp_path / "U")
    with pytest.raises(CorruptError, match="publish part-2-0"):
        open_writer(str(tmp_path / "U"), "w")
    assert by_directory(tmp_path / "U") == [1]
    (tmp_path / ".T.txsink").rename(tmp_path / ".U.txsink")
    with open_writer(str(tmp_path / "U"), "w") as sink:
        assert sink.recovered == Recovered([2], [], None)
    assert rows_of(tmp_path / "U") == [1, 2]


# -- errors are not swallowed -------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["staged", "altered"])
def test_a_recovery_that_cannot_finish_deletes_nothing_and_can_be_decided(place: Place, missing: str) -> None:
    """F15."""
    dead = place.sink()
    prepared(dead, 1, rows(1))
    (file,) = staging(place.path).rglob("*.parquet")
    act: dict[str, Callable[[], object]] = {"staged": file.unlink, "altered": lambda: file.write_bytes(b"x" * 600)}
    act[missing]()
    left = staged_files(place)
    for _ in range(2):
        with pytest.raises(CorruptError, match="drop the epoch with `txsink abort`"):
            place.sink()
    assert staged_files(place) == left
    with place.sink(recover=False) as sink:
        sink.abort(1)
        commit(sink, 1)
    assert (rows_of(place.path), staged_files(place)) == ([1], [])


def test_a_store_in_between_sees_no_delete_of_what_is_pending(place: Place) -> None:
    """I8, I11: opening with a pending epoch deletes only after it is committed."""
    dead = place.sink()
    prepared(dead, 1, rows(1))
    store: Store = FaultyStore(LocalStore())
    open_sink(store, place.stamps, str(place.path), "w", {}).close()
    verbs = [verb for verb, _ in store.trace]
    assert "move" in verbs
    assert "delete" not in verbs[: verbs.index("move")]
