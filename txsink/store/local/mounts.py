"""Which mount a directory lies on: files get a second name within one mount only, also when two show the same disk.

Promises: two directories of one place can exchange files by `link`; directories of different places cannot.
Relies on: `stat`; on Linux, `/proc`, which tells mounts apart that show one file system (bind mounts, where `st_dev`
is the same and `link` fails all the same). Without it `st_dev` alone decides.
Does not promise: to follow a mount that comes or goes later.
"""

from __future__ import annotations

import re
from contextlib import suppress
from types import ModuleType

_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


def mount_of(system: ModuleType, path: str) -> tuple[int, bytes]:
    """The file system and the mount of a directory that is there."""
    device = system.stat(path).st_dev
    if hasattr(system, "O_PATH"):
        with suppress(OSError):  # no /proc, or none of this process
            handle = system.open(path, system.O_PATH | system.O_DIRECTORY)
            try:
                found = _MOUNT.search(_text(system, f"/proc/self/fdinfo/{handle}"))
                return device, b"" if found is None else found[1]
            finally:
                system.close(handle)
    return device, b""


def _text(system: ModuleType, path: str) -> bytes:
    handle = system.open(path, system.O_RDONLY)
    try:
        return bytes(system.read(handle, 4096))
    finally:
        system.close(handle)
