"""Which store serves a URI; what is refused, why, and what to do then."""

from __future__ import annotations

import sys

import pytest

from txsink.errors import InvalidRequestError
from txsink.store.local.store import LocalStore
from txsink.store.memory import MemoryStore
from txsink.store.opening import open_store
from txsink.store.protocol import StorageOptions


def refusal(uri: str, options: object = None) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        open_store(uri, options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("uri", ["/t", "t", "file:///t", "a:b/c", "xy:/z", ""])
def test_a_path_and_a_file_uri_are_local(uri: str) -> None:
    assert isinstance(open_store(uri), LocalStore)
    assert isinstance(open_store(uri, {}), LocalStore)


def test_memory_is_served() -> None:
    assert isinstance(open_store("memory://t"), MemoryStore)


@pytest.mark.parametrize(
    "uri",
    ["http://h/t", "https://h/t", "ftp://h/t", "gopher://h/t", "simplecache::ftp://h/t", "gs://b/t", "abfs://c@a/t"],
)
def test_what_no_store_serves_is_refused_with_the_reason_and_with_what_there_is(uri: str) -> None:
    error = refusal(uri)
    assert "nobody has proved it" in error.found
    assert "a local path or file://, hdfs://, s3:// (s3a://), memory://" in error.advice
    assert error.context == {"scheme": uri.partition("://")[0]}


@pytest.mark.parametrize("scheme", ["gs", "gcs", "az", "azure", "abfs", "abfss", "adl"])
def test_of_stores_that_deltalake_serves_it_is_said_that_txsink_does_not(scheme: str) -> None:
    assert refusal(f"{scheme}://b/t").advice.endswith(f"; {scheme}:// is not served yet, in either layout")


@pytest.mark.parametrize("scheme", ["http", "ftp", "webhdfs", "gopher"])
def test_elsewhere_it_is_not_named(scheme: str) -> None:
    assert "layout" not in refusal(f"{scheme}://b/t").advice


@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        ("S3", "s3"),
        ("s3n", "s3"),
        ("HDFS", "hdfs"),
        ("webhdfs", "hdfs"),
        ("hdsf", "hdfs"),
        ("File", "file"),
        ("flie", "file"),
        ("memroy", "memory"),
    ],
)
def test_a_misspelt_scheme_gets_a_suggestion(scheme: str, meant: str) -> None:
    assert refusal(f"{scheme}://b/t").advice.startswith(f"Did you mean {meant!r}? Else use a local path")


@pytest.mark.parametrize("scheme", ["http", "gopher", "gs", "abfs", "x"])
def test_another_scheme_gets_none(scheme: str) -> None:
    assert "Did you mean" not in refusal(f"{scheme}://b/t").advice


@pytest.mark.parametrize("scheme", ["s3", "hdfs", "memory", "gs"])
def test_a_uri_that_lost_a_slash_is_no_local_path(scheme: str) -> None:
    assert refusal(f"{scheme}:/b/t").advice == f"Write {scheme}://"


@pytest.mark.parametrize(
    ("uri", "extra", "client"),
    [
        ("s3://bucket/t", "s3", "s3fs"),
        ("s3a://bucket/t", "s3", "s3fs"),
        ("hdfs://host:8020/t", "hdfs", "hdfs_native"),
        ("viewfs://cluster/t", "hdfs", "hdfs_native"),
        ("memory://t", "memory", "fsspec"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    uri: str, extra: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((f"{client}.", f"txsink.store.{extra}"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, client, None)
    error = refusal(uri)
    assert error.found.endswith("is missing")
    assert error.advice == f"Install it: pip install 'txsink[{extra}]'"


def test_a_client_that_is_broken_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "txsink.store.memory")
    monkeypatch.delattr("fsspec.implementations.memory.MemoryFileSystem")
    assert "cannot import name 'MemoryFileSystem'" in refusal("memory://t").found


@pytest.mark.parametrize("options", [5, "canary", ["canary"], {1: "canary"}, {("canary",): 1}])
def test_options_of_the_wrong_type_are_refused_and_not_quoted(options: object) -> None:
    error = refusal("memory://t", options)
    assert "storage_options" in error.found
    assert "canary" not in str(error)


@pytest.mark.parametrize("uri", ["/t", "memory://t"])
def test_options_that_a_store_has_no_use_for_are_refused_by_name(uri: str) -> None:
    error = refusal(uri, {"key": "canary", "a": 1})
    assert "takes no storage options, got ['a', 'key']" in error.found
    assert "canary" not in str(error)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://id:canary@bucket/t",
        "s3://id:cana/ry@bucket/t",
        "s3://:canary@bucket",
        "ftp://me:canary@host:21/t",
        "hdfs://me:8020canary@host/t",
        "gopher://me:canary@host/t",
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_quoted(uri: str) -> None:
    error = refusal(uri)
    assert error.found == "it seems to hold a user and a password"
    assert "cana" not in str(error)


@pytest.mark.parametrize("uri", ["file:///a:b/c@d", "/a:b@c", "memory://a/b:c@d", "memory://lake@home", "gs://b/x:y@z"])
def test_other_colons_and_ats_are_no_password(uri: str) -> None:
    if uri.startswith("gs://"):
        assert "nobody has proved it" in refusal(uri).found
    else:
        open_store(uri)


def test_a_port_is_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "txsink.store.hdfs.store", None)
    assert "password" not in str(refusal("hdfs://host:8020/t@home"))


def test_a_store_gets_the_options_as_a_plain_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Module:
        def S3Store(self, uri: str, options: dict[str, object]) -> object:  # noqa: N802
            given.append((uri, options))
            return self

    monkeypatch.setitem(sys.modules, "txsink.store.s3.store", Module())
    options = StorageOptions(key="canary")
    open_store("s3a://b/t", options)
    assert given == [("s3a://b/t", {"key": "canary"})]
    assert type(given[0][1]) is dict
    given[0][1].clear()
    assert dict(options) == {"key": "canary"}
