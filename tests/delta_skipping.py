"""Tables whose files have statistics, twins of them without any, and the questions that both have to answer alike.

A reader that skips files by statistics reads each file of the twin, so the twin's answer is that reader's own truth.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from place import Place
from txsink.cli.commands import convert
from txsink.records import Column
from txsink.schema import columns_of

UTC = timezone.utc
FILES = 6
TEXTS = ["", "a", "b", "a" * 32, "a" * 33, "a" * 40, "z" * 40, "\ud7ff" * 33, "\U0010ffff" * 33, "é", "A"]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -2.25, 3.0, 2.0**70, -(2.0**70)]
MOMENTS = [
    datetime.fromisoformat(text)
    for text in (
        "1583-01-01",
        "1969-12-31T23:59:59.999999",
        "1970-01-01",
        "2024-02-29T01:02:03.456789",
        "2024-02-29T01:02:03.456001",
        "2200-01-01",
    )
]


class Kind(NamedTuple):
    """A type, values of it, and how a literal is written in SQL."""

    type: pa.DataType
    values: Sequence[Any]
    sql: Callable[[Any], str] | None = None


KINDS: dict[str, Kind] = {
    "long": Kind(pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1], str),
    "int": Kind(pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1], str),
    "byte": Kind(pa.int8(), [-128, -1, 0, 1, 127], str),
    "flag": Kind(pa.bool_(), [True, False], lambda value: str(value).lower()),
    "text": Kind(pa.string(), TEXTS, lambda value: f"'{value}'"),
    "double": Kind(pa.float64(), FLOATS, lambda value: f"cast('{value}' as double)"),
    "float": Kind(pa.float32(), FLOATS, lambda value: f"cast('{value}' as real)"),
    "decimal": Kind(
        pa.decimal128(38, 10),
        [
            Decimal(f"{sign}{text}")
            for sign in ("", "-")
            for text in ("0.0000000001", "12345678901.5", f"{'9' * 28}.5", "0")
        ],
        lambda value: f"cast('{value:f}' as decimal(38, 10))",
    ),
    "date": Kind(
        pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)], lambda v: f"date '{v}'"
    ),
    "local": Kind(pa.timestamp("us"), MOMENTS, lambda value: f"cast('{value}' as timestamp(6))"),
    "zoned": Kind(
        pa.timestamp("us", "UTC"),
        [one.replace(tzinfo=UTC) for one in MOMENTS],
        lambda value: f"cast('{value}' as timestamp(6) with time zone)",
    ),
    "raw": Kind(pa.binary(), [b"", b"a", b"\xff" * 40]),
}
OPERATORS = ("=", "<", "<=", ">", ">=")


class Question(NamedTuple):
    """`column operator value`; of the struct `s` when `is_nested`; `operator` may be `null`, `there` or `nan`."""

    column: str
    is_nested: bool
    operator: str
    value: Any = None

    def sql(self, kinds: dict[str, Kind] = KINDS, dot: str = "s['{}']") -> str | None:
        """As a condition; None when there is no literal for it."""
        name = dot.format(self.column) if self.is_nested else f'"{self.column}"'
        if self.operator in {"null", "there"}:
            return f"{name} is {'not ' if self.operator == 'there' else ''}null"
        if self.operator == "nan":
            return f"isnan({name})"
        write = kinds[self.column].sql
        return None if write is None else f"{name} {self.operator} {write(self.value)}"


def asked(names: Sequence[str], chance: random.Random) -> list[Question]:
    """Questions about each column, flat and nested."""
    found = []
    for name in names:
        for is_nested in (False, True):
            found += [Question(name, is_nested, operator) for operator in ("null", "there")]
            if name in {"double", "float"}:
                found.append(Question(name, is_nested, "nan"))
            for value in chance.sample(list(KINDS[name].values), min(3, len(KINDS[name].values))):
                found += [Question(name, is_nested, operator, value) for operator in chance.sample(OPERATORS, 3)]
    return found


def rows_of(first: int, names: Sequence[str], chance: random.Random) -> pa.Table:
    """A few rows that lie close together in some columns, so that a file can be skipped."""
    count = chance.randint(1, 3)
    columns: dict[str, pa.Array] = {}
    for name in names:
        kind = KINDS[name]
        some = chance.sample(list(kind.values), min(len(kind.values), chance.randint(1, 2)))
        values = [None if chance.random() < 0.15 else chance.choice(some) for _ in range(count)]
        columns[name] = pa.array(values, kind.type)
    mask = pa.array([chance.random() < 0.15 for _ in range(count)])
    nested = pa.StructArray.from_arrays(list(columns.values()), list(columns), mask=mask)
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), **columns, "s": nested})


def adopt(place: Place, epoch: int, rows: pa.Table, columns: tuple[Column, ...]) -> None:
    """An epoch of a file that another program wrote."""
    with place.sink() as sink:
        txn = sink.begin(epoch)
        guest = txn.guest()
        directory = Path(guest.path)
        directory.mkdir(parents=True)
        pq.write_table(rows, directory / "x.parquet", row_group_size=2)
        txn.add(guest.adopt(columns, sink.log.stamps.new_id))
        txn.prepare()
        sink.commit(epoch)


def made(place: Place, names: Sequence[str], chance: random.Random, properties: dict[str, str] | None = None) -> Path:
    """A table of staged, adopted and, without `properties`, converted files; its twin without statistics beside it."""
    tables = [rows_of(10 * at, names, chance) for at in range(FILES)]
    if properties:
        deltalake.DeltaTable.create(str(place.path), tables[0].schema, configuration=properties)
    for epoch in (0, 1):
        place.write(epoch, tables[epoch], layout="delta" if properties else "parquet")
    if not properties:
        convert(str(place.path), "delta", yes=True)
    for epoch in (2, 3):
        place.write(epoch, tables[epoch])
    for epoch in (4, 5):
        adopt(place, epoch, tables[epoch], columns_of(tables[epoch].schema))
    twin = place.path.with_name(f"{place.path.name}-twin")
    shutil.copytree(place.path, twin)
    for log in (twin / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = None
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return twin
