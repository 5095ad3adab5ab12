"""A proxy before a real S3 server that breaks the nth request as planned: what a network and a busy server do.

Promises: requests are counted from 1 in the order of arrival, whoever sends them, retries by the client's own layers
included; each planned fault happens at its request; `requests` holds every request with what the server answered;
`check_delivered` fails the test whose plan did not come about. The bytes of a request reach the server as the client
sent them, Host and signature included, each on a connection of its own.
Relies on: HTTP/1.1 without TLS; whole messages fit in memory.
Does not promise: that two requests sent at once arrive in a known order.

| kind | the server | the client |
| --- | --- | --- |
| lose_answer | applies it | connection closed without an answer |
| fail_after | applies it | 500 InternalError |
| tear_answer | applies it | half of the answer, then the connection closes |
| deliver_twice | applies it, then again | the second answer |
| lose_request | gets half of it, then the connection closes | a reset |
| slow_down | gets nothing | 503 SlowDown |
| refuse | gets nothing | 403 AccessDenied, which no client repeats; or another status and code |
| delay | applies it at `release()`, or before the request that comes `after` later | no answer; or closed at once |

Worked example, the loop that loses the answer of every request of a run:

    with proxied(server) as proxy:
        for call in itertools.count(1):
            proxy.plan(lose_answer(call))
            run(proxy.storage_options)
            if len(proxy.requests) < call:
                break
            proxy.check_delivered()
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BufferedReader
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from s3_servers import Server

SERVER_SECONDS_MAX = 60.0
LINE_BYTES_MAX = 1 << 16
SIGNED = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/s3/")
RESET = struct.pack("ii", 1, 0)  # to linger for 0 seconds: close sends a reset


@dataclass
class Request:
    """One request as it arrived."""

    call: int
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case, without the signature
    region: str = ""  # that it was signed for
    statuses: list[int] = field(default_factory=list)  # what the server answered, each time it got it
    fault: str = ""

    @property
    def operation(self) -> str:
        """The name that S3 gives it."""
        is_object = "/" in self.path.strip("/")
        for (method, mark), name in OPERATIONS.items():
            if method == self.method and mark in self.query:
                return name
        if self.method == "PUT" and "x-amz-copy-source" in self.headers:
            return "CopyObject"
        return f"{self.method.title()}{'Object' if is_object else 'Bucket'}"


OPERATIONS = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("PUT", "partNumber"): "UploadPart",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "list-type"): "ListObjectsV2",
    ("POST", "delete"): "DeleteObjects",
}
Where = Callable[[Request], bool]


class Fault(NamedTuple):
    """One planned fault: at which of the requests that `where` takes, what, and how often."""

    call: int
    kind: str
    where: Where | None = None
    times: int = 1  # 0: from then on, always
    after: int = 0
    hangs: bool = True
    says: tuple[int, str] = (403, "AccessDenied")


def lose_answer(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """It is applied, and the connection closes without an answer."""
    return Fault(call, "lose_answer", where, times)


def fail_after(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """It is applied, and the client gets 500."""
    return Fault(call, "fail_after", where, times)


def tear_answer(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """It is applied, and half of the answer arrives."""
    return Fault(call, "tear_answer", where, times)


def deliver_twice(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """It is applied twice, and the client gets the second answer."""
    return Fault(call, "deliver_twice", where, times)


def lose_request(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """Half of it reaches the server; the client sees a reset."""
    return Fault(call, "lose_request", where, times)


def slow_down(call: int, where: Where | None = None, *, times: int = 1) -> Fault:
    """It never reaches the server; the client gets 503."""
    return Fault(call, "slow_down", where, times)


def refuse(
    call: int, where: Where | None = None, *, times: int = 1, says: tuple[int, str] = (403, "AccessDenied")
) -> Fault:
    """It never reaches the server; the client gets 403, or what it `says`."""
    return Fault(call, "refuse", where, times, says=says)


def delay(call: int, where: Where | None = None, *, after: int = 0, hangs: bool = True) -> Fault:
    """It is applied later: at `release()`, or just before the request that is `after` behind it.

    The client waits until it gives up; unless `hangs`, its connection is closed at once.
    """
    return Fault(call, "delay", where, 1, after, hangs)


class _Held(NamedTuple):
    request: Request
    fault: Fault
    message: bytes


class Proxy:
    """Listens on an address of its own; see the table above."""

    def __init__(self, port: int, storage_options: dict[str, Any]) -> None:
        self._port = port
        self._options = storage_options
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        self._threads: list[threading.Thread] = []
        self._connections: set[socket.socket] = set()
        self.plan()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**self._options, "endpoint_url": self.endpoint}

    # -- the plan and the account -----------------------------------------------------------------------

    def plan(self, *faults: Fault) -> None:
        """Counts from 1 again; what is held for the former plan is dropped."""
        with self._lock:
            self._plan = faults
            self._seen = [0] * len(faults)
            self.requests: list[Request] = []
            self.delivered: list[tuple[Fault, Request]] = []
            self._held.clear()

    def check_delivered(self) -> None:
        """Fail when a planned fault did not happen: such a run proves nothing."""
        counted = Counter(id(fault) for fault, _ in self.delivered)
        missing = [fault for fault in self._plan if counted[id(fault)] < max(fault.times, 1)]
        assert not missing, f"{len(missing)} planned faults did not happen in {len(self.requests)} requests: {missing}"

    def counted(self) -> dict[str, int]:
        """How many requests of each operation arrived."""
        return dict(Counter(request.operation for request in self.requests))

    @property
    def held(self) -> list[Request]:
        """The requests that a client sent and the server has not seen."""
        return [one.request for one in self._held]

    def release(self) -> list[Request]:
        """Applies what is held, now."""
        with self._lock:
            held, self._held = self._held, []
        for one in held:
            self._ask(one.request, one.message)
        return [one.request for one in held]

    def close(self) -> None:
        """Every connection is closed; what is held never happens."""
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SERVER_SECONDS_MAX)
        self._listener.close()

    # -- connections ------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        try:
            while self._one(connection, reader):
                pass
        except OSError:
            pass  # the client or the server went away: that is what happens
        finally:
            with self._lock:
                self._connections.discard(connection)
            reader.close()
            connection.close()

    def _one(self, connection: socket.socket, reader: BufferedReader) -> bool:
        """Takes one request from the client; whether the connection can carry another."""
        head = _read_head(reader)
        if not head:
            return False
        request, fault, due = self._arrived(head)
        for one in due:
            self._ask(one.request, one.message)
        if request.headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault is not None and fault.kind == "lose_request":
            self._cut(head, reader, request)
            self._happened(fault, request)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            return False
        message = head + _read_body(reader, request.headers)
        if fault is None:
            answer = self._ask(request, message)
            connection.sendall(answer)
            return _keeps_alive(request, answer)
        return self._misbehave(fault, request, message, connection)

    def _misbehave(self, fault: Fault, request: Request, message: bytes, connection: socket.socket) -> bool:
        if fault.kind == "slow_down":
            answer = _refusal(request, 503, "SlowDown", "Please reduce your request rate.")
            self._happened(fault, request)
        elif fault.kind == "refuse":
            answer = _refusal(request, *fault.says, "Access Denied.")
            self._happened(fault, request)
        elif fault.kind == "delay":
            with self._lock:
                self._held.append(_Held(request, fault, message))
            self._happened(fault, request)
            if fault.hangs:
                connection.recv(1)  # returns when the client hangs up: it has nothing more to say
            return False
        else:
            answer = self._ask(request, message)
            if fault.kind == "deliver_twice":
                answer = self._ask(request, message)
            self._happened(fault, request)
        if fault.kind == "lose_answer":
            return False
        if fault.kind == "tear_answer":
            connection.sendall(_torn(answer))
            return False
        if fault.kind == "fail_after":
            answer = _refusal(request, 500, "InternalError", "We encountered an internal error. Please try again.")
        connection.sendall(answer)
        return _keeps_alive(request, answer)

    def _arrived(self, head: bytes) -> tuple[Request, Fault | None, list[_Held]]:
        """Counts the request; the fault planned for it, and what was held until now."""
        method, target, headers = _parse(head)
        region = SIGNED.search(headers.pop("authorization", ""))
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        chosen = None
        with self._lock:
            at = len(self.requests) + 1
            request = Request(at, method, unquote(url.path), query, headers, region[1] if region else "")
            self.requests.append(request)
            for number, fault in enumerate(self._plan):
                if fault.where is None or fault.where(request):
                    self._seen[number] += 1
                    is_over = fault.times and self._seen[number] >= fault.call + fault.times
                    if chosen is None and self._seen[number] >= fault.call and not is_over:
                        chosen, request.fault = fault, fault.kind
            due = [one for one in self._held if one.fault.after and one.request.call + one.fault.after <= request.call]
            self._held = [one for one in self._held if one not in due]
        return request, chosen, due

    def _happened(self, fault: Fault, request: Request) -> None:
        with self._lock:
            self.delivered.append((fault, request))

    # -- the server -------------------------------------------------------------------------------------

    def _ask(self, request: Request, message: bytes) -> bytes:
        """The server's whole answer, interim ones left out."""
        with self._upstream() as server, server.makefile("rb") as reader:
            with suppress(ConnectionError):  # it may refuse before it took everything, and its answer says why
                server.sendall(message)
            while True:
                head = _read_head(reader)
                if not head:
                    raise ConnectionResetError("the server closed the connection")
                if _status(head) >= HTTPStatus.OK:
                    break
            body = b"" if _has_no_body(request, head) else _read_body(reader, _headers(head), is_answer=True)
        request.statuses.append(_status(head))
        return head + body

    def _cut(self, head: bytes, reader: BufferedReader, request: Request) -> None:
        """The server gets half of the body; without one, half of the first line, for moto takes half a head for all."""
        length = int(request.headers.get("content-length", 0))
        if length:
            message = head + reader.read(length // 2)
        elif "transfer-encoding" in request.headers:
            body = _read_body(reader, request.headers)
            message = head + body[: len(body) // 2]
        else:
            message = head[: head.find(b"\r\n") // 2]
        with self._upstream() as server:
            server.sendall(message)
            server.shutdown(socket.SHUT_WR)
            while server.recv(LINE_BYTES_MAX):  # until it has given up, so that what it did is done
                pass

    def _upstream(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), SERVER_SECONDS_MAX)


@contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    """A proxy for the length of a block."""
    proxy = Proxy(server.port, server.storage_options)
    try:
        yield proxy
    finally:
        proxy.close()


# -- HTTP --------------------------------------------------------------------------------------------------


def _read_head(reader: BufferedReader) -> bytes:
    """Up to the empty line; nothing when the peer has closed."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            if head or line:
                raise ConnectionResetError("the head ends in the middle")
            return b""
        head += line
    return head


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    method, target, _ = head.decode("latin-1").split("\r\n", 1)[0].split(" ")
    return method, target, _headers(head)


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


def _has_no_body(request: Request, head: bytes) -> bool:
    return request.method == "HEAD" or _status(head) in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


def _read_body(reader: BufferedReader, headers: dict[str, str], *, is_answer: bool = False) -> bytes:
    """The body as it is on the wire."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return b"".join(_chunks(reader))
    if "content-length" in headers:
        return _exactly(reader, int(headers["content-length"]))
    return reader.read() if is_answer else b""


def _chunks(reader: BufferedReader) -> Iterator[bytes]:
    while True:
        line = reader.readline(LINE_BYTES_MAX)
        size = int(line.split(b";")[0], 16) if line else 0
        yield line
        if size == 0:
            break
        yield _exactly(reader, size + 2)
    while line not in {b"\r\n", b""}:
        line = reader.readline(LINE_BYTES_MAX)
        yield line


def _exactly(reader: BufferedReader, count: int) -> bytes:
    data = reader.read(count)
    if len(data) < count:
        raise ConnectionResetError("the body ends in the middle")
    return data


def _torn(answer: bytes) -> bytes:
    """The head and half of the body; without a body a few letters: to some clients half a head is a whole answer."""
    head_bytes = answer.find(b"\r\n\r\n") + 4
    body_bytes = len(answer) - head_bytes
    return answer[: head_bytes + body_bytes // 2] if body_bytes else answer[:5]


def _refusal(request: Request, status: int, code: str, text: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Content-Type: application/xml"]
    lines.append(f"Content-Length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode() + (b"" if request.method == "HEAD" else body)


def _keeps_alive(request: Request, answer: bytes) -> bool:
    """Whether the client knows where the answer ends, and was not told that the connection does."""
    head = answer[: answer.find(b"\r\n\r\n") + 4]
    headers = _headers(head)
    is_delimited = "content-length" in headers or "transfer-encoding" in headers or _has_no_body(request, head)
    return head.startswith(b"HTTP/1.1") and headers.get("connection", "").lower() != "close" and is_delimited
