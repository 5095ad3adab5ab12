"""Transactions that remove files: overwrites and rewinds."""

from __future__ import annotations

import pytest

from place import Place, kinds, prepared, rows
from seen import names, rows_of
from txsink import paths
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log.entry import Publishing
from txsink.protocol import preparing, resolving
from txsink.writing.writer import Writer

# -- overwrite ----------------------------------------------------------------------------------------------


def test_a_static_overwrite_replaces_everything_that_was_committed(place: Place) -> None:
    """S14."""
    place.write(1, rows(1))
    place.write(1, rows(2), writer="v")
    place.write(2, rows(3), mode="overwrite")
    assert rows_of(place.path) == [3]
    assert kinds(place)[-3:] == ["prepare", "publishing", "commit"]
    assert len(names(place.path / paths.REMOVED_DIRECTORY)) == 2
    place.write(3, mode="overwrite")
    assert rows_of(place.path) == []


def test_an_overwrite_of_nothing_removes_nothing(place: Place) -> None:
    place.write(1, rows(1), mode="overwrite")
    assert (rows_of(place.path), kinds(place)) == ([1], ["create", "prepare", "commit"])


def test_a_dynamic_overwrite_replaces_the_partitions_it_writes_to(place: Place) -> None:
    place.write(1, {"id": [1, 2, 3], "p": ["a", "b", None]}, partition_by=["p"])
    place.write(2, {"id": [4], "p": ["a"]}, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 3, 4]
    place.write(3, {"id": [5, 6], "p": [None, "c"]}, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 4, 5, 6]
    place.write(4, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 4, 5, 6]


def test_an_overwrite_replaces_the_writers_own_earlier_pending_epochs_too(place: Place) -> None:
    place.write(0, rows(0))
    sink = place.sink()
    prepared(sink, 1, rows(1))
    prepared(sink, 2, rows(2), mode="overwrite")
    prepared(sink, 3, rows(3))
    prepared(sink, 4, rows(4), mode="overwrite")
    prepared(sink, 5, rows(5))
    for epoch, expected in ((1, [0, 1]), (2, [2]), (3, [2, 3]), (5, [4, 5])):
        sink.commit(epoch)
        assert rows_of(place.path) == expected


def test_an_overwrite_leaves_what_others_add_after_it_was_prepared(place: Place) -> None:
    sink, other = place.sink(), place.sink("v")
    with other.begin(1) as txn:
        txn.write(rows(1))
    sink.log.refresh()
    prepared(sink, 1, rows(10), mode="overwrite")
    with other.begin(2) as txn:
        txn.write(rows(2))
    sink.commit(1)
    assert rows_of(place.path) == [2, 10]


def test_two_pending_overwrites_of_different_writers_conflict(place: Place) -> None:
    place.write(0, rows(0))
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1), mode="overwrite")
    txn = two.begin(1, mode="overwrite")
    txn.write(rows(2))
    with pytest.raises(ConflictError, match="epoch 1 of 'a', still pending, replaces files as well"):
        txn.prepare()
    one.commit(1)
    txn.commit()
    assert rows_of(place.path) == [2]


def test_an_overwrite_does_not_wait_for_a_pending_append_of_another_writer(place: Place) -> None:
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1))
    with two.begin(1, mode="overwrite") as txn:
        txn.write(rows(2))
    one.commit(1)
    assert rows_of(place.path) == [1, 2]


def test_what_began_to_replace_files_is_committed_and_not_aborted(place: Place) -> None:
    """I8: aborted, a stalled run could still take the replaced files away."""
    place.write(0, rows(0))
    sink = place.sink()
    prepared(sink, 1, rows(1), mode="overwrite")
    pending = sink.log.state.pending_of("w")[0]
    sink.log.append(resolving._resolving(sink.log, sink.identity, pending, Publishing))
    with pytest.raises(ConflictError, match="its publish has begun, and can only be finished"):
        sink.abort(1)
    sink.commit(1)
    assert rows_of(place.path) == [1]
    assert kinds(place).count("publishing") == 1


def test_modes_that_do_not_exist_are_refused(place: Place) -> None:
    sink = place.sink()
    with pytest.raises(InvalidRequestError, match="mode is 'update'"):
        sink.begin(1, mode="update")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="partition_overwrite is 'both'"):
        sink.begin(1, mode="overwrite", partition_overwrite="both")  # type: ignore[arg-type]


# -- rewind -------------------------------------------------------------------------------------------------


@pytest.fixture
def four(place: Place) -> Writer:
    """A writer with epochs 1 to 4 committed, and another one with one."""
    place.write(9, rows(100), writer="other")
    sink = place.sink()
    for epoch in (1, 2, 3, 4):
        with sink.begin(epoch, metadata={"at": epoch}) as txn:
            txn.write(rows(epoch))
    return sink


def test_a_rewind_removes_later_epochs_of_its_writer_and_they_are_written_again(place: Place, four: Writer) -> None:
    """I4."""
    done = four.recover(up_to=2, on_newer="rewind")
    assert done == ([], [], 4)
    assert (rows_of(place.path), four.last_epoch, four.last_metadata) == ([1, 2, 100], 2, {"at": 2})
    for epoch in (3, 4):
        with four.begin(epoch) as txn:
            assert txn.outcome == "open"
            txn.write(rows(10 * epoch))
    assert rows_of(place.path) == [1, 2, 30, 40, 100]
    assert four.begin(2).outcome == "already-committed"


def test_a_rewind_twice_and_further_back_is_allowed(place: Place, four: Writer) -> None:
    four.recover(up_to=3, on_newer="rewind")
    assert four.recover(up_to=3, on_newer="rewind") == ([], [], None)
    four.recover(up_to=1, on_newer="rewind")
    assert (rows_of(place.path), four.last_metadata) == ([1, 100], {"at": 1})


def test_an_epoch_that_was_taken_back_counts_as_never_committed(place: Place, four: Writer) -> None:
    """I1: else its replay would be skipped, and its rows lost."""
    four.recover(up_to=2, on_newer="rewind")
    with four.begin(6) as txn:
        txn.write(rows(6))
    with pytest.raises(InvalidRequestError, match="never committed"):
        four.begin(4)
    with pytest.raises(InvalidRequestError, match="never committed"):
        four.recover(up_to=4, on_newer="rewind")
    assert rows_of(place.path) == [1, 2, 6, 100]


def test_a_rewind_across_an_epoch_that_replaced_files_is_refused(place: Place, four: Writer) -> None:
    with four.begin(5, mode="overwrite") as txn:
        txn.write(rows(5))
    with four.begin(6) as txn:
        txn.write(rows(6))
    with pytest.raises(ConflictError, match="epoch 5 replaced files, which a rewind cannot bring back"):
        four.recover(up_to=4, on_newer="rewind")
    assert rows_of(place.path) == [5, 6]
    four.recover(up_to=5, on_newer="rewind")
    assert rows_of(place.path) == [5]


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_rewind_to_an_epoch_that_never_was_is_refused_or_nothing(place: Place, four: Writer, epoch: int) -> None:
    if epoch == 7:
        assert four.recover(up_to=7, on_newer="rewind") == ([], [], None)
    else:
        with pytest.raises(InvalidRequestError, match="that epoch was never committed"):
            four.recover(up_to=0, on_newer="rewind")
    assert rows_of(place.path) == [1, 2, 3, 4, 100]


def test_a_rewind_that_crashed_after_its_prepare_is_finished_by_the_next_run(place: Place, four: Writer) -> None:
    preparing.rewind(four.log, four.identity, four.publisher, 2)
    again = preparing.rewind(four.log, four.identity, four.publisher, 2)
    assert (again.mode, len(four.log.state.pending)) == ("rewind", 1)
    with place.sink() as sink:
        assert (sink.last_epoch, sink.last_metadata) == (2, {"at": 2})
    assert rows_of(place.path) == [1, 2, 100]
