"""What the log promises on every store, as suites: subclass them and give the fixtures `opened` and `root`.

Promises: a store that passes `LogContract` carries a log through lost answers, damage, merges, expiry and crashes;
one that passes `LogRaces`, through many processes at once.
Relies on: `opened`, which opens a store on the same bytes (for `LogRaces` it travels to other processes); `root`, an
absolute path that nobody has used.
Does not promise: anything about what only one store has: power cuts, requests, names that are deleted.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from logs import claim_by, grow, retired_runs
from txsink import paths
from txsink.choices import Mode
from txsink.environment import Stamps, stamps
from txsink.errors import CorruptError, FencedError, InvalidRequestError
from txsink.log import entry as entries, expiry, log, segment
from txsink.log.entry import FORMAT, Claim, Prepare
from txsink.log.log import Log
from txsink.protocol import blank, resolving
from txsink.reading.table import open_log
from txsink.store.protocol import Store
from txsink.testing.faults import Fault, FaultyStore, crash_before, delay, lose_answer, lose_request
from txsink.testing.simdisk import Crash
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

PROCESSES = 16
READ_BYTES_MAX = 1 << 20
pa.array([0])  # imports pandas if it is there, which takes as long as all the appends of a race

Opened = Callable[[], Store]


class Ground:
    """A table to be, on any store, with counted ids and a counted clock."""

    def __init__(self, opened: Opened, root: str) -> None:
        self.opened, self.root = opened, root
        self.store = opened()
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000, 1000)
        self.stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)

    def log(self, store: Store | None = None) -> Log:
        """A log as a new process reads it; created when it is not there."""
        found = Log(store or self.store, self.root, self.stamps)
        found.load()
        if not found.exists:
            blank.create(found, "parquet", (), None, "a table")
        return found

    def sink(self, store: Store | None = None, writer: str = "w", **options: Any) -> Writer:
        return open_sink(store or self.store, self.stamps, self.root, writer, {"layout": "parquet", **options})

    def rows(self) -> list[int]:
        table = open_log(self.store, self.stamps, self.root)
        assert table.verify() == []
        return sorted(table.to_arrow()["id"].to_pylist())

    def kinds(self) -> list[str]:
        return [one.kind for one in open_log(self.store, self.stamps, self.root).history()][::-1]

    def at(self, version: int) -> str:
        """Where an entry lies."""
        return f"{self.root}/{paths.entry_path(version)}"

    def bytes_of(self, version: int) -> bytes:
        found = self.store.read(self.at(version), READ_BYTES_MAX)
        assert found is not None
        return found

    def put(self, version: int, data: bytes) -> None:
        """The entry's slot holds these bytes, whatever it held."""
        self.store.replace(self.at(version), data, "0123abcd")


def write(sink: Writer, *epochs: int, mode: Mode = "append") -> None:
    """One row an epoch: its number."""
    for epoch in epochs:
        with sink.begin(epoch, mode=mode) as txn:
            txn.write({"id": [epoch]})


def overwrite_twice(ground: Ground, store: Store) -> None:
    with ground.sink(store) as sink:
        write(sink, 1, 2, mode="overwrite")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "altered": lambda data: data.replace(b'"kind"', b'"kinD"'),
    "zeroes": lambda data: b"\x00" * len(data),
}


class LogContract:
    """F22 to F28, as far as they are about the log."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def ground(self, opened: Opened, root: str) -> Ground:
        return Ground(opened, root)

    @pytest.fixture
    def small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Summaries and segments every four entries, merged by twos."""
        for module in (segment, log):
            monkeypatch.setattr(module, "BLOCK", 4)
        monkeypatch.setattr(segment, "FANOUT", 2)

    # -- lost answers -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", [lose_answer, lose_request])
    def test_an_append_whose_answer_was_lost_counts_once(
        self, opened: Opened, root: str, fault: Callable[[int], Fault]
    ) -> None:
        """F22, for create, claim, prepare, publishing and commit alike; also when it did not land."""
        expected = ["create", "claim", "prepare", "commit", "prepare", "publishing", "commit"]
        clean = FaultyStore(opened())
        overwrite_twice(Ground(opened, f"{root}/clean"), clean)
        puts = [
            number
            for number, (verb, path) in enumerate(clean.trace, 1)
            if verb == "put_if_absent" and f"/{paths.LOG_DIRECTORY}/" in path
        ]
        assert len(puts) == len(expected)
        for number in puts:
            ground = Ground(opened, f"{root}/{number}")
            faulty = FaultyStore(ground.store, [fault(number)])
            overwrite_twice(ground, faulty)
            faulty.check_delivered()
            assert ground.rows() == [2]
            assert ground.kinds() == expected

    # -- damage -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("damage", DAMAGE)
    @pytest.mark.parametrize("version", [1, 3])
    def test_a_damaged_entry_is_corruption_with_its_version_and_nothing_is_appended(
        self, ground: Ground, damage: str, version: int
    ) -> None:
        """F23, I13."""
        with ground.sink() as sink:
            write(sink, 1)
        whole = ground.bytes_of(version)
        ground.put(version, DAMAGE[damage](whole))
        ground.store.delete(f"{ground.root}/{paths.HEAD_PATH}")
        with pytest.raises(CorruptError) as caught:
            ground.sink()
        assert caught.value.context["version"] == version
        assert len(ground.store.list(f"{ground.root}/{paths.LOG_DIRECTORY}")) == 4
        ground.put(version, whole)
        with ground.sink() as sink:
            write(sink, 2)
        assert ground.rows() == [1, 2]

    def test_an_entry_that_is_missing_is_no_end_of_the_log(self, ground: Ground) -> None:
        """I13: the hint has seen it."""
        with ground.sink() as sink:
            write(sink, 1)
            sink.log.keep_hint()
        ground.store.delete(ground.at(3))
        with pytest.raises(CorruptError, match="it is missing, yet it had been read before"):
            ground.sink()

    def test_an_entry_of_a_future_format_says_both_versions(self, ground: Ground) -> None:
        """F24."""
        grow(ground.log(), 1)
        body = b'{"kind":"commit","format":7,"version":2,"novel":true}'
        ground.put(2, entries.seal(body))
        with pytest.raises(InvalidRequestError, match=f"format 7, this txsink reads format {FORMAT}"):
            ground.log()

    # -- races, in turns --------------------------------------------------------------------------------

    def test_a_lost_race_is_decided_again_on_what_the_winner_wrote(self, ground: Ground) -> None:
        """I7: the other one appends just before our put."""
        other = ground.log()
        store = FaultyStore(ground.store)
        mine = ground.log(store)
        store.plan.append(delay(store.calls + 1, lambda: other.append(claim_by("w"))))
        mine.append(claim_by("w"))
        store.check_delivered()
        assert [other.refresh().version, mine.state.writers["w"].generation] == [2, 2]
        assert ground.log().state == mine.state

    # -- expiry -----------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("small_blocks")
    def test_a_stalled_writer_never_uses_an_expired_slot(self, ground: Ground) -> None:
        """F25, I7."""
        grow(ground.log(), 6)
        stalled = ground.log(ground.opened())
        slot = stalled.state.version + 1
        living = ground.log()
        grow(living, 20, "v")
        used = entries.decode(ground.bytes_of(slot), slot)
        assert expiry.expire(living, living.state.version) > slot
        written = stalled.append(claim_by("w"))
        assert written is not None
        assert written.version == living.refresh().version > used.version
        assert ground.log().state == stalled.state
        grow(ground.log(), 9, "v")
        assert len(retired_runs(ground.log())) == 6 + 20 + 1 + 9

    @pytest.mark.usefixtures("small_blocks")
    def test_a_stalled_writer_learns_that_it_was_fenced_even_when_the_claim_has_expired(self, ground: Ground) -> None:
        """F25, I10."""
        stalled = ground.sink(ground.opened())
        txn = stalled.begin(1)
        txn.write({"id": [1]})
        newer = ground.sink()
        write(newer, *range(1, 9))
        assert expiry.expire(newer.log, newer.log.state.version) > 1
        with pytest.raises(FencedError):
            txn.commit()
        assert ground.rows() == list(range(1, 9))

    @pytest.mark.usefixtures("small_blocks")
    def test_a_reader_that_slept_through_an_expiry_reloads(self, ground: Ground) -> None:
        """F26."""
        writing = ground.log()
        grow(writing, 6)
        reader = ground.log(ground.opened())
        grow(writing, 20)
        expiry.expire(writing, writing.state.version)
        assert reader.refresh() == writing.state
        assert retired_runs(reader) == retired_runs(writing)
        with pytest.raises(InvalidRequestError, match="expired"):
            reader.entry(2)

    @pytest.mark.usefixtures("small_blocks")
    def test_a_reader_has_the_full_list_whenever_segments_are_merged_and_expired(self, ground: Ground) -> None:
        """F26: others merge and expire before each of the reader's calls."""
        writing = ground.log()
        grow(writing, 14)
        for number in itertools.count(1):
            store = FaultyStore(ground.store)
            reader = ground.log(store)
            before = len(retired_runs(writing))

            def others() -> None:
                grow(writing, 5)
                expiry.expire(writing, writing.state.version)

            store.plan.append(delay(store.calls + number, others))
            runs = retired_runs(reader)
            if not store.delivered:
                break
            whole = retired_runs(writing)
            assert runs == whole[: len(runs)]
            assert before <= len(runs) <= len(whole) == before + 5
        assert number > 2

    # -- recovery ---------------------------------------------------------------------------------------

    def test_six_recoveries_that_crash_and_a_seventh_leave_every_epoch_once(self, ground: Ground) -> None:
        """F27, I12: each of them dies one store call later."""
        with ground.sink() as sink:
            write(sink, 0)
        txn = ground.sink().begin(1)
        txn.write({"id": [1]})
        txn.prepare()
        clean = FaultyStore(ground.store)
        ground.log(clean)
        opening = clean.calls  # the log is read; what recovers comes after
        for number in range(6):
            store = FaultyStore(ground.store, [crash_before(opening + 2 + number)])
            with pytest.raises(Crash):
                ground.sink(store)
            store.check_delivered()
        with ground.sink() as sink:
            assert sink.last_epoch == 1
            write(sink, 2)
        assert ground.rows() == [0, 1, 2]
        assert ground.kinds().count("commit") == 3

    def test_a_commit_told_twice_is_a_success_and_one_entry(self, ground: Ground) -> None:
        """F28, I5."""
        with ground.sink() as sink:
            write(sink, 1)
            for _ in range(2):
                sink.commit(1)
            assert sink.begin(1).outcome == "already-committed"
        assert ground.kinds() == ["create", "claim", "prepare", "commit"]

    def test_an_abort_while_the_publish_had_begun_is_finished_by_the_next_run(self, ground: Ground) -> None:
        """I9, F28: half of the files were published, the abort entry landed, nothing was deleted yet."""
        sink = ground.sink(row_group_rows=1, target_file_bytes=1)
        txn = sink.begin(1)
        txn.write({"id": [7, 8]})
        txn.prepare()
        (item,) = sink.log.state.pending
        prepare = sink.log.prepare_entry(item.prepared)
        assert len(prepare.files) == 2
        fields = {name: getattr(prepare, name) for name in Prepare.__struct_fields__}
        half = Prepare(**{**fields, "files": prepare.files[:1], "uploads": prepare.uploads[:1]})
        sink.publisher.publish(half)
        resolving.abort(sink.log, sink.identity, sink.publisher, item)
        with ground.sink() as again:
            write(again, 1)
        assert ground.rows() == [1]
        assert sorted(ground.kinds()) == sorted(
            ["create", "claim", "prepare", "abort", "claim", "maintenance", "prepare", "commit"]
        )


class LogRaces:
    """F21: many processes append to one log at once. `versions` are appended by each of them."""

    versions: ClassVar[int] = 200

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def test_sixteen_processes_append_with_one_winner_a_version_and_none_starves(
        self, opened: Opened, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """F21, I7, I14: each slot has one winner, who knows it; the chain is whole; every process gets its share."""
        ground = Ground(opened, root)
        ground.log()
        # All of them begin as copies of a process that has imported everything.
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        won = _race(opened, root, self.versions)
        versions = Counter(version for mine in won for version, _ in mine)
        last = PROCESSES * self.versions
        found = ground.log()
        assert found.state.version == last
        assert versions == Counter(range(1, last + 1))
        assert {len(mine) for mine in won} == {self.versions}
        # Read from the first entry on: the chain, and whose entry each slot holds.
        ground.store.delete(f"{root}/{paths.HEAD_PATH}")
        for name in ground.store.list(f"{root}/{paths.STATE_DIRECTORY}"):
            ground.store.delete(f"{root}/{paths.STATE_DIRECTORY}/{name}")
        assert ground.log().state == found.state
        assert {(entry.version, entry.write_id) for entry in found.entries(1, last)} == {
            one for mine in won for one in mine
        }
        assert not [name for name in ground.store.list(root) if paths.is_temporary(name)]


def _race(opened: Opened, root: str, versions: int) -> list[list[tuple[int, str]]]:
    """What each process has appended: version and write id."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "txsink.store.s3.store"])
    barrier = context.Barrier(PROCESSES)
    answers, running = [], []
    for number in range(PROCESSES):
        answer, told = context.Pipe(duplex=False)
        process = context.Process(target=_append_many, args=(opened, root, versions, barrier, told), name=str(number))
        process.start()
        told.close()  # so that a process that dies ends the wait for its answer
        answers.append(answer)
        running.append(process)
    try:
        return [answer.recv() for answer in answers]
    finally:
        for process, answer in zip(running, answers, strict=True):
            answer.close()
            process.join()


def _append_many(opened: Opened, root: str, versions: int, barrier: Barrier, answer: Connection) -> None:
    """One process: append, with the house work a sink does."""
    found = Log(opened(), root, stamps())
    found.load()
    writer = f"w{multiprocessing.current_process().name}"
    won: list[tuple[int, str]] = []
    barrier.wait(timeout=120)
    for _ in range(versions):
        entry = found.append(claim_by(writer))
        assert isinstance(entry, Claim)
        won.append((entry.version, entry.write_id))
        found.maintain()
    answer.send(won)
