"""Put a numbered record exactly once: the same put again until the store answers, then a look at what is there.

A conditional put can land while its answer is lost; the retry then finds its own object and looks like a conflict.

Promises: `put` is True only when the name holds our very bytes, False only when it holds others; an answer that was
lost is asked for again, with the same put, and read back; once our record may stand there, a store that does not
answer makes the outcome unknown, never "nothing was changed" (I11).
Relies on: `Store.put_if_absent`; write ids that nobody else has.
Does not promise: to know what a record means, or whether it may stand where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from txsink.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from txsink.store.protocol import Store

UNKNOWN_TRIES = 2  # each may take a deadline of the store, which repeats within it


class Record(NamedTuple):
    """What is put: bytes that hold a `write_id`, so that nobody else's equal them."""

    data: bytes
    write_id: str


def put(store: Store, pause: Callable[[int], None], path: str, ours: Record, what: str) -> bool:
    """Whether `path` holds our very bytes now."""
    data, write_id = ours
    created = store.put_if_absent(path, data, write_id)
    with possibly_written(what):
        for attempt in range(UNKNOWN_TRIES):
            if attempt:
                pause(attempt)
                created = store.put_if_absent(path, data, write_id)
            if created:
                return True
            found = store.read(path, len(data))
            if found == data:
                store.settle([path])
                return True
            if created is False or found is not None:
                return False
    raise OutcomeUnknownError(what, f"the store did not say {UNKNOWN_TRIES} times", "Open the writer again")


@contextmanager
def possibly_written(what: str) -> Iterator[None]:
    """Once a record may stand there, a store that does not answer, or refuses to, leaves the outcome unknown."""
    try:
        yield
    except (UnavailableError, InvalidRequestError) as error:
        raise OutcomeUnknownError(
            what,
            f"it may have been written, but then: {error.found}",
            "Open the writer again: recovery finds out",
            **error.context,
        ) from error
