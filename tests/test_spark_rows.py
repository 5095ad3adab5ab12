"""Rows at the border of Spark: whatever the session says, each is stored exactly or refused, by both doors alike.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: the local session of all Spark tests; what a test sets it takes back.
Does not promise: every type; those have a search of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_session
import txsink
from seen import rows_of
from txsink.errors import InternalError, InvalidRequestError
from txsink.staging.adopt import Guest

if reason := spark_session.missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from test_spark import BOTH, Write, fast, ids, left, plain

# What a session, or a vendor's, may say. The classes are abstract, so that a write with one of them fails.
HOSTILE = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.output.committer.class": "org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter",
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.FileCommitProtocol",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
}
HOSTILE_TO_HADOOP = {
    "mapreduce.output.basename": "_x",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    "parquet.summary.metadata.level": "ALL",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@contextmanager
def hostile(spark: SparkSession) -> Iterator[None]:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = {name: hadoop.get(name) for name in HOSTILE_TO_HADOOP}
    for name, value in HOSTILE.items():
        spark.conf.set(name, value)
    for name, value in HOSTILE_TO_HADOOP.items():
        hadoop.set(name, value)
    try:
        yield
        assert {name: spark.conf.get(name) for name in HOSTILE} == HOSTILE
    finally:
        for name in HOSTILE:
            spark.conf.unset(name)
        for name, known in before.items():
            hadoop.unset(name) if known is None else hadoop.set(name, known)


@BOTH
def test_no_setting_of_the_session_changes_bytes_or_loses_rows(spark: SparkSession, table: Path, write: Write) -> None:
    df = spark.sql(
        "select id, timestamp'1400-01-01 00:00:00' at, timestamp_ntz'1400-01-01 00:00:00' wall, date'1400-01-01' day,"
        " cast(1.5 as decimal(9, 2)) price, array(id) list from range(5)"
    )
    with hostile(spark):
        write(df, table, "w", 0)
        assert ids(spark, table) == [0, 1, 2, 3, 4]
        found = pyspark_txsink.read(spark, str(table)).first()
        assert found is not None
        assert (found.day, found.wall) == (date(1400, 1, 1), datetime(1400, 1, 1))  # noqa: DTZ001 -- it has none
    for file in txsink.open_table(str(table)).files():
        row = pq.read_table(table / file.path).to_pylist()[0]
        assert row["at"] == datetime(1400, 1, 1, tzinfo=timezone.utc)
        assert (row["wall"], row["day"]) == (datetime(1400, 1, 1), date(1400, 1, 1))  # noqa: DTZ001 -- it has none
        kinds = {str(one.physical_type) for one in pq.ParquetFile(table / file.path).schema}
        assert "INT96" not in kinds


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_file_that_is_gone_or_damaged_is_an_error_whatever_the_session_says(
    spark: SparkSession, table: Path, harm: str
) -> None:
    fast(spark.range(0, 4, 1, 2), table, "w", 0)
    file = table / txsink.open_table(str(table)).files()[0].path
    df = pyspark_txsink.read(spark, str(table))
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    with hostile(spark):
        with pytest.raises(Exception, match=r"(?i)not exist|FAILED_READ_FILE|FILE_NOT_EXIST|footer"):
            df.collect()
        with pytest.raises(Exception, match=r"(?i)part-"):
            pyspark_txsink.read(spark, str(table)).collect()


def test_a_file_that_is_not_found_is_noticed_with_a_local_master(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(spark.range(1), table, "w", 0)
    adopt = Guest.adopt
    monkeypatch.setattr(Guest, "adopt", lambda self, *more: adopt(self, *more)[1:])
    with pytest.raises(InternalError, match="Spark wrote 4 rows, and 2 of them are found here"):
        fast(spark.range(0, 4, 1, 2), table, "w", 1)
    monkeypatch.undo()
    fast(spark.range(0, 4, 1, 2), table, "w", 1)
    assert ids(spark, table) == [0, 0, 1, 2, 3]
    assert left(table) == []


@pytest.mark.parametrize("first", [fast, plain])
@pytest.mark.parametrize("then", [fast, plain])
def test_a_column_without_a_type_is_readable_before_and_after_it_gets_one(
    spark: SparkSession, table: Path, first: Write, then: Write
) -> None:
    first(spark.range(1).selectExpr("id", "null v"), table, "w", 0)
    assert [row.v for row in pyspark_txsink.read(spark, str(table)).collect()] == [None]
    then(spark.range(1, 2).selectExpr("id", "2L v"), table, "w", 1)
    first(spark.range(2, 3).selectExpr("id", "null v"), table, "w", 2)
    assert ids(spark, table) == [0, 1, 2]
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        assert {row.id: row.v for row in found.collect()} == {0: None, 1: 2, 2: None}
        assert dict(found.dtypes) == {"id": "bigint", "v": "bigint"}


@BOTH
def test_rows_without_a_typed_column_are_refused(spark: SparkSession, table: Path, write: Write) -> None:
    with pytest.raises(Exception, match="no column has a type"):
        write(spark.range(1).selectExpr("null v"), table, "w", 0)
    assert not table.exists() or rows_of(table) == []


@BOTH
def test_narrower_numbers_are_stored_as_the_tables_wider_ones(spark: SparkSession, table: Path, write: Write) -> None:
    write(spark.range(1).selectExpr("id", "1L n", "array(named_struct('x', 1L)) deep"), table, "w", 0)
    write(spark.range(1, 2).selectExpr("id", "2 n", "array(named_struct('x', 2)) deep"), table, "w", 1)
    assert ids(spark, table) == [0, 1]
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        assert sorted((row.n, row.deep[0].x) for row in found.collect()) == [(1, 1), (2, 2)]
    with pytest.raises(Exception, match="column 'n' is int64 in the table and double"):
        write(spark.range(1).selectExpr("id", "2.5d n", "array(named_struct('x', 2)) deep"), table, "w", 2)
    assert ids(spark, table) == [0, 1]


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "cast(X'ff' as string)",
        "array(named_struct('f', map(1, cast(X'41ff' as string))))",
        "map(cast(X'ff' as string), 1)",
    ],
)
def test_text_that_is_not_utf8_is_refused_by_its_column(
    spark: SparkSession, table: Path, write: Write, text: str
) -> None:
    """Spark carries any bytes as a string; no other reader does."""
    write(spark.range(1).selectExpr("id", f"if(id = 0, null, {text}) `odd one`"), table, "w", 0)
    with pytest.raises(Exception, match="column 'odd one' holds text that is not UTF-8"):
        write(spark.range(10).selectExpr("id", f"if(id = 9, {text}, null) `odd one`"), table, "w", 1)
    assert ids(spark, table) == [0]
    write(spark.range(1, 2).selectExpr("id", f"if(id = 0, {text}, null) `odd one`"), table, "w", 1)
    assert ids(spark, table) == [0, 1]
    assert left(table) == []


def with_keys(spark: SparkSession, keys: pa.Array, around: str) -> DataFrame:
    """A map with these keys, and one with one of them; Spark's own functions make none with a key twice."""
    twice, once = [(key, 1) for key in keys.to_pylist()], [(keys[0].as_py(), 1)]
    maps = pa.array([twice, once, None], pa.map_(keys.type, pa.int64()))
    df = spark.createDataFrame(pa.table({"id": pa.array([0, 1, 2]), "m": maps}))
    return df.selectExpr("id", f"{around} `odd one`")


@BOTH
@pytest.mark.parametrize(
    ("keys", "around"),
    [
        (pa.array(["a", "b", "a"]), "m"),
        (pa.array([0.0, -0.0]), "m"),
        (pa.array([float("nan"), float("nan")]), "array(null, m)"),
        (pa.array([{"x": 1}, {"x": 1}]), "named_struct('f', m)"),
        (pa.array([[1], [1]]), "m"),
        (pa.array([b"a", b"a"]), "map('k', array(named_struct('f', m)))"),
    ],
)
def test_a_key_twice_in_a_map_is_refused_by_its_column(
    spark: SparkSession, table: Path, write: Write, keys: pa.Array, around: str
) -> None:
    """DuckDB opens no file that holds such a map. Spark's Python has no dict for keys that are lists."""
    df = with_keys(spark, keys, around)
    write(df.where("id > 0"), table, "w", 0)
    with pytest.raises(Exception, match="column 'odd one' holds a map with "):
        write(df.where("id < 2"), table, "w", 1)
    assert rows_of(table) == [1, 2]
    write(df.where("id = 2"), table, "w", 1)
    assert rows_of(table) == [1, 2, 2]
    assert left(table) == []


def test_the_fast_path_says_which_key_stands_twice(spark: SparkSession, table: Path) -> None:
    df = with_keys(spark, pa.array(["b", "a", "c", "a"]), "m")
    with pytest.raises(
        InvalidRequestError, match=r"column 'odd one' holds a map with the key a twice\. Change the value"
    ):
        fast(df, table, "w", 0)
    assert left(table) == []


@BOTH
@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("''", "null"),
        ("'__HIVE_DEFAULT_PARTITION__'", "which stands for null"),
        ("date'9999-12-31' + 1", "10000-01-01"),
        ("timestamp_micros(253402300800000000)", "10000-01-01"),
    ],
)
def test_a_partition_value_that_no_directory_can_tell_is_refused_by_column_and_value(
    spark: SparkSession, table: Path, write: Write, value: str, match: str
) -> None:
    write(spark.range(1).selectExpr("id", f"if(id = 0, null, {value}) p"), table, "w", 0, partition_by=["p"])
    with pytest.raises(Exception, match=rf"partition column 'p'.*{match}"):
        write(spark.range(2).selectExpr("id", f"if(id = 0, null, {value}) p"), table, "w", 1)
    assert ids(spark, table) == [0]


def test_unsigned_numbers_of_a_table_are_wider_ones_to_spark(spark: SparkSession, table: Path) -> None:
    most = {f"u{bits}": pa.array([0, 2**bits - 1], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)}
    deep = pa.array([[{"x": 1}], [{"x": 2**64 - 1}]], pa.list_(pa.struct([("x", pa.uint64())])))
    txsink.write(str(table), pa.table({"id": pa.array([0, 1]), **most, "deep": deep}), writer="w", epoch=0)
    assert ids(spark, table) == [0, 1]
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        row = found.orderBy("id").collect()[1]
        assert [int(row[name]) for name in most] == [2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1]
        assert int(row.deep[0].x) == 2**64 - 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", ["1.5d", "double('NaN')", "double('-Infinity')", "-0.0d"]),
        ("string", ["'a'", "'b c'", "'é'"]),
        ("date", ["date'2026-01-31'", "date'1400-01-01'"]),
        ("timestamp", ["timestamp'2026-01-31 12:00:00.25'", "timestamp'1400-01-01 00:00:00'"]),
        ("timestamp_ntz", ["timestamp_ntz'2026-01-31 12:00:00.25'"]),
        ("decimal(9,2)", ["cast(1.5 as decimal(9,2))", "cast(-0.25 as decimal(9,2))"]),
        ("boolean", ["true", "false"]),
        ("tinyint", ["1Y", "-1Y"]),
    ],
)
def test_a_filter_on_a_partition_leaves_no_row_out(
    spark: SparkSession, table: Path, kind: str, values: list[str]
) -> None:
    """Both doors prune, and find what Spark finds without them."""
    rows = " union all ".join(
        f"select {number} id, cast({one} as {kind}) p" for number, one in enumerate([*values, "null"])
    )
    df = spark.sql(rows)
    fast(df, table, "w", 0, partition_by=["p"])
    filters = [f"p = {one}" for one in values] + [f"p <=> {one}" for one in [*values, "null"]]
    filters += [
        f"p in ({', '.join(values)})",
        f"p in ({values[0]}, null)",
        "p is null",
        "p is not null",
        f"p <> {values[0]}",
    ]
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        for one in filters:
            assert [row.id for row in found.where(one).orderBy("id").collect()] == [
                row.id for row in df.where(one).orderBy("id").collect()
            ], one
