"""Statistics of Delta tables: a bound never excludes a row that is there."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from place import Place
from txsink.staging import parquet, statistics
from txsink.store.local.store import LocalStore

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["", "\U0010ffff" * 40, "a" * 31 + "\ud7ff" * 3, "a" * 32 + "\uffff", "\ud7ff" * 40, "\x00" * 33]
)
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0])
FIRST, LAST = "0001-01-01", "9999-12-31T23:59:59.999999"
MOMENTS = st.datetimes() | st.sampled_from([datetime.fromisoformat(text) for text in (FIRST, LAST)])

# By name: type, values, and how a bound is read back.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1), int),
    "byte": (pa.int8(), st.integers(-128, 127), int),
    "flag": (pa.bool_(), st.booleans(), bool),
    "text": (pa.string(), TEXT, str),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from([math.nan, -0.0]), float),
    "double": (pa.float64(), FLOATS, float),
    "decimal": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10), Decimal),
    "date": (pa.date32(), st.dates() | st.sampled_from([date.min, date.max]), date.fromisoformat),
    "local": (pa.timestamp("us"), MOMENTS, datetime.fromisoformat),
    "zoned": (pa.timestamp("us", "UTC"), MOMENTS, lambda text: datetime.fromisoformat(text.replace("Z", "+00:00"))),
}


def footer_of(table: pa.Table, **options: Any) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return pq.read_metadata(sink)


def told(table: pa.Table, **options: Any) -> dict[str, Any]:
    text = statistics.of_footer(footer_of(table, **options), statistics.nans_in(table))
    found: dict[str, Any] = json.loads(text, parse_float=str, parse_int=str)
    return {"minValues": {}, "maxValues": {}, "nullCount": {}, **found}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_no_bound_excludes_a_row(name: str, data: st.DataObject) -> None:
    kind, values, read = KINDS[name]
    rows = data.draw(st.lists(st.none() | values, max_size=12))
    if name == "zoned":
        rows = [None if row is None else row.replace(tzinfo=timezone.utc) for row in rows]
    column = pa.array(rows, kind)
    rows = column.to_pylist()
    found = told(pa.table({"x": column, "s": pa.StructArray.from_arrays([column], ["x"])}), row_group_size=5)
    assert int(found["numRecords"]) == len(rows)
    for place in (found, {key: found[key].get("s", {}) for key in ("minValues", "maxValues", "nullCount")}):
        if rows:
            assert int(place["nullCount"]["x"]) == rows.count(None)
        for row in (row for row in rows if row is not None):
            is_nan = isinstance(row, float) and math.isnan(row)  # the greatest value of all
            if "x" in place["minValues"] and not is_nan:
                assert read(place["minValues"]["x"]) <= row
            if "x" in place["maxValues"]:
                assert not is_nan
                assert row <= read(place["maxValues"]["x"])


def test_long_texts_are_cut_so_that_they_still_bound() -> None:
    found = told(pa.table({"x": ["a" * 50, "z" * 50]}))
    assert (found["minValues"]["x"], found["maxValues"]["x"]) == ("a" * 32, "z" * 31 + "{")
    assert "x" not in told(pa.table({"x": ["\U0010ffff" * 33]}))["maxValues"]


def test_no_rows_and_no_statistics_tell_nothing_but_how_many() -> None:
    for found in (told(pa.table({"x": pa.array([], pa.int64())})), told(pa.table({"x": [1]}), write_statistics=False)):
        assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({}, {}, {})


def test_times_beyond_python_and_what_has_no_order_have_no_bounds() -> None:
    far = pa.array([2**62], pa.int64()).view(pa.timestamp("us"))
    found = told(pa.table({"far": far, "bytes": [b"a"], "list": [[1]]}))
    assert (found["minValues"], found["maxValues"]) == ({}, {})


def test_the_first_32_columns_are_told() -> None:
    found = told(pa.table({f"c{at}": [at] for at in range(40)}))
    assert list(found["minValues"]) == [f"c{at}" for at in range(32)]


def test_lists_and_maps_count_as_one_column_each_and_the_fields_of_a_struct_one_by_one() -> None:
    nested = {
        "list": [[{"x": 1, "y": 2}]],
        "map": pa.array([[("k", [1])]], pa.map_(pa.string(), pa.list_(pa.int64()))),
        "struct": [{"a": 1, "b": 2}],
    }
    found = told(pa.table({**nested, **{f"c{at}": [at] for at in range(40)}}))
    assert list(found["minValues"]) == ["struct", *(f"c{at}" for at in range(28))]
    assert [found["minValues"][f"c{at}"] for at in range(28)] == [str(at) for at in range(28)]


@pytest.mark.parametrize("order", [["a", "a.b"], ["a.b", "a"]])
def test_a_column_and_a_field_of_one_spelling_have_bounds_of_their_own(order: list[str]) -> None:
    """`a.b` the column, and `b` in the struct `a`: the footer calls both `a.b`."""
    columns = {"a": pa.array([{"b": 1}, {"b": 2}]), "a.b": pa.array([70, 80])}
    found = told(pa.table({name: columns[name] for name in order}))
    assert (found["minValues"]["a"], found["maxValues"]["a"]) == ({"b": "1"}, {"b": "2"})
    assert (found["minValues"]["a.b"], found["maxValues"]["a.b"]) == ("70", "80")


NAMED = {
    "id, s.a": (("id",), ("s", "a")),
    " `a.b` ,`x``y`.z": (("a.b",), ("x`y", "z")),
    "s": (("s",),),
}


@pytest.mark.parametrize("text", NAMED)
def test_the_names_in_a_property_are_read_as_sparks(text: str) -> None:
    found = statistics.Indexed.of({"delta.dataSkippingStatsColumns": text, "delta.dataSkippingNumIndexedCols": "1"})
    assert found.names == NAMED[text]


def fit(table: pa.Table, properties: dict[str, str] | None = None, wanted: pa.Table | None = None) -> Any:
    known = statistics.of_footer(footer_of(table), statistics.nans_in(table))
    found = statistics.fitted(
        known, (table if wanted is None else wanted).schema, statistics.Indexed.of(properties or {})
    )
    return None if found is None else json.loads(found)


def test_a_commit_tells_bounds_of_every_column_or_of_none() -> None:
    """The dataset of deltalake drops files that have bounds of some."""
    whole = pa.table({"id": [1, 2], "flag": [True, None], "raw": [b"a", b"b"], "f": [0.5, -0.0]})
    assert fit(whole) == {
        "numRecords": 2,
        "minValues": {"id": 1, "flag": True, "f": -0.0},
        "maxValues": {"id": 2, "flag": True, "f": 0.5},
        "nullCount": {"id": 0, "flag": 1, "raw": 0, "f": 0},
    }
    for bad in ([0.5, math.nan], [0.5, math.inf], [-math.inf, 1.0]):
        told_of = fit(whole.set_column(3, "f", pa.array(bad)))
        assert told_of == {"numRecords": 2, "nullCount": {"id": 0, "flag": 1, "raw": 0, "f": 0}}
    only_nulls = whole.set_column(3, "f", pa.array([None, None], pa.float64()))
    assert set(fit(only_nulls)["minValues"]) == {"id", "flag"}
    within = fit(whole.set_column(3, "s", pa.array([{"x": math.nan, "y": 1}, {"x": 1.0, "y": 2}])))
    assert within["minValues"] == {"id": 1, "flag": True, "s": {"y": 1}}


def test_of_a_struct_a_commit_tells_all_or_nothing() -> None:
    """Polars cannot read a table whose statistics have a part of a struct."""
    cut = pa.table({"id": [1], "s": [{"x": 1, "y": 2}]})
    assert fit(cut, {"delta.dataSkippingNumIndexedCols": "2"}) == {
        "numRecords": 1,
        "minValues": {"id": 1},
        "maxValues": {"id": 1},
        "nullCount": {"id": 0},
    }
    raw = pa.table({"id": [1], "s": [{"x": 1, "y": b"2"}]})
    assert fit(raw)["minValues"] == {"id": 1}
    assert fit(raw)["nullCount"] == {"id": 0, "s": {"x": 0, "y": 0}}
    listed = pa.table({"id": [1], "s": [{"x": 1, "y": [2]}]})
    assert (fit(listed)["maxValues"], fit(listed)["nullCount"]) == ({"id": 1}, {"id": 0})


def test_a_decimal_is_spelled_without_an_exponent() -> None:
    """The exponent of `1E-10` makes the bound null to deltalake, and the row is lost."""
    table = pa.table({"x": pa.array([Decimal("1E-10"), Decimal(10) ** 27], pa.decimal128(38, 10))})
    text = statistics.of_footer(footer_of(table))
    for said in (text, statistics.fitted(text, table.schema, statistics.Indexed())):
        assert '"minValues":{"x":0.0000000001}' in str(said)
        assert '"maxValues":{"x":1000000000000000000000000000.0000000000}' in str(said)


def test_a_commit_tells_what_the_table_wants_and_asks_the_file_for_what_nobody_knows() -> None:
    table = pa.table({f"c{at}": [at] for at in range(40)})
    assert list(fit(table, {"delta.dataSkippingNumIndexedCols": "2"})["maxValues"]) == ["c0", "c1"]
    assert fit(table, {"delta.dataSkippingNumIndexedCols": "0"}) == {"numRecords": 1}
    assert fit(table, {"delta.dataSkippingNumIndexedCols": "33"}) is None
    assert fit(table, {"delta.dataSkippingNumIndexedCols": "-1"}) is None
    assert fit(table, {"delta.dataSkippingNumIndexedCols": "many"}) is None
    assert fit(table, {"delta.dataSkippingStatsColumns": "c3,c30"})["minValues"] == {"c3": 3, "c30": 30}
    assert fit(table, {"delta.dataSkippingStatsColumns": "c3,c39"}) is None
    assert fit(table, wanted=pa.table({"new": [1], "c0": [0]})) is None
    assert statistics.fitted("", table.schema, statistics.Indexed()) is None


@pytest.mark.parametrize("text", [None, "", "{", "[]", '"x"', '{"numRecords":"1"}', '{"numRecords":-1}', "{}", 7, "\0"])
def test_what_others_say_of_a_file_and_nobody_can_read_says_nothing(text: object) -> None:
    assert statistics.rows_in(text) is None


def test_how_many_rows_a_file_has_is_read_whatever_else_is_said_of_it() -> None:
    for more in ("", ',"minValues":null', ',"minValues":{"x":1e400}', ',"nullCount":[]'):
        assert statistics.rows_in(f'{{"numRecords":3{more}}}') == 3


def test_other_readers_find_every_row_by_every_value(place: Place) -> None:
    """What they skip files by is what we told them."""
    rows: dict[str, list[Any]] = {
        "text": ["a" * 40, "\U0010ffff" * 40, None],
        "double": [math.nan, -0.0, 1e300],
        "decimal": [Decimal("0E-10"), Decimal("1E-10"), Decimal("-99999999999999999999.9999999999")],
        "date": [date(1, 1, 1), date(9999, 12, 31), None],
    }
    types = {"text": pa.string(), "double": pa.float64(), "decimal": pa.decimal128(38, 10), "date": pa.date32()}
    for at in range(3):
        columns = {name: pa.array([values[at]], types[name]) for name, values in rows.items()}
        place.write(at, pa.table({"id": [at], **columns}), layout="delta")
    table = deltalake.DeltaTable(str(place.path))
    assert pa.table(table.to_pyarrow_table()).num_rows == 3
    queries = deltalake.QueryBuilder().register("t", table)
    asked = {
        "decimal = 0": [0], "decimal > 0": [1], "decimal < -1": [2],
        "double = 0": [1], "double > 1e299": [0, 2], "text > 'b'": [1], "text < 'b'": [0],
        "date < '0100-01-01'": [0], "date > '9000-01-01'": [1], "text is null": [2],
    }  # fmt: skip
    for where, expected in asked.items():
        found = pa.table(queries.execute(f"select id from t where {where} order by id").read_all())
        assert found["id"].to_pylist() == expected, where


def test_numbers_have_no_bounds_where_nobody_knows_whether_one_is_no_number() -> None:
    table = pa.table({"id": [1, 2], "f": [0.5, 1.5]})
    text = statistics.of_footer(footer_of(table))
    assert json.loads(text)["minValues"] == {"id": 1}
    assert json.loads(statistics.fitted(text, table.schema, statistics.Indexed()) or "") == {
        "numRecords": 2,
        "nullCount": {"id": 0, "f": 0},
    }


@pytest.mark.parametrize(
    ("values", "size_max", "expected"),
    [
        ([0.5, 1.5], 1 << 20, {"id": 1, "f": 0.5}),
        ([0.5, math.nan], 1 << 20, {"id": 1}),
        ([math.nan, None], 1 << 20, {"id": 1}),
        ([0.5, 1.5], 10, {"id": 1}),
    ],
)
def test_whether_a_file_of_others_holds_nan_its_rows_say_unless_it_is_huge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: list[float], size_max: int, expected: dict[str, Any]
) -> None:
    monkeypatch.setattr(parquet, "_LOOKED_AT_BYTES_MAX", size_max)
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"id": [1, 2], "f": pa.array(values, pa.float64())}), path, row_group_size=1)
    footer = parquet.footer_of(LocalStore(), path)
    assert footer is not None
    assert json.loads(parquet.stats_of(LocalStore(), path, footer))["minValues"] == expected


def test_zero_is_bounded_by_the_zeros_of_both_signs() -> None:
    """DataFusion orders them, and other writers than pyarrow leave them in a footer as they come."""
    for zero in (0.0, -0.0):
        assert str(statistics._least(pa.float64(), zero)) == "-0.0"
        assert str(statistics._greatest(pa.float64(), zero)) == "0.0"


def test_a_time_of_nanoseconds_has_no_bounds_since_it_would_be_cut() -> None:
    table = pa.table({"id": [1], "x": pa.array([1_000_000_000], pa.timestamp("ns"))})
    assert told(table, version="2.6")["minValues"] == {"id": "1"}


def test_a_text_is_cut_after_the_last_character_before_the_surrogates() -> None:
    found = told(pa.table({"x": ["\ud7ff" * 33]}))
    assert found["maxValues"]["x"] == "\ud7ff" * 31 + "\ue000"


def test_a_nan_is_found_in_the_very_column_that_holds_it() -> None:
    """Planted: the wrong field of a struct was looked at, or columns without a NaN were named."""
    inner = {"x": [1.0, math.nan], "y": [1.0, 2.0], "z": [None, 3]}
    deep = [{"d": {"v": math.nan, "w": 1.0}}] * 2
    rows = pa.table({**inner, "deep": deep, "s": [{"a": 1.0, "b": math.nan}, {"a": None, "b": 0.0}]})
    assert statistics.nans_in(rows) == {("x",), ("s", "b"), ("deep", "d", "v")}
    assert statistics.nans_in(rows.slice(0, 0)) == set()


@pytest.mark.parametrize(
    ("value", "greatest"),
    [
        ("a" * 32, "a" * 32),
        ("a" * 33, "a" * 31 + "b"),
        ("a" * 31 + "\ud7ff" + "x", "a" * 31 + "\ue000"),
        ("a" * 31 + "\ud7fe" + "x", "a" * 31 + "\ud7ff"),
        ("a" * 31 + "\U0010ffff" + "x", "a" * 30 + "b"),
    ],
)
def test_a_long_text_is_bounded_by_the_least_text_of_its_length_above_it(value: str, greatest: str) -> None:
    """Planted: a text of exactly the length kept was cut, and half characters began or ended one too early or late."""
    assert told(pa.table({"c": [value]}))["maxValues"] == {"c": greatest}


TWO = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.float64()), ("y", pa.int64())]))])


@pytest.mark.parametrize(
    ("properties", "told_of"),
    [
        ({"delta.dataSkippingNumIndexedCols": "-1"}, [("a",), ("s", "x"), ("s", "y")]),
        ({"delta.dataSkippingNumIndexedCols": "many"}, [("a",), ("s", "x"), ("s", "y")]),
        ({"delta.dataSkippingNumIndexedCols": "2"}, [("a",), ("s", "x")]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingStatsColumns": ""}, []),
        ({"delta.dataSkippingStatsColumns": "s.y"}, [("s", "y")]),
    ],
    ids=str,
)
def test_a_table_has_statistics_of_the_columns_its_properties_ask_for(
    properties: dict[str, str], told_of: list[tuple[str, ...]]
) -> None:
    assert [place.leaf for place in statistics.Indexed.of(properties).leaves(TWO)] == told_of


def test_only_floating_point_columns_with_bounds_are_in_doubt() -> None:
    """Others need no look at their rows: integers hold no NaN, and without bounds there is nothing to believe."""
    table = pa.table({"i": [1, 2], "f": [1.0, 2.0], "g": [1.0, 2.0], "nulls": pa.array([None, None], pa.float64())})
    footer = footer_of(table, write_statistics=["i", "f", "nulls"])
    assert statistics.doubtful(footer, statistics.Indexed()) == [("f",)]


def test_a_field_is_not_absent_because_a_column_of_its_name_is() -> None:
    table = pa.table({"s": [{"x": 1}, {"x": None}], "x": [5, 6]})
    known = statistics.of_footer(footer_of(table.select(["s"])), set())
    found = json.loads(statistics.fitted(known, table.schema, statistics.Indexed(), {"x"}) or "")
    assert found["nullCount"] == {"s": {"x": 1}, "x": 2}


def test_how_many_nulls_a_column_has_is_known_or_not() -> None:
    nulls = pa.array([{"x": None}, {"x": None}], pa.struct([("x", pa.int64())]))
    text = statistics.of_footer(footer_of(pa.table({"a": [1, None], "s": nulls})))
    assert [statistics.nulls_in(text, leaf) for leaf in (("a",), ("s", "x"), ("b",))] == [1, 2, None]
    assert statistics.nulls_in("", ("a",)) is None


def test_a_file_may_have_no_rows() -> None:
    assert statistics.rows_in('{"numRecords":0}') == 0
    assert statistics.rows_in('{"numRecords":1}') == 1
    assert statistics.rows_in(statistics.counted(5)) == 5
