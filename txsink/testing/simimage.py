"""What a simulated disk holds, and what a power cut leaves of it. Pure functions over immutable values.

Promises: the worst that POSIX allows when the power goes:
    content is durable up to the file's last fsync; what came later is lost, whole, cut anywhere, or zeros;
    a name made or removed is durable once its directory was synced; until then each such operation survives
    or not on its own, in any combination; a replace is one operation, over two directories too.
Relies on: nobody changing a value that is in an image. Images share everything, so a copy costs microseconds.
Does not promise: what a given file system would do. Every real one is kinder than this.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol, TypeAlias

ROOT = 1
DEVICE_SHIFT = 32  # an inode number carries its device in the upper bits


class Operation(NamedTuple):
    """A change of names that is not durable yet. A replace over two directories has one `identity` in both."""

    identity: int
    gone: str | None
    new: str | None
    inode: int


class File(NamedTuple):
    """Content as seen, content as synced, time of the last change, number of names."""

    data: bytes
    durable: bytes
    mtime: int
    links: int


class Directory(NamedTuple):
    """Names as seen, names as synced, and what leads from these to those."""

    names: dict[str, int]
    durable: dict[str, int]
    pending: tuple[Operation, ...]


class Status(NamedTuple):
    """What `stat` answers; nothing of a directory but its kind and inode is worth comparing."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_size: int
    st_mtime_ns: int
    st_uid: int


Nodes: TypeAlias = dict[int, File | Directory]


class Chooser(Protocol):
    """What decides a power cut: a `random.Random`, or one of `every_choice`."""

    def randrange(self, stop: int, /) -> int:
        """A number below `stop`."""


Choice: TypeAlias = "Literal['lost', 'kept'] | Chooser"


def power_cut(nodes: Nodes, choice: Choice) -> Nodes:
    """The image after a power cut: all of it durable."""
    found: Nodes = {}
    survived: dict[int, bool] = {}
    todo = [ROOT]
    while todo:
        inode = todo.pop()
        node, known = nodes[inode], found.get(inode)
        if isinstance(node, Directory):
            names = _surviving_names(node, choice, survived)
            found[inode] = Directory(names, names, ())
            todo += names.values()
        elif isinstance(known, File):
            found[inode] = known._replace(links=known.links + 1)
        else:
            data = node.data if node.data is node.durable else _surviving_data(node, choice)
            found[inode] = File(data, data, node.mtime, 1)
    return found


def status(node: File | Directory, inode: int) -> Status:
    """The status of a node."""
    device = inode >> DEVICE_SHIFT
    if isinstance(node, File):
        return Status(stat.S_IFREG | 0o644, inode, device, node.links, len(node.data), node.mtime, os.geteuid())
    return Status(stat.S_IFDIR | 0o755, inode, device, 2, 4096, 0, os.geteuid())


def fingerprint(nodes: Nodes) -> str:
    """A name for the image: what is seen, is durable, may become durable; not inode numbers or times."""
    numbers: dict[int, int] = {}
    parts: list[object] = []
    todo = [ROOT]

    def number(inode: int) -> int:
        if inode not in numbers:
            numbers[inode] = len(numbers)
            todo.append(inode)
        return numbers[inode]

    while todo:
        node = nodes[todo.pop()]
        if isinstance(node, Directory):
            parts.append([(name, number(node.names[name])) for name in sorted(node.names)])
            if node.pending:
                parts.append([(name, number(node.durable[name])) for name in sorted(node.durable)])
                parts.append([(gone, new, number(inode)) for _, gone, new, inode in node.pending])
        else:
            parts.append(_digest(node.data))
            if node.durable is not node.data:
                parts.append([_digest(node.durable)])
    return blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def visible_files(nodes: Nodes) -> dict[str, bytes]:
    """Path and content of every file that is seen."""
    found = {}
    todo = [("", ROOT)]
    while todo:
        path, inode = todo.pop()
        node = nodes[inode]
        if isinstance(node, Directory):
            todo += [(f"{path}/{name}", child) for name, child in node.names.items()]
        else:
            found[path] = node.data
    return dict(sorted(found.items()))


class _Replay:
    """A Chooser that follows a list of decisions, then takes the first option of each."""

    def __init__(self, decisions: list[int]) -> None:
        self._decisions = decisions
        self.made: list[tuple[int, int]] = []

    def randrange(self, stop: int, /) -> int:
        at = len(self.made)
        taken = self._decisions[at] if at < len(self._decisions) else 0
        self.made.append((taken, stop))
        return taken


def every_choice() -> Iterator[Chooser]:
    """A Chooser for every combination of decisions: use each for ONE power cut, of one and the same image."""
    decisions: list[int] | None = []
    while decisions is not None:
        replay = _Replay(decisions)
        yield replay
        decisions = None
        for at in range(len(replay.made) - 1, -1, -1):
            taken, stop = replay.made[at]
            if taken + 1 < stop:
                decisions = [earlier for earlier, _ in replay.made[:at]] + [taken + 1]
                break


def some_choices(count: int, seed: int) -> list[Choice]:
    """All lost, all kept, and `count` random mixtures."""
    return ["lost", "kept", *(random.Random(f"{seed}-{n}") for n in range(count))]


def _surviving_names(node: Directory, choice: Choice, survived: dict[int, bool]) -> dict[str, int]:
    if not node.pending or choice == "lost":
        return node.durable
    if choice == "kept":
        return node.names
    names = dict(node.durable)
    for identity, gone, new, inode in node.pending:
        if identity not in survived:
            survived[identity] = choice.randrange(2) == 1
        if survived[identity]:
            if gone is not None:
                names.pop(gone, None)
            if new is not None:
                names[new] = inode
    return names


def _surviving_data(node: File, choice: Choice) -> bytes:
    if choice == "lost":
        return node.durable
    if choice == "kept":
        return node.data
    kept = len(node.durable) + choice.randrange(len(node.data) - len(node.durable) + 1)
    if kept == len(node.data):
        return node.data
    # A file system may have recorded the new length and not the blocks: they read as zeros.
    return node.data[:kept] + bytes(len(node.data) - kept) * choice.randrange(2)


@lru_cache(maxsize=1 << 14)
def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
