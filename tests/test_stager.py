"""Staging on workers: nothing of the log travels with it, and the coordinator adds only what it can believe."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

import txsink
from place import Place, rows
from seen import names, rows_of, staging
from txsink.errors import InvalidRequestError
from txsink.publish.decision import Action
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.place import place_in_table
from txsink.staging.stager import Stager
from txsink.store.protocol import StorageOptions
from txsink.testing.crash_book import ROOT as CRASH_ROOT
from txsink.testing.crash_world import World
from txsink.testing.faults import FaultyStore, crash_after
from txsink.testing.simdisk import Crash, SimDisk
from txsink.writing.opening import open_writer


def stage_there(stager: Stager, answer: Connection, ids: list[int]) -> None:
    """A worker process."""
    answer.send(json.dumps([one.to_dict() for one in stager.stage(rows(*ids))]))


# -- other processes ----------------------------------------------------------------------------------------


def test_workers_stage_and_the_coordinator_commits_what_they_report(place: Place) -> None:
    """F11: the stager is pickled, the records come back as JSON, the bytes are published as they were staged."""
    context = multiprocessing.get_context("spawn")
    with open_writer(str(place.path), "w") as sink:
        txn = sink.begin(1, parts=2)
        for part in range(2):
            answer, told = context.Pipe(duplex=False)
            process = context.Process(target=stage_there, args=(txn.stager(part), told, [10 * part, 10 * part + 1]))
            process.start()
            told.close()
            txn.add(json.loads(answer.recv()))
            process.join()
        before = {one.name: one.read_bytes() for one in staging(place.path).rglob("*.parquet")}
        assert len(before) == 2
        txn.commit()
    assert {one.name: one.read_bytes() for one in place.path.rglob("*.parquet")} == before
    assert rows_of(place.path) == [0, 1, 10, 11]


def test_a_stager_is_all_a_worker_needs_and_opens_no_log(place: Place) -> None:
    with open_writer(str(place.path), "w", partition_by="p", compression="gzip") as sink:
        txn = sink.begin(1)
        stager = pickle.loads(pickle.dumps(txn.stager("a")))
        (place.path / "_txsink").rename(place.path / "_hidden")
        (record,) = stager.stage({"id": [1], "p": ["x"]})
        (place.path / "_hidden").rename(place.path / "_txsink")
        assert (record.part, record.file.partition, record.run) == ("a", {"p": "x"}, sink.run)
        txn.add([record])
        txn.commit()
    assert rows_of(place.path) == [1]


def test_a_stager_that_fails_leaves_nothing(place: Place) -> None:
    with place.sink() as sink:
        txn = sink.begin(1)
        with pytest.raises(InvalidRequestError):
            txn.stager().stage([rows(1), {"id": ["text"]}])
        assert names(staging(place.path)) == []


def test_losing_attempts_of_a_task_are_never_published_and_are_swept(place: Place) -> None:
    """F16, S27."""
    with open_writer(str(place.path), "w") as sink:
        txn = sink.begin(1)
        stager = txn.stager(0)
        attempts = [stager.stage(rows(7)) for _ in range(3)]
        assert len({one[0].file.path for one in attempts}) == 3
        txn.add(attempts[1])
        txn.commit()
        assert rows_of(place.path) == [7]
        assert [one.action for one in sink.sweep()] == [Action.DROP_STAGED] * 2
    assert rows_of(place.path) == [7]
    assert not staging(place.path).exists() or names(staging(place.path)) == []


# -- records ------------------------------------------------------------------------------------------------


def test_a_record_survives_json_and_pickle(place: Place) -> None:
    with place.sink(partition_by="p") as sink:
        txn = sink.begin(1)
        (record,) = txn.stager(3).stage({"id": [1], "p": ["ü=/"]})
        assert StagedFile.from_dict(json.loads(json.dumps(record.to_dict()))) == record
        assert pickle.loads(pickle.dumps(record)) == record
        assert txsink.StagedFile is StagedFile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writer": "v"}, "it was staged for epoch 1 of 'v'"),
        ({"run": "another"}, "by run another"),
        ({"epoch": 2}, "it was staged for epoch 2"),
        ({"writer": ".."}, "it was staged for epoch 1 of '..'"),
        ({"writer": ""}, "it is empty"),
        ({"run": "a\x00"}, "NUL"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": "1"}, "epoch"),
        ({"file": {}}, "missing required field"),
        ({"file": None}, "file"),
        ({"surprise": 1}, "surprise"),
        ({"stamp": "x" * 300}, "stamp"),
        ({"columns": [{"name": "id"}]}, "missing required field"),
        ({"file.path": "../../etc/part-1-0-abcd.parquet"}, "is not a data path"),
        ({"file.path": "/part-1-0-abcd.parquet"}, "is not a data path"),
        ({"file.path": "a/part-1-0-abcd.parquet"}, "is not a data path"),
        ({"file.path": "p=1/part-1-0-abcd.parquet"}, "partition values"),
        ({"file.bytes": -1}, "bytes"),
        ({"file.rows": 2**64}, "rows"),
    ],
)
def test_foreign_and_damaged_records_are_refused_and_the_transaction_goes_on(
    place: Place, change: dict[str, Any], message: str
) -> None:
    with place.sink() as sink:
        txn = sink.begin(1)
        (record,) = txn.stager().stage(rows(1))
        damaged = record.to_dict()
        for name, value in change.items():
            inner, _, key = name.rpartition(".")
            (damaged[inner] if inner else damaged)[key] = value
        with pytest.raises(InvalidRequestError, match=message):
            txn.add([damaged])
        txn.add([record])
        txn.commit()
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("junk", [[None], ["text"], [{}], [7]])
def test_what_is_no_record_is_refused(place: Place, junk: list[Any]) -> None:
    with place.sink() as sink, pytest.raises(InvalidRequestError, match="read the record of a staged file"):
        sink.begin(1).add(junk)


def test_a_record_nested_without_end_is_refused(place: Place) -> None:
    deep: Any = []
    deep.append(deep)
    with place.sink() as sink, pytest.raises(InvalidRequestError):
        sink.begin(1).add([{"writer": deep}])


def test_a_file_is_added_once(place: Place) -> None:
    with place.sink() as sink:
        txn = sink.begin(1)
        records = txn.stager().stage(rows(1))
        txn.add(records)
        with pytest.raises(InvalidRequestError, match="is added twice"):
            txn.add(records)
        other = sink.begin(2)
        more = other.stager().stage(rows(2))
        with pytest.raises(InvalidRequestError, match="is added twice"):
            other.add([*more, *more])
        txn.commit()
    assert rows_of(place.path) == [1]


def test_rows_written_here_and_rows_staged_elsewhere_make_one_epoch(place: Place) -> None:
    with place.sink() as sink, sink.begin(1) as txn:
        txn.write(rows(1))
        txn.add(txn.stager().stage(rows(2)))
    assert rows_of(place.path) == [1, 2]


# -- completeness -------------------------------------------------------------------------------------------


def test_all_parts_and_each_once_or_nothing_is_prepared(place: Place) -> None:
    with place.sink() as sink:
        txn = sink.begin(1, parts=3)
        for part in range(2):
            txn.add(txn.stager(part).stage(rows(part)))
        with pytest.raises(InvalidRequestError, match="2 parts were added, 3 was expected") as caught:
            txn.commit()
        assert caught.value.context == {"parts": 2}
        assert (sink.pending, txn.outcome) == ([], "open")
        txn.add([], part=2)
        txn.commit()
    assert rows_of(place.path) == [0, 1]


def test_a_part_added_twice_is_refused_also_when_its_attempts_differ(place: Place) -> None:
    """S27."""
    with place.sink() as sink:
        for parts in (None, 2):
            txn = sink.begin(1, parts=parts)
            txn.add(txn.stager("a").stage(rows(1)))
            txn.add(txn.stager("a").stage(rows(1)))
            with pytest.raises(InvalidRequestError, match="part a was added twice"):
                txn.commit()
            txn.abort()
        assert names(staging(place.path)) == []
        txn = sink.begin(1, parts=1)
        txn.add(txn.stager("a").stage(rows(1)))
        txn.commit()
    assert rows_of(place.path) == [1]


def test_more_parts_than_expected_are_refused(place: Place) -> None:
    with place.sink() as sink:
        txn = sink.begin(1, parts=0)
        txn.add(txn.stager(0).stage(rows(1)))
        with pytest.raises(InvalidRequestError, match="1 parts were added, 0 was expected"):
            txn.prepare()
        txn.abort()
    assert not rows_of(place.path)


def test_a_part_of_many_files_counts_once(place: Place) -> None:
    with place.sink(partition_by="p") as sink:
        txn = sink.begin(1, parts=1)
        records = txn.stager(0).stage({"id": [1, 2, 3], "p": ["a", "b", "c"]})
        assert len(records) == 3
        txn.add(records)
        txn.commit()
    assert rows_of(place.path) == [1, 2, 3]


def test_a_worker_that_dies_anywhere_leaves_a_mark_that_leads_to_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: of a Delta table, whose files lie under their final names; also after a power cut."""
    found = set()
    sink = World(SimDisk(), table_layout="delta").sink()
    for call in itertools.count(1):
        world = World(SimDisk(), table_layout="delta")
        store = FaultyStore(world.store(), [crash_after(call)])
        monkeypatch.setattr("txsink.staging.stager.open_store", lambda uri, options, store=store: store)
        place = place_in_table(CRASH_ROOT, "w", "cafe")
        stager = Stager(
            uri=CRASH_ROOT, storage_options=StorageOptions(), directory=place.directory, id_prefix=place.id_prefix,
            mark=place.mark, is_in_place=True, writer="w", run="cafe", epoch=1, partition_columns=(), columns=(),
            merge_schema=False, options=sink.settings.stage, new_id=lambda: "abcdef",
        )  # fmt: skip
        with suppress(Crash):
            stager.stage(rows(1))
        for disk in (world.disk, *(cast("SimDisk", world.disk).after_power_cut(choice) for choice in ("lost", "kept"))):
            files = disk.files()
            data = [path for path in files if path.endswith(".parquet")]
            assert not data or place.mark in files
            found.add((bool(data), place.mark in files))
        if not store.delivered:
            break
    assert found == {(False, True), (True, True)}
