"""What errors about rows, columns, types and file options advise, done word for word: every row is there once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from advice import advised
from advised_calls import Wrong, follow, gives
from place import Place
from txsink.staging.epoch_stager import StageOptions

ID: dict[str, Any] = {"id": [1]}
DAY: dict[str, Any] = {**ID, "day": ["a"]}
FIRST = {"id": [0], "n": [7]}
INDEXED = pd.DataFrame(ID, index=["a"])
DEEP: Any = 1
for _ in range(200):
    DEEP = [DEEP]


def typed(kind: Any, *values: Any) -> pa.Table:
    return pa.table({"id": pa.array([1]), "n": pa.array(values or [None], kind)})


def of(column: Any) -> pa.Table:
    return pa.table({"id": pa.array([1]), "n": column})


NOT_UTF8 = pa.array([b"\xff"], pa.binary())
TWICE = pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
UNION = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
FINE = pa.array([1], pa.timestamp("ns"))
UUID = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
LONG = pa.array([Decimal(1)], pa.decimal256(50, 2))
FIELDLESS = pa.array([{}], pa.struct([]))
NULLS = {"id": [1], "n": [[None]]}

ROWS = (
    Wrong(
        "staging.rows._refused",
        "Pass an Arrow table",
        gives(5),
        (gives(pa.table(ID)), gives(pa.table(ID).to_batches())),
    ),
    Wrong(
        "staging.rows._refused",
        "a dict of lists, or an iterable of dicts",
        gives([(1,)]),
        (gives(ID), gives([{"id": 1}])),
    ),
    Wrong("staging.rows._array", "a dict of lists", gives({"id": 1}), (gives(ID),)),
    Wrong(
        "staging.rows._checked", "Pass an Arrow table", gives(pd.DataFrame({"id": [1, "x"]})), (gives(pa.table(ID)),)
    ),
    Wrong("staging.rows._from_mappings", "Name the columns in the rows", gives([{}]), (gives([{"id": 1}]),)),
    Wrong("staging.rows._from_columns", "Name columns with strings", gives({1: [1]}), (gives(ID),)),
    Wrong(
        "staging.rows._from_columns",
        "Give each column the same length",
        gives({**ID, "n": [1, 2]}),
        (gives(typed(None)),),
    ),
    Wrong(
        "staging.rows._array",
        "Give a list of plain values, or an Arrow array",
        gives({**ID, "n": np.array([[1, 2]])}),
        (gives({**ID, "n": np.array([[1, 2]]).tolist()}), gives({**ID, "n": pa.array([[1, 2]])})),
    ),
    Wrong(
        "staging.rows._unfit",
        "Convert the value yourself, rounding as you see fit, or write it under another name",
        gives({**ID, "n": [1.5]}),
        (gives({**ID, "n": [2]}), gives({**ID, "m": [1.5]}, merge_schema=True)),
        FIRST,
        (0, 1),
    ),
    Wrong(
        "staging.rows._from_pandas",
        "Name it to store it as a column, or `reset_index(drop=True)` to drop it",
        gives(INDEXED),
        (gives(INDEXED.rename_axis("key")), gives(INDEXED.reset_index(drop=True))),
    ),
    Wrong("staging.rows._from_pandas", "Give the rows a column", gives(pd.DataFrame(index=range(1))), (gives(ID),)),
    Wrong(
        "staging.rows._without_objects",
        "Give it a type of values",
        gives(pl.DataFrame({"id": [1]}, schema={"id": pl.Object})),
        (gives(pl.DataFrame({"id": [1]}, schema={"id": pl.Int64})),),
    ),
)

COLUMNS = (
    Wrong(
        "staging.conform.too_deep",
        "Cast it to a string, or flatten it",
        gives({**ID, "n": [DEEP]}),
        (gives({**ID, "n": [str(DEEP)]}), gives({**ID, "n": [[1]]})),
    ),
    Wrong("staging.conform.require_typed", "Give the rows a column", gives(pa.table(ID).select([])), (gives(ID),)),
    Wrong(
        "staging.conform.require_typed",
        "Give the data a schema",
        gives({"id": [None]}),
        (gives(pa.table({"id": pa.array([None], pa.int64())})),),
        None,
        (None,),
    ),
    Wrong(
        "staging.conform._converted",
        "Cast it to {} yourself, rounding as you see fit",
        gives(of(FINE)),
        (gives(of(FINE.cast(pa.timestamp("us"), safe=False))),),
    ),
    Wrong(
        "staging.conform.require_sound",
        "Give it as binary",
        gives(of(NOT_UTF8.view(pa.string()))),
        (gives(of(NOT_UTF8)),),
    ),
    Wrong(
        "staging.conform.require_sound",
        "Give each key once",
        gives(of(TWICE)),
        (gives(of(pa.array([[("k", 2)]], TWICE.type))),),
    ),
    Wrong(
        "schema._stored",
        "Cast it to a type the documentation of txsink.schema lists, or drop it",
        gives(of(UNION)),
        (gives(typed(pa.int64(), 1)), gives(ID)),
    ),
    Wrong(
        "schema._stored",
        "Cast it to a decimal of at most {} digits",
        gives(of(LONG)),
        (gives(of(LONG.cast(pa.decimal128(38, 2)))),),
    ),
    Wrong(
        "schema._stored",
        "Cast it to an integer or to a string",
        gives(typed(pa.duration("s"), 5)),
        (gives(typed(pa.int64(), 5)), gives(typed(pa.string(), "5 s"))),
    ),
    Wrong("schema._stored", "Cast it to its storage type, {}", gives(of(UUID)), (gives(of(UUID.storage)),)),
    Wrong(
        "schema._stored",
        "Give the struct a field, or drop it",
        gives(of(FIELDLESS)),
        (gives(of(pa.array([{"a": 1}]))), gives(ID)),
    ),
    Wrong("schema._check_names", "Rename the column", gives({**ID, "": [1]}), (gives({**ID, "n": [1]}),)),
    Wrong(
        "schema._check_names",
        "Rename one: Spark does not tell them apart",
        gives({**ID, "n": [1], "N": [1]}),
        (gives({**ID, "n": [1], "m": [1]}),),
    ),
    Wrong("schema.merge", "Name it {}", gives({"ID": [1]}), (gives(ID),), FIRST, (0, 1)),
    Wrong(
        "schema._new_column",
        "Pass merge_schema=True to add it, or drop it from the data",
        gives(DAY),
        (gives(DAY, merge_schema=True), gives(ID)),
        FIRST,
        (0, 1),
    ),
    Wrong(
        "schema._new_column",
        "Did you mean {}?",
        gives({"ids": [1]}),
        (gives(ID), gives({"ids": [None], **ID}, merge_schema=True)),
        FIRST,
        (0, 1),
    ),
    Wrong(
        "schema._retyped",
        "Cast it to {}, or write it under another name",
        gives({**ID, "n": pa.array(["8"])}),
        (gives({**ID, "n": pa.array(["8"]).cast(pa.int64())}), gives({**ID, "m": pa.array(["8"])}, merge_schema=True)),
        FIRST,
        (0, 1),
    ),
    Wrong("schema._check_typed", "Give the data a schema", gives(NULLS), (gives(typed(pa.list_(pa.int64()), [None])),)),
    Wrong(
        "schema.check_partition_columns",
        "Did you mean {}?",
        gives(DAY, partition_by="dya"),
        (gives(DAY, partition_by="day"),),
    ),
    Wrong(
        "schema.check_partition_columns",
        "Give another partition_by: an empty table takes it",
        gives(DAY, partition_by="week"),
        (gives(DAY, partition_by="day"),),
    ),
    Wrong(
        "schema.check_partition_columns",
        "Leave one column out",
        gives(DAY, partition_by=("id", "day")),
        (gives(DAY, partition_by="day"),),
    ),
    Wrong(
        "schema.partition_text",
        "Change the value, or partition by another column",
        gives({**DAY, "day": [""], "n": [1]}, partition_by="day"),
        (gives({**DAY, "n": [1]}, partition_by="day"), gives({**DAY, "day": [""], "n": [1]}, partition_by="n")),
    ),
)

FILES = (
    Wrong(
        "choices.require_choice",
        "Did you mean {}?",
        gives(ID, compression="zst"),
        (gives(ID, compression="zstd"), gives(ID, compression="none")),
    ),
    Wrong(
        "staging.parquet._bad_option",
        "Use a number from 1 on",
        gives(ID, row_group_rows=0),
        (gives(ID, row_group_rows=1),),
    ),
    Wrong(
        "staging.parquet._bad_option",
        "Drop compression_level, or use zstd or gzip",
        gives(ID, compression="snappy", compression_level=3),
        (
            gives(ID, compression="snappy"),
            gives(ID, compression="zstd", compression_level=3),
            gives(ID, compression="gzip", compression_level=3),
        ),
    ),
    Wrong(
        "staging.parquet._bad_option",
        "Use {} to {} for {}",
        gives(ID, compression="gzip", compression_level=30),
        (gives(ID, compression="gzip", compression_level=9), gives(ID, compression="gzip", compression_level=1)),
    ),
    Wrong(
        "choices.converted",
        "Give {}",
        gives(ID, row_group_rows="many"),
        (gives(ID, row_group_rows=5),),
    ),
)


@pytest.mark.parametrize("case", [*ROWS, *COLUMNS, *FILES], ids=lambda case: f"{case.place}-{case.words[:30]}")
def test_a_call_that_is_changed_as_its_error_says_has_its_rows_once(place: Place, case: Wrong) -> None:
    follow(case, place)


def test_options_of_files_are_those_that_the_message_names() -> None:
    with advised("staging.parquet.of", "Did you mean {}?"):
        StageOptions.of(compresion="snappy")
    with advised("staging.parquet.of", "Known options: {}") as caught:
        StageOptions.of(colour="red")
    assert "compression" in caught.value.advice
    assert StageOptions.of(compression="snappy").compression == "snappy"
