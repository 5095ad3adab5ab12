"""Python values become exactly what they were, or are refused with where they stand, the value and the type."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from txsink.errors import InvalidRequestError
from txsink.staging.rows import tables_of
from txsink.staging.values import UnfitError, exact

EAST = dt.timezone(dt.timedelta(hours=5))
NOON = dt.datetime(2026, 1, 31, 12)  # noqa: DTZ001 -- without a zone on purpose
NOON_EAST = NOON.replace(tzinfo=EAST)
DAY = dt.date(2026, 1, 31)
POINT = pa.struct([("x", pa.int64())])


class Level(enum.IntEnum):
    LOW = 1


UNFIT: list[tuple[str, pa.DataType | None, list[Any], str]] = [
    ("a fraction among integers", pa.int64(), [1, 1.5], "1.5 (float)"),
    ("a float among integers, though it is whole", pa.int64(), [1.0], "1.0 (float)"),
    ("a boolean among integers", pa.int64(), [True], "True (bool)"),
    ("an integer beyond the type", pa.int8(), [1, 300], "300 (int)"),
    ("digits beyond the scale", pa.decimal128(5, 1), [Decimal("3.77")], "Decimal('3.77')"),
    ("a decimal among integers", pa.int64(), [Decimal("3.7")], "Decimal('3.7')"),
    ("a float among decimals", pa.decimal128(5, 1), [1.5], "1.5 (float)"),
    ("a float that single precision rounds", pa.float32(), [0.5, 0.1], "0.1 (float)"),
    ("an integer that double precision rounds", pa.float64(), [2**53 + 1], "9007199254740993 (int)"),
    ("a boolean among floats", pa.float64(), [True], "True (bool)"),
    ("an integer among booleans", pa.bool_(), [1], "1 (int)"),
    ("a time of day among dates", pa.date32(), [NOON], "datetime.datetime(2026, 1, 31, 12, 0)"),
    ("a number among dates", pa.date32(), [5], "5 (int)"),
    ("a zone among times without one", pa.timestamp("us"), [NOON_EAST], "datetime.datetime(2026, 1, 31, 12, 0, tz"),
    ("no zone among times of UTC", pa.timestamp("us", "UTC"), [NOON], "datetime.datetime(2026, 1, 31, 12, 0)"),
    ("a number among times", pa.timestamp("us"), [5], "5 (int)"),
    ("nanoseconds", pa.timestamp("us"), [pd.Timestamp("2026-01-31T00:00:00.000000001")], "Timestamp("),
    ("bytes among text", pa.string(), [b"a"], "b'a' (bytes)"),
    ("text among bytes", pa.binary(), ["a"], "'a' (str)"),
    ("text as a list", pa.list_(pa.string()), ["ab"], "'ab' (str)"),
    ("an array's fraction", pa.list_(pa.int64()), [[1], np.array([1.5])], "1.5"),
    ("another field of a struct", POINT, [{"x": 1}, {"x": 1, "y": 2}], "{'x': 1, 'y': 2}"),
    ("a struct of pairs", POINT, [[("x", 1)]], "[('x', 1)]"),
    ("a fraction in a struct", POINT, [None, {"x": 1.5}], "1.5"),
    ("a key twice", pa.map_(pa.string(), pa.int64()), [[("a", 1), ("a", 2)]], "[('a', 1), ('a', 2)]"),
    ("a fraction in a map", pa.map_(pa.string(), pa.int64()), [None, {"a": 1.5}], "1.5"),
    ("a fraction among a map's keys", pa.map_(pa.int64(), pa.int64()), [[(1.5, 1)]], "1.5"),
    ("a date, then a datetime", None, [DAY, NOON], "datetime.datetime(2026, 1, 31, 12, 0)"),
    ("with a zone, then without", None, [NOON_EAST, NOON], "datetime.datetime(2026, 1, 31, 12, 0)"),
    ("text, then bytes", None, ["a", b"b"], "'a' (str)"),
    ("a number, then text", None, [1, "a"], "'a' (str)"),
    ("a number that no type holds", None, [2**70], "1180591620717411303424 (int)"),
    ("an object", None, [object()], "<object object"),
]


@pytest.mark.parametrize(("kind", "values", "shown"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_a_value_that_would_not_be_stored_exactly_is_refused(
    kind: pa.DataType | None, values: list[Any], shown: str
) -> None:
    known = pa.schema([] if kind is None else [("c", kind)])
    for data in ({"c": values}, [{"c": value} for value in values]):
        with pytest.raises(InvalidRequestError) as caught:
            list(tables_of(data, lambda: known, "write"))
        assert shown in caught.value.found
        assert str(caught.value.context["column"]).split(".")[0] == "c"
        assert caught.value.context["type"]


FITS: list[tuple[pa.DataType | None, list[Any], list[Any]]] = [
    (pa.int8(), [1, np.int64(2), Level.LOW, None], [1, 2, 1, None]),
    (pa.float32(), [0.5, 1, np.float32(0.1), float("inf")], [0.5, 1.0, float(np.float32(0.1)), float("inf")]),
    (pa.float64(), [1, 2**53, np.float32(0.25)], [1.0, 2.0**53, 0.25]),
    (pa.decimal128(5, 2), [5, Decimal("1.1"), Decimal("1E+2")], [Decimal(5), Decimal("1.10"), Decimal(100)]),
    (pa.bool_(), [True, np.bool_(False)], [True, False]),
    (pa.string(), ["a", np.str_("b")], ["a", "b"]),
    (pa.binary(), [b"a", bytearray(b"b"), memoryview(b"c")], [b"a", b"b", b"c"]),
    (pa.date32(), [DAY], [DAY]),
    (pa.timestamp("us"), [NOON, pd.Timestamp(NOON), np.datetime64("2026-01-31T12:00:00.000000")], [NOON] * 3),
    (pa.timestamp("us", "UTC"), [NOON_EAST], [NOON_EAST]),
    (pa.list_(pa.int64()), [[1], (2,), np.array([3]), {4}, [None], None], [[1], [2], [3], [4], [None], None]),
    (POINT, [{"x": 1}, {}, None], [{"x": 1}, {"x": None}, None]),
    (pa.map_(pa.string(), POINT), [{"a": {"x": 1}}, [("b", None)], None], [[("a", {"x": 1})], [("b", None)], None]),
    (None, [{"x": 1}, {"y": [DAY]}], [{"x": 1, "y": None}, {"x": None, "y": [DAY]}]),
    (None, [1, 1.5, pa.scalar(2.5).as_py()], [1.0, 1.5, 2.5]),
    (None, [pa.scalar(1), pa.scalar(2)], [1, 2]),
]


@pytest.mark.parametrize(("kind", "values", "held"), FITS, ids=[str(case[0]) for case in FITS])
def test_a_value_that_fits_is_stored_as_it_was(kind: pa.DataType | None, values: list[Any], held: list[Any]) -> None:
    assert exact(values, "c", kind).to_pylist() == held


def test_the_signs_of_zero_and_what_is_not_a_number_are_kept() -> None:
    assert str(exact([-0.0, 0.0, float("nan")], "c", pa.float64()).to_pylist()) == "[-0.0, 0.0, nan]"
    assert str(exact([-0.0, float("nan")], "c", pa.float32()).to_pylist()) == "[-0.0, nan]"


def test_a_value_deep_down_is_named_by_its_path() -> None:
    kind = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.date32()))]))
    with pytest.raises(UnfitError) as caught:
        exact([[{"m": {"k": DAY}}], None, [None, {"m": {"k": NOON}}]], "c", kind)
    assert caught.value.path == "c.element.m.value"


def test_a_value_that_no_type_holds_is_refused_before_its_column_has_one() -> None:
    with pytest.raises(UnfitError, match=r"column 'c' has no type yet and would not hold 1j \(complex\) exactly"):
        exact([1j], "c")


def test_labels_of_pandas_become_their_text() -> None:
    frame = pd.DataFrame([[1, 2]], columns=pd.Index([0, ("a", "b")], tupleize_cols=False))
    (found,) = tables_of(frame, lambda: pa.schema([]), "write")
    assert found.table.column_names == ["0", "('a', 'b')"]


def test_objects_in_numpy_and_pandas_are_looked_at_too() -> None:
    mixed = [DAY, NOON]
    for data in (
        {"c": np.array(mixed, dtype=object)},
        {"c": pd.Series(mixed, dtype=object)},
        pd.DataFrame({"c": pd.Series(mixed, dtype=object)}),
    ):
        with pytest.raises(InvalidRequestError):
            list(tables_of(data, lambda: pa.schema([]), "write"))
    series = pd.Series([Decimal("1.5"), None, float("nan")], dtype=object)
    for frame in ({"c": series}, pd.DataFrame({"c": series})):
        found = list(tables_of(frame, lambda: pa.schema([]), "write"))
        assert found[0].table["c"].to_pylist() == [Decimal("1.5"), None, None]


TICK = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}  # in microseconds, the least that Python has


@pytest.mark.parametrize("unit", TICK)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_moment_is_stored_in_each_unit_that_holds_it_and_in_no_other(unit: Any, zone: Any) -> None:
    moment = NOON.replace(tzinfo=None if zone is None else dt.timezone.utc)
    kind = pa.timestamp(unit, zone)
    held = moment + dt.timedelta(microseconds=TICK[unit])
    assert exact([held, moment, None], "c", kind).equals(pa.array([held, moment, None], kind))
    if TICK[unit] > 1:
        with pytest.raises(UnfitError):
            exact([moment + dt.timedelta(microseconds=TICK[unit] - 1)], "c", kind)


@pytest.mark.parametrize("kind", [pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_a_time_of_a_day_is_stored_as_it_is_or_refused(kind: pa.DataType) -> None:
    fits = [dt.time(23, 59, 59, 999_000), dt.time(0), None]
    assert exact(fits, "c", kind).to_pylist() == fits
    for unfit in (5, dt.timedelta(1)):
        with pytest.raises(UnfitError):
            exact([unfit], "c", kind)
    if kind == pa.time32("ms"):
        with pytest.raises(UnfitError, match=r"datetime\.time"):
            exact([dt.time(0, 0, 0, 1)], "c", kind)


def test_a_moment_of_numpy_has_no_zone_and_keeps_its_nanoseconds() -> None:
    for value, kind in (
        (np.datetime64("2026-01-31T12:00:00.000000"), pa.timestamp("us", "UTC")),
        (np.datetime64("2026-01-31T12:00:00.000000001"), pa.timestamp("us")),
    ):
        with pytest.raises(UnfitError):
            exact([value], "c", kind)


def test_keys_that_hold_others_are_compared_too() -> None:
    kind = pa.map_(POINT, pa.int8())
    two = [[({"x": 1}, 1), ({"x": 2}, 1)]]
    assert exact(two, "c", kind).to_pylist() == two
    with pytest.raises(UnfitError, match="a key stands twice in it"):
        exact([[({"x": 1}, 1), ({"x": 2}, 1), ({"x": 1}, 2)]], "c", kind)


def test_the_field_that_a_struct_does_not_have_is_named() -> None:
    with pytest.raises(UnfitError, match="the struct has no field 'y'"):
        exact([{"x": 1, "y": 2}], "c", POINT)


def test_of_values_that_have_no_type_together_the_first_of_another_kind_is_named() -> None:
    with pytest.raises(UnfitError) as caught:
        exact([None, 1, "a"], "c")
    assert (caught.value.value, caught.value.given, caught.value.type) == ("'a'", "str", "int64")
    with pytest.raises(UnfitError) as caught:
        exact([None, Decimal(10**70), Decimal("1E-10")], "c")  # each has a type, and they have none together
    assert (caught.value.given, caught.value.type) == ("Decimal", "decimal256(71, 0)")


def test_a_long_value_is_cut_after_80_characters() -> None:
    for length, shown in ((78, "'" + "a" * 78 + "'"), (79, "'" + "a" * 79 + "…")):
        with pytest.raises(UnfitError) as caught:
            exact(["a" * length], "c", pa.int64())
        assert caught.value.value == shown
