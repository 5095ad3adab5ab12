"""What `write` accepts, and what it says of the rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from place import Place
from txsink.errors import InvalidRequestError
from txsink.schema import storable
from txsink.staging.conform import conform
from txsink.staging.rows import tables_of

NOTHING = pa.schema([])
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
ROWS = TABLE.to_pylist()


class Stream:
    """Speaks Arrow and nothing else."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


class Array:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def read(data: object, known: pa.Schema = NOTHING) -> pa.Table:
    tables = [rows.table for rows in tables_of(data, lambda: known, "write")]
    return pa.concat_tables(conform(table, storable(table.schema)) for table in tables if table.num_rows)


def generator() -> Iterator[Any]:
    yield TABLE.slice(0, 1)
    yield from TABLE.slice(1).to_batches()


ACCEPTED: dict[str, Any] = {
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "reader": TABLE.to_reader(1),
    "stream": Stream(),
    "array": Array(),
    "struct array": TABLE.to_struct_array().combine_chunks(),
    "dataset": ds.dataset(TABLE),
    "scanner": ds.dataset(TABLE).scanner(),
    "pandas": pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"]}),
    "polars": pl.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"]}),
    "polars lazy": pl.LazyFrame({"id": [1, 2, 3], "name": ["a", None, "c"]}),
    "list of tables": [TABLE.slice(0, 2), TABLE.slice(2)],
    "generator of batches": generator(),
    "list of frames": [pl.DataFrame({"id": [1, 2], "name": ["a", None]}), pd.DataFrame({"id": [3], "name": ["c"]})],
    "rows": ROWS,
    "generator of rows": (row for row in ROWS),
    "columns": {"id": [1, 2, 3], "name": ["a", None, "c"]},
    "columns of all kinds": {"id": np.array([1, 2, 3]), "name": pa.array(["a", None, "c"])},
    "columns of series": {"id": pd.Series([1, 2, 3]), "name": pl.Series(["a", None, "c"])},
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_tabular_data_of_every_kind_is_read(kind: str) -> None:
    assert read(ACCEPTED[kind]).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (None, "NoneType"),
        (7, "int"),
        ("rows.parquet", "str"),
        (b"PAR1", "bytes"),
        (Path("rows.parquet"), "Path"),
        ([1, 2], "int"),
        ([[1, 2]], "list"),
        (["a"], "str"),
        ([{"a": 1}, 2], "int"),
        (pa.array([1, 2]), "Array"),
        (pl.Series([1, 2]), "Series"),
    ],
    ids=repr,
)
def test_anything_else_is_refused_by_its_type_and_told_what_is_accepted(data: object, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^write: .*__arrow_c_stream__") as caught:
        read(data)
    assert name in caught.value.found


def test_a_stream_is_taken_batch_by_batch() -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield pa.record_batch({"id": [number]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    tables = tables_of(reader, lambda: NOTHING, "write")
    next(tables)  # the columns
    next(tables)
    assert len(taken) < 3


def test_a_stream_without_batches_still_has_columns() -> None:
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, [])
    assert [rows.table.schema for rows in tables_of(reader, lambda: NOTHING, "write")] == [TABLE.schema]


def test_a_producers_own_error_passes_through() -> None:
    def broken() -> Iterator[pa.Table]:
        yield TABLE
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        read(broken())


def test_columns_that_only_later_rows_have_are_kept() -> None:
    assert read([{"a": 1}, {"b": "x"}]).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_a_generator_of_rows_is_taken_in_pieces() -> None:
    tables = [rows.table for rows in tables_of(({"a": number} for number in range(25_000)), lambda: NOTHING, "write")]
    assert [table.num_rows for table in tables] == [10_000, 10_000, 5_000]
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(25_000))


def test_python_values_take_the_type_the_table_has() -> None:
    known = pa.schema(
        [("a", pa.int8()), ("t", pa.timestamp("us", "UTC")), ("n", pa.null()), ("s", pa.list_(pa.string()))]
    )
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
    table = read([{"a": 1, "t": noon, "n": "text", "s": []}], known)
    assert table.schema.types == [pa.int8(), pa.timestamp("us", "UTC"), pa.string(), pa.list_(pa.string())]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"a": [1, "x"]}, "column 'a' is int8 and would not hold 'x' (str) exactly"),
        ({"a": [300]}, "column 'a' is int8 and would not hold 300 (int) exactly"),
        ({"a": [object()]}, "column 'a' is int8 and would not hold <object object"),
        ({"a": np.array([[1], [2]])}, "the values of column 'a' are no column"),
        ({"a": "text"}, "column 'a' is of type str, not a list of values"),
        ({"a": 5}, "column 'a' is of type int, not a list of values"),
        ({"a": [1], "b": [1, 2]}, "the columns differ in length"),
        ({1: [1]}, "the column name 1 is no string"),
        ([{}], "the rows have no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot be read as a table"),
        (pd.DataFrame({"a": [1, "x"]}), "cannot be read as a table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_make_no_columns_are_refused_by_name(data: object, found: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(data, pa.schema([("a", pa.int8())]))
    assert found in caught.value.found


def test_a_pandas_index_is_a_column_only_when_it_has_a_name() -> None:
    frame = pd.DataFrame({"id": [1, 2, 3]})
    assert read(frame).column_names == ["id"]
    assert read(frame[frame["id"] > 1]).to_pydict() == {"id": [2, 3]}
    assert read(frame.set_index(pd.Index([7, 8, 9], name="key"))).to_pydict() == {"id": [1, 2, 3], "key": [7, 8, 9]}


OBJECTS = pd.Index([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], dtype=object, name="k")  # noqa: DTZ001


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (pd.DataFrame({"v": [1, 2]}, index=OBJECTS), "column 'k' is date32[day] and would not hold datetime"),
        (pd.DataFrame({"k": pd.Categorical(OBJECTS)}), "column 'k' is date32[day] and would not hold datetime"),
        ({"k": pd.Categorical(OBJECTS)}, "column 'k' is date32[day] and would not hold datetime"),
        ({"k": pd.Series(pd.Categorical(OBJECTS))}, "column 'k' is date32[day] and would not hold datetime"),
        ({"k": pl.Series([object()])}, "would not hold <object object"),
        (pl.DataFrame({"k": [object()]}), "column 'k' is of polars' type Object"),
        (pl.LazyFrame({"k": [object()]}), "column 'k' is of polars' type Object"),
        (pd.DataFrame(index=[1, 2, 3]), "3 rows without a column were given"),
        (pd.DataFrame({"v": [1, 2]}, index=["a", "b"]), "which is no row number, and has no name"),
        (pd.DataFrame({"v": [1]}, index=pd.DatetimeIndex(["2020-01-01"])), "which is no row number, and has no name"),
        (
            pd.DataFrame({"v": [1]}, index=pd.MultiIndex.from_tuples([(1, 2)])),
            "which is no row number, and has no name",
        ),
        ({"\ud800": [1]}, "surrogates not allowed"),
    ],
    ids=[
        "index",
        "categories",
        "categorical",
        "series",
        "polars-series",
        "polars",
        "lazy",
        "no-columns",
        "text",
        "times",
        "levels",
        "surrogate",
    ],
)
def test_what_frames_hold_as_objects_or_in_an_index_is_kept_or_refused(data: object, found: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(data)
    assert found in caught.value.found


def test_categories_and_indexes_of_objects_that_fit_are_kept() -> None:
    days = [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
    frame = pd.DataFrame({"c": pd.Categorical(days)}, index=pd.Index(days, dtype=object, name="k"))
    assert read(frame).to_pydict() == {"c": days, "k": days}
    assert read({"c": pd.Categorical(["x", None], categories=pd.Index(["y", "x"], dtype=object))}).to_pydict() == {
        "c": ["x", None]
    }


@pytest.mark.parametrize(
    ("nest", "value"),
    [
        (lambda kind: pa.struct([("x", kind)]), lambda one: {"x": one}),
        (pa.list_, lambda one: [one]),
        (lambda kind: pa.map_(pa.string(), kind), lambda one: [("x", one)]),
    ],
    ids=["struct", "list", "map"],
)
def test_what_is_nested_as_deep_as_is_taken_is_read_and_deeper_is_refused(
    place: Place, nest: Callable[[Any], Any], value: Callable[[Any], Any]
) -> None:
    def nested(depth: int) -> pa.Table:
        kind, one = pa.int64(), 1
        for _ in range(depth):
            kind, one = nest(kind), value(one)
        return pa.table({"a": pa.array([one], kind)})

    with place.sink() as sink:
        with sink.begin(0) as txn:
            txn.write(nested(48))
        for depth in (49, 130):
            refused = pytest.raises(InvalidRequestError, match="column 'a' is nested more than 48 deep")
            with refused, sink.begin(1) as txn:
                txn.write(nested(depth))
    assert place.table().to_arrow().equals(nested(48))


def test_memory_that_may_change_is_marked() -> None:
    def borrowed(data: object) -> list[bool]:
        return [rows.is_borrowed for rows in tables_of(data, lambda: NOTHING, "write")]

    assert borrowed(pd.DataFrame({"id": [1]})) == [True]
    assert borrowed({"id": np.array([1])}) == [True]
    assert borrowed([pd.DataFrame({"id": [1]}), TABLE]) == [True, True]
    assert borrowed(TABLE.to_reader()) == [False, False]  # its columns first


LENT: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda memory: {"a": memory},
    "pandas": lambda memory: pd.DataFrame({"a": memory}, copy=False),
    "table": lambda memory: pa.table({"a": memory}),
    "batch": lambda memory: pa.record_batch({"a": memory}),
    "polars": lambda memory: pl.DataFrame({"a": memory}),
    "lazy": lambda memory: pl.LazyFrame({"a": memory}),
    "polars series": lambda memory: {"a": pl.Series(memory)},
    "tables": lambda memory: [pa.table({"a": memory})],
}


@pytest.mark.parametrize("kind", LENT)
def test_memory_that_its_owner_uses_again_after_a_write_keeps_the_rows(place: Place, kind: str) -> None:
    memory = np.zeros(3)
    with place.sink() as sink, sink.begin(0) as txn:
        for number in range(4):
            memory[:] = number
            txn.write(LENT[kind](memory))
        memory[:] = 9
    assert sorted(place.table().to_arrow()["a"].to_pylist()) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (TABLE, [True]),
        (TABLE.to_batches()[0], [True]),
        (TABLE.to_pydict(), [True]),
        (ROWS, [True]),
        (TABLE.to_pandas(), [True]),
        (pl.DataFrame(TABLE.to_pydict()), [True]),
        (TABLE.to_reader(), [False, False]),
        ([TABLE, TABLE], [False, False]),
        (iter(ROWS), [False]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_there_as_a_whole_is_told_from_what_may_be_followed_by_more(data: Any, expected: list[bool]) -> None:
    """A part of a stream is kept apart until its end; what is whole needs no such care."""
    assert [rows.is_all for rows in tables_of(data, lambda: NOTHING, "write rows")] == expected


class Odd:
    """Nothing that holds rows."""


@pytest.mark.parametrize(("data", "name"), [(5, "int"), (Odd(), f"{__name__}.Odd"), ("text", "str")])
def test_what_holds_no_rows_is_refused_by_the_name_of_its_type(data: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        list(tables_of(data, lambda: NOTHING, "write rows"))
    assert caught.value.found == f"{name} is no tabular data"
    assert caught.value.context["type"] == name
