"""After a crash: what was prepared is finished, what was not is dropped, and nothing goes that may still be named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from place import Place, begin_publish, commit, kinds, prepared, restored, rows, stage_only, staged_files, tree
from seen import by_directory, names, rows_of, small_blocks, staging
from txsink.choices import OnNewer
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError
from txsink.protocol import recovery, resolving
from txsink.protocol.recovery import Recovered
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, crash_before
from txsink.testing.simdisk import Crash
from txsink.writing.opening import open_sink, open_writer

__all__ = ["small_blocks"]


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
        with pytest.raises(ConflictError, match=r"Choose on_newer='skip'.*or on_newer='rewind'") as caught:
            sink.recover(up_to=1)
        assert caught.value.context == {"writer": "w", "up_to": 1, "last_epoch": 3}
        assert (sink.pending, [name for name in before if name not in names(place.path)]) == ([4], [])
        assert sink.recover(up_to=1, on_newer="skip") == Recovered([], [4], None)
        assert sink.begin(2).outcome == "already-committed"
    assert rows_of(place.path) == [1, 2, 3]


def test_a_choice_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="on_newer is 'drop'"):
        place.sink().recover(up_to=1, on_newer="drop")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="the epoch is -1"):
        place.sink().recover(up_to=-1)


@pytest.mark.parametrize("on_newer", ["fail", "rewind"])
def test_what_began_to_replace_files_goes_forward_and_the_choice_is_asked_for_after_it(
    place: Place, on_newer: OnNewer
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
    before = tree(place.path.parent)
    for step in itertools.count(1):
        there = restored(place, before)
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
    resolving.abort(dead.log, dead.identity, dead.publisher, pending)
    assert len(by_directory(place.path)) == 1
    with place.sink() as sink:
        assert sink.log.state.aborting == ()
    assert (rows_of(place.path), staged_files(place)) == ([], [])


def test_a_fenced_run_finishes_no_abort(place: Place) -> None:
    """I10."""
    old = place.sink()
    old.publisher.publish(prepared(old, 1, rows(1)))
    resolving.abort(old.log, old.identity, old.publisher, old.log.state.pending_of("w")[0])
    new = place.sink(recover=False)
    old.log.refresh()
    with pytest.raises(FencedError):
        recovery.finish_aborts(old.log, old.identity, old.publisher)
    assert (by_directory(place.path), len(new.log.state.aborting)) == ([1], 1)
    new.recover()
    assert (new.log.state.aborting, by_directory(place.path)) == ((), [])


def test_aborts_that_somebody_cleaned_meanwhile_need_no_second_entry(place: Place) -> None:
    one = place.sink(run="r")
    prepared(one, 1, rows(1))
    resolving.abort(one.log, one.identity, one.publisher, one.log.state.pending_of("w")[0])
    two = place.sink(run="r")
    assert two.log.state.aborting == ()
    recovery.finish_aborts(one.log, one.identity, one.publisher)
    assert kinds(place).count("maintenance") == 1


# -- moved tables -------------------------------------------------------------------------------------------


def test_a_table_can_be_renamed_when_nothing_is_pending(place: Place, tmp_path: Path) -> None:
    commit(place.sink(), 1)
    place.path.rename(tmp_path / "U")
    moved = Place(tmp_path / "U")
    with open_writer(str(moved.path), "w") as sink:
        commit(sink, 2)
    assert rows_of(moved.path) == [1, 2]
    assert not (tmp_path / ".T.txsink" / "w").exists() or names(tmp_path / ".T.txsink") == []


@pytest.mark.parametrize("staging_root", [".T.txsink", ".U.txsink"])
def test_a_table_renamed_with_a_pending_transaction_finds_what_was_staged_before_and_what_moved_along(
    place: Place, tmp_path: Path, staging_root: str
) -> None:
    """I1: the entry says where it was staged, and the name of the directory whose it is."""
    dead = place.sink()
    commit(dead, 1)
    prepared(dead, 2, rows(2))
    place.path.rename(tmp_path / "U")
    (tmp_path / ".T.txsink").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="publish part-2-0"):
        open_writer(str(tmp_path / "U"), "w")
    assert by_directory(tmp_path / "U") == [1]
    (tmp_path / "elsewhere").rename(tmp_path / staging_root)
    with open_writer(str(tmp_path / "U"), "w") as sink:
        assert sink.recovered == Recovered([2], [], None)
    assert rows_of(tmp_path / "U") == [1, 2]
    assert names(tmp_path / staging_root) == []


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
    store = FaultyStore(LocalStore())
    open_sink(store, place.stamps, str(place.path), "w", {}).close()
    verbs = [verb for verb, _ in store.trace]
    assert "move" in verbs
    assert "delete" not in verbs[: verbs.index("move")]
