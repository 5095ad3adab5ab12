"""An unfinished abort holds up the next prepare and the next publish (I1, I8). Found by the formal model."""

from __future__ import annotations

from pathlib import Path

import pytest

from place import Place, prepared, rows
from seen import by_directory, rows_of
from txsink.errors import ConflictError, CorruptError
from txsink.log.entry import Prepare
from txsink.protocol import resolving
from txsink.publish.rename import RenamePublisher
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "t")


def half_aborted(sink: Writer, epoch: int) -> None:
    """An epoch that was published and then aborted by a run that died before it deleted anything."""
    prepare = prepared(sink, epoch, rows(epoch))
    sink.publisher.publish(prepare)
    resolving.abort(sink.log, sink.identity, sink.publisher, sink.log.state.pending_of(sink.writer)[-1])


def one_shot(place: Place) -> Writer:
    return open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True)


def test_a_run_that_claims_with_its_prepare_does_not_add_to_rows_of_an_aborted_epoch(place: Place) -> None:
    """I1: it opened before the abort, so it has not seen that there is anything to recover."""
    first, second = place.sink(), one_shot(place)
    half_aborted(first, 1)
    txn = second.begin(1)
    txn.write(rows(1))
    with pytest.raises(ConflictError, match="not cleaned up"):
        txn.commit()
    assert by_directory(place.path) == [1]
    txn.commit()
    assert rows_of(place.path) == [1]


def test_a_writer_opened_without_recovery_finishes_an_abort_before_it_writes(place: Place) -> None:
    """I1: the rows of the aborted epoch do not stay beside those that are written for it again."""
    half_aborted(place.sink(), 1)
    with place.sink(recover=False) as sink, sink.begin(1) as txn:
        txn.write(rows(1))
    assert rows_of(place.path) == [1]


def test_files_of_an_aborted_transaction_are_not_prepared_again(place: Place) -> None:
    """I8: the abort has yet to delete them."""
    sink = place.sink()
    txn = sink.begin(1)
    staged = txn.stager().stage(rows(1))
    txn.add(staged)
    txn.prepare()
    resolving.abort(sink.log, sink.identity, sink.publisher, sink.log.state.pending_of("w")[0])
    again = sink.begin(1)
    again.add(staged)
    with pytest.raises(CorruptError, match="staged file"):
        again.prepare()
    sink.close()
    place.sink()
    assert rows_of(place.path) == []


@pytest.mark.parametrize("act", ["commit", "recover"])
def test_the_abort_is_finished_before_what_was_aborted_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """I1: a stalled publish of the aborted epoch goes on in the middle of the overwrite, and finds nothing to move."""
    sink = place.sink()
    first = prepared(sink, 1, rows(1))
    prepared(sink, 2, rows(1, 2), mode="overwrite")
    resolving.abort(sink.log, sink.identity, sink.publisher, sink.log.state.pending_of("w")[0])
    replace = RenamePublisher.replace

    def interrupted(publisher: RenamePublisher, prepare: Prepare) -> None:
        replace(publisher, prepare)
        with pytest.raises(CorruptError):
            publisher.publish(first)

    monkeypatch.setattr(RenamePublisher, "replace", interrupted)
    sink.commit(2) if act == "commit" else place.sink()
    assert rows_of(place.path) == [1, 2]
