"""A file system as a test wants it: names in memory that can be moved, copied in microseconds, and mounted twice.

Promises: the verbs of `Store` as a local disk or HDFS has them, each in one step: a name is given once when asked so,
a move never overwrites. `after_kill` is what the next process finds; nothing is lost.
Relies on: nothing.
Does not promise: anything about power cuts, and states within a verb: for those there is `simdisk`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

from txsink.errors import InternalError, InvalidRequestError
from txsink.records import Upload
from txsink.store.protocol import Moves, Output, Paths, Store, Tail, Traits

DIRECTORY, MOUNTED = "/d", "/mounted"  # what `mounted` shows under a second name


class Names:
    """The file system: path and content."""

    def __init__(self, held: dict[str, bytes] | None = None) -> None:
        self.held: dict[str, bytes] = {} if held is None else held
        self.watch: Callable[[Names], None] | None = None  # called before every change

    def store(self) -> NameStore:
        """The file system as a new process has it."""
        return NameStore(self)

    def after_kill(self) -> Names:
        """The file system as the next process finds it."""
        return Names(dict(self.held))

    def fingerprint(self) -> str:
        """A name for all of it."""
        return hashlib.sha256(repr(sorted(self.held.items())).encode()).hexdigest()

    def files(self) -> dict[str, bytes]:
        """Path and content of every file."""
        return dict(self.held)

    def change(self) -> None:
        """What comes now changes the names."""
        if self.watch is not None:
            watch, self.watch = self.watch, None  # what the watcher does is not watched
            watch(self)
            self.watch = watch


class NameStore:
    """The file system as one process has it."""

    traits = Traits(links=True)

    def __init__(self, names: Names) -> None:
        self.names = names
        self._held = names.held

    def resolve(self, uri: str) -> str:
        path = uri.rstrip("/")
        if not path.startswith("/"):
            raise InvalidRequestError(f"open {uri}", "it is no path", "Give one")
        return path

    def read(self, path: str, limit: int) -> bytes | None:
        data = self._held.get(path)
        return None if data is None else data[: limit + 1]

    def tail(self, path: str, count: int) -> Tail | None:
        data = self._held.get(path)
        return None if data is None else Tail(len(data), data[max(0, len(data) - count) :], "")

    def list(self, path: str, limit: int | None = None) -> Paths:
        start = f"{path}/"
        return sorted([name[len(start) :] for name in self._held if name.startswith(start)])[:limit]

    def present(self, paths: Paths) -> Paths:
        return [path for path in paths if path in self._held]

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        if path in self._held:
            return False
        self._put(path, data)
        return True

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self._put(path, data)

    def replace(self, path: str, data: bytes, token: str) -> None:
        self._put(path, data)

    def create(self, path: str) -> Output:
        if path in self._held:
            raise InternalError(f"create {path}", "the name is taken", "Report it")
        return _NameOutput(self.names, path)

    def adopt(self, path: str, staged: str) -> None:
        if self.move([(path, staged)]):
            raise InternalError(f"adopt {path}", f"it is gone, or {staged} is taken", "Report it")

    def sync(self, path: str) -> None: ...

    def settle(self, paths: Paths) -> None:
        """Nothing: there is no power to cut."""

    def move(self, moves: Moves) -> Moves:
        undone: Moves = []
        for source, target in moves:
            if source in self._held and target not in self._held:
                self.names.change()
                self._held[target] = self._held.pop(source)
            else:
                undone.append((source, target))
        return undone

    def link(self, moves: Moves) -> Moves:
        undone: Moves = []
        for source, target in moves:
            if source in self._held and target not in self._held:
                self._put(target, self._held[source])
            else:
                undone.append((source, target))
        return undone

    def origin(self, path: str) -> str:
        return path

    def delete(self, path: str) -> bool:
        self.names.change()
        return self._held.pop(path, None) is not None

    def prune(self, path: str, root: str) -> None:
        """Nothing: no directory outlives its files."""

    def same_place(self, path: str, other: str) -> bool:
        return True

    def _put(self, path: str, data: bytes) -> None:
        self.names.change()
        self._held[path] = data


class _NameOutput:
    """A file being written: there from the first moment, as on a disk."""

    def __init__(self, names: Names, path: str) -> None:
        self._names, self._path = names, path
        names.change()
        names.held[path] = b""
        self.closed = False

    def write(self, data: bytes, /) -> int:
        held = self._names.held
        if self._path in held:  # else it was deleted while it was open
            self._names.change()
            held[self._path] += bytes(data)
        return len(data)

    def flush(self) -> None:
        """Nothing: a write is seen at once."""

    def seal(self) -> Upload | None:
        self.closed = True
        return None

    def discard(self) -> None:
        self.closed = True
        self._names.change()
        self._names.held.pop(self._path, None)


def mounted(store: Store) -> Store:
    """The store as a process has it that reaches `DIRECTORY` by the name `MOUNTED`, as by a bind mount."""
    return cast("Store", _Mounted(store))


class _Mounted:
    """Every path that is given is turned into the one behind the mount, every path of an answer back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.traits = store.traits

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        behind = getattr(self._store, verb)

        def call(*given: Any, **more: Any) -> Any:
            return _respelled(behind(*_respelled(given, MOUNTED, DIRECTORY), **more), DIRECTORY, MOUNTED)

        return call

    def resolve(self, uri: str) -> str:
        """The name that is given: a mount is no link."""
        self._store.resolve(_respelled(uri, MOUNTED, DIRECTORY))
        return uri

    def origin(self, path: str) -> str:
        """What every road shares."""
        return self._store.origin(_respelled(path, MOUNTED, DIRECTORY))


def _respelled(value: Any, former: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value[len(former) :] if value == former or value.startswith(f"{former}/") else value
    if type(value) in {list, tuple}:
        return type(value)(_respelled(one, former, new) for one in value)
    return value
