"""Spark writes and reads the Delta layout: on local disk through its own Parquet writer, on S3 through Arrow.

Promises: what Spark wrote is read the same by deltalake, by txsink and by Spark, through both doors of each.
Relies on: `spark_killed` for drivers that are killed.
Does not promise: Spark with Delta's own jars. `test_delta_spark` has them.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txsink
from s3_servers import Server
from spark_session import missing
from test_spark_kills import live, source
from txsink.errors import ConflictError, InvalidRequestError
from txsink.store.opening import open_store

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import DataFrame, SparkSession

import pyspark_txsink
from pyspark_txsink import identity
from pyspark_txsink.identity import Batch

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
DOORS = pytest.mark.parametrize("door", ["each_batch", "format"])
KILLS = ("adopt/2", "before-prepare/1", "delta-before/2", "delta-after/2", "before-commit/1", "after-commit/2")


class Site(NamedTuple):
    """A table to be, and what others see of it."""

    spark: SparkSession
    uri: str
    options: dict[str, Any]

    def table(self) -> txsink.Table:
        return txsink.open_table(self.uri, storage_options=self.options)

    def by_deltalake(self, version: int | None = None) -> pa.Table:
        table = self.table()
        assert table.delta is not None
        return table.delta.table(version).to_pyarrow_table()

    def by_format(self, **options: Any) -> DataFrame:
        reader = self.spark.read.format("txsink").options(**options)
        for name, value in self.options.items():
            reader = reader.option(f"storage.{name}", value if isinstance(value, str) else json.dumps(value))
        return reader.load(self.uri)

    def ids(self) -> list[int]:
        """The same by everybody, and everything is whole."""
        table = self.table()
        assert table.layout == "delta"
        assert table.verify(deep=True) == []
        found = sorted(table.to_arrow()["id"].to_pylist())
        assert found == sorted(self.by_deltalake()["id"].to_pylist())
        assert found == sorted(
            row.id for row in pyspark_txsink.read(self.spark, self.uri, storage_options=self.options).collect()
        )
        assert found == sorted(row.id for row in self.by_format().collect())
        return found

    def unnamed(self) -> list[str]:
        """The files in the table that Delta's log does not name, and the marks."""
        table = self.table()
        named = {file.path for file in table.files()}
        store = open_store(self.uri, self.options)
        paths = store.list(table.path)
        return [
            path
            for path in paths
            if (path.endswith(".parquet") and "_delta_log" not in path and path not in named) or "/staged/" in path
        ]


@pytest.fixture
def site(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Site:
    if request.param == "local":
        return Site(spark, str(tmp_path / "a täble @#1"), {})
    server: Server = request.getfixturevalue("s3_server")(request.param)
    return Site(spark, f"s3://{server.make_bucket()}/Grüße/a täble", server.storage_options)


ON_BOTH = pytest.mark.parametrize("site", ["local", "ministack"], indirect=True)


class Stream:
    """A stream of files of ten rows, a batch each, through one of the doors."""

    def __init__(self, site: Site, directory: Path, door: str) -> None:
        self.site, self.door = site, door
        self.source, self.checkpoint = directory / "source", directory / "checkpoint"
        self.source.mkdir()

    def add(self, *numbers: int) -> None:
        for number in numbers:
            ids = pa.array(range(10 * number, 10 * number + 10), pa.int64())
            pq.write_table(pa.table({"id": ids}), self.source / f"{number}.parquet")

    def run(self) -> None:
        site = self.site
        df = site.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        df = df.selectExpr("id", "id % 2 p").repartition(2)
        writer = df.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        given: dict[str, Any] = {"partition_by": ["p"], "layout": "delta", "storage_options": site.options}
        if self.door == "each_batch":
            query = writer.foreachBatch(pyspark_txsink.each_batch(site.uri, **given)).start()
        else:
            for name, value in site.options.items():
                writer = writer.option(f"storage.{name}", value if isinstance(value, str) else json.dumps(value))
            writer = writer.option("layout", "delta").option("partitionBy", "p")
            query = writer.format("txsink").start(site.uri)
        query.awaitTermination()

    def forget_commit(self) -> None:
        """As a crash between our commit and Spark's leaves it."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@DOORS
@ON_BOTH
def test_a_stream_writes_each_batch_once_whatever_spark_forgets(site: Site, tmp_path: Path, door: str) -> None:
    """S22, S32."""
    stream = Stream(site, tmp_path, door)
    stream.add(0, 1)
    stream.run()
    assert site.ids() == list(range(20))
    stream.forget_commit()
    stream.add(2)
    stream.run()
    assert site.ids() == list(range(30))
    (writer,) = site.table().writers()
    txsink.open_writer(site.uri, writer, storage_options=site.options).close()
    assert site.unnamed() == []
    assert site.table().pending() == []
    # One commit of Delta's log for each batch, and nothing else.
    assert site.by_deltalake(0).num_rows == 10
    assert site.table().delta.table().version() == 2  # type: ignore[union-attr]


@ON_BOTH
def test_a_job_overwrites_all_or_what_it_touches_and_every_version_stays_readable(site: Site) -> None:
    """S5, and the plan's columns may grow."""
    spark = site.spark

    def write(df: DataFrame, epoch: int, **more: Any) -> None:
        given = {"layout": "delta", "storage_options": site.options, **more}
        assert pyspark_txsink.write(df, site.uri, writer="w", epoch=epoch, **given).outcome == "committed"

    days = spark.createDataFrame([(1, "a b"), (2, "ü/%"), (3, None), (4, "k=v")], "id long, day string")
    write(days, 0, partition_by=["day"])
    at = site.table().version
    write(days.selectExpr("id + 10 id", "day").where("day = 'ü/%'"), 1, mode="overwrite", partition_overwrite="dynamic")
    assert site.ids() == [1, 3, 4, 12]
    write(spark.range(20, 22).selectExpr("id", "'a b' day", "id / 2 half"), 2, mode="overwrite", merge_schema=True)
    assert site.ids() == [20, 21]
    old = pyspark_txsink.read(spark, site.uri, version=at, storage_options=site.options)
    assert sorted(map(tuple, old.collect()), key=str) == [(1, "a b"), (2, "ü/%"), (3, None), (4, "k=v")]
    assert old.columns == ["id", "day"]
    assert sorted(row.half for row in site.by_format().collect()) == [10.0, 10.5]


def test_rows_of_another_program_are_read_beside_ours(spark: SparkSession, tmp_path: Path) -> None:
    """Its directories may spell a partition in other words than ours."""
    site = Site(spark, str(tmp_path / "T"), {})
    df = spark.createDataFrame([(1, "a b"), (2, "ü/%")], "id long, day string")
    pyspark_txsink.write(df, site.uri, writer="w", epoch=0, layout="delta", partition_by=["day"])
    theirs = pa.table({"id": pa.array([3, 4], pa.int64()), "day": ["a b", None]})
    deltalake.write_deltalake(site.uri, theirs, mode="append")
    pyspark_txsink.write(df.selectExpr("id + 4 id", "day"), site.uri, writer="w", epoch=1)
    assert site.ids() == [1, 2, 3, 4, 5, 6]
    found = pyspark_txsink.read(spark, site.uri)
    expected = [(1, "a b"), (2, "ü/%"), (3, "a b"), (4, None), (5, "a b"), (6, "ü/%")]
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, site.by_format().collect())) == expected
    assert [row.id for row in site.by_format().where("day is null").collect()] == [4]


def test_a_layout_that_is_not_the_tables_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "T")
    pyspark_txsink.write(spark.range(1), path, writer="w", epoch=0, layout="delta")
    with pytest.raises(InvalidRequestError, match="its layout is delta, not parquet"):
        pyspark_txsink.write(spark.range(1), path, writer="w", epoch=1, layout="parquet")
    with pytest.raises(Exception, match=r"layout is 'iceberg', not one of 'parquet', 'delta'"):
        spark.range(1).write.format("txsink").option("layout", "iceberg").mode("append").save(path)
    spark.range(1, 2).write.format("txsink").option("layout", "delta").mode("append").save(path)
    assert Site(spark, path, {}).ids() == [0, 1]


def test_a_driver_killed_around_each_delta_commit_writes_every_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S11, S30: I1, I3, I5, I9."""
    monkeypatch.setenv("TXSINK_LAYOUT", "delta")
    rows = source(tmp_path, 8)
    for kill in KILLS:
        ended = live("local[2]", tmp_path, 1, ["each=0"], f"driver/each/{kill}")
        assert ended.code == -signal.SIGKILL, f"{kill} was not delivered: {ended.errors}"
    count = len(list((tmp_path / "kills").iterdir()))
    with capsys.disabled():
        print(f"\n{count} of {len(KILLS)} kills of the driver delivered")
    assert count == len(KILLS)
    ended = live("local[2]", tmp_path, 8, ["each=0"], "")
    assert ended.code == 0, ended.errors
    site = Site(spark, str(tmp_path / "each"), {})
    assert site.ids() == list(range(rows))
    (writer,) = site.table().writers()
    txsink.open_writer(site.uri, writer).close()
    assert site.unnamed() == []


def test_a_stream_goes_on_after_epochs_that_deltas_own_sink_committed_but_a_new_checkpoint_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """I5: which is told by the batch, as Delta's log names no query."""
    site = Site(spark, str(tmp_path / "T"), {})
    properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("app", 4)])
    theirs = pa.table({"id": pa.array(range(5), pa.int64())})
    deltalake.write_deltalake(site.uri, theirs, commit_properties=properties)
    with txsink.open_writer(site.uri, "app") as sink:
        for batch_id in (4, 5, 6):
            found = identity.epoch_of(sink, Batch("q", "r", batch_id), "fail")
            assert found == (batch_id, {"spark": {"query_id": "q", "base": 0, "batch_id": batch_id}})
        with pytest.raises(ConflictError, match="its last epoch 4 was written by query None, from another checkpoint"):
            identity.epoch_of(sink, Batch("q", "r", 3), "fail")
        assert identity.epoch_of(sink, Batch("q", "r", 0), "resume")[0] == 5
        with sink.begin(5, metadata={"spark": {"query_id": "q", "base": 0, "batch_id": 5}}) as txn:
            txn.write({"id": [5]})
        with pytest.raises(ConflictError, match="was written by query q"):
            identity.epoch_of(sink, Batch("another", "r", 6), "fail")
    assert site.ids() == list(range(6))
