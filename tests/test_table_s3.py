"""The parquet layout on S3, end to end: the contracts of publish and log, a table's whole life, and what it costs.

`moto` and `ministack` run with every `make test`; versitygw and MinIO, which take minutes to build, with the mark
`stores`. Faults and kills stand in test_faults_s3.py.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar, cast

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset
from s3fs import S3FileSystem

import txsink
from contract_log import LogContract, LogRaces, Opened
from contract_publish import PublishContract
from s3_servers import Server, parameters
from txsink import entry as entries
from txsink import layout, log, recovery, segment
from txsink.errors import CorruptError, InvalidRequestError
from txsink.store import open_store
from txsink.store.s3 import S3Store
from upload_site import UploadSite

COUNT = itertools.count(1)
ATOMIC = ("ministack", "versitygw", "minio")


@functools.cache
def bucket_of(server_endpoint: str, make_bucket: Callable[[], str]) -> str:
    """One bucket serves all tests of a server."""
    return make_bucket()


def options_of(server: Server) -> dict[str, object]:
    # moto fails on an upload that is gone, for as long as it is asked.
    return {**server.storage_options, **({"deadline_seconds": 0.5} if server.name == "moto" else {})}


@functools.cache
def opened_once(options: str, who: int) -> S3Store:
    """To open a store anew for every test takes longer than the tests."""
    return cast("S3Store", open_store("s3://any-bucket", json.loads(options)))


@pytest.fixture
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def root(server: Server) -> str:
    """A directory that nobody has used."""
    return f"/{bucket_of(server.endpoint, server.make_bucket)}/{next(COUNT)}/Grüße % +&/a table"


# -- the contracts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", parameters(), indirect=True)
class TestPublish(PublishContract):
    looks_first: ClassVar[bool] = False

    @pytest.fixture
    def site(self, server: Server, root: str) -> UploadSite:
        return UploadSite(functools.partial(open_store, "s3://any-bucket", options_of(server)), root)


@pytest.mark.parametrize("server", parameters(), indirect=True)
class TestLog(LogContract):
    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        return functools.partial(opened_once, json.dumps(options_of(server)), 1)

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


@pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)
class TestRaces(LogRaces):
    versions = 12

    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        return functools.partial(open_store, "s3://any-bucket", options_of(server))

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


# -- a table's whole life ---------------------------------------------------------------------------------


class Lake:
    """A table to be on a server, by the door that users take; and what others see of it."""

    def __init__(self, server: Server, root: str) -> None:
        self.server, self.root, self.uri = server, root, f"s3:/{root}"
        self.options = options_of(server)
        self.bucket, _, self.prefix = root[1:].partition("/")

    def writer(self, name: str = "w", **options: Any) -> txsink.Sink:
        return txsink.open_writer(self.uri, name, storage_options=self.options, **options)

    def write(self, epoch: int, data: object, **options: Any) -> str:
        given = {"writer": "w", "storage_options": self.options, **options}
        return txsink.write(self.uri, data, epoch=epoch, **given).outcome

    def table(self) -> txsink.Table:
        return txsink.open_table(self.uri, storage_options=self.options)

    def rows(self) -> list[int]:
        """By the log, every page checked."""
        table = self.table()
        assert table.verify(deep=True) == []
        return sorted(table.to_arrow()["id"].to_pylist())

    def names(self) -> list[str]:
        """Every object below the root."""
        found = self.ask("list_objects_v2", Prefix=f"{self.prefix}/")
        assert not found["IsTruncated"]
        return [one["Key"].removeprefix(f"{self.prefix}/") for one in found.get("Contents", [])]

    def seen(self) -> list[int]:
        """By the directory: the ids of every Parquet file there is."""
        store = opened_once(json.dumps(self.options), 1)
        found = (store.read(f"{self.root}/{name}", 1 << 20) for name in self.names() if name.endswith(".parquet"))
        return sorted(one for data in found for one in pq.read_table(io.BytesIO(data or b""))["id"].to_pylist())

    def uploads(self) -> list[str]:
        """The keys of the pending uploads below the root, as the server tells anybody."""
        found = self.ask("list_multipart_uploads").get("Uploads", [])
        mine = [one["Key"] for one in found if one["Key"].startswith(f"{self.prefix}/")]
        return sorted(key.removeprefix(f"{self.prefix}/") for key in mine)

    def begin_upload(self, key: str) -> None:
        """Another program's upload."""
        begun = self.ask("create_multipart_upload", Key=key)["UploadId"]
        self.ask("upload_part", Key=key, UploadId=begun, PartNumber=1, Body=b"theirs")

    def ask(self, method: str, **keywords: Any) -> dict[str, Any]:
        """The server, by the client alone."""
        found = opened_once(json.dumps(self.options), 2)._calls.once(
            method, {"Bucket": self.bucket, **keywords}, 60, -(1 << 20)
        )
        assert isinstance(found, dict), found
        return found


def put(sink: txsink.Sink, epoch: int, *ids: int, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        txn.write({"id": list(ids)})


def prepare(sink: txsink.Sink, epoch: int, *ids: int) -> txsink.Transaction:
    txn = sink.begin(epoch)
    txn.write({"id": list(ids)})
    txn.prepare()
    return txn


def stage_only(sink: txsink.Sink, epoch: int, *ids: int) -> None:
    """What is left of a run that dies here."""
    sink.begin(epoch).stager().stage({"id": list(ids)})


@pytest.fixture
def lake(server: Server, root: str) -> Lake:
    return Lake(server, root)


on_all = pytest.mark.parametrize("server", parameters(), indirect=True)
on_three = pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)


@on_all
def test_an_epoch_that_is_written_twice_is_there_once_and_nothing_changes(lake: Lake) -> None:
    assert lake.write(7, {"id": [1, 2]}) == "committed"
    before = lake.names()
    assert lake.write(7, {"id": [3]}) == "already-committed"
    # The second run has claimed its writer; nothing else is new.
    assert sorted(set(lake.names()) - set(before)) == [layout.entry_path(4)]
    assert lake.rows() == lake.seen() == [1, 2]
    assert lake.uploads() == []


@on_all
def test_a_crash_after_prepare_is_committed_by_the_next_run(lake: Lake) -> None:
    with lake.writer() as sink:
        put(sink, 0, 1)
    prepare(lake.writer(), 1, 2, 3)
    assert lake.rows() == lake.seen() == [1]
    assert len(lake.uploads()) == 1
    with lake.writer() as again:
        assert again.recovered == ([1], [], None)
        assert again.last_epoch == 1
    assert lake.rows() == lake.seen() == [1, 2, 3]
    assert lake.uploads() == []


@on_all
def test_an_overwrite_deletes_what_it_replaces_and_the_old_version_says_so(lake: Lake) -> None:
    with lake.writer() as sink:
        put(sink, 0, 1, 2)
        before = lake.table()
        put(sink, 1, 3, mode="overwrite")
    assert lake.rows() == lake.seen() == [3]
    for read in (before.to_arrow, lambda: lake.table().to_arrow(before.version)):
        with pytest.raises(InvalidRequestError, match="this store cannot keep replaced files"):
            read()
    assert before.refresh().to_arrow()["id"].to_pylist() == [3]
    assert not [name for name in lake.names() if name.startswith(layout.REMOVED_DIRECTORY)]


@on_all
def test_a_dynamic_overwrite_replaces_the_partitions_it_writes(lake: Lake) -> None:
    days = {"id": [1, 2, 3], "day": ["a b", "ü/%", "c"]}
    assert lake.write(0, days, partition_by=["day"]) == "committed"
    again = {"id": [4], "day": ["ü/%"]}
    assert lake.write(1, again, mode="overwrite", partition_overwrite="dynamic") == "committed"
    found = lake.table().to_arrow().sort_by("id")
    assert found.to_pydict() == {"id": [1, 3, 4], "day": ["a b", "c", "ü/%"]}
    assert lake.rows() == lake.seen()
    assert sorted({name.split("/")[0] for name in lake.names() if "=" in name}) == ["day=a b", "day=c", "day=ü%2F%25"]


ESCAPED = [
    "a b",
    "ü",
    "日本語",
    "",
    None,
    "__x",
    ".hidden",
    "a/b",
    "50%",
    "k=v",
    "x+y&z",
    "'q\"",
    "#?*:\\",
    "{[]^}",
    "~",
]


@on_all
def test_partition_values_of_every_kind_come_back(lake: Lake) -> None:
    """S3."""
    lake.write(0, {"id": list(range(len(ESCAPED))), "p q": ESCAPED}, partition_by=["p q"])
    found = lake.table().to_arrow().sort_by("id")["p q"].to_pylist()
    assert found == [value or None for value in ESCAPED]
    assert lake.rows() == lake.seen() == list(range(len(ESCAPED)))


@on_all
def test_the_next_run_drops_what_a_dead_one_staged_and_nothing_else(lake: Lake) -> None:
    """F16, I9, I15: uploads of other writers, other programs and other tables are not ours."""
    neighbour = Lake(lake.server, f"{lake.root}2")
    below = Lake(lake.server, f"{lake.root}/below")
    for other, writer in ((lake, "v"), (neighbour, "w"), (below, "w")):
        stage_only(other.writer(writer), 0, 5)
    lake.begin_upload(f"{lake.prefix}/part-0-0-abcd.parquet")
    lake.begin_upload(f"{lake.prefix}/x.parquet")
    lake.begin_upload(f"{lake.prefix}elsewhere")
    kept = lake.uploads(), neighbour.uploads(), below.uploads()
    assert [len(one) for one in kept] == [4, 1, 1]
    dead = lake.writer()
    put(dead, 0, 1)
    stage_only(dead, 1, 2)
    stage_only(dead, 1, 3)
    assert len(lake.uploads()) == len(kept[0]) + 2
    with lake.writer() as sink:
        assert (lake.uploads(), neighbour.uploads(), below.uploads()) == kept
        put(sink, 1, 4)
    assert lake.rows() == [1, 4]


@on_all
def test_an_aborted_epoch_and_a_closed_writer_leave_no_upload(lake: Lake) -> None:
    sink = lake.writer()
    prepare(sink, 0, 1).abort()
    open_one = sink.begin(1)
    open_one.add(open_one.stager().stage({"id": [2]}))
    stage_only(sink, 2, 3)
    assert len(lake.uploads()) == 2
    open_one.abort()
    sink.close()
    assert lake.uploads() == []
    with lake.writer() as again:
        put(again, 0, 9)
    assert lake.rows() == lake.seen() == [9]


@on_all
def test_an_upload_that_somebody_dropped_is_corruption_that_names_the_epoch_which_can_be_written_again(
    lake: Lake,
) -> None:
    """A life-cycle rule of the bucket: nothing of the epoch is committed."""
    with lake.writer() as sink:
        put(sink, 6, 1)
    txn = prepare(lake.writer(), 7, 2)
    (name,) = lake.uploads()
    found = lake.ask("list_multipart_uploads")["Uploads"]
    (upload,) = [one["UploadId"] for one in found if one["Key"].endswith(name)]
    lake.ask("abort_multipart_upload", Key=f"{lake.prefix}/{name}", UploadId=upload)
    for act in (txn.commit, lake.writer):
        with pytest.raises(CorruptError, match=r"epoch 7 of 'w': its staged file is absent.*txsink abort") as caught:
            act()
        assert caught.value.context["epoch"] == 7
    assert lake.seen() == [1]
    assert [item.epoch for item in lake.table().pending()] == [7]
    with lake.writer(recover=False) as again:
        again.abort(7)
        put(again, 7, 3)
    assert lake.rows() == lake.seen() == [1, 3]


@on_all
def test_an_expired_entry_keeps_its_name_and_says_that_it_has_expired(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F25: nobody can use its version again."""
    for module in (segment, log):
        monkeypatch.setattr(module, "BLOCK", 4)
    with lake.writer() as sink:
        for epoch in range(8):
            put(sink, epoch, epoch, mode="overwrite" if epoch == 2 else "append")
        reader = lake.table()
        at = reader.version
        before = [name for name in lake.names() if name.startswith(layout.LOG_DIRECTORY)]
        boundary = recovery.expire(sink.log, at)
        after = [name for name in lake.names() if name.startswith(layout.LOG_DIRECTORY)]
        assert 4 < boundary < at
        assert after == [*before, layout.entry_path(at + 1)]
        store = sink.log.store
        slots = [store.read(f"{lake.root}/{name}", 1 << 20) for name in after]
        assert [data == entries.EXPIRED for data in slots] == [version < boundary for version in range(at + 2)]
        assert store.put_if_absent(f"{lake.root}/{after[0]}", b"again", "x") is False
        with pytest.raises(InvalidRequestError, match="older ones have expired"):
            reader.refresh().to_arrow(boundary - 1)
        assert recovery.expire(sink.log, sink.log.state.version - 1) >= boundary
        put(sink, 8, 8)
    assert lake.write(9, {"id": [9]}) == "committed"
    assert lake.rows() == lake.seen() == list(range(2, 10))
    assert lake.table().history()[-1].version == lake.table().boundary


def _stage(stager: txsink.Stager, ids: list[int]) -> list[dict[str, Any]]:
    """A worker: what comes back is plain."""
    return [one.to_dict() for one in stager.stage({"id": ids})]


@on_all
def test_workers_in_other_processes_stage_what_the_coordinator_commits(lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")
    with lake.writer() as sink, ProcessPoolExecutor(2, mp_context=context) as workers:
        with sink.begin(0, parts=2) as txn:
            parts = [workers.submit(_stage, txn.stager(part), [part, part + 10]) for part in range(2)]
            # A second attempt of a task, whose files nobody adds.
            lost = workers.submit(_stage, txn.stager(1), [1, 11])
            for part, staged in enumerate(parts):
                txn.add(staged.result(), part=part)
            assert len(lost.result()) == 1
        assert len(lake.uploads()) == 1
        assert lake.rows() == lake.seen() == [0, 1, 10, 11]
    lake.writer().close()
    assert lake.uploads() == []


@on_all
def test_a_two_phase_sink_commits_by_notice_also_when_the_framework_skips_ids(lake: Lake) -> None:
    """F1, F7: a file keeps the smallest epoch it could belong to in its name, and that is all."""
    options = {"storage_options": lake.options}
    sink = txsink.ParquetFileSink(lake.uri, "flow", **options)
    sink.restore_state(None)
    for number, checkpoint in enumerate((3, 7, 20)):
        sink.write({"id": [number]})
        state = sink.snapshot_state(checkpoint)
    sink.write({"id": [99]})
    sink.notify_checkpoint_complete(7)
    assert lake.rows() == lake.seen() == [0, 1]
    again = txsink.ParquetFileSink(lake.uri, "flow", **options)
    again.restore_state(state)
    assert again.last_epoch == 20
    assert lake.rows() == lake.seen() == [0, 1, 2]
    again.write({"id": [3]})
    again.snapshot_state(30)
    again.notify_checkpoint_complete(30)
    again.close()
    assert lake.rows() == lake.seen() == [0, 1, 2, 3]
    assert lake.uploads() == []


@on_all
def test_an_object_may_have_the_name_of_the_tables_directory_where_the_server_takes_both(lake: Lake) -> None:
    lake.ask("put_object", Key=lake.prefix, Body=b"a file of that name")
    if lake.server.name == "versitygw":  # directories on a disk
        with pytest.raises(InvalidRequestError, match="this store cannot hold both"):
            lake.write(0, {"id": [1]})
        return
    lake.write(0, {"id": [1]})
    assert lake.rows() == [1]
    assert lake.ask("get_object", Key=lake.prefix)["Body"] == b"a file of that name"


# -- other readers ----------------------------------------------------------------------------------------


def files_of(lake: Lake) -> S3FileSystem:
    # A file system of s3fs believes in what it has listed once, so that a second look would not find new files.
    return S3FileSystem(**lake.server.storage_options, use_listings_cache=False, skip_instance_cache=True)


def by_pyarrow(lake: Lake) -> Any:
    files = files_of(lake)
    return dataset(lake.root[1:], filesystem=files, format="parquet", partitioning="hive").to_table().to_pandas()


def by_pandas(lake: Lake) -> Any:
    return pd.read_parquet(lake.uri, storage_options={**lake.server.storage_options, "use_listings_cache": False})


def by_duckdb(lake: Lake) -> Any:
    with duckdb.connect() as connection:
        connection.register_filesystem(files_of(lake))
        query = "select id, day from read_parquet(?, hive_partitioning = true)"
        return connection.execute(query, [f"{lake.uri}/**/*.parquet"]).df()


def by_polars(lake: Lake) -> Any:
    given = lake.server.storage_options
    options = {
        "aws_access_key_id": given["key"],
        "aws_secret_access_key": given["secret"],
        "aws_endpoint_url": given["endpoint_url"],
        "aws_region": given["client_kwargs"]["region_name"],
        "aws_allow_http": "true",
    }
    found = pl.scan_parquet(f"{lake.uri}/**/*.parquet", hive_partitioning=True, storage_options=options)
    return found.select("id", "day").collect().to_pandas()


@on_three
@pytest.mark.parametrize("read", [by_pyarrow, by_pandas, by_duckdb, by_polars])
def test_readers_of_the_directory_see_the_committed_rows_and_no_others(
    server: Server, read: Callable[[Lake], Any]
) -> None:
    """I1, S3: while an epoch is prepared, and another one staged."""
    lake = Lake(server, f"/{bucket_of(server.endpoint, server.make_bucket)}/{next(COUNT)}/for readers/events")
    rows = [(1, "a b"), (2, "ü"), (3, "50%/x"), (4, "a b")]
    with lake.writer(partition_by=["day"]) as sink:
        for epoch, (number, day) in enumerate(rows):
            with sink.begin(epoch) as txn:
                txn.write({"id": [number], "day": [day]})
        waiting = sink.begin(4)
        waiting.write({"id": [5], "day": ["a b"]})
        waiting.prepare()
        sink.begin(5).stager().stage({"id": [6], "day": ["a b"]})
        found = read(lake)
        assert sorted(zip(found["id"].tolist(), map(str, found["day"].tolist()), strict=True)) == rows
        waiting.commit()
        assert sorted(read(lake)["id"].tolist()) == [1, 2, 3, 4, 5]
