"""Files that another program wrote: what becomes of them, and of what else it left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from place import Place, kinds, staged_files
from seen import names, rows_of, staging
from txsink.adopt import Guest
from txsink.errors import CorruptError, InvalidRequestError
from txsink.schema import columns_of
from txsink.sink import open_sink
from txsink.stage import StagedFile
from txsink.testing.objects import Objects, ObjectStore
from txsink.writer import Sink

COLUMNS = columns_of(pa.schema({"id": pa.int64(), "day": pa.string()}))


def put(guest: Guest, name: str, *ids: int) -> None:
    path = Path(guest.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)


def adopted(sink: Sink, guest: Guest) -> list[StagedFile]:
    return guest.adopt(COLUMNS, sink.log.stamps.new_id)


def test_what_another_program_wrote_is_committed_as_an_epoch(place: Place) -> None:
    with place.sink(partition_by=["day"]) as sink, sink.begin(3) as txn:
        guest = txn.guest()
        put(guest, "day=a/part-00000.parquet", 1, 2)
        put(guest, "day=__HIVE_DEFAULT_PARTITION__/part-00001.parquet", 3)
        assert not place.path.exists() or not list(place.path.rglob("*.parquet"))
        txn.add(adopted(sink, guest))
    assert rows_of(place.path) == [1, 2, 3]
    assert place.table().to_arrow(columns=["id", "day"]).sort_by("id")["day"].to_pylist() == ["a", "a", None]
    assert place.table().verify(deep=True) == []
    assert staged_files(place) == []


def test_empty_files_and_marks_of_the_program_are_dropped(place: Place) -> None:
    with place.sink() as sink, sink.begin(0) as txn:
        guest = txn.guest()
        put(guest, "part-0.parquet", 1)
        put(guest, "part-1.parquet")
        put(guest, "_metadata.parquet", 9)
        for name in ("_SUCCESS", ".part-0.parquet.crc", "notes.txt"):
            (Path(guest.path) / name).write_text("x")
        records = adopted(sink, guest)
        assert [one.file.rows for one in records] == [1]
        assert names(staging(place.path)) == [f"w/{sink.run}/{records[0].file.path}"]
        assert not Path(guest.path).exists()
        txn.add(records)
    assert rows_of(place.path) == [1]


def test_what_a_lost_task_attempt_still_writes_is_dropped_whole_or_torn(place: Place) -> None:
    """S27: Spark kills it when the other one is done, but does not wait for its death."""
    with place.sink(partition_by=["day"]) as sink, sink.begin(0) as txn:
        guest = txn.guest()
        put(guest, "day=a/part-0.parquet", 1)
        put(guest, "_temporary/0/_temporary/attempt_1/day=a/part-0.parquet", 1)
        (Path(guest.path) / "_temporary/0/_temporary/attempt_1/part-1.parquet").write_bytes(b"PAR1")
        txn.add(adopted(sink, guest))
    assert rows_of(place.path) == [1]
    assert staged_files(place) == []


@pytest.mark.parametrize("cut", [0, 4, 100])
def test_a_torn_file_is_refused_and_nothing_is_prepared(place: Place, cut: int) -> None:
    with place.sink() as sink:
        txn = sink.begin(0)
        guest = txn.guest()
        put(guest, "part-0.parquet", 1)
        path = Path(guest.path) / "part-0.parquet"
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(CorruptError, match="it is no whole Parquet file"):
            adopted(sink, guest)
        txn.abort()
    assert "prepare" not in kinds(place)


def test_an_aborted_transaction_and_a_dead_run_leave_nothing_of_a_guest(place: Place) -> None:
    dead = place.sink()
    put(dead.begin(0).guest(), "day=a/part-0.parquet", 1)
    aborted = dead.begin(1)
    put(aborted.guest(), "part-0.parquet", 2)
    aborted.abort()
    assert [name.split("/")[2].startswith("guest-0-") for name in staged_files(place)] == [True]
    place.sink()
    assert staged_files(place) == []


def test_a_replaced_file_is_noticed_at_prepare(place: Place) -> None:
    """F19."""
    with place.sink() as sink:
        txn = sink.begin(0)
        guest = txn.guest()
        put(guest, "part-0.parquet", 1)
        (one,) = adopted(sink, guest)
        (staged,) = staging(place.path).rglob("*.parquet")
        pq.write_table(pa.table({"id": [7, 8]}), staged)
        txn.add([one])
        with pytest.raises(CorruptError):
            txn.prepare()


def test_the_columns_of_an_epoch_without_rows_are_known(place: Place) -> None:
    with place.sink() as sink, sink.begin(0) as txn:
        txn.add([], columns=COLUMNS)
    assert place.table().schema.names == ["id", "day"]


def test_a_store_that_cannot_move_files_refuses_guests(place: Place) -> None:
    sink = open_sink(ObjectStore(Objects()), place.stamps, "/bucket/t", "w", {"layout": "parquet"})
    with pytest.raises(InvalidRequestError, match="this store cannot move files"):
        sink.begin(0).guest()
