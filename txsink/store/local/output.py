"""A staged file on the local disk.

Promises: nothing is durable before `seal` returns; once a write or a sync has failed, it stays failed; a process that
was forked while the file was open deletes nothing of it.
Relies on: `system`, which is `os` unless a test simulates a disk.
Does not promise: a durable name. `Store.settle` makes names durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from txsink.environment import OwnProcess
from txsink.errors import TxsinkError
from txsink.store.local.errors import mapped

_BUFFER_BYTES = 1 << 20


class LocalOutput:
    """A staged file: gathers small writes, syncs on `seal`; once failed it stays failed."""

    def __init__(self, system: ModuleType, path: str, handle: int) -> None:
        self._os = system
        self._path = path
        self._handle = handle
        self._buffer = bytearray()
        self._failure: TxsinkError | None = None
        self._process = OwnProcess()
        self.closed = False

    def write(self, data: bytes, /) -> int:
        size = len(data)
        if len(self._buffer) + size > _BUFFER_BYTES:
            self._empty()
            if size > _BUFFER_BYTES:
                self._do("write", lambda: write_all(self._os, self._handle, data))
                return size
        self._buffer += data
        return size

    def flush(self) -> None:
        """Nothing: only `seal` makes bytes durable."""

    def seal(self) -> None:
        self._empty()
        self._do("sync", lambda: self._os.fsync(self._handle))
        self.closed = True
        self._do("close", lambda: self._os.close(self._handle))

    def discard(self) -> None:
        if not self.closed:
            self.closed = True
            with suppress(OSError):
                self._os.close(self._handle)
        if self._process.is_this:
            with suppress(OSError):
                # DELETES: a file that is being staged; proof: this process made it, under a name nobody else has (I8).
                self._os.unlink(self._path)

    def _empty(self) -> None:
        self._do("write", lambda: write_all(self._os, self._handle, self._buffer))
        self._buffer = bytearray()

    def _do(self, verb: str, act: Callable[[], None]) -> None:
        # A sync that succeeds after one that failed proves nothing; nobody knows how much a failed write wrote.
        if self._failure:
            raise self._failure
        self._process.require_this(f"{verb} {self._path}")
        try:
            with mapped(f"{verb} {self._path}"):
                act()
        except TxsinkError as error:
            self._failure = error
            raise


def write_all(system: ModuleType, handle: int, data: bytes | bytearray) -> None:
    """Write every byte: a write may be short."""
    view = memoryview(data)
    while view:
        view = view[system.write(handle, view) :]
