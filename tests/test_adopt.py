"""Files that another program wrote: what becomes of them, and of what else it left."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from place import Place, kinds, staged_files
from seen import names, rows_of, staging
from txsink.errors import CorruptError, InvalidRequestError
from txsink.paths import escape, partition_directory
from txsink.schema import columns_of, partition_text
from txsink.staging.adopt import Guest
from txsink.staging.epoch_stager import StagedFile
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

COLUMNS = columns_of(pa.schema({"id": pa.int64(), "day": pa.string()}))


def put(guest: Guest, name: str, *ids: int) -> None:
    path = Path(guest.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # pyarrow opens no path that is not UTF-8
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), file)


def adopted(sink: Writer, guest: Guest) -> list[StagedFile]:
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
    ("a column more", pa.int64(), pa.table({"c": [1], "d": [2]}), "'d' is no column in the data"),
    ("another case", pa.int64(), pa.table({"C": [1]}), "'C' is no column in the data"),
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
        with pytest.raises(InvalidRequestError, match="'day' is no column in the data"):
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


# -- values in the names of directories ----------------------------------------------------------------------

ZONED = pa.timestamp("us", "UTC")
at = partial(dt.datetime, tzinfo=None)
# By type: values, as they are in memory.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, 7, -7, 2**63 - 1, -(2**63)],
    pa.int8(): [0, 10, -128],
    pa.uint64(): [0, 100, 2**64 - 1],
    pa.bool_(): [True, False],
    pa.string(): ["a", "A", "0", "x/y", "%41", " a", "ü", "null", "__hive_default_partition__", "a=b", "2026-01-01"],
    pa.float64(): [0.0, -0.0, 1.0, 1.5, 1e16, -1.5e-7, float("nan"), float("inf"), 5e-324, -1.6130484589462314e17],
    pa.float32(): [0.0, 1.5, 1e10, float("-inf"), -5.4929071e13, 1e-45],
    pa.date32(): [dt.date(2026, 1, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    TIME: [at(2026, 1, 31), at(2026, 1, 31, 12, 0, 0, 500_000), at(1, 1, 1)],
    ZONED: [dt.datetime(2026, 1, 31, 12, 0, 0, 1, dt.timezone.utc)],
    pa.decimal128(9, 2): [Decimal("0.00"), Decimal("1.50"), Decimal("-1234567.89")],
    pa.decimal128(20, 10): [Decimal("0E-10"), Decimal("1E-10"), Decimal("1.5000000000")],
}
OTHERWISE: list[Callable[[str], str]] = [
    *(lambda text: f"0{text}", lambda text: f"+{text}", lambda text: f" {text}", lambda text: f"{text} "),
    *(str.upper, str.lower, str.swapcase, str.title, lambda text: f"{text}0", lambda text: f"{text}.0"),
    *(lambda text: text[:-1] or "x", lambda text: text.replace("-", "/"), lambda text: text.replace(" ", "T")),
    *(lambda text: f"{text}Z", lambda text: f"{text}+01:00", lambda text: f"{text}e0", lambda text: f"{text}E0"),
    *(lambda text: "abc", lambda text: "1", lambda text: "0x10", lambda text: "nan", lambda text: "1e3"),
    *(lambda text: "0000-01-01", lambda text: "+10000-01-01", lambda text: "-0", lambda text: "0E-10"),
    *(lambda text: "4.9E-324", lambda text: "-5.4929071E13", lambda text: "-1.61304845894623136E17"),
    *(lambda text: "1.4E-45", lambda text: "1.0E400", lambda text: "1.23456789", lambda text: "\udcff"),
]
# Of the directory's name, once it is escaped.
ESCAPED_OTHERWISE: list[Callable[[str], str]] = [
    *(str.lower, lambda name: name.replace("%2F", "/"), lambda name: name.replace("%2F", "%2f")),
    *(
        lambda name: f"{name[:2]}%{ord(name[2]):02X}{name[3:]}",
        lambda name: f"K{name[1:]}",
        lambda name: f"{name}/{name}",
    ),
    *(lambda name: f"{name}/j=1", lambda name: f"j=1/{name}", lambda name: "", lambda name: f"%6B{name[1:]}"),
]


def directory_of(value: object, kind: pa.DataType) -> str:
    return partition_directory(["k"], partition_text(pa.array([value], kind), "k"))


def adopt_below(place: Place, directory: str, kind: pa.DataType, epoch: int = 1) -> str:
    """An epoch of one row that another program wrote there; the directory it has in the table."""
    with place.sink() as sink, sink.begin(epoch) as txn:
        guest = txn.guest()
        put(guest, f"{directory}/x.parquet".lstrip("/"), epoch)
        staged = guest.adopt(columns_of(pa.schema({"id": pa.int64(), "k": kind})), sink.log.stamps.new_id)
        txn.add(staged)
    return staged[0].file.path.rpartition("/")[0]


def told_of(place: Place) -> list[str]:
    """What the log says, but for who may write it."""
    return [kind for kind in kinds(place) if kind != "claim"]


def made(place: Place, kind: pa.DataType) -> Place:
    place.write(0, pa.table({"id": pa.array([0], pa.int64()), "k": pa.nulls(1, kind)}), partition_by=["k"])
    return place


NO_VALUE: list[tuple[pa.DataType, str, str]] = [
    (pa.int64(), "k=abc", "says 'abc', which no reader takes for int64"),
    (pa.int64(), "k=007", "says '007', which is '7' as int64"),
    (pa.int64(), "k=0x10", "which is '16' as int64"),
    (pa.int64(), "k=-0", "which is '0' as int64"),
    (pa.int64(), "k=__hive_default_partition__", "which no reader takes for int64"),
    (pa.int8(), "k=300", "which no reader takes for int8"),
    (pa.bool_(), "k=True", "which is 'true' as bool"),
    (pa.bool_(), "k=1", "which is 'true' as bool"),
    (pa.float64(), "k=1", "which is '1.0' as double"),
    (pa.float64(), "k=1e3", "which is '1000.0' as double"),
    (pa.float64(), "k=nan", "which is 'NaN' as double"),
    (pa.float64(), "k=1.0E400", "which is 'Infinity' as double"),
    (pa.float32(), "k=1.23456789", "which is '1.2345679' as float"),
    (pa.date32(), "k=2026-1-1", "which no reader takes for date32"),
    (pa.date32(), "k=0000-01-01", "which no reader takes for date32"),
    (pa.date32(), "k=+10000-01-01", "which no reader takes for date32"),
    (TIME, "k=2026-01-01", "which is '2026-01-01 00:00:00' as timestamp"),
    (TIME, "k=2026-01-01T00%3A00%3A00", "which is '2026-01-01 00:00:00' as timestamp"),
    (ZONED, "k=2026-01-01 00%3A00%3A00Z", "which no reader takes for timestamp"),
    (pa.decimal128(5, 2), "k=1.5", "which is '1.50' as decimal"),
    (pa.decimal128(5, 2), "k=1.505", "which no reader takes for decimal"),
    (pa.string(), "k=\udcff", "which no reader takes for string"),
    (pa.string(), "k=%41", "it lies in a directory that no table has"),
    (pa.string(), "k=%2f", "it lies in a directory that no table has"),
    (pa.string(), "", "its directory is '', and the table is partitioned by ['k']"),
    (pa.string(), "K=a", "its directory is 'K=a', and the table is partitioned by ['k']"),
    (pa.string(), "k=a/k=b", "its directory is 'k=a/k=b', and the table is partitioned by ['k']"),
    (pa.string(), "k=a/j=b", "its directory is 'k=a/j=b', and the table is partitioned by ['k']"),
]


@pytest.mark.parametrize(("kind", "directory", "found"), NO_VALUE, ids=[f"{one[0]} {one[1]!r}" for one in NO_VALUE])
def test_a_directory_that_is_no_value_as_txsink_spells_it_is_refused_before_anything_is_recorded(
    place: Place, kind: pa.DataType, directory: str, found: str
) -> None:
    made(place, kind)
    before = told_of(place)
    with pytest.raises(InvalidRequestError) as caught:
        adopt_below(place, directory, kind)
    assert found in caught.value.found
    str(caught.value).encode()
    assert told_of(place) == before
    assert place.table().to_arrow().to_pylist() == [{"id": 0, "k": None}]
    with place.sink():
        assert staged_files(place) == []


def test_the_directory_that_a_refusal_names_is_taken(place: Place) -> None:
    made(place, pa.float64())
    with pytest.raises(InvalidRequestError, match=r"Name it 'k=1000\.0'; nothing was published"):
        adopt_below(place, "k=1e3", pa.float64())
    adopt_below(place, "k=1000.0", pa.float64())
    assert rows_of(place.path) == [0, 1]


# What Spark wrote on Java 17, and, of decimals, without ANSI: the same values.
BY_JAVA = [
    (pa.float64(), "4.9E-324", 5e-324),
    (pa.float64(), "-1.61304845894623136E17", -1.6130484589462314e17),
    (pa.float32(), "-5.4929071E13", -54929070751744.0),
    (pa.float32(), "1.4E-45", 1.401298464324817e-45),
    (pa.decimal128(20, 10), "0E-10", Decimal(0)),
    (pa.decimal128(20, 10), "1E-10", Decimal("1E-10")),
]


@pytest.mark.parametrize(("kind", "text", "value"), BY_JAVA, ids=[one[1] for one in BY_JAVA])
def test_a_number_as_java_spells_it_has_the_directory_that_it_has_in_the_table(
    place: Place, kind: pa.DataType, text: str, value: object
) -> None:
    """An overwrite of the partition replaces both, which goes by the directory."""
    made(place, kind)
    assert f"k={text}" != directory_of(value, kind) == adopt_below(place, f"k={text}", kind)
    later = pa.table({"id": [2], "k": pa.array([value], kind)})
    place.write(2, later, mode="overwrite", partition_overwrite="dynamic")
    found = place.table().to_arrow().select(["id", "k"]).sort_by("id").to_pylist()
    assert found == [{"id": 0, "k": None}, {"id": 2, "k": value}]


SEEDS = int(os.environ.get("TXSINK_ADOPT_SEEDS", "20"))


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_whatever_a_directory_says_it_is_the_value_that_the_table_has_or_refused(
    place: Place, kind: pa.DataType
) -> None:
    """Drawn: names as txsink spells them, which are taken, and others."""
    made(place, kind)
    told: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        chance = random.Random(f"{kind} {seed}")
        value = chance.choice(VALUES[kind])
        directory = own = directory_of(value, kind)
        for _ in range(chance.choice([0, 1, 1, 1, 2])):
            if chance.random() < 0.7:
                text = partition_text(pa.array([value], kind), "k")[0] or ""
                directory = f"k={escape(chance.choice(OTHERWISE)(text))}"
            else:
                directory = chance.choice(ESCAPED_OTHERWISE)(directory)
        before = told_of(place), place.table().to_arrow().num_rows
        try:
            lies = adopt_below(place, directory, kind, seed)
        except InvalidRequestError:
            assert directory != own, directory
            assert (told_of(place), place.table().to_arrow().num_rows) == before, directory
            told["refused"] += 1
            continue
        (row,) = [one for one in place.table().to_arrow().to_pylist() if one["id"] == seed]
        assert directory_of(row["k"], kind) == lies, directory
        if directory == own:
            assert str(row["k"]) == str(pa.array([value], kind)[0].as_py())
        else:
            assert lies == directory or pa.types.is_floating(kind) or pa.types.is_decimal(kind), directory
        told["taken"] += 1
    assert place.table().verify(deep=True) == []
    assert min(told["taken"], told["refused"]) > SEEDS // 10, told


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems have no names but UTF-8")
def test_a_directory_whose_name_is_not_utf_8_is_refused_in_words_that_can_be_printed(place: Place) -> None:
    made(place, pa.string())
    with pytest.raises(InvalidRequestError) as caught:
        adopt_below(place, "k=\udcff", pa.string())
    assert "\\udcff" in caught.value.found
    str(caught.value).encode()


def test_columns_that_leave_out_that_of_a_directory_are_refused(place: Place) -> None:
    with place.sink(partition_by=["day"]) as sink, sink.begin(0) as txn:
        guest = txn.guest()
        put(guest, "day=a/x.parquet", 1)
        with pytest.raises(
            InvalidRequestError, match=r"partition column 'day' was not named.*Name the columns of the dir"
        ):
            guest.adopt(columns_of(pa.schema({"id": pa.int64()})), sink.log.stamps.new_id)
        txn.add(adopted(sink, guest))
    assert rows_of(place.path) == [1]


def test_a_type_that_no_directory_tells_is_refused(place: Place) -> None:
    with place.sink(partition_by=["day"]) as sink:
        guest = sink.begin(0).guest()
        put(guest, "day=a/x.parquet", 1)
        columns = columns_of(pa.schema({"id": pa.int64(), "day": pa.binary()}))
        with pytest.raises(InvalidRequestError, match="'day' cannot be a partition column: a value of type binary"):
            guest.adopt(columns, sink.log.stamps.new_id)


# -- tables for Arrow alone ----------------------------------------------------------------------------------

NANO = pa.timestamp("ns")


def adopt_column(place: Place, types: str, told: pa.DataType, file: pa.Table, **options: Any) -> None:
    with place.sink(types=types) as sink, sink.begin(1) as txn:
        guest = txn.guest()
        Path(guest.path).mkdir(parents=True)
        pq.write_table(file, Path(guest.path) / "x.parquet", **options)
        columns = columns_of(pa.schema({"c": told}), "arrow")
        txn.add(guest.adopt(columns, sink.log.stamps.new_id))


@pytest.mark.parametrize(
    "kind",
    [NANO, pa.timestamp("ns", "UTC"), pa.float16(), pa.time64("ns"), pa.list_(NANO), pa.timestamp("us")],
    ids=str,
)
def test_a_table_for_arrow_takes_files_with_types_of_arrow(place: Place, kind: pa.DataType) -> None:
    file = pa.table({"c": pa.nulls(1, kind)})
    adopt_column(place, "arrow", kind, file)
    assert place.table().schema.field("c").type == kind
    assert place.table().to_arrow().equals(file)
    assert place.table().verify(deep=True) == []


MISTYPED: list[tuple[str, pa.DataType, pa.DataType, str]] = [
    ("spark", NANO, NANO, "is timestamp[ns], and a table of types='spark' keeps timestamp[us] of it"),
    ("spark", pa.float16(), pa.float16(), "is halffloat, and a table of types='spark' keeps float of it"),
    ("arrow", TIME, NANO, "is timestamp[us] in the data and timestamp[ns] in the file"),
    ("arrow", NANO, TIME, "is timestamp[ns] in the data and timestamp[us] in the file"),
    ("arrow", TIME, pa.timestamp("ms"), "is timestamp[us] in the data and timestamp[ms] in the file"),
    ("arrow", pa.null(), pa.null(), "is null in the file, which has no such type"),
]


@pytest.mark.parametrize("case", MISTYPED, ids=lambda case: f"{case[0]}, {case[1]}, {case[2]}")
def test_a_refusal_of_a_type_names_two_types_or_says_what_the_table_keeps(
    place: Place, case: tuple[str, pa.DataType, pa.DataType, str]
) -> None:
    types, told, given, found = case
    with pytest.raises(InvalidRequestError) as caught:
        adopt_column(place, types, told, pa.table({"c": pa.nulls(1, given)}))
    assert caught.value.found == f"column 'c' {found}"
    assert told_of(place) == ["create"]
    if "keeps" in found:  # the advice is followed
        assert "in the data and in its files" in caught.value.advice
        kept = TIME if told == NANO else pa.float32()
        adopt_column(place, types, kept, pa.table({"c": pa.nulls(1, kept)}))
        assert place.table().schema.field("c").type == kept


def test_columns_without_rows_are_of_types_that_the_table_keeps(place: Place) -> None:
    columns = columns_of(pa.schema({"c": NANO}), "arrow")
    with place.sink() as sink, sink.begin(0) as txn:
        with pytest.raises(InvalidRequestError, match=r"'c' is timestamp\[ns\], and a table of types='spark' keeps"):
            txn.add([], columns=columns)
        txn.abort()
    place = Place(place.path.with_name("arrow"))
    with place.sink(types="arrow") as sink, sink.begin(0) as txn:
        txn.add([], columns=columns)
    assert place.table().schema.field("c").type == NANO


def test_timestamps_in_the_old_form_of_spark_are_refused_by_that_name(place: Place) -> None:
    """Readers do not agree in their unit."""
    with pytest.raises(InvalidRequestError, match=r"'c' is timestamp\[ns\] in the data and INT96 in the file"):
        adopt_column(place, "arrow", NANO, pa.table({"c": pa.nulls(1, NANO)}), use_deprecated_int96_timestamps=True)
    assert told_of(place) == ["create"]


def test_a_store_that_cannot_move_files_refuses_guests(place: Place) -> None:
    sink = open_sink(ObjectStore(Objects()), place.stamps, "/bucket/t", "w", {"layout": "parquet"})
    with pytest.raises(InvalidRequestError, match="this store cannot move files"):
        sink.begin(0).guest()
