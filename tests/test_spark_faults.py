"""Spark when a commit fails, is stopped or is lost half-way, when writes run at once, and what is told of each batch.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: the local session of all Spark tests; faults put into the process that commits, which for the format is a
worker of Python, by a source that is sent there with its class.
Does not promise: kills, see `test_spark_kills`; clusters, see `test_spark_cluster`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txsink
from seen import rows_of
from spark_session import WAIT_SECONDS, missing, wait_for
from txsink.errors import InternalError, OutcomeUnknownError, UnavailableError
from txsink.staging.adopt import Guest
from txsink.store.local import store as local

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from pyspark_txsink.listener import Listener, Report
from pyspark_txsink.writers import StreamWriter
from test_spark import BOTH, Write, fast, ids, left, plain

DOORS = ("each_batch", "format")
Around = Callable[[Callable[[], Any]], None]


def first_time(mark: str) -> bool:
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Stream:
    """A stream whose commits happen `around` a function of the test's."""

    def __init__(self, spark: SparkSession, directory: Path, door: str, around: Around) -> None:
        self.spark, self.directory, self.door, self.around = spark, directory, door, around
        self.table = directory / "table"
        self.name = f"txsink-{door}-{abs(hash(str(directory)))}"
        if door == "format":
            spark.dataSource.register(source_around(self.name, around))

    def more(self, first: int) -> None:
        """Twelve rows more for the next batch."""
        self.spark.range(first, first + 12, 1, 1).write.mode("append").parquet(str(self.directory / "source"))

    def start(self, checkpoint: str = "checkpoint") -> Any:
        rows = self.spark.readStream.schema("id long").parquet(str(self.directory / "source")).repartition(12)
        writer = rows.writeStream.option("checkpointLocation", f"{self.directory}/{checkpoint}")
        writer = writer.trigger(availableNow=True)
        if self.door == "format":
            return writer.format(self.name).start(str(self.table))
        each = pyspark_txsink.each_batch(str(self.table))
        return writer.foreachBatch(lambda df, number: self.around(lambda: each(df, number))).start()


def source_around(source_name: str, around: Around) -> type[pyspark_txsink.DefaultSource]:
    """A format of that name; no module holds it, so it is pickled whole."""

    class Writer(StreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            around(lambda: super(Writer, self).commit(messages, batchId))

    class Source(pyspark_txsink.DefaultSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return Writer(self.options, schema, overwrite=overwrite)

    return Source


# -- the faults; each happens once, and is sent to the process that commits ------------------------------------


def raises_at_the_end(mark: str) -> Around:
    def around(act: Callable[[], Any]) -> None:
        act()
        if first_time(mark):
            raise RuntimeError("planned: the commit has landed")

    return around


def loses_the_answer_of_the_commit_entry(mark: str) -> Around:
    def around(act: Callable[[], Any]) -> None:
        append = local.LocalStore.put_if_absent

        def put_if_absent(self: Any, path: str, data: bytes, token: str) -> Any:
            done = append(self, path, data, token)
            if b'"kind":"commit"' in data and first_time(mark):
                raise OutcomeUnknownError("append", "planned: the answer was lost", "Recover")
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local.LocalStore, "put_if_absent", put_if_absent)
            act()

    return around


def fails_at_the_fifth_file(mark: str) -> Around:
    def around(act: Callable[[], Any]) -> None:
        move = local.LocalStore.move

        def moved(self: Any, moves: Any) -> Any:
            if len(moves) > 5 and first_time(mark):
                move(self, moves[:4])
                raise UnavailableError("move", "planned: no room", "Retry")
            return move(self, moves)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local.LocalStore, "move", moved)
            act()

    return around


FAULTS = (raises_at_the_end, loses_the_answer_of_the_commit_entry, fails_at_the_fifth_file)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_commit_that_raises_half_way_or_after_it_landed_keeps_every_row_once(
    spark: SparkSession, tmp_path: Path, door: str, fault: Callable[[str], Around]
) -> None:
    """S21, S23, S30, S32: Spark calls abort; the next start finishes what was begun, and goes on."""
    stream = Stream(spark, tmp_path, door, fault(str(tmp_path / "mark")))
    stream.more(0)
    with pytest.raises(Exception, match="planned"):
        stream.start().awaitTermination()
    assert (tmp_path / "mark").exists()
    if fault is raises_at_the_end:
        assert rows_of(stream.table) == list(range(12))
    stream.more(12)
    stream.start().awaitTermination()
    assert ids(spark, stream.table) == list(range(24))
    assert left(stream.table) == []


@pytest.mark.parametrize("door", DOORS)
def test_a_query_stopped_in_the_middle_of_a_publish_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, door: str
) -> None:
    """S26, S31."""
    here, go = str(tmp_path / "here"), str(tmp_path / "go")

    def around(act: Callable[[], Any]) -> None:
        move = local.LocalStore.move

        def moved(self: Any, moves: Any) -> Any:
            undone = move(self, moves[:3])
            if first_time(here):
                wait_for(Path(go).exists)
            return undone + move(self, moves[3:])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local.LocalStore, "move", moved)
            act()

    stream = Stream(spark, tmp_path, door, around)
    stream.more(0)
    query = stream.start()
    wait_for(lambda: Path(here).exists() or not query.isActive)
    assert Path(here).exists()
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_for(lambda: not query.isActive)
    Path(go).touch()
    stopping.join(WAIT_SECONDS)
    assert not stopping.is_alive()
    stream.more(12)
    stream.start("checkpoint/").awaitTermination()  # the same checkpoint, spelled with a slash
    assert ids(spark, stream.table) == list(range(24))
    (writer,) = txsink.open_table(str(stream.table)).writers()
    txsink.open_writer(str(stream.table), writer).close()
    assert left(stream.table) == []


def test_a_batch_into_two_tables_with_a_crash_between_them_is_in_each_once(spark: SparkSession, tmp_path: Path) -> None:
    """S19."""
    spark.range(0, 12, 1, 2).write.parquet(str(tmp_path / "source"))
    doors = [pyspark_txsink.each_batch(str(tmp_path / name)) for name in ("a", "b")]

    def both(df: DataFrame, number: int) -> None:
        doors[0](df, number)
        if first_time(str(tmp_path / "mark")):
            raise RuntimeError("planned")
        doors[1](df, number)

    def run() -> None:
        writer = spark.readStream.schema("id long").parquet(str(tmp_path / "source")).writeStream.foreachBatch(both)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    with pytest.raises(Exception, match="planned"):
        run()
    run()
    assert [ids(spark, tmp_path / name) for name in ("a", "b")] == 2 * [list(range(12))]


def test_two_parts_of_a_batch_into_one_table_need_names_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Without, the second would be taken for a replay of the first, and its rows would be gone."""
    spark.range(0, 12, 1, 2).write.parquet(str(tmp_path / "source"))

    def run(table: Path, *names: dict[str, Any]) -> None:
        made = [pyspark_txsink.each_batch(str(table), **given) for given in names]
        doors = made * (2 // len(made))

        def parts(df: DataFrame, number: int) -> None:
            for rest, door in enumerate(doors):
                door(df.where(f"id % 2 = {rest}"), number)

        writer = spark.readStream.schema("id long").parquet(str(tmp_path / "source")).writeStream.foreachBatch(parts)
        writer = writer.option("checkpointLocation", f"{table}-checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()

    for _ in range(2):  # a restart does not get past it either
        for name, doors in (("two", ({}, {})), ("one", ({},))):
            with pytest.raises(Exception, match="has written the batch to the same table under the same name before"):
                run(tmp_path / name, *doors)
    run(tmp_path / "named", {"txn_app_id": "even"}, {"txn_app_id": "odd"})
    assert ids(spark, tmp_path / "named") == list(range(12))


def test_a_batch_may_go_into_two_tables_that_have_one_path_each_on_its_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Played by moving the first one away: what counts is the table, and not where it lies."""
    spark.range(0, 12, 1, 2).write.parquet(str(tmp_path / "source"))

    def both(df: DataFrame, number: int) -> None:
        pyspark_txsink.each_batch(str(tmp_path / "table"))(df, number)
        (tmp_path / "table").rename(tmp_path / "first")
        pyspark_txsink.each_batch(str(tmp_path / "table"))(df, number)

    writer = spark.readStream.schema("id long").parquet(str(tmp_path / "source")).writeStream.foreachBatch(both)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert [ids(spark, tmp_path / name) for name in ("first", "table")] == 2 * [list(range(12))]


def test_two_streams_and_two_jobs_at_once_each_keep_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """S24, S29, I15: into one table and into one whose name begins alike; nobody cleans up for another."""
    table, adjacent = tmp_path / "table", tmp_path / "table2"
    spark.range(0, 20, 1, 4).write.parquet(str(tmp_path / "source"))
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writers = [
        source.writeStream.foreachBatch(pyspark_txsink.each_batch(str(table))),
        source.writeStream.format("txsink").option("path", str(table)),
    ]
    queries = [
        writer.option("checkpointLocation", str(tmp_path / f"c{number}")).trigger(availableNow=True).start()
        for number, writer in enumerate(writers)
    ]
    failed: list[str] = []

    def job(write: Write, where: Path, app: str) -> None:
        try:
            for epoch in range(3):
                # Not `range`: Spark finds a Python format only on a thread whose active session this has set.
                write(spark.createDataFrame([(100 + epoch,)], "id long"), where, app, epoch)
        except BaseException as error:  # noqa: BLE001 -- told by the main thread
            failed.append(str(getattr(error, "java_exception", error)))

    jobs = [
        threading.Thread(target=job, args=given)
        for given in ((fast, table, "x"), (plain, table, "y"), (fast, adjacent, "x"), (plain, adjacent, "y"))
    ]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(WAIT_SECONDS)
    for query in queries:
        query.awaitTermination()
    assert failed == []
    assert ids(spark, table) == sorted(2 * [*range(20), 100, 101, 102])
    assert ids(spark, adjacent) == sorted(2 * [100, 101, 102])
    known = txsink.open_table(str(table)).writers()
    last = {name: one.last_epoch for name, one in known.items()}
    assert last == {**{query.id: 3 for query in queries}, "x": 2, "y": 2}


@BOTH
def test_what_a_table_cannot_take_is_refused_and_leaves_it_as_it_was(
    spark: SparkSession, tmp_path: Path, write: Write
) -> None:
    """S7, S8, S10, S15."""
    table = tmp_path / "table"
    write(spark.range(5).repartition(10), table, "w", 0)
    assert len(txsink.open_table(str(table)).files()) < 10
    spark.range(50, 60).write.parquet(str(tmp_path / "foreign"))
    for path in (tmp_path / "foreign").glob("part-*.parquet"):
        path.rename(table / path.name)
    for bad in (spark.range(3).selectExpr("id", "id ID"), spark.range(3).selectExpr("cast(id as string) id")):
        with pytest.raises(Exception, match=r"have the same name but for case|is int64 in the table and string"):
            write(bad, table, "w", 1)
    with pytest.raises(Exception, match="partitioned by"):
        write(spark.range(3).selectExpr("id", "id p"), table, "w", 1, partition_by=["p"])
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        assert sorted(row.id for row in found.collect()) == [0, 1, 2, 3, 4]
    assert left(table) == []


# -- what is told ---------------------------------------------------------------------------------------------


def test_a_listener_tells_of_each_batch_of_both_doors(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 30, 1, 3).write.parquet(str(tmp_path / "source"))
    reports: list[Report] = []
    spent: dict[tuple[str, int], int] = {}

    class Spent(Listener):
        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            spent[str(event.progress.id), event.progress.batchId] = event.progress.durationMs.get("addBatch", 0)

    listeners = [Listener(str(tmp_path / "table"), reports.append), Spent(str(tmp_path / "table"), print)]
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        options: dict[str, Any] = {"txn_app_id": "app"}
        for door in ("each_batch", "format"):
            source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
            writer = source.parquet(str(tmp_path / "source")).writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(tmp_path / door))
            if door == "format":
                query = writer.format("txsink").start(str(tmp_path / "table"))
            else:
                query = writer.foreachBatch(pyspark_txsink.each_batch(str(tmp_path / "table"), **options)).start()
            query.awaitTermination()
        wait_for(lambda: len(reports) >= 6 and len(spent) >= 6)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    history = {one.version: one for one in txsink.open_table(str(tmp_path / "table")).history()}
    assert [(one.batch_id, one.epoch) for one in reports] == [(0, 0), (1, 1), (2, 2)] * 2
    assert {one.writer for one in reports[:3]} == {"app"}
    for one in reports:
        told = history[one.version]
        assert (one.writer, one.epoch) == (told.writer, told.epoch)
        assert (told.kind, told.files, told.rows, told.bytes) == ("commit", one.files, one.rows, one.bytes)
        times = (one.stage_ms, one.publish_ms, one.commit_ms)
        assert min(times) >= 0
        assert sum(times) == spent[one.query_id, one.batch_id]
    assert sum(one.rows for one in reports) == 60


def test_a_listener_of_no_table_and_of_another_query_tells_nothing(spark: SparkSession, tmp_path: Path) -> None:
    reports: list[Report] = []
    listener = Listener(str(tmp_path / "nothing"), reports.append)
    spark.streams.addListener(listener)
    try:
        spark.range(3).write.parquet(str(tmp_path / "source"))
        writer = spark.readStream.schema("id long").parquet(str(tmp_path / "source")).writeStream
        writer.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert reports == []


def test_each_commit_is_a_line_of_the_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "txsink"):
        result = pyspark_txsink.write(spark.range(7), str(tmp_path / "table"), writer="nightly", epoch=3)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("txsink")]
    assert line.startswith(f"committed epoch 3 of 'nightly' in {tmp_path}/table at version {result.version}: ")
    assert f" files, 7 rows, {result.bytes} bytes, " in line


def test_rows_that_are_not_found_where_spark_wrote_them_are_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(spark.range(0, 10, 1, 2), tmp_path / "table", "w", 0)
    adopt = Guest.adopt
    monkeypatch.setattr(Guest, "adopt", lambda *given: adopt(*given)[:1])
    with pytest.raises(InternalError, match="Spark wrote 10 rows, and 5 of them are found here"):
        fast(spark.range(10, 20, 1, 2), tmp_path / "table", "w", 1)
    assert ids(spark, tmp_path / "table") == list(range(10))
    assert left(tmp_path / "table") == []
