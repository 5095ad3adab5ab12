"""The life of a transaction: what each verb does, in order and out of order, and what it refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from place import Place, kinds, prepared, rows, staged_files
from seen import by_directory, by_log, names, rows_of, small_blocks, staging
from txsink import paths
from txsink.errors import ConflictError, CorruptError, InvalidRequestError, UnavailableError
from txsink.log.entry import Prepare
from txsink.protocol import preparing, resolving
from txsink.publish.protocol import Published
from txsink.publish.rename import RenamePublisher
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore
from txsink.writing.opening import open_sink

__all__ = ["small_blocks"]


# -- one epoch ----------------------------------------------------------------------------------------------


def test_an_epoch_is_staged_out_of_sight_then_prepared_then_published(place: Place) -> None:
    """F13."""
    sink = place.sink()
    txn = sink.begin(1)
    assert txn.write(rows(1, 2)) == 2
    txn.prepare()
    assert (txn.outcome, sink.pending) == ("prepared", [1])
    assert (by_directory(place.path), by_log(place.path)) == ([], [])
    assert len(staged_files(place)) == 1
    result = txn.commit()
    assert (txn.outcome, sink.pending, sink.last_epoch) == ("committed", [], 1)
    assert result._replace(bytes=0) == ("committed", 1, 3, 1, 2, 0)
    assert result.bytes == sum(one.stat().st_size for one in place.path.rglob("*.parquet"))
    assert rows_of(place.path) == [1, 2]
    assert staged_files(place) == []


def test_each_commit_is_a_line_of_the_log_also_one_that_recovery_makes(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "txsink"):
        with place.sink().begin(7) as txn:
            txn.write(rows(1, 2))
        prepared(place.sink(), 8, rows(3))
        place.sink()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" row")[0] for line in lines] == [
        f"committed epoch 7 of 'w' in {place.path} at version 3: 1 file, 2",
        f"committed epoch 8 of 'w' in {place.path} at version 7: 1 file, 1",
    ]
    assert all(line.endswith(" ms after it was prepared") for line in lines)


def test_the_with_statement_commits_and_an_exception_aborts(place: Place) -> None:
    sink = place.sink()
    with sink.begin(1) as txn:
        txn.write(rows(1))
    with pytest.raises(KeyError), sink.begin(2) as txn:  # noqa: PT012 -- what is written before the error counts
        txn.write(rows(2))
        raise KeyError
    assert txn.outcome == "aborted"
    assert (rows_of(place.path), staged_files(place), kinds(place)[-1]) == ([1], [], "commit")
    with sink.begin(2) as txn:
        txn.write(rows(22))
    assert rows_of(place.path) == [1, 22]


def test_a_transaction_aborted_within_its_with_statement_stays_aborted(place: Place) -> None:
    with place.sink().begin(1) as txn:
        txn.write(rows(1))
        txn.abort()
    assert (txn.outcome, rows_of(place.path), staged_files(place)) == ("aborted", [], [])


def test_an_empty_epoch_commits_and_is_known_after_a_restart(place: Place) -> None:
    """F9, F10."""
    with place.sink() as sink, sink.begin(4, metadata={"at": 1}):
        pass
    with place.sink() as sink:
        assert (sink.last_epoch, sink.last_metadata) == (4, {"at": 1})
        with sink.begin(5) as txn:
            txn.write(rows())
        assert txn.result().files == 0
    assert list(place.path.rglob("*.parquet")) == []
    assert place.table().to_arrow().num_rows == 0


def test_nothing_is_written_after_prepare(place: Place) -> None:
    """F18."""
    txn = place.sink().begin(1)
    txn.write(rows(1))
    txn.prepare()
    for act in (lambda: txn.write(rows(2)), lambda: txn.add([])):
        with pytest.raises(InvalidRequestError, match="the transaction is prepared"):
            act()
    txn.prepare()
    txn.commit()
    with pytest.raises(InvalidRequestError, match="the transaction is committed"):
        txn.write(rows(2))
    txn.prepare()
    assert txn.commit().outcome == "committed"
    txn.abort()
    assert (txn.outcome, rows_of(place.path)) == ("committed", [1])


def test_an_aborted_transaction_is_not_prepared(place: Place) -> None:
    txn = place.sink().begin(1)
    txn.abort()
    txn.abort()
    with pytest.raises(InvalidRequestError, match="the transaction is aborted"):
        txn.commit()


@pytest.mark.parametrize("damage", ["missing", "shorter", "longer", "other footer", "a page"])
def test_a_staged_file_that_was_touched_is_not_prepared(place: Place, damage: str) -> None:
    """F19."""
    sink = place.sink()
    txn = sink.begin(1)
    txn.add(txn.stager().stage({"id": list(range(1000))}))
    (file,) = staging(place.path).rglob("*.parquet")
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        changed = {
            "shorter": data[:-1],
            "longer": data + b"x",
            "other footer": data[:-30] + b"x" + data[-29:],
            "a page": data[:200] + bytes([data[200] ^ 1]) + data[201:],
        }
        file.write_bytes(changed[damage])
    with pytest.raises(CorruptError, match="prepare epoch 1 of 'w': the staged file part-1-0"):
        txn.commit()
    txn.abort()
    assert (sink.pending, staged_files(place)) == ([], [])
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


# -- replays ------------------------------------------------------------------------------------------------


def test_a_replay_writes_nothing_and_says_so(place: Place) -> None:
    """S1, S18: the first committed content is authoritative."""
    place.write(1, rows(1))
    before = names(place.path.parent)
    with place.sink() as sink:
        txn = sink.begin(1)
        assert txn.outcome == "already-committed"
        assert txn.write(rows(9)) == 0
        txn.add([{"nonsense": 1}])
        txn.prepare()
        result = txn.commit()
        txn.abort()
        assert (result.outcome, result.files, result.rows, result.version) == ("already-committed", 0, 0, 2)
    assert rows_of(place.path) == [1]
    assert [name for name in names(place.path.parent) if name not in before] == [f"T/{paths.entry_path(3)}"]


def test_an_epoch_committed_by_others_while_it_was_staged_writes_nothing(place: Place) -> None:
    sink = place.sink(run="r1")
    slow = sink.begin(1)
    slow.write(rows(1))
    same = place.sink(run="r1")
    with same.begin(1) as txn:
        txn.write(rows(2))
    assert slow.commit().outcome == "already-committed"
    assert (rows_of(place.path), staged_files(place)) == ([2], [])


def test_a_skipped_epoch_is_refused(place: Place) -> None:
    """Taken for committed, its rows would be lost without a word."""
    place.write(1, rows(1))
    place.write(5, rows(5))
    with place.sink() as sink:
        assert sink.begin(1).outcome == "already-committed"
        with pytest.raises(InvalidRequestError, match="never committed, or was taken back, yet epoch 5 is") as caught:
            sink.begin(3)
        assert caught.value.context == {"last_epoch": 5}


@pytest.mark.usefixtures("small_blocks")
def test_replays_and_skipped_epochs_are_told_apart_at_any_age(place: Place) -> None:
    with place.sink() as sink:
        for epoch in range(0, 40, 2):
            with sink.begin(epoch) as txn:
                txn.write(rows(epoch))
    with place.sink() as sink:
        for epoch in range(38):
            if epoch % 2:
                with pytest.raises(InvalidRequestError):
                    sink.begin(epoch)
            else:
                assert sink.begin(epoch).outcome == "already-committed"


# -- several pending ----------------------------------------------------------------------------------------


def test_a_commit_commits_what_is_pending_before_it_and_a_late_notice_is_a_success(place: Place) -> None:
    """F1, F2, F17."""
    sink = place.sink()
    for epoch in (1, 2, 3):
        prepared(sink, epoch, rows(epoch))
    sink.commit(2)
    assert (rows_of(place.path), sink.pending) == ([1, 2], [3])
    sink.commit(1)
    sink.commit(2)
    assert (rows_of(place.path), len(staged_files(place))) == ([1, 2], 1)
    sink.commit(7)
    assert (rows_of(place.path), sink.last_epoch) == ([1, 2, 3], 3)


def test_committing_what_nobody_prepared_is_refused(place: Place) -> None:
    sink = place.sink()
    for epoch in (0, 9):
        with pytest.raises(InvalidRequestError, match="no epoch up to it is prepared"):
            sink.commit(epoch)


def test_epochs_are_prepared_in_growing_order(place: Place) -> None:
    sink = place.sink()
    five, three, again = sink.begin(5), sink.begin(3), sink.begin(5)
    for txn, value in ((five, 5), (three, 3), (again, 55)):
        txn.write(rows(value))
    five.prepare()
    for txn in (three, again):
        with pytest.raises(ConflictError, match="epoch 5 is prepared already"):
            txn.prepare()
        txn.abort()
    sink.commit(5)
    assert (rows_of(place.path), staged_files(place)) == ([5], [])


def test_preparing_the_same_files_again_is_no_second_transaction(place: Place) -> None:
    """F22: an append whose answer was lost, from the caller's side."""
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    content = txn._sealed()
    txn.prepare()
    version = sink.log.state.version
    assert preparing.prepare(sink.log, sink.identity, sink.publisher, content)
    assert (sink.log.state.version, sink.pending) == (version, [1])


def test_an_abort_drops_one_pending_epoch_and_keeps_the_others(place: Place) -> None:
    sink = place.sink()
    for epoch in (1, 2, 3):
        prepared(sink, epoch, rows(epoch))
    sink.abort(2)
    sink.abort(2)
    sink.abort(99)
    assert (sink.pending, len(staged_files(place))) == ([1, 3], 2)
    sink.commit(3)
    assert rows_of(place.path) == [1, 3]
    with pytest.raises(InvalidRequestError, match="never committed"):
        sink.begin(2)


def test_what_is_committed_is_not_aborted(place: Place) -> None:
    """S23, S32."""
    sink = place.sink()
    with sink.begin(1) as txn:
        txn.write(rows(1))
    sink.abort(1)
    txn.abort()
    assert rows_of(place.path) == [1]


def test_committing_what_another_object_of_the_run_aborted_is_told(place: Place) -> None:
    one = place.sink(run="r1")
    two = place.sink(run="r1", recover=False)
    txn = one.begin(1)
    txn.write(rows(1))
    txn.prepare()
    two.abort(1) if two.log.refresh() else None
    with pytest.raises(ConflictError, match="it was aborted meanwhile"):
        resolving.roll_forward(
            one.log,
            one.identity,
            NoPublisher(one.log.store, one.log.root, f"{one.log.root}/{one.publisher.staging}"),
            one.log.state.pending_of("w")[0],
        )
    assert rows_of(place.path) == []


class NoPublisher(RenamePublisher):
    """Says that it published, as a run does that was stalled just after its publish."""

    def publish(self, prepare: Prepare) -> Published:
        return Published()


# -- errors on the way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_called", [False, True])
def test_a_commit_that_failed_is_finished_by_trying_again(place: Place, is_called: bool) -> None:
    """F28: the rename error is raised, not swallowed, and nothing is aborted for it."""
    store = FaultyStore(LocalStore())
    sink = open_sink(store, place.stamps, str(place.path), "w", {})
    real = store.move

    def fail(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        raise UnavailableError("move", "a planned fault", "Retry")

    store.move = fail  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="a planned fault"), sink.begin(1) as txn:  # noqa: PT012 -- the end of the block is what commits
        txn.write(pa.table(rows(1)))
        if is_called:
            txn.commit()  # else the end of the block commits
    assert (txn.outcome, sink.pending) == ("prepared", [1])
    store.move = real  # type: ignore[method-assign]
    assert txn.commit().outcome == "committed"
    assert rows_of(place.path) == [1]


def test_a_file_that_is_nowhere_stops_the_commit_and_nothing_else_is_touched(place: Place) -> None:
    """F15, F28, I6."""
    sink = place.sink()
    prepared(sink, 1, rows(1))
    next(staging(place.path).rglob("*.parquet")).unlink()
    before = names(place.path.parent)
    with pytest.raises(CorruptError, match="publish part-1-0"):
        sink.commit(1)
    assert (sink.pending, names(place.path.parent)) == ([1], before)
    sink.abort(1)
    with sink.begin(1) as txn:
        txn.write(rows(11))
    assert rows_of(place.path) == [11]
