"""Spark, in one local session: the format and the fast path write each batch once, and what they refuse.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: Spark's `local` mode; its Python workers find the packages by PYTHONPATH.
Does not promise: clusters, kills and other stores.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import installs
import txsink
from seen import rows_of, staging
from txsink.errors import ConflictError, InvalidRequestError

pytest.importorskip("pyspark", reason="pyspark is not installed")
if reason := installs.missing("java"):
    pytest.skip(f"Spark needs Java: {reason}", allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from pyspark_txsink.identity import Batch, epoch_of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "output @#output é"


def ids(spark: SparkSession, table: Path) -> list[int]:
    """The ids, seen the same by Spark through both doors, by the log's reader, and by DuckDB in the directory."""
    found = sorted(row.id for row in pyspark_txsink.read(spark, str(table)).collect())
    assert found == sorted(row.id for row in spark.read.format("txsink").load(str(table)).collect())
    assert found == rows_of(table)
    pattern = f"{table}/**/*.parquet".replace("'", "''")
    assert found == sorted(row[0] for row in duckdb.sql(f"select id from read_parquet('{pattern}')").fetchall())
    return found


def left(table: Path) -> list[str]:
    root = staging(table)
    return [str(path) for path in root.rglob("*") if path.is_file()] if root.exists() else []


# -- batch ------------------------------------------------------------------------------------------------


def fast(df: DataFrame, table: Path, app: str, version: int, **options: Any) -> None:
    pyspark_txsink.write(df, str(table), writer=app, epoch=version, **options)


def plain(df: DataFrame, table: Path, app: str, version: int, **options: Any) -> None:
    mode = options.pop("mode", "append")
    names = {
        "partition_by": "partitionBy", "partition_overwrite": "partitionOverwriteMode", "merge_schema": "mergeSchema"
    }  # fmt: skip
    texts = {name: ",".join(value) if name == "partition_by" else str(value) for name, value in options.items()}
    given = {names[name]: text for name, text in texts.items()}
    writer = df.write.format("txsink").mode(mode).options(txnAppId=app, txnVersion=str(version), **given)
    writer.save(str(table))


Write = Callable[..., None]
BOTH = pytest.mark.parametrize("write", [fast, plain])


@BOTH
def test_a_job_that_runs_twice_writes_once(spark: SparkSession, table: Path, write: Write) -> None:
    """S1, S18, S28."""
    for app, version in (("app1", 1), ("app1", 2), ("app1", 5), ("app1", 5), ("app2", 5)):
        write(spark.range(10 * version, 10 * version + 3), table, app, version)
    expected = [10, 11, 12, 20, 21, 22, *sorted(2 * [50, 51, 52])]
    assert ids(spark, table) == expected
    assert left(table) == []


@BOTH
def test_partitions_keep_their_values_and_are_pruned(spark: SparkSession, table: Path, write: Write) -> None:
    """S2, S3: every character that Spark escapes, non-ASCII, null."""
    values = ["hello world", "a/b=c%d", "Grüße", "{x}[y]^", "quote'\"", None, "1"]
    rows = [(number, value, number % 2) for number, value in enumerate(values)]
    df = spark.createDataFrame(rows, "id long, p string, q int").coalesce(1)
    write(df, table, "w", 0, partition_by=["p", "q"])
    expected = rows
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        assert sorted((row.id, row.p, row.q) for row in found.select("id", "p", "q").collect()) == expected
        assert [row.id for row in found.where("p = 'Grüße'").collect()] == [2]
        assert found.where("p = 'Grüße'").rdd.getNumPartitions() == 1
    assert ids(spark, table) == list(range(7))


@BOTH
def test_an_overwrite_replaces_the_table_or_the_partitions_it_writes_to(
    spark: SparkSession, table: Path, write: Write
) -> None:
    """S14, and facts: a sink that ignores dynamic wipes the table."""
    df = spark.range(6).selectExpr("id", "id % 2 p")
    write(df, table, "w", 0, partition_by=["p"])
    write(df.where("id = 4"), table, "w", 1, mode="overwrite", partition_overwrite="dynamic")
    assert ids(spark, table) == [1, 3, 4, 5]
    write(df.where("id = 5"), table, "w", 2, mode="overwrite")
    assert ids(spark, table) == [5]
    version = next(
        one.version for one in txsink.open_table(str(table)).history() if (one.kind, one.epoch) == ("commit", 0)
    )
    for found in (
        pyspark_txsink.read(spark, str(table), version),
        spark.read.format("txsink").option("versionAsOf", version).load(str(table)),
    ):
        assert sorted(row.id for row in found.collect()) == [0, 1, 2, 3, 4, 5]


@BOTH
def test_empty_jobs_and_empty_partitions_are_epochs(spark: SparkSession, table: Path, write: Write) -> None:
    write(spark.range(0), table, "w", 0)
    write(spark.range(0, 2, 1, 7), table, "w", 1)
    assert ids(spark, table) == [0, 1]
    assert txsink.open_table(str(table)).writers()["w"].last_epoch == 1
    assert len(txsink.open_table(str(table)).files()) == 2


@BOTH
def test_every_type_comes_back_as_it_went_in(spark: SparkSession, table: Path, write: Write) -> None:
    """S17, and timestamps outside of what INT96 can hold."""
    df = spark.sql(
        "select 1L id, cast(2 as byte) b, cast(3 as short) s, 4 i, 5.5f f, 6.5d d, cast(7.25 as decimal(10, 2)) n, "
        "'x' t, true o, date'2026-01-31' day, timestamp'1500-01-02 03:04:05.678901' at, "
        "timestamp_ntz'2400-01-01 00:00:00' wall, "
        "binary('y') y, array(1, null) a, map('k', 2) m, struct(1 as u, 'v' as v) r"
    )
    write(df, table, "w", 0)
    for found in (pyspark_txsink.read(spark, str(table)), spark.read.format("txsink").load(str(table))):
        assert found.dtypes == df.dtypes
        assert found.selectExpr("*").collect() == df.collect()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compresion": "zstd"}, "Did you mean 'compression'"),
        ({"txnAppId": "a"}, "one of txnAppId and txnVersion is given without the other"),
        ({"targetFileSize": "much"}, "targetFileSize is 'much'"),
        ({"partitionBy": "none"}, "'none' cannot be a partition column"),
        ({"partitionBy": "id"}, "every column is a partition column"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(
    spark: SparkSession, table: Path, options: dict[str, str], match: str
) -> None:
    """S4, S16."""
    with pytest.raises(Exception, match=match):
        spark.range(3).write.format("txsink").mode("append").options(**options).save(str(table))
    assert not table.exists() or rows_of(table) == []


def test_the_fast_path_refuses_an_unknown_option(spark: SparkSession, table: Path) -> None:
    with pytest.raises(InvalidRequestError, match="Did you mean 'partition_by'"):
        pyspark_txsink.write(spark.range(3), str(table), writer="w", epoch=0, partitionby=["x"])  # type: ignore[call-arg]


def test_a_job_that_spark_refuses_leaves_no_directory(spark: SparkSession, table: Path) -> None:
    fast(spark.range(1), table, "w", 0)
    with pytest.raises(Exception, match="nothing-compresses"):
        fast(spark.range(1), table, "w", 1, compression="nothing-compresses")
    assert not list(staging(table).rglob("guest-*"))
    assert ids(spark, table) == [0]


@BOTH
def test_a_failed_job_leaves_nothing_and_can_be_run_again(spark: SparkSession, table: Path, write: Write) -> None:
    """S5, S6."""
    write(spark.range(1), table, "w", 0)
    bad = spark.range(0, 100, 1, 4).selectExpr("if(id = 99, raise_error('no'), id) id")
    with pytest.raises(Exception, match="no"):
        write(bad, table, "w", 1)
    assert ids(spark, table) == [0]
    write(spark.range(5, 7), table, "w", 1)
    assert ids(spark, table) == [0, 5, 6]
    assert left(table) == []


# -- streams ----------------------------------------------------------------------------------------------


class Stream:
    """A stream of five files, a batch each."""

    def __init__(self, spark: SparkSession, directory: Path, table: Path, kind: str) -> None:
        self.spark, self.table, self.kind = spark, table, kind
        self.source, self.checkpoint = directory / "source", directory / "checkpoint"
        spark.range(0, 50, 1, 5).write.parquet(str(self.source))
        self.query: Callable[[DataFrame], DataFrame] = lambda df: df

    def run(self, **options: Any) -> None:
        df = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        writer = self.query(df).writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True)
        if self.kind == "each_batch":
            query = writer.foreachBatch(pyspark_txsink.each_batch(str(self.table), **options)).start()
        else:
            names = {"txn_app_id": "txnAppId", "on_new_checkpoint": "onNewCheckpoint"}
            writer = writer.options(**{names[name]: value for name, value in options.items()})
            query = writer.format("txsink").start(str(self.table))
        query.awaitTermination()

    def forget_commits(self, count: int) -> None:
        """As a crash between our commit and Spark's leaves it."""
        commits = self.checkpoint / "commits"
        numbers = sorted((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        for path in numbers[-count:]:
            path.unlink()
            (commits / f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture(params=["each_batch", "format"])
def stream(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, table: Path) -> Stream:
    return Stream(spark, tmp_path, table, request.param)


def test_a_stream_writes_each_batch_once_also_when_spark_forgets_that_it_did(
    spark: SparkSession, stream: Stream
) -> None:
    """S13, S22."""
    stream.run()
    assert ids(spark, stream.table) == list(range(50))
    (known,) = txsink.open_table(str(stream.table)).writers().values()
    assert known.last_epoch == 4
    stream.forget_commits(1)
    stream.run()
    assert ids(spark, stream.table) == list(range(50))
    assert left(stream.table) == []


def test_a_replay_of_a_committed_batch_keeps_the_state_of_the_query(spark: SparkSession, stream: Stream) -> None:
    """A crash between our commit and Spark's: what the batch saw first is known to the batches after it."""
    stream.query = lambda df: df.dropDuplicates(["id"])
    stream.run()
    stream.forget_commits(1)
    stream.run()
    spark.range(0, 60, 1, 2).write.mode("append").parquet(str(stream.source))
    stream.run()
    assert ids(spark, stream.table) == list(range(60))


def test_a_new_checkpoint_is_a_new_writer(spark: SparkSession, stream: Stream) -> None:
    """S25, S24."""
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.run()
    assert ids(spark, stream.table) == sorted(2 * list(range(50)))
    assert len(txsink.open_table(str(stream.table)).writers()) == 2


def test_a_new_checkpoint_under_a_known_application_id_is_refused_with_the_choices(
    spark: SparkSession, stream: Stream
) -> None:
    stream.run(txn_app_id="orders")
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(Exception, match="from another checkpoint"):
        stream.run(txn_app_id="orders")
    assert ids(spark, stream.table) == list(range(50))
    shutil.rmtree(stream.checkpoint)
    stream.run(txn_app_id="orders", on_new_checkpoint="resume")
    stream.forget_commits(1)
    stream.run(txn_app_id="orders", on_new_checkpoint="resume")
    assert ids(spark, stream.table) == sorted(2 * list(range(50)))


def overtaken(table: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Passes its rows on; those of the second batch another run of the query commits meanwhile."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            for name, known in txsink.open_table(str(table)).writers().items() if table.exists() else ():
                if known.last_epoch == 0:
                    with (
                        txsink.open_writer(str(table), name, run="another") as sink,
                        sink.begin(1, metadata=sink.last_metadata) as txn,
                    ):
                        txn.write(batch)

    return pass_on


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_of_two_live_runs_of_a_query_the_one_that_was_overtaken_stops(spark: SparkSession, stream: Stream) -> None:
    """S20: in the middle of its second batch; Spark's own writer finds first that its directory was swept."""
    stream.query = lambda df: df.mapInArrow(overtaken(stream.table), df.schema)
    with pytest.raises(Exception, match="FencedError"):
        stream.run()
    assert len(ids(spark, stream.table)) == 20
    stream.query = lambda df: df
    stream.run()
    assert ids(spark, stream.table) == list(range(50))


def test_each_batch_outside_of_a_stream_is_refused(spark: SparkSession, table: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no micro-batch of a running stream"):
        pyspark_txsink.each_batch(str(table))(spark.range(1), 0)


def test_a_known_application_id_names_both_queries(table: Path) -> None:
    with txsink.open_writer(str(table), "orders") as sink:
        with sink.begin(0, metadata={"spark": {"query_id": "q1", "base": 0}}):
            pass
        with pytest.raises(ConflictError, match="q1") as caught:
            epoch_of(sink, Batch("q2", "r", 0), "fail")
    assert caught.value.context["query_id"] == "q2"
