"""What errors about the state of a table and its epochs advise, done word for word: every row is there once."""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import pytest

from advice import advised, advised_in_print
from place import Place, begin_publish, commit, copied, prepared, rows, staged_files
from seen import rows_of, small_blocks, staging
from txsink.cli import commands, main as cli
from txsink.environment import stamps
from txsink.log import expiry
from txsink.log.entry import Prepare
from txsink.protocol import recovery, resolving
from txsink.publish.protocol import Published
from txsink.publish.rename import RenamePublisher
from txsink.reading.table import open_log
from txsink.store.local.store import LocalStore
from txsink.testing import SimDisk
from txsink.writing.opening import open_sink, open_workplace, open_writer

__all__ = ["small_blocks"]


def command(place: Place, *words: str) -> int:
    """`txsink WORDS`, with the path of the table as the second word."""
    return cli.main([words[0], str(place.path), *words[1:]])


def overwrite(sink: Any, epoch: int, *ids: int) -> None:
    with sink.begin(epoch, mode="overwrite") as txn:
        txn.write(rows(*ids))


# -- epochs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("does", ["larger", "writer"])
def test_an_epoch_that_was_skipped_is_written_under_a_larger_one_or_another_name(place: Place, does: str) -> None:
    sink = place.sink()
    commit(sink, 1, 5)
    with advised(
        "protocol.preparing.is_committed", "Epochs of a writer grow: use a larger one, or a writer name of its own"
    ):
        sink.begin(3)
    if does == "larger":
        commit(sink, 6)
    else:
        commit(place.sink("back-fill"), 6)
    assert rows_of(place.path) == [1, 5, 6]


@pytest.mark.parametrize("does", ["commit", "abort"])
def test_the_epoch_before_is_committed_or_aborted_first(place: Place, does: str) -> None:
    sink = place.sink()
    three = sink.begin(3)
    three.write(rows(3))
    prepared(sink, 5, rows(5))
    with advised("protocol.preparing._is_prepared", "Commit or abort that one first; epochs of a writer grow"):
        three.prepare()
    if does == "abort":
        sink.abort(5)
        three.commit()
        commit(sink, 5)
        assert rows_of(place.path) == [3, 5]
    else:
        three.abort()
        sink.commit(5)
        commit(sink, 6)
        assert rows_of(place.path) == [5, 6]


@pytest.mark.parametrize("does", ["commit", "abort"])
def test_an_overwrite_is_tried_again_once_the_other_one_is_resolved(place: Place, does: str) -> None:
    commit(place.sink("c"), 0)
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1), mode="overwrite")
    txn = two.begin(1, mode="overwrite")
    txn.write(rows(2))
    with advised("protocol.preparing._removes", "Retry when it is committed or aborted"):
        txn.prepare()
    one.commit(1) if does == "commit" else one.abort(1)
    txn.commit()
    assert rows_of(place.path) == [2]


def test_an_overwrite_whose_publish_has_begun_is_committed_and_undone_by_another(place: Place) -> None:
    sink = place.sink()
    commit(sink, 0)
    begin_publish(sink, prepared(sink, 1, rows(1), mode="overwrite"))
    with advised("protocol.resolving.make", "Commit it; to undo it, write the former content again"):
        sink.abort(1)
    with advised_in_print("cli.commands.abort", "Commit it: `txsink recover`"):
        assert command(place, "abort", "w", "1", "--yes") != 0
    assert command(place, "recover", "--writer", "w", "--yes") == 0
    assert rows_of(place.path) == [1]
    overwrite(place.sink(), 2, 0)
    assert rows_of(place.path) == [0]


@pytest.mark.parametrize("does", ["leave", "overwrite"])
def test_an_epoch_that_was_committed_while_it_was_to_be_aborted_is_left_or_overwritten(
    place: Place, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    commit(sink, 0)
    prepared(sink, 1, rows(1))

    def late(*given: Any, **options: Any) -> Any:
        sink.commit(1)
        return open_writer(*given, **options)

    with monkeypatch.context() as slow:
        slow.setattr(commands, "open_writer", late)
        with advised_in_print("cli.commands.abort", "Leave it, or overwrite its content"):
            assert command(place, "abort", "w", "1", "--yes") != 0
    assert rows_of(place.path) == [0, 1]
    if does == "overwrite":
        overwrite(place.sink(), 2, 0)
    assert rows_of(place.path) == ([0, 1] if does == "leave" else [0])


def test_what_cannot_be_rewound_is_skipped_written_anew_or_rewound_to_another_epoch(place: Place) -> None:
    sink = place.sink()
    commit(sink, 1, 2, 4)
    with advised("protocol.preparing._commit_to_rewind_to", "Name a committed epoch"):
        sink.recover(3, "rewind")
    sink.recover(2, "rewind")
    assert rows_of(place.path) == [1, 2]
    overwrite(sink, 5, 5)
    with advised("protocol.preparing._commit_to_rewind_to", "Choose `skip`, or write the former content again"):
        sink.recover(2, "rewind")
    sink.recover(2, "skip")
    assert rows_of(place.path) == [5]
    overwrite(sink, 6, 1, 2)
    assert rows_of(place.path) == [1, 2]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("does", ["later", "skip"])
def test_an_epoch_that_has_expired_gives_way_to_a_later_one_or_to_skip(place: Place, does: str) -> None:
    sink = place.sink()
    commit(sink, *range(30))
    expiry.expire(sink.log, sink.log.state.version)
    commit(sink, 30, 31)
    with advised("protocol.preparing._commit_to_rewind_to", "Name a later epoch, or choose `skip`"):
        sink.recover(2, "rewind")
    sink.recover(30, "rewind") if does == "later" else sink.recover(2, "skip")
    assert rows_of(place.path) == [*range(31 if does == "later" else 32)]


def test_a_newer_run_finishes_what_the_one_that_is_told_to_stop_has_left(place: Place) -> None:
    old = place.sink()
    prepared(old, 1, rows(1))
    txn = old.begin(2)
    txn.write(rows(2))
    new = place.sink()
    with advised("protocol.fencing.standing", "Stop this process: the newer run has taken over, and finishes or drops"):
        txn.commit()
    old.close()
    assert rows_of(place.path) == [1]
    commit(new, 2)
    assert (rows_of(place.path), staged_files(place)) == ([1, 2], [])


def test_a_staged_file_that_is_lost_is_aborted_with_its_epoch_and_written_again(place: Place) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    (name,) = staged_files(place)
    (staging(place.path) / name).unlink()
    with advised("protocol.preparing._is_settled_without", "Abort the transaction and write the epoch again"):
        txn.prepare()
    txn.abort()
    commit(sink, 1)
    assert rows_of(place.path) == [1]


def test_an_epoch_that_was_aborted_meanwhile_is_written_again(place: Place) -> None:
    class Stalled(RenamePublisher):
        def publish(self, prepare: Prepare) -> Published:
            return Published()

    one, two = place.sink(run="r1"), place.sink(run="r1", recover=False)
    prepared(one, 1, rows(1))
    two.log.refresh()
    two.abort(1)
    publisher = Stalled(one.log.store, one.log.root, f"{one.log.root}/{one.publisher.staging}")
    with advised("protocol.resolving.roll_forward", "Write the epoch again"):
        resolving.roll_forward(one.log, one.identity, publisher, one.log.state.pending_of("w")[0])
    commit(two, 1)
    assert rows_of(place.path) == [1]


def test_rows_are_staged_by_the_partition_columns_of_the_table(place: Place) -> None:
    workplace = open_workplace(place.path, partition_by="day")
    stager = workplace.stager("w", "r", 1)
    data = {"id": [1], "day": ["a"], "hour": [0]}
    place.sink("v", partition_by="hour").close()  # no row is there: the table takes other columns
    with place.sink(run="r") as sink, sink.begin(1) as txn:
        txn.add(stager.stage(data))
        with advised("protocol.admission.require_partitions", "Stage with the table's partition columns"):
            txn.prepare()
        txn.abort()
        with sink.begin(1) as again:
            again.add(again.stager().stage(data))
    assert rows_of(place.path) == [1]


def test_a_writer_that_was_open_during_a_conversion_is_opened_again(place: Place) -> None:
    commit(place.sink("first"), 0)
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(rows(1))
    assert command(place, "convert", "--to", "delta", "--yes") == 0
    with advised("protocol.admission.require_layout", "Open the writer again"):
        txn.commit()
    commit(place.sink(), 1)
    assert rows_of(place.path) == [0, 1]


def test_types_of_arrow_stay_out_of_delta(place: Place) -> None:
    with advised(
        "protocol.admission.require_types_of_delta", "Choose layout='parquet', or types='spark' for a new table"
    ):
        place.write(1, rows(1), layout="delta", types="arrow")
    place.write(1, rows(1), layout="parquet", types="arrow")
    other = Place(place.path.with_name("other"))
    other.write(1, rows(1), layout="delta", types="spark")
    assert (rows_of(place.path), rows_of(other.path)) == ([1], [1])


def test_an_epoch_whose_abort_is_not_cleaned_up_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    prepared(sink, 1, rows(1))
    with monkeypatch.context() as broken:
        broken.setattr(recovery, "finish_aborts", lambda *given: None)
        sink.abort(1)
        txn = sink.begin(1)
        txn.write(rows(1))
        with advised("protocol.admission.require_no_abort", "Try again: it is cleaned up first"):
            txn.commit()
    txn.commit()
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("does", ["back", "abort"])
def test_a_file_that_was_altered_is_put_back_or_its_epoch_dropped(place: Place, does: str) -> None:
    sink = place.sink()
    prepared(sink, 1, rows(1))
    (name,) = staged_files(place)
    file = staging(place.path) / name
    good = file.read_bytes()
    file.write_bytes(b"altered")
    with advised("publish.protocol.corrupt", "Put the recorded file back, or drop the epoch with `txsink abort`"):
        sink.commit(1)
    sink.close()
    if does == "back":
        file.write_bytes(good)
        place.sink()
    else:
        assert command(place, "abort", "w", "1", "--yes") == 0
        commit(place.sink(), 2)
    assert rows_of(place.path) == ([1] if does == "back" else [2])


@pytest.mark.parametrize("does", ["copy", "abort"])
def test_a_copy_that_cannot_publish_is_copied_again_or_its_epoch_dropped(
    place: Place, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    commit(sink, 0)
    prepared(sink, 1, rows(1))
    there = copied(place, 1)
    monkeypatch.setattr(LocalStore, "traits", LocalStore.traits._replace(links=False))  # as on HDFS
    with advised("publish.rename.goes_only_on", "Copy the table again when the epoch is committed in the other; or"):
        there.sink()
    if does == "copy":
        sink.commit(1)
        again = copied(place, 2)
        commit(again.sink(), 2)
        assert rows_of(again.path) == [0, 1, 2]
    else:
        assert command(there, "abort", "w", "1", "--yes") == 0
        commit(there.sink(), 2)
        assert rows_of(there.path) == [0, 2]


# -- places ------------------------------------------------------------------------------------------------


def on(disk: SimDisk) -> LocalStore:
    return LocalStore(cast("ModuleType", disk))


def test_a_table_at_a_mount_point_goes_below_it_or_stages_on_its_mount() -> None:
    disk = SimDisk()
    disk.mkdir("/d")
    disk.mount("/d/t")
    advice = "Name a table below the mount point, or for a new table a staging_path on the mount of the table"
    with advised("writing.opening._require_one_place", advice):
        open_sink(on(disk), stamps(), "/d/t", "w", {})
    for path, options in (("/d/t/below", {}), ("/d/t/u", {"staging_path": "/d/t/staging"})):
        with open_sink(on(disk), stamps(), path, "w", options) as sink:
            commit(sink, 1)
        assert open_log(on(disk), stamps(), path).to_arrow()["id"].to_pylist() == [1]


def test_a_mount_is_taken_away_and_the_call_made_again() -> None:
    disk = SimDisk()
    with open_sink(on(disk), stamps(), "/d/t", "w", {"partition_by": "day"}) as sink:
        disk.mount("/d/t/day=c")
        txn = sink.begin(2)
        txn.write({"id": [3], "day": ["c"]})
        with advised("publish.rename.admit", "Take the mount or link away, and call it again: nothing was prepared"):
            txn.commit()
        disk.rmdir("/d/t/day=c")
        txn.commit()
    assert open_log(on(disk), stamps(), "/d/t").to_arrow()["id"].to_pylist() == [3]
