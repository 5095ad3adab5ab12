"""The S3 store: the contract on four servers, its requests, and what it makes of every answer and of none."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import multiprocessing
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from botocore.exceptions import CredentialRetrievalError

from contract_store import MIB, StoreRaces, UploadContract, contents, pending, race, stage
from s3_servers import Server, parameters, started
from txsink.errors import (
    InternalError,
    InvalidRequestError,
    OutcomeUnknownError,
    TxsinkError,
    UnavailableError,
)
from txsink.records import Upload
from txsink.store.opening import open_store
from txsink.store.protocol import Store, Traits
from txsink.store.s3.store import S3Store

PART_BYTES = 8 * MIB
COUNT = itertools.count(1)
ATOMIC = ("ministack", "versitygw", "minio")


BUCKETS: dict[str, str] = {}


@functools.cache
def opened_once(endpoint: str, who: str, options: str) -> S3Store:
    return cast("S3Store", open_store("s3://any-bucket", json.loads(options)))


def on(server: Server, who: str = "one") -> S3Store:
    """A store of that server; `who` else has it as another process would."""
    # moto fails on an upload that is gone, for as long as it is asked.
    options = {**server.storage_options, **({"deadline_seconds": 5} if server.name == "moto" else {})}
    return opened_once(server.endpoint, who, json.dumps(options))


def place(server: Server) -> str:
    """A directory that nobody has used."""
    if server.endpoint not in BUCKETS:
        BUCKETS[server.endpoint] = server.make_bucket()
    return f"/{BUCKETS[server.endpoint]}/{next(COUNT)}/a table"


# -- the contract -------------------------------------------------------------------------------------------


@pytest.fixture
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def store(server: Server) -> Store:
    return on(server)


@pytest.fixture
def root(server: Server) -> str:
    return place(server)


@pytest.mark.parametrize("server", parameters(), indirect=True)
class TestOnAServer(UploadContract):
    @pytest.fixture
    def store(self, server: Server) -> Store:
        return on(server)

    @pytest.fixture
    def other(self, server: Server) -> Store:
        return on(server, "other")

    @pytest.fixture
    def root(self, server: Server) -> str:
        return place(server)


@pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)
class TestRaces(StoreRaces):
    @pytest.fixture
    def opened(self, server: Server) -> Callable[[], Store]:
        return functools.partial(open_store, "s3://any-bucket", server.storage_options)

    @pytest.fixture
    def root(self, server: Server) -> str:
        return place(server)


@pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)
def test_of_many_uploads_completed_to_one_name_at_once_one_wins(server: Server, root: str) -> None:
    """F14."""
    store = on(server)
    for name in "abcd":
        uploads = [pending(store, f"{root}/{name}", f"{who}".encode()) for who in range(8)]
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(functools.partial(store.complete, f"{root}/{name}"), uploads))
        assert made.count(True) == 1
        assert store.read(f"{root}/{name}", 9) == f"{made.index(True)}".encode()


@pytest.mark.parametrize("server", parameters("ministack"), indirect=True)
def test_an_object_and_a_directory_may_have_one_name(store: Store, root: str) -> None:
    for name in ("a/b", "a", "a/b/c"):
        assert store.put_if_absent(f"{root}/{name}", name.encode(), "x") is True
    assert contents(store, root) == {"a": b"a", "a/b": b"a/b", "a/b/c": b"a/b/c"}


@pytest.mark.stores
@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
def test_a_store_that_cannot_hold_both_names_says_so(store: Store, root: str) -> None:
    store.put_if_absent(f"{root}/a/b", b"", "x")
    with pytest.raises(InvalidRequestError, match="this store cannot hold both"):
        store.put_if_absent(f"{root}/a", b"", "x")


@pytest.mark.parametrize("server", parameters(*ATOMIC), indirect=True)
def test_markers_of_directories_are_no_files(server: Server, store: Store, root: str) -> None:
    bucket, _, key = root[1:].partition("/")
    client = cast("S3Store", store)._calls._client
    client.call_s3("put_object", Bucket=bucket, Key=f"{key}/d/", Body=b"")
    stage(store, f"{root}/d/f", b"1")
    assert store.list(root) == ["d/f"]


@pytest.mark.parametrize("server", parameters("ministack"), indirect=True)
def test_listings_of_many_pages_are_read_to_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = on(server), place(server)
    names = [f"{number:03}" for number in range(7)]
    uploads = sorted((name, pending(store, f"{root}/{name}", b"").id) for name in names)
    for name in names:
        store.put_if_absent(f"{root}/{name}", b"", "x")
    shorter = {"list_objects_v2": "MaxKeys", "list_multipart_uploads": "MaxUploads"}
    once = store._calls.once
    pages = []

    def one_page(method: str, keywords: dict[str, Any], *rest: Any) -> Any:
        pages.append(method)
        return once(method, {**keywords, shorter[method]: 3}, *rest)

    monkeypatch.setattr(store._calls, "once", one_page)
    assert store.list(root) == names
    assert store.uploads(root) == uploads
    assert len(pages) == 6


@pytest.mark.parametrize("server", parameters("ministack"), indirect=True)
def test_the_write_id_is_in_the_metadata(store: Store, root: str) -> None:
    store.put_if_absent(f"{root}/f", b"1", "0123abcd")
    bucket, _, key = root[1:].partition("/")
    head = cast("S3Store", store)._calls._client.call_s3("head_object", Bucket=bucket, Key=f"{key}/f")
    assert head["Metadata"] == {"write-id": "0123abcd"}


@pytest.mark.stores
@pytest.mark.parametrize("server", ["versitygw", "minio"], indirect=True)
def test_of_many_large_puts_at_once_one_wins(server: Server) -> None:
    """F21, with bodies that take long enough to overlap."""
    opened = functools.partial(open_store, "s3://any-bucket", server.storage_options)
    winners = race(opened, 16, 40, place(server), 20 * MIB)
    assert sorted(name for won in winners for name in won) == list(range(40))
    assert sum(bool(won) for won in winners) > 1


# -- requests ------------------------------------------------------------------------------------------------


class Requests:
    """The requests of one store, by operation, as its client sends them."""

    def __init__(self, store: S3Store) -> None:
        self.sent: list[str] = []
        store._calls._client.s3.meta.events.register("before-send.s3", self._note)

    def _note(self, event_name: str, **_: object) -> None:
        self.sent.append(event_name.rpartition(".")[2])

    def of(self, act: Callable[[], object]) -> list[str]:
        self.sent.clear()
        act()
        return list(self.sent)


@pytest.mark.parametrize("server", parameters("ministack"), indirect=True)
def test_each_verb_costs_the_requests_it_needs_and_writing_never_lists(server: Server) -> None:
    store = cast("S3Store", open_store("s3://any-bucket", server.storage_options))
    root, requests = place(server), Requests(store)
    at = f"{root}/f"
    for act, sent in (
        (lambda: store.put_if_absent(at, b"1", "x"), ["PutObject"]),
        (lambda: store.put_if_absent(at, b"1", "x"), ["PutObject"]),
        (lambda: store.replace(at, b"1", "x"), ["PutObject"]),
        (lambda: store.put_hint(at, b"1", "x"), ["PutObject"]),
        (lambda: store.read(at, 9), ["GetObject"]),
        (lambda: store.read(f"{root}/none", 9), ["GetObject"]),
        (lambda: store.tail(at, 9), ["GetObject"]),
        (lambda: store.tail(at, 0), ["HeadObject"]),
        (lambda: store.list(root), ["ListObjectsV2"]),
        (lambda: store.uploads(root), ["ListMultipartUploads"]),
        (lambda: store.settle([at]), []),
        (lambda: store.prune(root, root), []),
        (lambda: store.same_place(root, at), []),
        (lambda: store.resolve(root), []),
        (lambda: store.delete(at), ["HeadObject", "DeleteObject"]),
        (lambda: store.delete(at), ["HeadObject"]),
        (lambda: store.create(at).discard(), []),
        (lambda: pending(store, at, b"1"), ["CreateMultipartUpload", "UploadPart"]),
        (
            lambda: stage(store, at, b"1"),
            ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"],
        ),
        (lambda: stage(store, f"{at}2", b""), ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"]),
        (lambda: pending(store, at, bytes(PART_BYTES)), ["CreateMultipartUpload", "UploadPart"]),
        (lambda: pending(store, at, bytes(PART_BYTES + 1)), ["CreateMultipartUpload", "UploadPart", "UploadPart"]),
        (lambda: store.cancel(at, "none"), ["ListParts"]),
        (lambda: store.parts(at, "none"), ["ListParts"]),
    ):
        assert requests.of(cast("Callable[[], object]", act)) == sent


def test_parts_grow_so_that_ten_thousand_of_them_hold_the_largest_object(s3_server: Callable[[str], Server]) -> None:
    for part_bytes in (PART_BYTES, 64 * MIB):
        options = {**s3_server("moto").storage_options, "part_bytes": part_bytes}
        output: Any = open_store("s3://any-bucket", options).create("/b/f")
        sizes = []
        for number in range(10_000):
            output._tags = range(number)
            sizes.append(output._size())
        assert sizes[0] == part_bytes
        assert sum(sizes) >= 5 << 40
        assert max(sizes) <= 5 << 30
        assert all(
            size <= 64 * MIB
            for size, total in zip(sizes, itertools.accumulate(sizes), strict=True)
            if total < 100 << 30
        )


MEMORY = """
import resource, sys
from txsink.store.opening import open_store
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
store = open_store("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": sys.argv[1]})
output = store.create("/bucket/warm")
output.seal()
idle = peak()
output = store.create("/bucket/f")
block = bytes(1 << 20)
for _ in range(int(sys.argv[2])):
    output.write(block)
upload = output.seal()
print(len(upload.parts), peak() - idle)
"""


def test_memory_is_bounded_by_the_parts_and_not_by_the_file() -> None:
    with Canned() as canned:
        command = [sys.executable, "-c", MEMORY, canned.endpoint, "1024"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    parts, grown_mib = done.stdout.split()
    assert int(parts) == 128
    assert float(grown_mib) < 100


# -- answers ---------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """What the server says; without a status it closes the connection. It may promise more bytes than it sends."""

    status: int | None = 200
    code: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 -- never changed
    body: bytes | None = None
    promised_bytes: int = 0
    closes: bool = False


DROPPED = Reply(None)
CREATED = Reply(200, headers={"ETag": '"e"'})
UPLOAD = Reply(200, body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
COMPLETED = Reply(200, body=b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
PARTS = Reply(200, body=b"<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>")


class Request(NamedTuple):
    """What the server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    bytes: int


class Canned:
    """A server that says what it is told: the replies in their order, the last one for ever."""

    def __init__(self, *replies: Reply) -> None:
        self.asked: list[Request] = []
        self._replies = list(replies)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Canned:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, deadline_seconds: float = 1.5, **options: object) -> S3Store:
        given = {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint, "deadline_seconds": deadline_seconds}
        return cast("S3Store", open_store("s3://bucket", {**given, **options}))

    def reply(self, request: Request) -> Reply:
        if not self._replies:  # a store that takes everything
            return UPLOAD if request.method == "POST" else CREATED
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    def _handler(canned) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                room = int(self.headers.get("Content-Length") or 0)
                size = room
                while room:
                    room -= len(self.rfile.read(min(room, MIB)))
                request = Request(self.command, self.path, dict(self.headers), size)
                canned.asked.append(request)
                reply = canned.reply(request)
                if reply.status is None:
                    self.close_connection = True
                    return
                body = reply.body
                if body is None:
                    text = f"<Error><Code>{reply.code}</Code><Message>{SERVER_SAYS}</Message></Error>"
                    body = text.encode() if reply.code else b""
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(max(len(body), reply.promised_bytes)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
                self.close_connection = self.close_connection or reply.closes

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        return Handler


KEY, SECRET, TOKEN = "canary-key", "canary-secret", "canary-token"
SERVER_SAYS = f"You sent {KEY}, {SECRET} and {TOKEN}"
SLOW_DOWN, FAILED, DENIED = Reply(503, "SlowDown"), Reply(500, "InternalError"), Reply(403, "AccessDenied")
TAKEN, GONE, BUSY = (
    Reply(412, "PreconditionFailed"),
    Reply(404, "NoSuchUpload"),
    Reply(409, "ConditionalRequestConflict"),
)


def put(store: S3Store) -> bool | None:
    return store.put_if_absent("/bucket/f", b"data", "token")


def complete(store: S3Store) -> bool:
    return store.complete("/bucket/f", Upload("u", ("e",)))


# The second attempt comes within the first of these, but on a machine that is busy with something else.
DEADLINES = (1.5, 6, 24)


@pytest.mark.parametrize("unclear", [FAILED, Reply(502), Reply(503, "ServiceUnavailable"), Reply(504), BUSY, DROPPED])
def test_a_put_without_a_clear_answer_is_sent_again_until_there_is_one(unclear: Reply) -> None:
    """F22."""
    for last, outcome in ((CREATED, True), (TAKEN, False)):
        # A dropped connection is tried again by the HTTP client itself, once each time.
        with Canned(unclear, unclear, last) as canned:
            assert put(canned.store(deadline_seconds=30)) is outcome
            assert {(request.method, request.headers["If-None-Match"]) for request in canned.asked} == {("PUT", "*")}
            assert {request.headers["x-amz-meta-write-id"] for request in canned.asked} == {"token"}
            assert len(canned.asked) == 3
    for seconds in DEADLINES:
        with Canned(unclear) as canned:
            assert put(canned.store(seconds)) is None
        if len(canned.asked) > 1:
            return
    pytest.fail("asked once, however long there was time")


def test_a_put_that_was_turned_away_each_time_has_changed_nothing() -> None:
    for seconds in DEADLINES:
        with Canned(SLOW_DOWN) as canned, pytest.raises(UnavailableError, match="the store is throttling") as caught:
            put(canned.store(seconds))
        if len(canned.asked) > 1:
            break
    assert caught.value.context["attempts"] == len(canned.asked) > 1
    assert f"{len(canned.asked)} attempts within {seconds:g} s" in str(caught.value)
    with Canned(SLOW_DOWN, CREATED) as canned:
        assert put(canned.store(deadline_seconds=30)) is True


def test_a_refusal_after_an_unclear_answer_proves_nothing() -> None:
    """I11."""
    for act in (put, complete, lambda store: store.replace("/bucket/f", b"", "token")):
        for refusal in (DENIED, Reply(404, "NoSuchBucket"), Reply(400, "ExpiredToken")):
            with Canned(FAILED, refusal) as canned, pytest.raises(OutcomeUnknownError, match="it may have been done"):
                act(canned.store(deadline_seconds=30))
        with Canned(FAILED, SLOW_DOWN) as canned:
            if act is put:
                assert put(canned.store()) is None
            else:
                with pytest.raises(OutcomeUnknownError, match=r"the store is throttling .* Open the writer again"):
                    act(canned.store())


def test_no_server_at_all_is_no_proof_that_a_put_did_not_land() -> None:
    """The HTTP client repeats a PUT by itself: what is refused now may have landed before."""
    with Canned() as canned:
        store = canned.store()
    assert put(store) is None
    with pytest.raises(UnavailableError, match=rf"did not answer \(EndpointConnectionError, .*{canned.endpoint}\)"):
        store.read("/bucket/f", 9)


def test_a_server_that_never_answers_is_given_up_at_the_deadline() -> None:
    hangs = threading.Event()

    class Hanging(Canned):
        def reply(self, request: Request) -> Reply:
            hangs.wait(300)
            return DROPPED

    for seconds in (0.3, 3, 30):  # to be asked in time by a busy machine
        with Hanging() as canned:
            # Had it waited longer than its deadline, it would be the client's time-out that is told.
            store = canned.store(seconds, config_kwargs={"read_timeout": 4 * seconds})
            assert put(store) is None
            with pytest.raises(
                UnavailableError, match=rf"did not answer .*FSTimeoutError, 1 attempt within {seconds:g} s"
            ):
                store.read("/bucket/f", 9)
            hangs.set()
        if len(canned.asked) == 2:
            return
        hangs.clear()
    pytest.fail("it was not asked twice, however long there was time")


@pytest.mark.parametrize("unclear", [FAILED, BUSY, DROPPED, Reply(200, "InternalError")])
def test_a_completion_without_a_clear_answer_is_sent_again_and_then_unknown(unclear: Reply) -> None:
    """F22: whatever is said after that is for the caller to look at, a yes too."""
    for last in (COMPLETED, GONE, TAKEN):
        with Canned(unclear, unclear, last) as canned:
            assert complete(canned.store(deadline_seconds=30)) is False
            assert [request.method for request in canned.asked] == ["POST"] * 3
            assert {request.headers["If-None-Match"] for request in canned.asked} == {"*"}

    class Pending(Canned):
        def reply(self, request: Request) -> Reply:
            return PARTS if request.method == "GET" else unclear

    with Pending() as canned, pytest.raises(OutcomeUnknownError, match="publish s3://bucket/f: it may have been done"):
        complete(canned.store())


def test_a_completion_that_fails_for_ever_on_an_upload_that_is_gone_is_not_unknown() -> None:
    class Gone(Canned):
        def reply(self, request: Request) -> Reply:
            return GONE if request.method == "GET" else FAILED

    with Gone() as canned:
        assert complete(canned.store()) is False


@pytest.mark.parametrize("refusal", [GONE, TAKEN, Reply(400, "InvalidPart"), Reply(400, "InvalidPartOrder")])
def test_a_completion_that_is_refused_is_for_the_caller_to_look_at(refusal: Reply) -> None:
    with Canned(refusal) as canned:
        assert complete(canned.store()) is False
        assert len(canned.asked) == 1


REFUSALS: list[tuple[Reply, type[TxsinkError], str]] = [
    (Reply(404, "NoSuchBucket"), InvalidRequestError, "there is no such bucket .* Create the bucket"),
    (
        Reply(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}),
        InvalidRequestError,
        "in another region .*region_name",
    ),
    (Reply(400, "AuthorizationHeaderMalformed"), InvalidRequestError, "in another region .*region_name"),
    (DENIED, UnavailableError, "access is denied .* Grant s3:GetObject"),
    (Reply(403, "InvalidAccessKeyId"), InvalidRequestError, "credentials are not accepted .* valid credentials"),
    (Reply(403, "SignatureDoesNotMatch"), InvalidRequestError, "credentials are not accepted"),
    (Reply(400, "ExpiredToken"), InvalidRequestError, "credentials have expired .* valid credentials"),
    (Reply(403, "RequestTimeTooSkewed"), UnavailableError, "clocks .* Set the clock"),
    (SLOW_DOWN, UnavailableError, "throttling .* deadline_seconds"),
    (Reply(400, "InvalidRequest"), InvalidRequestError, "does not take such a request .* object lock"),
    (Reply(403, "InvalidObjectState"), UnavailableError, "archived"),
    (Reply(403, "QuotaExceeded"), UnavailableError, "Make room"),
    (Reply(400, "KeyTooLongError"), InvalidRequestError, "shorter path"),
    (Reply(400, "EntityTooLarge"), InvalidRequestError, "target_file_bytes"),
    (Reply(501, "NotImplemented"), InvalidRequestError, "cannot do this .* conditional writes"),
    (Reply(405, "MethodNotAllowed"), InvalidRequestError, "cannot do this"),
    (Reply(418, "IAmATeapot"), InvalidRequestError, r"refused it \(418 IAmATeapot, 1 attempt"),
    (Reply(404, body=b"<html>nothing here</html>"), InvalidRequestError, "endpoint_url"),
]


@pytest.mark.parametrize(("refusal", "kind", "words"), REFUSALS, ids=lambda value: getattr(value, "code", None))
def test_each_refusal_says_what_to_do(refusal: Reply, kind: type[TxsinkError], words: str) -> None:
    for act in (put, lambda store: store.read("/bucket/f", 9), lambda store: store.create("/bucket/f").seal()):
        with Canned(refusal) as canned, pytest.raises(kind, match=f"s3://bucket/f: .*{words}") as caught:
            act(canned.store())
        assert type(caught.value) is kind
        assert caught.value.context["status"] == refusal.status
        assert (len(canned.asked) == 1) is (refusal is not SLOW_DOWN and refusal.status != 301)
        check_no_secret(caught.value)


def test_a_refused_head_has_only_a_number_and_is_told_all_the_same() -> None:
    for status, kind, words in (
        (403, UnavailableError, "access is denied"),
        (400, InvalidRequestError, r"refused it \(400, 1 attempt within"),
    ):
        with Canned(Reply(status)) as canned, pytest.raises(kind, match=words):
            canned.store().tail("/bucket/f", 0)


def test_reading_goes_on_after_a_failure_and_in_the_middle_of_a_body() -> None:
    torn = Reply(206, body=b"da", promised_bytes=4, closes=True)
    for failure in (FAILED, DROPPED, SLOW_DOWN, torn):
        with Canned(failure, Reply(206, body=b"data")) as canned:
            assert canned.store(deadline_seconds=30).read("/bucket/f", 9) == b"data"
    with Canned(torn) as canned, pytest.raises(UnavailableError, match="did not answer"):
        canned.store().read("/bucket/f", 9)


def test_a_server_that_knows_no_ranges_is_read_no_further_than_needed() -> None:
    whole = Reply(200, body=bytes(range(100)))
    with Canned(whole) as canned:
        store = canned.store()
        assert store.read("/bucket/f", 3) == bytes(range(4))
        assert store.read("/bucket/f", 1000) == bytes(range(100))
        assert store.tail("/bucket/f", 3) == (100, bytes([97, 98, 99]), "")
        assert [request.headers["Range"] for request in canned.asked] == ["bytes=0-3", "bytes=0-1000", "bytes=-3"]
    with Canned(whole._replace(promised_bytes=1000)) as canned:
        # The other bytes never come; whoever waits for them waits for ever.
        assert canned.store().read("/bucket/f", 3) == bytes(range(4))


def test_a_listing_that_never_ends_is_not_followed() -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    with Canned(Reply(200, body=page)) as canned, pytest.raises(UnavailableError, match="repeats a page"):
        canned.store().list("/bucket/t")


# -- a file being uploaded -----------------------------------------------------------------------------------------


def test_an_upload_that_failed_stays_failed_and_is_dropped() -> None:
    class FailsOnce(Canned):
        def reply(self, request: Request) -> Reply:
            parts = [each for each in self.asked if each.path.endswith("partNumber=1")]
            return DENIED if request.method == "PUT" and len(parts) == 1 else Canned.reply(self, request)

    with FailsOnce() as canned:
        output = canned.store().create("/bucket/f")
        output.write(bytes(PART_BYTES))
        with pytest.raises(UnavailableError, match="write s3://bucket/f: access is denied"):
            output.write(bytes(PART_BYTES))
        for act in (output.seal, lambda: output.write(bytes(PART_BYTES)), output.seal):
            with pytest.raises(UnavailableError, match="access is denied"):
                act()
        output.discard()
        output.discard()
        assert [request.path for request in canned.asked if request.method == "DELETE"] == ["/bucket/f?uploadId=u"]


def test_a_part_is_sent_again_under_its_number_and_a_lost_beginning_begins_again() -> None:
    with Canned(FAILED, UPLOAD, FAILED, CREATED) as canned:
        output = canned.store(deadline_seconds=30).create("/bucket/f")
        output.write(b"data")
        assert output.seal() == Upload("u", ("e",))
        asked = [(request.method, request.path) for request in canned.asked]
    assert asked == [("POST", "/bucket/f?uploads")] * 2 + [("PUT", "/bucket/f?uploadId=u&partNumber=1")] * 2


def test_discarding_asks_once_and_never_raises() -> None:
    class NoDelete(Canned):
        def reply(self, request: Request) -> Reply:
            return FAILED if request.method == "DELETE" else Canned.reply(self, request)

    with NoDelete() as canned:
        output = canned.store().create("/bucket/f")
        output.seal()
        output.discard()
        assert [request.method for request in canned.asked].count("DELETE") == 1


def test_a_discarded_file_waits_for_its_part_before_it_drops_the_upload() -> None:
    class Slow(Canned):
        def reply(self, request: Request) -> Reply:
            if request.method == "PUT":
                slow.wait(30)
            order.append(request.method)
            return Canned.reply(self, request)

    slow, order = threading.Event(), list[str]()
    with Slow() as canned:
        output = canned.store(deadline_seconds=30).create("/bucket/f")
        output.write(bytes(PART_BYTES))
        discards = threading.Thread(target=output.discard)
        discards.start()
        slow.set()
        discards.join(30)
    assert order == ["POST", "PUT", "DELETE"]


# -- options and paths -----------------------------------------------------------------------------------------------


def check_no_secret(error: BaseException) -> None:
    assert error.__cause__ is None
    assert error.__context__ is None
    texts = [str(error), repr(error), *traceback.format_exception(error)]
    for text in [*texts, pickle.dumps(error).decode("latin-1")]:
        assert "canary" not in text


def test_no_credential_is_in_an_error_a_repr_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for reply in (DENIED, SLOW_DOWN, FAILED, DROPPED, Reply(400, KEY), Reply(200, body=SERVER_SAYS.encode())):
        with Canned(reply) as canned:
            store = canned.store(token=TOKEN)
            assert repr(store) == f"S3Store({canned.endpoint})"
            for act in (
                complete,
                lambda store: store.list("/bucket"),
                lambda store: store.replace("/bucket/f", b"", "t"),
            ):
                try:
                    act(store)
                except TxsinkError as error:
                    check_no_secret(error)
    assert "canary" not in caplog.text


def test_a_store_cannot_be_pickled() -> None:
    with Canned() as canned, pytest.raises(InternalError, match="it holds credentials"):
        pickle.dumps(canned.store())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"canary_option": "canary-secret"}, r"refuses canary_option \(TypeError\)"),
        ({"client_kwargs": {"no_such": "canary-secret"}}, r"refuses no_such \(TypeError\)"),
        ({"config_kwargs": {"no_such": "canary-secret"}}, r"refuses no_such \(TypeError\)"),
        ({"config_kwargs": "canary-secret"}, "refuses one of config_kwargs"),
        ({"endpoint_url": "canary-secret"}, r"refuses one of endpoint_url \(ValueError\)"),
        ({"profile": "canary-secret"}, r"refuses one of profile \(ProfileNotFound\)"),
        ({"key": "canary-secret", "username": "canary-secret"}, r"refuses one of key, username \(KeyError\)"),
        ({"deadline_seconds": 0}, "deadline_seconds is no such number"),
        ({"deadline_seconds": True}, "deadline_seconds is no such number"),
        ({"deadline_seconds": "canary-secret"}, "deadline_seconds is no such number"),
        ({"part_bytes": 1}, "part_bytes is no such number"),
        ({"part_bytes": 2.5e7}, "part_bytes is no such number"),
    ],
)
def test_an_option_that_is_refused_is_named_without_its_value(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        open_store("s3://bucket/t", options)
    text = str(caught.value).replace("canary_option", "")
    assert "canary" not in text
    assert caught.value.__context__ is None


def test_the_options_are_those_of_s3fs_and_ours_cannot_be_overruled() -> None:
    with Canned(FAILED) as canned:
        store = canned.store(
            config_kwargs={"retries": {"max_attempts": 9}, "read_timeout": 3},
            use_listings_cache=True,
            asynchronous=True,
        )
        config = store._calls._client.s3.meta.config
        assert (config.read_timeout, config.connect_timeout) == (3, 5)
        store._calls.once("head_object", {"Bucket": "bucket", "Key": "f"}, 30)
        assert len(canned.asked) == 1


def test_the_environment_gives_what_the_options_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile mine]\naws_access_key_id = from-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name, value in (("AWS_ACCESS_KEY_ID", "from-environment"), ("AWS_SECRET_ACCESS_KEY", "s")):
        monkeypatch.setenv(name, value)
    with Canned() as canned:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", canned.endpoint)
        for options, expected in (
            ({}, "from-environment"),
            ({"profile": "mine"}, "from-profile"),
            ({"anon": True}, None),
        ):
            put(cast("S3Store", open_store("s3a://bucket/t", cast("dict[str, object]", options))))
            signed = canned.asked[-1].headers.get("Authorization")
            assert (signed and signed.partition("Credential=")[2].partition("/")[0]) == expected


def test_without_any_credentials_the_choices_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store("s3://bucket/t", {"endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(InvalidRequestError, match=r"no complete credentials .*anon=True"):
        store.read("/bucket/f", 9)


def test_uris_and_paths_are_resolved_to_paths_as_they_are_spelled() -> None:
    """S9, S26."""
    with Canned() as canned:
        store = canned.store()
    for uri, path in (
        ("s3://bucket/a/b", "/bucket/a/b"),
        ("s3a://bucket/a/b/", "/bucket/a/b"),
        ("/bucket/a/b//", "/bucket/a/b"),
        ("s3://bucket", "/bucket"),
        ("s3://bucket/", "/bucket"),
        ("s3://my.bucket-1/a%20b ü/日本?x=1#y+z&", "/my.bucket-1/a%20b ü/日本?x=1#y+z&"),
        ("s3://bucket/s3://x/..y/.z", None),
        ("s3://bucket/..y/.z", "/bucket/..y/.z"),
    ):
        if path is None:
            continue
        assert store.resolve(uri) == path
        assert store.resolve(path) == path


@pytest.mark.parametrize(
    "uri",
    ["", "/", "s3://", "s3:///a", "s3://b/a", "bucket/a", "gs://bucket/a", "s3://bucket//a", "s3://bucket/a/../b",
     "s3://bucket/./a", "s3://bucket/a\x00", "s3://bucket/a\nb", "s3://bucket/\ud800", "s3://bu cket/a",
     "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/a"],
)  # fmt: skip
def test_what_is_no_path_of_a_bucket_is_refused(uri: str) -> None:
    with Canned() as canned:
        store = canned.store()
    with pytest.raises(InvalidRequestError, match="Give s3://bucket/path"):
        store.resolve(uri)


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    for uri in (
        "s3a://canary-key:canary-secret@bucket/t",
        "s3://canary-key:canary/secret@bucket/t",
    ):
        with pytest.raises(InvalidRequestError, match="storage_options") as caught:
            S3Store(uri, {})
        assert "canary" not in str(caught.value)


def test_one_bucket_is_one_place_and_nothing_is_ever_moved() -> None:
    with Canned() as canned:
        store = canned.store()
    assert store.same_place("/bucket/a", "/bucket/b/c")
    assert not store.same_place("/bucket/a", "/bucket2/a")
    with pytest.raises(InternalError, match="traits"):
        store.move([("/bucket/a", "/bucket/b")])
    assert store.traits == Traits(moves=False, keeps_names=True, hints_always=True)


def test_without_the_extra_the_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "txsink.store.s3.store")
    monkeypatch.delitem(sys.modules, "txsink.store.s3.calls")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidRequestError, match=r"s3fs is missing\. .*txsink\[s3\]"):
        open_store("s3://bucket/t")


def test_what_the_client_does_not_know_is_refused_and_not_dropped() -> None:
    with Canned() as canned:
        found = canned.store()._calls.once("put_object", {"Bucket": "bucket", "Key": "f", "IfNoSuch": "*"}, 30)
        assert found == (0, "ParamValidationError", "")
        assert canned.asked == []


def test_the_usual_arguments_go_with_the_requests_that_take_them() -> None:
    with Canned() as canned:
        store = canned.store(s3_additional_kwargs={"ServerSideEncryption": "AES256"}, requester_pays=True)
        stage(store, "/bucket/f", b"1")
        store.replace("/bucket/f", b"1", "x")
        names = ("x-amz-server-side-encryption", "x-amz-request-payer")
        sent = [tuple(request.headers.get(name) for name in names) for request in canned.asked]
    both, payer = ("AES256", "requester"), (None, "requester")
    assert sent == [both, payer, payer, both]


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("server", parameters("ministack"), indirect=True)
def test_a_store_opened_before_a_fork_serves_both_sides(server: Server) -> None:
    store, root = on(server), place(server)
    store.put_if_absent(f"{root}/0", b"before", "x")
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)

    def child() -> None:
        stage(store, f"{root}/1", b"child")
        question.send(store.read(f"{root}/0", 99))

    process = context.Process(target=child)
    process.start()
    assert answer.poll(60)
    assert answer.recv() == b"before"
    process.join(60)
    assert process.exitcode == 0
    stage(store, f"{root}/2", b"parent")
    assert contents(store, root) == {"0": b"before", "1": b"child", "2": b"parent"}


@pytest.mark.stores
@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_a_server_that_was_killed_is_used_again_when_it_is_back(name: str, tmp_path: Path) -> None:
    """I3, I14."""
    with started(name, tmp_path) as server:
        store = open_store("s3://any-bucket", {**server.storage_options, "deadline_seconds": 60})
        root = f"/{server.make_bucket()}/t"
        upload = pending(store, f"{root}/f", b"staged")
        store.put_if_absent(f"{root}/0", b"acknowledged", "x")
        server.kill()
        # Here, not in a thread: a server dies with the thread that started it.
        created: list[bool | None] = []
        puts = threading.Thread(target=lambda: created.append(store.put_if_absent(f"{root}/1", b"after", "y")))
        puts.start()
        server.restart()
        puts.join()
        assert created == [True]
        assert cast("S3Store", store).complete(f"{root}/f", upload) is True
        assert contents(store, root) == {"0": b"acknowledged", "1": b"after", "f": b"staged"}


# -- what deltalake is told -------------------------------------------------------------------------------


def told(options: dict[str, Any]) -> dict[str, str]:
    store = cast("S3Store", open_store("s3a://bucket/t", options))
    found = store.object_store_options("/bucket/a/t")
    assert repr(found) == f"StorageOptions({', '.join(sorted(found))})"
    return cast("dict[str, str]", found)


def keys_in(found: dict[str, str]) -> list[str | None]:
    return [found.get(f"aws_{name}") for name in ("access_key_id", "secret_access_key", "session_token")]


def test_deltalake_gets_the_credentials_that_s3fs_uses_wherever_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = "aws_access_key_id = from-profile\naws_secret_access_key = s\naws_session_token = t\n"
    (tmp_path / "config").write_text(f"[profile mine]\nregion = eu-west-3\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name, value in (("AWS_ACCESS_KEY_ID", "from-environment"), ("AWS_SECRET_ACCESS_KEY", "e")):
        monkeypatch.setenv(name, value)
    assert keys_in(told({})) == ["from-environment", "e", None]
    assert keys_in(told({"profile": "mine"})) == ["from-profile", "s", "t"]
    assert told({"profile": "mine"})["aws_region"] == "eu-west-3"
    assert keys_in(told({"key": "k", "secret": "s", "token": "t"})) == ["k", "s", "t"]
    inner = {"aws_access_key_id": "inner", "aws_secret_access_key": "s"}
    assert keys_in(told({"client_kwargs": inner})) == ["inner", "s", None]
    nobody = told({"anon": True})
    assert (keys_in(nobody), nobody["aws_skip_signature"]) == ([None, None, None], "true")


def test_deltalake_asks_where_s3fs_asks() -> None:
    keys = {"key": "k", "secret": "s"}
    found = told({**keys, "endpoint_url": "http://127.0.0.1:9", "deadline_seconds": 7})
    assert found == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "us-east-1",
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
        "timeout": "7s",
        "retry_timeout": "7s",
        "connect_timeout": "5s",
    }
    given = {"client_kwargs": {"region_name": "eu-north-1", "verify": False}}
    found = told({**keys, **given, "config_kwargs": {"s3": {"addressing_style": "virtual"}, "connect_timeout": 2}})
    assert found["aws_endpoint_url"] == "https://bucket.s3.eu-north-1.amazonaws.com"
    assert found["aws_virtual_hosted_style_request"] == "true"
    assert found["allow_invalid_certificates"] == "true"
    assert found["connect_timeout"] == "2s"
    assert "aws_allow_http" not in found


def test_credentials_that_cannot_be_renewed_for_deltalake_are_told_without_a_word_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = cast("S3Store", open_store("s3://bucket/t"))

    async def expired() -> None:
        raise CredentialRetrievalError(provider="canary-role", error_msg="canary-secret")

    monkeypatch.setattr(store._calls._client.session, "get_credentials", expired)
    with pytest.raises(TxsinkError, match="read s3://bucket/a") as caught:
        store.object_store_options("/bucket/a")
    check_no_secret(caught.value)


@pytest.mark.parametrize(
    ("path", "uri"), [("/b/a b/ü@#?x", "s3://b/a%20b/%C3%BC%40%23%3Fx"), ("/b/100% +&", "s3://b/100%25%20%2B%26")]
)
def test_a_path_is_the_uri_that_decodes_to_it(path: str, uri: str) -> None:
    assert cast("S3Store", open_store("s3://bucket")).object_store_uri(path) == uri
