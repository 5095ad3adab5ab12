"""The HDFS store on a real NameNode and DataNodes: the contracts, and what only HDFS can go wrong in."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from contract_publish import PublishContract, Site
from contract_store import StoreContract, StoreRaces
from hdfs_cluster import Cluster
from txsink import layout
from txsink.entry import DataFile, Prepare
from txsink.publish.rename import RenamePublisher
from txsink.store import Store, open_store

pytest.importorskip("hdfs_native", reason="the client of HDFS is not installed")

ROOTS = itertools.count()


@pytest.fixture
def root() -> str:
    """A directory that is not there yet."""
    return f"/test-{next(ROOTS)}/a täble"


@pytest.fixture
def store(hdfs_cluster: Cluster) -> Store:
    return open_store(hdfs_cluster.uri)


# -- the contracts -------------------------------------------------------------------------------------------


class TestHdfs(StoreContract, StoreRaces):
    race_names = 100

    @pytest.fixture(autouse=True)
    def _found_by_name(self, hdfs_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(self), "opened", staticmethod(partial(open_store, hdfs_cluster.uri)), raising=False)

    @pytest.fixture
    def store(self, hdfs_cluster: Cluster) -> Store:
        return open_store(hdfs_cluster.uri)

    @pytest.fixture
    def other(self, hdfs_cluster: Cluster) -> Store:
        return open_store(hdfs_cluster.uri)

    @pytest.fixture
    def root(self) -> str:
        return f"/test-{next(ROOTS)}/a täble"

    def test_put_leaves_no_temporary_file(self, store: Store, root: str) -> None:
        store.put_if_absent(f"{root}/0", b"first", "a")
        store.put_if_absent(f"{root}/0", b"second", "b")
        store.put_hint(f"{root}/1", b"", "c")
        store.replace(f"{root}/2", b"", "d")
        assert store.list(root) == ["0", "1", "2"]


class HdfsSite(Site):
    """A table and its staging root in HDFS."""

    def __init__(self, uri: str, root: str) -> None:
        self.uri = uri
        self.store = open_store(uri)
        self.root = root
        self.staging_root = layout.default_staging_root(root)
        self.publisher = self.rename = RenamePublisher(self.store, root, self.staging_root)

    def __reduce__(self) -> tuple[type[HdfsSite], tuple[str, str]]:
        return HdfsSite, (self.uri, self.root)

    def again(self) -> HdfsSite:
        return HdfsSite(self.uri, self.root)

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        return self.store.read(self.rename._staged(prepare, file), 1 << 20)

    def target(self, file: DataFile) -> bytes | None:
        return self.store.read(f"{self.root}/{file.path}", 1 << 20)

    def put_target(self, file: DataFile, data: bytes) -> None:
        self.store.replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert self.store.delete(self.rename._staged(prepare, file))


class TestRename(PublishContract):
    @pytest.fixture
    def site(self, hdfs_cluster: Cluster, root: str) -> HdfsSite:
        return HdfsSite(hdfs_cluster.uri, root)
