"""`verify` finds every kind of damage and nothing else; `explain` says what became of an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from place import Place, begin_publish, copied, prepared
from seen import staging
from txsink import paths
from txsink.errors import CorruptError
from txsink.log import expiry, segment
from txsink.log.entry import decode, encode
from txsink.log.log import Log
from txsink.log.state import State, encode as state_bytes, fold
from txsink.protocol import preparing, resolving
from txsink.reading import audit
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay


def long(place: Place) -> None:
    """A log with a summary and a segment, a replaced file, and entries after them."""
    with place.sink() as sink:
        for epoch in range(40):
            with sink.begin(epoch, mode="overwrite" if epoch == 36 else "append") as txn:
                txn.write({"id": [epoch]})


def found(place: Place, *, deep: bool = False) -> list[tuple[str, str]]:
    return [(one.where, one.what) for one in place.table().verify(deep=deep)]


def entry(place: Place, version: int) -> Path:
    return place.path / paths.entry_path(version)


# -- verify: nothing wrong ----------------------------------------------------------------------------


def test_a_sound_table_has_no_problems_in_any_state(place: Place) -> None:
    long(place)
    assert found(place, deep=True) == []
    with place.sink("a") as sink, place.sink("b") as other:
        prepare = prepared(sink, 0, {"id": [7]}, mode="overwrite")
        prepared(other, 0, {"id": [8]})
        assert found(place, deep=True) == []
        begin_publish(sink, prepare)
        sink.publisher.replace(prepare)
        resolving.abort(other.log, other.identity, other.publisher, other.log.refresh().pending_of("b")[0])
        assert found(place, deep=True) == []
        sink.publisher.publish(prepare)
        assert found(place, deep=True) == []
    place.write(1, {"id": [9]}, writer="a")
    expiry.expire(place.table().log, 63)
    assert found(place, deep=True) == []


def test_a_table_is_sound_after_an_expiry_that_was_cut_short(place: Place) -> None:
    long(place)
    kept = entry(place, 40).read_bytes()
    expiry.expire(place.table().log, 63)
    entry(place, 40).write_bytes(kept)
    assert found(place) == []


# -- verify: data files -------------------------------------------------------------------------------


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "what"),
    [(Path.unlink, "it is missing"), (_truncate, "recorded"), (lambda path: path.write_bytes(b""), "it has 0 bytes")],
)
def test_a_missing_or_shortened_file_is_found(place: Place, damage: Callable[[Path], object], what: str) -> None:
    """I6."""
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]})
    path = place.table().files()[0].path
    damage(place.path / path)
    ((where, told),) = found(place)
    assert where == path
    assert what in told


def test_a_flipped_byte_in_a_page_is_found_by_a_deep_look_only(place: Place) -> None:
    place.write(0, {"id": [1, 2, 3]})
    path = place.table().files()[0].path
    _flip(place.path / path)
    assert found(place) == []
    ((where, told),) = found(place, deep=True)
    assert where == path
    assert "pages" in told


def test_a_lost_file_of_an_older_version_is_found(place: Place) -> None:
    """I8."""
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]}, mode="overwrite")
    (removed,) = (place.path / paths.REMOVED_DIRECTORY).rglob("*.removed")
    removed.unlink()
    assert found(place) == [(place.table().files(2)[0].path, "it is missing")]


def test_a_lost_staged_file_of_a_pending_transaction_is_found(place: Place) -> None:
    with place.sink() as sink:
        prepare = prepared(sink, 4, {"id": [1]})
        (staged,) = staging(place.path).rglob("*.parquet")
        staged.unlink()
        ((where, told),) = found(place)
        assert (Path(where), Path(where).name) == (staged, prepare.files[0].path)
        assert told == "epoch 4 of 'w' is pending, and its file is missing in staging, missing in the table"


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_a_damaged_file_of_a_pending_transaction_is_named_by_a_path_that_leads_to_it(
    place: Place, table_layout: str
) -> None:
    """Seen: a Delta table's files lie in the table, and were named as if they lay in a directory of their run."""
    with place.sink(layout=table_layout, partition_by="p") as sink:
        (file,) = prepared(sink, 4, {"id": [1], "p": ["a"]}).files
        (staged,) = (path for path in place.path.parent.rglob("*.parquet") if path.name == Path(file.path).name)
        _truncate(staged)
        ((where, told),) = found(place)
        assert place.path / where == staged
        assert ("staging" in told) == (table_layout == "parquet")


def test_a_damaged_file_of_a_pending_transaction_is_found_where_a_copy_looks_for_it(place: Place) -> None:
    """A copy publishes out of the original's directory, and a renamed table where its staging moved along."""
    with place.sink() as sink:
        prepared(sink, 4, {"id": [1]})
    (staged,) = staging(place.path).rglob("*.parquet")
    _truncate(staged)
    ((where, _),) = found(copied(place, 2))
    assert Path(where) == staged
    renamed = Place(place.path.rename(place.path.parent / "renamed"))
    Path(paths.default_staging_root(str(place.path))).rename(paths.default_staging_root(str(renamed.path)))
    ((where, _),) = found(renamed)
    assert Path(where) == next(staging(renamed.path).rglob("*.parquet"))


# -- verify: the log ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 30, 63, 64, 70])
def test_a_torn_entry_is_found_wherever_it_stands(place: Place, version: int) -> None:
    """I13."""
    long(place)
    entry(place, version).write_bytes(entry(place, version).read_bytes()[:-7])
    problems = found(place)
    assert problems[0] == (
        paths.entry_path(version),
        "its checksum does not fit its bytes: it is torn or altered",
    )
    # Below 64 a segment says what the entry said; from there on nothing does, and verify owns up to it.
    assert ["not looked at" in what for _, what in problems[1:]] == [True] * (version >= 64)


def test_an_empty_and_a_missing_entry_are_found_together(place: Place) -> None:
    long(place)
    entry(place, 10).write_bytes(b"")
    entry(place, 20).unlink()
    assert found(place) == [
        (paths.entry_path(10), "it is empty"),
        (paths.entry_path(20), "it is missing"),
    ]


def test_an_altered_entry_with_a_fitting_checksum_breaks_the_chain(place: Place) -> None:
    """I7."""
    long(place)
    was = decode(entry(place, 11).read_bytes(), 11)
    entry(place, 11).write_bytes(encode(msgspec.structs.replace(was, time_ms=5)))
    problems = found(place)
    assert (paths.entry_path(12), "it does not follow the entry before it: the chain is broken") in problems
    # The segment remembers what the entry said, unless the entry is one without facts there.
    assert {where for where, _ in problems} <= {paths.entry_path(12), paths.segment_path(0, 63)}


def test_a_second_break_of_the_chain_is_found_behind_the_first(place: Place) -> None:
    long(place)
    for version in (11, 21):
        was = decode(entry(place, version).read_bytes(), version)
        entry(place, version).write_bytes(encode(msgspec.structs.replace(was, time_ms=5)))
    where = [one for one, what in found(place) if "chain is broken" in what]
    assert where == [paths.entry_path(12), paths.entry_path(22)]


def test_an_entry_that_may_not_stand_where_it_stands_is_found(place: Place) -> None:
    place.write(0, {"id": [1]})
    state = place.table().log.state
    was = decode(entry(place, 2).read_bytes(), 2)
    entry(place, 3).write_bytes(encode(msgspec.structs.replace(was, version=3, previous=state.digest)))
    log = Log(LocalStore(), str(place.path), place.stamps)
    assert [tuple(one) for one in audit.verify_log(log)] == [
        (paths.entry_path(3), "no transaction of 'w' for epoch 0 is pending")
    ]


def test_an_open_table_reports_damage_appended_since(place: Place) -> None:
    place.write(0, {"id": [1]})
    table = place.table()
    entry(place, 3).write_bytes(b"{")
    assert [one.where for one in table.verify()] == [paths.entry_path(3)]


def test_an_entry_beyond_a_gap_is_found(place: Place) -> None:
    place.write(0, {"id": [1]})
    place.write(1, {"id": [2]})
    table = place.table()
    entry(place, 3).unlink()
    lost, files = table.verify()
    assert (lost.where, lost.what) == (paths.entry_path(3), "it is missing")
    assert files.where == paths.LOG_DIRECTORY
    assert files.what.startswith("the data files were not looked at: read log entry 3")
    with pytest.raises(CorruptError, match=r"read log entry 3 .* it is missing, yet entry 4 is there"):
        place.table()


def test_a_damaged_or_wrong_summary_is_found(place: Place) -> None:
    long(place)
    summary = place.path / paths.summary_path(63)
    good = summary.read_bytes()
    summary.write_bytes(good[:-3])
    assert found(place) == [(paths.summary_path(63), "it is torn or altered; delete it, it only saves time")]
    state = place.table().log.state
    summary.write_bytes(_summary(place, 63, digest="0" * 64))
    assert found(place)[0][1] == "it stands on another log entry than the one that is there"
    summary.write_bytes(_summary(place, 63, table_id="another"))
    assert found(place) == [(paths.summary_path(63), "it does not say what the log entries up to it say")]
    summary.write_bytes(good)
    assert found(place) == []
    assert state.table_id != "another"


def _summary(place: Place, version: int, **changes: object) -> bytes:
    log, state = place.table().log, State()
    for one in log.entries(0, version):
        following = log.entry(one.version + 1)
        state = fold(state, one, following.previous)
    return state_bytes(msgspec.structs.replace(state, **changes))


def test_a_damaged_or_wrong_segment_is_found(place: Place) -> None:
    long(place)
    path = place.path / paths.segment_path(0, 63)
    good = path.read_bytes()
    _truncate(path)
    [(where, _)] = found(place)  # what it said is in its entries too, so all else is looked at
    assert where == paths.segment_path(0, 63)
    facts = segment.decode(good, "x")
    path.write_bytes(segment.encode(facts.slice(0, facts.num_rows - 1)))
    assert found(place)[0] == (paths.segment_path(0, 63), "it does not say what log entry 63 says")


def test_work_going_on_meanwhile_is_no_problem(tmp_path: Path) -> None:
    """A pending transaction aborted before any of verify's store calls: looked at again, all is well."""

    def one_run(call: int) -> bool:
        place = Place(tmp_path / f"T{call}")
        with place.sink() as sink:
            prepared(sink, 1, {"id": [1]})
            store = FaultyStore(LocalStore(), [delay(call, lambda: sink.abort(1))])
            assert place.table(store).verify() == []
            return store.calls >= call

    assert len(list(itertools.takewhile(one_run, itertools.count(1)))) > 10


# -- explain ------------------------------------------------------------------------------------------


def outcome(place: Place, epoch: int, writer: str = "w") -> tuple[str, str]:
    told = place.table().explain(writer, epoch)
    assert (told.writer, told.epoch) == (writer, epoch)
    return told.outcome, told.sentence


def test_a_committed_epoch_is_explained_with_its_version_run_and_time(place: Place) -> None:
    place.write(3, {"id": [1, 2]})
    told = place.table().explain("w", 3)
    assert told.outcome == "committed"
    assert told.sentence == "It was committed at version 2, 1 file with 2 rows."
    commit = place.table().history(1)[0]
    assert (told.run, told.prepared, told.version, told.time) == (commit.run, 1, 2, commit.time)
    assert (told.files, told.rows) == (1, 2)


def test_an_epoch_whose_files_were_replaced_says_so(place: Place) -> None:
    place.write(3, {"id": [1]})
    place.write(4, {"id": [2]}, mode="overwrite")
    assert (
        outcome(place, 3)[1]
        == "It was committed at version 2, 1 file with 1 row; overwrites have replaced 1 file of it since."
    )


def test_a_skipped_epoch_an_unknown_one_and_an_unknown_writer_are_told_apart(place: Place) -> None:
    place.write(3, {"id": [1]})
    assert outcome(place, 2) == (
        "skipped",
        "It was never committed, and epoch 3 is: it was skipped, and cannot be written any more.",
    )
    assert outcome(place, 4)[0] == "unknown"
    assert "epoch 3 is the last committed one" in outcome(place, 4)[1]
    assert outcome(place, 3, "x") == ("unknown", "The log knows no writer of that name.")
    place.sink("new").close()
    assert "no epoch is the last committed one" in outcome(place, 0, "new")[1]


def test_an_aborted_epoch_is_explained_until_it_is_written_again(place: Place) -> None:
    with place.sink() as sink:
        prepared(sink, 1, {"id": [1]})
        resolving.abort(sink.log, sink.identity, sink.publisher, sink.log.state.pending[0])
        aborted = "It was prepared at version 2 and aborted at version 3"
        assert outcome(place, 1) == (
            "aborted",
            f"{aborted}; its files are still to be deleted, which recover does.",
        )
        sink.abort(1)
        assert outcome(place, 1)[1] == f"{aborted}."
        prepared(sink, 2, {"id": [1]})
        sink.commit(2)
        assert outcome(place, 1)[1].endswith("Epoch 2 is committed, so it cannot be written any more.")


def test_an_epoch_written_again_after_its_abort_is_committed(place: Place) -> None:
    with place.sink() as sink:
        prepared(sink, 1, {"id": [1]})
        sink.abort(1)
        prepared(sink, 1, {"id": [1]})
        sink.commit(1)
    assert outcome(place, 1)[0] == "committed"


def test_a_pending_epoch_is_explained_by_who_may_finish_it(place: Place) -> None:
    with place.sink() as sink:
        place.write(0, {"id": [1]}, writer="other")
        prepare = prepared(sink, 1, {"id": [1]}, mode="overwrite")
        assert outcome(place, 1)[0] == "pending"
        assert "still holds the writer" in outcome(place, 1)[1]
        begin_publish(sink, prepare)
        assert "it can only be committed" in outcome(place, 1)[1]
        place.sink(recover=False)
        assert "so recover has to finish it" in outcome(place, 1)[1]


def test_a_rewind_is_told_in_the_epochs_it_takes_back(place: Place) -> None:
    with place.sink() as sink:
        for epoch in range(4):
            prepared(sink, epoch, {"id": [epoch]})
            sink.commit(epoch)
        pending = preparing.rewind(sink.log, sink.identity, sink.publisher, 1)
        assert outcome(place, 3)[1].endswith("; a rewind to epoch 1, which takes it back, is pending.")
        assert outcome(place, 1)[1] == "It was committed at version 5, 1 file with 1 row."
        resolving.roll_forward(sink.log, sink.identity, sink.publisher, pending)
        taken = place.table().explain("w", 3)
        assert taken.outcome == "rewound"
        assert taken.sentence == (
            f"It was committed at version {taken.version}, 1 file with 1 row, "
            f"and taken back by the rewind to epoch 1 at version {sink.log.state.version}."
        )
        assert [outcome(place, epoch)[0] for epoch in range(4)] == ["committed", "committed", "rewound", "rewound"]
        prepared(sink, 2, {"id": [2]})
        sink.commit(2)
        prepared(sink, 3, {"id": [3]})
        sink.abort(3)
        assert [outcome(place, epoch)[0] for epoch in range(4)] == ["committed", "committed", "committed", "aborted"]


def test_an_epoch_is_explained_after_its_entries_expired(place: Place) -> None:
    long(place)
    expiry.expire(place.table().log, 63)
    assert outcome(place, 2) == (
        "committed",
        "It was committed at version 7, 1 file with 1 row; overwrites have replaced 1 file of it since.",
    )
