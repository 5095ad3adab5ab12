"""Many writers in one table, and many runs of one writer: who may go on, and who is fenced."""

from __future__ import annotations

import pytest

from place import Place, kinds, rows, staged_files
from seen import rows_of
from txsink.errors import FencedError
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink


def test_writers_of_one_table_keep_their_own_epochs(place: Place) -> None:
    """S24, I15."""
    one, two = place.sink("a"), place.sink("b")
    for epoch in range(3):
        for number, sink in enumerate((one, two)):
            with sink.begin(epoch + 10 * number) as txn:
                txn.write(rows(10 * epoch + number))
    assert rows_of(place.path) == [0, 1, 10, 11, 20, 21]
    assert (one.last_epoch, two.last_epoch) == (2, 12)
    writers = place.table().writers()
    assert {name: info.last_epoch for name, info in writers.items()} == {"a": 2, "b": 12}


def test_a_newer_run_fences_the_older_one_for_ever(place: Place) -> None:
    """I10, S20."""
    old = place.sink()
    early = old.begin(1)
    early.write(rows(1))
    early.prepare()
    open_txn = old.begin(2)
    open_txn.write(rows(2))
    new = place.sink()
    assert new.last_epoch == 1
    for act in (early.commit, open_txn.commit, old.recover, old.sweep):
        with pytest.raises(FencedError) as caught:
            act()
        assert caught.value.context["by"] == new.run
    old.commit(1)  # a late notice: the new run has committed it
    with new.begin(2) as txn:
        txn.write(rows(22))
    with pytest.raises(FencedError), old.begin(3) as txn:
        txn.write(rows(3))
    old.close()
    assert rows_of(place.path) == [1, 22]


def test_a_fenced_run_whose_files_are_gone_hears_that_it_is_fenced_and_not_that_they_are_lost(place: Place) -> None:
    """I10."""
    old = place.sink()
    dropped, staged = old.begin(1), old.begin(2)
    for epoch, txn in ((1, dropped), (2, staged)):
        txn.write(rows(epoch))
    dropped.prepare()
    staged.add(staged.stager().stage(rows(3)))
    place.sink(recover=False).recover(up_to=0)
    for txn in (dropped, staged):
        with pytest.raises(FencedError):
            txn.commit()
    assert rows_of(place.path) == []


def test_a_run_id_of_ones_own_that_was_fenced_stays_fenced_after_reopening(place: Place) -> None:
    """I10."""
    place.sink(run="r1").close()
    place.sink(run="r1").close()
    assert kinds(place) == ["create", "claim"]
    place.sink(run="r2").close()
    with pytest.raises(FencedError, match="retired by run r2"):
        place.sink(run="r1")
    with place.sink(run="r2") as sink:
        place.sink(run="r3")
        with pytest.raises(FencedError), sink.begin(1) as txn:
            txn.write(rows(1))
    assert kinds(place) == ["create", "claim", "claim", "claim"]


def test_a_one_shot_run_claims_with_its_first_prepare_and_is_fenced_like_any_other(place: Place) -> None:
    with open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True) as slow:
        txn = slow.begin(1)
        txn.write(rows(1))
        place.write(1, rows(2))
        assert txn.commit().outcome == "already-committed"
        later = slow.begin(2)
        later.write(rows(3))
        later.commit()
    assert rows_of(place.path) == [2, 3]
    with open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True) as first:
        txn = first.begin(3)
        txn.write(rows(4))
        txn.prepare()
        place.write(4, rows(5))
        with pytest.raises(FencedError):
            txn.commit()
    assert rows_of(place.path) == [2, 3, 4, 5]


def test_the_same_epoch_of_two_transactions_is_committed_once(place: Place) -> None:
    sink = place.sink()
    one, two = sink.begin(1), sink.begin(1)
    one.write(rows(1))
    two.write(rows(2))
    one.commit()
    assert two.commit().outcome == "already-committed"
    assert (rows_of(place.path), staged_files(place)) == ([1], [])
