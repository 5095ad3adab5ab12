"""Disks that fill up and disks whose power goes: small tmpfs mounts, and file systems in image files. For root only.

Promises: `small_disk` has room for exactly so many pages; `go_dark` ends the process in the moment of the power cut,
and what the disk had not made durable by then is gone (the shutdown ioctl, without a flush of the journal).
Relies on: mount, losetup through it, mkfs; Linux.
Does not promise: what a disk does that lies about its cache. The file system's promises are what is tried.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast

import installs

# Which file systems, how they are made, and how large they must be at least.
KINDS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], 32 << 20),
    "xfs": (["mkfs.xfs", "-q", "-f"], 300 << 20),
}
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32): EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN alike
_NO_LOG_FLUSH = (2).to_bytes(4, "little")
_ROOM = "64m"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


# -- small disks ------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(path: Path, pages: int) -> Iterator[None]:
    _run("mount", "-t", "tmpfs", "-o", f"size={pages * mmap.PAGESIZE}", "txsink-test", str(path))
    try:
        yield
    finally:
        _run("umount", str(path))


def enlarge(path: Path) -> None:
    _run("mount", "-o", f"remount,size={_ROOM}", str(path))


# -- power ------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A file system in an image file, mounted at `path`; `beside` it lies what outlives it."""

    kind: str
    image: Path
    path: Path
    beside: Path
    is_mounted: bool = False

    def format(self) -> None:
        """Empty, and mounted."""
        self.unmount()
        make, size = KINDS[self.kind]
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(size)
        _run(*make, str(self.image))
        self._mount()

    def again(self) -> None:
        """Mounted again, as after a start of the machine: the journal is replayed."""
        self.unmount()
        self._mount()

    def unmount(self) -> None:
        if self.is_mounted:  # asked of the disk itself, one without power says no
            _run("umount", str(self.path))
            self.is_mounted = False

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))
        self.is_mounted = True


@contextmanager
def disk(root: Path, kind: str) -> Iterator[Disk]:
    beside = root / kind
    path = beside / "mounted"
    path.mkdir(parents=True)
    found = Disk(kind, beside / "image", path, beside)
    try:
        yield found
    finally:
        found.unmount()
        found.image.unlink(missing_ok=True)


# What the store asks of the system. Files are read from the cache, where a cut changes nothing.
_COUNTED = ("open", "write", "fsync", "close", "link", "unlink", "replace", "mkdir", "rmdir")


def counted(before: Callable[[], object], system: ModuleType = os) -> ModuleType:
    """The system, with something done before each of its calls."""

    def call(act: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **named: Any) -> Any:
            before()
            return act(*arguments, **named)

        return do

    found = SimpleNamespace(**{name: getattr(system, name) for name in dir(system)})
    for name in _COUNTED:
        setattr(found, name, call(getattr(system, name)))
    return cast("ModuleType", found)


def cut_at(call: int, dark: Callable[[], object], system: ModuleType = os) -> ModuleType:
    """The system, whose power goes before that call."""
    number = itertools.count(1)
    return counted(lambda: dark() if next(number) == call else None, system)


def go_dark(mounted: Path, ends: Path) -> NoReturn:
    """The power goes, and the process with it; `ends` is made in that moment, on another disk."""
    handle = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.ioctl(handle, _SHUTDOWN, _NO_LOG_FLUSH)
    ends.touch()
    os._exit(0)


def hindrance(root: Path, kind: str = "tmpfs") -> str:
    """Why no such disk can be had here; empty when it can. What was tried is undone."""
    if os.geteuid() != 0:
        return "only root mounts disks"
    if kind in KINDS and (reason := installs.missing(KINDS[kind][0][0])):
        return reason
    trial = root / f"trial-{kind}"
    trial.mkdir()
    try:
        if kind not in KINDS:
            with small_disk(trial, 1):
                return ""
        with disk(trial, kind) as one:
            one.format()
            handle = os.open(one.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.ioctl(handle, _SHUTDOWN, _NO_LOG_FLUSH)
            finally:
                os.close(handle)
            one.again()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        return f"no {kind} disk can be mounted here: {said.decode(errors='replace').strip() or error}"
    finally:
        shutil.rmtree(trial)
    return ""
