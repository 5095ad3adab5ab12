"""Columns that come and go in a Delta table while txsink writes: no value is committed where no column is (I1)."""

from __future__ import annotations

import json
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from place import Place
from txsink.cli.commands import convert
from txsink.errors import ConflictError, InvalidRequestError
from txsink.writing.writer import Writer


def rows(*ids: int, **more: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **more})


def commit(sink: Writer, epoch: int, data: pa.Table) -> None:
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


@pytest.mark.parametrize(("before", "after"), [([], ["x"]), (["x"], []), (["x"], ["y"])], ids=str)
def test_a_table_that_another_program_partitioned_anew_is_read_as_it_is(
    place: Place, before: list[str], after: list[str]
) -> None:
    commit(place.sink(layout="delta", partition_by=before), 0, rows(0, x=[7], y=["a"]))
    table = place.table()
    anew = rows(1, x=[8], y=["b"])
    deltalake.write_deltalake(str(place.path), anew, mode="overwrite", schema_mode="overwrite", partition_by=after)
    assert read(place) == [{"id": 1, "x": 8, "y": "b"}]
    for found in (place.table(), table.refresh()):
        assert found.to_arrow().to_pylist() == [{"id": 1, "x": 8, "y": "b"}]
        assert found.partition_columns == after
        assert [file.partition for file in found.files()] == [{name: anew[name][0].as_py() for name in after}]
        assert found.file_list().num_rows == 1


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


@pytest.mark.parametrize("again", [None, ["text now"]], ids=["dropped", "of another type"])
def test_a_table_whose_columns_another_program_changed_is_not_converted(place: Place, again: list[Any] | None) -> None:
    """Our log would tell the former ones, although all files are ours."""
    commit(place.sink(layout="delta"), 0, rows(0, x=[1.5]))
    drop_x(place)
    place.write(1, rows(1, **({} if again is None else {"x": again})), mode="overwrite", merge_schema=True)
    with pytest.raises(ConflictError, match="'x'") as found:
        convert(str(place.path), "parquet", yes=True)
    assert "write what was read to another path" in found.value.advice
    assert place.table().to_arrow().num_rows == 1


# -- values that a column does not take -------------------------------------------------------------------

LONG: dict[str, Any] = {"type": "long", "nullable": True, "metadata": {}}
TEXT: dict[str, Any] = {"type": "string", "nullable": True, "metadata": {}}


def struct(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, **field} for name, field in fields.items()]}


def one(kind: Any, metadata: dict[str, str] | None = None, *, nullable: bool = True) -> dict[str, Any]:
    return {"type": kind, "nullable": nullable, "metadata": metadata or {}}


def listed(kind: Any, *, nulls: bool) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": nulls}


def mapped(kind: Any, *, nulls: bool) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": nulls}


def pairs(*values: Any) -> pa.Array:
    return pa.array(values, pa.map_(pa.string(), pa.int64()))


VARCHAR, CHAR = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}
REQUIRED = struct(a=one("long", nullable=False))

# By name: the field `x`, a column that fits, one that does not, and what the refusal names.
ASKED: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "column": (one("long", nullable=False), [1, 2], [1, None], "'x'"),
    "struct": (
        one(struct(a=LONG, b=LONG), nullable=False),
        [{"a": None, "b": 1}, {"a": 1, "b": None}],
        pa.array([{"a": 1, "b": 1}, None], pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        "'x'",
    ),
    "field": (
        one(REQUIRED),
        pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
        [{"a": 1}, {"a": None}],
        "'x.a'",
    ),
    "field of a field": (one(struct(s=one(REQUIRED))), [{"s": {"a": 1}}], [{"s": {"a": None}}], "'x.s.a'"),
    "list": (
        one(listed("long", nulls=True), nullable=False),
        [[None], []],
        pa.array([[1], None], pa.list_(pa.int64())),
        "'x'",
    ),
    "element": (
        one(listed("long", nulls=False)),
        pa.array([[1], None, []], pa.list_(pa.int64())),
        [[1], [1, None]],
        "'x.element'",
    ),
    "field in a list": (one(listed(REQUIRED, nulls=True)), [[{"a": 1}, None]], [[{"a": None}]], "'x.element.a'"),
    "value": (one(mapped("long", nulls=False)), pairs([("k", 1)], None), pairs([("k", None)]), "'x.value'"),
    "varchar": (one("string", VARCHAR), ["äöü", None, ""], ["abcd"], "varchar"),
    "char": (one("string", CHAR), ["abc", None], ["ab"], "char"),
    "varchar in a struct": (one(struct(t=one("string", VARCHAR))), [{"t": "abc"}], [{"t": "abcd"}], "'x.t'"),
}


def foreign(place: Place, *fields: dict[str, Any], by: tuple[str, ...] = ()) -> None:
    """An empty table that another engine made."""
    log = place.path / "_delta_log"
    log.mkdir(parents=True)
    text = json.dumps({"type": "struct", "fields": list(fields)})
    body = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": text}
    metadata = {"metaData": {**body, "partitionColumns": list(by), "configuration": {}, "createdTime": 0}}
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, metadata]
    (log / f"{0:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("beyond", [0, 40], ids=["first", "beyond what has statistics"])
@pytest.mark.parametrize("name", ASKED)
def test_what_a_column_takes_is_committed_and_what_it_does_not_is_refused(place: Place, name: str, beyond: int) -> None:
    field, good, bad, named = ASKED[name]
    more = {f"c{at}": [at] for at in range(beyond)}
    foreign(place, *({"name": column, **LONG} for column in ("id", *more)), {"name": "x", **field})

    def data(values: Any) -> pa.Table:
        count = len(values)
        return pa.table({"id": list(range(count)), **{c: v * count for c, v in more.items()}, "x": values})

    with place.sink() as sink:
        commit(sink, 0, data(good))
        with pytest.raises(InvalidRequestError, match=named):
            commit(sink, 1, data(bad))
        commit(sink, 1, data(good))
        if name == "column":
            with pytest.raises(InvalidRequestError, match=named):
                commit(sink, 2, data(good).drop_columns(["x"]))
    # The dataset of deltalake cannot read a struct that is null and has a field that takes no nulls.
    assert pl.scan_delta(str(place.path)).select("id").collect().height == 2 * len(good)
    assert place.table().to_arrow().num_rows == 2 * len(good)


def test_a_partition_takes_no_null_and_no_text_that_its_column_does_not(place: Place) -> None:
    foreign(place, {"name": "id", **LONG}, {"name": "x", **one("string", VARCHAR, nullable=False)}, by=("x",))
    with place.sink() as sink:
        for bad, named in ((None, "takes no nulls"), ("abcd", "varchar")):
            with pytest.raises(InvalidRequestError, match=named):
                commit(sink, 0, pa.table({"id": [1], "x": pa.array([bad], pa.string())}))
        commit(sink, 0, pa.table({"id": [1], "x": ["abc"]}))
    assert read(place) == [{"id": 1, "x": "abc"}]


def test_char_within_another_type_is_refused_by_name(place: Place) -> None:
    field = one(listed("string", nulls=True), {"__CHAR_VARCHAR_TYPE_STRING": "array<varchar(3)>"})
    foreign(place, {"name": "id", **LONG}, {"name": "x", **field})
    with pytest.raises(InvalidRequestError, match="char or varchar within another type"):
        place.sink()


def test_a_column_that_took_nulls_when_an_epoch_was_prepared_is_looked_at_when_it_is_published(place: Place) -> None:
    """The record of the file says nothing of a list, so that the file is read."""
    fields = {"name": "id", **LONG}, {"name": "x", **one(listed("long", nulls=True))}
    foreign(place, *fields)
    sink = place.sink()
    txn = sink.begin(0)
    txn.write(pa.table({"id": [1], "x": [[None]]}))
    txn.prepare()
    text = json.dumps({"type": "struct", "fields": [fields[0], {"name": "x", **one(listed("long", nulls=False))}]})
    log = place.path / "_delta_log" / f"{1:020d}.json"
    metadata = [json.loads(line) for line in (log.parent / f"{0:020d}.json").read_text().splitlines()][1]["metaData"]
    log.write_text(json.dumps({"metaData": {**metadata, "schemaString": text}}) + "\n")
    with pytest.raises(InvalidRequestError, match=r"'x\.element'"):
        sink.commit(0)
    sink.abort(0)
    assert sink.pending == []
