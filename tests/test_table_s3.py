"""The parquet layout on S3, end to end: the contracts of publish and log, a table's whole life, and what it costs.

`moto` and `ministack` run with every `make test`; versitygw and MinIO, which take minutes to build, with the mark
`stores`. Faults and kills stand in test_faults_s3.py.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
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
from programs import programs_of
from s3_proxy import Proxy, proxied
from s3_servers import Server, parameters, started
from txsink import paths
from txsink.cli.main import main
from txsink.environment import Stamps
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import entry as entries, expiry, log, segment
from txsink.store.opening import open_store
from txsink.store.s3.store import S3Store
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing.opening import open_sink
from upload_site import UploadSite

COUNT = itertools.count(1)
ATOMIC = ("ministack", "versitygw", "minio")


@cache
def bucket_of(server_endpoint: str, make_bucket: Callable[[], str]) -> str:
    """One bucket serves all tests of a server."""
    return make_bucket()


def options_of(server: Server) -> dict[str, object]:
    # moto fails on an upload that is gone, for as long as it is asked.
    return {**server.storage_options, **({"deadline_seconds": 5} if server.name == "moto" else {})}


@cache
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
        return UploadSite(partial(S3Store, "s3://any-bucket", options_of(server)), root)


@pytest.mark.parametrize("server", parameters(), indirect=True)
class TestLog(LogContract):
    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        return partial(opened_once, json.dumps(options_of(server)), 1)

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


@pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)
class TestRaces(LogRaces):
    versions = 12

    @pytest.fixture
    def opened(self, server: Server) -> Opened:
        return partial(open_store, "s3://any-bucket", options_of(server))

    @pytest.fixture
    def root(self, root: str) -> str:
        return root


# -- a table's whole life ---------------------------------------------------------------------------------


class Lake:
    """A table to be on a server, by the door that users take; and what others see of it."""

    layout = "parquet"

    def __init__(self, server: Server, root: str) -> None:
        self.server, self.root, self.uri = server, root, f"s3:/{root}"
        self.options = options_of(server)
        self.bucket, _, self.prefix = root[1:].partition("/")

    def writer(self, name: str = "w", **options: Any) -> txsink.Writer:
        given = {"storage_options": self.options, "layout": self.layout, **options}
        return txsink.open_writer(self.uri, name, **given)

    def write(self, epoch: int, data: object, **options: Any) -> str:
        given = {"writer": "w", "storage_options": self.options, "layout": self.layout, **options}
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


def put(sink: txsink.Writer, epoch: int, *ids: int, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        txn.write({"id": list(ids)})


def prepare(sink: txsink.Writer, epoch: int, *ids: int) -> txsink.Transaction:
    txn = sink.begin(epoch)
    txn.write({"id": list(ids)})
    txn.prepare()
    return txn


def stage_only(sink: txsink.Writer, epoch: int, *ids: int) -> None:
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
    assert lake.names() == before
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
    with pytest.raises(InvalidRequestError, match="this store cannot keep replaced files"):
        before.to_arrow()
    with pytest.raises(InvalidRequestError, match="this store cannot keep replaced files"):
        lake.table().to_arrow(before.version)
    assert before.refresh().to_arrow()["id"].to_pylist() == [3]
    assert not [name for name in lake.names() if name.startswith(paths.REMOVED_DIRECTORY)]


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
    for other, writer in ((below, "w"), (lake, "v"), (neighbour, "w")):  # a table above another one is made last
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
    monkeypatch.setattr(segment, "FANOUT", 2)
    with lake.writer() as sink:
        for epoch in range(8):
            put(sink, epoch, epoch, mode="overwrite" if epoch == 2 else "append")
        reader = lake.table()
        at = reader.version
        before = [name for name in lake.names() if name.startswith(paths.LOG_DIRECTORY)]
        boundary = expiry.expire(sink.log, at)
        after = [name for name in lake.names() if name.startswith(paths.LOG_DIRECTORY)]
        gone = min(boundary, segment.doubled(at + 2))  # what stands in one segment alone stays in its entries
        assert 4 < gone <= boundary < at
        assert after == [*before, paths.entry_path(at + 1)]
        store = sink.log.store
        slots = [store.read(f"{lake.root}/{name}", 1 << 20) for name in after]
        assert [data == entries.EXPIRED for data in slots] == [version < gone for version in range(at + 2)]
        assert store.put_if_absent(f"{lake.root}/{after[0]}", b"again", "x") is False
        with pytest.raises(InvalidRequestError, match="older ones have expired"):
            reader.refresh().to_arrow(boundary - 1)
        assert expiry.expire(sink.log, sink.log.state.version - 1) >= boundary
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
    options: dict[str, Any] = {"storage_options": lake.options, "layout": lake.layout}
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


# -- the command ------------------------------------------------------------------------------------------


@on_all
def test_the_command_takes_its_credentials_from_the_environment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = lake.server.storage_options
    for name, value in (
        ("AWS_ACCESS_KEY_ID", given["key"]),
        ("AWS_SECRET_ACCESS_KEY", given["secret"]),
        ("AWS_ENDPOINT_URL_S3", given["endpoint_url"]),
        ("AWS_DEFAULT_REGION", given["client_kwargs"]["region_name"]),
    ):
        monkeypatch.setenv(name, value)

    def run(command: str, *arguments: object, code: int = 0) -> Any:
        assert main([command, lake.uri, *map(str, arguments), "--output", "json"]) == code
        out, err = capsys.readouterr()
        assert given["secret"] not in out + err
        return json.loads(out or err)

    assert "no txsink table" in run("status", code=1)["error"]["found"]
    with lake.writer() as sink:
        put(sink, 0, 1)
    for epoch in (1, 2):
        dead = lake.writer(recover=False)
        prepare(dead, epoch, epoch + 1)
    live = lake.writer("v")
    zombie, newer = lake.writer("u"), lake.writer("u")
    stage_only(zombie, 0, 98)
    stage_only(newer, 0, 99)
    assert [one["path"] for one in run("files")["files"]] == [one for one in lake.names() if one.endswith("t")]
    assert run("status", code=3)["rows"] == 1  # two epochs were left
    assert [one["kind"] for one in run("log", "--limit", 4)["entries"]] == ["claim", "claim", "claim", "prepare"]
    assert [(one["epoch"], one["state"]) for one in run("pending")["pending"]] == [(1, "prepared"), (2, "prepared")]
    assert run("verify", "--deep")["is_healthy"]
    assert run("abort", "w", 2)["is_dry_run"]
    assert run("abort", "w", 2, "--yes")["plan"][0]["action"] == "abort"
    assert run("recover", "--yes")["done"] == [{"writer": "w", "committed": [1], "aborted": [], "rewound_from": None}]
    actions = [(one["action"], one["writer"]) for one in run("sweep")["plan"]]
    assert sorted(actions) == [("delete", "u"), ("keep", "u")]
    assert run("sweep", "--yes")["deleted"] == 1
    assert len(lake.uploads()) == 1
    put(live, 0, 3)
    put(newer, 0, 4)
    assert run("status")["is_healthy"]
    assert lake.rows() == lake.seen() == [1, 2, 3, 4]


# -- requests ---------------------------------------------------------------------------------------------


OFF_THE_COMMIT_PATH = (f"/{paths.STATE_DIRECTORY}/", f"/{paths.SEGMENT_DIRECTORY}/")
A_FILE = ["CreateMultipartUpload", "UploadPart"]
COMPLETE, PUT, GET, LIST = "CompleteMultipartUpload", "PutObject", "GetObject", "ListObjectsV2"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as made:
        yield made


def sent(proxy: Proxy, act: Callable[[], object]) -> list[str]:
    """What arrives while `act` runs, but for what is written once in a while, after the commit."""
    proxy.plan()
    act()
    return [one.operation for one in proxy.requests if not any(part in one.path for part in OFF_THE_COMMIT_PATH)]


@on_three
def test_an_epoch_costs_three_requests_a_file_and_six_for_the_log(
    lake: Lake, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No listing and no copy, at any age; looks at one entry each: after every append, and before what is published."""
    monkeypatch.setattr(log, "LOOK_AGE_MS", 600_000)  # however slow the machine is, the writer is busy
    lake.options = proxy.storage_options
    log_only = [PUT, GET, GET, PUT, GET, PUT]  # prepare entry, its look, that before publishing; commit entry; hint
    one_file = {"id": [1], "day": ["a"]}
    with lake.writer(partition_by=["day"]) as sink:
        for epoch in range(40):  # 80 entries: past the first summary
            assert sent(proxy, partial(put_rows, sink, epoch, one_file)) == [
                *(*A_FILE, PUT, GET, GET, COMPLETE, PUT, GET, PUT)
            ]
        summaries = [name for name in lake.names() if name.startswith(paths.STATE_DIRECTORY)]
        assert len(summaries) == 1
        three = {"id": [1, 2, 3], "day": ["a", "b", "c"]}
        found = sent(proxy, partial(put_rows, sink, 40, three))
        assert Counter(found) == Counter([*A_FILE, COMPLETE] * 3 + log_only)
        assert sent(proxy, partial(put_rows, sink, 41, None)) == log_only
        # The two-phase way is no dearer.
        txn = sink.begin(42)
        txn.add(txn.stager().stage(one_file))
        assert sent(proxy, txn.prepare) == [PUT, GET]
        assert sent(proxy, txn.commit) == [GET, COMPLETE, PUT, GET, PUT]
        # What is replaced is looked at and deleted.
        found = sent(proxy, partial(put_rows, sink, 43, one_file, mode="overwrite"))
    assert Counter(found) == Counter([*A_FILE, COMPLETE, PUT, GET, *log_only, *["HeadObject", "DeleteObject"] * 44])


def put_rows(sink: txsink.Writer, epoch: int, rows: Any, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        if rows is not None:
            txn.write(rows)


@pytest.fixture(scope="module")
def old_tables() -> dict[int, dict[str, bytes]]:
    """The objects of a table of so many epochs, by path below its root: made in memory, which is cheap."""
    made, objects = {}, Objects()
    ids = itertools.count(1)
    counted = Stamps(lambda: 1_760_000_000_000, lambda: f"{next(ids):032x}", lambda attempt: None)
    with open_sink(ObjectStore(objects), counted, "/t", "w", {"layout": "parquet"}) as sink:
        for epoch in range(1000):
            put_rows(sink, epoch, None)
            if epoch + 1 in {1, 100, 1000}:
                made[epoch + 1] = {path.removeprefix("/t/"): data for path, data in objects.objects.items()}
    return made


@on_three
@pytest.mark.parametrize("epochs", [1, 100, 1000])
def test_opening_costs_as_much_at_any_age(
    lake: Lake, proxy: Proxy, old_tables: dict[int, dict[str, bytes]], epochs: int
) -> None:
    """S12. MinIO is asked twice for uploads: it takes the first question for one about a single name."""
    objects = old_tables[epochs].items()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: lake.ask("put_object", Key=f"{lake.prefix}/{one[0]}", Body=one[1]), objects))
    lake.options = proxy.storage_options
    uploads = ["ListMultipartUploads"] * (2 if lake.server.name == "minio" else 1)
    for _ in range(2):  # the hint, its entry and the names after it; the claim and its look; the hint
        assert sent(proxy, lambda: lake.writer().close()) == [GET, GET, LIST, *uploads, PUT, GET, PUT]
    found: list[txsink.Table] = []
    assert sent(proxy, lambda: found.append(lake.table())) == [GET, GET, GET, LIST]
    assert found[0].writers()["w"].last_epoch == epochs - 1
    assert sent(proxy, found[0].refresh) == [GET]
    assert set(sent(proxy, found[0].files)) <= {GET}
    # The entries since the last segment of 64, which are merged by eights.
    assert len(proxy.requests) < 64 + 2 * 8


@on_three
def test_what_was_prepared_by_one_spelling_of_a_bucket_is_committed_by_the_other(lake: Lake) -> None:
    """`s3://` and Spark's `s3a://` are one table, whose files neither takes for another's."""
    first = lake.uri
    assert first.startswith("s3://")
    for epoch, uri in enumerate([first, first.replace("s3://", "s3a://")] * 2):
        lake.uri = uri
        writer = lake.writer()
        assert writer.recovered == ([epoch - 1] if epoch else [], [], None)
        prepare(writer, epoch, epoch)
        stage_only(writer, epoch + 10, 99)
    with lake.writer() as last:
        assert last.recovered == ([3], [], None)
        last.sweep()
    assert lake.uploads() == []
    for uri in (first, lake.uri):
        lake.uri = uri
        assert lake.rows() == lake.seen() == [0, 1, 2, 3]


# -- what only MinIO does -----------------------------------------------------------------------------------


@pytest.mark.stores
def test_minio_forgets_to_list_what_was_staged_before_it_was_restarted_and_commits_what_was_prepared(
    tmp_path: Path,
) -> None:
    """Orphans stay until MinIO drops them itself (by default after a day); no row is lost and none is there twice."""
    with started("minio", tmp_path) as server:
        lake = Lake(server, f"/{server.make_bucket()}/t")
        dead = lake.writer()
        put(dead, 0, 1)
        prepare(dead, 1, 2)
        stage_only(dead, 2, 99)
        assert len(lake.uploads()) == 2
        (orphan,) = [name for name in lake.uploads() if "part-2-" in name]
        server.kill()
        server.restart()
        assert lake.uploads() == []
        with lake.writer() as sink:
            assert sink.recovered == ([1], [], None)
            put(sink, 2, 3)
            assert sink.sweep() == []
        assert lake.rows() == lake.seen() == [1, 2, 3]
        still = lake.ask("list_multipart_uploads", Prefix=f"{lake.prefix}/{orphan}")["Uploads"]
        assert [one["Key"] for one in still] == [f"{lake.prefix}/{orphan}"]


def test_the_programs_of_the_guide_to_stores_run(s3_server: Callable[[str], Server]) -> None:
    server = s3_server("moto")
    where = f"s3://{server.make_bucket()}/events"
    for program in programs_of("docs/stores.md"):
        names: dict[str, Any] = {"txsink": txsink}
        exec(program.replace("s3://lake/events", where).replace('{"profile": "prod"}', str(options_of(server))), names)
        with names["sink"] as sink, sink.begin(0) as txn:
            txn.write({"id": [1]})
        assert txsink.open_table(where, storage_options=server.storage_options).to_arrow()["id"].to_pylist() == [1]
