"""What errors about paths and options of S3 advise, done word for word against a server: every row is there once."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import txsink
from advice import advised
from s3_proxy import Fault, Proxy, Request, lose_request, proxied, refuse
from s3_servers import Server
from txsink.choices import Layout, Mode
from txsink.cli import main as cli
from txsink.store.s3.calls import Calls, Failure
from txsink.store.s3.store import S3Store

ROW = {"id": [1]}


@pytest.fixture
def server(s3_server: Callable[[str], Server]) -> Server:
    return s3_server("moto")


def write(path: str, server: Server, layout: Layout | None = None, **more: Any) -> None:
    options = {**server.storage_options, **more}
    txsink.write(path, ROW, writer="w", epoch=1, layout=layout, storage_options=options)


def ids(path: str, server: Server) -> list[int]:
    found = txsink.open_table(path, storage_options=server.storage_options)
    return sorted(found.to_arrow()["id"].to_pylist())


def check(path: str, server: Server, **more: Any) -> None:
    write(path, server, **more)
    assert ids(path, server) == [1]


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


# -- what a store refuses, until the advised thing is done ---------------------------------------------------


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as running:
        yield running


def is_of(*operations: str) -> Callable[[Request], bool]:
    return lambda request: request.operation in operations


def is_entry(request: Request) -> bool:
    return request.method == "PUT" and "/log/" in request.path


GRANT = "Grant s3:GetObject"
WRITES = ("CreateMultipartUpload", "UploadPart", "PutObject")
DENIED, SKEWED, FULL = (403, "AccessDenied"), (403, "RequestTimeTooSkewed"), (403, "QuotaExceeded")


def refusals(operations: tuple[str, ...]) -> list[Any]:
    """What each of these operations is refused with until the advised thing is done."""
    found: list[Any] = []
    for operation in operations:
        found += [
            (advised("store.s3.calls._error", "Grant s3:GetObject, PutObject"), DENIED, operation),
            (advised("store.s3.calls._error", "Set the clock, then retry"), SKEWED, operation),
            (advised("store.s3.calls._error", "Retry when the store answers again"), (503, "SlowDown"), operation),
            (
                advised("store.s3.calls._error", "Retry when the store answers again"),
                (429, "TooManyRequests"),
                operation,
            ),
        ]
        if operation != "GetObject":
            found += [(advised("store.s3.calls._error", "Make room, then retry"), FULL, operation)]
        else:
            archived = (403, "InvalidObjectState")
            found += [(advised("store.s3.calls._error", "Restore it, then retry"), archived, operation)]
    return found


@pytest.mark.parametrize(("block", "says", "operation"), refusals(WRITES), ids=lambda value: str(value)[:40])
def test_what_a_store_refuses_to_write_is_written_again_once_it_is_done(
    proxy: Proxy, server: Server, block: Any, says: tuple[int, str], operation: str
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    options = {**proxy.storage_options, "deadline_seconds": 0.5}
    with txsink.open_writer(path, "w", layout="parquet", storage_options=options) as sink:
        txn = sink.begin(1)
        proxy.plan(refuse(1, is_of(operation), times=0, says=says))
        with block as caught:
            txn.write(ROW)
            txn.commit()
        proxy.plan()
        if "Begin" in caught.value.advice:
            txn = sink.begin(1)
            txn.write(ROW)
        txn.commit()
    assert ids(path, server) == [1]


@pytest.mark.parametrize(
    ("act", "block", "says"),
    [(act, *row[:2]) for act in ("open", "read") for row in refusals(("GetObject",))],
    ids=lambda value: str(value)[:40],
)
def test_what_a_store_refuses_to_read_is_read_again_once_it_is_done(
    proxy: Proxy, server: Server, act: str, block: Any, says: tuple[int, str]
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    options = {**proxy.storage_options, "deadline_seconds": 0.5}
    write(path, server, layout="parquet")
    table = txsink.open_table(path, storage_options=options)
    proxy.plan(refuse(1, is_of("GetObject"), times=0, says=says))
    with block:
        if act == "read":
            table.to_arrow()
        else:
            txsink.open_writer(path, "w", storage_options=options)
    proxy.plan()
    if act == "read":
        assert table.to_arrow()["id"].to_pylist() == [1]
    else:
        txsink.open_writer(path, "w", storage_options=options).close()
    assert ids(path, server) == [1]


# Which right of AWS each request needs.
RIGHTS = {
    "GetObject": "GetObject",
    "HeadObject": "GetObject",
    **dict.fromkeys((*WRITES, "CompleteMultipartUpload"), "PutObject"),
    "DeleteObject": "DeleteObject",
    "AbortMultipartUpload": "AbortMultipartUpload",
    "ListParts": "ListMultipartUploadParts",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
}


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_the_rights_that_the_message_names_are_all_that_a_table_needs(
    proxy: Proxy, server: Server, layout: Layout
) -> None:
    """From an account without any: what the error names is granted, and nothing else."""
    path, granted = f"s3://{server.make_bucket()}/t", set[str]()
    options = {**proxy.storage_options, "deadline_seconds": 20}
    proxy.plan(refuse(1, lambda request: RIGHTS.get(request.operation) not in granted, times=0))
    with advised(
        "store.s3.calls._error", "Grant s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload"
    ) as caught:
        txsink.write(path, ROW, writer="w", epoch=1, layout=layout, storage_options=options)
    granted |= {right for right in RIGHTS.values() if re.search(rf"\b{right}\b", caught.value.advice)}
    with txsink.open_writer(path, "w", layout=layout, storage_options=options) as sink:
        epochs: list[tuple[int, Mode]] = [(1, "append"), (2, "overwrite"), (3, "append")]
        for epoch, mode in epochs:
            with sink.begin(epoch, mode=mode) as txn:
                txn.write({"id": [epoch]})
        txn = sink.begin(4)
        txn.add(txn.stager().stage({"id": [4]}))
        txn.prepare()
        sink.abort(4)
        sink.begin(5).stager().stage({"id": [5]})
    with txsink.open_writer(path, "w", storage_options=options) as sink:
        sink.sweep()
    found = txsink.open_table(path, storage_options=options)
    assert (sorted(found.to_arrow()["id"].to_pylist()), found.verify(deep=True)) == ([2, 3], [])
    served = {RIGHTS[request.operation] for request in proxy.requests if not request.fault}
    assert served == granted if layout == "parquet" else served < granted


# -- what a store never takes, given as the message says ------------------------------------------------------


def never(says: tuple[int, str], where: Callable[[Request], bool]) -> Fault:
    return refuse(1, where, times=0, says=says)


def is_large(request: Request) -> bool:
    return request.operation in WRITES and int(request.headers.get("content-length", 0)) > LARGE_BYTES


def is_plain(request: Request) -> bool:
    return request.operation in {"PutObject", "CreateMultipartUpload"} and ENCRYPTION not in request.headers


LONG = "long" * 40
LARGE_BYTES, ENCRYPTION = 40_000, "x-amz-server-side-encryption"
MANY = {"id": sorted(random.Random(1).sample(range(1 << 62), 20_000))}  # they do not compress below 100 kB


def never_taken() -> list[Any]:
    """The advice, what is refused and how, and what makes the call right."""
    return [
        (
            advised(
                "store.s3.calls._error", "Give the bucket's region: storage_options={'client_kwargs': {'region_name'"
            ),
            never((400, "AuthorizationHeaderMalformed"), lambda request: request.region != "eu-west-3"),
            {"storage_options": {"client_kwargs": {"region_name": "eu-west-3"}}},
        ),
        (
            advised(
                "store.s3.calls._error", "Look at the bucket's object lock, encryption and checksum rules and at s3_"
            ),
            never((400, "InvalidRequest"), is_plain),
            {"storage_options": {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}},
        ),
        (
            advised("store.s3.calls._error", "Name a shorter path"),
            never((400, "KeyTooLongError"), lambda request: len(request.path) > 250),
            {"below": "short"},
        ),
        (
            advised("store.s3.calls._error", "Name another path"),
            never((409, "ObjectParentIsFile"), lambda request: LONG in request.path),
            {"below": "short"},
        ),
        (
            advised("store.s3.calls._error", "Write smaller files (target_file_bytes)"),
            never((400, "EntityTooLarge"), is_large),
            {"target_file_bytes": 10_000},
        ),
        (
            advised("store.s3.calls._error", "Use a store with conditional writes, such as AWS S3 or MinIO"),
            never((501, "NotImplemented"), lambda request: "if-none-match" in request.headers),
            {"storage_options": {"endpoint_url": None}},
        ),
        (
            advised("store.s3.calls._error", "Look at storage_options (endpoint_url) and the path"),
            never((404, "NotFound"), lambda request: True),
            {"storage_options": {"endpoint_url": None}},
        ),
        (
            advised("store.s3.calls._error", "Look at storage_options and the path"),
            None,
            {"storage_options": {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}},
        ),
    ]


@pytest.mark.parametrize(
    ("layout", "case"),
    # deltalake's client has its own ways to a region and to encryption.
    [*(("parquet", case) for case in never_taken()), *(("delta", case) for case in never_taken()[:2])],
)
def test_what_a_store_never_takes_is_given_as_the_message_says(
    proxy: Proxy, server: Server, layout: Layout, case: tuple[Any, Fault | None, dict[str, Any]]
) -> None:
    block, fault, right = case
    bucket = server.make_bucket()
    options = {**proxy.storage_options, **({} if fault else {"s3_additional_kwargs": {"ServerSideEncryption": 5}})}
    given: dict[str, Any] = {"writer": "w", "epoch": 1, "layout": layout}
    proxy.plan(*([fault] if fault else []))
    with block:
        txsink.write(f"s3://{bucket}/{LONG}/t", MANY, storage_options=options, **given)
    below = right.pop("below", LONG)
    options |= right.pop("storage_options", {})
    options["endpoint_url"] = options["endpoint_url"] or server.endpoint
    txsink.write(f"s3://{bucket}/{below}/t", MANY, storage_options=options, **given, **right)
    assert ids(f"s3://{bucket}/{below}/t", server) == MANY["id"]


# -- answers that are lost, or make no sense ------------------------------------------------------------------


def test_a_publish_whose_requests_are_lost_is_finished_by_the_writer_that_is_opened_again(
    proxy: Proxy, server: Server
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    options = {**proxy.storage_options, "deadline_seconds": 1}
    sink = txsink.open_writer(path, "w", layout="parquet", storage_options=options)
    txn = sink.begin(1)
    txn.write(ROW)
    txn.prepare()
    proxy.plan(lose_request(1, is_of("CompleteMultipartUpload"), times=0))
    with advised("store.s3.calls._error", "Open the writer again: it recovers"):
        txn.commit()
    sink.close()
    proxy.plan()
    txsink.open_writer(path, "w", storage_options=options).close()
    assert ids(path, server) == [1]


@pytest.mark.parametrize("does", ["retry", "abort"])
def test_an_upload_that_the_store_does_not_complete_is_tried_again_or_its_epoch_dropped(
    proxy: Proxy, server: Server, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    options = {**proxy.storage_options, "deadline_seconds": 2}
    with txsink.open_writer(path, "w", layout="parquet", storage_options=options) as sink:
        txn = sink.begin(1)
        txn.write(ROW)
        proxy.plan(refuse(1, is_of("CompleteMultipartUpload"), times=0, says=(412, "PreconditionFailed")))
        with advised("publish.multipart._look", "Retry. If it stays so, the store has lost the upload: drop the epoch"):
            txn.commit()
        if does == "retry":
            proxy.plan()
            txn.commit()
    if does == "abort":
        for name, value in (
            ("ACCESS_KEY_ID", "key"),
            ("SECRET_ACCESS_KEY", "secret"),
            ("ENDPOINT_URL", "endpoint_url"),
        ):
            monkeypatch.setenv(f"AWS_{name}", proxy.storage_options[value])
        assert cli.main(["abort", path, "w", "1", "--yes"]) == 0
        txsink.write(path, ROW, writer="w", epoch=2, storage_options=server.storage_options)
    assert ids(path, server) == [1]


def test_a_listing_that_never_ends_is_read_when_the_store_answers_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    check(path, server, layout="parquet")
    once = Calls.once

    def endless(calls: Calls, method: str, *rest: Any) -> Any:
        found: Any = once(calls, method, *rest)
        return {**found, "IsTruncated": True} if method.startswith("list") else found

    with txsink.open_writer(path, "w", storage_options=server.storage_options) as sink:
        with monkeypatch.context() as broken, advised("store.s3.calls.pages", "Retry when the store answers again"):
            broken.setattr(Calls, "once", endless)
            sink.sweep()
        assert sink.sweep() == []
    assert ids(path, server) == [1]


def test_an_object_that_the_store_did_not_make_of_its_upload_is_written_again(proxy: Proxy, server: Server) -> None:
    """Somebody dropped the upload: a rule of the bucket, say."""
    path = f"s3://{server.make_bucket()}/t"
    options = {**proxy.storage_options, "deadline_seconds": 1}
    rows = {"id": [1], "text": [random.Random(1).randbytes(9 << 20)]}
    with txsink.open_writer(path, "w", layout="delta", storage_options=options) as sink:
        proxy.plan(refuse(1, is_of("CompleteMultipartUpload"), says=(404, "NoSuchUpload")))
        with advised("store.s3.store._complete", "Write the epoch again"):
            sink.begin(1).stager().stage(rows)
        with sink.begin(1) as again:
            again.write(rows)
    assert ids(path, server) == [1]


def test_an_answer_that_no_store_gives_is_what_is_to_be_reported(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"s3://{server.make_bucket()}/t"
    check(path, server)
    store = S3Store(path, dict(server.storage_options))
    with monkeypatch.context() as broken, advised("store.s3.store._told", "Report it"):
        broken.setattr(Calls, "ask", lambda *given, **named: Failure(404, "NoSuchKey"))
        store.replace(f"{store.resolve(path)}/f", b"1", "t")
    assert ids(path, server) == [1]  # nothing was changed
