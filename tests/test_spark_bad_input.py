"""What Spark hands over and a table can hardly take: refused by name before anything is written, or taken whole.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: the local session of all Spark tests.
Does not promise: executors that lack txsink or pandas, see `test_spark_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_session
import txsink
from seen import rows_of

if reason := spark_session.missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from test_spark import BOTH, Write, fast, ids, left

DOORS = pytest.mark.parametrize("door", ["each_batch", "format"])
COLUMNS = 2_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


class Stream:
    """A stream whose query changes from start to start, as a new release of a program does it."""

    def __init__(self, spark: SparkSession, directory: Path, door: str) -> None:
        self.spark, self.directory, self.table, self.door = spark, directory, directory / "table", door

    def run(self, first: int, query: Callable[[DataFrame], DataFrame], mode: str = "append", **options: Any) -> None:
        """A batch of ten more rows."""
        self.spark.range(first, first + 10, 1, 1).write.mode("append").parquet(str(self.directory / "source"))
        df = query(self.spark.readStream.schema("id long").parquet(str(self.directory / "source")))
        writer = df.writeStream.option("checkpointLocation", str(self.directory / "checkpoint")).outputMode(mode)
        writer = writer.trigger(availableNow=True)
        if self.door == "format":
            given = {"mergeSchema" if name == "merge_schema" else name: str(value) for name, value in options.items()}
            query_ = writer.format("txsink").options(**given).start(str(self.table))
        else:
            query_ = writer.foreachBatch(pyspark_txsink.each_batch(str(self.table), **options)).start()
        query_.awaitTermination()


@DOORS
def test_a_schema_that_changes_between_batches_is_refused_or_merged(
    spark: SparkSession, tmp_path: Path, door: str
) -> None:
    """S15: what was refused goes on, with the same rows, once it is allowed."""
    stream = Stream(spark, tmp_path, door)
    stream.run(0, lambda df: df)
    with pytest.raises(Exception, match=r"id.* is int64 in the table and string"):
        stream.run(10, lambda df: df.selectExpr("cast(id as string) id"))
    with pytest.raises(Exception, match="merge_schema"):
        stream.run(20, lambda df: df.selectExpr("id", "id * 2 twice"))
    assert ids(spark, stream.table) == list(range(10))
    stream.run(30, lambda df: df.selectExpr("id", "id * 2 twice"), merge_schema=True)
    assert ids(spark, stream.table) == list(range(40))
    found = pyspark_txsink.read(spark, str(stream.table)).collect()
    assert {row.twice for row in found if row.id < 10} == {None}
    assert all(row.twice == 2 * row.id for row in found if row.id >= 10)
    assert left(stream.table) == []


@DOORS
def test_batches_without_rows_are_epochs(spark: SparkSession, tmp_path: Path, door: str) -> None:
    stream = Stream(spark, tmp_path, door)
    for number in range(3):
        stream.run(10 * number, lambda df: df.where("id = 15"))
    assert ids(spark, stream.table) == [15]
    (known,) = txsink.open_table(str(stream.table)).writers().values()
    assert known.last_epoch == 2


def test_update_mode_is_refused_by_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """S4."""
    stream = Stream(spark, tmp_path, "format")
    with pytest.raises(Exception, match=r"(?i)update"):
        stream.run(0, lambda df: df.groupBy("id").count(), mode="update")
    assert not stream.table.exists()


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_a_save_mode_that_spark_does_not_give_to_formats_is_refused(
    spark: SparkSession, table: Path, mode: str
) -> None:
    """S4."""
    with pytest.raises(Exception, match=r"(?i)mode|append"):
        spark.range(3).write.format("txsink").mode(mode).save(str(table))
    assert not table.exists()


def test_tables_of_sparks_catalog_are_refused_with_what_does(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    """Spark gives the format no path of theirs, whatever the statement said."""
    wanted = r"(?s)there is no path: Spark gives a format none.*\.save\(path\).*CREATE TEMPORARY VIEW"
    fast(spark.range(3), table, "w", 0)
    with pytest.raises(Exception, match=wanted):
        spark.range(3).write.format("txsink").mode("append").save()
    with pytest.raises(Exception, match=wanted):
        spark.range(3).write.format("txsink").mode("append").saveAsTable("txsink_table")
    with pytest.raises(Exception, match=wanted):
        spark.range(3).writeTo("txsink_table").using("txsink").create()
    with pytest.raises(Exception, match=wanted):
        spark.sql(f"create table txsink_table using txsink location '{table}'")
    assert not spark.catalog.tableExists("txsink_table")
    spark.sql(f"create table txsink_table (id long) using txsink location '{tmp_path / 'empty'}'")  # we are not asked
    try:
        for statement in ("select * from txsink_table", "insert into txsink_table values (1)"):
            with pytest.raises(Exception, match=wanted):
                spark.sql(statement).collect()
    finally:
        spark.sql("drop table txsink_table")
    spark.sql(f"create or replace temporary view txsink_view using txsink options (path '{table}')")
    assert spark.sql("select count(*) from txsink_view").collect() == [(3,)]
    spark.catalog.dropTempView("txsink_view")


def test_a_stream_from_the_format_is_refused_with_what_does(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    fast(spark.range(3), table, "w", 0)
    df = spark.readStream.format("txsink").load(str(table))
    query = df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"does not read streams.*spark.read.format\('txsink'\)"):
        query.trigger(availableNow=True).start().awaitTermination()


@BOTH
def test_a_path_as_hadoop_spells_it_is_that_path(spark: SparkSession, table: Path, write: Write) -> None:
    write(spark.range(3), f"file:{table}", "w", 0)
    assert ids(spark, table) == [0, 1, 2]
    assert pyspark_txsink.read(spark, f"file:{table}").count() == 3
    assert spark.read.format("txsink").load(f"file:{table}").count() == 3


def test_an_application_id_without_a_name_starts_no_task(spark: SparkSession, table: Path) -> None:
    with pytest.raises(Exception, match="txnAppId '' cannot be used: it is empty"):
        spark.range(3).write.format("txsink").mode("append").options(txnAppId="", txnVersion="0").save(str(table))
    assert not table.exists()


def test_partition_by_of_a_job_is_refused_and_not_ignored(spark: SparkSession, table: Path) -> None:
    df = spark.range(3).selectExpr("id", "id p")
    with pytest.raises(Exception, match=r"(?i)partition"):
        df.write.format("txsink").mode("append").partitionBy("p").save(str(table))
    assert not table.exists() or rows_of(table) == []


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "make_ym_interval(1, 2)",
        "make_dt_interval(1)",
        "parse_json('1')",
        "array(make_ym_interval(1, 2))",
        "struct(null as u)",
        "array()",
        "map()",
        "named_struct('deep', array(parse_json('1')))",
        "'a' collate UTF8_LCASE",
        "array('a' collate UNICODE)",
    ],
)
def test_a_type_that_cannot_be_stored_is_named_with_its_column(
    spark: SparkSession, table: Path, write: Write, text: str
) -> None:
    fast(spark.range(1), table, "w", 0)
    with pytest.raises(Exception, match=r"column 'odd[^ ]* has type [^ ]+") as caught:
        write(spark.range(3).selectExpr("id", f"{text} odd"), table, "w", 1, merge_schema=True)
    assert "PicklingError" not in str(caught.value)
    assert ids(spark, table) == [0]
    assert left(table) == []


@BOTH
def test_a_partition_column_that_is_missing_is_named(spark: SparkSession, table: Path, write: Write) -> None:
    with pytest.raises(Exception, match="'shop' cannot be a partition column: the data has no such column"):
        write(spark.range(3), table, "w", 0, partition_by=["shop"])
    write(spark.range(3).selectExpr("id", "1 shop"), table, "w", 0, partition_by=["shop"])
    with pytest.raises(Exception, match="'shop' cannot be a partition column: the data has no such column"):
        write(spark.range(3), table, "w", 1)
    assert ids(spark, table) == [0, 1, 2]


@BOTH
def test_names_that_differ_by_case_only_are_refused(spark: SparkSession, table: Path, write: Write) -> None:
    """S10."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception, match="have the same name but for case"):
            write(spark.range(3).selectExpr("id", "id ID"), table, "w", 0)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert not table.exists() or rows_of(table) == []


@BOTH
def test_two_thousand_columns_of_one_row_come_back(spark: SparkSession, table: Path, write: Write) -> None:
    names = [f"c{number}" for number in range(COLUMNS)]
    write(spark.range(1).selectExpr("id", *(f"{number} {name}" for number, name in enumerate(names))), table, "w", 0)
    row = pyspark_txsink.read(spark, str(table)).first()
    assert row is not None
    assert [row[name] for name in names] == list(range(COLUMNS))
    assert ids(spark, table) == [0]
