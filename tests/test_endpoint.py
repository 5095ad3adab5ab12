"""Where requests go, and with which credentials, only the configuration says: no server, entry or table does."""

from __future__ import annotations

import logging
import threading
import traceback
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import deltalake
import msgspec
import pytest

from txsink.errors import TxsinkError
from txsink.log.entry import AnyEntry
from txsink.log.state import State
from txsink.records import Column, DataFile, Upload
from txsink.staging.epoch_stager import StagedFile
from txsink.store.opening import open_store
from txsink.store.protocol import StorageOptions, Store

SECRET, KEY = "canary-secret-77aa", "canary-key-77aa"

Heard = list[tuple[str, str, dict[str, str]]]
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, Heard]]:
    """A server that answers every request in one way, and tells what it heard."""
    heard: Heard = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.handle_any
            raise AttributeError(name)

        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            heard.append((self.command, self.path, dict(self.headers)))
            answer(self)

        def log_message(self, *_: object) -> None:
            """Not to stderr."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", heard
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def answering(status: int, body: str = "", **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        data = b"" if request.command == "HEAD" else body.encode()
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


def opened(endpoint: str, seconds: float) -> Store:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": endpoint, "deadline_seconds": seconds}
    return open_store("s3://bucket", options)


VERBS: dict[str, Callable[[Store], object]] = {
    "read": lambda store: store.read("/bucket/a", 9),
    "tail": lambda store: store.tail("/bucket/a", 9),
    "list": lambda store: store.list("/bucket/a"),
    "put_if_absent": lambda store: store.put_if_absent("/bucket/a", b"1", "t"),
    "replace": lambda store: store.replace("/bucket/a", b"1", "t"),
    "delete": lambda store: store.delete("/bucket/a"),
    "create": lambda store: store.create("/bucket/a").seal(),
}
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message><Endpoint>{host}</Endpoint></Error>"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_sends_us_elsewhere_is_not_followed(verb: str, status: int) -> None:
    with server(answering(200, "stolen")) as (elsewhere, stolen):
        host = elsewhere.removeprefix("http://")
        code = {301: "PermanentRedirect", 307: "TemporaryRedirect"}.get(status, "Found")
        body = ERROR.format(code=code, host=host)
        moved = answering(status, body, Location=f"{elsewhere}/bucket/a", x_amz_bucket_region="eu-west-7")
        with server(moved) as (endpoint, heard):
            try:
                answer = VERBS[verb](opened(endpoint, 20))
            except TxsinkError:
                answer = None
            assert heard, "nothing was asked, so nothing was redirected"
            assert stolen == []
            assert answer is None or verb == "put_if_absent"


def test_the_other_server_does_hear_whoever_follows() -> None:
    """Else its silence above would prove nothing."""
    with (
        server(answering(200, "x")) as (elsewhere, stolen),
        server(answering(302, Location=elsewhere)) as (endpoint, _),
    ):
        urllib.request.urlopen(endpoint).close()
        assert len(stolen) == 1


def test_no_record_has_a_place_for_an_endpoint_or_a_credential() -> None:
    """What is stored, or sent back by workers, names no host, no URI and no options."""
    told = ("endpoint", "url", "uri", "host", "region", "option", "key", "secret", "token", "credential", "profile")
    kinds = [*AnyEntry.__args__, Column, DataFile, Upload, StagedFile, State]
    fields = {f"{kind.__name__}.{name}" for kind in kinds for name in kind.__struct_fields__}
    assert len(fields) > 60
    assert [field for field in fields if any(word in field.lower() for word in told)] == []


@pytest.mark.parametrize("field", ["endpoint_url", "storage_options", "uri"])
def test_a_record_that_brings_an_endpoint_is_refused(field: str) -> None:
    record = {
        "writer": "w",
        "run": "r",
        "epoch": 0,
        "file": {"path": "part-0-0-abcd.parquet", "bytes": 1, "digest": "", "rows": 1, "partition": {}},
        "columns": [],
        "stamp": "",
    }
    StagedFile.from_dict(record)
    with pytest.raises(TxsinkError, match=field):
        StagedFile.from_dict({**record, field: "http://elsewhere"})
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({**record["file"], field: "x"}, DataFile)  # type: ignore[dict-item]


# -- the secret, in a real client -------------------------------------------------------------------------------

ANSWERS: dict[str, Answer] = {
    "denied": answering(403, ERROR.format(code="AccessDenied", host="h")),
    "wrong secret": answering(403, ERROR.format(code="SignatureDoesNotMatch", host="h")),
    "wrong key": answering(403, ERROR.format(code="InvalidAccessKeyId", host="h")),
    "no bucket": answering(404, ERROR.format(code="NoSuchBucket", host="h")),
    "broken": answering(500, "<html>oops</html>"),
    "no S3": answering(200, "hello"),
    "teapot": answering(418, "short and stout"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_error_log_or_text_of_a_real_client_says_the_secret(name: str, caplog: pytest.LogCaptureFixture) -> None:
    said: list[Any] = []
    with caplog.at_level(logging.DEBUG), server(ANSWERS[name]) as (endpoint, heard):
        store = opened(endpoint, 1)
        said += [repr(store), str(store)]
        for act in VERBS.values():
            try:
                act(store)
            except TxsinkError as error:
                said += [str(error), repr(error), repr(error.context), "".join(traceback.format_exception(error))]
        assert heard
    assert len(said) > 2
    assert caplog.records, "nothing was logged, so nothing was shown"
    said += [f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.records]
    assert SECRET not in "\n".join(said)
    assert not any(SECRET in f"{path}{headers}" for _, path, headers in heard), "it is signed with, never sent"
    assert any(KEY in headers.get("Authorization", "") for _, _, headers in heard), "the requests were not signed"


def test_options_say_their_names_only() -> None:
    assert SECRET not in repr(StorageOptions.of({"secret": SECRET}))


# -- what deltalake's own client sends ------------------------------------------------------------------------


def sent_by_deltalake(**options: Any) -> list[dict[str, str]]:
    """The headers of each request of deltalake's client, which is told what our store is."""
    with server(answering(404, "<Error><Code>NoSuchKey</Code></Error>")) as (endpoint, heard):
        store: Any = open_store("s3://bucket", {"endpoint_url": endpoint, "deadline_seconds": 5.0, **options})
        with suppress(Exception):
            deltalake.DeltaTable("s3://bucket/t", storage_options=dict(store.object_store_options("/bucket/t")))
    assert heard
    return [{name.lower(): value for name, value in headers.items()} for _, _, headers in heard]


@pytest.mark.parametrize("variable", ["AWS_SESSION_TOKEN", "AWS_TOKEN"])
@pytest.mark.parametrize("is_anonymous", [False, True])
def test_a_token_of_the_environment_is_not_sent_with_keys_that_were_given(
    monkeypatch: pytest.MonkeyPatch, variable: str, *, is_anonymous: bool
) -> None:
    monkeypatch.setenv(variable, "canary-token-77aa")
    options = {"anon": True} if is_anonymous else {"key": KEY, "secret": SECRET}
    for headers in sent_by_deltalake(**options):
        assert "canary-token-77aa" not in str(headers)
        assert ("authorization" in headers) is not is_anonymous


def test_a_token_that_was_given_is_sent_and_without_any_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    keys = {"key": KEY, "secret": SECRET}
    assert {headers.get("x-amz-security-token") for headers in sent_by_deltalake(**keys)} == {None}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert {headers["x-amz-security-token"] for headers in sent_by_deltalake(**keys, token="mine")} == {"mine"}


def test_who_pays_and_the_keys_of_encryption_reach_deltalakes_client() -> None:
    own = {"SSECustomerKey": b"k" * 32, "SSECustomerAlgorithm": "AES256"}
    options = {"key": KEY, "secret": SECRET, "requester_pays": True, "s3_additional_kwargs": own}
    heard = sent_by_deltalake(**options)
    assert {headers["x-amz-request-payer"] for headers in heard} == {"requester"}
    # A listing takes no key.
    assert b64encode(b"k" * 32).decode() in {
        headers.get("x-amz-server-side-encryption-customer-key") for headers in heard
    }
    kms = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "x"}
    store: Any = open_store("s3://bucket", {"key": KEY, "secret": SECRET, "s3_additional_kwargs": kms})
    told = store.object_store_options("/bucket/t")
    assert (told["aws_server_side_encryption"], told["aws_sse_kms_key_id"]) == ("aws:kms", "x")
