"""What an epoch brings besides rows: metadata, columns, partitions."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from place import Place, prepared, rows, staged_files
from seen import rows_of, staging
from txsink.conversion import to_delta
from txsink.delta.log import DeltaLog
from txsink.errors import InvalidRequestError

# -- columns and metadata -----------------------------------------------------------------------------------


def test_metadata_is_read_back_as_it_was_given(place: Place) -> None:
    given = {
        "offsets": {"p0": 991, "p1": None},
        "big": 2**70 + 1,
        "text": "ü\u2028\x00",
        "list": [1, 1.5, True],
        "": {},
    }
    place.write(1, rows(1), metadata=given)
    with place.sink() as sink:
        assert sink.last_metadata == given
        sink.last_metadata["more"] = 1
        assert sink.last_metadata == given


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": {1, 2}},
        {"a": (1,)},
        {1: "a"},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": b"x"},
        {"a": object()},
        {"a": "x" * (1 << 20)},
        {"a": "\ud800"},
    ],
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
    assert sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True)) == [
        (1, None),
        (2, "b"),
        (3, None),
    ]


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
    for merges in (False, True):
        with pytest.raises(InvalidRequestError, match="'id'"):
            place.write(2, {"id": ["two"]}, merge_schema=merges)
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


def test_types_that_two_workers_bring_for_a_new_column_must_agree(place: Place) -> None:
    with place.sink() as sink, sink.begin(1) as txn:
        for values in ([1], ["text"]):
            txn.add(txn.stager().stage({"id": [1], "x": values}))
        with pytest.raises(InvalidRequestError, match="column 'x' is int64 in the table and string in the data"):
            txn.prepare()
        txn.abort()
    assert staged_files(place) == []


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        [{"id": 2, "a": {"x": 1, "y": 2}}],
        {"id": [2], "a": [{"x": 1, "y": 2}]},
        pa.table({"id": [2], "a": [{"x": 1, "y": 2}]}),
    ],
    ids=["rows", "columns", "table"],
)
def test_a_field_that_a_struct_does_not_have_is_refused_and_never_dropped(
    place: Place, data: Any, merges: bool
) -> None:
    place.write(1, {"id": [1], "a": [{"x": 1}]})
    with pytest.raises(InvalidRequestError, match="'a'"):
        place.write(2, data, merge_schema=merges)
    assert place.table().to_arrow().to_pylist() == [{"id": 1, "a": {"x": 1}}]


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_narrower_integers_and_decimals_are_stored_in_the_tables_type(place: Place, layout: str) -> None:
    wide = {"id": pa.array([1], pa.int64()), "d": pa.array([Decimal("1.50")], pa.decimal128(20, 2))}
    place.write(1, pa.table(wide), layout=layout)
    place.write(2, pa.table({"id": pa.array([2], pa.int16()), "d": pa.array([Decimal("2.5")], pa.decimal128(3, 1))}))
    table = place.table()
    assert table.to_arrow().sort_by("id").to_pydict() == {"id": [1, 2], "d": [Decimal("1.50"), Decimal("2.50")]}
    files = [pq.read_schema(place.path / file.path) for file in table.files()]
    assert [file.types for file in files] == [[pa.int64(), pa.decimal128(20, 2)]] * 2


@pytest.mark.parametrize("ids", [[], [1]])
def test_a_type_that_delta_does_not_have_is_refused_before_the_epoch_is_prepared(place: Place, ids: list[int]) -> None:
    """An epoch that is prepared can only be published, and this one never could."""
    with pytest.raises(InvalidRequestError, match="column 'id' is of type uint32, and Delta has no unsigned integers"):
        place.write(1, pa.table({"id": pa.array(ids, pa.uint32())}), layout="delta")
    place.write(1, {"id": [1]})
    assert rows_of(place.path) == [1]


ARROW = pa.table(
    {
        "id": [1, 2],
        "h": pa.array([np.float16(0.5), None], pa.float16()),
        "t": pa.array([1, None], pa.time64("us")),
        "n": pa.array([1, None], pa.time64("ns")),
        "at": pa.array([1, None], pa.timestamp("ns")),
        "zoned": pa.array([[1], None], pa.list_(pa.timestamp("ns", "UTC"))),
    }
)


def test_a_table_whose_types_are_arrows_keeps_them(place: Place) -> None:
    place.write(0, ARROW, types="arrow")
    rows = [{"id": 3, "h": 1.5, "t": dt.time(1, 2, 3, 4), "at": dt.datetime(2026, 1, 31)}]  # noqa: DTZ001
    place.write(1, rows)
    with place.sink(types="arrow") as sink, sink.begin(2) as txn:
        txn.add(txn.stager().stage(ARROW.slice(0, 1)))
    found = place.table().to_arrow()
    assert found.schema.equals(ARROW.schema)
    assert found.slice(0, 2).equals(ARROW)
    assert found.slice(2, 1).select(["id", "h", "t", "at"]).to_pylist() == rows
    assert found.slice(3).equals(ARROW.slice(0, 1))
    with pytest.raises(InvalidRequestError, match=r"column 'h' is halffloat and would not hold 0\.1 \(float\) exactly"):
        place.write(3, [{"h": 0.1}])


def test_the_types_of_a_table_are_set_when_it_is_made(place: Place) -> None:
    place.write(0, {"id": [1]})
    with pytest.raises(InvalidRequestError, match="its types are 'spark', set when it was created"):
        place.write(1, {"id": [1]}, types="arrow")
    with pytest.raises(InvalidRequestError, match="'t' is of type time64\\[us\\], which Spark cannot read"):
        place.write(1, ARROW.select(["id", "t"]), merge_schema=True)
    assert rows_of(place.path) == [1]


def test_arrows_types_are_none_of_delta(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="its types are 'arrow', some of which Delta does not have"):
        place.write(0, ARROW, types="arrow", layout="delta")
    place.write(0, ARROW, types="arrow")
    table = place.table()
    delta = DeltaLog(table.log.store, table.log.root, place.stamps, str(place.path))
    with pytest.raises(InvalidRequestError, match="its types are 'arrow'"):
        to_delta(table.log, delta)
    assert place.table().to_arrow().num_rows == 2


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
