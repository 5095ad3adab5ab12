"""What the swarm has found, each in the few steps that it takes."""

from __future__ import annotations

import pytest

from place import Place, begin_publish, commit, prepared, rows
from seen import by_directory, rows_of
from txsink.errors import CorruptError, FencedError, InternalError, UnavailableError
from txsink.log.entry import Commit
from txsink.log.log import Slot
from txsink.log.state import State
from txsink.protocol import sweeping
from txsink.reading import audit
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, fail_before
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


def one_shot(place: Place, writer: str = "w") -> Writer:
    """A sink that is to claim with its first prepare entry."""
    return open_sink(LocalStore(), place.stamps, str(place.path), writer, {}, is_one_shot=True)


def test_a_sweep_whose_file_an_overwrite_takes_away_meanwhile_reports_no_damage(place: Place) -> None:
    """The staged file was listed, then published by us, then replaced, or is being replaced, by somebody else."""
    commit(place.sink("v"), 0)
    sink = place.sink()
    prepared(sink, 1, rows(1))
    names = sink.publisher.left("w", ())
    sink.recover()
    other = place.sink("v")
    store = FaultyStore(sink.log.store)
    sink.log.store = store
    overwrite = prepared(other, 5, rows(50), mode="overwrite")

    def begins_to_replace() -> None:
        begin_publish(other, overwrite)
        other.publisher.replace(overwrite)

    target = [name for name in names if name.epoch == 1]
    store.pause = lambda verb, _: begins_to_replace() if verb == "tail" and other.pending and not begun() else None

    def begun() -> bool:
        return other.log.state.pending_of("v")[0].is_publishing

    assert sweeping.sweep(sink.log, sink.identity, sink.publisher, target)
    other.commit(5)
    assert sweeping.sweep(sink.log, sink.identity, sink.publisher, target)
    assert rows_of(place.path) == [50]


def test_a_file_that_is_gone_for_no_reason_is_damage_still(place: Place) -> None:
    sink = place.sink()
    commit(sink, 0)
    prepare = prepared(sink, 1, rows(1))
    names = sink.publisher.left("w", ())
    sink.recover()
    (place.path / prepare.files[0].path).unlink()
    with pytest.raises(CorruptError, match="only copy"):
        sweeping.sweep(sink.log, sink.identity, sink.publisher, names)


def test_a_retired_run_that_sweeps_hears_that_and_no_damage(place: Place) -> None:
    sink = place.sink()
    prepare = prepared(sink, 1, rows(1))
    names = sink.publisher.left("w", ())
    sink.recover()
    (place.path / prepare.files[0].path).unlink()
    store = FaultyStore(sink.log.store)
    sink.log.store = store
    done: list[Writer] = []

    def takes_over(_: str, path: str) -> None:
        if path.endswith(".parquet") and not done:
            done.append(place.sink(recover=False))

    store.pause = takes_over
    with pytest.raises(FencedError):
        sweeping.sweep(sink.log, sink.identity, sink.publisher, names)


@pytest.mark.parametrize("act", ["recover", "commit"])
def test_a_run_that_has_not_claimed_yet_claims_before_it_resolves_what_another_prepared(place: Place, act: str) -> None:
    late = one_shot(place)
    prepared(place.sink(), 0, rows(1))
    late.log.refresh()
    late.recover() if act == "recover" else late.commit(0)
    assert rows_of(place.path) == [1]
    commit(place.sink(), 1)
    assert rows_of(place.path) == [1, 1]


def test_a_sweep_by_a_run_that_has_not_claimed_yet_leaves_its_own_transactions_alone(place: Place) -> None:
    sink = one_shot(place)
    txn = sink.begin(0)
    txn.add(txn.stager().stage(rows(1)))
    sink.sweep()
    txn.commit()
    assert rows_of(place.path) == [1]


def test_an_entry_that_nobody_would_believe_is_not_written(place: Place) -> None:
    """I7: it would end the log for ever."""
    sink = place.sink()
    before = sink.log.state.version

    def make(state: State, slot: Slot) -> Commit:
        return Commit(**slot, writer="w", run="nobody", generation=9, epoch=0, prepared=0)

    with pytest.raises(InternalError, match="does not hold the writer"):
        sink.log.append(make)
    assert place.table().version == before


def test_an_epoch_written_again_after_an_abort_that_failed_half_way_is_seen_once(place: Place) -> None:
    """I1: a stalled run had published what was aborted, and the clean-up failed."""
    sink = place.sink()
    sink.publisher.publish(prepared(sink, 0, rows(1)))
    store = FaultyStore(sink.log.store)
    sink.publisher.store = store  # type: ignore[attr-defined]
    store.plan.append(fail_before(1))
    with pytest.raises(UnavailableError):
        sink.abort(0)
    store.check_delivered()
    assert by_directory(place.path) == [1]
    commit(sink, 0)
    assert rows_of(place.path) == [0]


def test_a_transaction_whose_files_were_swept_because_its_epoch_is_committed_says_so(place: Place) -> None:
    sink = place.sink()
    slow = sink.begin(0)
    slow.add(slow.stager().stage(rows(1)))
    commit(sink, 0)
    sink.sweep()
    assert slow.commit().outcome == "already-committed"
    assert rows_of(place.path) == [0]


def test_verify_does_not_miss_a_file_that_never_came(place: Place) -> None:
    """A pending overwrite names what was pending before it, and that is aborted."""
    sink = place.sink()
    prepared(sink, 0, rows(1))
    prepared(sink, 1, rows(2), mode="overwrite")
    sink.abort(0)
    sink.commit(1)
    assert audit.verify(sink.log, sink.publisher) == []
    (place.path / next(iter(place.table().files())).path).unlink()
    assert audit.verify(sink.log, sink.publisher) != []
