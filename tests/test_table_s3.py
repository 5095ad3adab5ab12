"""The parquet layout on S3, end to end: the contracts of publish and log, a table's whole life, and what it costs.

`moto` and `ministack` run with every `make test`; versitygw and MinIO, which take minutes to build, with the mark
`stores`. Faults and kills stand in test_faults_s3.py.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import ClassVar, cast

import pytest

from contract_log import LogContract, LogRaces, Opened
from contract_publish import PublishContract
from s3_servers import Server, parameters
from txsink.store import Uploads, open_store
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
def opened_once(options: str, who: int) -> Uploads:
    """To open a store anew for every test takes longer than the tests."""
    return cast("Uploads", open_store("s3://any-bucket", json.loads(options)))


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
