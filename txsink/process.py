"""Which process holds an open writer: a forked child has all that its parent opened, and owns nothing of it.

Promises: `is_this` says whether this process made the object; `require_this` refuses any other one.
Relies on: process ids, which no parent shares with its children.
Does not promise: anything about what another process was given on purpose: stagers and parcels travel.
"""

from __future__ import annotations

import os

from txsink.errors import InvalidRequestError


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
