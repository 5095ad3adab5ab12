"""A NameNode in memory, behind the client's own interface: HDFS for tests that ask what an error leads to.

    node = NameNode()
    monkeypatch.setattr(hdfs_calls, "Client", node.client)
    with node.refusing(rpc("SafeModeException", "Name node is in safe mode."), "create"):
        ...                                        # every create is refused
    ...                                            # and served again

Promises: files, directories and renames as `txsink.store.hdfs.store` relies on; a fault happens at each call it names,
to each path that `where` takes, and `met` counts how often it did; what a block refused is served after it.
Relies on: the real client to refuse a file system that is not configured.
Does not promise: to be HDFS. `test_store_hdfs.py` meets the real one, and the same errors there.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from hdfs_native import Client, WriteOptions

_T = TypeVar("_T")

Where = Callable[[str], bool]
Whose = Callable[["_Client"], bool]


def rpc(kind: str, message: str, package: str = "org.apache.hadoop.hdfs.protocol") -> RuntimeError:
    """An error of the NameNode, as the client tells of it."""
    return RuntimeError(f'RPCError("{package}.{kind}", "{message}\\n\\tat org.apache.hadoop.X.y(X.java:1)")')


class Fault(NamedTuple):
    """What goes wrong in a call: an error, or no answer; before it is done or after."""

    error: Exception | None  # None: there is no answer
    verbs: tuple[str, ...]
    where: Where
    unless: Whose
    is_done: bool
    is_over: threading.Event

    def happen(self) -> None:
        """Raise the error; or wait until the block is over, when nobody listens any more."""
        if self.error is None:
            self.is_over.wait()
        raise self.error or OSError("the caller has given up")


class Status(NamedTuple):
    """What the NameNode says of a name."""

    path: str
    isdir: bool
    length: int
    modification_time: int


class NameNode:
    """The files and directories, which all clients share."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, int] = {}
        self.directories = {"/"}
        self.zones: set[str] = set()  # directories that no file is moved into or out of
        self.is_unreported: Where = lambda path: False  # of which files no DataNode has reported the last block
        self.met = 0
        self._faults: list[Fault] = []
        self._clock = 0

    def client(self, url: str, config: dict[str, str] | None = None, **given: str) -> _Client:
        """In place of `hdfs_native.Client`."""
        if not re.search(r":\d+/$", url):
            Client(url, config, **given)  # it refuses what is not configured
        return _Client(self, url, config or {})

    @contextmanager
    def refusing(
        self,
        error: Exception | None,
        *verbs: str,
        where: Where = lambda path: True,
        unless: Whose = lambda client: False,
        is_done: bool = False,
    ) -> Iterator[None]:
        """Meanwhile these calls fail, `unless` of such a client; `is_done`: they were carried out all the same."""
        fault = Fault(error, verbs, where, unless, is_done, threading.Event())
        self._faults.append(fault)
        before = self.met
        try:
            yield
        finally:
            self._faults.remove(fault)
            fault.is_over.set()
        assert self.met > before, f"nothing asked for {verbs}"

    def do(self, client: _Client, verb: str, path: str, act: Callable[[], _T]) -> _T:
        """One call, with what is to go wrong in it."""
        named = [fault for fault in self._faults if verb in fault.verbs and not fault.unless(client)]
        faults = [fault for fault in named if fault.where(path)]
        self.met += len(faults)
        for fault in faults:
            if not fault.is_done:
                fault.happen()
        found = act()
        for fault in faults:
            fault.happen()
        return found

    # -- the name space -------------------------------------------------------------------------------

    def status(self, path: str) -> Status:
        if path in self.directories:
            return Status(path, True, 0, 0)
        if path not in self.files:
            raise FileNotFoundError(path)
        return Status(path, False, len(self.files[path]), self.times[path])

    def below(self, path: str) -> list[str]:
        return sorted(one for one in (*self.files, *self.directories) if one.startswith(f"{path.rstrip('/')}/"))

    def make_directory(self, path: str) -> None:
        while path != "/":
            if path in self.files:
                raise rpc("ParentNotDirectoryException", f"{path} (is not a directory)", "org.apache.hadoop.fs")
            self.directories.add(path)
            path = path.rpartition("/")[0] or "/"

    def put(self, path: str, data: bytes) -> None:
        self._clock += 1
        self.files[path], self.times[path] = data, self._clock

    def create(self, path: str, *, overwrite: bool) -> None:
        if path in self.files and not overwrite:
            raise FileExistsError(path)
        self.make_directory(path.rpartition("/")[0])
        self.put(path, b"")

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        self.status(source)
        if (target in self.files and not overwrite) or target in self.directories:
            raise FileExistsError(target)
        self.status(target.rpartition("/")[0] or "/")
        for zone in self.zones:
            if source.startswith(f"{zone}/") != target.startswith(f"{zone}/"):
                raise rpc("IOException", f"{source} can't be moved into an encryption zone.", "java.io")
        if source in self.directories:  # only empty ones are moved here
            self.directories = self.directories - {source} | {target}
        else:
            self.files[target], self.times[target] = self.files.pop(source), self.times.pop(source)

    def delete(self, path: str) -> bool:
        if self.below(path):
            raise rpc("PathIsNotEmptyDirectoryException", f"{path} is non empty", "org.apache.hadoop.fs")
        if path in self.directories:
            self.directories.remove(path)
            return True
        self.times.pop(path, None)
        return self.files.pop(path, None) is not None


class _Client:
    """What a store calls."""

    def __init__(self, node: NameNode, url: str, config: dict[str, str]) -> None:
        self.node, self.url, self.config = node, url, config

    def do(self, verb: str, path: str, act: Callable[[], _T]) -> _T:
        return self.node.do(self, verb, path, act)

    def get_file_info(self, path: str) -> Status:
        return self.do("status", path, lambda: self.node.status(path))

    def list_status(self, path: str, *, recursive: bool) -> Iterator[Status]:
        assert recursive

        def found() -> list[Status]:
            self.node.status(path)
            return [self.node.status(one) for one in self.node.below(path)]

        yield from self.do("list", path, found)

    def read(self, path: str) -> _Reader:
        return self.do("read", path, lambda: _Reader(self, path))

    def create(self, path: str, options: WriteOptions) -> _Writer:
        is_over = bool(options.overwrite)
        self.do("create", path, lambda: self.node.create(path, overwrite=is_over))
        return _Writer(self, path)

    def mkdirs(self, path: str, *, create_parent: bool) -> None:
        assert create_parent
        self.do("mkdirs", path, lambda: self.node.make_directory(path))

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        self.do("rename", target, lambda: self.node.rename(source, target, overwrite=overwrite))

    def delete(self, path: str, *, recursive: bool) -> bool:
        assert not recursive
        return self.do("delete", path, lambda: self.node.delete(path))


class _Reader:
    def __init__(self, client: _Client, path: str) -> None:
        client.node.status(path)
        is_told = not client.node.is_unreported(path)
        self._client, self._path = client, path
        self._data = client.node.files.get(path, b"") if is_told else b""

    def __len__(self) -> int:
        return len(self._data)

    def read_range(self, start: int, count: int) -> bytes:
        return self._client.do("read_range", self._path, lambda: self._data[start : start + count])


class _Writer(io.RawIOBase):
    """An open file."""

    def __init__(self, client: _Client, path: str) -> None:
        self._client, self._path = client, path

    def write(self, data: Any) -> int:
        node, path = self._client.node, self._path
        self._client.do("write", path, lambda: node.put(path, node.files[path] + bytes(data)))
        return len(data)

    def hsync(self) -> None:
        self._client.do("hsync", self._path, lambda: None)

    def close(self) -> None:
        self._client.do("close", self._path, lambda: None)
