"""One call at a time on an object that threads share.

Promises: a call is over, or broken off by an exception, before the next one begins; a call from within another one (a
signal handler's, or that of a generator which the call reads from) is refused and never mixed into it; so is one in
a process that was forked since, and holds only a copy of the object.
Relies on: locks of this process.
Does not promise: fairness, or an end: a call waits as long as the one before it lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from txsink.environment import OwnProcess
from txsink.errors import InvalidRequestError


class Calls:
    """The calls on one object."""

    def __init__(self) -> None:
        self.process = OwnProcess()
        self._lock = threading.RLock()
        self._under_way = ""

    @contextmanager
    def whole(self, what: str) -> Iterator[None]:
        """The call that does `what`: wait for the one before, and keep the next one out."""
        self.process.require_this(what)  # before the lock, which a thread of the parent may have held at the fork
        with self._lock:
            if self._under_way:
                found = f"{self._under_way!r} is under way on this very thread, and called it"
                raise InvalidRequestError(what, found, "Call it when that has returned")
            self._under_way = what
            try:
                yield
            finally:
                self._under_way = ""

    @contextmanager
    def between(self) -> Iterator[bool]:
        """Wait for the call of another thread; whether none of this very thread is under way."""
        with self._lock:
            yield not self._under_way
