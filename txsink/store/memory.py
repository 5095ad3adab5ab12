"""The memory of this process, as fsspec's `memory://` file system has it: for tests and notebooks.

Promises: those of `txsink.store`, among the threads of one process: a name is looked at and given under one lock, and
appears together with its whole content. pandas, pyarrow and everything else that takes fsspec paths reads the files
under the same `memory://` names.
Relies on: fsspec, whose memory file systems share one dictionary from path to file; nobody else writing below a table.
Does not promise: durability. It all goes with the process, and no other process sees any of it: a forked or spawned
worker stages into a memory of its own, and what it staged is missing here (`prepare` says so). Directories exist
where files lie in them, and only there.
"""

from __future__ import annotations

import io
import threading
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from txsink.errors import InternalError, InvalidRequestError, UnavailableError
from txsink.store.protocol import Moves, Output, Paths, Tail, Traits

_LOCK = threading.Lock()  # the files are those of the process, so is what guards them


class MemoryStore:
    """The verbs of `Store` on the files of fsspec's `memory://`."""

    traits = Traits(links=True)

    def __init__(self) -> None:
        # An instance of our own, on the shared files: a user's open fsspec transaction would hold our writes back.
        self._system = MemoryFileSystem(skip_instance_cache=True)
        self._files: dict[str, Any] = self._system.store

    def resolve(self, uri: str) -> str:
        path = f"/{uri.removeprefix('memory://').strip('/')}"
        if not uri.startswith(("memory://", "/")) or "::" in path or {"", ".", ".."} & {*path[1:].split("/")}:
            found = "it is no path below memory://, or has an empty part, a part `.` or `..`, or `::`"
            raise InvalidRequestError(f"open {uri!r}", found, "Give memory://name/of/the/table")
        if path in self._files:
            raise InvalidRequestError(f"open {uri}", "it is a file, not a directory", "Name a directory")
        return path

    def read(self, path: str, limit: int) -> bytes | None:
        with _LOCK:
            return None if path not in self._files else bytes(self._files[path].getbuffer()[: limit + 1])

    def tail(self, path: str, count: int) -> Tail | None:
        with _LOCK:
            if path not in self._files:
                return None
            with self._files[path].getbuffer() as data:
                size = len(data)
                # No stamp: whoever writes into an open file of fsspec's leaves no trace of it.
                return Tail(size, bytes(data[max(0, size - count) :]), "")

    def list(self, path: str, limit: int | None = None) -> Paths:
        start = f"{path}/"
        # A copy in one step: users of fsspec know nothing of our lock.
        return sorted(name[len(start) :] for name in tuple(self._files) if name.startswith(start))[:limit]

    def present(self, paths: Paths) -> Paths:
        return [path for path in paths if path in self._files]

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        with _LOCK:
            if path in self._files:
                return False
            self._put(path, data)
            return True

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self.replace(path, data, token)

    def replace(self, path: str, data: bytes, token: str) -> None:
        with _LOCK:
            self._put(path, data)

    def create(self, path: str) -> Output:
        if path in self._files:
            raise _taken(path)
        return _MemoryOutput(self, path)

    def sync(self, path: str) -> None:
        """Nothing: what is there is as durable as it gets."""

    def settle(self, paths: Paths) -> None:
        """Nothing: what is there is as durable as it gets."""

    def adopt(self, path: str, staged: str) -> None:
        if self.move([(path, staged)]):
            raise InternalError(f"adopt {path}", f"it is gone, or {staged} is taken", "Report it: names are random")

    def move(self, moves: Moves) -> Moves:
        undone: Moves = []
        for source, target in moves:
            with _LOCK:
                if source not in self._files or target in self._files:
                    undone.append((source, target))
                else:
                    # The very file, and not a copy. No reader of fsspec's misses it: for an instant it has both names.
                    self._files[target] = self._files[source]
                    del self._files[source]
        return undone

    def link(self, moves: Moves) -> Moves:
        undone: Moves = []
        for source, target in moves:
            with _LOCK:
                if source not in self._files or target in self._files:
                    undone.append((source, target))
                else:
                    self._put(target, bytes(self._files[source].getbuffer()))
        return undone

    def origin(self, path: str) -> str:
        return path  # one process, one name space: there is no other road

    def delete(self, path: str) -> bool:
        with _LOCK:
            return self._files.pop(path, None) is not None

    def prune(self, path: str, root: str) -> None:
        """Nothing: no directory outlives its files."""

    def same_place(self, path: str, other: str) -> bool:
        return True

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._system.pipe_file(path, data)
        except OSError as error:
            found = "a file has the name of one of its directories, or a directory has its name"
            raise InvalidRequestError(f"write {path}", found, "Name another path") from error
        except MemoryError as error:
            raise _no_room(path) from error


class _MemoryOutput:
    """A staged file: gathered here, in its place once it is sealed."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self._path = path
        self._buffer = io.BytesIO()
        self._is_sealed = False
        self.closed = False

    def write(self, data: bytes, /) -> int:
        try:
            return self._buffer.write(data)
        except MemoryError as error:
            raise _no_room(self._path) from error

    def flush(self) -> None:
        """Nothing: only `seal` gives the file its name."""

    def seal(self) -> None:
        self.closed = True
        if not self._store.put_if_absent(self._path, self._buffer.getvalue(), ""):
            raise _taken(self._path)
        self._is_sealed = True

    def discard(self) -> None:
        self.closed = True
        self._buffer = io.BytesIO()
        if self._is_sealed:
            # DELETES: a staged file; proof: this output sealed it, under a name nobody else has (I8).
            self._store.delete(self._path)


def _taken(path: str) -> InternalError:
    return InternalError(f"create {path}", "the name is taken", "Report it: names are random")


def _no_room(path: str) -> UnavailableError:
    return UnavailableError(f"write {path}", "the process has no memory left for it", "Make room, then retry")
