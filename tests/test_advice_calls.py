"""What errors about options, writers and transactions advise, done word for word: every row is there once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txsink
from advice import advised
from advised_calls import Wrong, follow, gives
from place import Place, commit, stage_only
from seen import rows_of
from txsink.choices import Layout
from txsink.cli import main as cli
from txsink.environment import stamps
from txsink.schema import columns_of
from txsink.staging.staged_file import StagedFile
from txsink.store.local.store import LocalStore
from txsink.testing import FaultyStore, Objects, fail_before, open_on, table_on
from txsink.two_phase.file_sink import ParquetFileSink
from txsink.writing.opening import open_sink, open_workplace

ID: dict[str, Any] = {"id": [1]}
DAY: dict[str, Any] = {**ID, "day": ["a"], "_day": ["b"]}
ZERO = {"id": [0]}
BOTH = (0, 1)


def beside(place: Place) -> str:
    return f"{place.path}-staging"


def in_parts(expected: int, *names: str) -> Callable[[Place], object]:
    """Epoch 1, of which workers write the parts of these names: the first has the row."""

    def act(place: Place) -> None:
        with place.sink() as sink, sink.begin(1, parts=expected) as txn:
            for number, name in enumerate(names):
                txn.add(txn.stager(name).stage(ID) if not number else [], part=name)

    return act


def as_(writer: str) -> Callable[[Place], object]:
    return lambda place: place.write(1, ID, writer=writer)


def epoch(number: Any) -> Callable[[Place], object]:
    return lambda place: place.write(number, ID)


def begun(*, of_begin: dict[str, Any] | None = None, **options: Any) -> Callable[[Place], object]:
    def act(place: Place) -> None:
        with place.sink(**options) as sink, sink.begin(1, **(of_begin or {})) as txn:
            txn.write(ID)

    return act


def converted(place: Place) -> None:
    assert cli.main(["convert", str(place.path), "--to", "delta", "--yes"]) == 0
    place.write(1, ID, layout="delta")


def elsewhere(place: Place) -> None:
    """Into another table, of which the row is then the only one."""
    other = Place(place.path.with_name("other"))
    other.write(1, DAY, partition_by="day")
    assert rows_of(other.path) == [1]
    place.write(1, ID)


OPENING = (
    Wrong(
        "writing.opening._create",
        "Leave staging_path out",
        lambda place: place.write(1, ID, layout="delta", staging_path=beside(place)),
        (gives(ID, layout="delta"),),
    ),
    Wrong(
        "writing.opening._staging",
        "Name one outside: readers look in",
        lambda place: place.write(1, ID, staging_path=f"{place.path}/in"),
        (lambda place: place.write(1, ID, staging_path=beside(place)),),
    ),
    Wrong(
        "writing.opening._require_agreement",
        "Leave layout out, or convert the table with `txsink convert`",
        gives(ID, layout="delta"),
        (gives(ID), converted),
        ZERO,
        BOTH,
    ),
    Wrong("writing.opening._require_agreement", "Leave types out", gives(ID, types="arrow"), (gives(ID),), ZERO, BOTH),
    Wrong(
        "writing.opening._require_agreement",
        "Leave partition_by out, or write another table",
        gives(ID, partition_by="id"),
        (gives(ID), elsewhere),
        ZERO,
        BOTH,
    ),
    Wrong(
        "writing.opening._require_agreement",
        "Leave staging_path out",
        lambda place: place.write(1, ID, staging_path=beside(place)),
        (gives(ID),),
        ZERO,
        BOTH,
    ),
    Wrong("writing.opening._require_name", "Give another name", as_(""), (as_("a/b"),)),
    Wrong(
        "writing.opening._require_columns",
        "Partition by other columns: readers hide such directories",
        gives(DAY, partition_by="_day"),
        (gives(DAY, partition_by="day"),),
    ),
    Wrong("options.unknown", "Did you mean {}?", gives(DAY, partitionby="day"), (gives(DAY, partition_by="day"),)),
    Wrong("options.unknown", "Known options: {}", gives(ID, zzz=1), (gives(ID, merge_schema=True),)),
    Wrong(
        "options.unknown",
        "Give {} to `{}`, which takes it",
        begun(mode="overwrite"),
        (begun(of_begin={"mode": "overwrite"}),),
        ZERO,
    ),
    Wrong(
        "choices.converted",
        "Give {}",
        gives(ID, merge_schema="perhaps"),
        (gives(ID, merge_schema=True),),
    ),
    Wrong("store.protocol.of", "Give a dictionary", gives(ID, storage_options=[1]), (gives(ID, storage_options={}),)),
    Wrong(
        "store.protocol.of",
        "Give names as strings",
        gives(ID, storage_options={1: 2}),
        (gives(ID, storage_options={}),),
    ),
)

WRITING = (
    Wrong(
        "writing.writer.begin",
        "Give the number of parts, 0 or more",
        in_parts(-1),
        (in_parts(1, "a"), in_parts(2, "a", "b")),
    ),
    Wrong(
        "writing.writer.begin",
        "Give mode='overwrite' as well, or leave partition_overwrite out",
        gives(ID, partition_overwrite="dynamic"),
        (gives(ID, partition_overwrite="dynamic", mode="overwrite"), gives(ID)),
    ),
    Wrong("writing.writer._epoch", "Give an integer from 0 to {}", epoch("1"), (epoch(1), epoch(0), epoch(2**63 - 1))),
    Wrong(
        "choices.require_choice",
        "Give one of these",
        gives(ID, mode="upsert"),
        (gives(ID, mode="append"), gives(ID, mode="overwrite")),
    ),
    Wrong("writing.writer._metadata", "Give a dictionary", gives(ID, metadata=[1]), (gives(ID, metadata={"at": 1}),)),
    Wrong(
        "writing.transaction._require_parts",
        "Add every part once; one attempt of each task",
        in_parts(2, "a", "a"),
        (in_parts(2, "a", "b"),),
    ),
)


@pytest.mark.parametrize("case", [*OPENING, *WRITING], ids=lambda case: f"{case.place}-{case.words[:30]}")
def test_a_call_that_is_changed_as_its_error_says_has_its_rows_once(place: Place, case: Wrong) -> None:
    follow(case, place)


def test_another_path_or_the_other_layout_takes_what_a_percent_sign_keeps_out_of_delta(tmp_path: Path) -> None:
    path = tmp_path / "a%20b"
    with advised("writing.opening._require_readable", "Name another path, or choose layout='parquet'"):
        txsink.write(path, ID, writer="w", epoch=1, layout="delta")
    known: tuple[tuple[Path, Layout], ...] = ((path, "parquet"), (tmp_path / "ab", "delta"))
    for where, layout in known:
        txsink.write(where, ID, writer="w", epoch=1, layout=layout)
        assert rows_of(where) == [1]


def test_what_is_staged_in_the_former_layout_is_dropped_by_its_own_writer(
    place: Place,
) -> None:
    sink = place.sink()
    stage_only(sink, 1)
    assert cli.main(["sweep", str(place.path), "--yes"]) == 0  # the run may be alive: a sweep keeps its files
    with advised("writing.opening._correct", "Open the writer {} without layout first: that drops them"):
        place.write(1, ID, layout="delta", writer="other")
    place.sink("w").close()
    place.write(1, ID, layout="delta")
    assert (rows_of(place.path), place.table().layout) == ([1], "delta")


# -- a writer and its transactions -------------------------------------------------------------------------


def test_an_epoch_is_prepared_before_it_is_committed(place: Place) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(ID)
    with advised("writing.writer.publish", "Prepare it first"):
        sink.commit(1)
    txn.prepare()
    sink.commit(1)
    assert rows_of(place.path) == [1]


def test_a_closed_writer_is_opened_again(place: Place) -> None:
    sink = place.sink()
    sink.close()
    with advised("writing.writer.require_open", "Open it again"):
        sink.begin(1)
    commit(place.sink(), 1)
    assert rows_of(place.path) == [1]


def test_what_the_stager_returns_is_what_travels_to_workers(tmp_path: Path) -> None:
    path = tmp_path / "T"
    with txsink.open_writer(path, "w") as sink, sink.begin(1) as txn:
        with advised("writing.writer.__reduce__", "Send `Transaction.stager()` to the workers"):
            pickle.dumps(sink)
        with advised("writing.transaction.__reduce__", "Send what `stager()` returns to the workers"):
            pickle.dumps(txn)
        txn.add(pickle.loads(pickle.dumps(txn.stager())).stage(ID))
    assert rows_of(path) == [1]


def test_a_transaction_that_is_over_is_followed_by_another_one(place: Place) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.abort()
    with advised("writing.transaction._require_open", "Begin another one"):
        txn.write(ID)
    commit(sink, 1)
    assert rows_of(place.path) == [1]


def test_each_file_is_added_once_by_the_transaction_whose_stager_staged_it(place: Place) -> None:
    with place.sink() as sink, sink.begin(1) as txn:
        (mine,), others = txn.stager().stage(ID), sink.begin(2).stager().stage(ID)
        with advised("writing.transaction._require_own", "Add it once"):
            txn.add([mine, mine])
        with advised("writing.transaction._require_own", "Add what this transaction's stager staged"):
            txn.add(others)
        record = mine.to_dict()
        with advised("staging.staged_file.from_dict", "Pass on what the stager returned, unchanged"):
            txn.add([{**record, "epoch": "1"}])
        txn.add([record])
    assert rows_of(place.path) == [1]


def test_columns_are_told_as_the_table_keeps_them(place: Place) -> None:
    def told(unit: Any, types: str) -> Any:
        return columns_of(pa.schema({"id": pa.int64(), "at": pa.timestamp(unit)}), types)

    with place.sink() as sink, sink.begin(1) as txn:
        with advised("staging.conform.require_kept", "Give it as {}, in the data and in its files"):
            txn.add([], columns=told("ns", "arrow"))
        at = pa.array([1], pa.timestamp("us"))
        txn.add(txn.stager().stage({**ID, "at": at}), columns=told("us", "spark"))
    assert rows_of(place.path) == [1]


def test_rows_of_another_program_go_through_arrow_where_the_store_cannot_move_files() -> None:
    bucket = Objects()
    with open_on(bucket.store(), "/t", "w", life=1) as sink, sink.begin(1) as txn:
        with advised("writing.transaction.guest", "Stage them through Arrow, with `write` or a stager"):
            txn.guest()
        txn.write(ID)
    assert table_on(bucket.store(), "/t").to_arrow()["id"].to_pylist() == [1]


def test_a_call_from_within_another_one_is_made_when_that_has_returned(place: Place) -> None:
    with place.sink() as sink, sink.begin(1) as txn:

        def batches() -> Any:
            with advised("writing.calls.whole", "Call it when that has returned"):
                txn.write(ID)
            yield pa.table(ZERO)

        txn.write(batches())
        txn.write(ID)
    assert rows_of(place.path) == [0, 1]


def test_one_write_of_a_stager_ends_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "T"
    with ParquetFileSink(path, "w") as sink:

        def batches() -> Any:
            with advised("staging.epoch_stager._require_open", "Let one write end before the next call"):
                sink.write(ID)
            yield pa.table(ZERO)

        sink.write(batches())
        sink.write(ID)
        sink.snapshot_state(0)
        sink.notify_checkpoint_complete(0)
    assert rows_of(path) == [0, 1]


def test_what_failed_half_way_is_begun_again(place: Place) -> None:
    store = FaultyStore(LocalStore())
    options = {"row_group_rows": 1, "target_file_bytes": 1}
    sink = open_sink(store, stamps(), str(place.path), "w", options)
    txn = sink.begin(1)
    creates = store.create

    def failing(path: str) -> Any:
        store.plan.append(fail_before(store.calls + 1))
        return creates(path)

    store.create = failing  # type: ignore[method-assign]
    with advised("writing.transaction._advise", "Begin epoch {} again, and write all of it"):
        txn.write({"id": [1, 2]})
    store.create = creates  # type: ignore[method-assign]
    with advised("staging.epoch_stager._require_not_closed", "Begin the epoch again"):
        txn.write({"id": [3]})
    with sink.begin(1) as again:
        again.write({"id": [1, 2]})
    assert rows_of(place.path) == [1, 2]


@pytest.mark.parametrize("again", ["call", "open"])
def test_a_commit_that_failed_is_called_again_or_its_writer_opened_again(place: Place, again: str) -> None:
    store = FaultyStore(LocalStore())
    sink = open_sink(store, stamps(), str(place.path), "w", {})
    txn = sink.begin(1)
    txn.write(ID)
    txn.prepare()
    moves = store.move

    def failing(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        store.plan.append(fail_before(store.calls + 1))
        return moves(found)

    store.move = failing  # type: ignore[method-assign,assignment]
    with advised("writing.writer.publish", "Call it again, or open the writer again: either finishes it"):
        txn.commit()
    store.move = moves  # type: ignore[method-assign]
    if again == "call":
        txn.commit()
    else:
        place.sink()
    assert rows_of(place.path) == [1]


def test_names_and_epochs_of_a_stager_without_a_writer_are_those_a_writer_takes(tmp_path: Path) -> None:
    path = tmp_path / "T"
    workplace = open_workplace(path)
    with advised("staging.epoch_stager.__init__", "Use another name"):
        workplace.stager("", "r", 1).stage(ID)
    with advised("staging.epoch_stager.__init__", "Number epochs from 0"):
        workplace.stager("w", "r", -1).stage(ID)
    staged = workplace.stager("w", "r", 0).stage(ID)
    with txsink.open_writer(path, "w", run="r") as sink, sink.begin(0) as txn:
        txn.add(staged)
    assert rows_of(path) == [1]


def test_a_forked_child_opens_a_writer_of_its_own_or_stages_for_its_parent(place: Place) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    stager, record = txn.stager(), place.path.with_name("record")

    def child() -> None:
        with advised("environment.require_this", "Open a writer in each process, or hand `Transaction.stager()` to it"):
            txn.write(ID)
        record.write_bytes(pickle.dumps(stager.stage(ID)))
        commit(place.sink("other"), 2)

    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    staged: list[StagedFile] = pickle.loads(record.read_bytes())
    txn.add(staged)
    txn.commit()
    assert rows_of(place.path) == [1, 2]
