"""A POSIX file system in memory, to be handed to `LocalStore(system=...)` in place of `os`.

Promises: what `os` does on Linux, errors included, for the calls that `txsink.store.local.store` makes (checked against
the real thing in `test_simdisk.py`); the power cuts of `simimage`; and one thing more that real disks do: a failed
fsync of a file has dropped the content, so a later fsync that succeeds proves nothing.
Relies on: `simimage`: copies share everything but one dictionary.
Does not promise: symbolic links, permissions, size and time of directories, reuse of inode numbers. What is asked
for and not modelled (`..`, renaming a directory, writing to an existing file) raises NotImplementedError.

A run can die in two ways that lead to the same states: `crash_at(n)` raises `Crash` at the n-th changing call and
at every call after it, so that no `finally` or `except` of the dead does anything; `watch` is called before every
changing call and may take copies, which gives all crash states of a run in one pass.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from typing import Literal, NamedTuple, cast

from txsink.testing import simimage
from txsink.testing.simimage import DEVICE_SHIFT, ROOT, Choice, Directory, File, Nodes, Operation, Status

_NAME_BYTES_MAX = 255


class Crash(BaseException):
    """The process is dead."""


class _Handle(NamedTuple):
    inode: int
    path: str
    writable: bool


class _Path:
    """`os.path`, as far as it is used."""

    @staticmethod
    def realpath(path: str) -> str:
        """Absolute and normal: there are no symbolic links here, and the working directory is the root."""
        return f"/{posixpath.normpath(f'/{path}').lstrip('/')}"


class SimDisk:
    """One disk and the one process that uses it."""

    path = _Path

    def __init__(self) -> None:
        self._nodes: Nodes = {ROOT: Directory({}, {}, ())}
        self._next = ROOT + 1
        self._dropped: frozenset[int] = frozenset()
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 3
        self._dead = False
        self._crash = (0, "before")
        self._faults: dict[int, int] = {}
        self._faults_on: dict[str, int] = {}
        self.calls = 0  # changing calls begun
        self.delivered = 0  # planned faults and crashes that happened
        self.trace: list[tuple[str, str]] = []  # every call
        self.watch: Callable[[SimDisk], None] | None = None
        self.read_only = False
        self.has_hard_links = True
        self.capacity_bytes: int | None = None
        self.write_bytes_max: int | None = None

    # -- what a test asks for ---------------------------------------------------------------------------

    def crash_at(self, call: int, when: Literal["before", "after"] = "before") -> None:
        """Die at the `call`-th changing call."""
        self._crash = (call, when)

    def fail_at(self, call: int, code: int) -> None:
        """The `call`-th changing call fails with `code`, without effect; EROFS stays."""
        self._faults[call] = code

    def fail_on(self, name: str, code: int) -> None:
        """The next call of the function `name` fails with `code`."""
        self._faults_on[name] = code

    def mount(self, path: str) -> None:
        """An empty directory on a device of its own, there for good."""
        parent, name = self._place(path)
        node = self._directory(parent, path)
        device = max(inode >> DEVICE_SHIFT for inode in self._nodes) + 1
        inode = self._tick() | device << DEVICE_SHIFT
        self._nodes[inode] = Directory({}, {}, ())
        self._nodes[parent] = Directory(node.names | {name: inode}, node.durable | {name: inode}, node.pending)

    def after_kill(self) -> SimDisk:
        """The disk as the next process finds it: nothing is lost, nothing was synced."""
        return self._next_disk(dict(self._nodes), self._dropped)

    def after_power_cut(self, choice: Choice) -> SimDisk:
        """The disk as the next boot finds it; `choice` decides what the caches had written."""
        return self._next_disk(simimage.power_cut(self._nodes, choice), frozenset())

    def fingerprint(self) -> str:
        """A name for the whole image, durable or not."""
        return simimage.fingerprint(self._nodes)

    def files(self) -> dict[str, bytes]:
        """Path and content of every file that is seen."""
        return simimage.visible_files(self._nodes)

    def syncs(self) -> int:
        """How many fsyncs this process made."""
        return sum(name == "fsync" for name, _ in self.trace)

    def used_bytes(self) -> int:
        """Bytes of the files that have a name or are open."""
        is_open = {held.inode for held in self._handles.values()}
        files = ((inode, node) for inode, node in self._nodes.items() if isinstance(node, File))
        return sum(len(node.data) for inode, node in files if node.links or inode in is_open)

    # -- the calls of os --------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file or directory for reading, or make a new file for writing."""
        if flags & os.O_CREAT:
            if flags != os.O_WRONLY | os.O_CREAT | os.O_EXCL:
                raise NotImplementedError(flags)
            self._begin("open", path)
            inode = self._new(path, File(b"", b"", self._tick(), 1))
        else:
            self._enter("open", path)
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise NotImplementedError(flags)
            inode = self._find(path)
            if flags & os.O_DIRECTORY and isinstance(self._nodes[inode], File):
                raise _error(errno.ENOTDIR, path)
        handle = self._next_handle  # never reused: a stale handle must not work
        self._next_handle += 1
        self._handles[handle] = _Handle(inode, path, bool(flags & os.O_CREAT))
        self._leave()
        return handle

    def close(self, handle: int) -> None:
        """Give the handle back, also when that reports an error."""
        held = self._held(handle)
        del self._handles[handle]
        self._enter("close", held.path)

    def write(self, handle: int, data: bytes | bytearray | memoryview) -> int:
        """Add bytes, as many as there is room for."""
        held = self._held(handle)
        self._begin("write", held.path)
        if not held.writable:
            raise _error(errno.EBADF, held.path)
        chunk = bytes(data)[: self.write_bytes_max]
        if self.capacity_bytes is not None and chunk:
            chunk = chunk[: max(0, self.capacity_bytes - self.used_bytes())]
            if not chunk:
                raise _error(errno.ENOSPC, held.path)
        node = cast("File", self._nodes[held.inode])
        if chunk:
            self._nodes[held.inode] = node._replace(data=node.data + chunk, mtime=self._tick())
        self._leave()
        return len(chunk)

    def pread(self, handle: int, count: int, offset: int) -> bytes:
        """Bytes of the file from `offset`."""
        held = self._held(handle)
        self._enter("pread", held.path)
        node = self._nodes[held.inode]
        if held.writable:
            raise _error(errno.EBADF, held.path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, held.path)
        return node.data[offset : offset + count]

    def fsync(self, handle: int) -> None:
        """Make a file's content, or a directory's names, durable."""
        held = self._held(handle)
        try:
            self._begin("fsync", held.path)
        except OSError:
            self._dropped |= {held.inode}
            raise
        node = self._nodes[held.inode]
        if isinstance(node, Directory):
            self._nodes[held.inode] = Directory(node.names, node.names, ())
        elif held.inode not in self._dropped:
            self._nodes[held.inode] = node._replace(durable=node.data)
        self._leave()

    def fstat(self, handle: int) -> Status:
        """The status of what is open."""
        held = self._held(handle)
        self._enter("fstat", held.path)
        return simimage.status(self._nodes[held.inode], held.inode)

    def stat(self, path: str) -> Status:
        """The status of what has this name."""
        self._enter("stat", path)
        inode = self._find(path)
        return simimage.status(self._nodes[inode], inode)

    lstat = stat  # there are no symbolic links

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in the order they came to be."""
        self._enter("listdir", path)
        return list(self._directory(self._find(path), path).names)

    def link(self, source: str, target: str) -> None:
        """One more name for a file."""
        self._begin("link", target)
        inode = self._find(source)
        parent, name = self._place(target)
        if self._lookup(parent, name, target) is not None:
            raise _error(errno.EEXIST, target)
        node = self._nodes[inode]
        if inode >> DEVICE_SHIFT != parent >> DEVICE_SHIFT:
            raise _error(errno.EXDEV, target)
        if isinstance(node, Directory) or not self.has_hard_links:
            raise _error(errno.EPERM, target)
        self._nodes[inode] = node._replace(links=node.links + 1)
        self._change(parent, None, name, inode)
        self._leave()

    def unlink(self, path: str) -> None:
        """Remove a name of a file."""
        self._begin("unlink", path)
        parent, name = self._place(path)
        inode = self._found(parent, name, path)
        node = self._nodes[inode]
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        self._nodes[inode] = node._replace(links=node.links - 1)
        self._change(parent, name, None, inode)
        self._leave()

    def replace(self, source: str, target: str) -> None:
        """Give a file another name, which may be taken."""
        self._begin("replace", target)
        parent, name = self._place(source)
        target_parent, target_name = self._place(target)
        if parent >> DEVICE_SHIFT != target_parent >> DEVICE_SHIFT:
            raise _error(errno.EXDEV, target)
        inode = self._found(parent, name, source)
        if isinstance(self._nodes[inode], Directory):
            raise NotImplementedError(source)
        former = self._lookup(target_parent, target_name, target)
        if former == inode:
            return  # two names of one file: POSIX leaves both
        if former is not None:
            node = self._nodes[former]
            if isinstance(node, Directory):
                raise _error(errno.ENOTEMPTY if source.startswith(f"{target}/") else errno.EISDIR, target)
            self._nodes[former] = node._replace(links=node.links - 1)
        if parent == target_parent:
            self._change(parent, name, target_name, inode)
        else:
            identity = self._tick()
            self._change(target_parent, None, target_name, inode, identity)
            self._change(parent, name, None, inode, identity)
        self._leave()

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a directory."""
        self._begin("mkdir", path)
        self._new(path, Directory({}, {}, ()))
        self._leave()

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._begin("rmdir", path)
        parent, name = self._place(path)
        inode = self._found(parent, name, path)
        if self._directory(inode, path).names:
            raise _error(errno.ENOTEMPTY, path)
        self._change(parent, name, None, inode)
        self._leave()

    # -- pieces -----------------------------------------------------------------------------------------

    def _next_disk(self, nodes: Nodes, dropped: frozenset[int]) -> SimDisk:
        disk = SimDisk()
        disk._nodes, disk._next, disk._dropped = nodes, self._next, dropped
        disk.has_hard_links, disk.capacity_bytes = self.has_hard_links, self.capacity_bytes
        return disk

    def _enter(self, name: str, path: str) -> None:
        """Every call passes here, or through `_begin`."""
        if self._dead or self._crash == (self.calls, "after"):
            self._die()
        self.trace.append((name, path))
        if name in self._faults_on:
            self.delivered += 1
            raise _error(self._faults_on.pop(name), path)

    def _begin(self, name: str, path: str) -> None:
        """Every changing call passes here first."""
        watch, self.watch = self.watch, None  # what the watcher does is not watched
        if watch and not self._dead:
            watch(self)
        self.watch = watch
        self._enter(name, path)
        self.calls += 1
        if self._crash == (self.calls, "before"):
            self._die()
        code = self._faults.pop(self.calls, 0)
        if code:
            self.delivered += 1
            self.read_only = self.read_only or code == errno.EROFS
        if code or self.read_only:
            raise _error(code or errno.EROFS, path)

    def _leave(self) -> None:
        """Every changing call that took effect passes here last."""
        if self._crash == (self.calls, "after"):
            self._die()

    def _die(self) -> None:
        self.delivered += not self._dead
        self._dead = True
        raise Crash

    def _tick(self) -> int:
        self._next += 1
        return self._next

    def _held(self, handle: int) -> _Handle:
        if self._dead:
            self._die()
        if handle not in self._handles:
            raise _error(errno.EBADF, "")
        return self._handles[handle]

    def _new(self, path: str, node: File | Directory) -> int:
        parent, name = self._place(path)
        if not name or self._lookup(parent, name, path) is not None:
            raise _error(errno.EEXIST, path)
        if self.capacity_bytes is not None and self.used_bytes() >= self.capacity_bytes:
            raise _error(errno.ENOSPC, path)
        inode = self._tick() | parent >> DEVICE_SHIFT << DEVICE_SHIFT
        self._nodes[inode] = node
        self._change(parent, None, name, inode)
        return inode

    def _find(self, path: str) -> int:
        inode = ROOT
        for name in path.split("/"):
            if name:
                inode = self._found(inode, name, path)
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        """The directory of a name, and the name."""
        above, _, name = path.rstrip("/").rpartition("/")
        parent = self._find(above)
        self._directory(parent, path)
        return parent, name

    def _found(self, parent: int, name: str, path: str) -> int:
        inode = self._lookup(parent, name, path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _lookup(self, parent: int, name: str, path: str) -> int | None:
        node = self._nodes[parent]
        if isinstance(node, File):
            raise _error(errno.ENOTDIR, path)
        inode = node.names.get(name)
        if inode is None:
            if "\x00" in name:
                message = "embedded null byte"
                raise ValueError(message)
            if name in (".", ".."):
                raise NotImplementedError(path)
            if len(os.fsencode(name)) > _NAME_BYTES_MAX:
                raise _error(errno.ENAMETOOLONG, path)
        return inode

    def _directory(self, inode: int, path: str) -> Directory:
        node = self._nodes[inode]
        if isinstance(node, File):
            raise _error(errno.ENOTDIR, path)
        return node

    def _change(self, parent: int, gone: str | None, new: str | None, inode: int, identity: int = 0) -> None:
        node = cast("Directory", self._nodes[parent])
        names = dict(node.names)
        if gone is not None:
            del names[gone]
        if new is not None:
            names[new] = inode
        operation = Operation(identity or self._tick(), gone, new, inode)
        self._nodes[parent] = Directory(names, node.durable, (*node.pending, operation))


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
