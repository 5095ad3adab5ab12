"""Whoever reads Delta reads the same of every table that txsink writes: deltalake, Polars, DuckDB and chDB.

Promises: equal as multisets, now and at each version; with every kind of column and partition value; and with filters,
by which readers skip files that statistics exclude.
Relies on: `.venv-readers` for DuckDB, whose extension is of one version, and chDB; without it theirs are skipped.
Does not promise: Spark's reader, which test_delta_spark asks.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import feather

import txsink
from delta_tables import FLAT, LIFE, LOCAL_TIME, NAN, NESTED
from place import Place
from test_table_s3 import ESCAPED

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-readers" / "bin" / "python"
CHILD_SECONDS = 300

Read = Callable[[Path, Sequence[str]], pa.Table]


def by_deltalake(path: Path, columns: Sequence[str]) -> pa.Table:
    return deltalake.DeltaTable(str(path)).to_pyarrow_table(columns=list(columns))


def by_polars(path: Path, columns: Sequence[str]) -> pa.Table:
    return pl.scan_delta(str(path)).select(columns).collect().to_arrow()


def by_child(reader: str, path: Path, columns: Sequence[str]) -> pa.Table:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-readers: make .venv-readers/made")
    script, to = Path(__file__).with_name("delta_readers_child.py"), path.parent / f"{reader}.arrow"
    command = [str(PYTHON), str(script), reader, str(path), json.dumps(list(columns)), str(to)]
    # chDB reads what lies below the working directory.
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False, timeout=CHILD_SECONDS)
    assert done.returncode == 0, done.stderr
    return feather.read_table(to)


def by_duckdb(path: Path, columns: Sequence[str]) -> pa.Table:
    return by_child("duckdb", path, columns)


def by_chdb(path: Path, columns: Sequence[str]) -> pa.Table:
    return by_child("chdb", path, columns)


READERS: tuple[Read, ...] = (by_deltalake, by_polars, by_duckdb, by_chdb)
all_readers = pytest.mark.parametrize("read", READERS)


def multiset(rows: pa.Table, known: pa.Schema) -> list[str]:
    """Rows as text, in no order, with the types that the table has."""
    wanted = pa.schema([known.field(name) for name in rows.schema.names])
    return sorted(map(repr, pa.table(rows.columns, names=rows.schema.names).cast(wanted).to_pylist()))


def same(table: txsink.Table, path: Path, read: Read, columns: Sequence[str] = ()) -> None:
    names = columns or table.schema.names
    expected = table.to_arrow(columns=names)
    assert multiset(read(path, names), table.schema) == multiset(expected, table.schema)


# -- columns ----------------------------------------------------------------------------------------------


@all_readers
def test_every_type_comes_back(place: Place, read: Read) -> None:
    """S2. chDB has no null in place of a list, so that it is not asked for these."""
    given = {**FLAT, **LOCAL_TIME, **({} if read is by_chdb else NESTED)}
    if read is by_chdb:
        del given["ein Name.mit=Allem %ü"]
    place.write(0, pa.table(given), layout="delta")
    same(place.table(), place.path, read)
    known = place.table().schema
    assert multiset(place.table().to_arrow(), known) == multiset(pa.table(given), known)


# -- partitions -------------------------------------------------------------------------------------------


@all_readers
def test_every_partition_value_comes_back(place: Place, read: Read) -> None:
    """S3: with what escapes it, without, and null."""
    place.write(0, {"id": list(range(len(ESCAPED))), "p q": ESCAPED}, layout="delta", partition_by=["p q"])
    same(place.table(), place.path, read, ["id", "p q"])
    assert sorted(map(str, place.table().to_arrow()["p q"].to_pylist())) == sorted(map(str, ESCAPED))


PARTITIONED = ("b", "i32", "i64", "dec", "day", "at", "text")


@all_readers
@pytest.mark.parametrize("name", PARTITIONED)
def test_partitions_of_every_type_come_back(place: Place, read: Read, name: str) -> None:
    values = FLAT[name]
    if name == "text":  # empty text is no partition value
        values = values.slice(1)
    if name == "dec" and read is by_deltalake:  # it spells -1.99 as -1.-99
        values = pc.abs(values)
    place.write(0, pa.table({"id": list(range(len(values))), name: values}), layout="delta", partition_by=[name])
    same(place.table(), place.path, read, ["id", name])


# -- what happens to tables -------------------------------------------------------------------------------


@pytest.fixture
def lived(tmp_path: Path) -> Place:
    """Appends, an empty epoch, new columns, both overwrites, an abort; in a directory that is no plain word."""
    place = Place(tmp_path / "output @#output")
    with place.sink(layout="delta", partition_by=["p"], merge_schema=True) as sink:
        for epoch, rows, options in LIFE:
            with sink.begin(epoch, **options) as txn:
                if rows is not None:
                    txn.write(rows)
        dropped = sink.begin(8)
        dropped.write({"id": [99], "p": ["a"]})
        dropped.abort()
        waiting = sink.begin(9)
        waiting.write({"id": [98], "p": ["a"]})
        waiting.prepare()
    return place


@all_readers
def test_a_table_that_has_lived_is_the_same_for_all(lived: Place, read: Read) -> None:
    """I1, while an epoch is prepared. To chDB and Polars, `#` is the end of a path: they get a plainer one."""
    if read in {by_chdb, by_polars}:
        lived.path = lived.path.rename(lived.path.with_name("output"))
    same(lived.table(), lived.path, read)
    assert sorted(lived.table().to_arrow()["id"].to_pylist()) == [8, 9]


def test_each_version_of_ours_is_one_of_deltas(lived: Place) -> None:
    """What is read of a version is what deltalake reads of Delta's version of that moment."""
    table = lived.table()
    seen: list[list[int]] = []
    for entry in table.history()[::-1]:
        if entry.kind == "commit":
            ours = table.to_arrow(entry.version)
            at = len(seen)
            found = deltalake.DeltaTable(str(lived.path), version=at).to_pyarrow_table()
            assert multiset(found, table.schema) == multiset(ours, table.schema)
            seen.append(sorted(ours["id"].to_pylist()))
    assert seen == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4], [1, 3, 4, 5, 6], [1, 3, 4, 5, 6, 7], [8], [8, 9]]


# -- statistics -------------------------------------------------------------------------------------------


def test_readers_skip_files_by_statistics_and_lose_no_row(place: Place) -> None:
    """NaN is larger than all to some readers, and than none to Parquet; a text may be cut; a null is no value."""
    files: list[dict[str, Any]] = [
        {"id": [1, 2], "f": [1.0, NAN], "s": ["a" * 100, "b"]},
        {"id": [3], "f": [None], "s": [None]},
        {"id": [4, 5], "f": [-5.0, 7.5], "s": ["\U0010ffff" * 40, "z"]},
        {"id": [6], "f": [NAN], "s": [""]},
        {"id": [7], "f": [2.5], "s": ["b"]},
    ]
    known = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
    for epoch, rows in enumerate(files):
        place.write(epoch, pa.table(rows, schema=known), layout="delta")
    table = place.table()
    everything = table.to_arrow()
    dataset = deltalake.DeltaTable(str(place.path)).to_pyarrow_dataset()
    frame = pl.scan_delta(str(place.path))
    asked = {
        "least": (pc.field("id") >= 4, pl.col("id") >= 4),
        "none": (pc.field("id") > 6, pl.col("id") > 6),
        "smaller": (pc.field("f") < 2, pl.col("f") < 2),
        "larger": (pc.field("f") > 2, pl.col("f") > 2),
        "nan": (pc.is_nan(pc.field("f")), pl.col("f").is_nan()),
        "null": (pc.field("f").is_null(), pl.col("f").is_null()),
        "text": (pc.field("s") == "a" * 100, pl.col("s") == "a" * 100),
        "late text": (pc.field("s") > "zz", pl.col("s") > "zz"),
        "empty": (pc.field("s") == "", pl.col("s") == ""),
    }
    for name, (by_arrow, by_frame) in asked.items():
        expected = sorted(everything.filter(by_arrow)["id"].to_pylist())
        # Footers leave NaN out, so that pyarrow passes by a row group with a NaN beside numbers, in any Parquet file.
        if name != "nan":
            assert sorted(dataset.to_table(filter=by_arrow)["id"].to_pylist()) == expected, name
        # To Polars NaN is larger than every number.
        own = sorted(pl.from_arrow(everything).filter(by_frame)["id"].to_list())
        assert sorted(frame.filter(by_frame).collect()["id"].to_list()) == own, name
    actions = pa.table(deltalake.DeltaTable(str(place.path)).get_add_actions(flatten=True))
    # A NaN, and a text that nothing bounds, take the bounds of every column of their file away.
    assert sorted(actions["min.id"].to_pylist(), key=str) == [3, 7, None, None, None]
    skipped = [len(list(dataset.get_fragments(pc.field("id") >= bound))) for bound in (0, 4, 8)]
    assert skipped == [5, 4, 3], "no file was skipped, so nothing was shown"
