"""Expiry: old entries and removed files go, and the table stays whole for whoever reads or writes it."""

from __future__ import annotations

import itertools

import pytest

from place import Place, commit, copied, kinds, prepared, rows
from seen import names, rows_of, small_blocks
from txsink import paths
from txsink.errors import InvalidRequestError
from txsink.log import expiry, gaps, segment
from txsink.log.log import Log
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, crash_before
from txsink.testing.simdisk import Crash
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]


@pytest.fixture
def aged(place: Place, small_blocks: None) -> Writer:
    """A writer whose table has 30 entries, some of them overwrites."""
    sink = place.sink()
    for epoch in range(14):
        with sink.begin(epoch, mode="overwrite" if epoch in {3, 9} else "append") as txn:
            txn.write(rows(epoch))
    return sink


def test_expiry_deletes_old_entries_and_removed_files_and_the_table_stays_whole(place: Place, aged: Writer) -> None:
    head = aged.log.state.version
    assert len(names(place.path / paths.REMOVED_DIRECTORY)) == 9
    boundary = expiry.expire(aged.log, head - 3)
    assert head - 8 < boundary <= head - 3
    versions = [paths.parse_version(name) for name in names(place.path / paths.LOG_DIRECTORY)]
    assert versions == list(range(boundary, head + 2))
    assert not any((place.path / paths.REMOVED_DIRECTORY).rglob("*"))
    assert rows_of(place.path) == [9, 10, 11, 12, 13]
    table = place.table()
    assert (table.boundary, table.verify(deep=True)) == (boundary, [])
    assert sorted(table.to_arrow(boundary)["id"].to_pylist())[:2] == [9, 10]
    commit(aged, 14)
    assert aged.begin(2).outcome == "already-committed"
    with place.sink() as sink:
        commit(sink, 15)
    assert rows_of(place.path) == [9, 10, 11, 12, 13, 14, 15]


def test_files_that_a_retained_version_still_names_stay(place: Place, aged: Writer) -> None:
    """I8."""
    before = 9
    boundary = expiry.expire(aged.log, before)
    assert boundary <= before
    table = place.table()
    for version in range(boundary, aged.log.state.version + 1):
        table.to_arrow(version)
    assert table.verify(deep=True) == []


def test_expiry_again_or_too_early_changes_nothing(place: Place, aged: Writer) -> None:
    boundary = expiry.expire(aged.log, 20)
    before = names(place.path)
    assert [expiry.expire(aged.log, at) for at in (20, 3, 0)] == [boundary] * 3
    assert names(place.path) == before


def test_a_table_without_summaries_does_not_expire(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1)
    assert expiry.expire(sink.log, 2) == 0
    assert kinds(place)[-1] == "commit"


@pytest.mark.usefixtures("small_blocks")
def test_what_a_pending_transaction_needs_does_not_expire(place: Place) -> None:
    """I8."""
    waiting = place.sink("v")
    entry = prepared(waiting, 1, rows(100))
    sink = place.sink()
    commit(sink, *range(12))
    assert expiry.expire(sink.log, sink.log.state.version) <= entry.version
    waiting.commit(1)
    assert rows_of(place.path) == [*range(12), 100]
    sink.log.refresh()
    commit(sink, 12, 13)
    assert expiry.expire(sink.log, sink.log.state.version) > entry.version
    assert rows_of(place.path) == [*range(14), 100]


def test_an_expiry_that_dies_anywhere_is_finished_by_the_next(place: Place, small_blocks: None) -> None:
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
            expiry.expire(log, 16)
        except Crash:
            pass
        else:
            break
        assert rows_of(there.path) == list(range(3, 9))
        with there.sink() as next_run:
            commit(next_run, 9)
            boundary = expiry.expire(next_run.log, 16)
        assert rows_of(there.path) == list(range(3, 10))
        kept = [paths.parse_version(name) for name in names(there.path / paths.LOG_DIRECTORY)]
        assert kept[0] == boundary
        assert [*kept] == list(range(kept[0], (kept[-1] or 0) + 1))
    assert call > 20


def test_a_rewind_to_an_epoch_whose_entries_have_expired_is_refused(place: Place, aged: Writer) -> None:
    """Its metadata, the point to resume from, is gone."""
    commit(aged, *range(14, 24))
    expiry.expire(aged.log, aged.log.state.version)
    commit(aged, 24, 25)
    expected = rows_of(place.path)
    with pytest.raises(InvalidRequestError, match="its metadata, to resume from, has expired"):
        aged.recover(up_to=10, on_newer="rewind")
    assert rows_of(place.path) == expected
    assert aged.recover(up_to=24, on_newer="rewind").rewound_from == 25
    assert rows_of(place.path) == expected[:-1]


def test_entries_go_after_what_repeats_them_is_durable_and_are_durably_gone_at_the_end(
    place: Place, aged: Writer
) -> None:
    """I1, I7, I13: segments, summary and hint before; and nothing comes back after."""
    store = FaultyStore(LocalStore())
    log = Log(store, str(place.path), place.stamps)
    log.load()
    boundary = expiry.expire(log, 20)
    calls = [(verb, path.removeprefix(f"{place.path}/")) for verb, path in store.trace]
    deleted = [at for at, (verb, path) in enumerate(calls) if verb == "delete" and path.startswith("_txsink/log/")]
    (settled,) = [path for verb, path in calls[: deleted[0]] if verb == "settle" and ".segment" in path]
    assert all(paths.segment_path(*pair) in settled for pair in segment.ranges(log.state.version + 1))
    assert paths.summary_path(max(gaps.summaries(log.slots))) in settled
    assert ("replace", paths.HEAD_PATH) in calls[: deleted[0]]
    assert calls[deleted[-1] + 1 :] == [("settle", paths.entry_path(boundary))]


@pytest.mark.usefixtures("aged")
def test_segments_that_were_lost_are_made_again_before_their_entries_go(place: Place) -> None:
    """I1."""
    for file in (place.path / paths.SEGMENT_DIRECTORY).iterdir():
        file.unlink()
    assert expiry.expire(place.table().log, 20) > 10
    assert rows_of(place.path) == [9, 10, 11, 12, 13]
