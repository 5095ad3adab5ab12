"""Columns of every kind, and the life of a table, for whoever reads Delta tables."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = dt.timezone.utc
NAN, INF = math.nan, math.inf

FLAT: dict[str, pa.Array] = {
    "b": pa.array([True, False, None], pa.bool_()),
    "i8": pa.array([-(2**7), 2**7 - 1, None], pa.int8()),
    "i16": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
    "i32": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
    "i64": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
    "f32": pa.array([NAN, -INF, None], pa.float32()),
    "f64": pa.array([NAN, INF, -0.0], pa.float64()),
    "dec": pa.array([Decimal("-99999999.99"), Decimal("0.01"), None], pa.decimal128(10, 2)),
    "large_dec": pa.array([Decimal(10**37), Decimal(-1), None], pa.decimal128(38, 0)),
    "day": pa.array([dt.date(1583, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
    "at": pa.array(
        [dt.datetime(1600, 1, 1, tzinfo=UTC), dt.datetime(2200, 2, 3, 4, 5, 6, 789012, UTC), None],
        pa.timestamp("us", "UTC"),
    ),
    "text": pa.array(["", "日本 'q\"\\", None], pa.string()),
    "raw": pa.array([b"", b"a\x7f", None], pa.binary()),
    "ein Name.mit=Allem %ü": pa.array([1, 2, None], pa.int64()),
}
LOCAL_TIME = {"local": pa.array([1577836800123456, -11676096000000000, None], pa.timestamp("us"))}
NESTED: dict[str, pa.Array] = {
    "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "struct": pa.array(
        [{"a": 1, "b": None}, {"a": None, "b": "x"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])
    ),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array([[{"x": [1.5]}], [], None], pa.list_(pa.struct([("x", pa.list_(pa.float64()))]))),
}

TYPES = {**FLAT, **LOCAL_TIME, **NESTED}

LIFE: tuple[tuple[int, Any, dict[str, Any]], ...] = (
    (0, {"id": [1, 2, 3], "p": ["a", "b", None]}, {}),
    (1, None, {}),
    (2, {"id": [4], "p": ["ü /"], "more": [1.5]}, {}),
    (
        3,
        {"id": [5, 6], "p": ["b", "c"], "more": [None, NAN]},
        {"mode": "overwrite", "partition_overwrite": "dynamic"},
    ),
    (5, {"id": [7], "p": ["a"]}, {}),
    (6, {"id": [8], "p": [None], "new": ["x"]}, {"mode": "overwrite"}),
    (7, {"id": [9], "p": ["a"]}, {}),
)
