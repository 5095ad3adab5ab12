"""What errors of the Spark plug-in advise, done word for word: its options, its writers, and in a session.

Promises: skipped, with the reason, where pyspark is missing; what needs a session, where Java is.
Relies on: `spark_session`, the one session of a run; stand-ins for what Spark's tasks and driver hand to a writer.
Does not promise: clusters, and Spark Connect, which `test_spark_connect.py` has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import txsink
from advice import advised
from seen import rows_of
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.stager import Stager

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession, types as kinds
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructField, StructType

import pyspark_txsink
from pyspark_txsink import DefaultSource, arrow, counted_rows, fast, options, writers
from pyspark_txsink.fast import EachBatch
from pyspark_txsink.identity import Batch

PATH = {"path": "/lake/t"}
GIVEN: list[tuple[Any, dict[str, str], dict[str, str], str, object]] = [
    (
        advised("pyspark_txsink.options.parse", "Use .save(path), .start(path) and .load(path), or for SQL"),
        {"compression": "zstd"},
        {**PATH, "compression": "zstd"},
        "path",
        "/lake/t",
    ),
    (
        advised("pyspark_txsink.options.parse", "Did you mean {}?"),
        {**PATH, "mergeSchemas": "true"},
        {**PATH, "mergeSchema": "true"},
        "merge_schema",
        True,
    ),
    (
        advised("pyspark_txsink.options.parse", "Known options: {}, storage.*"),
        {**PATH, "zzzzz": "1"},
        {**PATH, "storage.zzzzz": "1"},
        "storage_options",
        {"zzzzz": "1"},
    ),
    (
        advised("pyspark_txsink.options.parse", "Give both, or neither"),
        {**PATH, "txnAppId": "a"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_version",
        3,
    ),
    (
        advised("pyspark_txsink.options.parse", "Give both, or neither"),
        {**PATH, "txnVersion": "3"},
        PATH,
        "app_version",
        None,
    ),
    (
        advised("pyspark_txsink.options.parse", "Give another name"),
        {**PATH, "txnAppId": "", "txnVersion": "3"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_id",
        "a",
    ),
    (
        advised("pyspark_txsink.options._integer", "Give a number"),
        {**PATH, "txnAppId": "a", "txnVersion": "three"},
        {**PATH, "txnAppId": "a", "txnVersion": "3"},
        "app_version",
        3,
    ),
    (
        advised("pyspark_txsink.options._truth", "Give true or false"),
        {**PATH, "mergeSchema": "yes"},
        {**PATH, "mergeSchema": "true"},
        "merge_schema",
        True,
    ),
    (
        advised("pyspark_txsink.options._bytes", "Give bytes, or say 128m"),
        {**PATH, "targetFileSize": "big"},
        {**PATH, "targetFileSize": "128m"},
        "stage",
        {"target_file_bytes": 128 << 20},
    ),
    (
        advised("pyspark_txsink.options._bytes", "Give bytes, or say 128m"),
        {**PATH, "targetFileSize": "1.5g"},
        {**PATH, "targetFileSize": "1500"},
        "stage",
        {"target_file_bytes": 1500},
    ),
    (
        advised("choices.require_choice", "Give one of these"),
        {**PATH, "partitionOverwriteMode": "some"},
        {**PATH, "partitionOverwriteMode": "dynamic"},
        "partition_overwrite",
        "dynamic",
    ),
]


@pytest.mark.parametrize(("block", "wrong", "right", "name", "value"), GIVEN)
def test_an_option_that_is_changed_as_its_error_says_is_taken(
    block: Any, wrong: dict[str, str], right: dict[str, str], name: str, value: object
) -> None:
    with block:
        options.parse(wrong)
    assert getattr(options.parse(right), name) == value


def test_options_of_each_batch_are_those_that_the_message_names(tmp_path: Path) -> None:
    path = str(tmp_path / "T")
    with advised("options.unknown", "Did you mean {}?"):
        EachBatch(path, {"merge_schemas": True})
    with advised("options.unknown", "Known options: {}") as caught:
        EachBatch(path, {"zzzzz": True})
    with advised("pyspark_txsink.fast._require", "Give a number from 1 on"):
        EachBatch(path, {"max_records_per_file": 0})
    with advised("choices.require_choice", "Give one of these"):
        EachBatch(path, {"on_new_checkpoint": "go on"})
    assert "merge_schema" in caught.value.advice
    for choice in ("fail", "resume"):
        EachBatch(path, {"merge_schema": True, "max_records_per_file": 1, "on_new_checkpoint": choice})


# -- what Spark hands over, by stand-ins ---------------------------------------------------------------------

IDS = StructType([StructField("id", kinds.LongType())])


def batches(*ids: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"id": pa.array(ids, pa.int64())})])


class Stream:
    """The format's writer of a micro-batch, as Spark calls it: tasks write, then the driver commits."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.patch = path, patch
        patch.setattr(writers, "_sinks", {})

    def writer(self) -> Any:
        return DefaultSource({"path": str(self.path), "checkpointLocation": "/c"}).streamWriter(IDS, overwrite=False)

    def staged(self, batch: Batch, *ids: int) -> Any:
        """The message of a task."""
        names = ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
        known = dict(zip(names, map(str, batch), strict=True))
        context = SimpleNamespace(getLocalProperty=known.get)
        self.patch.setattr(writers, "TaskContext", SimpleNamespace(get=lambda: context))
        return self.writer().write(batches(*ids))


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    return Stream(tmp_path / "T", monkeypatch)


ONE = Batch("q", "r", 0)


def test_a_query_whose_tasks_report_several_batches_is_restarted(stream: Stream) -> None:
    messages = [stream.staged(ONE, 1), stream.staged(Batch("q", "other", 0), 2)]
    with advised("pyspark_txsink.writers._read", "Restart the query"):
        stream.writer().commit(messages, 0)
    assert rows_of(stream.path) == []
    again = Batch("q", "again", 0)  # the run of the query that Spark starts, with the same batch
    stream.writer().commit([stream.staged(again, 1), stream.staged(again, 2)], 0)
    assert rows_of(stream.path) == [1, 2]


def test_a_query_of_which_no_task_reports_the_batch_is_restarted(stream: Stream) -> None:
    messages = [stream.staged(ONE, 1)]
    with advised("pyspark_txsink.writers.commit", "Restart the query"):
        stream.writer().commit(messages, 1)
    assert rows_of(stream.path) == []
    stream.writer().commit([stream.staged(Batch("q", "again", 0), 1)], 0)
    stream.writer().commit([stream.staged(Batch("q", "again", 1), 2)], 1)
    assert rows_of(stream.path) == [1, 2]


def test_a_job_with_a_task_that_reported_nothing_is_written_again(stream: Stream) -> None:
    given = {"path": str(stream.path), "txnAppId": "a", "txnVersion": "1"}
    job: Any = DefaultSource(given).writer(IDS, overwrite=False)
    message = job.write(batches(1))
    with advised("pyspark_txsink.writers._read", "Write again"):
        job.commit([message, None])
    job.abort([message, None])  # as Spark does after it
    assert rows_of(stream.path) == []
    again: Any = DefaultSource(given).writer(IDS, overwrite=False)
    again.commit([again.write(batches(1)), again.write(batches(2))])
    assert rows_of(stream.path) == [1, 2]


def test_a_writer_that_came_to_a_task_without_its_place_has_written_nothing(stream: Stream) -> None:
    """Which is for a report: `__reduce__` sends it along."""
    stream.patch.setitem(sys.modules, writers.COMMITS, ModuleType(writers.COMMITS))  # where Spark commits
    with advised("pyspark_txsink.writers._stage", "Report it"):
        stream.staged(ONE, 1)
    assert not stream.path.exists()


def test_rows_that_a_stager_lost_are_not_committed(tmp_path: Path) -> None:
    """Which is for a report: nothing is there, and nothing waits."""

    class Losing:
        def __init__(self, whole: Stager) -> None:
            self.whole, self.writer, self.epoch = whole, whole.writer, whole.epoch

        def stage(self, data: Iterator[pa.RecordBatch]) -> list[StagedFile]:
            return self.whole.stage([*data][:-1])

    path = str(tmp_path / "T")
    with txsink.open_writer(path, "w") as sink:
        txn = sink.begin(1)
        with advised("pyspark_txsink.arrow.staged", "Nothing was committed. Report it"):
            arrow.staged(cast("Stager", Losing(txn.stager())), [*batches(1), *batches(2)])
        assert (sink.last_epoch, sink.pending, rows_of(Path(path))) == (None, [], [])
        txn.abort()
        with sink.begin(1) as again:
            again.add(arrow.records_of(arrow.staged(again.stager(), [*batches(1), *batches(2)])))
    assert rows_of(Path(path)) == [1, 2]


@pytest.mark.parametrize("does", ["open_table", "keep another"])
def test_a_column_that_spark_cannot_read_is_read_by_the_table_or_kept_in_another_type(
    tmp_path: Path, does: str
) -> None:
    path = str(tmp_path / "T")
    moments = pa.table({"id": [1], "at": pa.array([5], pa.timestamp("ns"))})
    txsink.write(path, moments, writer="w", epoch=0, types="arrow")
    advice = "Read the table with txsink.open_table, or keep a column of a type that Spark has"
    with advised("pyspark_txsink.types.arrow_of", advice):
        DefaultSource({"path": path}).schema()
    if does == "open_table":
        assert txsink.open_table(path).to_arrow().equals(moments)
        return
    there = str(tmp_path / "other")
    at = moments["at"].cast(pa.timestamp("us"), safe=False)
    txsink.write(there, moments.set_column(1, "at", at), writer="w", epoch=0, types="arrow")
    made = DefaultSource({"path": there})
    reader: Any = made.reader(made.schema())
    assert sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one)) == 1


# -- in a session --------------------------------------------------------------------------------------------


def write(df: DataFrame, path: Path, epoch: int = 0, **options: Any) -> None:
    pyspark_txsink.write(df, str(path), writer="w", epoch=epoch, **options)


def read(spark: SparkSession, path: Path, column: str = "id") -> list[Any]:
    """Seen the same through both doors."""
    found = sorted(row[0] for row in pyspark_txsink.read(spark, str(path)).select(column).collect())
    assert found == sorted(row[0] for row in spark.read.format("txsink").load(str(path)).select(column).collect())
    return found


TYPES: list[tuple[Any, str, str | None, Any]] = [
    (
        advised("pyspark_txsink.types._require_kept", "Write to_json of it"),
        "parse_json('{\"a\":1}')",
        "to_json(x)",
        '{"a":1}',
    ),
    (
        advised("pyspark_txsink.types._require_kept", "Write st_asbinary of it"),
        "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
        "st_asbinary(x)",
        bytes.fromhex("0101000000000000000000F03F0000000000000040"),
    ),
    (
        advised("pyspark_txsink.types._require_kept", "Cast it to string collate utf8_binary"),
        "'a' collate UTF8_LCASE",
        "x collate utf8_binary",
        "a",
    ),
    (
        advised("pyspark_txsink.types._require_kept", "Cast it to the type it will have"),
        "array(null)",
        "cast(x as array<int>)",
        [None],
    ),
    (
        advised("pyspark_txsink.types._require_kept", "Cast it, or drop it"),
        "interval 1 day",
        "cast(x as string)",
        "INTERVAL '1' DAY",
    ),
    (advised("pyspark_txsink.types._require_kept", "Cast it, or drop it"), "interval 1 day", None, None),
    (advised("pyspark_txsink.types.columns_of", "Cast one to the type it will have"), "null", "cast(x as int)", None),
    (
        advised("pyspark_txsink.counted_rows.check", "Change the value: no reader gives it back"),
        "cast(X'61ff' as string)",
        "make_valid_utf8(x)",
        "a\ufffd",
    ),
]


@pytest.mark.parametrize("case", TYPES, ids=lambda case: case[1][:30])
def test_what_no_table_gives_back_is_cast_or_changed_or_dropped(
    spark: SparkSession, tmp_path: Path, case: tuple[Any, str, str | None, Any]
) -> None:
    block, wrong, right, value = case
    df = spark.sql(f"select {wrong} x")
    with block:
        write(df, tmp_path / "T")
    write(df.selectExpr("1L id", *([] if right is None else [f"{right} x"])), tmp_path / "T")
    assert read(spark, tmp_path / "T") == [1]
    if right is not None:
        assert read(spark, tmp_path / "T", "x") == [value]


@pytest.mark.parametrize("does", ["format", "read"])
def test_a_table_that_is_no_stream_is_read_again(spark: SparkSession, tmp_path: Path, does: str) -> None:
    path = tmp_path / "T"
    for epoch in (0, 1):
        write(spark.range(epoch, epoch + 1), path, epoch)
        advice = "Use spark.read.format('txsink'), or pyspark_txsink.read, again for each newer version"
        with advised("pyspark_txsink.streamReader", advice):
            DefaultSource({"path": str(path)}).streamReader(IDS)
        df = spark.read.format("txsink").load(str(path)) if does == "format" else pyspark_txsink.read(spark, str(path))
        assert sorted(row.id for row in df.collect()) == [*range(epoch + 1)]


def elsewhere(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Executors write to disks of their own."""
    whole = fast.uri_of
    patch.setattr(fast, "uri_of", lambda uri, guest: whole(uri, f"{path.with_name('disk')}{guest}"))


def test_a_path_that_executors_do_not_share_is_changed_to_one_that_they_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "T"
    monkeypatch.setattr(counted_rows, "is_one_machine", lambda spark: False)
    advice = "Give a path that the driver and all executors share: hdfs://, s3://, or a file system mounted by all"
    with monkeypatch.context() as cluster:
        elsewhere(path, cluster)
        with advised("pyspark_txsink.counted_rows.check", advice):
            write(spark.range(2), path)
    write(spark.range(2), path)  # mounted by all
    assert read(spark, path) == [0, 1]


def test_files_that_vanished_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is for a report: nothing is there, and nothing waits."""
    path = tmp_path / "T"
    with monkeypatch.context() as lost:
        elsewhere(path, lost)
        advice = "Nothing was committed. Report it, with Spark's version and settings"
        with advised("pyspark_txsink.counted_rows.check", advice):
            write(spark.range(2), path)
    assert (rows_of(path), txsink.open_table(path).pending()) == ([], [])
    write(spark.range(2), path)
    assert read(spark, path) == [0, 1]


class Query:
    """A stream of two ids in one batch, and what is done with it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.path = directory / "T"
        self.done: list[str] = []
        spark.range(2).coalesce(1).write.parquet(str(directory / "source"))

    def started(self, checkpoint: str = "one") -> DataStreamWriter:
        df = self.spark.readStream.schema("id long").parquet(str(self.directory / "source"))
        at = str(self.directory / checkpoint)
        return df.writeStream.option("checkpointLocation", at).trigger(availableNow=True)

    def each(self, act: Callable[[DataFrame, int], None], checkpoint: str = "one") -> None:
        """Run it; what fails within `act` fails here."""
        self.started(checkpoint).foreachBatch(act).start().awaitTermination()

    def more(self) -> None:
        self.spark.range(2, 4).coalesce(1).write.mode("append").parquet(str(self.directory / "source"))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_each_batch_is_called_by_foreach_batch(query: Query) -> None:
    each = pyspark_txsink.each_batch(str(query.path))
    with advised("pyspark_txsink.fast.batch_of", "Call it from foreachBatch"):
        each(query.spark.range(2), 0)
    query.each(each)
    assert read(query.spark, query.path) == [0, 1]


def test_rows_without_a_query_are_written_as_a_stream(query: Query) -> None:
    made: Any = DefaultSource({"path": str(query.path), "checkpointLocation": "/c"})
    with advised("pyspark_txsink.writers.write", "Write it as a stream"):
        made.streamWriter(IDS, False).write(batches(0, 1))
    query.started().format("txsink").start(str(query.path)).awaitTermination()
    assert read(query.spark, query.path) == [0, 1]


def test_a_stream_of_spark_connect_is_written_with_the_format(query: Query) -> None:
    """`test_spark_connect.py` does it there; here a session only has the name of one."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    advice = "Write the stream with format('txsink'), which Spark Connect serves as well"
    with advised("pyspark_txsink.fast.batch_of", advice):
        pyspark_txsink.each_batch(str(query.path))(cast("DataFrame", SimpleNamespace(sparkSession=session)), 0)
    query.started().format("txsink").start(str(query.path)).awaitTermination()
    assert read(query.spark, query.path) == [0, 1]


def test_the_further_parts_of_a_batch_are_written_under_names_of_their_own(query: Query) -> None:
    """Found: the advice was to write the parts as one DataFrame, and then the second one was dropped in silence."""
    advice = (
        "Give each further part an each_batch with a txn_app_id of its own; written as one DataFrame now, the"
        " rest of this batch would be dropped, as its epoch is committed"
    )
    path = str(query.path)
    each, other = pyspark_txsink.each_batch(path), pyspark_txsink.each_batch(path, txn_app_id="other")

    def wrong(df: DataFrame, number: int) -> None:
        each(df.where("id = 0"), number)
        with advised("pyspark_txsink.fast._refuse_another_part", advice):
            each(df.where("id = 1"), number)
        raise KeyError("refused")

    with pytest.raises(Exception, match="refused"):
        query.each(wrong)

    def right(df: DataFrame, number: int) -> None:
        each(df.where("id = 0"), number)
        other(df.where("id = 1"), number)

    query.each(right)
    assert read(query.spark, query.path) == [0, 1]


@pytest.mark.parametrize("does", ["that checkpoint", "another name", "resume"])
def test_a_new_checkpoint_is_left_or_named_or_numbered_after_the_former(query: Query, does: str) -> None:
    path = str(query.path)
    query.each(pyspark_txsink.each_batch(path, txn_app_id="a"))
    advice = (
        "Go on with that checkpoint; choose another txn_app_id; or choose on_new_checkpoint='resume' to number the"
        " batches of this one after it (what both read is then written twice)"
    )
    each = pyspark_txsink.each_batch(path, txn_app_id="a")

    def wrong(df: DataFrame, number: int) -> None:
        with advised("pyspark_txsink.identity.epoch_of", advice):
            each(df, number)
        query.done.append("refused")

    query.each(wrong, "two")
    assert query.done == ["refused"]
    query.more()
    if does == "that checkpoint":
        query.each(each)
    elif does == "another name":
        query.each(pyspark_txsink.each_batch(path, txn_app_id="b"), "three")
    else:
        query.each(pyspark_txsink.each_batch(path, txn_app_id="a", on_new_checkpoint="resume"), "three")
    assert read(query.spark, query.path) == ([0, 1, 2, 3] if does == "that checkpoint" else [0, 0, 1, 1, 2, 3])
