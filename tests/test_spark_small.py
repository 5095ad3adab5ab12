"""Small batches of a stream, staged by the driver: all of their rows or none, and the files that Spark's writer makes.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: `fast._write_parquet` being called for each batch that Spark's own writer stages, and for no other.
Does not promise: kills, see `test_spark_kills`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import spark_session
import txsink
from txsink.txn import Result

if reason := spark_session.missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from pyspark_txsink import fast, small
from pyspark_txsink.small import Batches, Numbered, Question, Room, Shape
from test_spark import Stream, ids, left

Change = Callable[[DataFrame], DataFrame]
ROOMY = 1 << 30


class Ways:
    """A stream, a file a batch, and how many batches Spark's own writer has staged."""

    def __init__(self, spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.directory, self.table = spark, directory, directory / "table"
        self.by_spark = 0
        self.query: Change = lambda df: df
        write = fast._write_parquet

        def counted(*given: Any) -> None:
            self.by_spark += 1
            write(*given)

        monkeypatch.setattr(fast, "_write_parquet", counted)

    def add(self, first: int, count: int) -> None:
        self.spark.range(first, first + count, 1, 1).write.mode("append").parquet(str(self.directory / "source"))

    def run(self, **options: Any) -> int:
        """Run what there is; how many batches Spark's writer has staged."""
        before = self.by_spark
        rows = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        writer = self.query(rows.parquet(str(self.directory / "source"))).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        writer.foreachBatch(pyspark_txsink.each_batch(str(self.table), **options)).start().awaitTermination()
        return self.by_spark - before


@pytest.fixture
def ways(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(spark, tmp_path, monkeypatch)


# -- streams ----------------------------------------------------------------------------------------------


def test_batches_that_follow_a_small_one_are_staged_by_the_driver(spark: SparkSession, ways: Ways) -> None:
    for number in range(4):
        ways.add(10 * number, 10)
    ways.query = lambda df: df.repartition(3)
    assert ways.run() == 1
    assert ids(spark, ways.table) == list(range(40))
    assert Counter(file.path.split("-")[1] for file in txsink.open_table(str(ways.table)).files()) == {
        "0": 3, "1": 1, "2": 1, "3": 1,
    }  # fmt: skip
    assert left(ways.table) == []


def test_a_batch_that_does_not_fit_is_staged_whole_by_sparks_writer(spark: SparkSession, ways: Ways) -> None:
    for first, count in ((0, 10), (10, 512), (522, 2049), (2571, 10), (2581, 10), (2591, 10)):
        ways.add(first, count)
    # 512 rows have room after the first one, and 2,048 after the second: the third has one too many.
    # The fourth is not tried, because the third was too large; the last ones are.
    assert ways.run() == 3
    assert ids(spark, ways.table) == list(range(2601))


def test_a_row_that_is_too_wide_makes_the_whole_batch_sparks(
    spark: SparkSession, ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "_RECEIVED_MAX", 1 << 20)
    for number in range(3):
        ways.add(10 * number, 10)
    ways.query = lambda df: df.selectExpr("id", "repeat('x', if(id = 15, 100000, 1)) t")
    assert ways.run() == 3  # the second does not fit, and the third waits
    assert ids(spark, ways.table) == list(range(30))
    found = txsink.open_table(str(ways.table)).to_arrow().to_pylist()
    assert {len(row["t"]) for row in found if row["id"] == 15} == {100000}


def test_the_state_of_a_query_stays_right_when_a_batch_is_computed_twice(
    spark: SparkSession, ways: Ways, tmp_path: Path
) -> None:
    """Spark versions the state by batch: the second computation starts where the first did."""
    ways.query = lambda df: df.selectExpr("id % 3000 id").dropDuplicates(["id"])
    for first, count in ((0, 5), (0, 2500), (0, 2600), (2600, 20)):
        ways.add(first, count)
    assert ways.run() >= 2  # of the second, each of two tasks has more rows than there is room for
    ways.add(2590, 60)
    stream = Stream.__new__(Stream)
    stream.checkpoint = tmp_path / "checkpoint"
    stream.forget_commits(1)
    ways.run()
    ways.add(0, 3000)
    ways.run()
    assert ids(spark, ways.table) == list(range(3000))


def test_counts_that_grow_from_batch_to_batch_are_the_same_either_way(spark: SparkSession, ways: Ways) -> None:
    """Complete mode, where each batch is all of the state."""
    written: list[dict[int, int]] = []

    def each(df: DataFrame, number: int) -> None:
        target(df, number)
        written.append({row["id"]: row["n"] for row in txsink.open_table(str(ways.table)).to_arrow().to_pylist()})

    target = pyspark_txsink.each_batch(str(ways.table), mode="overwrite")
    expected: Counter[int] = Counter()
    for first, count in ((0, 3), (0, 4000), (5, 2), (0, 4000), (0, 10)):
        ways.add(first, count)
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(ways.directory / "source"))
    writer = rows.selectExpr("id % 3000 id").groupBy("id").count().selectExpr("id", "count n").writeStream
    writer = writer.outputMode("complete").option("checkpointLocation", str(ways.directory / "checkpoint"))
    writer.trigger(availableNow=True).foreachBatch(each).start().awaitTermination()
    for number, (first, count) in enumerate(((0, 3), (0, 4000), (5, 2), (0, 4000), (0, 10))):
        expected.update(one % 3000 for one in range(first, first + count))
        assert written[number] == expected
    assert 1 < ways.by_spark < 5


TYPES = (
    "id",
    "cast(id as byte) b", "cast(id as short) s", "cast(id as int) i", "5.5f f", "6.5d d",
    "cast(7.25 as decimal(10, 2)) n", "cast(7 as decimal(38, 9)) w", "if(id % 2 = 0, null, concat('Grüße ', id)) t",
    "true o", "date'1400-01-31' day", "timestamp'1500-01-02 03:04:05.678901' at",
    "timestamp_ntz'2400-01-01 00:00:00' wall", "binary('y') y", "array(1, null) a", "array(array('x'), null) aa",
    "map('k', 2, 'l', null) m", "struct(id as u, struct('v' as v) as deep) r", "array(struct(id as q)) `dotted.name`",
)  # fmt: skip


def test_both_ways_make_the_same_files_of_every_type(spark: SparkSession, ways: Ways) -> None:
    """S17."""
    for _ in range(2):
        ways.add(0, 10)
    ways.query = lambda df: df.selectExpr(*TYPES)
    assert ways.run() == 1
    table = txsink.open_table(str(ways.table))
    first, second = (pq.ParquetFile(ways.table / file.path) for file in sorted(table.files(), key=lambda one: one.path))
    assert _plain(first.schema_arrow) == _plain(second.schema_arrow)
    assert first.read().to_pylist() == second.read().to_pylist()
    rows = pyspark_txsink.read(spark, str(ways.table)).collect()
    assert Counter(map(str, rows)) == Counter(2 * [str(row) for row in spark.range(10).selectExpr(*TYPES).collect()])
    assert pyspark_txsink.read(spark, str(ways.table)).dtypes == spark.range(1).selectExpr(*TYPES).dtypes


def _plain(schema: Any) -> list[tuple[str, str]]:
    """Names and types, without what a list calls its elements and what was declared not to be null."""
    return [
        (field.name, str(field.type).replace("element:", "item:").replace(" not null", "").split(" ('")[0])
        for field in schema
    ]


def test_partitions_are_the_same_either_way_in_any_time_zone(spark: SparkSession, ways: Ways) -> None:
    """S2, S3: and a time in the name of a directory is the same instant for every reader."""
    texts = "array('a/b=c%d', 'Grüße', null, '', '1')"
    ways.query = lambda df: df.selectExpr("id", f"{texts}[cast(id % 5 as int)] p", "timestamp_seconds(id % 2) at")
    for number in range(2):
        ways.add(10 * number, 10)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert ways.run(partition_by=["p", "at"]) == 1
        seen = [(row.id, row.p, row.s) for row in _seconds(pyspark_txsink.read(spark, str(ways.table)))]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    values = ["a/b=c%d", "Grüße", None, None, "1"]
    expected = [(number, values[number % 5], number % 2) for number in range(20)]
    assert sorted(seen) == expected
    for df in (pyspark_txsink.read(spark, str(ways.table)), spark.read.format("txsink").load(str(ways.table))):
        assert sorted((row.id, row.p, row.s) for row in _seconds(df)) == expected
    found = txsink.open_table(str(ways.table)).to_arrow().to_pylist()
    assert sorted((row["id"], row["p"], int(row["at"].timestamp())) for row in found) == expected
    assert len({file.path.rpartition("/")[0] for file in txsink.open_table(str(ways.table)).files()}) == 8
    assert len(txsink.open_table(str(ways.table)).files()) == 16


def _seconds(df: DataFrame) -> list[Any]:
    return df.selectExpr("id", "p", "unix_seconds(at) s").collect()


def test_what_only_one_way_could_write_is_refused_by_both(spark: SparkSession, ways: Ways) -> None:
    ways.add(0, 10)
    ways.run()
    ways.query = lambda df: df.selectExpr("cast(id as string) id")
    ways.add(10, 10)
    with pytest.raises(Exception, match="is int64 in the table and string"):
        ways.run()
    assert ids(spark, ways.table) == list(range(10))
    assert left(ways.table) == []


# -- one batch ------------------------------------------------------------------------------------------------


def cut(df: DataFrame, rows: int, bytes_: int = ROOMY) -> list[Any] | None:
    """The ids of a batch of which each task may deliver so many rows."""
    shape = small.shape_of(df.schema)
    assert shape is not None
    found = Numbered(df, Question(df, shape)).rows_within(Room(1, rows, bytes_))
    return None if found is None else sorted(found["id"].to_pylist())


FRAMES: dict[str, Change] = {
    "as it is": lambda df: df,
    "filtered before": lambda df: df.where("id % 3 = 0"),
    "a chance before": lambda df: df.where("rand(7) < 0.5"),
    "numbered before": lambda df: df.selectExpr("monotonically_increasing_id() id").where("id % 2 = 0"),
    "a union": lambda df: df.union(df.selectExpr("id + 100")),
    "sorted": lambda df: df.orderBy("id"),
    "shuffled": lambda df: df.repartition(3, "id"),
    "grouped": lambda df: df.groupBy((df.id % 40).alias("id")).count(),
    "brought together": lambda df: df.coalesce(2),
    "exploded": lambda df: df.selectExpr("explode(sequence(0, id)) id"),
    "cached": lambda df: df.cache(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_either_every_row_of_every_task_arrives_or_nothing(spark: SparkSession, name: str) -> None:
    df = FRAMES[name](spark.range(0, 60, 1, 4))
    parts = [sorted(row.id for row in part) for part in df.rdd.glom().collect()]
    whole = sorted(one for part in parts for one in part)
    largest = max(len(part) for part in parts)
    assert cut(df, largest) == whole
    assert cut(df, largest + 1) == whole
    assert cut(df, largest - 1) is None
    assert cut(df, 1) is None


def test_a_row_too_wide_is_never_dropped_alone(spark: SparkSession) -> None:
    df = spark.range(0, 20, 1, 3).selectExpr("id", "repeat('é', cast(id as int)) t", "binary(repeat('x', 5)) b")
    assert cut(df, 20, 43) == list(range(20))
    assert cut(df, 20, 42) is None
    assert cut(df.where("id < 19"), 20, 42) == list(range(19))


def test_a_null_where_none_was_declared_becomes_what_sparks_writer_makes_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """S17."""
    true = spark.sql("select id, cast(null as int) n from range(0, 3, 1, 1)")
    declared = json.loads(true.schema.json().replace('"nullable":true', '"nullable":false'))
    schema = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(declared))
    lie = spark._jsparkSession.internalCreateDataFrame(true._jdf.queryExecution().toRdd(), schema, False)
    df = DataFrame(lie, spark)
    assert not df.schema["n"].nullable
    df.write.parquet(str(tmp_path / "by_spark"))
    expected = [row.asDict(recursive=True) for row in spark.read.parquet(str(tmp_path / "by_spark")).collect()]
    shape = small.shape_of(df.schema)
    assert shape is not None
    found = Numbered(df, Question(df, shape)).rows_within(Room(1, 5, ROOMY))
    assert found is not None
    assert found.to_pylist() == expected
    assert cut(df, 2) is None


@pytest.mark.parametrize("text", ["cast(null as void)", "interval '1' day", "array(interval '1' month)", "time'12:00'"])
def test_a_type_whose_size_is_not_told_goes_the_ordinary_way(spark: SparkSession, text: str) -> None:
    try:
        schema = spark.range(1).selectExpr("id", f"{text} v").schema
    except Exception as error:  # noqa: BLE001 -- Spark 4.1 may lack the type
        pytest.skip(f"Spark has no such value: {type(error).__name__}")
    assert small.shape_of(schema) is None


# -- bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [1, 6, 200, 2_000])
@pytest.mark.parametrize("texts", [(), ("octet_length(c0)",)])
def test_what_all_tasks_may_deliver_fits_into_what_the_driver_may_receive(leaves: int, texts: tuple[str, ...]) -> None:
    for received in (1 << 16, 1 << 20, 64 << 20):
        for tasks in (1, 2, 7, 200, 10_000):
            for wanted in (256, 2_256, 20_256):
                room = small.room_of(received, Shape(leaves, texts), tasks, wanted)
                if room is not None:
                    row = leaves * small._LEAF_BYTES + (room.bytes if texts else 0)
                    batches = tasks * leaves * small._LEAF_BYTES_IN_BATCH
                    assert batches + room.tasks * room.rows * row <= received
                    assert room.tasks == tasks
                    assert 1 <= room.rows <= wanted
                    assert not texts or room.bytes >= small._TEXT_BYTES


def test_room_is_made_for_twice_the_last_batch_and_changes_seldom() -> None:
    """Else Spark would compile code anew for each batch."""
    rooms = [small.wanted(rows) for rows in range(small.ROWS_MAX + 1)]
    assert all(room >= 2 * rows + 256 for rows, room in enumerate(rooms))
    assert len(set(rooms)) <= 8


def test_a_thousand_rows_of_one_task_or_of_many_have_room() -> None:
    for tasks in (1, 4, 32):
        room = small.room_of(64 << 20, Shape(6, ("octet_length(c3)",)), tasks, 2 * 1_000 + 256)
        assert room is not None
        assert room.rows * tasks >= 2_000


def test_no_value_takes_more_bytes_than_its_text_says(spark: SparkSession) -> None:
    """Arrays of nulls, of empty texts, of structs that are null and have many fields."""
    wide = ", ".join(f"'' as f{number}" for number in range(40))
    values = [
        "array_repeat('', 500)", "array_repeat(cast(null as int), 500)", "array_repeat(cast(0 as decimal(38, 0)), 500)",
        f"array_repeat(if(id < 0, struct({wide}), null), 300)", "map_from_arrays(sequence(1, 300), sequence(1, 300))",
        "array_repeat(array_repeat(array(1), 20), 20)", "struct(repeat('x', 300) as u, array_repeat('', 40) as v)",
        "array_repeat(binary(''), 100)", "map('k', struct(repeat('y', 9) as z))",
    ]  # fmt: skip
    for value in values:
        df = spark.range(1).selectExpr(f"{value} v").coalesce(1)
        shape = small.shape_of(df.schema)
        assert shape is not None
        told = df.withColumnRenamed("v", "c0").selectExpr(" + ".join(shape.texts)).first()
        found = Numbered(df, Question(df, shape)).rows_within(Room(1, 1, ROOMY))
        assert told is not None
        assert found is not None
        assert found.nbytes <= told[0] + shape.leaves * small._LEAF_BYTES, value


def test_what_the_driver_may_receive_shrinks_with_its_heap_and_what_it_lets_results_be(spark: SparkSession) -> None:
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert small.received_max(spark) == min(64 << 20, heap // 16)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "4m")
    try:
        assert small.received_max(spark) == 1 << 20
        conf.set("spark.driver.maxResultSize", "0")
        assert small.received_max(spark) == min(64 << 20, heap // 16)
    finally:
        conf.remove("spark.driver.maxResultSize")


# -- when -----------------------------------------------------------------------------------------------------


def result(rows: int, size: int = 1_000) -> Result:
    return Result("committed", 0, 0, 1, rows, size)


def test_what_does_not_fit_again_and_again_is_tried_less_and_less(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, tried, count = Batches(), [], itertools.count()
    df = spark.range(1)
    monkeypatch.setattr(Batches, "_received", lambda self, *given: tried.append(True))
    for _ in range(3_000):
        batches.note(result(10))
        assert batches.rows_of(df) is None
        tried.extend([False] * (next(count) + 1 - len(tried)))
    assert [number for number, one in enumerate(tried) if one] == [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 2046]


@pytest.mark.parametrize("last", [None, result(small.ROWS_MAX + 1), result(5, small.BYTES_MAX + 1)])
def test_the_first_batch_and_one_after_a_large_one_are_sparks(spark: SparkSession, last: Result | None) -> None:
    batches = Batches()
    if last is not None:
        batches.note(last)
    assert batches.rows_of(spark.range(1)) is None
    batches.note(result(small.ROWS_MAX, small.BYTES_MAX))
    assert batches.rows_of(spark.range(3)) is not None


def test_a_schema_that_changes_is_asked_anew(spark: SparkSession) -> None:
    batches = Batches()
    for df in (
        spark.range(3),
        spark.range(3).selectExpr("id x", "'a' y"),
        spark.range(3).selectExpr("cast(id as int) x"),
    ):
        batches.note(result(10))
        found = batches.rows_of(df)
        assert found is not None
        assert found.to_pylist() == [row.asDict() for row in df.collect()]


def test_more_tasks_than_last_time_share_what_there_is(spark: SparkSession) -> None:
    batches, chance = Batches(), random.Random(7)
    for _ in range(6):
        batches.note(result(400))
        tasks = chance.randrange(1, 12)
        found = batches.rows_of(spark.range(0, 500, 1, tasks))
        assert found is not None
        assert sorted(found["id"].to_pylist()) == list(range(500))
