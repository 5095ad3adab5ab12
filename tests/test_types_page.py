"""docs/types.md says what each reader makes of each type: this is compared with what they make of it."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lossless import DAY_NANOSECONDS, OF_ARROW, PLAIN, UTC, WIDE, canonical_rows
from other_readers import by_duckdb, by_polars, files_in, plain, spark_frame
from place import Place

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
FLAT = re.compile(r"\| `([^`]+)` \|" + r" ([^|]+) \|" * 4)
FLAT_OF_ARROW = re.compile(r"^\| `([^`]+)` \|" + r" ([^|]+) \|" * 3 + "$", re.MULTILINE)
READERS = ("txsink, pyarrow", "DuckDB", "Polars", "Spark")
INF, NAN = float("inf"), float("nan")
TIMES = [
    dt.datetime(1, 1, 1, tzinfo=UTC),
    dt.datetime(1582, 10, 14, 1, tzinfo=UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]


def extremes(kind: Any) -> list[Any]:
    """Values at the ends of a type, and null."""
    types = pa.types
    if types.is_integer(kind):
        bits, is_signed = kind.bit_width, types.is_signed_integer(kind)
        found: list[Any] = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if is_signed else [0, 2**bits - 1]
    elif types.is_floating(kind):
        found = [-0.0, 0.0, NAN, INF, -INF, 0.5]
    elif types.is_decimal(kind):
        found = [Decimal(sign * (10**kind.precision - 1)).scaleb(-kind.scale, WIDE) for sign in (1, -1)]
    elif types.is_timestamp(kind) and kind.unit == "ns":
        found = [-(2**63) + 1, -1, 1, 2**63 - 1]
    elif types.is_time(kind):
        found = [0, DAY_NANOSECONDS // {"ms": 10**6, "us": 10**3, "ns": 1}[kind.unit] - 1]
    elif types.is_timestamp(kind):
        found = list(TIMES) if kind.tz else [moment.replace(tzinfo=None) for moment in TIMES]
    elif types.is_date(kind):
        found = [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]
    else:
        others: dict[str, list[Any]] = {
            "bool": [True, False],
            "string": ["", "a\x00b", "日本😀"],
            "binary": [b"", b"\x00\xff"],
            "list": [[1, None], []],
            "struct": [{"x": 1, "y": "a"}, {"x": None, "y": None}],
            "map": [[("k", 1), ("l", None)], []],
        }
        found = others[str(kind).partition("<")[0]]
    return [*found, None]


NESTED = (
    pa.list_(pa.int64()),
    pa.struct([("x", pa.int64()), ("y", pa.string())]),
    pa.map_(pa.string(), pa.int64()),
)
DECIMALS = (pa.decimal128(5, 2), pa.decimal128(18, 3), pa.decimal128(38, 0))
KINDS = [*(kind for kind in PLAIN if not pa.types.is_decimal(kind)), *DECIMALS, *NESTED]
# What only tables of `types="arrow"` hold, and Spark's doors refuse.
KINDS_OF_ARROW = [kind for kind in OF_ARROW if not pa.types.is_decimal(kind) or kind.precision != kind.scale]
Read = Callable[[Path, Sequence[str]], pa.Table]


class Row(NamedTuple):
    """One row of the page: what each reader makes of the type."""

    kind: str
    made: tuple[str, ...]


def page(form: re.Pattern[str] = FLAT) -> dict[str, Row]:
    rows = [
        Row(found[1], tuple(part.strip() for part in found.groups()[1:])) for found in form.finditer(PAGE.read_text())
    ]
    return {row.kind: row for row in rows}


def write(place: Place, kind: pa.DataType, **options: Any) -> pa.Table:
    """A table with one column of the type, which is what was given."""
    given = pa.table({"id": range(len(extremes(kind))), "c": pa.array(extremes(kind), kind)})
    place.write(0, given, **options)
    stored = place.table().to_arrow()
    assert stored.schema.field("c").type == kind
    assert canonical_rows(stored, given.schema) == canonical_rows(given, given.schema)
    return stored


def made(kind: pa.DataType, expected: pa.Table, read: Callable[[], pa.Table]) -> str:
    """What a reader makes of a table of the type, in the words of the page."""
    try:
        found = read()
    except Warning:  # of how this test asks
        raise
    except Exception:  # noqa: BLE001 -- whatever the reader raises
        return "unreadable"
    same = Counter(canonical_rows(found, expected.schema)) == Counter(canonical_rows(expected, expected.schema))
    if not same:
        return "other values"
    other = plain(found.schema.field("c").type)
    return "equal" if other == kind else f"mapped to `{other}`"


def by_pyarrow(path: Path, names: Sequence[str]) -> pa.Table:
    return pa.concat_tables(pq.read_table(file, columns=list(names)) for file in files_in(path))


def by_spark(spark: Any, path: Path) -> pa.Table:
    found: pa.Table = spark_frame(spark, path, ["id", "c"]).toArrow()
    return found


def compare(
    capsys: pytest.CaptureFixture[str],
    what: str,
    found: dict[str, list[str]],
    columns: slice,
    form: re.Pattern[str] = FLAT,
) -> None:
    said = {kind: list(row.made[columns]) for kind, row in page(form).items()}
    words = Counter(word.partition(" ")[0] for row in found.values() for word in row)
    with capsys.disabled():
        print(f"\n{what}: {len(found)} types, {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}")
    assert found == said


READS: tuple[Read, ...] = (by_pyarrow, by_duckdb, by_polars)


def test_the_page_says_what_each_reader_makes_of_each_type(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = {}
    for number, kind in enumerate(KINDS):
        place = Place(tmp_path / str(number))
        expected = write(place, kind)
        found[str(kind)] = [made(kind, expected, partial(read, place.path, ["id", "c"])) for read in READS]
    compare(capsys, "types by pyarrow, DuckDB and Polars", found, slice(0, 3))


def test_the_page_says_what_each_reader_makes_of_each_type_of_arrow(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {}
    for number, kind in enumerate(KINDS_OF_ARROW):
        place = Place(tmp_path / str(number))
        expected = write(place, kind, types="arrow")
        found[str(kind)] = [made(kind, expected, partial(read, place.path, ["id", "c"])) for read in READS]
    compare(capsys, "types of Arrow by pyarrow, DuckDB and Polars", found, slice(0, 3), FLAT_OF_ARROW)


def test_the_page_says_what_spark_makes_of_each_type(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spark: Any
) -> None:
    found = {}
    for number, kind in enumerate(KINDS):
        place = Place(tmp_path / str(number))
        expected = write(place, kind)
        found[str(kind)] = [made(kind, expected, partial(by_spark, spark, place.path))]
    compare(capsys, "types by Spark", found, slice(3, 4))
