"""What the plug-in asks Spark to compute, computed without Spark: which rows are refused, and what is cast to what.

Promises: skipped, with the reason, where pyspark is missing. Nothing here starts a session, so all of it is quick.
Relies on: `Cell` and `Functions`, stand-ins for Spark's columns and functions. Text is bytes, as in Spark.
Does not promise: that Spark's functions do what these do; `test_spark_rows.py` asks Spark itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from txsink.errors import InvalidRequestError
from txsink.paths import NULL_PARTITION
from txsink.schema import columns_of

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import types as kinds
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from pyspark_txsink import counted_rows, types

Row = dict[str, Any]


class Cell:
    """A column: its value in each row. Null in, null out, but for what is there to look at nulls."""

    def __init__(self, of: Callable[[Row], Any], name: str = "") -> None:
        self.of = of
        self.name = name

    def with_name(self, name: str) -> Cell:
        return Cell(self.of, name)

    def __invert__(self) -> Cell:
        return strict(lambda value: not value, self)

    def __lt__(self, other: object) -> Cell:
        return strict(lambda one, two: one < two, self, other)

    def __gt__(self, other: object) -> Cell:
        return strict(lambda one, two: one > two, self, other)

    def __eq__(self, other: object) -> Any:
        given = other.encode() if isinstance(other, str) else other
        return strict(lambda one, two: one == two, self, given)

    def __hash__(self) -> int:
        return id(self)

    def cast(self, kind: object) -> Cell:
        """To text and to bytes as Spark does; what else it is cast to is kept beside the value."""
        if kind == "binary":
            return self
        if kind == "string":
            return strict(lambda one: one if isinstance(one, bytes) else str(one).encode(), self)
        return Cell(lambda row: (self.of(row), kind), self.name)


# As Spark has them.
for spelled, method in {
    "alias": Cell.with_name,
    "getField": lambda cell, name: strict(lambda one: one[name], cell),
    "eqNullSafe": lambda cell, other: Cell(lambda row: cell.of(row) == other.of(row)),
}.items():
    setattr(Cell, spelled, method)


def of(value: object) -> Callable[[Row], Any]:
    return value.of if isinstance(value, Cell) else lambda row: value


def strict(compute: Callable[..., Any], *parts: object) -> Cell:
    """Null when a part is."""

    def value(row: Row) -> Any:
        given = [of(part)(row) for part in parts]
        return None if None in given else compute(*given)

    return Cell(value)


def constant(value: object) -> Cell:
    return Cell(lambda _: value)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def distinct(values: list[Any]) -> list[Any]:
    return [one for at, one in enumerate(values) if one not in values[:at]]


def first_of(cells: Iterable[Cell]) -> Cell:
    return Cell(lambda row: next((found for one in cells if (found := one.of(row)) is not None), None))


class Functions:
    """What the plug-in uses of `pyspark.sql.functions`."""

    col = staticmethod(lambda name: Cell(lambda row: row[name[1:-1].replace("``", "`")], name))
    lit = staticmethod(lambda value: Cell(lambda row: value.encode() if isinstance(value, str) else value))
    hex = staticmethod(lambda cell: strict(lambda data: data.hex().upper().encode(), cell))
    concat = staticmethod(lambda *cells: strict(lambda *parts: b"".join(parts), *cells))
    coalesce = staticmethod(lambda *cells: first_of(cells))
    is_valid_utf8 = staticmethod(lambda cell: strict(is_utf8, cell))
    map_keys = staticmethod(lambda cell: strict(lambda pairs: [key for key, _ in pairs], cell))
    map_values = staticmethod(lambda cell: strict(lambda pairs: [value for _, value in pairs], cell))
    array_distinct = staticmethod(lambda cell: strict(distinct, cell))
    size = staticmethod(lambda cell: strict(len, cell))
    get = staticmethod(lambda cell, at: strict(lambda values: values[at] if 0 <= at < len(values) else None, cell))

    @staticmethod
    def greatest(one: Cell, other: Cell, *cells: Cell) -> Cell:
        """Of two at least, as Spark wants it."""
        cells = (one, other, *cells)
        return Cell(lambda row: max(found for cell in cells if (found := cell.of(row)) is not None))

    @staticmethod
    def substring(cell: Cell, start: int, count: int) -> Cell:
        """Counted from 1; 0 is the first place as well."""
        return strict(lambda data: data[max(start - 1, 0) : max(start - 1, 0) + count], cell)

    @staticmethod
    def when(condition: Cell, value: Cell) -> Cell:
        return Cell(lambda row: value.of(row) if condition.of(row) is True else None)

    @staticmethod
    def filter(cell: Cell, keeps: Callable[[Cell], Cell]) -> Cell:
        def value(row: Row) -> list[Any] | None:
            given = cell.of(row)
            return None if given is None else [one for one in given if keeps(constant(one)).of(row) is True]

        return Cell(value)

    @staticmethod
    def exists(cell: Cell, is_one: Callable[[Cell], Cell]) -> Cell:
        """Null when no element is one, and it is not known of one of them."""

        def value(row: Row) -> bool | None:
            if cell.of(row) is None:
                return None
            found = [is_one(constant(one)).of(row) for one in cell.of(row)]
            return True if True in found else (None if None in found else False)

        return Cell(value)

    # Of all rows.
    count = staticmethod(lambda cell: Cell(lambda rows: sum(cell.of(row) is not None for row in rows)))
    max = staticmethod(
        lambda cell: Cell(lambda rows: max((cell.of(row) for row in rows if cell.of(row) is not None), default=None))
    )


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_rows, "sql", Functions)
    monkeypatch.setattr(types, "sql", Functions)


# -- counted rows: which values are refused ---------------------------------------------------------------

NAME = "odd `one"


def observed(kind: DataType, values: list[Any], partition_columns: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the observation of these rows tells."""
    rows = [{"id": at, NAME: value} for at, value in enumerate(values)]
    asked: list[Cell] = []
    frame: Any = SimpleNamespace(
        schema=StructType([StructField("id", LongType()), StructField(NAME, kind)]),
        sparkSession=None,
        observe=lambda observation, *cells: asked.extend(cells),
    )
    counted_rows.Counted(frame, partition_columns)
    return {cell.name: cell.of(rows) for cell in asked}  # type: ignore[arg-type]


TEXT, LONG = StringType(), LongType()
INNER = StructType([StructField("n", LONG), StructField("t", TEXT), StructField("m", MapType(LONG, TEXT))])
NO_TEXT = f"column {NAME!r} holds text that is not UTF-8: 0x"
TWICE = f"column {NAME!r} holds a map with "
LONGEST = b"\xff" + bytes(range(40))
BAD: list[tuple[DataType, Any, str]] = [
    (TEXT, b"\xff\x01", f"{NO_TEXT}FF01"),
    (TEXT, LONGEST, f"{NO_TEXT}{LONGEST[:32].hex().upper()}"),
    (ArrayType(TEXT), [b"a", None, b"\xff"], f"{NO_TEXT}.."),
    (ArrayType(ArrayType(TEXT)), [None, [b"a"], [b"\xff"]], f"{NO_TEXT}.."),
    (MapType(TEXT, LONG), [(b"a", 1), (b"\xff", 1)], f"{NO_TEXT}.."),
    (MapType(LONG, TEXT), [(1, None), (2, b"\xff")], f"{NO_TEXT}.."),
    (INNER, {"n": 1, "t": b"\xff", "m": None}, f"{NO_TEXT}.."),
    (INNER, {"n": 1, "t": None, "m": [(1, b"\xff")]}, f"{NO_TEXT}.."),
    (StructType([StructField("t", TEXT)]), {"t": b"\xff"}, f"{NO_TEXT}.."),
    (MapType(TEXT, LONG), [(b"a", 1), (b"b", 1), (b"b", 2)], f"{TWICE}the key b twice"),
    (MapType(LONG, LONG), [(5, 1), (7, 1), (8, 1), (8, 2), (7, 1)], f"{TWICE}the key 7 twice"),
    (MapType(BinaryType(), LONG), [(b"\xff", 1), (b"\xff", 1)], f"{TWICE}a key twice"),
    (MapType(LONG, MapType(LONG, LONG)), [(1, [(2, 2)]), (3, [(4, 5), (4, 6)])], f"{TWICE}a key twice"),
    (ArrayType(MapType(LONG, LONG)), [None, [(1, 1)], [(2, 1), (2, 1)]], f"{TWICE}a key twice"),
    (INNER, {"n": 1, "t": b"a", "m": [(1, None), (1, None)]}, f"{TWICE}a key twice"),
]
FINE: list[tuple[DataType, list[Any]]] = [
    (TEXT, [b"", "ü".encode(), None]),
    (ArrayType(TEXT), [[], [None], [b"a"], None]),
    (MapType(TEXT, TEXT), [[], [(b"a", None)], [(b"a", b"a"), (b"b", b"a")], None]),
    (MapType(LONG, LONG), [[(1, 1), (2, 1)], None]),
    (INNER, [None, {"n": None, "t": None, "m": None}, {"n": 1, "t": b"a", "m": [(1, b"a"), (2, b"a")]}]),
]


@pytest.mark.parametrize(("kind", "value", "said"), BAD, ids=str)
def test_a_value_that_no_reader_gives_back_is_told_wherever_it_stands(kind: DataType, value: Any, said: str) -> None:
    fine = next((values for other, values in FINE if other == kind), [None])
    for values in ([value], [*fine, value], [value, *fine]):
        assert observed(kind, values) == {"rows": len(values), "fault": said.encode()}


@pytest.mark.parametrize(("kind", "values"), FINE, ids=str)
def test_values_that_every_reader_gives_back_are_only_counted(kind: DataType, values: list[Any]) -> None:
    assert observed(kind, values) == {"rows": len(values), "fault": None}


@pytest.mark.parametrize("kind", [LONG, BinaryType(), ArrayType(LONG), StructType([StructField("x", LONG)])], ids=str)
def test_nothing_is_asked_of_columns_without_text_and_maps(kind: DataType) -> None:
    """It would cost each row something."""
    assert observed(kind, [None, None]) == {"rows": 2}
    assert observed(kind, [], ("id",)) == {"rows": 0}


@pytest.mark.parametrize("text", ["", NULL_PARTITION])
def test_a_partition_value_that_stands_for_null_is_told(text: str) -> None:
    said = f"partition column {NAME!r} holds {text!r}, which stands for null in the names of directories"
    assert observed(TEXT, [b"a", text.encode(), None], ("id", NAME)) == {"rows": 3, "fault": said.encode()}
    assert observed(TEXT, [b"a", None], (NAME,)) == {"rows": 2, "fault": None}
    assert observed(TEXT, [text.encode()]) == {"rows": 1, "fault": None}


# -- types: what is cast to what --------------------------------------------------------------------------


class Frame:
    """A DataFrame of one row, by its types."""

    def __init__(self, **given: DataType) -> None:
        self.schema = StructType([StructField(name, kind) for name, kind in given.items()])
        self.row = dict.fromkeys(given, 7)

    def select(self, *cells: Cell) -> dict[str, Any]:
        return {cell.name.strip("`"): cell.of(self.row) for cell in cells}


def test_columns_are_cast_where_the_table_has_another_type_and_left_as_they_are_elsewhere() -> None:
    known = columns_of(
        pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.null()), ("p", pa.null()), ("q", pa.date32())])
    )
    frame: Any = Frame(
        a=kinds.LongType(), b=kinds.IntegerType(), v=kinds.NullType(), p=kinds.NullType(), q=kinds.NullType()
    )
    found = types.converted(frame, known, ("p", "q"))
    assert found == {"a": 7, "b": (7, kinds.LongType()), "p": (None, StringType()), "q": (None, kinds.DateType())}


def test_narrower_types_take_the_tables_and_wider_ones_are_refused() -> None:
    known, narrow, wide = (columns_of(pa.schema([("a", kind)])) for kind in (pa.int32(), pa.int16(), pa.int64()))
    assert types.fitted(known, narrow, merge_schema=False) == known
    with pytest.raises(InvalidRequestError, match="column 'a' is int32 in the table and int64 in the data"):
        types.fitted(known, wide, merge_schema=False)


def test_times_are_those_of_a_table_on_the_way_there_and_back() -> None:
    given = StructType([StructField("a", kinds.TimestampNTZType()), StructField("b", ArrayType(kinds.TimestampType()))])
    stored = [("a", pa.timestamp("us")), ("b", pa.list_(pa.timestamp("us", "UTC")))]
    assert types.columns_of(given, ()) == columns_of(pa.schema(stored))
    assert types.struct_of(types.columns_of(given, ())) == given


def test_a_time_without_a_zone_is_one_to_spark_too() -> None:
    found = types.struct_of(columns_of(pa.schema([("a", pa.timestamp("us")), ("b", pa.timestamp("us", "UTC"))])))
    assert [field.dataType for field in found] == [kinds.TimestampNTZType(), kinds.TimestampType()]


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (StringType("UTF8_LCASE"), "Cast it to string collate utf8_binary"),
        (kinds.DayTimeIntervalType(), "Cast it, or drop it"),
        (kinds.VariantType(), "Write to_json of it"),
    ],
    ids=str,
)
def test_a_type_that_no_table_keeps_is_refused_with_what_to_do_instead(kind: DataType, advice: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        types.columns_of(StructType([StructField("a", ArrayType(kind))]), ())
    assert caught.value.advice == advice
    assert caught.value.context["column"] == "a.element"
