"""A proxy between a client and the NameNode that mistreats one chosen call.

Promises: `calls` names each call of the NameNode's protocol, in order, over all connections; one call, chosen by
its number or its name, goes as planned; `delivered` says whether that came about.
Relies on: a cluster without Kerberos, whose frames can be read. DataNodes are not behind the proxy.
Does not promise: anything about calls that are under way at the same time on one connection; tests make one at a time.

    cut       the answer has come from the NameNode, and the connection goes instead
    drop      the call never reaches the NameNode, and the connection goes
    swallow   the answer never comes, and the connection stays
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_HANDSHAKE_BYTES = 7
_TIMEOUT_SECONDS = 60


class HdfsProxy:
    """Listens on a free port while it is entered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._fault = ""
        self._at: int | str = 0
        self.calls: list[str] = []
        self.delivered = False

    @property
    def uri(self) -> str:
        return f"hdfs://127.0.0.1:{self._listener.getsockname()[1]}"

    def plan(self, fault: str, at: int | str) -> None:
        """The fault for the call with this number, counted from 1 and from now; or for the next call of this name."""
        with self._lock:
            self._fault, self._at, self.calls, self.delivered = fault, at, [], False

    def __enter__(self) -> HdfsProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listener, *self._open]:
            _close(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_SECONDS)
                self._open += [client, server]
                faults: list[str] = []
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, faults), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, faults: list[str]) -> None:
        with _both_closed(client, server):
            server.sendall(_exactly(client, _HANDSHAKE_BYTES))
            _send(server, _frame(client))  # who is calling
            while True:
                frame = _frame(client)
                fault = self._told(_method(frame))
                if fault == "drop":
                    return
                if fault:
                    faults.append(fault)
                _send(server, frame)

    def _answers(self, client: socket.socket, server: socket.socket, faults: list[str]) -> None:
        with _both_closed(client, server):
            while True:
                frame = _frame(server)
                if faults == ["cut"]:
                    return
                if not faults:
                    _send(client, frame)

    def _told(self, method: str) -> str:
        with self._lock:
            self.calls.append(method)
            if self.delivered or self._at not in {len(self.calls), method}:
                return ""
            self.delivered = True
            return self._fault


@contextlib.contextmanager
def _both_closed(*ends: socket.socket) -> Iterator[None]:
    try:
        with contextlib.suppress(OSError, EOFError):
            yield
    finally:
        for one in ends:
            _close(one)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _frame(source: socket.socket) -> bytes:
    return _exactly(source, int.from_bytes(_exactly(source, 4), "big"))


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(len(frame).to_bytes(4, "big") + frame)


def _method(frame: bytes) -> str:
    """The method of a call: the first field of the second message in its frame."""
    size, start = _varint(frame, 0)
    _, start = _varint(frame, start + size)
    size, start = _varint(frame, start + 1)
    return frame[start : start + size].decode()


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, start
