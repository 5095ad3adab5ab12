"""Where time, chance and process ids come from: the one place that asks for them.

Promises: `stamps` gives the real clock, ids that nobody else has, and pauses that grow; `OwnProcess.is_this` says
whether this process made the object, and `require_this` refuses any other one.
Relies on: process ids, which no parent shares with its children. Nothing relies on the clock for order.
Does not promise: anything about what another process was given on purpose: stagers and parcels travel.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from txsink.errors import InvalidRequestError


class Stamps(NamedTuple):
    """Where time and chance come from."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    pause: Callable[[int], None]


def stamps() -> Stamps:
    """The real clock, real ids, real pauses."""
    return Stamps(now_ms=_now_ms, new_id=new_id, pause=_pause)


def new_id() -> str:
    """A name nobody else has."""
    return uuid.uuid4().hex


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _pause(attempt: int) -> None:
    time.sleep(random.random() * min(0.02, 0.001 * 2 ** min(attempt, 10)))  # noqa: S311 -- jitter # nosec B311


class OwnProcess:
    """The process that made this object."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether this process made it, and is no child of the one that did."""
        return os.getpid() == self._id

    def require_this(self, what: str) -> None:
        """Refuse a forked child."""
        if not self.is_this:
            raise InvalidRequestError(
                what,
                "another process opened the writer, of which this one is a fork",
                "Open a writer in each process, or hand `Transaction.stager()` to it; nothing was changed",
            )
