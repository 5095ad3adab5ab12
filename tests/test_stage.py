"""Rows become staged files: whole, bounded, in their partitions, readable by others."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from txsink import paths
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError, UnavailableError
from txsink.schema import columns_of, partition_values, schema_of
from txsink.staging.buffer import pieces
from txsink.staging.conform import require_sound
from txsink.staging.epoch_stager import EpochStager, StagedFile, StageOptions, verify
from txsink.staging.parquet import ParquetOutput
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Output

TABLE = pa.table({"id": [1, 2, 3, 4], "kind": ["a", "b", "a", None]})
# Every character Spark escapes, and some it must not.
ESCAPED = [*map(chr, range(1, 32)), *"\"#%'*/:=?\\{[]^", "\x7f"]
AWKWARD = [
    *(f"x{char}y" for char in ESCAPED),
    *(
        "..",
        ".",
        "../../x",
        "a/b/c",
        "/etc",
        "hello world",
        " ",
        "%2F",
        "a=b",
        "ü",
        "日本語",
        "😀",
        "a|b",
        "a+b",
        "~",
        "NULL",
    ),
]


class Stage:
    """A staging root, and stagers with ids in order."""

    def __init__(self, root: Path, store: LocalStore | None = None) -> None:
        self.root = root
        self.store = store or LocalStore()
        self.ids = (f"{number:08x}" for number in itertools.count())

    def stager(self, **changes: Any) -> EpochStager:
        given: dict[str, Any] = {
            "writer": "nightly",
            "run": "9f2c",
            "epoch": 7,
            "partition_columns": (),
            "columns": (),
            "merge_schema": False,
            "options": StageOptions(**{name: changes.pop(name) for name in list(changes) if name in OPTIONS}),
            "new_id": lambda: next(self.ids),
        }
        given |= changes
        return EpochStager(self.store, f"{self.root}/{paths.run_directory(given['writer'], given['run'])}", **given)

    def stage(self, *data: object, **changes: Any) -> list[StagedFile]:
        stager = self.stager(**changes)
        for each in data:
            stager.write(each)
        return stager.finish()

    @property
    def files(self) -> list[str]:
        return self.store.list(str(self.root))

    def path(self, one: StagedFile) -> Path:
        return self.root / paths.run_directory(one.writer, one.run) / one.file.path

    def read(self, staged: list[StagedFile]) -> pa.Table:
        """What the files hold, with the partition columns, as the table's readers see it."""
        tables = []
        for one in staged:
            table, target = pq.ParquetFile(self.path(one)).read(), schema_of(one.columns)
            for name, text in one.file.partition.items():
                kind = target.field(name).type
                table = table.append_column(name, partition_values([text] * table.num_rows, kind))
            tables.append(table.select([name for name in target.names if name in table.column_names]))
        return pa.concat_tables(tables, promote_options="default")


OPTIONS = StageOptions.__struct_fields__


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "staging")


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


# -- files and records ---------------------------------------------------------------------------------


def test_a_staged_file_is_as_recorded_under_its_staged_name(stage: Stage) -> None:
    (one,) = stage.stage(TABLE, part="p3")
    assert stage.files == ["nightly/9f2c/part-7-0-00000000.parquet"]
    assert (one.writer, one.run, one.epoch, one.part) == ("nightly", "9f2c", 7, "p3")
    assert one.columns == columns_of(TABLE.schema)
    assert one.file.rows == 4
    assert one.file.partition == {}
    assert verify(stage.store, str(stage.path(one)), one.file, one.stamp) is None
    assert verify(stage.store, str(stage.path(one)), one.file, one.stamp, deep=True) is None
    assert pq.read_table(stage.path(one)).equals(TABLE)


def test_a_file_touched_after_it_was_sealed_is_read_again(stage: Stage) -> None:
    """F19."""
    (one,) = stage.stage({"x": list(range(100_000))})
    path = stage.path(one)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert "damaged pages" in (verify(stage.store, str(path), one.file, one.stamp) or "")


def test_the_bytes_are_durable_when_finish_returns(stage: Stage) -> None:
    synced: list[int] = []

    class Watch:
        def __getattr__(self, name: str) -> Any:
            if name == "fsync":
                return self.sync
            return getattr(os, name)

        def sync(self, handle: int) -> None:
            synced.append(os.fstat(handle).st_size)
            os.fsync(handle)

    watched = Stage(stage.root, LocalStore(Watch()))  # type: ignore[arg-type]
    staged = watched.stage(TABLE, partition_columns=("kind",))
    assert sorted(synced) == sorted(one.file.bytes for one in staged)


def test_no_rows_make_no_file_but_their_columns_are_known(stage: Stage) -> None:
    stager = stage.stager()
    assert stager.columns == ()
    assert stager.write(TABLE.slice(0, 0)) == 0
    assert stager.write(pa.RecordBatchReader.from_batches(TABLE.schema, [])) == 0
    assert stager.write([]) == 0
    assert stager.finish() == []
    assert stager.columns == columns_of(TABLE.schema)
    assert stage.files == []


def test_write_says_how_many_rows_it_took(stage: Stage) -> None:
    stager = stage.stager()
    assert stager.write(TABLE) == 4
    assert stager.write([{"id": 5, "kind": "c"}]) == 1
    assert stager.write(iter([TABLE, TABLE.to_batches()[0]])) == 8
    assert sum(one.file.rows for one in stager.finish()) == 13


def test_records_survive_json_and_are_checked_when_they_come_back(stage: Stage) -> None:
    staged = stage.stage(TABLE, partition_columns=("kind",), part="a")
    assert [StagedFile.from_dict(json.loads(json.dumps(one.to_dict()))) for one in staged] == staged
    good = staged[0].to_dict()
    for change in (
        {"writer": ""},
        {"run": "x\x00"},
        {"epoch": -1},
        {"epoch": True},
        {"epoch": 2**63},
        {"extra": 1},
        {"stamp": "x" * 256},
        {"columns": [{"name": "a"}]},
        {"file": good["file"] | {"path": "../part-7-0-00000000.parquet"}},
        {"file": good["file"] | {"path": "/part-7-0-00000000.parquet"}},
        {"file": good["file"] | {"bytes": -1}},
        {"file": good["file"] | {"partition": {"kind": "other"}}},
    ):
        with pytest.raises(InvalidRequestError, match="read the record of a staged file"):
            StagedFile.from_dict({**good, **change})
    nothing: list[Any] = [{}, [], None, "x"]
    for record in nothing:
        with pytest.raises(InvalidRequestError):
            StagedFile.from_dict(record)


@pytest.mark.parametrize(
    "changes",
    [{"epoch": -1}, {"epoch": 2**63}, {"epoch": 1.0}, {"epoch": True}, {"writer": ""}, {"run": "a\x00"}],
    ids=str,
)
def test_a_wrong_name_or_epoch_is_refused(stage: Stage, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        stage.stager(**changes)


@pytest.mark.parametrize("writer", ["..", ".", "../../x", "a/b", "x" * 250, "ü", "CON"])
def test_a_writers_name_is_only_a_name(stage: Stage, writer: str) -> None:
    (one,) = stage.stage(TABLE, writer=writer, run="..")
    parsed = paths.parse_staged(stage.files[0])
    assert parsed == paths.StagedName(writer, "..", 7, one.file.path)


# -- sizes and memory ----------------------------------------------------------------------------------


def groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@pytest.mark.parametrize("rows", [1, 9, 10, 11, 25, 1000])
@pytest.mark.parametrize("batch", [1, 3, 10, 1000])
def test_small_batches_make_full_row_groups(stage: Stage, rows: int, batch: int) -> None:
    table = pa.table({"id": range(rows)})
    (one,) = stage.stage(table.to_reader(batch), row_group_rows=10)
    assert groups(stage.path(one)) == [10] * (rows // 10) + [rows % 10] * (rows % 10 > 0)
    assert pq.read_table(stage.path(one)).equals(table)


def test_wide_rows_make_row_groups_of_bounded_bytes(stage: Stage) -> None:
    rows = [{"id": number, "text": "x" * 1000} for number in range(1000)]
    (one,) = stage.stage(iter(rows), row_group_bytes=100_000)
    assert max(groups(stage.path(one))) <= 100
    assert stage.read([one]).to_pylist() == rows


def test_many_tiny_tables_are_kept_in_few_pieces(stage: Stage) -> None:
    stager = stage.stager()
    for number in range(2000):
        stager.write(pa.table({"id": [number]}))
    assert sum(table.column(0).num_chunks for table in stager._waiting.tables) <= 2000 // 256 + 257
    (one,) = stager.finish()
    assert stage.read([one])["id"].to_pylist() == list(range(2000))


def test_files_end_near_their_target_size(stage: Stage) -> None:
    numbers = np.random.default_rng(3).random(1_000_000)
    staged = stage.stage(pa.table({"x": numbers}), target_file_bytes=1 << 20)
    sizes = [one.file.bytes for one in staged]
    assert len(sizes) >= 7
    assert all(0.5 < size / (1 << 20) < 1.6 for size in sizes[:-1])
    assert np.array_equal(np.concatenate([pq.read_table(stage.path(one))["x"].to_numpy() for one in staged]), numbers)


def test_of_one_large_table_only_what_waits_for_a_row_group_is_copied(stage: Stage) -> None:
    """What waits must be a copy: numpy may have lent the table its memory."""
    table = pa.table({"id": np.arange(1_500_000)})
    stager = stage.stager()
    before = pa.total_allocated_bytes()
    stager.write(table)
    assert pa.total_allocated_bytes() - before < 8 * (1_500_000 - (1 << 20)) + table.nbytes / 4
    assert groups(stage.path(stager.finish()[0])) == [1 << 20, 1_500_000 - (1 << 20)]


def test_a_table_far_larger_than_the_buffer_is_taken_in_pieces(stage: Stage) -> None:
    table = pa.table({"id": range(50_000), "key": [number % 7 for number in range(50_000)]})
    staged = stage.stage(table, partition_columns=("key",), row_group_bytes=20_000)
    assert rows_of(stage.read(staged)) == rows_of(table)


def test_a_shared_dictionary_larger_than_the_buffer_is_no_hindrance(stage: Stage) -> None:
    words = pa.array([f"{number:0100}" for number in range(2000)])
    table = pa.table({"w": pa.DictionaryArray.from_arrays(pa.array([5, 6, None] * 1000, pa.int32()), words)})
    assert len(list(pieces(table, 50_000))) == 1
    staged = stage.stage(table, row_group_bytes=50_000)
    assert [text and int(text) for text in stage.read(staged)["w"].to_pylist()] == [5, 6, None] * 1000


def test_memory_that_changes_after_write_does_not_change_the_rows(stage: Stage) -> None:
    for partition_columns in ((), ("key",)):
        values = np.arange(1000)
        frame = pd.DataFrame({"x": values, "key": 1}, copy=False)
        stager = stage.stager(partition_columns=partition_columns, row_group_rows=300)
        stager.write({"x": values, "key": np.ones(1000, dtype=np.int64)})
        stager.write(frame)
        values[:] = -1
        assert sorted(stage.read(stager.finish())["x"].to_pylist()) == sorted([*range(1000)] * 2)


# -- columns -------------------------------------------------------------------------------------------


def test_a_new_column_needs_merge_schema_also_within_an_epoch(stage: Stage) -> None:
    stager = stage.stager()
    stager.write({"a": [1]})
    with pytest.raises(InvalidRequestError, match=r"the table has no column 'b'.*merge_schema=True"):
        stager.write({"a": [2], "b": ["x"]})
    stager.write({"a": [3]})  # a refused call took nothing, so the next one may go on
    assert stage.read(stager.finish()).to_pydict() == {"a": [1, 3]}


def test_columns_may_come_and_go_with_merge_schema(stage: Stage) -> None:
    tables = [{"a": [1]}, {"b": ["x"]}, {"c": [1.5], "a": [2]}, {"a": [3]}]
    for options in ({}, {"row_group_rows": 1}):
        stager = stage.stager(merge_schema=True, **options)
        for table in tables:
            stager.write(table)
        assert [column.name for column in stager.columns] == ["a", "b", "c"]
        found = stage.read(stager.finish()).to_pylist()
        assert sorted(map(repr, found)) == sorted(
            map(
                repr,
                [
                    {"a": 1, "b": None, "c": None},
                    {"a": None, "b": "x", "c": None},
                    {"a": 2, "b": None, "c": 1.5},
                    {"a": 3, "b": None, "c": None},
                ],
            )
        )


def test_the_tables_columns_and_order_rule(stage: Stage) -> None:
    known = columns_of(pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int8())]))
    (one,) = stage.stage({"b": ["x"], "a": [1]}, columns=known)
    assert one.columns == known
    assert pq.read_table(stage.path(one)).to_pylist() == [{"a": 1, "b": "x", "c": None}]
    with pytest.raises(InvalidRequestError, match="column 'a' is int64 in the table and string in the data"):
        stage.stage(pa.table({"a": ["x"]}), columns=known)


def test_a_column_of_nulls_stands_in_no_file_until_it_has_a_type(stage: Stage) -> None:
    stager = stage.stager(row_group_rows=2)
    stager.write({"a": [1, 2], "b": [None, None]})
    stager.write({"a": [3], "b": [None]})
    stager.write({"a": [4], "b": ["x"]})
    staged = stager.finish()
    assert [pq.read_schema(stage.path(one)).names for one in staged] == [["a"], ["a", "b"]]
    assert [column.type for column in staged[0].columns] == ["int64", "string"]
    assert stage.read(staged).to_pydict() == {"a": [1, 2, 3, 4], "b": [None, None, None, "x"]}


@pytest.mark.parametrize("data", [{"a": [None, None]}, TABLE.select([]), {"a": pa.array([None]), "kind": ["x"]}])
def test_rows_that_no_file_could_hold_are_refused(stage: Stage, data: Any) -> None:
    """Spark reads a column without a type as integers, and a file without a column cannot be."""
    stager = stage.stager(partition_columns=("kind",) if isinstance(data, dict) and "kind" in data else ())
    with pytest.raises(InvalidRequestError, match=r"column 'a' has no type yet|4 rows without a column"):
        stager.write(data)
    assert stager.write({"a": [1], "kind": ["x"]}) == 1
    assert [one.file.rows for one in stager.finish()] == [1]


NO_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pa.py_buffer(b"\xff\xfe")]
)
COUNTS = pa.map_(pa.string(), pa.int64())
REPEATED = [[("a", 1)], [], None, [("b", 1), ("a", 2), ("b", None)]]
POINT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int8()))])


def twice(kind: pa.DataType, one: Any, other: Any) -> pa.Array[Any]:
    """Maps, one of which has these two keys."""
    return pa.array([[(one, 1)], None, [(one, 1), (other, 2)]], pa.map_(kind, pa.int8()))


UNSOUND: list[tuple[pa.Array[Any], str]] = [
    (NO_TEXT, "text that is not UTF-8"),
    (NO_TEXT.cast(pa.large_string(), safe=False), "text that is not UTF-8"),
    (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NO_TEXT), "text that is not UTF-8"),
    (pa.array(REPEATED, COUNTS), "a map with the key 'b' twice"),
    (pa.array(REPEATED, COUNTS).slice(2), "a map with the key 'b' twice"),
    (pa.array([REPEATED], pa.list_(COUNTS)), "a map with the key 'b' twice"),
    (pa.array([{"m": one} for one in REPEATED], pa.struct([("m", COUNTS)])), "a map with the key 'b' twice"),
    (pa.array([[(1, REPEATED[3])]], pa.map_(pa.int8(), COUNTS)), "a map with the key 'b' twice"),
    (twice(pa.float64(), 0.0, -0.0), "a map with the key 0.0 twice"),
    (twice(pa.float32(), float("nan"), float("nan")), "a map with the key nan twice"),
    (twice(pa.timestamp("us"), -(2**62), -(2**62)), f"a map with the key {-(2**62)} twice"),
    (twice(pa.date32(), 2**30, 2**30), f"a map with the key {2**30} twice"),
    (twice(POINT, {"x": 0.0, "y": [1]}, {"x": -0.0, "y": [1]}), """a map with the key "{'x': 0.0, 'y': [1]}" twice"""),
    (twice(POINT, {"x": None, "y": None}, {"x": None, "y": None}), "a map with the key "),
    (twice(COUNTS, [("a", 1)], [("a", 1)]), "a map with the key "),
]
ONCE = [
    twice(pa.float64(), 1.0, -1.0),
    twice(POINT, {"x": 0.0, "y": [1]}, {"x": 0.0, "y": [2]}),
    twice(POINT, {"x": None, "y": []}, {"x": 0.0, "y": None}),
    twice(pa.list_(pa.time64("ns")), [1], [2]),
    twice(pa.list_(pa.date32()), [2**30], [2**30 - 1]),
]


@pytest.mark.parametrize(("array", "found"), UNSOUND, ids=lambda value: str(getattr(value, "type", "")))
def test_what_arrow_can_hold_and_readers_cannot_is_refused(stage: Stage, array: pa.Array[Any], found: str) -> None:
    stager = stage.stager()
    with pytest.raises(InvalidRequestError) as caught:
        stager.write(pa.table({"c": array}))
    assert f"column 'c' holds {found}" in caught.value.found
    assert caught.value.context["type"] == str(array.type).replace("large_string", "string")
    assert stager.finish() == []


@pytest.mark.parametrize("array", ONCE, ids=lambda value: str(value.type))
def test_keys_that_only_look_alike_are_two_keys(array: pa.Array[Any]) -> None:
    require_sound(pa.table({"c": array}), "write rows")


def test_a_key_may_stand_in_many_maps(stage: Stage) -> None:
    given = pa.table({"c": pa.array([[("a", 1)], [("a", 1), ("b", 1)], None, [("b", 1)]], COUNTS)})
    for table in (given, given.slice(1), given.slice(2)):
        assert stage.read(stage.stage(table)).to_pydict() == table.to_pydict()


def test_declared_non_null_with_nulls_is_readable(stage: Stage) -> None:
    """S17."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=schema)
    (one,) = stage.stage(batch)
    assert pq.read_table(stage.path(one)).to_pydict() == {"a": [1, None]}


def test_nanoseconds_that_do_not_fit_are_refused_and_nothing_is_taken(stage: Stage) -> None:
    stager = stage.stager(merge_schema=True)
    with pytest.raises(InvalidRequestError, match="column 'when' does not fit timestamp"):
        stager.write({"when": pa.array([1], pa.timestamp("ns"))})
    assert stager.columns == ()
    stager.write({"id": [1]})
    assert [column.name for column in stager.finish()[0].columns] == ["id"]


@pytest.mark.parametrize(
    ("data", "partition_columns", "found"),
    [
        (pa.table([[1], [2]], names=["Day", "day"]), (), "same name but for case"),
        ({"a": [1]}, ("day",), "no such column"),
        ({"Day": ["x"], "a": [1]}, ("day",), "Did you mean 'Day'"),
        ({"day": ["x"]}, ("day",), "every column"),
        ({"_day": ["x"], "a": [1]}, ("_day",), "readers hide"),
        ({".day": ["x"], "a": [1]}, (".day",), "readers hide"),
        ({"day": [b"x"], "a": [1]}, ("day",), "no text form"),
        ({"day": ["x\x00"], "a": [1]}, ("day",), "NUL"),
        ({"day": ["x" * 300], "a": [1]}, ("day",), "304 bytes"),
        ({"day": ["__HIVE_DEFAULT_PARTITION__"], "a": [1]}, ("day",), "stands for null"),
        (pa.table({"took": pa.array([1], pa.duration("s"))}), (), "'took' is of type duration"),
        (7, (), "int is no tabular data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_call_is_refused_before_any_row_is_taken(
    stage: Stage, data: object, partition_columns: tuple[str, ...], found: str
) -> None:
    stager = stage.stager(partition_columns=partition_columns)
    with pytest.raises(InvalidRequestError) as caught:
        stager.write(data)
    assert found in str(caught.value)
    assert caught.value.attempted == "stage epoch 7 of 'nightly'"
    right = {(*partition_columns, "day")[0]: ["x"], "a": [1]}
    if found != "readers hide":  # that partition column is wrong whatever the data
        stager.write(right)
        assert [one.file.rows for one in stager.finish()] == [1]


def test_a_wrong_value_among_later_rows_is_refused_before_its_row_is_taken(stage: Stage) -> None:
    stager = stage.stager(partition_columns=("day",))
    stager.write({"day": ["x", "y"], "a": [1, 2]})
    with pytest.raises(InvalidRequestError, match="NUL"):
        stager.write({"day": ["x", "y\x00"], "a": [3, 4]})
    stager.write({"day": ["x"], "a": [5]})
    assert sorted(stage.read(stager.finish())["a"].to_pylist()) == [1, 2, 5]


def test_a_partition_column_may_get_its_type_later(stage: Stage) -> None:
    staged = stage.stage({"day": [None], "a": [1]}, {"day": ["x"], "a": [2]}, partition_columns=("day",))
    assert stage.read(staged).sort_by("a").to_pydict() == {"day": [None, "x"], "a": [1, 2]}


def test_a_known_partition_column_that_the_data_lacks_is_refused(stage: Stage) -> None:
    known = columns_of(pa.schema([("day", pa.string()), ("a", pa.int64())]))
    with pytest.raises(InvalidRequestError, match="'day' cannot be a partition column: the data has no such column"):
        stage.stage({"a": [1]}, columns=known, partition_columns=("day",))


# -- partitions ----------------------------------------------------------------------------------------


def test_rows_lie_in_their_partitions_and_keep_their_order(stage: Stage) -> None:
    table = pa.table({"id": range(1000), "k": [number % 7 for number in range(1000)], "s": ["x", "y"] * 500})
    staged = stage.stage(table.to_reader(64), partition_columns=("s", "k"))
    assert [one.file.path for one in staged] == sorted(one.file.path for one in staged)
    assert len(staged) == 14
    for one in staged:
        found = pq.ParquetFile(stage.path(one)).read()
        assert found.column_names == ["id"]
        mine = [row["id"] for row in table.to_pylist() if {"s": row["s"], "k": str(row["k"])} == one.file.partition]
        assert found["id"].to_pylist() == mine


def test_partition_columns_are_columns_of_the_table(stage: Stage) -> None:
    (one, *_) = stage.stage(TABLE, partition_columns=("kind",))
    assert [column.name for column in one.columns] == ["id", "kind"]


PARTITION_TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-1, 0, None]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float64(), [1.0, 1e300, -0.0, 0.0, None]),
    (pa.date32(), [dt.date(2026, 1, 31), None]),
    (pa.timestamp("us"), [dt.datetime(2026, 1, 31, 1, 2, 3, 40), None]),  # noqa: DTZ001 -- without a zone
    (pa.timestamp("ns", "Europe/Berlin"), [dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc), None]),
    (pa.decimal128(10, 2), [None, 1]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b"]),
    (pa.string_view(), ["a", None, "b" * 40]),
    (pa.null(), [None]),
]


@pytest.mark.parametrize(("kind", "values"), PARTITION_TYPES, ids=str)
def test_each_type_of_partition_value_comes_back(stage: Stage, kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"id": range(len(values) * 3), "k": pa.array(values * 3, kind)})
    for data in (table, table.to_reader(2)):
        staged = stage.stage(data, partition_columns=("k",))
        assert len(staged) == len(values)
        found = sorted(stage.read(staged).to_pylist(), key=lambda row: row["id"])
        expected = pa.array(values * 3, schema_of(staged[0].columns).field("k").type).to_pylist()
        assert [repr(row["k"]) for row in found] == [repr(value) for value in expected]


def test_null_has_a_partition_and_empty_text_is_refused_because_readers_take_it_for_null(stage: Stage) -> None:
    stager = stage.stager(partition_columns=("k",))
    stager.write({"id": [1], "k": pa.array([None], pa.string())})
    with pytest.raises(InvalidRequestError, match="'k' is empty, which every reader takes for null"):
        stager.write({"id": [2, 3], "k": ["a", ""]})
    staged = stager.finish()
    assert [one.file.path.partition("/")[0] for one in staged] == ["k=__HIVE_DEFAULT_PARTITION__"]
    assert sum(one.file.rows for one in staged) == 1


def awkward(stage: Stage) -> tuple[Path, list[tuple[int, str | None]]]:
    values = [*AWKWARD, None]
    stage.stage({"id": list(range(len(values))), "k": values}, partition_columns=("k",))
    root = stage.root / paths.run_directory("nightly", "9f2c")
    return root, [(number, value) for number, value in enumerate(values)]


def test_pyarrow_reads_awkward_values_back(stage: Stage) -> None:
    """S3."""
    root, expected = awkward(stage)
    hive = ds.partitioning(pa.schema([("k", pa.string())]), flavor="hive")
    found = ds.dataset(root, partitioning=hive).to_table(columns=["id", "k"]).to_pydict()
    assert sorted(zip(found["id"], found["k"], strict=True)) == expected


def test_duckdb_reads_awkward_values_back(stage: Stage) -> None:
    """S3."""
    root, expected = awkward(stage)
    options = "hive_partitioning = true, hive_types = {'k': VARCHAR}"
    query = f"SELECT id, k FROM read_parquet('{root}/**/*.parquet', {options})"
    if duckdb.__version__.startswith("1."):  # it took the four letters NULL for a null
        expected = [(number, None if value == "NULL" else value) for number, value in expected]
    assert sorted(duckdb.sql(query).fetchall()) == expected


def test_polars_reads_awkward_values_back(stage: Stage) -> None:
    """S3."""
    root, expected = awkward(stage)
    found = pl.read_parquet(root, hive_partitioning=True, hive_schema={"k": pl.String}).select("id", "k")
    assert sorted(found.rows()) == expected


@settings(max_examples=30)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.text(min_size=1, max_size=20))
def test_no_value_and_no_column_name_leaves_the_staging_root(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], column: str
) -> None:
    stage = Stage(tmp_path_factory.mktemp("traversal") / "staging")
    stager = stage.stager(partition_columns=(column,))
    try:
        stager.write({"id!": list(range(len(values))), column: values})
        staged = stager.finish()
    except InvalidRequestError:
        assert stage.files == []
        return
    assert len(list(stage.root.parent.iterdir())) == 1
    assert stage.files == [str(stage.path(one).relative_to(stage.root)) for one in staged]
    assert all(paths.parse_staged(path) for path in stage.files)
    assert sorted(stage.read(staged)[column].to_pylist(), key=str) == sorted(
        (value or None for value in values), key=str
    )


def test_open_files_are_bounded(stage: Stage) -> None:
    open_files: list[int] = []
    stager = stage.stager(partition_columns=("k",), open_partitions_max=3, row_group_bytes=1000)
    for start in range(20):
        stager.write(pa.table({"id": range(100), "k": [(start * number) % 10 for number in range(100)]}))
        open_files.append(len(stager._open))
    assert max(open_files) == 3
    staged = stager.finish()
    assert sum(one.file.rows for one in staged) == 2000
    assert not stager._open


def test_the_file_used_last_stays_open(stage: Stage) -> None:
    stager = stage.stager(partition_columns=("k",), open_partitions_max=2, row_group_bytes=1)
    for key in ("a", "b", "a", "c", "a"):
        stager.write({"id": [1], "k": [key]})
    assert list(stager._open) == ["k=c", "k=a"]
    assert [one.file.partition["k"] for one in stager.finish()] == ["a", "b", "c"]


def test_memory_over_many_partitions_is_bounded_and_row_groups_stay_large(stage: Stage) -> None:
    buffered = []
    stager = stage.stager(partition_columns=("k",), row_group_bytes=40_000, open_partitions_max=100)
    random = np.random.default_rng(5)
    for _ in range(100):
        # One partition has most of the rows, and must not make the others trickle out.
        keys = np.where(random.random(500) < 0.8, 0, random.integers(1, 50, 500))
        stager.write(pa.table({"id": random.integers(0, 9, 500), "k": keys}))
        # What is held, not what is seen: a slice of a sorted table would keep all of it.
        buffered.append(sum(table.get_total_buffer_size() for table in stager._waiting.tables))
    staged = stager.finish()
    assert max(buffered) < 2 * 40_000
    assert len(staged) == 50
    assert sum(one.file.rows for one in staged) == 50_000
    assert max(len(groups(stage.path(one))) for one in staged if one.file.partition["k"] != "0") <= 3


def test_fewer_rows_than_partitions_make_no_more_files_than_rows(stage: Stage) -> None:
    """S7."""
    assert len(stage.stage({"id": [1, 2, 3, 4, 5], "k": [1, 2, 3, 4, 5]}, partition_columns=("k",))) == 5


# -- the end -------------------------------------------------------------------------------------------


def test_write_after_finish_or_discard_is_refused(stage: Stage) -> None:
    stager = stage.stager()
    stager.write(TABLE)
    staged = stager.finish()
    assert stager.finish() == staged
    with pytest.raises(InvalidRequestError, match="it is finished"):
        stager.write(TABLE)
    stager.discard()
    for verb in (lambda: stager.write(TABLE), stager.finish):
        with pytest.raises(InvalidRequestError, match="it was discarded"):
            verb()


def test_discard_deletes_open_and_sealed_files_and_may_be_repeated(stage: Stage) -> None:
    stager = stage.stager(partition_columns=("k",), open_partitions_max=1, row_group_bytes=1)
    stager.write({"id": [1, 2, 3], "k": ["a", "b", "c"]})
    assert len(stage.files) == 3
    stager.discard()
    stager.discard()
    assert stage.files == []
    finished = stage.stager()
    finished.write(TABLE)
    finished.finish()
    finished.discard()
    assert stage.files == []


@pytest.mark.parametrize("partition_columns", [(), ("kind",)], ids=["plain", "partitioned"])
@pytest.mark.parametrize("rows_before", [0, 1, 3, 9])
def test_a_stream_that_fails_after_any_of_its_tables_leaves_what_was_there_before(
    tmp_path: Path, partition_columns: tuple[str, ...], rows_before: int
) -> None:
    failures = 0
    for taken in range(12):
        stage = Stage(tmp_path / str(taken))
        stager = stage.stager(
            partition_columns=partition_columns, row_group_rows=2, row_group_bytes=300, target_file_bytes=900
        )
        stager.write(numbered(0, rows_before))
        known = stager.columns

        def broken(tables: int = taken) -> Iterator[pa.Table]:
            for number in range(tables):
                yield numbered(100 + number, 1)
            raise KeyError("mine")

        for data in (broken(), itertools.chain(broken(), ())):
            with pytest.raises(KeyError, match="mine"):
                stager.write(data)
            assert stager.columns == known
            failures += 1
        stager.write([numbered(20, 1), numbered(21, 4)])
        staged = stager.finish()
        assert sorted(stage.read(staged)["id"].to_pylist()) == [*range(rows_before), *range(20, 25)]
        assert sorted(stage.files) == sorted(str(stage.path(one).relative_to(stage.root)) for one in staged)
    assert failures == 24


def numbered(first: int, rows: int) -> pa.Table:
    ids = list(range(first, first + rows))
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array([f"k{one % 3}" for one in ids], pa.string())})


def test_a_generator_of_rows_that_turn_into_floats_is_refused_whole(stage: Stage) -> None:
    stager = stage.stager(row_group_rows=3_000)
    stager.write({"n": [-1]})
    with pytest.raises(InvalidRequestError, match=r"column 'n' is int64 and would not hold 0\.5 \(float\) exactly"):
        stager.write({"n": number if number < 10_000 else 0.5} for number in range(10_001))
    staged = stager.finish()
    assert stage.read(staged).to_pydict() == {"n": [-1]}


def test_columns_that_a_refused_write_brought_are_forgotten(stage: Stage) -> None:
    stager = stage.stager(merge_schema=True, row_group_rows=2)
    stager.write({"a": [1]})
    with pytest.raises(InvalidRequestError):
        stager.write([pa.table({"a": [2], "b": [1]}), pa.table({"a": [3, 4], "b": [1, 2]}), pa.table({"b": ["x"]})])
    stager.write({"a": [5], "b": ["text"]})
    staged = stager.finish()
    assert [column.type for column in staged[0].columns] == ["int64", "string"]
    assert stage.read(staged).to_pydict() == {"a": [1, 5], "b": [None, "text"]}


def test_a_write_within_a_write_is_refused_and_the_outer_one_with_it(stage: Stage) -> None:
    stager = stage.stager()

    def nested() -> Iterator[pa.Table]:
        yield TABLE
        stager.write(TABLE)

    with pytest.raises(InvalidRequestError, match="another write of this epoch is under way"):
        stager.write(nested())
    stager.write(TABLE)
    assert sum(one.file.rows for one in stager.finish()) == 4


def test_a_stream_larger_than_a_row_group_keeps_the_order_of_rows(stage: Stage) -> None:
    stager = stage.stager(row_group_rows=4)
    stager.write(numbered(0, 3))
    stager.write(numbered(3 + number, 1) for number in range(9))
    stager.write(numbered(12, 2))
    staged = stager.finish()
    assert stage.read(staged)["id"].to_pylist() == list(range(14))


def test_streams_smaller_than_a_row_group_share_a_file(stage: Stage) -> None:
    stager = stage.stager(row_group_rows=10)
    for number in range(25):
        stager.write(iter([numbered(2 * number, 1), numbered(2 * number + 1, 1)]))
    (one,) = stager.finish()
    assert pq.read_metadata(stage.path(one)).num_row_groups == 5
    assert stage.read([one])["id"].to_pylist() == list(range(50))


def test_tables_larger_than_a_row_group_share_a_file(stage: Stage) -> None:
    stager = stage.stager(row_group_rows=4)
    for number in range(5):
        stager.write(numbered(6 * number, 6))
    assert [one.file.rows for one in stager.finish()] == [30]


def test_rows_that_do_not_reach_the_files_are_noticed_before_any_record_exists(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ParquetOutput.write
    monkeypatch.setattr(ParquetOutput, "write", lambda output, group: written(output, group.slice(1)))
    stager = stage.stager()
    stager.write(TABLE)
    with pytest.raises(CorruptError, match="4 rows were handed in, and the files hold 3"):
        stager.finish()


class Disk(LocalStore):
    """A local store whose disk is full after so many calls of `write`, `create` and `seal`."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.is_full = False

    def spend(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            self.is_full = True
            raise UnavailableError("write", "no space left", "Make room, then retry")

    def create(self, path: str) -> Output:
        self.spend()
        return _Spending(self, super().create(path))


class _Spending:
    def __init__(self, disk: Disk, output: Output) -> None:
        self.disk = disk
        self.output = output
        self.closed = False

    def write(self, data: bytes, /) -> int:
        self.disk.spend()
        return self.output.write(data)

    def flush(self) -> None: ...

    def seal(self) -> None:
        self.disk.spend()
        self.output.seal()

    def discard(self) -> None:
        self.output.discard()


@pytest.mark.parametrize("partition_columns", [(), ("k",)], ids=["plain", "partitioned"])
def test_a_disk_that_fills_up_at_any_step_leaves_nothing_after_discard(
    tmp_path: Path, partition_columns: tuple[str, ...]
) -> None:
    for calls in itertools.count():
        disk = Disk(calls)
        stage = Stage(tmp_path / str(calls), disk)
        stager = stage.stager(
            partition_columns=partition_columns,
            row_group_rows=2,
            row_group_bytes=40,
            open_partitions_max=2,
            merge_schema=True,
        )
        try:
            stager.write({"id": [1, 2, 3], "k": ["a", "b", "c"]})
            stager.write({"id": [4, 5, 6], "k": ["a", "b", "d"], "new": [1, 2, 3]})
            staged = stager.finish()
        except TxsinkError as error:
            assert isinstance(error, UnavailableError)  # noqa: PT017 -- the loop ends when none is raised
            with pytest.raises(InvalidRequestError, match="nothing can be written"):
                stager.write(TABLE)
            with pytest.raises(InvalidRequestError, match="nothing can be written"):
                stager.finish()
            stager.discard()
            assert stage.files == []
        else:
            assert not disk.is_full
            assert sum(one.file.rows for one in staged) == 6
            break
    assert calls > 20
