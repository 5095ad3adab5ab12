"""What things cost, counted rather than timed: store calls, syncs, objects and bytes, in young tables and old ones.

Counts do not depend on the machine, so they are pinned here; times stand in docs/performance.md. A change that makes
an epoch dearer fails here first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from txsink.environment import Stamps
from txsink.log.log import HINT_EVERY, LOOK_AGE_MS
from txsink.log.segment import BLOCK
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

# Before anything is published: that the log is still the one that was read, for it may be a minute since `prepare`.
LOOK = ("tail", "log")
# A look at the newest entry known and at the slots after it, the entry, a look at its neighbour.
APPEND = [("tail", "log"), ("present", "log"), ("put_if_absent", "log"), ("tail", "log")]
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


class CountingSystem(ModuleType):
    """`os` without the wait of a sync: notes of which path each one was."""

    def __init__(self) -> None:
        super().__init__("counting")
        self._paths: dict[int, str] = {}
        self.synced: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        handle = os.open(path, flags, mode)
        self._paths[handle] = path
        return handle

    def fsync(self, handle: int) -> None:
        self.synced.append(self._paths[handle])


class Bench:
    """A table on disk, every store call and sync of which is counted."""

    layout = "parquet"

    def __init__(self, root: Path) -> None:
        self.root = root / "table"
        self.system = CountingSystem()
        self.store = FaultyStore(LocalStore(self.system))
        self._ids = map("{:032x}".format, count(1))
        self._clock = count(1_700_000_000_000)
        self._stamps = Stamps(now_ms=lambda: next(self._clock), new_id=lambda: next(self._ids), pause=lambda _: None)

    def open(self, **options: Any) -> Writer:
        return open_sink(self.store, self._stamps, str(self.root), "w", {"layout": self.layout, **options})

    def rest(self, milliseconds: int) -> None:
        """Let time go by."""
        self._clock = count(next(self._clock) + milliseconds)

    def grow(self, epochs: int) -> None:
        """Commit empty epochs up to that number."""
        with self.open() as sink:
            for epoch in range(-1 if sink.last_epoch is None else sink.last_epoch, epochs):
                write(sink, epoch + 1, None)

    def calls_of(self, act: Callable[[], object]) -> list[tuple[str, str]]:
        """Verb and place of every store call that `act` makes."""
        before = self.store.calls
        act()
        # A verb over no files at all touches nothing.
        return [(verb, self._place(path)) for verb, path in self.store.trace[before:] if path]

    def syncs_of(self, act: Callable[[], object]) -> list[str]:
        before = len(self.system.synced)
        act()
        return [self._place(path) for path in self.system.synced[before:]]

    def files(self) -> Counter[str]:
        return Counter(self._place(str(path)) for path in self.root.parent.rglob("*") if path.is_file())

    def _place(self, path: str) -> str:
        """What kind of thing lies there."""
        below = path.removeprefix(f"{self.root.parent}/")
        for prefix, place in (
            (".table.txsink", "staged"),
            ("table/_txsink/log", "log"),
            ("table/_txsink/state", "summary"),
            ("table/_txsink/files", "segment"),
            ("table/_txsink/head", "hint"),
            ("table/part-", "data"),
        ):
            if below.startswith(prefix):
                return place
        return below


def write(sink: Writer, epoch: int, rows: pa.Table | None = ROWS) -> None:
    with sink.begin(epoch) as txn:
        if rows is not None:
            txn.write(rows)


def write_all(sink: Writer, epochs: Iterable[int], rows: pa.Table | None = ROWS) -> None:
    for epoch in epochs:
        write(sink, epoch, rows)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def sink(bench: Bench) -> Iterator[Writer]:
    with bench.open() as opened:
        write(opened, 0)
        yield opened


# -- an epoch ----------------------------------------------------------------------------------------------


def test_staging_one_file_takes_two_calls_and_a_look_at_its_stamp(bench: Bench, sink: Writer) -> None:
    txn = sink.begin(1)
    txn.write(ROWS)
    assert bench.calls_of(txn.prepare)[:3] == [("create", "staged"), ("seal", "staged"), ("tail", "staged")]


def test_prepare_takes_one_look_at_each_file_one_settle_and_one_append(bench: Bench, sink: Writer) -> None:
    txn = sink.begin(1)
    txn.write(ROWS)
    assert bench.calls_of(txn.prepare)[3:] == [
        ("tail", "staged"),
        ("settle", "staged"),
        *APPEND,
    ]


def test_commit_takes_a_look_at_the_log_two_at_each_file_one_move_and_one_append(bench: Bench, sink: Writer) -> None:
    txn = sink.begin(1)
    txn.write(ROWS)
    txn.prepare()
    assert bench.calls_of(txn.commit) == [
        LOOK,
        ("tail", "staged"),
        ("tail", "data"),
        ("move", "data"),
        ("prune", "staged"),
        *APPEND,
    ]


def test_an_empty_epoch_takes_two_appends_and_a_look_at_the_log(bench: Bench, sink: Writer) -> None:
    calls = bench.calls_of(lambda: write(sink, 1, None))
    assert calls == [*APPEND, LOOK, *APPEND]


def test_an_epoch_of_one_file_syncs_seven_times(bench: Bench, sink: Writer) -> None:
    assert bench.syncs_of(lambda: write(sink, 1)) == [
        *("staged", "staged"),  # the file and its name
        *("log", "log"),  # the prepare entry and its name
        "table",  # the published name
        *("log", "log"),  # the commit entry and its name
    ]


def test_each_further_file_of_an_epoch_costs_one_sync(bench: Bench) -> None:
    with bench.open(row_group_rows=1, target_file_bytes=1) as sink:
        write(sink, 0)
        syncs = Counter(bench.syncs_of(lambda: write(sink, 1)))
    assert ROWS.num_rows == 3
    assert syncs == {"staged": 3 + 1, "log": 4, "table": 1}


def test_no_epoch_lists_anything_or_reads_an_entry_back(bench: Bench, sink: Writer) -> None:
    calls = bench.calls_of(lambda: write_all(sink, range(1, 3 * BLOCK)))
    verbs = Counter(verb for verb, place in calls if place not in {"segment", "summary"})
    assert verbs.keys() == {"create", "seal", "tail", "present", "settle", "put_if_absent", "move", "prune", "put_hint"}
    assert not [place for verb, place in calls if verb in {"list", "read", "replace", "delete"} and place != "segment"]


def test_epochs_of_an_old_table_make_the_calls_of_a_young_one(bench: Bench) -> None:
    with bench.open() as sink:
        write(sink, 0)
        young = bench.calls_of(lambda: write(sink, 1))
        for epoch in range(2, 600):
            write(sink, epoch, None)
        for epoch in range(600, 600 + BLOCK):
            calls = bench.calls_of(partial(write, sink, epoch))
            # What comes after the commit is off its path, and now and then.
            assert calls[: len(young)] == young


def test_what_is_written_off_the_commit_path_is_rare(bench: Bench, sink: Writer) -> None:
    epochs = 8 * BLOCK  # 16 blocks of versions
    calls = bench.calls_of(lambda: write_all(sink, range(1, epochs + 1), None))
    wrote = Counter(place for verb, place in calls if verb in {"put_if_absent", "put_hint"})
    versions = 2 * epochs
    assert wrote["summary"] == versions // BLOCK
    assert wrote["segment"] == versions // BLOCK  # each eighth is the merger of the seven before and its block
    assert wrote["hint"] <= versions // HINT_EVERY
    assert wrote["log"] == versions


# -- what is left behind -----------------------------------------------------------------------------------


def test_an_epoch_leaves_its_data_file_and_two_entries(bench: Bench, sink: Writer) -> None:
    before = bench.files()
    for epoch in range(1, 11):
        write(sink, epoch)
    after = bench.files()
    after.subtract(before)
    assert {place: number for place, number in after.items() if number and place != "hint"} == {"data": 10, "log": 20}


def test_an_epoch_of_one_file_adds_less_than_1200_bytes_to_the_log_at_any_age(bench: Bench) -> None:
    bench.grow(600)
    with bench.open() as sink:
        write(sink, 601)
        write(sink, 602)
    log = sorted((bench.root / "_txsink" / "log").iterdir())
    assert sum(path.stat().st_size for path in log[-2:]) < 1_200


def test_the_hint_of_an_old_table_is_as_small_as_that_of_a_young_one(bench: Bench) -> None:
    sizes = []
    for epochs in (40, 600):
        bench.grow(epochs)
        sizes.append((bench.root / "_txsink" / "head").stat().st_size)
    assert max(sizes) < 1_000
    assert sizes[1] <= sizes[0] + 8  # versions and epochs gained a digit


# -- opening -----------------------------------------------------------------------------------------------


def test_opening_makes_as_few_calls_at_any_age(bench: Bench) -> None:
    """S12: no old entry is opened to learn the newest epoch."""
    bench.grow(20)
    for epoch in [*range(21, 21 + BLOCK, 3), *range(600, 600 + BLOCK, 3)]:
        bench.grow(epoch)
        calls = Counter(bench.calls_of(lambda: bench.open().close()))
        # The entries after the hint, and twice the slot after the newest one; once more what was claimed.
        assert calls["read", "log"] <= HINT_EVERY + 4
        assert calls["tail", "log"] <= 7
        assert calls["present", "log"] <= 3
        assert calls["read", "hint"] == 1
        assert calls["put_if_absent", "log"] == 1
        assert {place for verb, place in calls if verb == "list"} == {"staged"}
        assert sum(calls.values()) <= HINT_EVERY + 16


def test_opening_syncs_only_its_claim(bench: Bench) -> None:
    bench.grow(600)
    assert set(bench.syncs_of(lambda: bench.open().close())) == {"log"}


def test_opening_again_and_again_without_a_commit_makes_the_next_opening_no_longer(bench: Bench) -> None:
    def reads() -> int:
        return sum(verb == "read" for verb, _ in bench.calls_of(lambda: bench.open().close()))

    assert max(reads() for _ in range(5 * HINT_EVERY)) <= HINT_EVERY + 5


# -- a store whose every call is a request ------------------------------------------------------------------


class CountedBucket(Bench):
    """A table in a bucket, every call of which is counted. What S3 makes of a call stands in test_store_s3.py."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.store = FaultyStore(ObjectStore(Objects()))


@pytest.fixture
def bucket(tmp_path: Path) -> CountedBucket:
    return CountedBucket(tmp_path)


def test_an_epoch_in_a_bucket_takes_three_requests_a_file_and_six_for_the_log(bucket: CountedBucket) -> None:
    with bucket.open() as sink:
        write(sink, 0)
        for epoch in range(1, 3 * BLOCK):
            calls = bucket.calls_of(partial(write, sink, epoch))
            # A summary and its segment are off the commit path, and come now and then.
            assert [call for call in calls if call[1] not in {"summary", "segment"}] == [
                ("create", "data"),  # with the first part, or the only one
                ("seal", "data"),
                ("put_if_absent", "log"),
                ("tail", "log"),  # the entry before: a log that was restored has it no more
                ("tail", "log"),  # the prepare entry itself, right before something is published
                ("complete", "data"),
                ("put_if_absent", "log"),
                ("tail", "log"),
                ("put_hint", "hint"),
            ]


@pytest.mark.parametrize("epochs", [1, 70, 700])
def test_opening_a_writer_in_a_bucket_takes_six_requests_at_any_age(bucket: CountedBucket, epochs: int) -> None:
    """And a seventh, the look after the claim: the records of the mutants know the test by its former name."""
    bucket.grow(epochs)
    for _ in range(2):
        calls = bucket.calls_of(lambda: bucket.open().close())
        # Resolving a path and settling what is durable already are no requests.
        assert [verb for verb, _ in calls if verb not in {"resolve", "settle"}] == [
            *("read", "tail", "present", "uploads"),  # the third asks for the names after the newest entry
            *("put_if_absent", "tail", "put_hint"),
        ]


def test_a_writer_in_a_bucket_that_has_rested_looks_once_before_its_next_epoch(tmp_path: Path) -> None:
    """Within a second of its last look or append there is only the look after the put."""
    bucket = CountedBucket(tmp_path)
    with bucket.open() as sink:
        write(sink, 0)
        busy = bucket.calls_of(partial(write, sink, 1))
        bucket.rest(LOOK_AGE_MS)
        assert bucket.calls_of(partial(write, sink, 2)) == [*busy[:2], ("tail", "log"), *busy[2:]]
        assert bucket.calls_of(partial(write, sink, 3)) == busy


def test_a_writer_in_a_bucket_that_rests_before_it_commits_looks_once_and_not_again_before_the_entry(
    bucket: CountedBucket,
) -> None:
    with bucket.open() as sink:
        write(sink, 0)
        txn = sink.begin(1)
        txn.write(ROWS)
        txn.prepare()
        bucket.rest(LOOK_AGE_MS)
        assert bucket.calls_of(txn.commit) == [
            ("tail", "log"),
            ("complete", "data"),
            ("put_if_absent", "log"),
            ("tail", "log"),
            ("put_hint", "hint"),
        ]


def test_several_epochs_that_one_call_commits_take_one_look(bench: Bench, sink: Writer) -> None:
    for epoch in (1, 2, 3):
        sink.begin(epoch).prepare()
    assert bench.calls_of(lambda: sink.commit(3)) == [LOOK, *3 * APPEND]


def test_a_bucket_grows_by_the_file_and_two_entries_an_epoch(bucket: CountedBucket) -> None:
    with bucket.open() as sink:
        write(sink, 0)
        before = len(bucket.store.list(str(bucket.root)))
        write_all(sink, range(1, 10))
        assert len(bucket.store.list(str(bucket.root))) == before + 9 * 3
