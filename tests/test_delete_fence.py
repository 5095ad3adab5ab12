"""The delete fence can fail, and lets by what is a table's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

import delete_fence
import txsink
from hdfs_cluster import Cluster
from place import Place, rows
from s3_servers import Server
from txsink import conversion as convert
from txsink.protocol import recovery
from txsink.store.hdfs.store import HdfsStore
from txsink.store.local.store import LocalStore
from txsink.store.opening import open_store
from txsink.store.protocol import Store
from txsink.store.s3.store import S3Store


@pytest.mark.parametrize(
    "path",
    [
        "/d/report.parquet",
        "/d/t/part-0.parquet",
        "/d/_txsink/head",
        "/d/t/_txsink/id",
        "/d/x",
        "/d/.t.txsink/w/r/x.txt",
    ],
)
def test_it_refuses_what_no_table_has(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    with pytest.raises(delete_fence.OutsideError):
        delete_fence.check(path, "local")
    assert delete_fence.outside == [path]


def test_it_stands_in_the_store_that_the_engine_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    (tmp_path / "theirs.parquet").write_text("theirs")
    store = LocalStore()
    for module in (recovery, convert):
        act = eval("lambda store, path: store.delete(path)", vars(module))
        with pytest.raises(delete_fence.OutsideError):
            act(store, str(tmp_path / "theirs.parquet"))
    assert (tmp_path / "theirs.parquet").exists()
    before = delete_fence.seen["local"]
    place.write(0, rows(0))
    with place.sink() as sink, sink.begin(1) as txn:
        txn.add(txn.stager().stage(rows(1)))
    dead = place.sink().begin(2)
    dead.add(dead.stager().stage(rows(2)))
    place.sink().close()
    assert delete_fence.seen["local"] > before


def deleted_by_the_engine(store: Store, path: str) -> bool:
    """As if a line of `recovery` did it."""
    act: Callable[[Store, str], bool] = eval("lambda store, path: store.delete(path)", vars(recovery))
    return act(store, path)


def stands_before(uri: str, options: dict[str, object], name: str, theirs: str) -> None:
    """A planted delete of a file beside the table is refused; those of an overwrite and of a sweep are counted."""
    store = open_store(uri, options)
    store.replace(theirs, b"theirs", "1")
    with pytest.raises(delete_fence.OutsideError):
        deleted_by_the_engine(store, theirs)
    assert store.read(theirs, 10) == b"theirs"
    before = delete_fence.seen[name]
    for epoch in range(2):
        txsink.write(
            uri, rows(epoch), writer="w", epoch=epoch, mode="overwrite", layout="delta", storage_options=options
        )
    with txsink.open_writer(uri, "w", storage_options=options) as dead:
        dead.begin(2).stager().stage(rows(2))
        with txsink.open_writer(uri, "w", storage_options=options) as live:
            live.sweep()
    assert delete_fence.seen[name] > before
    assert store.delete(theirs), "a test may"


def test_it_stands_before_every_request_that_deletes_from_a_bucket(
    s3_server: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    server = s3_server("ministack")
    bucket = server.make_bucket()
    stands_before(f"s3://{bucket}/t", server.storage_options, "S3", f"/{bucket}/theirs.parquet")
    assert delete_fence.outside == [f"/{bucket}/theirs.parquet"]
    # One request for many objects, if ever there is one.
    store = open_store(f"s3://{bucket}/t", server.storage_options)
    assert isinstance(store, S3Store)
    many = {"Bucket": bucket, "Delete": {"Objects": [{"Key": "t/_txsink/log/x"}]}}
    act = eval("lambda calls, given: calls.once('delete_objects', given, 1.0)", vars(convert))
    with pytest.raises(delete_fence.OutsideError):
        act(store._calls, many)


def test_it_stands_in_the_store_of_hdfs(hdfs_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    root = f"/{uuid4().hex}"
    uri = f"{hdfs_cluster.uri}{root}/t"
    assert isinstance(open_store(uri, {}), HdfsStore)
    stands_before(uri, {}, "HDFS", f"{root}/theirs.parquet")
    assert delete_fence.outside == [f"{root}/theirs.parquet"]
