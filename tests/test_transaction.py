"""The life of a transaction: what each verb does, in order and out of order, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults import FaultyStore
from place import Place, prepared
from seen import by_directory, by_log, names, rows_of, small_blocks, staging
from txsink import layout, transaction
from txsink.entry import Prepare
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError, UnavailableError
from txsink.sink import open_sink
from txsink.store.local import LocalStore
from txsink.writer import Sink

__all__ = ["small_blocks"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "T")


def rows(*ids: int) -> dict[str, list[int]]:
    return {"id": list(ids)}


def kinds(place: Place) -> list[str]:
    return [one.kind for one in place.table().history()][::-1]


def staged_files(place: Place) -> list[str]:
    root = staging(place.path)
    return names(root) if root.exists() else []


# -- one epoch ----------------------------------------------------------------------------------------------


def test_an_epoch_is_staged_out_of_sight_then_prepared_then_published(place: Place) -> None:
    """F13."""
    sink = place.sink()
    txn = sink.begin(1)
    assert txn.write(rows(1, 2)) == 2
    txn.prepare()
    assert (txn.outcome, sink.pending) == ("prepared", [1])
    assert (by_directory(place.path), by_log(place.path)) == ([], [])
    assert len(staged_files(place)) == 1
    result = txn.commit()
    assert (txn.outcome, sink.pending, sink.last_epoch) == ("committed", [], 1)
    assert result._replace(bytes=0) == ("committed", 1, 3, 1, 2, 0)
    assert result.bytes == sum(one.stat().st_size for one in place.path.rglob("*.parquet"))
    assert rows_of(place.path) == [1, 2]
    assert staged_files(place) == []


def test_the_with_statement_commits_and_an_exception_aborts(place: Place) -> None:
    sink = place.sink()
    with sink.begin(1) as txn:
        txn.write(rows(1))
    with pytest.raises(KeyError), sink.begin(2) as txn:
        txn.write(rows(2))
        raise KeyError
    assert txn.outcome == "aborted"
    assert (rows_of(place.path), staged_files(place), kinds(place)[-1]) == ([1], [], "commit")
    with sink.begin(2) as txn:
        txn.write(rows(22))
    assert rows_of(place.path) == [1, 22]


def test_a_transaction_aborted_within_its_with_statement_stays_aborted(place: Place) -> None:
    with place.sink().begin(1) as txn:
        txn.write(rows(1))
        txn.abort()
    assert (txn.outcome, rows_of(place.path), staged_files(place)) == ("aborted", [], [])


def test_an_empty_epoch_commits_and_is_known_after_a_restart(place: Place) -> None:
    """F9, F10."""
    with place.sink() as sink, sink.begin(4, metadata={"at": 1}):
        pass
    with place.sink() as sink:
        assert (sink.last_epoch, sink.last_metadata) == (4, {"at": 1})
        with sink.begin(5) as txn:
            txn.write(rows())
        assert txn.result().files == 0
    assert list(place.path.rglob("*.parquet")) == []
    assert place.table().to_arrow().num_rows == 0


def test_nothing_is_written_after_prepare(place: Place) -> None:
    """F18."""
    txn = place.sink().begin(1)
    txn.write(rows(1))
    txn.prepare()
    for act in (lambda: txn.write(rows(2)), lambda: txn.add([])):
        with pytest.raises(InvalidRequestError, match="the transaction is prepared"):
            act()
    txn.prepare()
    txn.commit()
    with pytest.raises(InvalidRequestError, match="the transaction is committed"):
        txn.write(rows(2))
    txn.prepare()
    assert txn.commit().outcome == "committed"
    txn.abort()
    assert (txn.outcome, rows_of(place.path)) == ("committed", [1])


def test_an_aborted_transaction_is_not_prepared(place: Place) -> None:
    txn = place.sink().begin(1)
    txn.abort()
    txn.abort()
    with pytest.raises(InvalidRequestError, match="the transaction is aborted"):
        txn.commit()


@pytest.mark.parametrize("damage", ["missing", "shorter", "longer", "other footer", "a page"])
def test_a_staged_file_that_was_touched_is_not_prepared(place: Place, damage: str) -> None:
    """F19."""
    sink = place.sink()
    txn = sink.begin(1)
    txn.add(txn.stager().stage({"id": list(range(1000))}))
    (file,) = staging(place.path).rglob("*.parquet")
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        changed = {
            "shorter": data[:-1],
            "longer": data + b"x",
            "other footer": data[:-30] + b"x" + data[-29:],
            "a page": data[:200] + bytes([data[200] ^ 1]) + data[201:],
        }
        file.write_bytes(changed[damage])
    with pytest.raises(CorruptError, match="prepare epoch 1 of 'w': the staged file part-1-0"):
        txn.commit()
    txn.abort()
    assert (sink.pending, staged_files(place)) == ([], [])
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


# -- replays ------------------------------------------------------------------------------------------------


def test_a_replay_writes_nothing_and_says_so(place: Place) -> None:
    """S1, S18: the first committed content is authoritative."""
    place.write(1, rows(1))
    before = names(place.path.parent)
    with place.sink() as sink:
        txn = sink.begin(1)
        assert txn.outcome == "already-committed"
        assert txn.write(rows(9)) == 0
        txn.add([{"nonsense": 1}])
        txn.prepare()
        result = txn.commit()
        txn.abort()
        assert (result.outcome, result.files, result.rows, result.version) == ("already-committed", 0, 0, 2)
    assert rows_of(place.path) == [1]
    assert [name for name in names(place.path.parent) if name not in before] == [f"T/{layout.entry_path(3)}"]


def test_an_epoch_committed_by_others_while_it_was_staged_writes_nothing(place: Place) -> None:
    sink = place.sink(run="r1")
    slow = sink.begin(1)
    slow.write(rows(1))
    same = place.sink(run="r1")
    with same.begin(1) as txn:
        txn.write(rows(2))
    assert slow.commit().outcome == "already-committed"
    assert (rows_of(place.path), staged_files(place)) == ([2], [])


def test_a_skipped_epoch_is_refused(place: Place) -> None:
    """Taken for committed, its rows would be lost without a word."""
    place.write(1, rows(1))
    place.write(5, rows(5))
    with place.sink() as sink:
        assert sink.begin(1).outcome == "already-committed"
        with pytest.raises(InvalidRequestError, match="never committed, or was taken back, yet epoch 5 is") as caught:
            sink.begin(3)
        assert caught.value.context == {"last_epoch": 5}


@pytest.mark.usefixtures("small_blocks")
def test_replays_and_skipped_epochs_are_told_apart_at_any_age(place: Place) -> None:
    with place.sink() as sink:
        for epoch in range(0, 40, 2):
            with sink.begin(epoch) as txn:
                txn.write(rows(epoch))
    with place.sink() as sink:
        for epoch in range(38):
            if epoch % 2:
                with pytest.raises(InvalidRequestError):
                    sink.begin(epoch)
            else:
                assert sink.begin(epoch).outcome == "already-committed"


# -- several pending ----------------------------------------------------------------------------------------


def test_a_commit_commits_what_is_pending_before_it_and_a_late_notice_is_a_success(place: Place) -> None:
    """F1, F2, F17."""
    sink = place.sink()
    for epoch in (1, 2, 3):
        prepared(sink, epoch, rows(epoch))
    sink.commit(2)
    assert (rows_of(place.path), sink.pending) == ([1, 2], [3])
    sink.commit(1)
    sink.commit(2)
    assert (rows_of(place.path), len(staged_files(place))) == ([1, 2], 1)
    sink.commit(7)
    assert (rows_of(place.path), sink.last_epoch) == ([1, 2, 3], 3)


def test_committing_what_nobody_prepared_is_refused(place: Place) -> None:
    sink = place.sink()
    for epoch in (0, 9):
        with pytest.raises(InvalidRequestError, match="no epoch up to it is prepared"):
            sink.commit(epoch)


def test_epochs_are_prepared_in_growing_order(place: Place) -> None:
    sink = place.sink()
    five, three, again = sink.begin(5), sink.begin(3), sink.begin(5)
    for txn, value in ((five, 5), (three, 3), (again, 55)):
        txn.write(rows(value))
    five.prepare()
    for txn in (three, again):
        with pytest.raises(ConflictError, match="epoch 5 is prepared already"):
            txn.prepare()
        txn.abort()
    sink.commit(5)
    assert (rows_of(place.path), staged_files(place)) == ([5], [])


def test_preparing_the_same_files_again_is_no_second_transaction(place: Place) -> None:
    """F22: an append whose answer was lost, from the caller's side."""
    sink = place.sink()
    prepare = prepared(sink, 1, rows(1))
    assert transaction._is_prepared(sink.log, sink.log.state, sink.identity, 1, prepare.files)


def test_an_abort_drops_one_pending_epoch_and_keeps_the_others(place: Place) -> None:
    sink = place.sink()
    for epoch in (1, 2, 3):
        prepared(sink, epoch, rows(epoch))
    sink.abort(2)
    sink.abort(2)
    sink.abort(99)
    assert (sink.pending, len(staged_files(place))) == ([1, 3], 2)
    sink.commit(3)
    assert rows_of(place.path) == [1, 3]
    with pytest.raises(InvalidRequestError, match="never committed"):
        sink.begin(2)


def test_what_is_committed_is_not_aborted(place: Place) -> None:
    """S23, S32."""
    sink = place.sink()
    with sink.begin(1) as txn:
        txn.write(rows(1))
    sink.abort(1)
    txn.abort()
    assert rows_of(place.path) == [1]


def test_committing_what_another_object_of_the_run_aborted_is_told(place: Place) -> None:
    one = place.sink(run="r1")
    two = place.sink(run="r1", recover=False)
    txn = one.begin(1)
    txn.write(rows(1))
    txn.prepare()
    two.abort(1) if two.log.refresh() else None
    with pytest.raises(ConflictError, match="it was aborted meanwhile"):
        transaction.roll_forward(
            one.log, one.identity, NoPublisher(), one.log.state.pending_of("w")[0]
        )
    assert rows_of(place.path) == []


class NoPublisher:
    """Says that it published, as a run does that was stalled just after its publish."""

    def publish(self, prepare: Prepare) -> None:
        pass

    replace = withdraw = publish


# -- overwrite ----------------------------------------------------------------------------------------------


def test_a_static_overwrite_replaces_everything_that_was_committed(place: Place) -> None:
    """S14."""
    place.write(1, rows(1))
    place.write(1, rows(2), writer="v")
    place.write(2, rows(3), mode="overwrite")
    assert rows_of(place.path) == [3]
    assert kinds(place)[-3:] == ["prepare", "publishing", "commit"]
    assert len(names(place.path / layout.REMOVED_DIRECTORY)) == 2
    place.write(3, mode="overwrite")
    assert rows_of(place.path) == []


def test_an_overwrite_of_nothing_removes_nothing(place: Place) -> None:
    place.write(1, rows(1), mode="overwrite")
    assert (rows_of(place.path), kinds(place)) == ([1], ["create", "prepare", "commit"])


def test_a_dynamic_overwrite_replaces_the_partitions_it_writes_to(place: Place) -> None:
    place.write(1, {"id": [1, 2, 3], "p": ["a", "b", None]}, partition_by=["p"])
    place.write(2, {"id": [4], "p": ["a"]}, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 3, 4]
    place.write(3, {"id": [5, 6], "p": [None, "c"]}, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 4, 5, 6]
    place.write(4, mode="overwrite", partition_overwrite="dynamic")
    assert rows_of(place.path) == [2, 4, 5, 6]


def test_an_overwrite_replaces_the_writers_own_earlier_pending_epochs_too(place: Place) -> None:
    place.write(0, rows(0))
    sink = place.sink()
    prepared(sink, 1, rows(1))
    prepared(sink, 2, rows(2), mode="overwrite")
    prepared(sink, 3, rows(3))
    prepared(sink, 4, rows(4), mode="overwrite")
    prepared(sink, 5, rows(5))
    for epoch, expected in ((1, [0, 1]), (2, [2]), (3, [2, 3]), (5, [4, 5])):
        sink.commit(epoch)
        assert rows_of(place.path) == expected


def test_an_overwrite_leaves_what_others_add_after_it_was_prepared(place: Place) -> None:
    sink, other = place.sink(), place.sink("v")
    with other.begin(1) as txn:
        txn.write(rows(1))
    sink.log.refresh()
    prepared(sink, 1, rows(10), mode="overwrite")
    with other.begin(2) as txn:
        txn.write(rows(2))
    sink.commit(1)
    assert rows_of(place.path) == [2, 10]


def test_two_pending_overwrites_of_different_writers_conflict(place: Place) -> None:
    place.write(0, rows(0))
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1), mode="overwrite")
    txn = two.begin(1, mode="overwrite")
    txn.write(rows(2))
    with pytest.raises(ConflictError, match="epoch 1 of 'a', still pending, replaces files as well"):
        txn.prepare()
    one.commit(1)
    txn.commit()
    assert rows_of(place.path) == [2]


def test_an_overwrite_does_not_wait_for_a_pending_append_of_another_writer(place: Place) -> None:
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1))
    with two.begin(1, mode="overwrite") as txn:
        txn.write(rows(2))
    one.commit(1)
    assert rows_of(place.path) == [1, 2]


def test_what_began_to_replace_files_is_committed_and_not_aborted(place: Place) -> None:
    """I8: aborted, a stalled run could still take the replaced files away."""
    place.write(0, rows(0))
    sink = place.sink()
    prepared(sink, 1, rows(1), mode="overwrite")
    pending = sink.log.state.pending_of("w")[0]
    sink.log.append(transaction._resolving(sink.log, sink.identity, pending, transaction.Publishing))
    with pytest.raises(ConflictError, match="its publish has begun to take away the files it replaces"):
        sink.abort(1)
    sink.commit(1)
    assert rows_of(place.path) == [1]
    assert kinds(place).count("publishing") == 1


def test_modes_that_do_not_exist_are_refused(place: Place) -> None:
    sink = place.sink()
    with pytest.raises(InvalidRequestError, match="mode is 'update'"):
        sink.begin(1, mode="update")
    with pytest.raises(InvalidRequestError, match="partition_overwrite is 'both'"):
        sink.begin(1, mode="overwrite", partition_overwrite="both")


# -- writers and runs ---------------------------------------------------------------------------------------


def test_writers_of_one_table_keep_their_own_epochs(place: Place) -> None:
    """S24, I15."""
    one, two = place.sink("a"), place.sink("b")
    for epoch in range(3):
        for number, sink in enumerate((one, two)):
            with sink.begin(epoch + 10 * number) as txn:
                txn.write(rows(10 * epoch + number))
    assert rows_of(place.path) == [0, 1, 10, 11, 20, 21]
    assert (one.last_epoch, two.last_epoch) == (2, 12)
    writers = place.table().writers()
    assert {name: info.last_epoch for name, info in writers.items()} == {"a": 2, "b": 12}


def test_a_newer_run_fences_the_older_one_for_ever(place: Place) -> None:
    """I10, S20."""
    old = place.sink()
    early = old.begin(1)
    early.write(rows(1))
    early.prepare()
    open_txn = old.begin(2)
    open_txn.write(rows(2))
    new = place.sink()
    assert new.last_epoch == 1
    for act in (early.commit, open_txn.commit, old.recover, old.sweep):
        with pytest.raises(FencedError) as caught:
            act()
        assert caught.value.context["by"] == new.run
    old.commit(1)  # a late notice: the new run has committed it
    with new.begin(2) as txn:
        txn.write(rows(22))
    with pytest.raises(FencedError), old.begin(3) as txn:
        txn.write(rows(3))
    old.close()
    assert rows_of(place.path) == [1, 22]


def test_a_run_id_of_ones_own_that_was_fenced_stays_fenced_after_reopening(place: Place) -> None:
    """I10."""
    place.sink(run="r1").close()
    place.sink(run="r1").close()
    assert kinds(place) == ["create", "claim"]
    place.sink(run="r2").close()
    with pytest.raises(FencedError, match="retired by run r2"):
        place.sink(run="r1")
    with pytest.raises(FencedError), place.sink(run="r2") as sink:
        place.sink(run="r3")
        with sink.begin(1) as txn:
            txn.write(rows(1))
    assert kinds(place) == ["create", "claim", "claim", "claim"]


def test_a_one_shot_run_claims_with_its_first_prepare_and_is_fenced_like_any_other(place: Place) -> None:
    with open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True) as slow:
        txn = slow.begin(1)
        txn.write(rows(1))
        place.write(1, rows(2))
        assert txn.commit().outcome == "already-committed"
        later = slow.begin(2)
        later.write(rows(3))
        later.commit()
    assert rows_of(place.path) == [2, 3]
    with open_sink(LocalStore(), place.stamps, str(place.path), "w", {}, is_one_shot=True) as first:
        txn = first.begin(3)
        txn.write(rows(4))
        txn.prepare()
        place.write(4, rows(5))
        with pytest.raises(FencedError):
            txn.commit()
    assert rows_of(place.path) == [2, 3, 4, 5]


def test_the_same_epoch_of_two_transactions_is_committed_once(place: Place) -> None:
    sink = place.sink()
    one, two = sink.begin(1), sink.begin(1)
    one.write(rows(1))
    two.write(rows(2))
    one.commit()
    assert two.commit().outcome == "already-committed"
    assert (rows_of(place.path), staged_files(place)) == ([1], [])


# -- columns and metadata -----------------------------------------------------------------------------------


def test_metadata_is_read_back_as_it_was_given(place: Place) -> None:
    given = {"offsets": {"p0": 991, "p1": None}, "big": 2**70 + 1, "text": "ü\u2028\x00", "list": [1, 1.5, True], "": {}}
    place.write(1, rows(1), metadata=given)
    with place.sink() as sink:
        assert sink.last_metadata == given
        sink.last_metadata["more"] = 1
        assert sink.last_metadata == given


@pytest.mark.parametrize(
    "metadata",
    [{"a": {1, 2}}, {"a": (1,)}, {1: "a"}, {"a": float("nan")}, {"a": float("inf")}, {"a": b"x"}, {"a": object()}]
    + [{"a": "x" * (1 << 20)}, {"a": "\ud800"}],
)
def test_metadata_that_json_cannot_hold_is_refused_before_anything_is_staged(
    place: Place, metadata: dict[str, Any]
) -> None:
    sink = place.sink()
    with pytest.raises(InvalidRequestError, match="with metadata"):
        sink.begin(1, metadata=metadata)
    with sink.begin(1) as txn:
        txn.write(rows(1))
    assert rows_of(place.path) == [1]


def test_metadata_nested_out_of_bounds_is_refused(place: Place) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    with pytest.raises(InvalidRequestError), place.sink().begin(1, metadata={"a": deep}) as txn:
        txn.write(rows(1))
    place.write(1, rows(1))
    assert rows_of(place.path) == [1]


def test_new_columns_need_merge_schema_and_are_null_in_older_files(place: Place) -> None:
    place.write(1, rows(1))
    with pytest.raises(InvalidRequestError, match="merge_schema"):
        place.write(2, {"id": [2], "name": ["b"]})
    place.write(2, {"id": [2], "name": ["b"]}, merge_schema=True)
    place.write(3, rows(3))
    table = place.table().to_arrow()
    assert sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True)) == [(1, None), (2, "b"), (3, None)]


@pytest.mark.parametrize("end", ["pending", "aborted", "committed"])
def test_a_column_that_two_epochs_bring_is_there_when_either_is_committed(place: Place, end: str) -> None:
    """I1."""
    one, two = place.sink("a"), place.sink("b")
    prepared(one, 1, rows(1))
    two.log.refresh()
    with two.begin(1) as txn:
        txn.write(rows(2))
    if end != "pending":
        (one.abort if end == "aborted" else one.commit)(1)
    assert rows_of(place.path) == ([1, 2] if end == "committed" else [2])
    assert place.table().schema.names == ["id"]


def test_a_changed_type_is_refused_with_and_without_merge_schema(place: Place) -> None:
    """S15."""
    place.write(1, rows(1))
    for options in ({}, {"merge_schema": True}):
        with pytest.raises(InvalidRequestError, match="'id'"):
            place.write(2, {"id": ["two"]}, **options)
    place.write(2, rows(2))
    assert rows_of(place.path) == [1, 2]


def test_types_that_two_pending_epochs_bring_must_agree(place: Place) -> None:
    one, two = place.sink("a"), place.sink("b")
    first, second = one.begin(1), two.begin(1)
    first.write({"id": [1], "x": [1]})
    second.write({"id": [2], "x": ["text"]})
    first.prepare()
    with pytest.raises(InvalidRequestError, match="'x'"):
        second.prepare()
    second.abort()
    one.commit(1)
    assert rows_of(place.path) == [1]


def test_files_of_another_partitioning_are_refused(place: Place) -> None:
    sink = place.sink(partition_by=["p"])
    txn = sink.begin(1)
    record = txn.stager().stage({"id": [1], "p": ["a"]})[0].to_dict()
    text = json.dumps(record).replace("p=a/", "q=a/").replace('{"p": "a"}', '{"q": "a"}')
    file = next(staging(place.path).rglob("*.parquet"))
    other = file.parent.parent / "q=a" / file.name
    other.parent.mkdir()
    other.write_bytes(file.read_bytes())
    txn.add([json.loads(text)])
    with pytest.raises(InvalidRequestError, match="is partitioned by"):
        txn.prepare()


# -- rewind -------------------------------------------------------------------------------------------------


@pytest.fixture
def four(place: Place) -> Sink:
    """A writer with epochs 1 to 4 committed, and another one with one."""
    place.write(1, rows(100), writer="other")
    sink = place.sink()
    for epoch in (1, 2, 3, 4):
        with sink.begin(epoch, metadata={"at": epoch}) as txn:
            txn.write(rows(epoch))
    return sink


def test_a_rewind_removes_later_epochs_of_its_writer_and_they_are_written_again(place: Place, four: Sink) -> None:
    """I4."""
    done = four.recover(up_to=2, on_newer="rewind")
    assert done == ([], [], 4)
    assert (rows_of(place.path), four.last_epoch, four.last_metadata) == ([1, 2, 100], 2, {"at": 2})
    for epoch in (3, 4):
        with four.begin(epoch) as txn:
            assert txn.outcome == "open"
            txn.write(rows(10 * epoch))
    assert rows_of(place.path) == [1, 2, 30, 40, 100]
    assert four.begin(2).outcome == "already-committed"


def test_a_rewind_twice_and_further_back_is_allowed(place: Place, four: Sink) -> None:
    four.recover(up_to=3, on_newer="rewind")
    assert four.recover(up_to=3, on_newer="rewind") == ([], [], None)
    four.recover(up_to=1, on_newer="rewind")
    assert (rows_of(place.path), four.last_metadata) == ([1, 100], {"at": 1})


def test_an_epoch_that_was_taken_back_counts_as_never_committed(place: Place, four: Sink) -> None:
    """I1: else its replay would be skipped, and its rows lost."""
    four.recover(up_to=2, on_newer="rewind")
    with four.begin(6) as txn:
        txn.write(rows(6))
    with pytest.raises(InvalidRequestError, match="never committed"):
        four.begin(4)
    with pytest.raises(InvalidRequestError, match="never committed"):
        four.recover(up_to=4, on_newer="rewind")
    assert rows_of(place.path) == [1, 2, 6, 100]


def test_a_rewind_across_an_epoch_that_replaced_files_is_refused(place: Place, four: Sink) -> None:
    with four.begin(5, mode="overwrite") as txn:
        txn.write(rows(5))
    with four.begin(6) as txn:
        txn.write(rows(6))
    with pytest.raises(ConflictError, match="epoch 5 replaced files, which a rewind cannot bring back"):
        four.recover(up_to=4, on_newer="rewind")
    assert rows_of(place.path) == [5, 6]
    four.recover(up_to=5, on_newer="rewind")
    assert rows_of(place.path) == [5]


@pytest.mark.parametrize("epoch", [0, 7])
def test_a_rewind_to_an_epoch_that_never_was_is_refused_or_nothing(place: Place, four: Sink, epoch: int) -> None:
    if epoch == 7:
        assert four.recover(up_to=7, on_newer="rewind") == ([], [], None)
    else:
        with pytest.raises(InvalidRequestError, match="that epoch was never committed"):
            four.recover(up_to=0, on_newer="rewind")
    assert rows_of(place.path) == [1, 2, 3, 4, 100]


def test_a_rewind_that_crashed_after_its_prepare_is_finished_by_the_next_run(place: Place, four: Sink) -> None:
    transaction.rewind(four.log, four.identity, 2)
    again = transaction.rewind(four.log, four.identity, 2)
    assert (again.mode, len(four.log.state.pending)) == ("rewind", 1)
    with place.sink() as sink:
        assert (sink.last_epoch, sink.last_metadata) == (2, {"at": 2})
    assert rows_of(place.path) == [1, 2, 100]


# -- errors on the way --------------------------------------------------------------------------------------


def test_a_commit_that_failed_is_finished_by_trying_again(place: Place) -> None:
    """F28: the rename error is raised, not swallowed, and nothing is aborted for it."""
    store = FaultyStore(LocalStore())
    sink = open_sink(store, place.stamps, str(place.path), "w", {})
    real = store.move

    def fail(moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        raise UnavailableError("move", "a planned fault", "Retry")

    store.move = fail  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="a planned fault"), sink.begin(1) as txn:
        txn.write(pa.table(rows(1)))
    assert (txn.outcome, sink.pending) == ("prepared", [1])
    store.move = real  # type: ignore[method-assign]
    assert txn.commit().outcome == "committed"
    assert rows_of(place.path) == [1]


def test_a_file_that_is_nowhere_stops_the_commit_and_nothing_else_is_touched(place: Place) -> None:
    """F15, F28, I6."""
    sink = place.sink()
    prepared(sink, 1, rows(1))
    next(staging(place.path).rglob("*.parquet")).unlink()
    before = names(place.path.parent)
    with pytest.raises(CorruptError, match="publish part-1-0"):
        sink.commit(1)
    assert (sink.pending, names(place.path.parent)) == ([1], before)
    sink.abort(1)
    with sink.begin(1) as txn:
        txn.write(rows(11))
    assert rows_of(place.path) == [11]
