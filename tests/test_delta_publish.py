"""The Delta layout's publish contract on a local disk, in memory and on HDFS; S3 stands in `test_delta_s3`."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from contract_delta import DeltaContract, DeltaSite, ObjectContract, Opened
from contract_publish import Site, _publish, staged
from hdfs_cluster import Cluster
from txsink.log import entry as entries
from txsink.store.local.store import LocalStore
from txsink.store.opening import open_store
from txsink.testing.objects import Objects, ObjectStore

NAMES = itertools.count(1)


class TestLocal(DeltaContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> DeltaSite:
        root = str(tmp_path / "output @#output")
        return DeltaSite(LocalStore, root, root)


class TestHdfs(DeltaContract):
    @pytest.fixture
    def site(self, hdfs_cluster: Cluster) -> DeltaSite:
        pytest.importorskip("hdfs_native", reason="the client of HDFS is not installed")
        root = f"/delta-{next(NAMES)}/a täble"
        return DeltaSite(partial(open_store, hdfs_cluster.uri), root, f"{hdfs_cluster.uri}{root}")


class TestObjects(DeltaContract):
    @pytest.fixture
    def site(self) -> DeltaSite:
        return DeltaSite(partial(ObjectStore, Objects()), "/bucket/table", "/bucket/table")

    def test_a_new_process_publishes_what_this_one_staged(self, site: Site) -> None:
        """F11: the bucket is in memory, so the other process is another store on it."""
        prepare = staged(site, 1, [1, 2])
        before = site.staged(prepare, prepare.files[0])
        _publish(site, entries.encode(prepare), prepare.version)
        assert site.target(prepare.files[0]) == before


class TestObject(ObjectContract):
    @pytest.fixture
    def opened(self) -> Opened:
        return partial(ObjectStore, Objects())

    @pytest.fixture
    def root(self) -> str:
        return "/bucket/table"
