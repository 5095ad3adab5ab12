"""Every verb in every order, two writers, runs that were fenced long ago and go on: the table is a dictionary.

After every step the log's reader and a plain reader of the directory see exactly the rows a dictionary of committed
epochs says (I1, I2, I8). Whoever was fenced hears FencedError, or is told that there is nothing to do; nothing that it
does is seen (I10), but one thing the design allows: files of an epoch that is prepared already may get their names.
Below the machine stand, as plain tests, the wrong answers it and its making have found.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seen import small_blocks
from simtable import SimTable
from txsink.choices import OnNewer
from txsink.errors import ConflictError, FencedError, InvalidRequestError
from txsink.log import expiry
from txsink.protocol import blank
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]

WRITERS = st.sampled_from("vw")
DAYS = st.lists(st.sampled_from("abc"), max_size=2)
MODES = st.sampled_from(["append", "append", "append", "overwrite", "overwrite-partitions"])


def write(sink: Writer, epoch: int, *ids: int, **options: Any) -> Transaction:
    with sink.begin(epoch, **options) as txn:
        txn.write({"id": list(ids)})
    return txn


# -- the model ---------------------------------------------------------------------------------------------


@dataclass
class Prepared:
    """A pending epoch: its rows by id with their day, and the ids it takes away."""

    writer: str
    epoch: int
    rows: dict[int, str]
    doomed: set[int]
    metadata: dict[str, int]
    mode: str
    run: Run
    is_shown: bool = False  # a fenced run may have given its files their names


@dataclass
class Known:
    """One writer: its committed epochs, oldest first, with what they hold and whether they replaced something."""

    committed: dict[int, tuple[set[int], bool, dict[str, int]]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max(self.committed, default=-1)


@dataclass
class Run:
    """An open sink, and the transactions begun with it."""

    sink: Writer
    open: list[tuple[Transaction, dict[int, str]]] = field(default_factory=list)
    noticed: int = -1  # the largest epoch that a successful notice named


def redundant(rows: dict[int, str]) -> set[str]:
    """What an epoch that another transaction of the run committed is; without rows nobody can tell the two apart."""
    return {"already-committed"} if rows else {"already-committed", "committed"}


class TableMachine(RuleBasedStateMachine):
    """Two writers, each with one live run and all its former ones."""

    @initialize()
    def start(self) -> None:
        self.site = SimTable()
        self.live: dict[int, str] = {}  # id -> day
        self.known = {"v": Known(), "w": Known()}
        self.pending: list[Prepared] = []
        self.ids = itertools.count(1)
        self.runs: dict[str, Run] = {}
        self.zombies: list[tuple[str, Run]] = []
        for writer in self.known:
            self.runs[writer] = Run(self.site.open(writer, partition_by="day"))

    # -- what the dictionary says ---------------------------------------------------------------------------

    def waiting(self, writer: str) -> list[Prepared]:
        return [one for one in self.pending if one.writer == writer]

    def doomed_by(self, writer: str, mode: str, rows: dict[int, str]) -> set[int]:
        if mode == "append":
            return set()
        found = dict(self.live)
        for one in self.waiting(writer):
            found = {row: day for row, day in found.items() if row not in one.doomed} | one.rows
        days = set(rows.values())
        return {row for row, day in found.items() if mode == "overwrite" or day in days}

    def commit_up_to(self, writer: str, epoch: int) -> list[int]:
        done = [one for one in self.waiting(writer) if one.epoch <= epoch]
        for one in done:
            self.live = {row: day for row, day in self.live.items() if row not in one.doomed} | one.rows
            self.known[writer].committed[one.epoch] = (set(one.rows), bool(one.doomed), one.metadata)
            self.pending.remove(one)
        return [one.epoch for one in done]

    def drop_above(self, writer: str, epoch: int) -> list[int]:
        done = [one for one in self.waiting(writer) if one.epoch > epoch]
        for one in done:
            self.pending.remove(one)
        return [one.epoch for one in done]

    @invariant()
    def both_readers_see_what_the_dictionary_says(self) -> None:
        table = self.site.table()
        found = table.to_arrow()
        seen = dict(zip(found["id"].to_pylist(), found["day"].to_pylist(), strict=True)) if len(found) else {}
        assert found.num_rows == len(seen)
        assert seen == self.live
        assert [(one.writer, one.epoch) for one in table.pending()] == [(one.writer, one.epoch) for one in self.pending]
        shown = Counter(self.site.by_directory())
        assert max(shown.values(), default=1) == 1, "a row is seen twice"
        assert set(self.live) <= set(shown), "a committed row is not seen"
        more = set(shown) - set(self.live)
        for one in self.pending:
            if one.is_shown and more & set(one.rows):
                assert set(one.rows) <= more, "a part of an epoch is seen"
                more -= set(one.rows)
        assert more == set(), "rows are seen that no commit brought"

    @invariant()
    def every_writer_resumes_after_its_last_epoch(self) -> None:
        for writer, run in self.runs.items():
            known = self.known[writer]
            assert run.sink.last_epoch == (None if known.last < 0 else known.last)
            assert run.sink.pending == [one.epoch for one in self.waiting(writer)]
            assert run.sink.last_metadata == (known.committed[known.last][2] if known.committed else {})

    # -- the verbs of the live run --------------------------------------------------------------------------

    @rule(writer=WRITERS, ahead=st.integers(1, 2), days=DAYS, mode=MODES)
    def begin(self, writer: str, ahead: int, days: list[str], mode: str) -> None:
        """An epoch beyond all that is committed or prepared, to be gone on with."""
        self.runs[writer].open.append(self.begun(self.runs[writer], self.next_epoch(writer) + ahead - 1, days, mode))

    @rule(writer=WRITERS, days=DAYS, mode=MODES, verb=st.sampled_from(["prepare", "commit"]))
    def write(self, writer: str, days: list[str], mode: str, verb: str) -> None:
        """The next epoch, prepared or committed at once."""
        self.finish(writer, *self.begun(self.runs[writer], self.next_epoch(writer), days, mode), verb)

    @rule(writer=WRITERS, count=st.integers(3, 8), is_expired=st.booleans())
    def grow_old(self, writer: str, count: int, is_expired: bool) -> None:
        """Epochs without rows, and perhaps an expiry of all that can go: other runs sleep through it."""
        for _ in range(count):
            self.finish(writer, *self.begun(self.runs[writer], self.next_epoch(writer), [], "append"), "commit")
        if is_expired:
            self.expire(100)

    def next_epoch(self, writer: str) -> int:
        return 1 + max([self.known[writer].last, *(one.epoch for one in self.waiting(writer))])

    def begun(self, run: Run, epoch: int, days: list[str], mode: str) -> tuple[Transaction, dict[int, str]]:
        rows = {next(self.ids): day for day in days}
        txn = run.sink.begin(
            epoch,
            mode="append" if mode == "append" else "overwrite",
            partition_overwrite="dynamic" if mode == "overwrite-partitions" else "static",
            metadata={"of": epoch},
        )
        for row, day in rows.items():
            txn.write({"id": [row], "day": [day]})
        return txn, rows

    @rule(writer=WRITERS, index=st.integers(0, 3), verb=st.sampled_from(["prepare", "commit", "abort"]))
    def go_on(self, writer: str, index: int, verb: str) -> None:
        """Prepare, commit or abort one of the open transactions."""
        run = self.runs[writer]
        if run.open:
            self.finish(writer, *run.open.pop(index % len(run.open)), verb)

    def finish(self, writer: str, txn: Transaction, rows: dict[int, str], verb: str) -> None:
        if verb == "abort":
            txn.abort()
            assert txn.outcome == "aborted"
            return
        refusal = self.refusal(writer, txn, rows)
        if refusal is not None:
            with pytest.raises(refusal):
                txn.prepare()
            txn.abort()
            return
        if txn.epoch <= self.known[writer].last:
            txn.prepare()
            assert txn.outcome in redundant(rows)
            return
        if not self.has_twin(writer, txn, rows):
            doomed = self.doomed_by(writer, txn._mode, rows)
            self.pending.append(
                Prepared(writer, txn.epoch, rows, doomed, {"of": txn.epoch}, txn._mode, self.runs[writer])
            )
        txn.prepare()
        if verb == "commit":
            assert txn.commit().outcome == "committed"
            self.commit_up_to(writer, txn.epoch)

    def has_twin(self, writer: str, txn: Transaction, rows: dict[int, str]) -> bool:
        """Whether the same is prepared by the same run, of which there is but one when it has no rows."""
        found = [one for one in self.waiting(writer) if one.epoch == txn.epoch and one.run is self.runs[writer]]
        return any(one.mode == txn._mode and not one.rows and not rows for one in found)

    def refusal(self, writer: str, txn: Transaction, rows: dict[int, str]) -> type[Exception] | None:
        """Why the epoch cannot be prepared."""
        known = self.known[writer]
        if txn.epoch <= known.last:
            return None if txn.epoch in known.committed else InvalidRequestError
        if self.has_twin(writer, txn, rows):
            return None
        if any(one.epoch >= txn.epoch for one in self.waiting(writer)):
            return ConflictError
        others = any(one.doomed for one in self.pending if one.writer != writer)
        return ConflictError if txn._mode != "append" and others else None

    @rule(writer=WRITERS, ahead=st.integers(-1, 3))
    def commit_late(self, writer: str, ahead: int) -> None:
        """A notice that names an epoch, as a coordinator sends it: once, or late and again."""
        run, epoch = self.runs[writer], max(0, self.known[writer].last + ahead)
        is_told = self.commit_up_to(writer, epoch) or epoch <= max(run.noticed, self.known[writer].last)
        if not is_told and not self.waiting(writer):
            with pytest.raises(InvalidRequestError):
                run.sink.commit(epoch)
        else:
            run.sink.commit(epoch)
            run.noticed = max(run.noticed, epoch)

    @rule(writer=WRITERS, index=st.integers(0, 2))
    def abort_prepared(self, writer: str, index: int) -> None:
        waiting = self.waiting(writer)
        epoch = waiting[index % len(waiting)].epoch if waiting else 99
        self.runs[writer].sink.abort(epoch)
        self.pending = [one for one in self.pending if (one.writer, one.epoch) != (writer, epoch)]

    @rule(writer=WRITERS, back=st.integers(0, 4), days=DAYS)
    def replay(self, writer: str, back: int, days: list[str]) -> None:
        """An epoch at or below the last one, again: nothing is written, or it is refused because it was skipped."""
        known = self.known[writer]
        epoch = known.last - back
        if epoch < 0:
            return
        if epoch not in known.committed:
            with pytest.raises(InvalidRequestError, match="never committed"):
                self.begun(self.runs[writer], epoch, days, "append")
            return
        txn, _ = self.begun(self.runs[writer], epoch, days, "append")
        assert txn.commit().outcome == "already-committed"

    # -- recovery -------------------------------------------------------------------------------------------

    @rule(writer=WRITERS, ahead=st.none() | st.integers(-4, 2),
          on_newer=st.sampled_from(["fail", "skip", "rewind"]))  # fmt: skip
    def recover(self, writer: str, ahead: int | None, on_newer: OnNewer) -> None:
        sink, known = self.runs[writer].sink, self.known[writer]
        self.runs[writer].noticed = -1
        up_to = None if ahead is None else max(0, known.last + ahead)
        above = up_to is not None and known.last > up_to
        if above and on_newer == "fail":
            with pytest.raises(ConflictError, match="on_newer"):
                sink.recover(up_to, on_newer)
            return
        limit = 1 << 62 if up_to is None else up_to
        committed, aborted = self.commit_up_to(writer, limit), self.drop_above(writer, limit)
        above = known.last > limit
        error = self.rewind_refusal(writer, limit) if above and on_newer == "rewind" else None
        if error is not None:
            with pytest.raises((error, InvalidRequestError)) as refused:
                sink.recover(up_to, on_newer)
            assert isinstance(refused.value, error) or "has expired" in str(refused.value)
            return
        rewound = known.last if above and on_newer == "rewind" else None
        try:
            done = sink.recover(up_to, on_newer)
        except InvalidRequestError as refusal:
            # What the epoch's metadata was nobody can tell any more, so nobody could resume from it.
            if rewound is None or "has expired" not in refusal.found:
                raise
            return
        assert done == (committed, aborted, rewound)
        if rewound is not None:
            self.take_back(writer, limit)

    def rewind_refusal(self, writer: str, epoch: int) -> type[Exception] | None:
        committed = self.known[writer].committed
        if epoch not in committed:
            return InvalidRequestError
        replaced = any(has_replaced for later, (_, has_replaced, _) in committed.items() if later > epoch)
        return ConflictError if replaced else None

    def take_back(self, writer: str, epoch: int) -> None:
        committed = self.known[writer].committed
        for later in [one for one in committed if one > epoch]:
            for row in committed.pop(later)[0]:
                self.live.pop(row, None)

    @rule(writer=WRITERS, dry_run=st.booleans())
    def sweep(self, writer: str, dry_run: bool) -> None:
        self.runs[writer].sink.sweep(dry_run=dry_run)

    @rule(share=st.integers(50, 100))
    def expire(self, share: int) -> None:
        found = self.site.log()
        head = found.load().version
        boundary = expiry.expire(found, head * share // 100)
        assert boundary <= head
        assert all(boundary <= one.version for one in self.site.table().pending())

    @rule(writer=WRITERS, recovers=st.booleans(), is_closed=st.booleans())
    def reopen(self, writer: str, recovers: bool, is_closed: bool) -> None:
        """A newer run: the one before goes, or goes on as a zombie."""
        if is_closed:
            self.runs[writer].sink.close()
        else:
            self.zombies.append((writer, self.runs[writer]))
        self.runs[writer] = Run(self.site.open(writer, recover=recovers))
        if recovers:
            self.commit_up_to(writer, 1 << 62)

    @rule(writer=WRITERS, days=DAYS)
    def write_in_one_call(self, writer: str, days: list[str]) -> None:
        """`txsink.write`: a run of its own, that claims with its prepare entry when it can."""
        self.zombies.append((writer, self.runs[writer]))
        run = self.runs[writer] = Run(self.site.open(writer, is_one_shot=True))
        self.commit_up_to(writer, 1 << 62)
        txn, rows = self.begun(run, self.known[writer].last + 1, days, "append")
        self.pending.append(Prepared(writer, txn.epoch, rows, set(), {"of": txn.epoch}, "append", run))
        assert txn.commit().outcome == "committed"
        self.commit_up_to(writer, txn.epoch)

    # -- runs that were fenced ------------------------------------------------------------------------------

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 5), ahead=st.integers(-2, 3), days=DAYS,
          mode=st.sampled_from(["append", "overwrite"]), keep=st.booleans())  # fmt: skip
    def zombie_writes(self, index: int, ahead: int, days: list[str], mode: str, keep: bool) -> None:
        """It begins an epoch: old news is a no-op, the rest is fenced at prepare."""
        _, run = self.zombies[index % len(self.zombies)]
        try:
            txn, rows = self.begun(run, max(0, (run.sink.last_epoch or 0) + ahead), days, mode)
        except InvalidRequestError:
            return  # skipped, as far as it knows
        if txn.outcome == "already-committed":
            assert txn.commit().outcome == "already-committed"
        elif keep:
            run.open.append((txn, rows))
        else:
            with pytest.raises(FencedError):
                txn.commit()
            txn.abort()

    @precondition(lambda self: any(run.open for _, run in self.zombies))
    @rule(index=st.integers(0, 5), verb=st.sampled_from(["prepare", "commit", "abort"]))
    def zombie_goes_on(self, index: int, verb: str) -> None:
        """It finishes what it began when it still lived."""
        runs = [run for _, run in self.zombies if run.open]
        run = runs[index % len(runs)]
        txn, rows = run.open.pop(0)
        if verb == "abort":
            txn.abort()
            return
        # While it lived it saw another transaction commit this epoch: there is nothing to do.
        is_done = run.sink.last_epoch is not None and txn.epoch <= run.sink.last_epoch
        try:
            getattr(txn, verb)()
        except FencedError:
            txn.abort()
        else:
            assert is_done
            assert txn.outcome in redundant(rows)

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 5), verb=st.sampled_from(["commit", "abort", "recover", "sweep", "rewind", "close"]),
          epoch=st.integers(0, 8))  # fmt: skip
    def zombie_acts(self, index: int, verb: str, epoch: int) -> None:
        """It does to the table what it did when it lived."""
        writer, run = self.zombies[index % len(self.zombies)]
        if verb == "commit":
            # What it had prepared and the newer run has not resolved may get its name before the log says no.
            first = run.sink.pending[:1]
            for one in self.waiting(writer):
                one.is_shown = one.is_shown or ([one.epoch] == first and not one.doomed)
        if verb == "close":
            run.sink.close()
            self.zombies = [(of, other) for of, other in self.zombies if other is not run]
            return
        acts: dict[str, Callable[[], object]] = {
            "commit": lambda: run.sink.commit(epoch),
            "abort": lambda: run.sink.abort(epoch),
            "recover": run.sink.recover,
            "sweep": run.sink.sweep,
            "rewind": lambda: run.sink.recover(epoch, "rewind"),
        }
        with suppress(FencedError, InvalidRequestError):
            acts[verb]()


TestTable = pytest.mark.usefixtures("small_blocks")(TableMachine.TestCase)
TestTable.settings = settings(max_examples=140, stateful_step_count=40)


# -- what was found ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_what_one_stalled_writer_left_in_an_expired_slot_never_fools_another() -> None:
    """I1, I7: the second one read the first one's entry, found it standing, and appended to a log nobody reads."""
    site = SimTable()
    one, two = site.open("one"), site.open("two")
    write(one, 0, 1)
    two.recover()
    third = site.open("third")
    for epoch in range(20):
        write(third, epoch, 100 + epoch)
    assert expiry.expire(third.log, third.log.state.version) > two.log.state.version + 1
    write(one, 1, 2)
    write(two, 0, 3)
    assert site.rows() == [1, 2, 3, *range(100, 120)]
    assert two.log.state.version == site.table().version


@pytest.mark.usefixtures("small_blocks")
def test_what_two_stalled_writers_left_in_expired_slots_is_no_damage() -> None:
    """I7: the second entry does not follow the first, and neither is one of the log."""
    site = SimTable()
    one, two = site.open("one"), site.open("two")
    one.recover()
    three = site.open("three")
    assert (one.log.state.version, two.log.state.version, three.log.state.version) == (2, 2, 3)
    living = site.open("living")
    for epoch in range(20):
        write(living, epoch, 100 + epoch)
    assert expiry.expire(living.log, living.log.state.version) > 5
    write(one, 0, 1)
    write(three, 0, 3)
    write(two, 0, 2)
    assert site.rows() == [1, 2, 3, *range(100, 120)]


@pytest.mark.usefixtures("small_blocks")
def test_an_overwrite_by_a_writer_that_slept_through_an_expiry_replaces_what_is_there_now() -> None:
    """I1: looking for the files to replace moved the log on, under the entry that was being made."""
    site = SimTable()
    living = site.open("living")
    for epoch in range(5):
        write(living, epoch, epoch)
    sleeper = site.open("sleeper")
    for epoch in range(5, 20):
        write(living, epoch, epoch)
    expiry.expire(living.log, living.log.state.version)
    write(sleeper, 0, 100, mode="overwrite")
    assert site.rows() == [100]


@pytest.mark.usefixtures("small_blocks")
def test_two_stalled_creators_of_a_table_that_has_expired_entries_join_it() -> None:
    """I7: slot 0 is free again, and no entry stands before it."""
    site = SimTable()
    stalled = [site.log() for _ in range(2)]
    for found in stalled:
        assert found.load().version == -1
    living = site.open()
    for epoch in range(20):
        write(living, epoch, epoch)
    expiry.expire(living.log, living.log.state.version)
    for found in stalled:
        blank.create(found, "parquet", (), None, "a table")
        assert found.state.table_id == living.log.state.table_id
    assert site.rows() == list(range(20))


def test_an_epoch_that_was_taken_back_and_then_skipped_is_not_called_committed() -> None:
    """I1: its rows are gone, and a later epoch is committed."""
    site = SimTable()
    sink = site.open()
    for epoch in range(4):
        write(sink, epoch, epoch)
    sink.recover(1, "rewind")
    write(sink, 3, 30)
    assert sink.begin(1).outcome == "already-committed"
    with pytest.raises(InvalidRequestError, match="yet epoch 3 is"):
        sink.begin(2)
    assert site.rows() == [0, 1, 30]


def test_no_rewind_goes_to_an_epoch_that_was_taken_back() -> None:
    """I1: the writer would resume after an epoch whose rows are gone."""
    site = SimTable()
    sink = site.open()
    for epoch in range(4):
        write(sink, epoch, epoch)
    sink.recover(1, "rewind")
    write(sink, 3, 30)
    with pytest.raises(InvalidRequestError, match="rewind 'w' to epoch 2"):
        sink.recover(2, "rewind")
    assert sink.last_epoch == 3
    assert site.rows() == [0, 1, 30]


@pytest.mark.usefixtures("small_blocks")
def test_a_rewind_to_an_epoch_whose_metadata_has_expired_is_refused_and_says_so() -> None:
    site = SimTable()
    sink = site.open()
    for epoch in range(20):
        write(sink, epoch, epoch)
    expiry.expire(sink.log, sink.log.state.version - 8)
    with pytest.raises(InvalidRequestError, match="rewind 'w' to epoch 2: its metadata, to resume from, has expired"):
        sink.recover(2, "rewind")
    assert sink.recover(18, "rewind").rewound_from == 19
    assert site.rows() == list(range(19))


def test_a_rewind_across_a_rewind_is_a_rewind() -> None:
    """I1: what the first one took away is not missed by the second."""
    site = SimTable()
    sink = site.open()
    for epoch in range(4):
        write(sink, epoch, epoch)
    assert sink.recover(2, "rewind").rewound_from == 3
    write(sink, 3, 30)
    assert sink.recover(0, "rewind").rewound_from == 3
    assert sink.last_epoch == 0
    assert site.rows() == [0]
    write(sink, 1, 10)
    assert site.rows() == [0, 10]
