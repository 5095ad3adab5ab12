"""HDFS, without Java on this side.

Promises: those of `txsink.store`, as long as the NameNode keeps its edit log. A name appears together with its whole
content (a temporary file, hsync, close, then a rename that never overwrites), and is durable when the verb returns: the
NameNode syncs its edit log before it answers, the DataNodes sync the last packet of each block.
Relies on: `hdfs_calls` for deadlines and errors; create and rename without overwrite, which are atomic; names that are
never used twice. So no lease of a dead writer is in anybody's way, and none needs recovery: what it left open is
deleted, or passed by.
Does not promise: moves between the mounts of a viewfs or over the border of an encryption zone (`same_place` finds
out); erasure-coded directories (they cannot hsync); outputs that outlive a fork.

Paths are taken as Hadoop and Spark take them: a percent sign is a percent sign. `hdfs://host:8020/a`,
`hdfs://nameservice/a`, `viewfs://cluster/a`; `hdfs:///a` lies on the default file system of HADOOP_CONF_DIR.
Storage options: `deadline_seconds`; `config_dir`, which stands in for HADOOP_CONF_DIR; those of Kerberos; and any
Hadoop setting by its name, which has a dot.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import RawIOBase
from itertools import islice
from typing import TypeVar

from hdfs_native import Client, FileReader, FileStatus, FileWriter, WriteOptions

from txsink.errors import InternalError, InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.paths import temporary_path
from txsink.store.hdfs.calls import ONE_PLACE, SCHEMES, Calls, Line, is_refusal, is_silence, look
from txsink.store.protocol import Moves, Output, Paths, Tail, Traits

_T = TypeVar("_T")

_BUFFER_BYTES, _PIECE_BYTES, _LISTED, _TRIES, _PUT_TRIES = 1 << 20, 8 << 20, 1000, 4, 16
_BLOCKS = {"DataTransferError", "BlocksNotFound", "ChecksumError"}
_REPORT_TRIES, _REPORT_SECONDS = 250, 0.02
_NO_PATH = re.compile("[:\x00\ud800-\udfff]")


class HdfsStore:
    """The verbs of `Store` on HDFS."""

    traits = Traits()

    def __init__(self, uri: str, options: dict[str, object]) -> None:
        self._calls = Calls(_split(uri)[0], options)

    def resolve(self, uri: str) -> str:
        here = self._calls.place
        place, path = _split(uri) if "://" in uri else (here, uri)
        if place != here:
            raise InvalidRequestError(f"open {uri}", f"the store is {here}", "Name both in the same way")
        resolved = "/" + posixpath.normpath(path).lstrip("/")
        # The NameNode refuses a colon too, but only at the first write.
        if not path.startswith("/") or resolved == "/" or _NO_PATH.search(path):
            found = "it is no absolute path below the root, or holds a colon, a NUL or half of a character"
            raise InvalidRequestError(f"open {uri!r}", found, "Give hdfs://host:port/path")
        return resolved

    def read(self, path: str, limit: int) -> bytes | None:
        what = f"read {path}"

        def begin(client: Client) -> tuple[FileReader, int, bytes]:
            reader = client.read(path)
            count = min(len(reader), limit + 1)
            return reader, count, reader.read_range(0, min(count, _PIECE_BYTES))

        def whole() -> bytes:
            reader, count, data = self._calls.do(what, begin, expects=FileNotFoundError)
            pieces = [data]
            for start in range(_PIECE_BYTES, count, _PIECE_BYTES):
                more = partial(reader.read_range, start, min(_PIECE_BYTES, count - start))
                pieces.append(self._calls.do(what, lambda _: more()))  # noqa: B023 -- called at once
            return b"".join(pieces) if len(pieces) > 1 else data

        return _read_again(whole)

    def tail(self, path: str, count: int) -> Tail | None:
        def end(client: Client) -> Tail:
            status = client.get_file_info(path)
            # A file is never changed in place, and a rename leaves its time alone.
            stamp = f"{status.modification_time}-{status.length}"
            if not count and not status.isdir:
                return Tail(status.length, b"", stamp)
            reader = _whole(client, path, status.length)
            start = max(0, len(reader) - count)
            return Tail(len(reader), reader.read_range(start, len(reader) - start), stamp)

        return _read_again(lambda: self._calls.do(f"read {path}", end, expects=FileNotFoundError))

    def list(self, path: str, limit: int | None = None) -> Paths:
        what = f"list {path}"
        for _ in range(_TRIES):
            found: Paths = []
            entries = self._calls.do(what, lambda client: client.list_status(path, recursive=True))
            # Piece by piece: however much there is, each piece has its deadline.
            try:
                while piece := self._calls.do(what, partial(_some, entries), expects=FileNotFoundError):
                    found += [entry.path[len(path) + 1 :] for entry in piece if not entry.isdir]
                    if limit is not None:
                        break
            except FileNotFoundError:  # the directory, or one below it that somebody prunes
                if not self._exists(path, what):
                    return []
            else:
                return sorted(found)[:limit]
        raise UnavailableError(what, f"directories below it vanished {_TRIES} times", "Retry")

    def present(self, paths: Paths) -> Paths:
        return [path for path in paths if self._exists(path, f"look at {path}")]

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        what = f"write {path}"
        made: Paths = []
        try:
            for number in range(_PUT_TRIES):
                # The file of an earlier attempt is passed by, not written anew: a rename of it that is still under
                # way must find it whole.
                made.append(temporary_path(path, f"{token}-{number}" if number else token))
                with suppress(FileExistsError):
                    self._write_new(made[-1], data, what)
                    break
            else:
                raise UnavailableError(what, f"{len(made)} earlier attempts left their files", "Retry")
            created = self._rename(made[-1], path, what)
        except (FileNotFoundError, OutcomeUnknownError):
            return None
        except TxsinkError as error:
            self._discard(made, error)
            raise
        self._discard(made[:-1] if created else made)
        return created

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        self.replace(path, data, token)

    def replace(self, path: str, data: bytes, token: str) -> None:
        what, temporary = f"write {path}", temporary_path(path, token)
        try:
            self._write_new(temporary, data, what, overwrite=True)
            self._rename(temporary, path, what, overwrite=True)
        except FileNotFoundError as error:
            raise UnavailableError(
                what, "its temporary file vanished", "Retry when nothing sweeps the table"
            ) from error
        except OutcomeUnknownError as error:
            if look(error, lambda: self.read(path, len(data))) != data:
                raise
        except TxsinkError as error:
            self._discard([temporary], error)
            raise

    def create(self, path: str) -> Output:
        what = f"create {path}"
        line = self._calls.line(what)
        try:
            writer = self._calls.do(what, _creating(path), expects=FileExistsError, line=line)
        except FileExistsError as error:
            raise InternalError(what, "the name is taken", "Report it: names are random") from error
        return _HdfsOutput(self, self._calls, line, path, writer)

    def sync(self, path: str) -> None:
        """Nothing: what another program closed is on its DataNodes, synced with dfs.datanode.synconclose."""

    def settle(self, paths: Paths) -> None:
        """Nothing: the NameNode synced its edit log before it answered."""

    def adopt(self, path: str, staged: str) -> None:
        # As durable as its writer closed it: DataNodes sync a closed file only with dfs.datanode.synconclose.
        if self.move([(path, staged)]):
            raise InternalError(f"adopt {path}", f"it is gone, or {staged} is taken", "Report it: names are random")

    def move(self, moves: Moves) -> Moves:
        return [move for move in moves if not self._move(*move)]

    def origin(self, path: str) -> str:
        return path  # without the authority: a file system has one name space

    def delete(self, path: str) -> bool:
        def once() -> bool:
            return self._calls.do(f"delete {path}", lambda client: client.delete(path, recursive=False), changes=True)

        try:
            return once()
        except OutcomeUnknownError as error:
            look(error, once)
            return True

    def prune(self, path: str, root: str) -> None:
        # A directory that holds something is not deleted. That ends it, as does whatever else hinders it.
        with suppress(TxsinkError):
            while path.startswith(f"{root}/"):
                self.delete(path)  # DELETES: a directory; proof: the NameNode deletes it only empty (I8).
                path = _parent(path)

    def same_place(self, path: str, other: str) -> bool:
        what = f"compare {path} and {other}"
        one, two = (self._nearest(directory, what) for directory in (path, other))
        if one == two:
            return True
        # Only a rename tells where mounts and zones end. An empty directory moves as a file does; no reader minds it.
        probe, moved = (f"{directory.rstrip('/')}/.same-place.tmp" for directory in (two, one))
        try:
            self._make_directory(probe, what)
            with suppress(FileNotFoundError):  # somebody else compares the same two
                self._rename(probe, moved, what)
        except InvalidRequestError as error:
            if error.advice != ONE_PLACE:
                raise
            return False
        finally:
            self._discard([probe, moved])
        return True

    # -- pieces ---------------------------------------------------------------------------------------

    def _write_new(self, path: str, data: bytes, what: str, *, overwrite: bool = False) -> None:
        create = _creating(path, overwrite=overwrite)

        def whole(client: Client) -> None:
            writer = create(client)
            writer.write(data)
            writer.hsync()
            writer.close()
            # ORDER: a file read whole before it gets its name, else a reader takes an entry whose end no DataNode has
            # reported yet for an empty one (I13).
            _whole(client, path, len(data))

        self._calls.do(what, whole, expects=FileExistsError)

    def _rename(self, source: str, target: str, what: str, *, overwrite: bool = False) -> bool:
        """Whether the name was free; FileNotFoundError when the source is missing or the target's directory is."""
        expects = (FileExistsError, FileNotFoundError)
        try:
            self._calls.do(what, lambda client: client.rename(source, target, overwrite), expects=expects, changes=True)
        except FileExistsError:
            return False
        return True

    def _move(self, source: str, target: str) -> bool:
        what = f"move {source} to {target}"
        lost: OutcomeUnknownError | None = None
        for _ in range(_TRIES):
            try:
                with suppress(FileNotFoundError):
                    return self._rename(source, target, what)
            except OutcomeUnknownError as error:
                if is_silence(error):
                    raise
                lost = error
            except UnavailableError as error:
                raise lost or error from None
            try:
                # Gone, perhaps by a rename whose answer was lost: the caller finds it under its new name.
                if not self._exists(source, what):
                    return False
                self._make_directory(_parent(target), what)
            except UnavailableError as error:
                raise lost or error from None
        raise lost or UnavailableError(what, f"the target's directory vanished {_TRIES} times", "Retry")

    def _make_directory(self, path: str, what: str) -> None:
        self._calls.do(what, lambda client: client.mkdirs(path, create_parent=True))

    def _exists(self, path: str, what: str) -> bool:
        with suppress(FileNotFoundError):
            self._calls.do(what, lambda client: client.get_file_info(path), expects=FileNotFoundError)
            return True
        return False

    def _nearest(self, path: str, what: str) -> str:
        while not self._exists(path, what):
            path = _parent(path)
        return path

    def _discard(self, paths: Paths, error: TxsinkError | None = None) -> None:
        """Delete what nobody names; not when HDFS has just failed to answer."""
        if error is not None and not is_refusal(error):
            return
        with suppress(TxsinkError):
            for path in paths:
                self.delete(path)  # DELETES: temporaries; proof: names of this very call (I8).


class _HdfsOutput:
    """A staged file: gathers small writes, syncs on `seal`; once failed it stays failed."""

    def __init__(self, store: HdfsStore, calls: Calls, line: Line, path: str, writer: FileWriter) -> None:
        self._store, self._calls, self._line, self._path = store, calls, line, path
        self._writer = writer
        self._buffer = bytearray()
        self._bytes = 0
        self._failure: TxsinkError | None = None
        self.closed = False

    def write(self, data: bytes, /) -> int:
        view = memoryview(data).cast("B")
        self._bytes += len(view)
        if len(self._buffer) + len(view) > _BUFFER_BYTES:
            self._empty()
            while len(view) > _BUFFER_BYTES:
                self._do("write", partial(_write, self._writer, view[:_PIECE_BYTES]))
                view = view[_PIECE_BYTES:]
        self._buffer += view
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing: only `seal` makes bytes durable."""

    def seal(self) -> None:
        self._empty()
        self._do("sync", lambda _: self._writer.hsync())
        self.closed = True
        self._do("close", lambda _: self._writer.close())
        self._do("close", lambda client: _whole(client, self._path, self._bytes))

    def discard(self) -> None:
        self.closed = True
        self._store._discard([self._path])  # noqa: SLF001

    def _empty(self) -> None:
        if self._buffer:
            self._do("write", partial(_write, self._writer, self._buffer))
            self._buffer = bytearray()

    def _do(self, verb: str, act: Callable[[Client], object]) -> None:
        # Nobody knows how much a failed write wrote.
        if self._failure:
            raise self._failure
        try:
            self._calls.do(f"{verb} {self._path}", act, line=self._line)
        except TxsinkError as error:
            self._failure = error
            raise


def _creating(path: str, *, overwrite: bool = False) -> Callable[[Client], FileWriter]:
    options = WriteOptions(overwrite=overwrite)

    def create(client: Client) -> FileWriter:
        writer = client.create(path, options)
        # Closed as far as Python knows: else its finalizer would close a half-written file, and wait for HDFS.
        RawIOBase.close(writer)
        return writer

    return create


def _write(writer: FileWriter, data: bytearray | memoryview, _: Client) -> None:
    writer.write(data)


def _whole(client: Client, path: str, size: int) -> FileReader:
    """A reader of all `size` bytes. The last block counts once a DataNode has reported it, which may be after close."""
    for _ in range(_REPORT_TRIES):
        reader = client.read(path)
        if len(reader) >= size:
            return reader
        threading.Event().wait(_REPORT_SECONDS)
    found = f"it has {len(reader)} of {size} bytes: it is still open, or no DataNode reports its last block"
    raise UnavailableError(f"read {path}", found, "Retry when enough DataNodes serve")


def _some(entries: Iterator[FileStatus], _: Client) -> list[FileStatus]:
    return [*islice(entries, _LISTED)]


def _read_again(act: Callable[[], _T]) -> _T | None:
    """What `act` reads; anew when the file was replaced meanwhile, so that its blocks are gone. None without a file."""
    for _ in range(_TRIES - 1):
        try:
            return act()
        except FileNotFoundError:
            return None
        except UnavailableError as error:
            if error.context.get("exception") not in _BLOCKS:
                raise
    try:
        return act()
    except FileNotFoundError:
        return None


def _split(uri: str) -> tuple[str, str]:
    """Scheme and authority, and the path."""
    scheme, _, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    if scheme not in SCHEMES or "@" in authority:
        found = f"the scheme is none of {', '.join(SCHEMES)}, or a user is named"
        raise InvalidRequestError("open a path of HDFS", found, "Give hdfs://host:port/path")
    return f"{scheme}://{authority}", slash + path


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
