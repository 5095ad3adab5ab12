"""What a caller does after an error, Ctrl-C or a second thread: each case was seen to lose, double or misreport."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from place import Place, commit, rows, staged_files
from seen import rows_of
from txsink.environment import stamps
from txsink.errors import ConflictError, FencedError, InvalidRequestError, OutcomeUnknownError, UnavailableError
from txsink.reading.table import open_table
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, fail_before
from txsink.writing import transaction as transactions, writer as writers
from txsink.writing.calls import Calls
from txsink.writing.opening import open_sink, open_workplace, open_writer
from txsink.writing.writer import Writer

THREADS, WRITES, ROWS = 8, 40, 25


def faulty(place: Place) -> tuple[Writer, FaultyStore]:
    """A writer on a store that can fail."""
    store = FaultyStore(LocalStore())
    return open_sink(store, stamps(), str(place.path), "w", {"layout": "parquet"}), store


def at(store: FaultyStore, verb: str, part: str, act: Callable[[], object], *, after: bool = False) -> None:
    """Do something once, before or after a call of this verb on such a path."""
    called = store.call

    def call(name: str, path: str, do: Callable[[], object], torn: Callable[[], object] | None = None) -> object:
        if name != verb or part not in path:
            return called(name, path, do, torn)
        store.call = called  # type: ignore[method-assign]
        if not after:
            act()
        answer = called(name, path, do, torn)
        if after:
            act()
        return answer

    store.call = call  # type: ignore[method-assign,assignment]


def interrupt() -> None:
    raise KeyboardInterrupt


# -- a store that does not answer ---------------------------------------------------------------------------


def test_a_commit_that_failed_once_prepared_says_so_and_is_finished_by_calling_it_again(place: Place) -> None:
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))
    at(store, "move", "", lambda: store.plan.append(fail_before(store.calls + 1)))
    with pytest.raises(UnavailableError, match=r"epoch 1\. Call it again") as caught:
        txn.commit()
    assert (txn.outcome, sink.pending, caught.value.context["prepared"]) == ("prepared", [1], [1])
    assert txn.commit().outcome == "committed"
    assert rows_of(place.path) == [1]


def test_an_abort_that_failed_is_finished_by_calling_it_again(place: Place) -> None:
    """Seen on servers: the entry was there, the files were as well, and calling it again did nothing."""
    sink, store = faulty(place)
    for epoch in itertools.count(1):
        txn = sink.begin(epoch)
        txn.write(rows(epoch))
        txn.prepare()
        store.plan.append(fail_before(store.calls + epoch))
        with suppress(UnavailableError, OutcomeUnknownError):
            txn.abort()
        has_failed = len(store.delivered) == epoch
        store.plan.clear()
        txn.abort()
        assert (txn.outcome, sink.pending, open_table(str(place.path)).pending()) == ("aborted", [], [])
        assert staged_files(place) == []
        if not has_failed:
            break
    assert epoch > 5


def test_the_next_begin_finishes_a_commit_that_failed(place: Place) -> None:
    """A program that repeats the whole block gets one epoch, and no conflict for ever."""
    sink, store = faulty(place)

    def block() -> str:
        with sink.begin(1) as txn:
            txn.write(rows(1))
        return txn.outcome

    at(store, "move", "", lambda: store.plan.append(fail_before(store.calls + 1)))
    with pytest.raises(UnavailableError):
        block()
    assert block() == "already-committed"
    assert rows_of(place.path) == [1]


def test_what_was_prepared_and_not_asked_to_be_committed_waits_whatever_failed_before(place: Place) -> None:
    """Two phases: the epoch that failed was aborted, and prepared again."""
    sink, store = faulty(place)
    for number in (1, 2):
        txn = sink.begin(1)
        txn.write(rows(number))
        txn.prepare()
        if number == 1:
            at(store, "move", "", lambda: store.plan.append(fail_before(store.calls + 1)))
            with pytest.raises(UnavailableError):
                sink.commit(1)
            sink.abort(1)
    sink.begin(2).abort()
    assert (sink.pending, txn.outcome) == ([1], "prepared")


def test_a_write_that_cannot_be_repeated_says_so(place: Place) -> None:
    store = FaultyStore(LocalStore())
    sink = open_sink(store, stamps(), str(place.path), "w", {"row_group_rows": 1, "target_file_bytes": 1})
    txn = sink.begin(1)
    at(store, "create", "", lambda: store.plan.append(fail_before(store.calls + 1)))
    with pytest.raises(UnavailableError, match="Begin epoch 1 again"):
        txn.write(rows(1, 2))
    txn.abort()
    with sink.begin(1) as again:
        again.write(rows(1, 2))
    assert rows_of(place.path) == [1, 2]


def test_a_prepare_of_unknown_outcome_can_be_called_again(place: Place) -> None:
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))

    def lost() -> None:
        raise OutcomeUnknownError("write", "the answer was lost", "Recover")

    at(store, "put_if_absent", "/log/", lost, after=True)
    with pytest.raises(OutcomeUnknownError):
        txn.commit()
    assert txn.outcome == "unknown"
    with pytest.raises(InvalidRequestError, match="the transaction is unknown"):
        txn.write(rows(2))
    assert txn.commit().outcome == "committed"
    assert rows_of(place.path) == [1]


def test_what_may_yet_be_prepared_keeps_its_files_whatever_is_aborted_next(place: Place) -> None:
    """I8: the entry is in its slot, and this process does not know."""
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))

    def unseen() -> None:
        sink.log.refresh = lambda: sink.log.state  # type: ignore[method-assign]
        interrupt()

    at(store, "put_if_absent", "/log/", unseen, after=True)
    with pytest.raises(KeyboardInterrupt):
        txn.prepare()
    txn.abort()
    sink.begin(1).abort()
    assert open_writer(str(place.path), "w").last_epoch == 1
    assert rows_of(place.path) == [1]


# -- Ctrl-C -------------------------------------------------------------------------------------------------


def test_ctrl_c_right_after_the_prepare_entry_is_not_called_aborted(place: Place) -> None:
    sink, store = faulty(place)
    at(store, "put_if_absent", "/log/", interrupt, after=True)
    txn = sink.begin(1)

    def block() -> None:
        with txn:
            txn.write(rows(1))
            txn.commit()

    with pytest.raises(KeyboardInterrupt):
        block()
    assert txn.outcome == "unknown"
    sink.close()
    with place.sink() as again:
        assert again.last_epoch == 1
    assert rows_of(place.path) == [1]


def test_ctrl_c_between_the_last_file_and_the_prepare_entry_doubles_nothing(place: Place) -> None:
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))
    at(store, "settle", "", interrupt)
    with pytest.raises(KeyboardInterrupt):
        txn.prepare()
    assert txn.outcome == "open"
    assert txn.commit().rows == 1
    assert rows_of(place.path) == [1]


# -- threads ------------------------------------------------------------------------------------------------


def test_close_by_another_thread_waits_until_the_epoch_is_committed(place: Place) -> None:
    sink, store = faulty(place)
    closing = threading.Thread(target=sink.close)
    at(store, "put_if_absent", "/log/", closing.start, after=True)
    with sink.begin(1) as txn:
        txn.write(rows(1))
    closing.join()
    assert (txn.outcome, rows_of(place.path)) == ("committed", [1])
    with pytest.raises(InvalidRequestError, match="the writer is closed"):
        sink.begin(2)


def test_a_signal_handler_that_closes_the_writer_leaves_the_commit_it_came_into_to_end(place: Place) -> None:
    sink, store = faulty(place)
    at(store, "put_if_absent", "/log/", sink.close, after=True)
    with sink.begin(1) as txn:
        txn.write(rows(1))
    assert (txn.outcome, rows_of(place.path)) == ("committed", [1])


def test_a_signal_handler_that_aborts_in_the_middle_of_a_prepare_is_refused(place: Place) -> None:
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))
    at(store, "seal", "", txn.abort)
    with pytest.raises(InvalidRequestError, match="is under way on this very thread"):
        txn.commit()
    txn.abort()
    assert (txn.outcome, sink.pending) == ("aborted", [])


def test_data_that_writes_to_its_own_transaction_is_refused(place: Place) -> None:
    with place.sink() as sink:
        txn = sink.begin(1)

        def batches() -> object:
            yield pa.table(rows(1))
            txn.write(rows(2))

        with pytest.raises(InvalidRequestError, match="is under way on this very thread"):
            txn.write(batches())
        txn.abort()


def test_threads_that_share_a_transaction_lose_and_double_no_row(place: Place) -> None:
    """Seen: 5 of 10 runs lost or doubled rows without a word."""
    every = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with place.sink(row_group_rows=100) as sink, sink.begin(1) as txn:

            def write(thread: int) -> None:
                for number in range(WRITES):
                    first = (thread * WRITES + number) * ROWS
                    assert txn.write(pa.table({"id": range(first, first + ROWS)})) == ROWS

            threads = [threading.Thread(target=write, args=(thread,)) for thread in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert txn.result().rows == THREADS * WRITES * ROWS
    finally:
        sys.setswitchinterval(every)
    assert sorted(rows_of(place.path)) == list(range(THREADS * WRITES * ROWS))


# -- what it is told ----------------------------------------------------------------------------------------


def test_a_result_names_the_version_that_committed_its_epoch(place: Place) -> None:
    with place.sink() as sink:
        kept = []
        for epoch in (1, 2, 3):
            with sink.begin(epoch) as txn:
                txn.write(rows(epoch))
            kept.append(txn)
        found = [txn.result().version for txn in kept]
        assert found == [sink.log.commit_of("w", epoch).version for epoch in (1, 2, 3)]  # type: ignore[union-attr]
        assert len(set(found)) == 3
        assert sink.begin(1).commit().version == found[0]
        assert sink.begin(4).result().version == -1


def test_an_outcome_follows_the_log_whoever_commits_or_aborts(place: Place) -> None:
    with place.sink() as sink:
        one, two = sink.begin(1), sink.begin(2)
        one.prepare()
        two.prepare()
        sink.commit(1)
        assert (one.outcome, two.outcome) == ("committed", "prepared")
        sink.abort(2)
        assert (one.outcome, two.outcome) == ("committed", "aborted")
        with pytest.raises(InvalidRequestError, match="the transaction is aborted"):
            two.commit()


def test_a_notice_that_comes_again_is_a_success(place: Place) -> None:
    """Epochs 4 and 9 are prepared; what commits up to 8 may be said twice."""
    with place.sink() as sink:
        for epoch in (4, 9):
            txn = sink.begin(epoch)
            txn.write(rows(epoch))
            txn.prepare()
        sink.commit(8)
        sink.commit(8)
        assert (sink.last_epoch, sink.pending) == (4, [9])
        sink.commit(9)
        sink.commit(8)
        with pytest.raises(InvalidRequestError, match="no epoch up to it is prepared"):
            sink.commit(10)


def test_a_notice_that_comes_again_with_nothing_prepared_after_it_is_a_success(place: Place) -> None:
    with place.sink() as sink:
        sink.begin(4).prepare()
        for _ in range(2):
            sink.commit(8)
        with pytest.raises(InvalidRequestError, match="no epoch up to it is prepared"):
            sink.commit(9)


# -- what it forgets ----------------------------------------------------------------------------------------


def test_a_writer_and_a_transaction_say_that_they_cannot_be_pickled(place: Place) -> None:
    with place.sink() as sink, sink.begin(1) as txn:
        for one in (sink, txn):
            with pytest.raises(InvalidRequestError, match=r"belongs to its process. Send .*stager"):
                pickle.dumps(one)


@pytest.mark.parametrize(("ends", "told"), [("dropped", 2), ("prepared", 1), ("aborted", 1), ("closed", 0)])
def test_what_is_dropped_without_an_end_gives_a_resource_warning(tmp_path: Path, ends: str, told: int) -> None:
    gc.collect()  # what other tests have dropped
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sink = open_writer(tmp_path / "t", "w")
        txn = sink.begin(1)
        txn.write(rows(1))
        if ends == "prepared":
            txn.prepare()
        elif ends == "aborted":
            txn.abort()
        elif ends == "closed":
            sink.close()
        del sink, txn
        gc.collect()
    assert [one.category for one in seen] == [ResourceWarning] * told


class Halting(Calls):
    """Ctrl-C comes in the middle of an object that is being made."""

    def __init__(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("module", [transactions, writers], ids=["a transaction", "a writer"])
def test_ctrl_c_while_it_is_made_is_all_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with open_writer(tmp_path / "t", "w") as sink:
        act = partial(sink.begin, 1) if module is transactions else partial(open_writer, tmp_path / "t", "x")
        with monkeypatch.context() as patch:
            patch.setattr(module, "Calls", Halting)
            with pytest.raises(KeyboardInterrupt):
                act()
        gc.collect()
        assert unraisable == []
        sink.begin(1).commit()


def test_a_commit_of_the_next_run_is_told_to_the_transaction_that_prepared_it(place: Place) -> None:
    old = place.sink()
    txn = old.begin(1)
    txn.write(rows(1))
    txn.prepare()
    commit(place.sink(), 2)
    old.log.refresh()
    assert txn.outcome == "committed"


def test_an_epoch_without_rows_that_a_former_run_prepared_is_not_taken_for_ones_own(place: Place) -> None:
    """Seen by the model: a fenced run called its own what the run after it had prepared, and dropped it."""
    old = place.sink()
    mine = old.begin(1)
    new = place.sink(recover=False)
    other = new.begin(1)
    other.prepare()
    with pytest.raises(FencedError):
        mine.prepare()
    mine.abort()
    assert (mine.outcome, other.outcome, new.pending) == ("aborted", "prepared", [1])
    third = place.sink(recover=False)
    txn = third.begin(1)
    with pytest.raises(ConflictError, match=r"epoch 1 is prepared already .* Commit or abort that one first"):
        txn.prepare()
    txn.abort()
    third.commit(1)
    new.log.refresh()
    assert (txn.outcome, other.outcome, third.last_epoch) == ("aborted", "committed", 1)


def test_an_epoch_without_rows_that_replaces_is_another_one_than_one_that_adds(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1)
    adds, replaces = sink.begin(2), sink.begin(2, mode="overwrite")
    again = sink.begin(2)
    adds.prepare()
    with pytest.raises(ConflictError, match="epoch 2 is prepared already"):
        replaces.prepare()
    again.prepare()
    assert (adds.outcome, again.outcome) == ("prepared", "prepared")
    assert adds.commit().outcome == again.commit().outcome == "committed"
    replaces.abort()
    assert (replaces.outcome, rows_of(place.path)) == ("aborted", [1])


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_what_needs_a_right_is_not_called_retryable(place: Place, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    txn.prepare()
    link = os.link

    def refused(source: str, target: str) -> None:
        raise PermissionError(code, os.strerror(code), target)

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(InvalidRequestError, match=r"epoch 1\. Make it writable, then call again\. Call it") as caught:
        txn.commit()
    assert (caught.value.retryable, txn.outcome) == (False, "prepared")
    monkeypatch.setattr(os, "link", link)
    assert txn.commit().outcome == "committed"
    assert rows_of(place.path) == [1]


def test_a_workplace_of_a_relative_path_is_the_same_from_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workplace = open_workplace("t")
    sink = open_writer("t", "w")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    txn = sink.begin(1)
    txn.add(pickle.loads(pickle.dumps(workplace)).stager("w", sink.run, 1).stage(rows(1)))
    txn.write(rows(2))
    txn.commit()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert rows_of(tmp_path / "t") == [1, 2]


def test_a_retired_run_hears_so_also_when_the_store_does_not_answer(place: Place) -> None:
    """Seen by the swarm: what another run had published and replaced was to be retried for ever (I10)."""
    sink, store = faulty(place)
    txn = sink.begin(1)
    txn.write(rows(1))
    txn.prepare()
    place.sink(recover=False).close()
    at(store, "move", "", lambda: store.plan.append(fail_before(store.calls + 1)))
    with pytest.raises(FencedError):
        txn.commit()
