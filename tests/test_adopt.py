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


TIME = pa.timestamp("us")
MISTOLD: list[tuple[str, pa.DataType, pa.Table, str]] = [
    (
        "nanoseconds",
        TIME,
        pa.table({"c": pa.array([1], pa.timestamp("ns"))}),
        "in the data and timestamp[ns",
    ),
    ("milliseconds", TIME, pa.table({"c": pa.array([1], pa.timestamp("ms"))}), "timestamp[ms] in the file"),
    ("a zone", TIME, pa.table({"c": pa.array([1], pa.timestamp("us", "UTC"))}), "timestamp[us, tz=UTC] in the file"),
    ("a narrower type", pa.int64(), pa.table({"c": pa.array([1], pa.int32())}), "is int64 in the data and int32"),
    ("a wider type", pa.int32(), pa.table({"c": pa.array([1], pa.int64())}), "is int32 in the data and int64"),
    ("text", pa.int64(), pa.table({"c": ["a"]}), "is int64 in the data and string"),
    ("half precision", pa.float32(), pa.table({"c": pa.array([1], pa.float16())}), "halffloat in the file"),
    ("no type", pa.null(), pa.table({"c": pa.nulls(1), "id": [1]}), "null in the file"),
    ("nested", pa.list_(TIME), pa.table({"c": pa.array([[1]], pa.list_(pa.timestamp("ms")))}), "timestamp[ms]"),
    ("a field more", pa.struct([("x", pa.int64())]), pa.table({"c": [{"x": 1, "y": 2}]}), "y: int64"),
    ("a field less", pa.struct([("x", pa.int64()), ("y", pa.int64())]), pa.table({"c": [{"x": 1}]}), "'c' is struct"),
    ("a column more", pa.int64(), pa.table({"c": [1], "d": [2]}), "'d' is none of the columns of the data"),
    ("another case", pa.int64(), pa.table({"C": [1]}), "'C' is none of the columns of the data"),
    ("of no table", pa.int64(), pa.table({"c": pa.array([1], pa.time64("us"))}), "time64[us], which Spark cannot read"),
]


@pytest.mark.parametrize(("kind", "table", "found"), [case[1:] for case in MISTOLD], ids=[case[0] for case in MISTOLD])
def test_a_file_that_holds_other_columns_than_was_told_is_refused(
    place: Place, kind: pa.DataType, table: pa.Table, found: str
) -> None:
    place.write(1, {"id": [1]})
    columns = columns_of(pa.schema({"id": pa.int64(), "c": kind}))
    with (  # noqa: PT012 -- the whole transaction is refused
        pytest.raises(InvalidRequestError) as caught,
        place.sink(merge_schema=True) as sink,
        sink.begin(2) as txn,
    ):
        guest = txn.guest()
        put(guest, "part-0.parquet", 1)
        pq.write_table(table, Path(guest.path) / "part-1.parquet")
        txn.add(guest.adopt(columns, sink.log.stamps.new_id))
    assert found in caught.value.found
    assert caught.value.context["column"] in {"c", "d", "C"}
    assert rows_of(place.path) == [1]
    assert place.table().schema.names == ["id"]
    with place.sink():
        assert staged_files(place) == []


def test_a_file_that_holds_a_partition_column_is_refused(place: Place) -> None:
    with place.sink(partition_by=["day"]) as sink, sink.begin(1) as txn:
        guest = txn.guest()
        put(guest, "day=a/part-0.parquet", 1)
        pq.write_table(pa.table({"id": [1], "day": ["b"]}), Path(guest.path) / "day=a/part-1.parquet")
        with pytest.raises(InvalidRequestError, match="'day' is none of the columns"):
            adopted(sink, guest)
        txn.abort()


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()], ids=str)
def test_a_file_of_another_representation_of_the_type_is_taken(place: Place, kind: pa.DataType) -> None:
    with place.sink() as sink, sink.begin(1) as txn:
        guest = txn.guest()
        Path(guest.path).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1], "day": pa.array(["a"]).cast(kind)}), Path(guest.path) / "part-0.parquet")
        txn.add(adopted(sink, guest))
    assert place.table().to_arrow().to_pylist() == [{"id": 1, "day": "a"}]


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
