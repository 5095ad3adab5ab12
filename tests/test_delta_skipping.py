"""Readers that skip files by statistics find every row: each answer is that of a twin table without statistics.

Promises: of files that were converted, staged and adopted; of every type, flat and in a struct; with NaN, infinities,
nulls and cut texts; by deltalake's dataset, DataFusion (deltalake's queries), Polars, DuckDB and chDB.
Relies on: `.venv-readers` for DuckDB and chDB; without it theirs are skipped.
Does not promise: Spark's reader, which test_delta_spark_skipping asks.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_skipping import KINDS, Question, asked, made
from place import Place
from test_delta_readers import CHILD_SECONDS, PYTHON

GROUPS = [
    ["long", "text", "flag"],
    ["double", "date"],
    ["decimal", "zoned", "int"],
    ["float", "byte"],
    ["local", "raw", "text"],
    ["double", "flag", "long"],
]
TABLES = 12
PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"delta.dataSkippingNumIndexedCols": "2"},
    {"delta.dataSkippingNumIndexedCols": "-1"},
    {"delta.dataSkippingStatsColumns": "s, id"},
    {"delta.dataSkippingNumIndexedCols": "5"},
)
Answer = Callable[[Path, Question], list[int] | None]


def by_arrow(question: Question) -> pc.Expression:
    column = pc.field("s", question.column) if question.is_nested else pc.field(question.column)
    value = pa.scalar(question.value, KINDS[question.column].type)
    return {
        "null": column.is_null,
        "there": lambda: ~column.is_null(),
        "nan": lambda: pc.is_nan(column),
        "=": lambda: column == value,
        "<": lambda: column < value,
        "<=": lambda: column <= value,
        ">": lambda: column > value,
        ">=": lambda: column >= value,
    }[question.operator]()


def of_dataset(path: Path, question: Question) -> list[int]:
    dataset = deltalake.DeltaTable(str(path)).to_pyarrow_dataset()
    return sorted(dataset.to_table(columns=["id"], filter=by_arrow(question))["id"].to_pylist())


def of_polars(path: Path, question: Question) -> list[int]:
    column = pl.col("s").struct.field(question.column) if question.is_nested else pl.col(question.column)
    kind: Any = pl.from_arrow(pa.array([], KINDS[question.column].type))
    value = pl.lit(question.value, kind.dtype)
    found = {
        "null": column.is_null,
        "there": column.is_not_null,
        "nan": column.is_nan,
        "=": lambda: column == value,
        "<": lambda: column < value,
        "<=": lambda: column <= value,
        ">": lambda: column > value,
        ">=": lambda: column >= value,
    }[question.operator]()
    return sorted(pl.scan_delta(str(path)).filter(found).select("id").collect()["id"].to_list())


def of_datafusion(path: Path, question: Question) -> list[int] | None:
    condition = question.sql()
    if condition is None:
        return None
    queries = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    found = pa.table(queries.execute(f"select id from t where {condition} order by id").read_all())
    return list(found["id"].to_pylist())


READERS: tuple[Answer, ...] = (of_dataset, of_polars, of_datafusion)


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_no_reader_that_skips_files_loses_a_row(tmp_path: Path, group: int) -> None:
    answers = skipped = 0
    for seed in range(group, TABLES, len(GROUPS)):
        chance = random.Random(seed)
        place = Place(tmp_path / f"t{seed}")
        properties = PROPERTIES[seed % len(PROPERTIES)]
        twin = made(place, GROUPS[group], chance, properties)
        for question in asked(GROUPS[group], chance):
            for read in READERS:
                found, expected = read(place.path, question), read(twin, question)
                assert found == expected, (seed, read.__name__, question, properties)
                answers += found is not None
            dataset = deltalake.DeltaTable(str(place.path)).to_pyarrow_dataset()
            skipped += len(list(dataset.get_fragments())) - len(list(dataset.get_fragments(by_arrow(question))))
    assert skipped, "no file was skipped, so nothing was shown"
    print(f"\n{answers} answers of readers that skip files, {skipped} files skipped")


# Of each reader that runs elsewhere: how it names a field of the struct, and how its SQL spells some words.
CHILDREN: dict[str, tuple[str, dict[str, str]]] = {
    "duckdb": ('s."{}"', {"timestamp(6) with time zone": "timestamptz"}),
    "chdb": ("tupleElement(s, '{}')", {"isnan(": "isNaN("}),
}
# chDB has no dates before 1900, and no name for a time of microseconds that others have as well.
TABLES_OF = {"duckdb": (0, 1, 2, 3, 4), "chdb": (0, 3)}
UNASKED: dict[str, set[str]] = {"duckdb": {"raw"}, "chdb": {"raw", "date", "local", "zoned"}}


@pytest.mark.parametrize("reader", ["duckdb", "chdb"])
def test_no_other_engine_that_skips_files_loses_a_row(tmp_path: Path, reader: str) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no .venv-readers: make .venv-readers/made")
    check(reader, PYTHON, tmp_path)


def check(reader: str, python: Path, directory: Path) -> None:
    """Each answer is that of the twin; a table whose statistics lie loses rows, so the reader believes them."""
    dot, words = CHILDREN[reader]
    tasks: list[tuple[str, list[str]]] = []
    for seed in TABLES_OF[reader]:
        names = GROUPS[seed]
        chance = random.Random(100 + seed)
        place = Place(directory / f"t{seed}")
        twin = made(place, names, chance, PROPERTIES[seed % len(PROPERTIES)])
        found = [question.sql(dot=dot) for question in asked(names, chance) if question.column not in UNASKED[reader]]
        conditions = [one for one in found if one is not None]
        for old, new in words.items():
            conditions = [condition.replace(old, new) for condition in conditions]
        tasks += [(str(place.path), conditions), (str(twin), conditions)]
    liar = lying(Place(directory / "liar"))
    answers = answered(reader, python, directory, [*tasks, (str(liar), ["id >= 0", "id is not null"])])
    for (path, conditions), own, twins in zip(tasks[::2], answers[:-1:2], answers[1:-1:2], strict=True):
        for condition, found_in, expected in zip(conditions, own, twins, strict=True):
            assert found_in == expected, (reader, path, condition)
    assert any(any(one) for one in answers[:-1])
    assert answers[-1] == [[], [1]], f"{reader} skips no file by statistics, so nothing was shown"
    print(f"\n{sum(map(len, answers[:-1:2]))} answers of {reader}")


def lying(place: Place) -> Path:
    """A table of one row, of which the statistics say that its id is below 0."""
    place.write(0, {"id": [1]}, layout="delta")
    for log in (place.path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                told = {"minValues": {"id": -9}, "maxValues": {"id": -5}, "nullCount": {"id": 0}, "numRecords": 1}
                line["add"]["stats"] = json.dumps(told)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place.path


def answered(reader: str, python: Path, directory: Path, tasks: list[tuple[str, list[str]]]) -> list[list[list[int]]]:
    """What the reader finds, in a process of its own."""
    asking, told = directory / "tasks", directory / "answers"
    asking.write_text(json.dumps(tasks))
    command = [str(python), str(Path(__file__).with_name("delta_skipping_child.py")), reader]
    # chDB reads what lies below the working directory.
    done = subprocess.run(
        [*command, str(asking), str(told)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[list[int]]] = json.loads(told.read_text())
    return found
