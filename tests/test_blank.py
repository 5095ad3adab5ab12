"""A table that never held a row takes another layout and other partition columns: the first word is no trap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import txsink
from place import Place, kinds, rows, staged_files
from seen import rows_of
from txsink.errors import ConflictError, InvalidRequestError
from txsink.protocol import blank

DATA = pa.table({"id": [1, 2], "day": ["a", "b"]})


def test_a_typo_in_the_first_partition_by_is_corrected_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with (
        pytest.raises(InvalidRequestError, match="an empty table takes it"),
        txsink.open_writer(path, "w", partition_by="dya") as sink,
        sink.begin(1) as txn,
    ):
        txn.write(DATA)
    txsink.write(path, DATA, writer="w", epoch=1, partition_by="day")
    assert sorted(one.name for one in path.glob("day=*")) == ["day=a", "day=b"]
    assert ds.dataset(path, partitioning="hive").to_table().num_rows == 2
    with pytest.raises(InvalidRequestError, match="only one without rows takes another partition_by"):
        txsink.open_writer(path, "w", partition_by="id")


@pytest.mark.parametrize(("first", "then"), [("parquet", "delta"), ("delta", "parquet")])
def test_a_table_without_rows_takes_another_layout(place: Place, first: str, then: str) -> None:
    place.sink(layout=first).close()
    with place.sink(layout=then) as sink, sink.begin(1) as txn:
        txn.write(rows(1))
    assert (place.table().layout, rows_of(place.path)) == (then, [1])
    assert kinds(place).count("convert") == 1
    with pytest.raises(InvalidRequestError, match=f"its layout is {then}, not {first}"):
        place.sink(layout=first)


def test_what_lies_staged_in_the_one_layout_is_swept_before_the_other_comes(place: Place) -> None:
    """I9."""
    old = place.sink(layout="parquet")
    txn = old.begin(1)
    txn.add(txn.stager().stage(rows(1)))
    with pytest.raises(ConflictError, match="without layout first"):
        place.sink(layout="delta")
    place.sink().close()
    assert staged_files(place) == []
    assert place.sink(layout="delta").log.state.layout == "delta"


def test_what_a_run_stages_after_its_empty_table_took_another_layout_is_swept(place: Place) -> None:
    """I1: under a final name, where readers of the directory take it for rows."""
    txn = place.sink(layout="delta").begin(1)
    place.sink("v", layout="parquet").close()
    txn.stager().stage(rows(1))
    assert len([*place.path.glob("*.parquet")]) == 1
    with place.sink() as sink:
        assert [*place.path.glob("*.parquet")] == []
        with sink.begin(1) as again:
            again.write(rows(1))
    assert rows_of(place.path) == [1]


@pytest.mark.parametrize("options", [{"partition_by": "id"}, {"layout": "delta"}])
def test_a_writer_that_was_open_meanwhile_is_refused(place: Place, options: dict[str, Any]) -> None:
    """I6: what it staged lies where the table no longer looks."""
    old = place.sink("old", layout="parquet")
    place.sink("new", **options).close()
    with (
        pytest.raises((InvalidRequestError, ConflictError), match=r"the table by|was converted"),
        old.begin(1) as txn,
    ):
        txn.write(DATA)
    old.close()
    assert staged_files(place) == []


@pytest.mark.parametrize("ends", ["pending", "aborted", "committed", "overwritten"])
def test_a_table_that_holds_rows_or_may_get_them_keeps_its_partition_columns(place: Place, ends: str) -> None:
    with place.sink() as sink:
        txn = sink.begin(1)
        txn.write(DATA)
        txn.prepare()
        if ends == "aborted":
            sink.abort(1)
        elif ends != "pending":
            sink.commit(1)
        if ends == "overwritten":
            sink.begin(2, mode="overwrite").commit()
    if ends == "aborted":
        place.sink(partition_by="day").close()
    else:
        with pytest.raises(InvalidRequestError, match="it is partitioned by"):
            place.sink("v", partition_by="day")


def test_what_is_prepared_meanwhile_keeps_the_table_as_it_is(place: Place) -> None:
    sink, other = place.sink(), place.sink("v")
    at = sink.log.state
    txn = other.begin(1)
    txn.write(DATA)
    txn.prepare()
    blank.lay_anew(sink.log, at, "parquet", ("day",))
    assert sink.log.state.partition_columns == ()


def test_a_delta_table_that_is_there_says_how_it_is_partitioned(place: Place) -> None:
    with place.sink(layout="delta") as sink, sink.begin(1) as txn:
        txn.write(DATA)
    with pytest.raises(InvalidRequestError, match="it is partitioned by"):
        place.sink(partition_by="day")


def test_a_delta_table_that_another_program_made_meanwhile_is_not_taken_over(place: Place) -> None:
    """I1: its rows would be the table's, as no entry says."""
    place.sink(layout="parquet").close()
    deltalake.write_deltalake(str(place.path), DATA)
    with pytest.raises(InvalidRequestError, match="its layout is parquet, not delta"):
        place.sink(layout="delta")
