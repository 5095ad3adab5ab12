"""Spark's types, searched: what a door takes comes back equal, what it cannot give back is refused by column and type.

The problem: a type that the writer takes and no reader knows makes rows, or the table, unreadable for good.
Promises: drawn tables (types nested to depth 3, both doors, both layouts, partitioned or not) hold what was handed
over, as this test's own comparison sees it: through txsink, through pyarrow file by file, and through Spark by both
doors; of what is refused nothing stays. The counts are printed.
Relies on: the local session of all Spark tests; a fixed seed.
Does not promise: types that a user defines, and calendar intervals, which Spark itself refuses to hand to a format.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import spark_session
import txsink
from txsink.choices import Layout

if reason := spark_session.missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession, functions as sql, types as kinds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

import pyspark_txsink

DRAWN = 250  # through the fast path; the format, which starts processes for each write, takes a part of them
TOGETHER = 5  # tables that Spark reads in one query; its optimizer takes more than four times as long for 25
ROWS = 4
DEPTH = 3
KEPT: list[Callable[[random.Random], DataType]] = [
    *(
        (lambda _, kind=kind: kind())
        for kind in (
            kinds.BooleanType, kinds.ByteType, kinds.ShortType, kinds.IntegerType, kinds.LongType, kinds.FloatType,
            kinds.DoubleType, kinds.StringType, kinds.BinaryType, kinds.DateType, kinds.TimestampType,
            kinds.TimestampNTZType,
        )
    ),
    lambda draw: kinds.DecimalType(precision := draw.randint(1, 38), draw.randint(0, precision)),
]  # fmt: skip
REFUSED: list[DataType] = [
    NullType(),  # in a part of a column
    StringType("UTF8_LCASE"),
    StringType("UNICODE"),
    StructType([]),
    kinds.VariantType(),
    kinds.DayTimeIntervalType(),
    kinds.YearMonthIntervalType(),
    *(getattr(kinds, name)(4326) for name in ("GeometryType", "GeographyType") if hasattr(kinds, name)),
]
TEXTS = ["", "a", "grün ", "x\x00y", "\U0001f600", "null", "NaN", "1", "a/b=c%d", "'\"\\`", "é", "é"]
WHOLE = {"byte": 7, "short": 15, "integer": 31, "long": 63, "timestamp": 63, "timestamp_ntz": 63}
FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 1e-45, 3.4028234663852886e38]
PARTS = ["boolean", "byte", "short", "integer", "long", "float", "double", "string", "date", "decimal"]


class Drawn(NamedTuple):
    """A table to be written."""

    number: int
    schema: StructType
    rows: pa.Table
    partition_by: list[str]
    layout: Layout
    bad: str  # the column that no table keeps


# -- drawing ----------------------------------------------------------------------------------------------


def drawn(number: int) -> Drawn:
    draw = random.Random(number)
    fields = [StructField(f"{name} {number}.`x", a_type(draw, DEPTH)) for name in "ab"[: draw.randint(1, 2)]]
    bad = ""
    if number % 6 == 0:
        bad = f"odd {number}"
        fields.append(StructField(bad, wrapped(draw, REFUSED[number // 6 % len(REFUSED)])))
    partition_by = []
    if draw.random() < 0.3:
        kind = KEPT[draw.randrange(len(KEPT))](draw)
        if kind.typeName() in PARTS:
            partition_by = [f"p {number}"]
            fields.append(StructField(partition_by[0], kind))
    schema = StructType([StructField("k", kinds.LongType()), *fields])
    arrow = to_arrow_schema(StructType([field for field in schema if field.name != bad]), timezone="UTC")
    columns = [pa.array(range(ROWS), pa.int64())]
    for field in arrow:
        if field.name == "k":
            continue
        values = [a_value(draw, schema[field.name].dataType) for _ in range(ROWS)]
        if field.name in partition_by:  # text that the name of a directory cannot tell is another test's
            values = [value if value not in {"", "x\x00y"} else "x" for value in values]
        columns.append(pa.array(values, field.type))
    layout: Layout = "delta" if number % 4 == 1 and not partition_by else "parquet"
    return Drawn(number, schema, pa.table(columns, arrow), partition_by, layout, bad)


def a_type(draw: random.Random, depth: int) -> DataType:
    choice = draw.random() if depth else 1
    if choice < 0.2:
        return ArrayType(a_type(draw, depth - 1))
    if choice < 0.4:
        return MapType(KEPT[draw.randrange(len(KEPT))](draw), a_type(draw, depth - 1))
    if choice < 0.6:
        return StructType([StructField(f"f.{name}", a_type(draw, depth - 1)) for name in range(draw.randint(1, 3))])
    return KEPT[draw.randrange(len(KEPT))](draw)


def wrapped(draw: random.Random, kind: DataType) -> DataType:
    """The type inside of others; a column without a type is one that a table keeps."""
    for _ in range(draw.randint(1 if isinstance(kind, NullType) else 0, DEPTH - 1)):
        choice = draw.randrange(3)
        if choice == 0:
            kind = ArrayType(kind)
        elif choice == 1:
            kind = MapType(kinds.StringType(), kind)
        else:
            kind = StructType([StructField("ok", kinds.LongType()), StructField("in", kind)])
    return kind


def a_value(draw: random.Random, kind: DataType, *, can_be_null: bool = True) -> Any:
    if can_be_null and draw.random() < 0.2:
        return None
    name = kind.typeName()
    if isinstance(kind, ArrayType):
        return [a_value(draw, kind.elementType) for _ in range(draw.randint(0, 3))]
    if isinstance(kind, MapType):
        keys = [a_value(draw, kind.keyType, can_be_null=False) for _ in range(draw.randint(0, 3))]
        return [(key, a_value(draw, kind.valueType)) for key in {repr(one).lstrip("-"): one for one in keys}.values()]
    if isinstance(kind, StructType):
        return {field.name: a_value(draw, field.dataType) for field in kind.fields}
    if isinstance(kind, kinds.DecimalType):
        digits = draw.randint(0, 10**kind.precision - 1) if draw.random() < 0.7 else 10**kind.precision - 1
        return Decimal((draw.randint(0, 1), tuple(map(int, str(digits))), -kind.scale))
    if name in WHOLE:
        most = (1 << WHOLE[name]) - 1
        return draw.choice([0, -1, most, -most - 1, draw.randint(-most, most), draw.randint(-99, 99)])
    return draw.choice(
        {
            "boolean": [True, False],
            "float": [struct.unpack("f", struct.pack("f", value))[0] for value in FLOATS],
            "double": [*FLOATS, 5e-324, draw.random()],
            "string": TEXTS,
            "binary": [b"", b"\x00\xff", b"abc"],
            "date": [0, -719162, 2932896, -208000, draw.randint(-719162, 2932896)],  # 0001 to 9999
        }[name]
    )


# -- comparing --------------------------------------------------------------------------------------------


def seen(array: Any) -> list[Any]:
    """Values that are equal when they are the same: NaN is NaN, -0.0 is not 0.0, an instant has no zone."""
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) and array.num_chunks else array
    if isinstance(array, pa.ChunkedArray):
        return []
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [seen(array.field(index)) for index in range(kind.num_fields)]
        found: list[Any] = [(tuple(part[row] for part in parts),) for row in range(len(array))]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = [None if (one := array[row].values) is None else seen(one) for row in range(len(array))]
    elif pa.types.is_map(kind):
        found = []
        for row in range(len(array)):
            pairs = array[row].values
            both = None if pairs is None else zip(seen(pairs.field(0)), seen(pairs.field(1)), strict=True)
            found.append(None if both is None else sorted(map(repr, both)))
    elif pa.types.is_floating(kind):
        found = [None if one is None else "NaN" if one != one else struct.pack("d", one) for one in array.to_pylist()]  # noqa: PLR0124
    elif pa.types.is_timestamp(kind):
        found = array.cast(pa.int64()).to_pylist()
    elif pa.types.is_date(kind):
        found = array.cast(pa.int32()).to_pylist()
    else:
        found = array.to_pylist()
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(found, valid, strict=True)]


def by_column(table: pa.Table, names: Iterable[str]) -> dict[str, list[Any]]:
    """What a table holds, in the order of its rows' numbers."""
    table = table.sort_by("k") if table.num_rows else table
    return {name: seen(table[name]) for name in names}


# -- writing and reading ----------------------------------------------------------------------------------


def frame(spark: SparkSession, one: Drawn) -> DataFrame:
    if not one.bad:
        return spark.createDataFrame(one.rows, one.schema)
    kept = StructType([field for field in one.schema if field.name != one.bad])
    df = spark.createDataFrame(one.rows, kept)
    return df.withColumn(one.bad, sql.lit(None).cast(one.schema[one.bad].dataType))


def fast(df: DataFrame, path: str, one: Drawn) -> None:
    pyspark_txsink.write(df, path, writer="w", epoch=0, partition_by=one.partition_by, layout=one.layout)


def plain(df: DataFrame, path: str, one: Drawn) -> None:
    options = {"txnAppId": "w", "txnVersion": "0", "layout": one.layout}
    if one.partition_by:
        options["partitionBy"] = f'["{one.partition_by[0]}"]'
    df.write.format("txsink").mode("append").options(**options).save(path)


def read_fast(spark: SparkSession, path: str) -> DataFrame:
    return pyspark_txsink.read(spark, path)


def read_plain(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("txsink").load(path)


def in_one_query(frames: list[DataFrame]) -> list[pa.Table]:
    """What each holds: Spark computes all of them in one job."""
    if not frames:
        return []
    fields = [(number, field) for number, df in enumerate(frames) for field in df.schema.fields]

    def widened(number: int, df: DataFrame) -> DataFrame:
        kept = df.toDF(*(f"{number} {place}" for place in range(len(df.columns))))
        places = iter(kept.columns)
        columns = [sql.col(next(places)) if n == number else sql.lit(None).cast(one.dataType) for n, one in fields]
        return kept.select(sql.lit(number), *columns)

    whole = reduce(DataFrame.union, [widened(number, df) for number, df in enumerate(frames)]).toArrow()
    found = []
    for number, df in enumerate(frames):
        places = [1 + place for place, (n, _) in enumerate(fields) if n == number]
        rows = whole.filter(pc.equal(whole.column(0), number))
        found.append(pa.table([rows.column(place) for place in places], df.columns))
    return found


def test_what_a_door_takes_comes_back_equal_and_the_rest_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: Counter[str] = Counter()
    for first in range(0, DRAWN, TOGETHER):
        group = [drawn(number) for number in range(first, min(first + TOGETHER, DRAWN))]
        written: list[tuple[Drawn, Path]] = []
        for one in group:
            df = frame(spark, one)
            for door in (fast, plain) if one.bad or one.number % 5 == 0 else (fast,):
                path = tmp_path / f"{door.__name__}-{one.number}"
                counts["tables"] += 1
                if one.bad:
                    with pytest.raises(Exception, match=f"column '{one.bad}.* has type ") as caught:
                        door(df, str(path), one)
                    told = f"{caught.type.__name__} {caught.value}"
                    assert "InvalidRequestError" in told, (told, one.schema.simpleString())
                    assert "PicklingError" not in told
                    assert not path.exists() or txsink.open_table(str(path)).files() == []
                    assert not [file for file in tmp_path.rglob("*.parquet") if path.name in str(file.parent)]
                    counts["refused"] += 1
                else:
                    door(df, str(path), one)
                    written.append((one, path))
        check(spark, written)
        counts["equal"] += len(written)
        counts["by the format"] += sum(path.name.startswith("plain") for _, path in written)
        counts["columns"] += sum(len(one.schema) - 1 for one, _ in written)
        counts["partitioned"] += sum(bool(one.partition_by) for one, _ in written)
        counts["delta"] += sum(one.layout == "delta" for one, _ in written)
    assert counts["tables"] == counts["refused"] + counts["equal"] >= 300
    with capsys.disabled():
        print(f"\nSpark types: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}")


def check(spark: SparkSession, written: list[tuple[Drawn, Path]]) -> None:
    for one, path in written:
        names = one.schema.names
        wanted = by_column(one.rows, names)
        table = txsink.open_table(str(path))
        assert by_column(table.to_arrow(), names) == wanted, (path, one.schema.simpleString())
        in_files = [name for name in names if name not in one.partition_by]
        files = [pq.ParquetFile(path / file.path).read() for file in table.files()]
        found = pa.concat_tables(file.select(in_files).cast(files[0].select(in_files).schema) for file in files)
        assert by_column(found, in_files) == {name: wanted[name] for name in in_files}, (
            path,
            one.schema.simpleString(),
        )
    for read, some in ((read_fast, written), (read_plain, [pair for pair in written if pair[0].number % 5 == 0])):
        for (one, path), found in zip(some, in_one_query([read(spark, str(path)) for _, path in some]), strict=True):
            assert found.column_names == one.schema.names
            wanted = by_column(one.rows, one.schema.names)
            assert by_column(found, one.schema.names) == wanted, (read.__name__, path, one.schema.simpleString())
