"""`os` on macOS, where `fsync` stops at the drive: its cache is emptied by `fcntl(F_FULLFSYNC)` alone.

Promises: a sync that returns has reached the platter, wherever the file system can say so; all else is `os` as it is.
Relies on: `F_FULLFSYNC`, as SQLite, Go and Rust use it. A file system that does not know it (a network mount, whose
server has the drive) is synced with `fsync`.
Does not promise: to have been run on a Mac. It was tried through stand-ins for `os` and `fcntl` only.
"""

from __future__ import annotations

import errno
import os
import sys
from types import ModuleType
from typing import Any

_UNKNOWN = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY}


class Darwin(ModuleType):
    """What stands in for `os`; `control` is `fcntl`."""

    def __init__(self, control: Any, system: ModuleType = os) -> None:
        super().__init__("txsink's os on macOS")
        self._control = control
        self._os = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._os, name)

    def fsync(self, handle: int) -> None:
        """Sync a file or a directory down to the platter."""
        try:
            self._control.fcntl(handle, self._control.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
            self._os.fsync(handle)


def system_of(platform: str = sys.platform) -> ModuleType:
    """What the local store uses as `os`."""
    if platform != "darwin":
        return os
    import fcntl  # noqa: PLC0415 -- there is none on every system

    return Darwin(fcntl)
