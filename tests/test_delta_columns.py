"""Columns that come and go in a Delta table while txsink writes: no value is committed where no column is (I1)."""

from __future__ import annotations

from typing import Any

import deltalake
import pyarrow as pa
import pytest

from place import Place
from txsink.errors import ConflictError, InvalidRequestError
from txsink.writer import Sink


def rows(*ids: int, **more: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **more})


def commit(sink: Sink, epoch: int, data: pa.Table) -> None:
    with sink.begin(epoch) as txn:
        txn.write(data)


def drop_x(place: Place) -> None:
    """As Spark does with `overwriteSchema`: the rows stay, without the column."""
    kept = pa.table(deltalake.DeltaTable(str(place.path)).to_pyarrow_table(columns=["id"]))
    deltalake.write_deltalake(str(place.path), kept, mode="overwrite", schema_mode="overwrite")


def read(place: Place) -> list[dict[str, Any]]:
    found = pa.table(deltalake.DeltaTable(str(place.path)).to_pyarrow_table())
    assert found.num_rows == place.table().to_arrow().num_rows
    return sorted(found.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("is_open", [True, False], ids=["open writer", "new writer"])
def test_values_of_a_column_that_another_program_dropped_are_refused_and_no_row_vanishes(
    place: Place, is_open: bool
) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0, rows(0, x=[1.5]))
    drop_x(place)
    if not is_open:
        sink = place.sink()
    with pytest.raises(InvalidRequestError, match="no column 'x'"):
        commit(sink, 1, rows(1, x=[2.5]))
    commit(sink, 1, rows(1))
    assert read(place) == [{"id": 0}, {"id": 1}]


def test_a_dropped_column_comes_back_with_its_values_when_new_columns_may_come(place: Place) -> None:
    commit(place.sink(layout="delta"), 0, rows(0, x=[1.5]))
    drop_x(place)
    sink = place.sink(merge_schema=True)
    commit(sink, 1, rows(1, x=["text now"]))
    commit(sink, 2, rows(2, x=["once more"]))
    assert read(place) == [{"id": 0, "x": None}, {"id": 1, "x": "text now"}, {"id": 2, "x": "once more"}]
    assert place.table().schema.field("x").type == pa.string()


def test_a_column_dropped_between_prepare_and_publish_is_a_conflict_that_can_be_aborted(place: Place) -> None:
    sink = place.sink(layout="delta")
    commit(sink, 0, rows(0, x=[1.5]))
    txn = sink.begin(1)
    txn.write(rows(1, x=[2.5]))
    txn.prepare()
    drop_x(place)
    with pytest.raises(ConflictError, match="no column 'x' any more"):
        sink.commit(1)
    sink.abort(1)
    commit(sink, 1, rows(1))
    assert read(place) == [{"id": 0}, {"id": 1}]
