"""A table that is renamed, restored from a copy or made anew between `prepare` and `commit` of a live writer.

Whoever goes on with what it read earlier looks first whether that log still stands there: no file gets its name in a
table whose log never names it, and none is taken away there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from place import Place, begin_publish, commit, prepared, rows, tree
from seen import by_log, rows_of, small_blocks
from txsink.environment import Stamps
from txsink.errors import ConflictError, CorruptError, FencedError, TxsinkError
from txsink.log import expiry
from txsink.log.log import LOOK_AGE_MS
from txsink.protocol import resolving
from txsink.reading.table import open_log
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore, delay
from txsink.testing.objects import Objects, ObjectStore
from txsink.two_phase.file_sink import ParquetFileSink
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]

# -- what becomes of the table ------------------------------------------------------------------------------


def renamed(place: Place, copy: Path) -> None:
    place.path.rename(place.path.parent / "moved")


def restored(place: Place, copy: Path) -> None:
    shutil.rmtree(place.path)
    shutil.copytree(copy, place.path)


def restored_and_written_to(place: Place, copy: Path) -> None:
    restored(place, copy)
    for epoch in range(5):
        place.write(epoch, rows(100 + epoch), writer="other", layout=None)


def made_anew(place: Place, copy: Path) -> None:
    shutil.rmtree(place.path)
    place.write(1, rows(100), writer="other")


CHANGES: dict[str, tuple[Callable[[Place, Path], None], str]] = {
    "renamed": (renamed, "there is no log any more: the table was deleted or renamed"),
    "restored": (restored, "it was restored from a copy"),
    "restored and written to": (restored_and_written_to, "restored from a copy and written to since"),
    "made anew": (made_anew, "the table was deleted and made anew since"),
}

OVERWRITE = {"mode": "overwrite"}
BEGUN = "overwrite that has begun"  # not in the layout delta: one commit of its log removes and adds
CALLS: dict[str, tuple[dict[str, Any], Callable[[Writer], object]]] = {
    "commit": ({}, lambda sink: sink.commit(2)),
    "begin another": ({}, lambda sink: sink.begin(3)),
    "overwrite": (OVERWRITE, lambda sink: sink.commit(2)),
    BEGUN: (OVERWRITE, lambda sink: sink.commit(2)),
    "recover": ({}, lambda sink: sink.recover()),
    "abort": ({}, lambda sink: sink.abort(2)),
    "sweep": ({}, lambda sink: sink.sweep()),
}


@pytest.mark.parametrize(
    ("table_layout", "call"),
    [*product(["parquet"], CALLS), *product(["delta"], (call for call in CALLS if call != BEGUN))],
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_of_a_table_that_is_another_publishes_and_removes_nothing(
    place: Place, table_layout: str, change: str, call: str
) -> None:
    """I3, I15: seen: the file had its name in the table, and then the commit failed."""
    (act, found), (options, asked) = CHANGES[change], CALLS[call]
    sink = place.sink("w", layout=table_layout)
    commit(sink, 1)
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    prepare = prepared(sink, 2, rows(2), **options)
    sink._asked = {prepare.version} if call == "begin another" else set()
    if call == BEGUN:
        begin_publish(sink, prepare)
    act(place, copy)
    before = tree(place.path.parent)
    for _ in range(2):
        with pytest.raises((ConflictError, CorruptError), match=found):
            asked(sink)
        assert tree(place.path.parent) == before
    sink.close()
    assert {path: data for path, data in tree(place.path.parent).items() if "/staged/" not in path} == {
        path: data for path, data in before.items() if "/staged/" not in path
    }


def test_a_table_that_was_renamed_keeps_its_pending_epoch_for_the_next_run(place: Place) -> None:
    """I1: what the writer did not publish at the old name, recovery publishes at the new one."""
    sink = place.sink("w")
    commit(sink, 1)
    prepared(sink, 2, rows(2))
    renamed(place, place.path)
    with pytest.raises(ConflictError, match="deleted or renamed") as caught:
        sink.commit(2)
    assert "Name the path where it is now" in caught.value.advice
    assert sink.pending == [2]
    sink.close()
    assert not place.path.exists()
    place.path = place.path.parent / "moved"
    with place.sink("w") as again:
        assert again.last_epoch == 2
    assert rows_of(place.path) == [1, 2]


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_that_completes_after_the_table_is_another_shows_nothing(place: Place, change: str) -> None:
    """I15: the two-phase life cycle, where a minute may lie between the two calls; the notice comes again and again."""
    act, found = CHANGES[change]
    sink = ParquetFileSink(str(place.path), "w")
    sink.restore_state(None)
    for checkpoint in (1, 2):
        if checkpoint == 2:
            shutil.copytree(place.path, copy := place.path.parent / "copy")
        sink.write(rows(checkpoint))
        sink.snapshot_state(checkpoint)
        if checkpoint == 1:
            sink.notify_checkpoint_complete(1)
    act(place, copy)
    before = tree(place.path.parent)
    for checkpoint in (2, 2, 3):
        with pytest.raises(TxsinkError, match=found):
            sink.notify_checkpoint_complete(checkpoint)
        assert tree(place.path.parent) == before
    sink.close()


@pytest.mark.parametrize("asked", [lambda sink: sink.commit(2), commit, Writer.sweep], ids=["commit", "write", "sweep"])
@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_what_was_aborted_keeps_its_files_in_a_table_that_was_restored(
    place: Place, table_layout: str, asked: Callable[..., object]
) -> None:
    """I8: the copy was made while the epoch was pending, so its log still names them."""
    sink = place.sink("w", layout=table_layout)
    commit(sink, 1)
    prepared(sink, 2, rows(2))
    copy = place.path.parent / "copy"
    shutil.copytree(place.path, copy)
    pending = sink.log.state.pending_of("w")[0]
    resolving.abort(sink.log, sink.identity, sink.publisher, pending)
    restored(place, copy)
    with pytest.raises(CorruptError, match="it was restored from a copy"):
        asked(*([sink, 3] if asked is commit else [sink]))
    sink.close()
    with place.sink("w") as again:
        assert again.last_epoch == 2
    assert by_log(place.path) == [1, 2]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("asked", [Writer.commit, Writer.abort])
def test_a_run_that_was_fenced_before_the_log_expired_hears_that_it_was_fenced(
    place: Place, asked: Callable[[Writer, int], None]
) -> None:
    """I10: the entry that it looks for is gone by right, and its epoch was committed by another run."""
    asleep = place.sink("w")
    prepared(asleep, 1, rows(1))
    with place.sink("w") as living:
        commit(living, *range(2, 20))
        assert expiry.expire(living.log, 200) > asleep.log.state.version
    with pytest.raises(FencedError, match="the run was retired by run"):
        asked(asleep, 1)
    assert rows_of(place.path) == [*range(1, 20)]
    asleep.close()


# -- in a bucket --------------------------------------------------------------------------------------------


class Bucket:
    """A table in a bucket, with a clock that stands still unless told."""

    def __init__(self, table_layout: str) -> None:
        self.objects = Objects()
        self.now_ms = 1_700_000_000_000
        self._layout = table_layout
        self._made = 0

    def stamps(self) -> Stamps:
        return Stamps(lambda: self.now_ms, self._new_id, lambda attempt: None)

    def sink(self, writer: str, store: Store | None = None) -> Writer:
        chosen = {"layout": self._layout}
        return open_sink(store or ObjectStore(self.objects), self.stamps(), "/table", writer, chosen)

    def replaced_by(self, objects: dict[str, bytes], later_ms: int = LOOK_AGE_MS) -> None:
        """The objects are those, and a second has gone by."""
        self.objects.objects.clear()
        self.objects.objects.update(objects)
        self.now_ms += later_ms

    def _new_id(self) -> str:
        self._made += 1
        return f"{self._made:032x}"


@pytest.mark.parametrize("call", [call for call in CALLS if call != BEGUN])
@pytest.mark.parametrize("change", ["renamed", "restored", "made anew"])
@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_in_a_bucket_a_writer_that_has_rested_publishes_and_removes_nothing(
    table_layout: str, change: str, call: str
) -> None:
    """I3, I15: also after it has read that nothing follows, which says nothing of whose log that is."""
    bucket = Bucket(table_layout)
    options, asked = CALLS[call]
    sink = bucket.sink("w")
    commit(sink, 1)
    copy = dict(bucket.objects.objects)
    prepare = prepared(sink, 2, rows(2), **options)
    sink._asked = {prepare.version} if call == "begin another" else set()
    bucket.replaced_by(copy if change == "restored" else {})
    if change == "made anew":
        with bucket.sink("other") as other:
            commit(other, 1)
        bucket.now_ms += LOOK_AGE_MS
    before, uploads = dict(bucket.objects.objects), dict(bucket.objects.pending)
    for _ in range(2):
        with pytest.raises((ConflictError, CorruptError), match=CHANGES[change][1]):
            asked(sink)
        assert (bucket.objects.objects, bucket.objects.pending) == (before, uploads)
    sink.close()


def test_in_a_bucket_reading_that_nothing_follows_is_no_look() -> None:
    """I3: an entry was put right after it, into the log of a table that had been restored."""
    bucket = Bucket("parquet")
    sink = bucket.sink("w")
    commit(sink, 1)
    copy = dict(bucket.objects.objects)
    commit(sink, 2)
    bucket.replaced_by(copy)
    sink.log.refresh()
    with pytest.raises(CorruptError, match="it was restored from a copy"):
        commit(sink, 3)
    assert bucket.objects.objects.keys() == copy.keys()
    sink.close()


COPIED, WRITTEN = 29, 34  # epochs: between them entry 64 begins another block of the log


@pytest.mark.parametrize("written", range(COPIED + 1, WRITTEN))
@pytest.mark.parametrize("options", [{}, OVERWRITE], ids=["append", "overwrite"])
@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_in_a_bucket_a_busy_writer_of_a_table_restored_at_any_call_is_not_told_that_it_committed(
    table_layout: str, options: dict[str, Any], written: int
) -> None:
    """I3, I8: seen: within a second of its last look it was, and an overwrite took away what the copy had brought back.

    No time goes by. What is planted all the same, by a restore between a look and the next request, stops the next
    opening. Only what was over when the restore came is taken back by it without a word.
    """
    told: Counter[str] = Counter()
    for call in count(1):
        bucket = Bucket(table_layout)
        store = FaultyStore(ObjectStore(bucket.objects))
        sink = bucket.sink("w", store)
        commit(sink, *range(COPIED))
        copy = dict(bucket.objects.objects)
        commit(sink, *range(COPIED, written))
        moment = store.calls + call
        store.plan.append(delay(moment, partial(bucket.replaced_by, copy, 0)))
        try:
            with sink.begin(written, **options) as txn:
                txn.write(rows(written))
            outcome = "committed"
        except CorruptError:
            outcome = "refused"
        if not store.delivered:
            break
        told[outcome] += 1
        there = bucket.objects.objects
        lost, planted = copy.keys() - there.keys(), [path for path in there.keys() - copy.keys() if "/log/" in path]
        verb, path = store.trace[moment - 1]
        assert not lost or verb == "delete", "S3 deletes on no condition"
        if outcome == "committed":
            assert planted == []
            assert "/log/" not in path, "the hint, or another piece of work that comes after the commit"
        elif planted:
            with pytest.raises(CorruptError, match="it is missing"):
                bucket.sink("w")
        else:
            found = open_log(ObjectStore(bucket.objects), bucket.stamps(), "/table").to_arrow()
            assert sorted(found["id"].to_pylist()) == list(range(COPIED))
    assert told["committed"] > 0
    assert told["refused"] > 5
