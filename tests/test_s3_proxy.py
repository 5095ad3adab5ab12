"""Each fault of the proxy does what it says: to the client, and at the server."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from s3fs import S3FileSystem

from s3_proxy import (
    Fault,
    Proxy,
    Request,
    delay,
    deliver_twice,
    fail_after,
    lose_answer,
    lose_request,
    proxied,
    refuse,
    slow_down,
    tear_answer,
)
from s3_servers import Server, client, parameters, started

MIB = 1 << 20
IF_ABSENT = {"IfNoneMatch": "*"}


@pytest.fixture(params=parameters())
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as one:
        yield one


@pytest.fixture
def bucket(server: Server) -> str:
    return server.make_bucket()


@pytest.fixture
def broken(proxy: Proxy) -> Iterator[Any]:
    """A client that tries once, through the proxy."""
    with client(proxy.endpoint) as s3:
        yield s3


@pytest.fixture
def direct(server: Server) -> Iterator[Any]:
    """A client that sees the server as it is."""
    with client(server.endpoint) as s3:
        yield s3


def put(s3: Any, bucket: str, data: bytes = b"mine") -> int:
    try:
        answer = s3.put_object(Bucket=bucket, Key="k", Body=data, **IF_ABSENT)
    except ClientError as error:
        answer = error.response
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def held(s3: Any, bucket: str, key: str = "k") -> bytes | None:
    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except s3.exceptions.NoSuchKey:
        return None


def is_put(request: Request) -> bool:
    return request.operation == "PutObject"


# -- without faults ----------------------------------------------------------------------------------------


def test_what_s3fs_does_passes_unchanged_and_each_request_is_named(proxy: Proxy, bucket: str, direct: Any) -> None:
    s3 = S3FileSystem(**proxy.storage_options, skip_instance_cache=True, use_listings_cache=False)
    names = {"Bucket": bucket, "Key": "d/é a+b"}
    data = bytes(range(256)) * (5 * MIB // 256)
    token = {**names, "UploadId": s3.call_s3("create_multipart_upload", **names)["UploadId"]}
    etags = [s3.call_s3("upload_part", **token, PartNumber=n, Body=part)["ETag"] for n, part in ((1, data), (2, b""))]
    parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]}
    s3.call_s3("list_parts", **token)
    s3.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=names["Key"])
    s3.call_s3("complete_multipart_upload", **token, MultipartUpload=parts, **IF_ABSENT)
    s3.call_s3("put_object", Bucket=bucket, Key="p", Body=b"x", **IF_ABSENT)
    s3.call_s3("head_object", **names)
    s3.call_s3("list_objects_v2", Bucket=bucket, Prefix="d/")
    s3.call_s3("abort_multipart_upload", **names, UploadId=s3.call_s3("create_multipart_upload", **names)["UploadId"])
    assert s3.cat_file(f"{bucket}/{names['Key']}", start=256, end=260) == data[:4]
    s3.call_s3("delete_object", Bucket=bucket, Key="p")
    assert held(direct, bucket, names["Key"]) == data
    assert held(direct, bucket, "p") is None
    assert proxy.counted() == {
        "CreateMultipartUpload": 2, "UploadPart": 2, "ListParts": 1, "ListMultipartUploads": 1,
        "CompleteMultipartUpload": 1, "PutObject": 1, "HeadObject": 1, "ListObjectsV2": 1, "AbortMultipartUpload": 1,
        "GetObject": 1, "DeleteObject": 1,
    }  # fmt: skip
    assert {status for request in proxy.requests for status in request.statuses} <= {200, 204, 206}
    assert proxy.requests[0].path == f"/{bucket}/{names['Key']}"
    proxy.check_delivered()


def test_requests_of_many_at_once_are_each_counted_and_answered(proxy: Proxy, bucket: str, direct: Any) -> None:
    def work(who: int) -> None:
        with client(proxy.endpoint) as s3:
            for number in range(5):
                s3.put_object(Bucket=bucket, Key=f"{who}/{number}", Body=f"{who} {number}".encode())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(request.call for request in proxy.requests) == list(range(1, 21))
    for who in range(4):
        for number in range(5):
            assert held(direct, bucket, f"{who}/{number}") == f"{who} {number}".encode()


# -- each fault --------------------------------------------------------------------------------------------


def test_lose_answer_applies_and_closes(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    proxy.plan(lose_answer(1))
    with pytest.raises(ConnectionClosedError):
        put(broken, bucket)
    assert held(direct, bucket) == b"mine"
    assert [(one.operation, one.statuses, one.fault) for one in proxy.requests] == [("PutObject", [200], "lose_answer")]
    proxy.check_delivered()
    assert put(broken, bucket, b"again") == 412


def test_fail_after_applies_and_says_500(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    proxy.plan(fail_after(1))
    assert put(broken, bucket) == 500
    assert held(direct, bucket) == b"mine"
    assert proxy.requests[0].statuses == [200]
    proxy.check_delivered()


def test_tear_answer_gives_half_of_it(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    proxy.plan(tear_answer(1), tear_answer(2))
    with pytest.raises(HTTPClientError):
        put(broken, bucket)
    assert held(direct, bucket) == b"mine"
    with pytest.raises(ResponseStreamingError):
        held(broken, bucket)
    proxy.check_delivered()
    assert held(broken, bucket) == b"mine"


def test_deliver_twice_applies_twice_and_gives_the_second_answer(
    proxy: Proxy, bucket: str, broken: Any, direct: Any
) -> None:
    proxy.plan(deliver_twice(1))
    assert put(broken, bucket) == 412
    assert held(direct, bucket) == b"mine"
    assert proxy.requests[0].statuses == [200, 412]
    proxy.check_delivered()


@pytest.mark.parametrize("size", [0, 4, 6 * MIB])
def test_lose_request_reaches_the_server_in_half_and_does_nothing(
    proxy: Proxy, bucket: str, broken: Any, direct: Any, size: int
) -> None:
    proxy.plan(lose_request(1))
    with pytest.raises(HTTPClientError):
        put(broken, bucket, bytes(size))
    assert held(direct, bucket) is None
    assert proxy.requests[0].statuses == []
    proxy.check_delivered()
    assert put(broken, bucket) == 200


def test_slow_down_says_503_and_never_reaches_the_server(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    proxy.plan(slow_down(1))
    assert put(broken, bucket) == 503
    assert held(direct, bucket) is None
    assert proxy.requests[0].statuses == []
    proxy.check_delivered()
    assert put(broken, bucket) == 200


def test_refuse_says_403_and_never_reaches_the_server(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    proxy.plan(refuse(1))
    assert put(broken, bucket) == 403
    assert held(direct, bucket) is None
    assert proxy.requests[0].statuses == []
    proxy.check_delivered()
    assert put(broken, bucket) == 200


def test_a_delayed_request_is_applied_after_the_client_gave_up(proxy: Proxy, bucket: str, direct: Any) -> None:
    proxy.plan(delay(1))
    with client(proxy.endpoint, read_seconds_max=0.2) as s3, pytest.raises(ReadTimeoutError):
        put(s3, bucket)
    assert held(direct, bucket) is None
    while not proxy.held:  # the client may give up before the proxy has read the request
        time.sleep(0.01)
    assert [request.operation for request in proxy.held] == ["PutObject"]
    assert [request.statuses for request in proxy.release()] == [[200]]
    assert held(direct, bucket) == b"mine"
    assert proxy.held == []
    proxy.check_delivered()


def test_a_delayed_request_is_applied_just_before_the_one_it_was_planned_for(
    proxy: Proxy, bucket: str, broken: Any, direct: Any
) -> None:
    proxy.plan(delay(1, after=2, hangs=False))
    with pytest.raises(ConnectionClosedError):
        put(broken, bucket)
    assert held(broken, bucket) is None
    assert put(broken, bucket, b"again") == 412
    assert held(direct, bucket) == b"mine"
    proxy.check_delivered()


def test_an_upload_completes_behind_a_lost_answer(proxy: Proxy, bucket: str, broken: Any, direct: Any) -> None:
    names = {"Bucket": bucket, "Key": "k"}
    token = {**names, "UploadId": broken.create_multipart_upload(**names)["UploadId"]}
    etag = broken.upload_part(**token, PartNumber=1, Body=b"data")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    proxy.plan(lose_answer(1, lambda request: request.operation == "CompleteMultipartUpload"))
    with pytest.raises(ConnectionClosedError):
        broken.complete_multipart_upload(**token, MultipartUpload=parts, **IF_ABSENT)
    assert held(direct, bucket) == b"data"
    proxy.check_delivered()


# -- the plan ----------------------------------------------------------------------------------------------


def test_the_tries_of_s3fs_are_requests_of_their_own(proxy: Proxy, bucket: str, direct: Any) -> None:
    proxy.plan(slow_down(1, is_put, times=2))
    s3 = S3FileSystem(**proxy.storage_options, skip_instance_cache=True, use_listings_cache=False)
    s3.call_s3("put_object", Bucket=bucket, Key="k", Body=b"mine", **IF_ABSENT)
    assert proxy.counted() == {"PutObject": 3}
    assert held(direct, bucket) == b"mine"
    proxy.check_delivered()


def test_a_fault_counts_only_the_requests_it_asks_for(proxy: Proxy, bucket: str, broken: Any) -> None:
    proxy.plan(slow_down(2, is_put), slow_down(1, lambda request: request.method == "HEAD"))
    assert put(broken, bucket) == 200
    assert held(broken, bucket) == b"mine"
    assert put(broken, bucket) == 503
    with pytest.raises(ClientError, match="503"):
        broken.head_object(Bucket=bucket, Key="k")
    assert put(broken, bucket) == 412
    assert [request.fault for request in proxy.requests] == ["", "", "slow_down", "slow_down", ""]
    proxy.check_delivered()


@pytest.mark.parametrize("fault", [slow_down(2), slow_down(1, times=2), slow_down(1, lambda request: False)])
def test_a_plan_that_did_not_come_about_fails(s3_server: Callable[[str], Server], fault: Fault) -> None:
    server = s3_server("moto")
    with proxied(server) as proxy, client(proxy.endpoint) as s3:
        proxy.plan(fault)
        put(s3, server.make_bucket())
        with pytest.raises(AssertionError, match="1 planned faults did not happen in 1 requests"):
            proxy.check_delivered()


def test_a_fault_for_ever_is_delivered_by_happening_once(s3_server: Callable[[str], Server]) -> None:
    server = s3_server("moto")
    with proxied(server) as proxy, client(proxy.endpoint) as s3:
        proxy.plan(slow_down(2, times=0))
        bucket = server.make_bucket()
        assert [put(s3, bucket) for _ in range(4)] == [200, 503, 503, 503]
        proxy.check_delivered()
        proxy.plan()
        assert put(s3, bucket) == 412
        assert [request.call for request in proxy.requests] == [1]


def test_the_proxy_outlives_the_server(tmp_path: Path) -> None:
    with started("moto", tmp_path) as server, proxied(server) as proxy, client(proxy.endpoint) as s3:
        server.kill()
        with pytest.raises(ConnectionClosedError):
            put(s3, "bucket")
        server.restart()
        assert put(s3, server.make_bucket()) == 200


# -- HTTP --------------------------------------------------------------------------------------------------


class Echo(BaseHTTPRequestHandler):
    """Answers with what it got, framed as its path says."""

    protocol_version = "HTTP/1.1"
    got: ClassVar[list[bytes]] = []

    def do_PUT(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append(body)
        self.send_response(204 if self.path == "/empty" else 200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        elif self.path == "/close":
            self.close_connection = True
            self.end_headers()
            self.wfile.write(body)
        elif self.path == "/empty":
            self.end_headers()
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "99")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Silent."""


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that answers what it got."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as upstream:
        thread = threading.Thread(target=upstream.serve_forever)
        thread.start()
        proxy = Proxy(upstream.server_port, {})
        yield proxy
        proxy.close()
        upstream.shutdown()
        thread.join()


@pytest.fixture
def connection(echo: Proxy) -> Iterator[http.client.HTTPConnection]:
    one = http.client.HTTPConnection("127.0.0.1", int(echo.endpoint.rpartition(":")[2]), timeout=20)
    yield one
    one.close()


def test_one_connection_carries_many_requests_in_every_framing(
    echo: Proxy, connection: http.client.HTTPConnection
) -> None:
    connection.connect()
    first = connection.sock
    for path, expected in (("/length", b"data"), ("/chunked", b"data"), ("/empty", b""), ("/length", b"data")):
        connection.request("PUT", path, b"data")
        assert connection.getresponse().read() == expected
    connection.request("HEAD", "/length")
    answer = connection.getresponse()
    assert (answer.headers["Content-Length"], answer.read()) == ("99", b"")
    connection.request("PUT", "/length", iter([b"da", b"ta"]), encode_chunked=True)
    assert connection.getresponse().read() == b"data"
    assert connection.sock is first
    connection.request("PUT", "/close", b"data")
    assert connection.getresponse().read() == b"data"
    assert [request.call for request in echo.requests] == list(range(1, 8))


def test_a_client_that_waits_for_100_continue_gets_one(echo: Proxy, connection: http.client.HTTPConnection) -> None:
    connection.putrequest("PUT", "/length")
    connection.putheader("Expect", "100-continue")
    connection.putheader("Content-Length", "4")
    connection.endheaders()
    assert connection.sock.recv(99) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(b"data")
    assert connection.getresponse().read() == b"data"


def test_half_of_a_chunked_request_is_no_request_and_the_client_sees_a_reset(
    echo: Proxy, connection: http.client.HTTPConnection
) -> None:
    before = len(Echo.got)
    echo.plan(lose_request(1))
    connection.request("PUT", "/length", iter([b"data"] * 9), encode_chunked=True)
    with pytest.raises(ConnectionResetError):
        connection.sock.recv(1)
    assert len(Echo.got) == before
    echo.check_delivered()
