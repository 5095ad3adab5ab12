"""What is handed to `write` and what a reader finds, drawn and compared: the proof that no value changes on the way.

Promises: `canonical` is this proof's own comparison: two values are the same if and only if it is: numbers by what they
are worth, but -0.0 is not 0.0 and NaN is NaN; times of a zone by their instant; the keys of a map in any order; a field
of a struct that is not given is null.
Relies on: nothing of txsink.
Does not promise: to draw times that Python has no object for.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

UTC = dt.timezone.utc
START = dt.datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = dt.timedelta(microseconds=1)
DAY_NANOSECONDS = 24 * 3600 * 10**9
DEPTH_MAX = 3
WIDE = Context(prec=80)
NAMES = ("x", "y", "a b", "ü")

_T = TypeVar("_T")
Draw = Callable[[st.SearchStrategy[_T]], _T]

PLAIN: tuple[pa.DataType, ...] = (
    *(pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.decimal128(5, 2), pa.decimal128(7, 0), pa.decimal128(18, 3), pa.decimal128(20, 10), pa.decimal128(38, 0)),
)
# In other representations, and types that no table holds.
STRANGE: tuple[pa.DataType, ...] = (
    *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.float16(), pa.date64(), pa.decimal256(40, 2)),
    *(pa.timestamp("ns"), pa.timestamp("s", "+05:00"), pa.time64("us"), pa.duration("us"), pa.null()),
    *(pa.dictionary(pa.int8(), pa.string()), pa.timestamp("ns", "UTC"), pa.decimal256(5, 2)),
)
# What tables of `types="arrow"` keep besides.
DECIMALS_OF_ARROW: tuple[pa.DataType, ...] = (pa.decimal256(39, 2), pa.decimal256(76, 0), pa.decimal256(76, 76))
OF_ARROW: tuple[pa.DataType, ...] = (
    *(pa.float16(), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("ns"), pa.timestamp("ns", "UTC"), *DECIMALS_OF_ARROW),
)
PARTITIONS = (
    *(pa.string(), pa.int8(), pa.int32(), pa.int64(), pa.bool_(), pa.date32(), pa.float32(), pa.float64()),
    *(pa.decimal128(5, 2), pa.decimal128(20, 10), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.5, 0.1, 1e300, float("nan"), float("inf"), 16777217.0)
_TIMES = st.one_of(
    st.sampled_from([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1582, 10, 14)]),  # noqa: DTZ001
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),  # noqa: DTZ001
)
_ZONES = (UTC, dt.timezone(dt.timedelta(hours=5)), dt.timezone(-dt.timedelta(hours=9, minutes=30)))


def _bounds(kind: Any) -> tuple[int, int]:
    bits = kind.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, 2**bits - 1)


def _plain_values(kind: Any) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_integer(kind):
        least, most = _bounds(kind)
        return st.one_of(st.sampled_from([least, most, 0 if least else 1]), st.integers(least, most))
    if types.is_floating(kind):
        width = kind.bit_width
        special = [one for one in _FLOATS if width == 64 or one != one or one in (0.0, 1.0, 0.5, -1.5, math.inf)]  # noqa: PLR0124
        return st.one_of(st.sampled_from(special), st.floats(width=width))
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-kind.scale, WIDE))
    if types.is_timestamp(kind):
        return _moments(kind)
    if types.is_date(kind):
        return st.one_of(st.sampled_from([dt.date(1, 1, 1), dt.date(9999, 12, 31)]), st.dates())
    if types.is_time(kind):
        times = st.one_of(st.sampled_from([dt.time(0), dt.time(23, 59, 59, 999999)]), st.times())
        return times if kind.bit_width == 64 else times.map(_in_milliseconds)
    if types.is_duration(kind):
        return st.timedeltas(dt.timedelta(0), dt.timedelta(9))
    if types.is_null(kind):
        return st.none()
    if types.is_large_binary(kind) or types.is_binary(kind):
        return st.binary(max_size=3)
    return st.sampled_from(["", "a", "日本", "a\x00b", "1", "😀", "a/b=%41", " 007", "2026-01-31", "NaN", "null"])


def _moments(kind: Any) -> st.SearchStrategy[Any]:
    zone = None if kind.tz is None else UTC
    if kind.unit == "s":
        return st.builds(lambda moment: moment.replace(microsecond=0, tzinfo=UTC), _TIMES)
    if kind.unit == "ns":
        most = 2**63 - 1
        exact = st.one_of(st.sampled_from([-most, -1, 1, most]), st.integers(-most, most))
        times = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001
        return st.one_of(exact.map(lambda count: pd.Timestamp(count, tz=zone)), times.map(partial(_in_zone, zone)))
    return _TIMES.map(partial(_in_zone, zone))


def _in_milliseconds(time: dt.time) -> dt.time:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _in_zone(zone: Any, moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=zone)


_DRAWN: dict[tuple[pa.DataType, bool], st.SearchStrategy[Any]] = {}


def values(kind: pa.DataType, is_counted: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type, and null. `is_counted`: times of a day in nanoseconds are numbers, for Python has none."""
    if (kind, is_counted) not in _DRAWN:
        some = _values(kind, is_counted)
        _DRAWN[kind, is_counted] = st.one_of(some, some, some, st.none())
    return _DRAWN[kind, is_counted]


def _values(kind: Any, is_counted: bool) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return st.lists(values(kind.value_type, is_counted), max_size=2)
    if types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type, is_counted) for field in kind})
    if types.is_map(kind):
        keys = _values(kind.key_type, is_counted)
        pairs = st.lists(st.tuples(keys, values(kind.item_type, is_counted)), max_size=2)
        return pairs.map(lambda found: list({as_key(key, kind.key_type): (key, one) for key, one in found}.values()))
    if is_counted and kind == pa.time64("ns"):
        return st.one_of(st.sampled_from([1, DAY_NANOSECONDS - 1]), st.integers(0, DAY_NANOSECONDS - 1))
    return _plain_values(kind)


_ANY_PLAIN = st.sampled_from(PLAIN)
_ANY = st.one_of(_ANY_PLAIN, _ANY_PLAIN, _ANY_PLAIN, st.sampled_from(STRANGE))


KEYS = (
    *(pa.string(), pa.int32(), pa.date32(), pa.decimal128(5, 2), pa.float64()),
    pa.struct([("x", pa.float32()), ("y", pa.list_(pa.string()))]),
)


def kinds(
    plain: st.SearchStrategy[pa.DataType], depth: int = DEPTH_MAX, keys_of: tuple[pa.DataType, ...] = KEYS
) -> st.SearchStrategy[pa.DataType]:
    """Types, nested to a depth."""
    if depth == 0:
        return plain
    deeper = kinds(plain, depth - 1, keys_of)
    keys = st.sampled_from(keys_of)
    return st.one_of(
        plain,
        plain,
        deeper.map(pa.list_),
        st.lists(deeper, min_size=1, max_size=2).map(lambda found: pa.struct(list(zip(NAMES, found, strict=False)))),
        st.builds(pa.map_, keys, deeper),
    )


STORED = kinds(_ANY_PLAIN)
SIGNED = kinds(st.sampled_from([kind for kind in PLAIN if not pa.types.is_unsigned_integer(kind)]))
_ARROWS = kinds(st.one_of(_ANY_PLAIN, st.sampled_from(OF_ARROW)), keys_of=(*KEYS, *OF_ARROW))


@st.composite
def arrows(draw: Draw[Any]) -> pa.DataType:
    """Types that a table of `types="arrow"` keeps."""
    return draw(_ARROWS)


def changed(draw: Draw[Any], kind: Any) -> pa.DataType:
    """A type like this one, with one part another, a field more or a field less."""
    types = pa.types
    if types.is_list(kind) and draw(st.booleans()):
        return pa.list_(changed(draw, kind.value_type))
    if types.is_map(kind) and draw(st.booleans()):
        return pa.map_(kind.key_type, changed(draw, kind.item_type))
    if types.is_struct(kind) and (way := draw(st.integers(0, 3))):
        fields = list(kind)
        if way == 1:
            return pa.struct([*fields, ("z", draw(_ANY_PLAIN))])
        if way == 2 and len(fields) > 1:
            return pa.struct(fields[1:])
        return pa.struct([field.with_type(changed(draw, field.type)) for field in fields])
    return draw(_ANY)


# -- calls of write ---------------------------------------------------------------------------------------

FORMS = ("rows", "generator", "columns", "table", "reader", "tables")
ARROW = ("table", "reader", "tables")


class Call(NamedTuple):
    """One call: the form, the rows as Python has them, and the types they were drawn from."""

    form: str
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    rows: list[tuple[Any, ...]]
    is_plain: bool  # of the table's own types

    def data(self) -> Any:
        """What `write` gets."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [() for _ in self.names]
        if self.form in ARROW:
            arrays = [pa.array(list(column), kind) for column, kind in zip(columns, self.kinds, strict=True)]
            table = pa.table(arrays, names=list(self.names))
            if self.form == "reader":
                return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
            return [table.slice(0, 1), table.slice(1)] if self.form == "tables" else table
        if self.form == "columns":
            return dict(zip(self.names, map(list, columns), strict=True))
        mappings = (dict(zip(self.names, row, strict=True)) for row in self.rows)
        return list(mappings) if self.form == "rows" else mappings


class Life(NamedTuple):
    """A table to be: its columns and the calls that write to it."""

    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    is_partitioned: bool
    merges: bool
    calls: list[Call]


@st.composite
def lives(draw: Draw[Any], *, stored: st.SearchStrategy[pa.DataType] = STORED) -> Life:
    """Tables and what is written to them, some of which must not be."""
    is_partitioned = draw(st.integers(0, 4)) == 0
    own = [draw(stored) for _ in range(draw(st.integers(1, 3)))]
    if is_partitioned:
        own.append(draw(st.sampled_from(PARTITIONS)))
    names = tuple(f"c{number}" for number in range(len(own)))
    calls = []
    for number in range(draw(st.integers(1, 3))):
        form = "table" if number == 0 and draw(st.booleans()) else draw(st.sampled_from(FORMS))
        is_plain = number == 0 or draw(st.integers(0, 2)) > 0
        found = list(own)
        if not is_plain:
            at = draw(st.integers(0, len(own) - 1))
            found[at] = changed(draw, own[at])
        rows = []
        for _ in range(draw(st.sampled_from((3, 2, 4, 1, 0)))):
            mixes = form not in ARROW and not is_plain and draw(st.booleans())
            rows.append(tuple(draw(values(kind, form in ARROW)) for kind in (own if mixes else found)))
        calls.append(Call(form, names, tuple(found), rows, is_plain))
    return Life(names, tuple(own), is_partitioned, draw(st.booleans()), calls)


# -- the comparison ---------------------------------------------------------------------------------------


def canonical(value: Any, kind: Any) -> Any:
    """What the value is, for comparing; `kind` tells structs, maps and lists apart, and nothing else."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        given = {field.name: canonical(value.get(field.name), field.type) for field in kind}
        others = {name: ("not a field", repr(one)) for name, one in value.items() if name not in given}
        return ("struct", frozenset((name, one) for name, one in {**given, **others}.items() if one is not None))
    if types.is_map(kind):
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
        held = [(canonical(key, kind.key_type), canonical(one, kind.item_type)) for key, one in pairs]
        return ("map", len(held), frozenset(held))
    if types.is_list(kind) or types.is_large_list(kind):
        return ("list", tuple(canonical(one, kind.value_type) for one in value))
    if types.is_time(kind) and isinstance(value, int):
        return ("time", value)
    return _plain(value)


def as_key(value: Any, kind: Any) -> Any:
    """What the value is as a map's key, of which readers want each once: -0.0 is 0.0."""

    def without_sign(one: Any) -> Any:
        if isinstance(one, (tuple, frozenset)):
            return ("number", Fraction(0)) if one == ("number", "-0.0") else type(one)(map(without_sign, one))
        return one

    return without_sign(canonical(value, kind))


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, (int, float, Decimal)):
        if value != value:  # noqa: PLR0124 -- not a number
            return ("number", "NaN")
        if isinstance(value, float) and (math.isinf(value) or (value == 0 and math.copysign(1, value) < 0)):
            return ("number", str(value))
        return ("number", Fraction(value))
    if isinstance(value, dt.datetime):
        extra = getattr(value, "nanosecond", 0)  # of a pandas Timestamp
        plain: Any = value
        plain = plain.to_pydatetime(warn=False) if hasattr(plain, "to_pydatetime") else plain
        zoned = plain if plain.tzinfo is not None else plain.replace(tzinfo=UTC)
        return ("local" if plain.tzinfo is None else "instant", (zoned - START) // MICROSECOND, extra)
    if isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return ("time", (seconds * 10**6 + value.microsecond) * 1000)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(value))
    return (type(value).__name__, value)


def canonical_rows(table: pa.Table, schema: pa.Schema) -> list[Any]:
    """The rows of a table, each as a tuple of what its values are."""
    columns = [_listed(table.column(field.name)) for field in schema]
    return [
        tuple(canonical(value, field.type) for value, field in zip(row, schema, strict=True))
        for row in zip(*columns, strict=True)
    ]


def _listed(column: Any) -> list[Any]:
    counted = as_counts(column.type)
    found: list[Any] = (column if counted == column.type else column.cast(counted)).to_pylist()
    return found


def as_counts(kind: Any) -> pa.DataType:
    """The type with numbers for times of a day in nanoseconds, of which Python's have none."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(as_counts(kind.value_type))
    if types.is_map(kind):
        return pa.map_(as_counts(kind.key_type), as_counts(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, as_counts(field.type)) for field in kind])
    return pa.int64() if kind == pa.time64("ns") else kind


def plain_parts(kind: Any) -> Iterator[pa.DataType]:
    """The plain types that a type is made of."""
    if not pa.types.is_nested(kind):
        yield kind
    for index in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        yield from plain_parts(kind.field(index).type)


def given_rows(calls: list[Call], schema: pa.Schema) -> Iterator[Any]:
    """The rows that were handed in, in the same form."""
    for call in calls:
        for row in call.rows:
            by_name = dict(zip(call.names, row, strict=True))
            yield tuple(canonical(by_name.get(field.name), field.type) for field in schema)
