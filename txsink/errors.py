"""The errors, sorted by what the caller does next.

Promises: every failure txsink reports is one of the seven classes below; each says what was attempted on
what, what was found and what to do; each survives pickling (Spark and multiprocessing carry errors that way).
Relies on: nothing. This module imports nothing of txsink.
Does not promise: that a message stays the same. Programs look at the class, `.kind` and `.context`.

    TxsinkError
    ├── UnavailableError       retry: the store did not answer or has no room; the message says what is prepared already
    ├── OutcomeUnknownError    recover: it may or may not have happened
    ├── ConflictError          reload and decide: the table is not in the state the call needs
    ├── FencedError            stop: a newer run of this writer has taken over
    ├── CorruptError           stop and inspect: bytes are not what the log says
    ├── InvalidRequestError    fix the call
    └── InternalError          report: an invariant of txsink itself does not hold
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

_BY_STORES = {"errno", "exception", "endpoint"}  # what stores add: of local disks, of HDFS, of S3
_AGAIN = ("Retry", "Begin the epoch again", "Write the epoch again")


class TxsinkError(Exception):
    """Base of all errors: `attempted` on what, what was `found`, and the `advice`."""

    kind: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, attempted: str, found: str, advice: str, **context: object) -> None:
        super().__init__(attempted, found, advice)
        self.attempted = attempted
        self.found = found
        self.advice = advice
        self.context: dict[str, object] = context

    def __str__(self) -> str:
        return f"{self.attempted}: {_sentence(self.found)} {_sentence(self.advice)}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.attempted, self.found, self.advice, self.context))


class UnavailableError(TxsinkError):
    """The store did not do this step: call again. What was prepared before it stays, and the message names it."""

    kind = "unavailable"
    retryable = True


class OutcomeUnknownError(TxsinkError):
    """It may have happened: open the writer again, recovery finds out."""

    kind = "outcome-unknown"


class ConflictError(TxsinkError):
    """Somebody else's work is in the way: reload and decide."""

    kind = "conflict"


class FencedError(TxsinkError):
    """A newer run of this writer has claimed it: stop."""

    kind = "fenced"


class CorruptError(TxsinkError):
    """Stored bytes are not what the log says: stop and inspect. Nothing was deleted."""

    kind = "corrupt"


class InvalidRequestError(TxsinkError, ValueError):
    """The call cannot be served as it is: fix it."""

    kind = "invalid-request"


class InternalError(TxsinkError):
    """An invariant of txsink does not hold: report it."""

    kind = "internal"


def did_you_mean(
    name: object, known: Iterable[str], otherwise: str, *, or_else: bool = False, likeness: float = 0.6
) -> str:
    """Advice on a name that is not known: the nearest one that is, in whatever case, else what to do `otherwise`.

    `or_else`: say that as well where one is near; `likeness`: how near, from 0 to 1.
    """
    spelled = {one.lower(): one for one in known}
    near = difflib.get_close_matches(str(name).lower(), spelled, 1, likeness)
    if not near:
        return otherwise
    meant = f"Did you mean {spelled[near[0]]!r}?"
    return f"{meant} Else {otherwise[0].lower()}{otherwise[1:]}" if or_else else meant


def first_of_all(error: TxsinkError) -> str:
    """What its advice asks for, or to wait for, before the call is made again; nothing, where it says no more."""
    return "" if error.advice in _AGAIN else f"{_sentence(error.advice)} "


def is_of_store(error: TxsinkError) -> bool:
    """Whether a store failed or refused, and not what was asked of it alone."""
    return error.retryable or not _BY_STORES.isdisjoint(error.context)


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _rebuild(
    cls: type[TxsinkError], attempted: str, found: str, advice: str, context: dict[str, object]
) -> TxsinkError:
    return cls(attempted, found, advice, **context)
