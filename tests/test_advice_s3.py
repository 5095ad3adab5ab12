"""What errors about paths and options of S3 advise, done word for word against a server: every row is there once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import txsink
from advice import advised
from s3_servers import Server
from txsink.store.s3.store import S3Store

ROW = {"id": [1]}


@pytest.fixture
def server(s3_server: Callable[[str], Server]) -> Server:
    return s3_server("moto")


def write(path: str, server: Server, **more: Any) -> None:
    txsink.write(path, ROW, writer="w", epoch=1, storage_options={**server.storage_options, **more})


def check(path: str, server: Server) -> None:
    write(path, server)
    found = txsink.open_table(path, storage_options=server.storage_options)
    assert found.to_arrow()["id"].to_pylist() == [1]


def test_a_path_of_s3_is_spelled_as_the_message_says(server: Server) -> None:
    bucket = server.make_bucket()
    with advised("store.s3.store.resolve", "Give s3://bucket/path"):
        write("s3:///t", server)
    with advised("store.s3.store.resolve", "Give s3://bucket/path, spelled as the keys are"):
        write(f"s3://{bucket}/a/../t", server)
    with advised("store.opening._scheme", "Give credentials in storage_options, a profile or the environment"):
        write(f"s3://key:secret@{bucket}/t", server)
    with advised("store.s3.store.resolve", "Give credentials by storage_options, a profile or the environment"):
        write(f"s3://key@{bucket}/t", server)
    check(f"s3://{bucket}/t", server)


def test_options_of_s3_are_those_that_the_message_names(server: Server) -> None:
    path = f"s3://{server.make_bucket()}/t"
    with advised("store.s3.store._part_bytes", "Give a number of bytes from {} to {}"):
        write(path, server, part_bytes=5)
    with advised("store.s3.calls._deadline", "Give a number of seconds, at most {}"):
        write(path, server, deadline_seconds=0)
    with advised("store.s3.calls._client", "Fix storage_options: s3fs.S3FileSystem takes the same"):
        write(path, server, zzzzz=1)
    write(path, server, part_bytes=8 << 20, deadline_seconds=30)
    check(path, server)


def test_what_a_store_refuses_is_given_as_the_message_says(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = server.make_bucket()
    with advised("store.s3.calls._error", "Create the bucket, or name another"):
        write("s3://no-such-bucket-is-here/t", server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    bare = {name: value for name, value in server.storage_options.items() if name not in {"key", "secret", "token"}}
    with advised("store.s3.calls._error", "Open it again with valid credentials, by storage_options, a profile"):
        txsink.write(f"s3://{bucket}/t", ROW, writer="w", epoch=1, storage_options=bare)
    check(f"s3://{bucket}/t", server)


def test_a_store_that_does_what_it_never_should_is_what_is_to_be_reported(server: Server) -> None:
    path = f"s3://{server.make_bucket()}/t"
    check(path, server)
    store = S3Store(path, dict(server.storage_options))
    with advised("store.s3.store.__reduce__", "Report it: stores are opened where used"):
        pickle.dumps(store)
    with advised("store.s3.store.move", "Report it: traits.moves says so"):
        store.move([("a", "b")])
    with advised("store.s3.store.adopt", "Report it: traits.moves says so"):
        store.adopt("a", "b")
    assert not store.traits.moves
    check(path, server)  # nothing was changed
