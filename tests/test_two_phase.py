"""The two-phase life cycle: one suite for every target, then what only the file sink promises.

`ck(n)` is `snapshot_state(n)`, `done(n)` its notice. A life ends without `close` where a crash is meant.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from programs import programs_of
from txsink import paths
from txsink.environment import Stamps
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError, TxsinkError, UnavailableError
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore, crash_after, crash_before, fail_before
from txsink.testing.simdisk import Crash
from txsink.two_phase.file_sink import FileTransaction, ParquetFileSink
from txsink.two_phase.sink import TwoPhaseCommitSink
from txsink.writing.opening import open_sink, open_writer
from txsink.writing.writer import Writer

State = dict[str, Any] | None
AnySink = TwoPhaseCommitSink[Any, Any]


class Target(ABC):
    """Where a suite writes to, seen from outside."""

    #: What a write raises when staging is broken, and a commit when the target is damaged.
    write_error: type[Exception]
    commit_error: type[Exception]
    #: Whether a transaction without rows leaves anything in staging.
    stages_empty: bool

    @abstractmethod
    def open(self, **options: Any) -> AnySink:
        """A new life."""

    @abstractmethod
    def row(self, value: int) -> Any:
        """What to write."""

    @abstractmethod
    def visible(self) -> list[int]:
        """Sorted values of all rows a reader sees."""

    @abstractmethod
    def staged(self) -> int:
        """How many transactions have something in staging."""

    @abstractmethod
    def break_staging(self) -> None: ...

    @abstractmethod
    def mend_staging(self) -> None: ...

    @abstractmethod
    def damage(self, checkpoint_id: int) -> None:
        """Make the commit of that pre-committed transaction fail."""

    @abstractmethod
    def repair(self, checkpoint_id: int) -> None: ...

    def write(self, sink: AnySink, *values: int) -> None:
        for value in values:
            sink.write(self.row(value))


def through_json(state: State) -> State:
    """What a framework keeps."""
    return cast("State", json.loads(json.dumps(state)))


class TwoPhaseSuite:
    """What every two-phase target promises. Subclasses give the fixture `target`."""

    # -- F1 to F9 ---------------------------------------------------------------------------------------

    def test_a_notice_commits_its_checkpoint_and_those_before_it(self, target: Target) -> None:
        """F1."""
        sink = target.open()
        for checkpoint, value in enumerate([42, 43, 44]):
            target.write(sink, value)
            sink.snapshot_state(checkpoint)
        sink.notify_checkpoint_complete(1)
        assert target.visible() == [42, 43]
        assert target.staged() == 1 + target.stages_empty, "checkpoint 2's, and the open one if it stages nothing"
        target.write(sink, 45)
        assert target.staged() == 2
        assert target.visible() == [42, 43]

    def test_a_late_notice_is_a_silent_no_op(self, target: Target) -> None:
        """F2."""
        sink = target.open()
        for checkpoint, value in enumerate([42, 43, 44]):
            target.write(sink, value)
            sink.snapshot_state(checkpoint)
        sink.notify_checkpoint_complete(2)
        sink.notify_checkpoint_complete(1)
        assert target.visible() == [42, 43, 44]

    def test_a_failed_write_does_not_touch_what_was_pre_committed(self, target: Target) -> None:
        """F3."""
        sink = target.open()
        target.write(sink, 42)
        sink.snapshot_state(0)
        target.write(sink, 43)
        saved = through_json(sink.snapshot_state(1))
        target.break_staging()
        with pytest.raises(target.write_error):
            target.write(sink, 44)
        sink.close()
        target.mend_staging()
        with target.open() as sink:
            sink.restore_state(saved)
            assert target.visible() == [42, 43]
        assert target.staged() == 0

    def test_after_finish_a_write_raises_and_the_last_checkpoint_waits_for_its_notice(self, target: Target) -> None:
        """F4."""
        sink = target.open()
        target.write(sink, 42)
        sink.snapshot_state(0)
        target.write(sink, 43)
        sink.snapshot_state(1)
        target.write(sink, 44)
        sink.finish()
        state = sink.snapshot_state(2)
        assert state["open"] is None
        sink.notify_checkpoint_complete(1)
        with pytest.raises(InvalidRequestError, match="finished"):
            target.write(sink, 45)
        assert target.visible() == [42, 43]
        assert target.staged() == 1

    def test_checkpoints_go_on_after_finish(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        sink.finish()
        sink.snapshot_state(1)
        saved = through_json(sink.snapshot_state(2))
        assert sink.pending_checkpoints == [1]
        target.open().restore_state(saved)
        assert target.visible() == [42]

    def test_a_restore_after_finish_aborts_nothing(self, target: Target) -> None:
        """F5."""
        sink = target.open()
        target.write(sink, 42)
        sink.finish()
        saved = through_json(sink.snapshot_state(2))
        sink = target.open()
        aborted = spy(sink, "recover_and_abort", "abort")
        sink.restore_state(saved)
        assert aborted == []
        assert target.visible() == [42]

    def test_when_one_commit_fails_the_rest_are_tried_and_nothing_is_forgotten(self, target: Target) -> None:
        """F6."""
        sink = target.open()
        for checkpoint, value in enumerate([42, 43, 44]):
            target.write(sink, value)
            sink.snapshot_state(checkpoint)
        target.damage(1)
        tried = spy(sink, "commit")
        with pytest.raises(target.commit_error):
            sink.notify_checkpoint_complete(2)
        assert len(tried) == 3
        assert 42 in target.visible()
        assert 43 not in target.visible()
        assert 1 in sink.pending_checkpoints
        assert 0 not in sink.pending_checkpoints
        target.repair(1)
        sink.notify_checkpoint_complete(2)
        assert target.visible() == [42, 43, 44]
        assert sink.pending_checkpoints == []

    def test_the_first_of_two_failures_is_the_one_that_is_raised(self, target: Target) -> None:
        """F6."""
        sink = target.open()
        for checkpoint in range(3):
            target.write(sink, checkpoint)
            sink.snapshot_state(checkpoint)

        def fail(txn: Any) -> None:
            raise KeyError(sink.pending_checkpoints[len(tried) - 1])

        sink.commit = fail  # type: ignore[method-assign]
        tried = spy(sink, "commit")
        with pytest.raises(KeyError, match="0"):
            sink.notify_checkpoint_complete(2)
        assert len(tried) == 3
        assert sink.pending_checkpoints == [0, 1, 2]

    def test_a_restore_commits_what_its_state_names_and_aborts_what_came_after(self, target: Target) -> None:
        """F7."""
        sink = target.open()
        target.write(sink, 42)
        saved = through_json(sink.snapshot_state(1))
        target.write(sink, 43)
        sink.snapshot_state(2)
        assert target.visible() == []
        with target.open() as sink:
            sink.restore_state(saved)
            assert target.visible() == [42]
        assert target.staged() == 0

    def test_rows_of_an_aborted_checkpoint_come_with_the_next_one_and_once(self, target: Target) -> None:
        """F8."""
        sink = target.open()
        target.write(sink, 42)
        sink.snapshot_state(1)
        sink.notify_checkpoint_aborted(1)
        assert target.visible() == []
        target.write(sink, 43)
        sink.snapshot_state(2)
        sink.notify_checkpoint_complete(2)
        assert target.visible() == [42, 43]

    def test_rows_of_an_aborted_checkpoint_survive_a_crash_after_the_next_one(self, target: Target) -> None:
        """F8."""
        sink = target.open()
        target.write(sink, 42)
        sink.snapshot_state(1)
        sink.notify_checkpoint_aborted(1)
        target.write(sink, 43)
        saved = through_json(sink.snapshot_state(2))
        target.open().restore_state(saved)
        assert target.visible() == [42, 43]

    def test_a_checkpoint_without_rows_is_committed_like_any_other(self, target: Target) -> None:
        """F9."""
        sink = target.open()
        saved = through_json(sink.snapshot_state(1))
        sink.notify_checkpoint_complete(1)
        sink = target.open()
        sink.restore_state(saved)
        assert sink.checkpoint_id == 1
        assert sink.pending_checkpoints == []
        assert target.visible() == []

    # -- restore ----------------------------------------------------------------------------------------

    def test_a_write_to_what_is_pre_committed_raises(self, target: Target) -> None:
        """F18."""
        sink = target.open()
        target.write(sink, 42)
        held = sink._current
        assert held is not None
        sink.snapshot_state(0)
        with pytest.raises(Exception, match="pre-committed"):
            sink.invoke(held.txn, target.row(43))

    def test_restoring_twice_is_restoring_once(self, target: Target) -> None:
        """I12: in the same life, and in the next one."""
        sink = target.open()
        target.write(sink, 42)
        saved = through_json(sink.snapshot_state(1))
        target.write(sink, 43)
        sink = target.open()
        sink.restore_state(saved)
        target.write(sink, 44)
        sink.restore_state(saved)
        assert target.visible() == [42]
        assert target.staged() == target.stages_empty
        with target.open() as sink:
            sink.restore_state(saved)
            target.write(sink, 45)
            sink.snapshot_state(2)
            sink.notify_checkpoint_complete(2)
        assert target.visible() == [42, 45]
        assert target.staged() == 0

    def test_a_restore_that_fails_refuses_writes_until_it_succeeds(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        saved = through_json(sink.snapshot_state(1))
        target.damage(1)
        sink = target.open()
        with pytest.raises(target.commit_error):
            sink.restore_state(saved)
        with pytest.raises(InvalidRequestError, match="restoring the state has failed"):
            target.write(sink, 43)
        target.repair(1)
        sink.restore_state(saved)
        target.write(sink, 43)
        sink.snapshot_state(2)
        sink.notify_checkpoint_complete(2)
        assert target.visible() == [42, 43]

    def test_close_drops_the_open_transaction_and_keeps_the_pending_ones(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        saved = sink.snapshot_state(1)
        target.write(sink, 43)
        sink.close()
        sink.close()
        assert target.staged() == 1
        acts: list[Callable[[], object]] = [
            lambda: target.write(sink, 1),
            lambda: sink.snapshot_state(2),
            lambda: sink.notify_checkpoint_complete(1),
            lambda: sink.notify_checkpoint_aborted(1),
            lambda: sink.restore_state(saved),
            sink.finish,
        ]
        for act in acts:
            with pytest.raises(InvalidRequestError, match="closed"):
                act()
        target.open().restore_state(saved)
        assert target.visible() == [42]

    # -- the states a framework hands back --------------------------------------------------------------

    def test_a_state_is_plain_json(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        state = sink.snapshot_state(3)
        assert through_json(state) == state

    @pytest.mark.parametrize(
        "change",
        [
            lambda state: state.clear(),
            lambda state: state.update(surplus=1),
            lambda state: state.update(checkpoint=-1),
            lambda state: state.update(checkpoint=0),
            lambda state: state.update(format=2),
            lambda state: state.update(pending=state["pending"] * 2),
            lambda state: state["pending"][0].update(begun_ms="noon"),
        ],
    )
    def test_a_state_that_was_altered_is_refused(self, target: Target, change: Callable[[Any], None]) -> None:
        state = target.open().snapshot_state(3)
        change(state)
        with pytest.raises(InvalidRequestError, match="restore a state"):
            target.open().restore_state(state)

    @pytest.mark.parametrize("checkpoint_id", [-1, True, np.True_, 1.0, np.float64(1), "1", None, 2**63])
    def test_a_checkpoint_id_is_an_integer_from_0(self, target: Target, checkpoint_id: Any) -> None:
        sink = target.open()
        for act in (sink.snapshot_state, sink.notify_checkpoint_complete):
            with pytest.raises(InvalidRequestError, match="2\\^63"):
                act(checkpoint_id)

    def test_a_checkpoint_id_of_numpy_is_the_same_integer(self, target: Target) -> None:
        """What counts batches is often numpy's, or another library's."""
        sink = target.open()
        state = sink.snapshot_state(np.int64(3))
        assert json.loads(json.dumps(state)) == state
        assert sink.pending_checkpoints == [3]
        assert type(sink.pending_checkpoints[0]) is int
        sink.notify_checkpoint_complete(np.uint8(3))
        assert sink.pending_checkpoints == []

    def test_checkpoints_grow(self, target: Target) -> None:
        sink = target.open()
        sink.snapshot_state(3)
        for checkpoint_id in (3, 2):
            with pytest.raises(InvalidRequestError, match="checkpoint 3 was taken"):
                sink.snapshot_state(checkpoint_id)

    def test_a_pre_commit_that_failed_may_only_be_repeated(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        setattr(sink, "pre_commit", fail_once(sink.pre_commit))  # noqa: B010 -- mypy minds an assignment
        with pytest.raises(UnavailableError):
            sink.snapshot_state(1)
        for act in (lambda: target.write(sink, 43), lambda: sink.snapshot_state(2)):
            with pytest.raises(InvalidRequestError, match="may or may not have happened"):
                act()
        sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
        assert target.visible() == [42]

    def test_a_begin_that_failed_after_a_pre_commit_loses_nothing(self, target: Target) -> None:
        sink = target.open()
        target.write(sink, 42)
        setattr(sink, "begin_transaction", fail_once(sink.begin_transaction))  # noqa: B010 -- mypy minds an assignment
        with pytest.raises(UnavailableError):
            sink.snapshot_state(1)
        assert sink.pending_checkpoints == [1]
        sink.snapshot_state(2)
        target.write(sink, 43)
        sink.snapshot_state(3)
        sink.notify_checkpoint_complete(3)
        assert target.visible() == [42, 43]

    # -- time -------------------------------------------------------------------------------------------

    def test_a_transaction_near_its_timeout_is_committed_with_a_warning(
        self, target: Target, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = itertools.count(0, 300)  # two looks at it are 300 ms apart
        sink = target.open(transaction_timeout_seconds=1, timeout_warning_ratio=0.5, now_ms=lambda: next(clock))
        target.write(sink, 42)
        sink.snapshot_state(1)
        with caplog.at_level(logging.WARNING, "txsink.two_phase.sink"):
            sink.notify_checkpoint_complete(1)
        assert "the transaction of checkpoint 1 is open for" in caplog.text
        assert target.visible() == [42]

    def test_a_young_transaction_is_committed_without_a_warning(
        self, target: Target, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = target.open(transaction_timeout_seconds=1, now_ms=lambda: 0)
        target.write(sink, 42)
        sink.snapshot_state(1)
        with caplog.at_level(logging.WARNING, "txsink.two_phase.sink"):
            sink.notify_checkpoint_complete(1)
        assert caplog.text == ""

    def test_an_expired_transaction_that_cannot_be_committed_stops_the_restore(self, target: Target) -> None:
        saved = self._expired(target)
        sink = target.open(transaction_timeout_seconds=1, now_ms=lambda: 1001)
        with pytest.raises(target.commit_error):
            sink.restore_state(saved)

    def test_an_expired_transaction_is_dropped_when_that_was_chosen(
        self, target: Target, caplog: pytest.LogCaptureFixture
    ) -> None:
        saved = self._expired(target)
        sink = target.open(transaction_timeout_seconds=1, drop_expired=True, now_ms=lambda: 1001)
        with caplog.at_level(logging.ERROR, "txsink.two_phase.sink"):
            sink.restore_state(saved)
        assert "checkpoint 2 has expired, its rows are dropped" in caplog.text
        target.write(sink, 44)
        sink.snapshot_state(3)
        sink.notify_checkpoint_complete(3)
        assert target.visible() == [42, 44]

    def test_a_transaction_that_has_not_expired_is_never_dropped(self, target: Target) -> None:
        saved = self._expired(target)
        sink = target.open(transaction_timeout_seconds=1, drop_expired=True, now_ms=lambda: 1000)
        with pytest.raises(target.commit_error):
            sink.restore_state(saved)

    def test_an_expired_transaction_that_can_be_committed_is(self, target: Target) -> None:
        saved = self._expired(target)
        target.repair(2)
        sink = target.open(transaction_timeout_seconds=1, drop_expired=True, now_ms=lambda: 10_000)
        sink.restore_state(saved)
        assert target.visible() == [42, 43]

    @pytest.mark.parametrize(
        "options",
        [
            {"transaction_timeout_seconds": 0},
            {"transaction_timeout_seconds": float("nan")},
            {"transaction_timeout_seconds": 1, "timeout_warning_ratio": 1.5},
            {"drop_expired": True},
        ],
    )
    def test_a_timeout_that_makes_no_sense_is_refused(self, target: Target, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError, match="open a two-phase sink"):
            target.open(**options)

    @staticmethod
    def _expired(target: Target) -> State:
        """A state from time 0 whose checkpoint 2 is damaged; checkpoint 1 is committed."""
        sink = target.open(now_ms=lambda: 0)
        target.write(sink, 42)
        sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
        target.write(sink, 43)
        saved = through_json(sink.snapshot_state(2))
        target.damage(2)
        return saved

    # -- a stream that crashes --------------------------------------------------------------------------

    def test_a_crash_between_any_two_steps_changes_no_row(self, new_target: Callable[[], Target]) -> None:
        """I1, I3, I12: 20 values, a crash after every single step."""
        total = run_stream(new_target(), crash_at=None)
        for step in range(1, total):
            target = new_target()
            run_stream(target, crash_at=step)
            assert target.visible() == list(range(20)), f"crash after step {step}"


def spy(sink: AnySink, *names: str) -> list[str]:
    """The calls of these methods from here on."""
    called: list[str] = []

    def watched(name: str, act: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(txn: Any) -> None:
            called.append(name)
            act(txn)

        return call

    for name in names:
        setattr(sink, name, watched(name, getattr(sink, name)))
    return called


def fail_once(act: Callable[..., Any]) -> Callable[..., Any]:
    """`act`, which says once that it is not available though it did it."""
    calls = itertools.count()

    def call(*given: Any) -> Any:
        answer = act(*given)
        if next(calls) == 0:
            raise UnavailableError("act", "a planned fault after it was done", "Retry")
        return answer

    return call


# -- a framework in small: its offsets and states survive, its sinks do not ----------------------------------


class KilledError(Exception):
    """The process is gone."""


class Kept(NamedTuple):
    """A completed checkpoint: where the source stands, and the sink's state."""

    checkpoint: int = 0
    offset: int = 0
    state: State = None


def run_stream(target: Target, *, crash_at: int | None, rows: int = 20, every: int = 3, **options: Any) -> int:
    """Write `range(rows)`, a checkpoint every few rows, killed once after step `crash_at`. Returns the steps done."""
    kept = [Kept()]
    steps = itertools.count(1)

    def step() -> None:
        if next(steps) == crash_at:
            raise KilledError

    def live() -> None:
        sink = target.open(**options)
        step()
        checkpoint, offset, state = kept[-1]
        sink.restore_state(state)
        step()
        while offset < rows:
            for value in range(offset, min(rows, offset + every)):
                target.write(sink, value)
                step()
            offset, checkpoint = min(rows, offset + every), checkpoint + 1
            if offset == rows:
                sink.finish()
            state = through_json(sink.snapshot_state(checkpoint))
            step()  # the framework may never hear of it
            kept.append(Kept(checkpoint, offset, state))
            step()
            sink.notify_checkpoint_complete(checkpoint)
            step()

    try:
        live()
    except (KilledError, Crash):
        live()
    return next(steps) - 1


class CheckpointMachine(RuleBasedStateMachine):
    """Every order of write, checkpoint, notice, abort and crash, against rows in lists. Ids may skip."""

    def make(self, directory: Path) -> Target:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.target = self.make(self.directory)
        self.sink = self.target.open()
        self.sink.restore_state(None)
        self.values = itertools.count()
        self.newest = 0
        self.open: list[int] = []
        self.pending: dict[int, list[int]] = {}
        self.committed: list[int] = []
        self.states: dict[int, State] = {}  # taken in this life and not aborted
        self.kept: tuple[int, State] = (-1, None)

    @rule()
    def write(self) -> None:
        value = next(self.values)
        self.target.write(self.sink, value)
        self.open.append(value)

    @rule(skipped=st.integers(0, 2))
    def take(self, skipped: int) -> None:
        self.newest += skipped + 1
        self.states[self.newest] = through_json(self.sink.snapshot_state(self.newest))
        self.pending[self.newest], self.open = self.open, []

    @precondition(lambda self: self.states)
    @rule(data=st.data(), is_told=st.booleans())
    def complete(self, data: st.DataObject, is_told: bool) -> None:
        """The framework keeps the state; its notice may be lost."""
        checkpoint = data.draw(st.sampled_from(sorted(self.states)))
        self.kept = (checkpoint, self.states[checkpoint])
        self.states = {later: state for later, state in self.states.items() if later > checkpoint}
        if is_told:
            self.sink.notify_checkpoint_complete(checkpoint)
            self._commit_up_to(checkpoint)

    @precondition(lambda self: self.kept[0] >= 0)
    @rule()
    def tell_again(self) -> None:
        self.sink.notify_checkpoint_complete(self.kept[0])
        self._commit_up_to(self.kept[0])

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(self.states)))
        del self.states[checkpoint]
        self.sink.notify_checkpoint_aborted(checkpoint)

    @rule(is_closed=st.booleans(), times=st.integers(1, 2))
    def crash_and_restore(self, is_closed: bool, times: int) -> None:
        if is_closed:
            self.sink.close()
        checkpoint, state = self.kept
        self.sink = self.target.open()
        for _ in range(times):
            self.sink.restore_state(state)
        self._commit_up_to(checkpoint)
        self.pending, self.open, self.states = {}, [], {}

    @invariant()
    def a_reader_sees_what_was_committed(self) -> None:
        """I1."""
        if hasattr(self, "target"):
            assert self.target.visible() == sorted(self.committed)

    def teardown(self) -> None:
        if hasattr(self, "target"):
            self.sink.close()
            shutil.rmtree(self.directory)

    def _commit_up_to(self, checkpoint: int) -> None:
        for one in sorted(self.pending):
            if one <= checkpoint:
                self.committed += self.pending.pop(one)


machine_settings = settings(max_examples=25, stateful_step_count=25)


class _QuickSystem:
    """`os` that does not wait for the disk: a process that dies loses nothing it wrote, and no power is cut here."""

    def __getattr__(self, name: str) -> Any:
        return (lambda handle: None) if name == "fsync" else getattr(os, name)


QUICK = cast("ModuleType", _QuickSystem())


# -- the file sink -------------------------------------------------------------------------------------------


class Table(Target):
    """A table on the local disk. Each row is a row group, so that each write reaches the staging root."""

    write_error = TxsinkError
    commit_error = CorruptError
    stages_empty = False

    def __init__(self, directory: Path) -> None:
        self.path = directory / "table"
        self.staging = directory / ".table.txsink"
        self.aside = directory / "aside"
        self.ids = itertools.count()

    def open(self, **options: Any) -> ParquetFileSink:
        return self.open_over(LocalStore(QUICK), **options)

    def open_over(self, store: Store, **options: Any) -> ParquetFileSink:
        def opener(path: str, writer: str, **given: Any) -> Writer:
            stamps = Stamps(lambda: 0, lambda: f"{next(self.ids):032x}", lambda attempt: None)
            return open_sink(store, stamps, path, writer, given)

        return ParquetFileSink(
            str(self.path), "w", **{"opener": opener, "now_ms": lambda: 0, "row_group_rows": 1, **options}
        )

    def row(self, value: int) -> pa.Table:
        return pa.table({"x": [value]})

    def visible(self) -> list[int]:
        files = [path for path in self.path.rglob("*.parquet") if "_txsink" not in path.parts]
        return sorted(value for path in files for value in pq.read_table(path)["x"].to_pylist())

    def staged_files(self) -> list[Path]:
        return sorted(path for path in self.staging.rglob("*") if path.is_file())

    def staged(self) -> int:
        names = [
            paths.parse_staged(path.relative_to(self.staging).as_posix().partition("/")[2])
            for path in self.staged_files()
        ]
        return len({(name.writer, name.run, name.epoch) for name in names if name is not None})

    def break_staging(self) -> None:
        # A file where a directory was: permissions do not stop root.
        self.staging.rename(self.aside)
        self.staging.touch()

    def mend_staging(self) -> None:
        self.staging.unlink()
        self.aside.rename(self.staging)

    def damage(self, checkpoint_id: int) -> None:
        self.aside.mkdir()
        for path in self.staged_files():
            if paths.data_epoch(path.name) == checkpoint_id:
                path.rename(self.aside / path.name)
                self.damaged = path

    def repair(self, checkpoint_id: int) -> None:
        self.damaged.parent.mkdir(exist_ok=True)
        (self.aside / self.damaged.name).rename(self.damaged)
        self.aside.rmdir()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.path / "_txsink/log").glob("*.json"))]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


class TestParquetFileSink(TwoPhaseSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return Table(tmp_path)

    @pytest.fixture
    def new_target(self, tmp_path: Path) -> Callable[[], Target]:
        return lambda: Table(Path(tempfile.mkdtemp(dir=tmp_path)))


class TableMachine(CheckpointMachine):
    def make(self, directory: Path) -> Target:
        return Table(directory)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = machine_settings


def test_one_epoch_is_one_checkpoint_also_when_ids_skip_and_partitions_are_many(table: Table) -> None:
    sink = table.open(partition_by="k")
    for checkpoint in (3, 4, 9):
        sink.write(pa.table({"x": [checkpoint, -checkpoint], "k": ["a/b", "c"]}))
        sink.snapshot_state(checkpoint)
    sink.notify_checkpoint_complete(9)
    assert table.visible() == [-9, -4, -3, 3, 4, 9]
    assert [entry["epoch"] for entry in table.log() if entry["kind"] == "commit"] == [3, 4, 9]
    names = {path.name.split("-")[1] for path in table.path.rglob("part-*.parquet")}
    assert names == {"3", "4", "9"}
    assert list(table.staging.glob("*/w/*/*")) == [], "not even an empty directory"
    sink.close()
    assert table.staged_files() == []


def test_an_epoch_without_rows_is_known_as_committed_after_a_restart(table: Table) -> None:
    """F9."""
    sink = table.open()
    sink.snapshot_state(7)
    sink.notify_checkpoint_complete(7)
    assert table.open().last_epoch == 7


def test_path_and_writer_are_all_it_needs(table: Table) -> None:
    with ParquetFileSink(str(table.path), "w") as sink:
        table.write(sink, 1)
        saved = sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
        table.write(sink, 2)
    with ParquetFileSink(str(table.path), "w") as sink:
        sink.restore_state(saved)
        table.write(sink, 3)
        sink.snapshot_state(2)
        sink.notify_checkpoint_complete(2)
    assert table.visible() == [1, 3]


def test_rows_reach_the_staging_root_when_a_row_group_is_full_and_at_the_checkpoint_at_the_latest(table: Table) -> None:
    sink = table.open(row_group_rows=2)
    table.write(sink, 1)
    assert table.staged() == 0
    table.write(sink, 2)
    assert table.staged() == 1
    sink.snapshot_state(1)
    table.write(sink, 3)
    assert table.staged() == 1
    sink.snapshot_state(2)
    assert table.staged() == 2


def test_a_state_older_than_the_table_stops_the_restore_unless_decided(table: Table) -> None:
    """I4."""
    saved = three_checkpoints(table)
    with pytest.raises(ConflictError, match="rewind"):
        table.open().restore_state(saved)
    assert table.visible() == [1, 2, 3]


def test_skip_keeps_newer_epochs_and_their_replay_writes_nothing(table: Table) -> None:
    """I5."""
    saved = three_checkpoints(table)
    with table.open(on_newer="skip") as sink:
        sink.restore_state(saved)
        for checkpoint in (2, 3, 4):
            table.write(sink, checkpoint)
            sink.snapshot_state(checkpoint)
            sink.notify_checkpoint_complete(checkpoint)
    assert table.visible() == [1, 2, 3, 4]
    assert table.staged_files() == []


def test_rewind_takes_newer_epochs_back_and_their_replay_writes_them(table: Table) -> None:
    saved = three_checkpoints(table)
    sink = table.open(on_newer="rewind")
    sink.restore_state(saved)
    assert table.visible() == [1]
    for checkpoint in (2, 3):
        table.write(sink, 10 * checkpoint)
        sink.snapshot_state(checkpoint)
    sink.notify_checkpoint_complete(3)
    assert table.visible() == [1, 20, 30]


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_rewind_that_crashes_anywhere_is_finished_by_the_next_restore(tmp_path: Path, guarantee: str) -> None:
    """I12."""
    begun = 0
    for call in itertools.count(1):
        table = Table(tmp_path / str(call))
        saved = three_checkpoints(table)
        store = FaultyStore(LocalStore(QUICK), [crash_after(call)])
        try:
            table.open_over(store, guarantee=guarantee, on_newer="rewind").restore_state(saved)
        except Crash:
            begun += any(entry["kind"] == "publishing" for entry in table.log()) and table.visible() != [1]
        else:
            break
        table.open(guarantee=guarantee, on_newer="rewind").restore_state(saved)
        assert table.visible() == [1]
    assert begun, "no crash came in the middle of the removals"


@pytest.mark.parametrize("on_newer", ["fail", "rewind"])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_beginning_anew_in_a_table_that_has_the_writers_epochs_is_refused(
    table: Table, guarantee: str, on_newer: str
) -> None:
    three_checkpoints(table)
    with pytest.raises(ConflictError, match="begin 'w' anew"):
        table.write(table.open(guarantee=guarantee, on_newer=on_newer), 4)
    assert table.visible() == [1, 2, 3]


def test_beginning_anew_drops_what_waits_for_a_notice_that_will_not_come(table: Table) -> None:
    sink = table.open()
    table.write(sink, 1)
    sink.snapshot_state(1)
    with table.open() as sink:
        table.write(sink, 1)
        sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
    assert table.visible() == [1]
    assert table.staged_files() == []


def test_a_state_whose_epoch_was_dropped_since_is_refused(table: Table) -> None:
    sink = table.open()
    table.write(sink, 1)
    first = sink.snapshot_state(1)
    table.write(sink, 2)
    second = sink.snapshot_state(2)
    table.open().restore_state(first)
    with pytest.raises(ConflictError, match="neither prepared nor committed"):
        table.open().restore_state(second)


def test_a_state_of_another_target_is_refused(table: Table) -> None:
    state = table.open().snapshot_state(1)
    state["pending"][0]["transaction"] = 5
    with pytest.raises(InvalidRequestError, match="no transaction of a file sink"):
        table.open().restore_state(state)


def test_an_older_life_is_fenced(table: Table) -> None:
    """I10."""
    older = table.open()
    table.write(older, 1)
    table.open().restore_state(None)
    with pytest.raises(FencedError):
        older.snapshot_state(1)


@pytest.mark.parametrize(
    "options", [{"guarantee": "perhaps-once"}, {"on_newer": "ask"}, {"recover": True}, {"partition_bye": "k"}]
)
def test_options_that_make_no_sense_are_refused(table: Table, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        table.open(**options)
    assert not table.path.exists()


def test_a_pre_commit_whose_answer_was_lost_is_never_deleted_by_close(table: Table) -> None:
    """I11."""
    store = FaultyStore(LocalStore(QUICK))
    sink = table.open_over(store)
    table.write(sink, 42)
    saved = sink.snapshot_state(1)
    table.write(sink, 43)
    calls = store.calls + prepare_call(table)
    store.plan.append(fail_before(calls + 1))
    with pytest.raises(TxsinkError):
        sink.snapshot_state(2)
    store.check_delivered()
    assert [entry["epoch"] for entry in table.log() if entry["kind"] == "prepare"] == [1, 2]
    sink.close()
    assert table.staged() == 2, "both are named by the log"
    table.open().restore_state(saved)
    assert table.visible() == [42]


def three_checkpoints(table: Table) -> State:
    """Checkpoints 1, 2, 3 committed; the state of the first."""
    with table.open() as sink:
        states = []
        for checkpoint in (1, 2, 3):
            table.write(sink, checkpoint)
            states.append(sink.snapshot_state(checkpoint))
            sink.notify_checkpoint_complete(checkpoint)
    return states[0]


def prepare_call(table: Table) -> int:
    """After how many store calls from the last write on a checkpoint's prepare entry is in the log."""
    other = Table(table.path.parent / "other")
    store = FaultyStore(LocalStore(QUICK))
    sink = other.open_over(store)
    other.write(sink, 42)
    sink.snapshot_state(1)
    other.write(sink, 43)
    before = store.calls
    sink.snapshot_state(2)
    puts = [number for number, (verb, _) in enumerate(store.trace, 1) if verb == "put_if_absent" and number > before]
    return puts[0] - before


# -- guarantees ----------------------------------------------------------------------------------------------

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


def check_stream(visible: list[int], rows: int, guarantee: str) -> None:
    counts = Counter(visible)
    assert set(counts) <= set(range(rows))
    if guarantee != "at-most-once":
        assert set(counts) == set(range(rows)), "rows were lost"
    if guarantee != "at-least-once":
        assert max(counts.values(), default=1) == 1, "rows were doubled"


@pytest.mark.parametrize("guarantee", GUARANTEES[1:])  # the suite has seen to exactly-once
def test_a_crash_between_any_two_steps_keeps_the_guarantee(tmp_path: Path, guarantee: str) -> None:
    """I1."""
    total = run_stream(Table(tmp_path / "whole"), crash_at=None, guarantee=guarantee)
    doubled, lost = 0, 0
    for step in range(1, total):
        table = Table(tmp_path / str(step))
        run_stream(table, crash_at=step, guarantee=guarantee)
        visible = table.visible()
        check_stream(visible, 20, guarantee)
        doubled += len(visible) > 20
        lost += len(visible) < 20
    # Without a single consequence this would have tested exactly-once.
    assert (doubled > 0) == (guarantee == "at-least-once")
    assert (lost > 0) == (guarantee == "at-most-once")


class FaultyTable(Table):
    """A table whose first life runs over a faulty store."""

    def __init__(self, directory: Path, store: FaultyStore) -> None:
        super().__init__(directory)
        self.stores = [store]

    def open(self, **options: Any) -> ParquetFileSink:
        if self.stores:
            return self.open_over(self.stores.pop(), **options)
        return super().open(**options)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_crash_at_any_store_call_keeps_the_guarantee(tmp_path: Path, guarantee: str) -> None:
    """I1, I3, I9."""
    for call in itertools.count(1):
        finished = 0
        for crash in (crash_before, crash_after):
            store = FaultyStore(LocalStore(QUICK), [crash(call)])
            table = FaultyTable(tmp_path / f"{crash.__name__}-{call}", store)
            run_stream(table, crash_at=None, rows=4, every=2, guarantee=guarantee)
            check_stream(table.visible(), 4, guarantee)
            assert table.staged_files() == []
            finished += not store.delivered
        if finished:
            assert call > 20, "so few calls cannot have been all"
            break


def test_at_least_once_publishes_at_write_and_a_replay_writes_again(table: Table) -> None:
    sink = table.open(guarantee="at-least-once")
    sink.restore_state(None)
    table.write(sink, 42)
    assert table.visible() == [42]
    saved = through_json(sink.snapshot_state(1))
    table.write(sink, 43)
    sink = table.open(guarantee="at-least-once")
    sink.restore_state(saved)
    table.write(sink, 43)
    assert table.visible() == [42, 43, 43]


def test_at_least_once_leaves_nothing_of_a_write_that_failed(table: Table) -> None:
    sink = table.open(guarantee="at-least-once")
    table.write(sink, 1)
    with pytest.raises(InvalidRequestError):
        sink.write(pa.table({"y": ["no such column"]}))
    table.write(sink, 2)
    assert table.visible() == [1, 2]


def test_at_most_once_drops_at_a_restart_what_waits_for_its_notice(table: Table) -> None:
    sink = table.open(guarantee="at-most-once")
    table.write(sink, 42)
    sink.snapshot_state(1)
    sink.notify_checkpoint_complete(1)
    table.write(sink, 43)
    saved = through_json(sink.snapshot_state(2))
    with table.open(guarantee="at-most-once") as sink:
        sink.restore_state(saved)
        assert table.visible() == [42]
        table.write(sink, 44)
        sink.snapshot_state(3)
        sink.notify_checkpoint_complete(3)
    assert table.visible() == [42, 44]
    assert table.staged_files() == []


def test_at_most_once_never_writes_an_epoch_that_was_begun_before(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    sink = table.open(guarantee="at-most-once")
    table.write(sink, 42)
    saved = through_json(sink.snapshot_state(1))
    sink.notify_checkpoint_complete(1)
    table.write(sink, 43)
    sink = table.open(guarantee="at-most-once")
    sink.restore_state(saved)
    with caplog.at_level(logging.WARNING, "txsink.two_phase.file_sink"):
        table.write(sink, 43, 44)
    assert caplog.messages == ["epoch 2 of 'w' was begun by a former life: not written"]
    sink.snapshot_state(2)
    table.write(sink, 45)
    sink.snapshot_state(3)
    sink.notify_checkpoint_complete(3)
    assert table.visible() == [42, 45]


@pytest.mark.parametrize(("guarantee", "entries"), [("exactly-once", 2), ("at-least-once", 2 * 3), ("at-most-once", 4)])
def test_an_epoch_of_three_writes_costs_as_many_log_entries_as_documented(
    table: Table, guarantee: str, entries: int
) -> None:
    sink = table.open(guarantee=guarantee)
    sink.restore_state(None)
    before = len(table.log())
    table.write(sink, 1, 2, 3)
    sink.snapshot_state(1)
    sink.notify_checkpoint_complete(1)
    assert len(table.log()) - before == entries
    assert table.visible() == [1, 2, 3]


def test_a_transaction_survives_its_encoding(table: Table) -> None:
    sink = table.open()
    assert sink.decode(sink.encode(FileTransaction(2**63 - 1))).epoch == 2**63 - 1


def test_other_writers_of_the_table_are_left_alone(table: Table) -> None:
    """I15."""
    other = open_writer(str(table.path), "other")
    waiting = other.begin(5)
    waiting.write(table.row(5))
    waiting.prepare()
    sink = table.open()
    table.write(sink, 1)
    sink.snapshot_state(1)
    table.open().restore_state(None)
    assert table.visible() == []
    waiting.commit()
    assert table.visible() == [5]


def test_the_programs_in_the_guide_run() -> None:
    for program in programs_of("docs/two-phase.md"):
        exec(program, {})
