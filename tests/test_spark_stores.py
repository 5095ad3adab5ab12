"""Spark on S3 and on HDFS: both doors write each batch once whatever fails, how many files come out, and what is told.

`ministack` and HDFS run with every `make test`; MinIO, which takes minutes to build, with the mark `stores`.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txsink
from hdfs_cluster import Cluster
from s3_proxy import Proxy, Request, delay, lose_answer, proxied, refuse
from s3_servers import Server, parameters
from spark_session import missing, told, wait_for
from txsink.errors import InvalidRequestError, OutcomeUnknownError
from txsink.staging.epoch_stager import StagedFile
from txsink.staging.stager import Stager
from txsink.store.hdfs.store import HdfsStore
from txsink.store.protocol import StorageOptions

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import pyspark_txsink
from pyspark_txsink import arrow, options
from pyspark_txsink.table import is_reached

NAMES = itertools.count(1)
NO_LIMIT = 10**15
ATTEMPTS_MAX = 12
WAIT_SECONDS_MAX = 120
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
on_quick = pytest.mark.parametrize("server", ["ministack"], indirect=True)


class Site(NamedTuple):
    """A table to be on a store, and what others see of it."""

    spark: SparkSession
    uri: str
    options: dict[str, Any]
    copy: Path  # an empty directory

    @property
    def text_options(self) -> dict[str, str]:
        """As a user gives them to the format."""
        plain = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.options.items()}
        return {"layout": "parquet", **{f"storage.{name}": value for name, value in plain.items()}}

    def table(self) -> txsink.Table:
        return txsink.open_table(self.uri, storage_options=self.options)

    def read(self) -> DataFrame:
        return pyspark_txsink.read(self.spark, self.uri, storage_options=self.options)

    def ids(self) -> list[int]:
        """The ids, the same by Spark through both doors, by the log's reader, and by DuckDB and Spark in the files."""
        table = self.table()
        found = sorted(row.id for row in self.read().collect())
        if table.log.store.traits.moves:  # else the two are one
            assert found == sorted(row.id for row in self.by_format().collect())
        assert found == sorted(table.to_arrow()["id"].to_pylist())
        assert table.verify(deep=True) == []
        store, copy = table.log.store, self.copy / str(next(NAMES))
        for path in store.list(table.path):
            if path.endswith(".parquet"):
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                (copy / path).write_bytes(store.read(f"{table.path}/{path}", 1 << 28) or b"")
        by_duckdb = duckdb.sql("select id from read_parquet(?) order by id", params=[f"{copy}/**/*.parquet"]).fetchall()
        assert found == [row[0] for row in by_duckdb]
        assert found == sorted(row.id for row in self.spark.read.parquet(str(copy)).collect())
        return found

    def by_format(self) -> DataFrame:
        return self.spark.read.format("txsink").options(**self.text_options).load(self.uri)

    def left(self) -> list[str]:
        """What lies staged."""
        table = self.table()
        if not table.log.store.traits.moves:
            return [path for path, _ in table.log.store.uploads(table.path)]  # type: ignore[attr-defined]
        return [name.path for name in table.publisher.left(None, ())]

    def last_epoch(self) -> int | None:
        return max((known.last_epoch for known in self.table().writers().values()), key=lambda epoch: epoch or -1)


@pytest.fixture
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as running:
        yield running


@pytest.fixture
def lake(spark: SparkSession, server: Server, proxy: Proxy, tmp_path: Path) -> Site:
    uri = f"s3://{server.make_bucket()}/Grüße/a täble"
    return Site(spark, uri, {**proxy.storage_options, "deadline_seconds": 60}, tmp_path / "copy")


@pytest.fixture
def hdfs(spark: SparkSession, hdfs_cluster: Cluster, tmp_path: Path) -> Site:
    return Site(spark, f"{hdfs_cluster.uri}/spark-{next(NAMES)}/a täble", {}, tmp_path / "copy")


# -- streams ----------------------------------------------------------------------------------------------


class Stream:
    """A stream of files of ten rows, a batch each, through one of the doors."""

    def __init__(self, site: Site, directory: Path, door: str, batches: int = 3, tasks: int = 1) -> None:
        self.site, self.door, self.tasks = site, door, tasks
        self.source, self.checkpoint = directory / "source", directory / "checkpoint"
        self.source.mkdir()
        for number in range(batches):
            ids = pa.array(range(10 * number, 10 * number + 10), pa.int64())
            pq.write_table(pa.table({"id": ids}), self.source / f"{number}.parquet")

    def run(self) -> None:
        self.start().awaitTermination()

    def start(self) -> StreamingQuery:
        site = self.site
        df = site.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(self.source))
        df = df.repartition(self.tasks) if self.tasks > 1 else df
        writer = df.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        if self.door == "each_batch":
            each = pyspark_txsink.each_batch(site.uri, layout="parquet", storage_options=site.options)
            return writer.foreachBatch(each).start()
        return writer.format("txsink").options(**site.text_options).start(site.uri)

    def stop_while(self, is_there: Callable[[], bool], go_on: Callable[[], object]) -> None:
        """Stop a run once it stands still at a point, which it leaves when it has stopped."""
        query = self.start()
        wait_for(lambda: is_there() or not query.isActive)
        assert is_there(), query.exception()
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        wait_for(lambda: not query.isActive)
        go_on()
        stopping.join(WAIT_SECONDS_MAX)
        assert not stopping.is_alive()

    def fail(self) -> None:
        with pytest.raises(Exception, match=r"AccessDenied|403|[Qq]uota"):
            self.run()

    def forget_commits(self) -> None:
        """As a crash between our commit and Spark's leaves it."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def finish(self) -> None:
        """It starts anew, Spark forgets that it ended, and it starts once more: every row is there once."""
        self.run()
        assert self.site.last_epoch() == 2
        self.forget_commits()
        self.run()
        assert self.site.ids() == list(range(30))
        assert self.site.left() == []
        assert self.site.table().pending() == []


DOORS = pytest.mark.parametrize("door", ["each_batch", "format"])


def is_entry(request: Request) -> bool:
    return request.method == "PUT" and "/_txsink/log/" in request.path


def is_publish(request: Request) -> bool:
    return request.operation == "CompleteMultipartUpload"


@DOORS
@pytest.mark.parametrize("server", parameters("ministack", "minio"), indirect=True)
def test_a_stream_on_s3_writes_each_batch_once_whatever_call_of_its_commits_was_refused(
    lake: Site, proxy: Proxy, tmp_path: Path, door: str
) -> None:
    """S13, S22, S23, S28, S32: refused before the prepare entry, then after it; Spark aborts, and starts again."""
    stream = Stream(lake, tmp_path, door)
    proxy.plan(refuse(5, is_entry, times=0))  # create, claim, and batch 0: prepare, commit
    stream.fail()
    proxy.check_delivered()
    assert lake.last_epoch() == 0
    assert lake.table().pending() == []
    assert len(lake.left()) == 1
    proxy.plan(refuse(1, is_publish, times=0))
    stream.fail()
    proxy.check_delivered()
    assert [one.epoch for one in lake.table().pending()] == [1]
    assert len(lake.left()) == 1, "the orphan was not swept, or what is pending was aborted"
    proxy.plan()
    stream.finish()


@DOORS
def test_a_stream_on_hdfs_writes_each_batch_once_wherever_a_commit_ran_out_of_names(
    hdfs: Site, hdfs_cluster: Cluster, tmp_path: Path, door: str
) -> None:
    """S13, S22, S23, S28, S32: one name more each time, as long as it fails."""
    stream = Stream(hdfs, tmp_path, door)
    txsink.open_writer(hdfs.uri, "nobody").close()
    root = hdfs.table().path
    has_pending = [False]
    for more in range(1, ATTEMPTS_MAX):
        hdfs_cluster.set_quota(root, names_below(hdfs) + more, NO_LIMIT)
        stream.fail()
        has_pending.append(bool(hdfs.table().pending()))
        if has_pending[-1]:
            break
    hdfs_cluster.set_quota(root, NO_LIMIT, NO_LIMIT)
    assert set(has_pending[1:]) == {False, True}, "no commit failed before its prepare entry, or none after it"
    stream.finish()


@DOORS
@pytest.mark.parametrize("server", parameters("ministack", "minio", "versitygw"), indirect=True)
def test_a_stream_on_s3_writes_each_batch_once_when_answers_are_lost_and_a_publish_stops_half_way(
    lake: Site, proxy: Proxy, tmp_path: Path, door: str
) -> None:
    """S21, S30: of the prepare of batch 0, then of its commit; and its publish stops at the third file of four."""
    stream = Stream(lake, tmp_path, door, tasks=4)
    proxy.plan(lose_answer(3, is_entry), refuse(3, is_publish, times=0))  # behind create and claim
    stream.fail()
    proxy.check_delivered()
    assert [one.epoch for one in lake.table().pending()] == [0]
    assert len(lake.left()) == 2
    proxy.plan(lose_answer(1, is_entry), lose_answer(2, is_entry))
    stream.finish()
    proxy.check_delivered()


@DOORS
def test_a_stream_on_hdfs_finishes_a_publish_that_stopped_half_way(
    hdfs: Site, hdfs_cluster: Cluster, tmp_path: Path, door: str
) -> None:
    """S30: one name more each time, until some of four files have theirs."""
    stream = Stream(hdfs, tmp_path, door, tasks=4)
    txsink.open_writer(hdfs.uri, "nobody").close()
    root = hdfs.table().path
    published = [0]
    for more in range(1, ATTEMPTS_MAX):
        hdfs_cluster.set_quota(root, names_below(hdfs) + more, NO_LIMIT)
        stream.fail()
        published.append(len([one for one in hdfs.table().log.store.list(root) if one.endswith(".parquet")]))
        if published[-1]:
            break
    hdfs_cluster.set_quota(root, NO_LIMIT, NO_LIMIT)
    assert 0 < published[-1] < 4, published
    assert [one.epoch for one in hdfs.table().pending()] == [0]
    stream.finish()


def test_a_stream_on_hdfs_that_lost_the_answer_of_a_commit_writes_it_once(
    hdfs: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S21."""
    stream = Stream(hdfs, tmp_path, "each_batch")
    append = HdfsStore.put_if_absent
    lost: list[str] = []

    def put_if_absent(self: HdfsStore, path: str, data: bytes, token: str) -> Any:
        done = append(self, path, data, token)
        if b'"kind":"commit"' in data and len(lost) < 2:
            lost.append(path)
            raise OutcomeUnknownError("append", "planned: the answer was lost", "Recover")
        return done

    monkeypatch.setattr(HdfsStore, "put_if_absent", put_if_absent)
    for _ in range(2):
        with pytest.raises(Exception, match="planned"):
            stream.run()
    assert len(lost) == 2
    stream.finish()


@DOORS
@pytest.mark.parametrize("server", parameters("ministack", "minio"), indirect=True)
def test_a_query_on_s3_stopped_in_the_middle_of_a_publish_goes_on_where_it_was(
    lake: Site, proxy: Proxy, tmp_path: Path, door: str
) -> None:
    """S31: two files of four have their names; the request for the third is on its way."""
    hasty = lake._replace(options={**lake.options, "config_kwargs": {"read_timeout": 2}})
    stream = Stream(hasty, tmp_path, door, tasks=4)
    proxy.plan(delay(3, is_publish))
    stream.stop_while(lambda: bool(proxy.held), proxy.release)
    proxy.check_delivered()
    proxy.plan()
    stream.finish()


def test_a_query_on_hdfs_stopped_in_the_middle_of_a_publish_goes_on_where_it_was(
    hdfs: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S31: two files of four have their names."""
    move, here, go = HdfsStore.move, threading.Event(), threading.Event()

    def moved(self: HdfsStore, moves: list[tuple[str, str]]) -> Any:
        if here.is_set():
            return move(self, moves)
        undone = move(self, moves[:2])
        here.set()
        assert go.wait(WAIT_SECONDS_MAX)
        return undone + move(self, moves[2:])

    monkeypatch.setattr(HdfsStore, "move", moved)
    stream = Stream(hdfs, tmp_path, "each_batch", tasks=4)
    stream.stop_while(here.is_set, go.set)
    stream.finish()


def names_below(site: Site) -> int:
    """What a quota counts: the directory, those in it, and the files."""
    table = site.table()
    paths = [Path(path) for path in table.log.store.list(table.path)]
    return len({*paths, *(parent for path in paths for parent in path.parents)})


@on_quick
def test_attempts_that_spark_does_not_count_are_not_published_and_the_next_run_drops_them(lake: Site) -> None:
    """S27, I9: every first attempt stages its rows and dies before it can say so."""
    with txsink.open_writer(lake.uri, "w", run="run1", layout="parquet", storage_options=lake.options) as sink:
        txn = sink.begin(0)
        plain = txn.stager()
        dying = Dying(**{name: getattr(plain, name) for name in plain.__struct_fields__})
        staged = arrow.stage(lake.spark.range(0, 40, 1, 2), dying)
        assert len(staged) == 2
        assert len(lake.left()) == 4
        txn.add(staged)
        txn.commit()
    assert len(lake.left()) == 2
    txsink.open_writer(lake.uri, "w", storage_options=lake.options).close()
    assert lake.left() == []
    assert lake.ids() == list(range(40))


class Dying(Stager, frozen=True, kw_only=True):
    """Stages, and on the first attempt of a task dies before the records arrive."""

    def stage(self, data: object) -> list[StagedFile]:
        staged = Stager.stage(self, data)
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("the executor is gone")
        return staged


# -- jobs -------------------------------------------------------------------------------------------------


@on_quick
def test_a_job_on_s3_writes_its_epoch_once_and_drops_what_a_failed_one_left(lake: Site) -> None:
    """S1, S5, S6, and the plan runs once."""
    runs = lake.spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            runs.add(batch.num_rows)
            yield batch

    def write(df: DataFrame, epoch: int, **more: Any) -> txsink.Result:
        return pyspark_txsink.write(
            df, lake.uri, writer="w", epoch=epoch, layout="parquet", storage_options=lake.options, **more
        )

    bad = lake.spark.range(0, 100, 1, 2).selectExpr("if(id = 99, raise_error('no'), id) id")
    with pytest.raises(Exception, match="no"):
        write(bad, 0)
    wait_until_no_task_runs(lake.spark)  # one that stages still, when the job has failed, leaves a file to the next run
    assert write(lake.spark.range(0, 20, 1, 2).mapInArrow(counted, "id long"), 0).outcome == "committed"
    assert runs.value == 20
    assert write(lake.spark.range(99), 0).outcome == "already-committed"
    assert write(lake.spark.range(0), 1).rows == 0
    with pytest.raises(InvalidRequestError, match="column 'id' is int64 in the table and string in the data"):
        write(bad.selectExpr("cast(id as string) id"), 2)
    assert lake.ids() == list(range(20))
    assert lake.left() == []


def wait_until_no_task_runs(spark: SparkSession) -> None:
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while sum(one.numRunningTasks() for one in tracker.getExecutorInfos()):
        assert time.monotonic() < deadline, "a task does not end"
        time.sleep(0.05)


@on_quick
def test_every_type_and_every_name_comes_back_from_s3_as_it_went_in(lake: Site) -> None:
    """S2, S3: names that mean something to Spark, a session in another time zone, partitions."""
    names = ["a.b", "`c`", "p.q", "d e", "ü"]
    lake.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = lake.spark.sql(
            "select 1L id, timestamp'1500-01-02 03:04:05.678901' a, timestamp_ntz'2400-01-01 00:00:00' b, 'x/y z' c, "
            "array(struct(1 as u, map('k', timestamp'2026-03-08 02:30:00') as v)) d, date'2026-01-31' e, "
            "cast(7.25 as decimal(10, 2)) f, binary('y') g, cast(null as tinyint) h"
        )
        df = df.toDF("id", *names, "f", "g", "h")
        pyspark_txsink.write(
            df,
            lake.uri,
            writer="w",
            epoch=0,
            layout="parquet",
            storage_options=lake.options,
            partition_by=["p.q"],
            compression="snappy",
        )
        for found in (lake.read(), lake.by_format()):
            same = found.select(*(f"`{name.replace('`', '``')}`" for name in df.columns))
            assert same.dtypes == df.dtypes
            assert same.collect() == df.collect()
    finally:
        lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [file.partition for file in lake.table().files()] == [{"p.q": "x/y z"}]


# -- reading ----------------------------------------------------------------------------------------------


def test_sparks_own_reader_is_used_where_it_gets_at_the_files(spark: SparkSession, hdfs: Site, tmp_path: Path) -> None:
    """By its configuration: the class of `s3a`, and something that `s3a` is told."""
    given = StorageOptions.of({"key": "k"})
    assert is_reached(spark, str(tmp_path), given)
    assert is_reached(spark, hdfs.uri, given)
    assert not is_reached(spark, "s3://lake/T", StorageOptions())
    set_before = []

    def choose(name: str, value: str) -> None:
        spark.conf.set(name, value)
        set_before.append(name)

    try:
        choose("fs.s3a.impl", "org.apache.hadoop.fs.LocalFileSystem")
        assert is_reached(spark, "s3://lake/T", StorageOptions()), "the environment tells both"
        assert not is_reached(spark, "s3://lake/T", given), "only we are told who asks"
        choose("fs.s3a.bucket.other.access.key", "x")
        assert not is_reached(spark, "s3://lake/T", given)
        choose("fs.s3a.bucket.lake.access.key", "x")
        assert is_reached(spark, "s3a://lake/T", given)
    finally:
        for name in set_before:
            spark.conf.unset(name)
    pyspark_txsink.write(spark.range(3), hdfs.uri, writer="w", epoch=0)
    assert "FileScan parquet" in plan_of(hdfs.read())
    assert hdfs.ids() == [0, 1, 2]


def test_read_refuses_an_option_it_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="unknown option 'storage_option'"):
        pyspark_txsink.read(spark, str(tmp_path), storage_option={})  # type: ignore[call-arg]


def test_storage_options_travel_as_text_and_come_back_as_they_were() -> None:
    given = {"key": "true", "secret": "{no json", "token": '"', "anon": False, "client_kwargs": {"Region": ["x", 1]}}
    given |= {"deadline_seconds": 2.5, "part_bytes": 9 << 20, "endpoint_url": "http://127.0.0.1:1/"}
    parsed = options.parse({"path": "s3://b/t", **options.of_storage(given)})
    assert parsed.storage_options == given
    assert type(parsed.storage_options) is StorageOptions, "its text would show the values"


# -- file sizes -------------------------------------------------------------------------------------------

MIB = 1 << 20


class Sized(NamedTuple):
    """How many files one write of the rows made, and their sizes."""

    files: int
    least: int
    most: int
    rows_most: int


@pytest.fixture
def sized(spark: SparkSession, tmp_path: Path) -> Callable[..., Sized]:
    """Writes 200,000 rows, about 1.7 MB, in eight tasks as an epoch of a table of its own."""
    df = spark.range(0, 200_000, 1, 8).selectExpr("id", "xxhash64(id) x", "id % 3 p")

    def write(**more: Any) -> Sized:
        uri = str(tmp_path / f"T{next(NAMES)}")
        pyspark_txsink.write(df, uri, writer="w", epoch=0, **more)
        files = txsink.open_table(uri).files()
        by_duckdb = duckdb.sql(f"select count(*), sum(id) from read_parquet('{uri}/**/*.parquet')").fetchall()
        assert by_duckdb == [(200_000, sum(range(200_000)))]
        sizes = [file.bytes for file in files]
        return Sized(len(files), min(sizes), max(sizes), max(file.rows for file in files))

    return write


def test_target_file_bytes_decides_how_many_files_a_write_makes(
    spark: SparkSession, sized: Callable[..., Sized]
) -> None:
    before = [spark.conf.get(name) for name in ADAPTIVE]
    assert sized().files == 8, "what every task wrote"
    assert sized(target_file_bytes=64 * MIB).files == 1
    found = sized(target_file_bytes=MIB // 2)
    assert 3 <= found.files <= 6
    assert found.most <= 0.75 * MIB
    assert sized(target_file_bytes=64 * MIB, max_records_per_file=75_000).rows_most == 75_000
    assert sized(target_file_bytes=64 * MIB, partition_by=["p"]).files == 3
    assert 4 <= sized(target_file_bytes=MIB // 4, partition_by=["p"]).files <= 12
    assert [spark.conf.get(name) for name in ADAPTIVE] == before, "the session's own settings are back"


ADAPTIVE = (
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst",
    "spark.sql.parquet.outputTimestampType",
)


@pytest.mark.parametrize("name", ["target_file_bytes", "max_records_per_file"])
@pytest.mark.parametrize("value", [0, "1g", 1.5, True])
def test_a_size_that_cannot_be_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} is {value!r}"):
        pyspark_txsink.each_batch(str(tmp_path), **{name: value})


def test_a_micro_batch_of_many_small_tasks_becomes_one_file(spark: SparkSession, tmp_path: Path) -> None:
    """And the rows it groups are counted once: what is gathered is the batch, not the query's own plan."""
    source = tmp_path / "source"
    spark.range(0, 1000, 1, 8).write.parquet(str(source))
    counts = spark.readStream.schema("id long").parquet(str(source)).groupBy("id").count()
    each = pyspark_txsink.each_batch(str(tmp_path / "T"), target_file_bytes=64 * MIB)
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    table = txsink.open_table(str(tmp_path / "T"))
    assert len(table.files()) == 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(1000))
    assert set(table.to_arrow()["count"].to_pylist()) == {1}


@on_quick
def test_files_on_s3_are_gathered_as_well(lake: Site) -> None:
    df = lake.spark.range(0, 1000, 1, 4)
    for epoch, size in enumerate((None, 64 * MIB)):
        given: dict[str, Any] = {
            "writer": "w",
            "epoch": epoch,
            "layout": "parquet",
            "storage_options": lake.options,
            "target_file_bytes": size,
        }
        pyspark_txsink.write(df, lake.uri, **given, max_records_per_file=400)
    files = lake.table().files()
    assert [sum(file.epoch == epoch for file in files) for epoch in (0, 1)] == [4, 3]
    assert lake.ids() == sorted(2 * [*range(1000)])


# -- secrets ----------------------------------------------------------------------------------------------

CANARY = "canary-7f3c"


def plan_of(df: DataFrame) -> str:
    """All that Spark says of a plan."""
    with redirect_stdout(io.StringIO()) as out:
        for mode in ("extended", "formatted", "cost"):
            df.explain(mode=mode)
    return out.getvalue() + str(df._jdf.queryExecution().toString())


@on_quick
def test_no_value_of_a_storage_option_is_told_by_spark_or_by_us(
    lake: Site, spark_place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = {name: f"{CANARY}-{name}" for name in ("key", "secret", "token")}
    lake = lake._replace(options={**lake.options, **secret})
    texts = []
    with told(lake.spark, spark_place) as found, caplog.at_level(logging.INFO):
        for door in ("each_batch", "format"):
            (tmp_path / door).mkdir()
            Stream(lake, tmp_path / door, door, 1).run()
        write(lake)
        texts += [plan_of(lake.read()), plan_of(lake.by_format())]
        assert lake.read().count() == 23
        closed = lake._replace(options={**lake.options, "endpoint_url": "http://127.0.0.1:9", "deadline_seconds": 0.2})
        wrong = lake._replace(options={**lake.options, "secrets": CANARY})
        for act in (
            closed.read,
            wrong.read,
            wrong.by_format,
            lambda: write(wrong),
            lambda: arrow.stage(lake.spark.range(3), stager_of(lake, closed.options)),
        ):
            with pytest.raises(Exception, match=r"open an S3 store|127\.0\.0\.1:9") as caught:
                act()
            texts.append(str(caught.value))
    (log,) = [text for text in found if "INFO org.apache.spark" in text]
    (events,) = [text for text in found if 'SparkListenerSQLExecutionStart"' in text]
    assert "MapInArrow" in events, "the plans are not told there"
    for text in (*texts, *found, log, caplog.text):
        assert CANARY not in text


def write(site: Site) -> None:
    pyspark_txsink.write(
        site.spark.range(3), site.uri, writer="w", epoch=0, layout="parquet", storage_options=site.options
    )


def stager_of(site: Site, storage_options: dict[str, Any]) -> Stager:
    with txsink.open_writer(site.uri, "stager", storage_options=site.options) as sink:
        plain = sink.begin(0).stager()
    given = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return Stager(**{**given, "storage_options": StorageOptions.of(storage_options)})
