"""The local file system, with real durability.

Promises: those of `txsink.store`, on any POSIX file system that has hard links. A name appears together with
its whole content (`link` of a synced temporary), is never overwritten, and survives a power cut once the verb
has returned: file first, then the directory that names it, then the directories above.
Relies on: `system`, which is `os` (on macOS with a sync that reaches the platter) unless a test simulates a disk: a
synced file keeps its bytes, a synced directory keeps its names, `link` fails when the name is taken.
Does not promise: anything on file systems without hard links (FAT, some network mounts): they are refused.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import cast
from urllib.parse import unquote, urlsplit

from txsink.errors import CorruptError, InternalError, InvalidRequestError, UnavailableError
from txsink.paths import temporary_path
from txsink.store.local.darwin import system_of
from txsink.store.local.errors import mapped, refuse_foreign, refuse_without_directory_sync, refuse_without_links
from txsink.store.local.mounts import mount_of
from txsink.store.local.output import LocalOutput, write_all
from txsink.store.protocol import Moves, Output, Paths, Tail, Traits

_PUT_TRIES = 3
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_FILE_URI = re.compile("file:(?:///|//localhost/|/(?!/))")


class LocalStore:
    """The verbs of `Store` on a POSIX file system."""

    traits = Traits(links=True)

    def __init__(self, system: ModuleType | None = None) -> None:
        self._os = system_of() if system is None else system
        # Directories whose names this process has seen durable. A directory made by a process that died
        # before its sync is not among them, so it is synced once more here.
        self._durable = {"/"}

    def resolve(self, uri: str) -> str:
        path = unquote(urlsplit(uri).path) if _FILE_URI.match(uri) else uri
        if not path or "\x00" in path or path.startswith("file:"):
            raise InvalidRequestError(f"open {uri!r}", "it is no local path", "Give a path, or file:///path")
        if path.startswith("~"):  # as in pandas, Polars and DuckDB
            path = os.path.expanduser(path)  # noqa: PTH111 -- a path that is a text
            if path.startswith("~"):
                advice = f"Write the whole path, or ./{path} for a directory of that name"
                raise InvalidRequestError(f"open {uri!r}", "there is no such user, or no home directory", advice)
        with mapped(f"open {uri}"):
            path = self._os.path.realpath(path)
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(self._os.stat(path).st_mode):
                    raise InvalidRequestError(f"open {uri}", "it is a file, not a directory", "Name a directory")
        return cast("str", path)

    def read(self, path: str, limit: int) -> bytes | None:
        with mapped(f"read {path}"):
            handle = self._open_file(path)
            if handle is None:
                return None
            try:
                return self._read_at(handle, 0, min(self._status(handle, path).st_size, limit + 1))
            finally:
                self._os.close(handle)

    def tail(self, path: str, count: int) -> Tail | None:
        with mapped(f"read {path}"):
            handle = self._open_file(path)
            if handle is None:
                return None
            try:
                status = self._status(handle, path)
                start = max(0, status.st_size - count)
                data = self._read_at(handle, start, status.st_size - start)
                return Tail(status.st_size, data, f"{status.st_ino}-{status.st_mtime_ns}")
            finally:
                self._os.close(handle)

    def list(self, path: str, limit: int | None = None) -> list[str]:
        with mapped(f"list {path}"):
            return sorted(self._walk(path, limit))

    def present(self, paths: Paths) -> Paths:
        with mapped(f"look at {paths[0]}"):
            return [path for path in paths if self._inode(path) is not None]

    def put_if_absent(self, path: str, data: bytes, token: str) -> bool | None:
        for _ in range(_PUT_TRIES):
            created = self._put_once(path, data, token)
            if created is not None:
                return created
        raise UnavailableError(
            f"write {path}", f"its temporary file vanished {_PUT_TRIES} times", "Retry when nothing sweeps the table"
        )

    def put_hint(self, path: str, data: bytes, token: str) -> None:
        temporary = temporary_path(path, token)
        with mapped(f"write {path}"):
            self._write_new(temporary, data, durable=False)
            self._rename(temporary, path)

    def replace(self, path: str, data: bytes, token: str) -> None:
        temporary = temporary_path(path, token)
        with mapped(f"write {path}"):
            self._write_new(temporary, data, durable=True)
        with mapped(f"write {path}", changed=None):
            self._rename(temporary, path)
        with mapped(f"write {path}", changed=True):
            # ORDER: name durable before return, else a power cut brings the old content back (I3).
            self._sync_names(_parent(path))

    def create(self, path: str) -> Output:
        with mapped(f"create {path}"):
            try:
                handle = self._open_new(path)
            except FileExistsError as error:
                raise InternalError(f"create {path}", "the name is taken", "Report it: names are random") from error
        return LocalOutput(self._os, path, handle)

    def adopt(self, path: str, staged: str) -> None:
        with mapped(f"adopt {path}"):
            # ORDER: adopted bytes durable before their record exists, else a prepare entry names a torn file (I3).
            self._sync_opened(path, os.O_RDONLY)
            if not self._link(path, staged):
                raise InternalError(f"adopt {path}", f"{staged} is taken", "Report it: names are random")
            # DELETES: the name that another program gave; proof: its file has a name of ours (I8).
            self._os.unlink(path)

    def sync(self, path: str) -> None:
        with mapped(f"make {path} durable"), suppress(FileNotFoundError):
            self._sync_opened(path, os.O_RDONLY)

    def settle(self, paths: Iterable[str]) -> None:
        for directory in sorted({_parent(path) for path in paths}):
            with mapped(f"make the names in {directory} durable"):
                # A directory that is gone: it is its own name that must stay gone.
                try:
                    self._sync_names(self._nearest(directory))
                except OSError as error:
                    refuse_without_directory_sync(directory, error)
                    raise

    def move(self, moves: Moves) -> Moves:
        # ORDER: new names durable before old ones go, else a power cut loses the file under both (I3).
        undone = self.link(moves)
        for source, target in moves:
            if (source, target) not in undone:
                # DELETES: the old name of a file; proof: its new name, durable and of the same inode (I8).
                self.delete(source)
        return undone

    def link(self, moves: Moves) -> Moves:
        undone: Moves = []
        for source, target in moves:
            with mapped(f"move {source} to {target}"):
                if not self._link(source, target):
                    undone.append((source, target))
        # A name found taken is settled too: who made it may have died before that.
        self.settle([target for _, target in moves])
        return undone

    def origin(self, path: str) -> str:
        # Of no two directories of a file system that are both there, and the same by every link and mount.
        with mapped(f"look at {path}"):
            return str(self._os.stat(path).st_ino)

    def delete(self, path: str) -> bool:
        with mapped(f"delete {path}"):
            try:
                self._os.unlink(path)
            except FileNotFoundError:
                return False
        return True

    def prune(self, path: str, root: str) -> None:
        # Only empty directories go; whatever hinders that (a file, a right) is no failure.
        with suppress(OSError):
            while path.startswith(f"{root}/"):
                with suppress(FileNotFoundError):  # an earlier prune died half-way up
                    # DELETES: a directory; proof: the system removes it only empty (I8).
                    self._os.rmdir(path)
                self._durable.discard(path)
                path = _parent(path)

    def same_place(self, path: str, other: str) -> bool:
        with mapped(f"compare {path} and {other}"):
            one, two = (mount_of(self._os, self._nearest(directory)) for directory in (path, other))
            return one == two

    def _put_once(self, path: str, data: bytes, token: str) -> bool | None:
        """True: created; False: taken; None: somebody swept the temporary file."""
        temporary = temporary_path(path, token)
        # ORDER: content durable before its name, else a power cut leaves a torn entry (I13).
        with mapped(f"write {path}"):
            self._write_new(temporary, data, durable=True)
        with mapped(f"write {path}", changed=None):
            try:
                self._os.link(temporary, path)
            except FileExistsError:
                self._discard(temporary)
                return False
            except FileNotFoundError:
                return None
            except OSError as error:
                self._discard(temporary)
                refuse_without_links(path, error)
                raise
        with mapped(f"write {path}", changed=True):
            # ORDER: name durable before return, else a power cut takes back what was acknowledged (I3).
            self._sync_names(_parent(path))
        self._discard(temporary)
        return True

    def _write_new(self, path: str, data: bytes, *, durable: bool) -> None:
        try:
            handle = self._open_new(path)
        except FileExistsError:
            self._discard(path)  # left by an attempt of ours that failed: the token is ours alone
            handle = self._open_new(path)
        try:
            write_all(self._os, handle, data)
            if durable:
                self._os.fsync(handle)
        except OSError:
            self._discard(path)
            raise
        finally:
            self._os.close(handle)

    def _open_new(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        for _ in range(_PUT_TRIES):
            with suppress(FileNotFoundError):
                return cast("int", self._os.open(path, flags, 0o666))
            with suppress(FileNotFoundError):  # another run prunes what it finds empty
                self._make_directory(_parent(path))
        return cast("int", self._os.open(path, flags, 0o666))

    def _rename(self, source: str, target: str) -> None:
        try:
            self._os.replace(source, target)
        except OSError:
            self._discard(source)
            raise

    def _link(self, source: str, target: str) -> bool:
        """Whether the file has its new name, from now or from an attempt that died after it."""
        for _ in range(_PUT_TRIES):
            try:
                self._os.link(source, target)
            except FileExistsError:
                return self._inode(target) in {self._inode(source)} - {None}
            except FileNotFoundError:
                if self._inode(source) is None:
                    return False
                self._make_directory(_parent(target))
            except OSError as error:
                refuse_foreign(target, error, self._os.stat(source).st_uid)
                refuse_without_links(target, error)
                raise
            else:
                return True
        raise FileNotFoundError(errno.ENOENT, "its directory vanished while it was made")

    def _inode(self, path: str) -> tuple[int, int] | None:
        try:
            status = self._os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _make_directory(self, path: str) -> None:
        try:
            self._os.mkdir(path, 0o777)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_directory(_parent(path))
            with suppress(FileExistsError):
                self._os.mkdir(path, 0o777)
        self._durable.discard(path)

    def _sync_names(self, path: str) -> None:
        """Make the names in the directory durable, and the directory's own name, up to the root."""
        self._sync_directory(path)
        above = []
        while path not in self._durable:
            above.append(path)
            path = _parent(path)
            with suppress(PermissionError):  # not ours to read, so not ours to have made
                self._sync_directory(path)
        # Noted together: had a directory above failed, a retry that stops at `path` would never sync it.
        self._durable.update(above)

    def _sync_directory(self, path: str) -> None:
        self._sync_opened(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync_opened(self, path: str, flags: int) -> None:
        handle = self._os.open(path, flags)
        try:
            self._os.fsync(handle)
        finally:
            self._os.close(handle)

    def _open_file(self, path: str) -> int | None:
        """A handle to read from: what stands in a file's place is neither followed (a link) nor waited for (a pipe)."""
        try:
            return cast("int", self._os.open(path, _READ))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP and stat.S_ISLNK(self._os.lstat(path).st_mode):
                raise _no_file(path, "it is a symbolic link, which is not followed") from error
            raise

    def _status(self, handle: int, path: str) -> os.stat_result:
        status = self._os.fstat(handle)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # a directory says so when it is read
            raise _no_file(path, "it is a pipe or a device")
        return cast("os.stat_result", status)

    def _read_at(self, handle: int, start: int, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := self._os.pread(handle, count - len(data), start + len(data))):
            data += more
        return data

    def _walk(self, root: str, limit: int | None) -> Iterator[str]:
        """The files below, those nearest to the root first; `limit`: how many names are looked at."""
        waiting, looked_at = deque([""]), 0
        while waiting:
            below = waiting.popleft()
            try:
                names = self._os.listdir(f"{root}/{below}" if below else root)
            except FileNotFoundError:
                continue
            except PermissionError:
                if limit is None or not below:
                    raise
                continue  # lost+found, say
            for name in sorted(names):
                if looked_at == limit:
                    return
                looked_at += 1
                path = f"{below}/{name}" if below else name
                # lstat: a symbolic link is a file to us, never a way out of the root.
                try:
                    status = self._os.lstat(f"{root}/{path}")
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                else:
                    yield path

    def _nearest(self, path: str) -> str:
        while self._inode(path) is None:
            path = _parent(path)
        return path

    def _discard(self, path: str) -> None:
        with suppress(OSError):
            # DELETES: a temporary; proof: its token is this call's alone (I8).
            self._os.unlink(path)


def _no_file(path: str, found: str) -> CorruptError:
    advice = "Put the file back, or where there was none take away what lies there; nothing was changed"
    return CorruptError(f"read {path}", found, advice, path=path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
