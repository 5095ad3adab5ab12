"""What errors of the two-phase sinks advise, done word for word: every row is there once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advice import advised
from seen import rows_of
from txsink.choices import OnNewer
from txsink.two_phase import sink as two_phase
from txsink.two_phase.file_sink import FileTransaction, ParquetFileSink

ROW: dict[str, Any] = {"id": [1]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "T"


def finished(sink: ParquetFileSink, number: int = 0, *ids: int) -> dict[str, Any]:
    """A checkpoint with these rows, from the first write to its notice."""
    sink.write({"id": list(ids) or [1]})
    state = sink.snapshot_state(number)
    sink.notify_checkpoint_complete(number)
    return state


def test_options_are_those_that_the_message_names(path: Path) -> None:
    with advised("choices.require_choice", "Give one of these"):
        ParquetFileSink(path, "w", guarantee="always")  # type: ignore[arg-type]
    with advised("two_phase.file_sink.__init__", "Leave it out"):
        ParquetFileSink(path, "w", recover=False)
    with advised("two_phase.sink._require_timeout", "Give more than 0, or None"):
        ParquetFileSink(path, "w", transaction_timeout_seconds=0)
    with advised("two_phase.sink._require_timeout", "Give a number from 0 to 1"):
        ParquetFileSink(path, "w", timeout_warning_ratio=80)
    with advised("two_phase.sink._require_timeout", "Give transaction_timeout_seconds"):
        ParquetFileSink(path, "w", drop_expired=True)
    options = ({"transaction_timeout_seconds": None}, {"transaction_timeout_seconds": 60, "drop_expired": True})
    for number, more in enumerate((*options, {"timeout_warning_ratio": 0.5})):
        with ParquetFileSink(path, f"w{number}", guarantee="exactly-once", **more) as sink:  # type: ignore[arg-type]
            finished(sink, 0, number)
    assert rows_of(path) == [0, 1, 2]


def test_checkpoints_are_numbered_upwards_from_0(path: Path) -> None:
    with ParquetFileSink(path, "w") as sink:
        sink.write(ROW)
        with advised("two_phase.sink._id", "Number checkpoints from 0"):
            sink.snapshot_state(-1)
        sink.snapshot_state(0)
        sink.notify_checkpoint_complete(0)
        with advised("two_phase.sink.snapshot_state", "Number checkpoints upwards"):
            sink.snapshot_state(0)
        finished(sink, 1, 2)
    assert rows_of(path) == [1, 2]


@pytest.mark.parametrize("end", [ParquetFileSink.finish, ParquetFileSink.close])
def test_another_sink_takes_the_rows_of_one_that_is_over(path: Path, end: Callable[[ParquetFileSink], None]) -> None:
    sink = ParquetFileSink(path, "w")
    state = finished(sink)
    end(sink)
    if end is ParquetFileSink.finish:
        with advised("two_phase.sink.write", "Open another sink"):
            sink.write({"id": [2]})
    else:
        with advised("two_phase.sink._require_open", "Open another sink"):
            sink.write({"id": [2]})
    with ParquetFileSink(path, "w") as another:
        another.restore_state(state)
        finished(another, 1, 2)
    assert rows_of(path) == [1, 2]


@pytest.mark.parametrize("does", ["take", "restore"])
def test_a_checkpoint_that_was_taken_by_half_is_taken_again_or_the_last_state_restored(
    path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    sink = ParquetFileSink(path, "w")
    state = finished(sink)
    sink.write({"id": [2]})
    with monkeypatch.context() as broken:
        broken.setattr(sink, "pre_commit", lambda txn: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.snapshot_state(1)
    with advised("two_phase.sink._half_taken", "Take checkpoint {} again, or restore the last state"):
        sink.write({"id": [3]})
    if does == "take":
        sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
    else:
        sink.restore_state(state)
        finished(sink, 1, 2)
    assert rows_of(path) == [1, 2]


def test_a_restore_that_failed_is_called_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetFileSink(path, "w")
    with monkeypatch.context() as broken:
        broken.setattr(sink, "finish_recovering", lambda found: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.restore_state(None)
    with advised("two_phase.sink._require_ready", "Call restore_state again"):
        sink.write(ROW)
    sink.restore_state(None)
    finished(sink)
    assert rows_of(path) == [1]


def test_a_state_is_given_back_as_it_was_returned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetFileSink(path, "w")
    sink.write(ROW)
    state = sink.snapshot_state(0)
    sink.close()
    (held,) = state["pending"]
    with ParquetFileSink(path, "w") as again:
        with advised("two_phase.sink._parsed", "Give what snapshot_state returned, unchanged"):
            again.restore_state({**state, "checkpoint": "0"})
        with advised("two_phase.sink._parsed", "Give what snapshot_state returned, unchanged"):
            again.restore_state({**state, "pending": [held, held]})
        with advised("two_phase.file_sink.decode", "Give back what was taken"):
            again.restore_state({**state, "pending": [{**held, "transaction": {"epic": 0}}]})
        later = {**state, "format": two_phase.STATE_FORMAT + 1}
        with advised("two_phase.sink._parsed", "Use the txsink that took it"):
            again.restore_state(later)
        with monkeypatch.context() as release:
            release.setattr(two_phase, "STATE_FORMAT", two_phase.STATE_FORMAT + 1)
            again.restore_state(later)
    assert rows_of(path) == [1]


def test_encode_returns_plain_data(path: Path) -> None:
    class Odd(ParquetFileSink):
        is_plain = False

        def encode(self, txn: FileTransaction) -> Any:
            return super().encode(txn) if self.is_plain else {"epoch": 1 + 2j}

    with Odd(path, "w") as sink:
        sink.write(ROW)
        with advised("two_phase.sink._state", "Let encode() return plain data"):
            sink.snapshot_state(0)
        sink.is_plain = True
        finished(sink, 1, 2)
    assert rows_of(path) == [1, 2]


def test_rows_go_to_the_transaction_that_is_current(path: Path) -> None:
    with ParquetFileSink(path, "w") as sink:
        kept: list[FileTransaction] = []
        begin = sink.begin_transaction
        sink.begin_transaction = lambda: kept.append(begin()) or kept[-1]  # type: ignore[method-assign,func-returns-value]
        sink.write(ROW)
        sink.snapshot_state(0)
        with advised("two_phase.file_sink.invoke", "Write to the current transaction"):
            sink.invoke(kept[0], ROW)
        sink.invoke(kept[-1], {"id": [2]})
        sink.snapshot_state(1)
        sink.notify_checkpoint_complete(1)
    assert rows_of(path) == [1, 2]


def test_a_state_older_than_the_last_one_that_was_restored_gives_way_to_the_newest(path: Path) -> None:
    sink = ParquetFileSink(path, "w")
    first = finished(sink)
    sink.write({"id": [2]})
    second = sink.snapshot_state(1)
    sink.close()
    with ParquetFileSink(path, "w") as older:
        older.restore_state(first)  # drops what the second had prepared
        newest = finished(older, 2, 3)
    with ParquetFileSink(path, "w", on_newer="skip") as sink:
        sink.restore_state(newest)
    other = path.with_name("other")
    with (
        ParquetFileSink(other, "w") as elsewhere,
        advised("two_phase.file_sink.recover_and_commit", "Restore the newest state"),
    ):
        elsewhere.restore_state(second)
    with ParquetFileSink(path, "w") as sink:
        sink.restore_state(newest)
        finished(sink, 3, 4)
    assert rows_of(path) == [1, 3, 4]


@pytest.mark.parametrize("does", ["restore", "rename", "skip"])
def test_a_writer_that_has_epochs_is_restored_renamed_or_told_to_skip(path: Path, does: str) -> None:
    with ParquetFileSink(path, "w") as sink:
        state = finished(sink)
    advice = "Restore the state of the last checkpoint, take another writer name, or choose on_newer='skip'"
    with ParquetFileSink(path, "w") as again, advised("two_phase.file_sink._require_new", advice):
        again.write({"id": [2]})
    name = "v" if does == "rename" else "w"
    on_newer: OnNewer = "skip" if does == "skip" else "fail"
    with ParquetFileSink(path, name, on_newer=on_newer) as again:
        if does == "restore":
            again.restore_state(state)
        if does == "skip":
            finished(again, 0, 9)  # as it says: epochs with those numbers write nothing
        finished(again, 1, 2)
    assert rows_of(path) == [1, 2]
