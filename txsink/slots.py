"""The numbered slots of a log: read one, and put an entry into an empty one, whatever the store answers.

Promises: `put` is True only when the slot holds our very bytes, False only when it holds others; an answer that was
lost is asked for again, with the same put, and read back; once our entry may stand there, a store that does not
answer makes the outcome unknown, never "nothing was changed" (I11).
Relies on: `Store.put_if_absent`; write ids that nobody else has.
Does not promise: to know what an entry means, or whether it may stand where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from txsink import entry as entries
from txsink import layout
from txsink.entry import AnyEntry
from txsink.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from txsink.store import Store

UNKNOWN_TRIES = 2  # each may take a deadline of the store, which repeats within it
ENTRY_TAIL_BYTES = 64 << 10  # most entries are smaller
LOOK_AHEAD = 16  # slots: as many as there are entries between two hints


class Stamps(NamedTuple):
    """Where time and chance come from."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    pause: Callable[[int], None]


class Slots(NamedTuple):
    """The slots of the log of the table at `root`."""

    store: Store
    root: str
    stamps: Stamps

    def read(self, version: int) -> tuple[AnyEntry, str] | None:
        """The entry in a slot and its digest; None when the slot is empty; InvalidRequestError when it has expired."""
        data = self.store.read(self.path(version), entries.ENTRY_BYTES_MAX)
        if data == entries.EXPIRED:
            raise InvalidRequestError(
                f"read log entry {version}", "it has expired", "Name a later version", expired=version
            )
        return None if data is None else (entries.decode(data, version), entries.digest(data))

    def expire(self, version: int) -> None:
        """Take an entry away. Where names are kept, its slot stays taken for ever."""
        if self.store.traits.keeps_names:
            self.store.replace(self.path(version), entries.EXPIRED, self.stamps.new_id())
        else:
            # DELETES: an entry; proof: the caller's: only expiry and repair take one away (I8).
            self.store.delete(self.path(version))

    def digest(self, version: int) -> str | None:
        """The digest of the entry in a slot, by its end alone when it is large; "" when it is damaged."""
        found = self.store.tail(self.path(version), ENTRY_TAIL_BYTES)
        if found is None:
            return None
        if len(found.data) == found.bytes:
            try:
                entries.unseal(found.data)
            except ValueError:
                return ""
        return entries.digest(found.data)

    def are_used(self) -> bool:
        """Whether any slot holds an entry."""
        names = self.store.list(f"{self.root}/{layout.LOG_DIRECTORY}")
        return any(layout.parse_version(name) is not None for name in names)

    def beyond(self, version: int, count: int = LOOK_AHEAD) -> list[int]:
        """Which of the `count` slots from `version` on hold something; the store may tell of later ones, too."""
        names = self.store.present([self.path(at) for at in range(version, version + count)])
        found = (layout.parse_version(name.rpartition("/")[2]) for name in names)
        return [at for at in found if at is not None]

    def put(self, version: int, data: bytes, write_id: str) -> bool:
        """Whether the slot holds our entry now."""
        return put(self.store, self.stamps.pause, self.path(version), Bytes(data, write_id), entry_of(version))

    def path(self, version: int) -> str:
        """Where the slot is."""
        return f"{self.root}/{layout.entry_path(version)}"


def entry_of(version: int) -> str:
    """What is attempted when an entry is put into its slot."""
    return f"append log entry {version}"


class Bytes(NamedTuple):
    """What is put into a slot: bytes that hold a `write_id`, so that nobody else's equal them."""

    data: bytes
    write_id: str


def put(store: Store, pause: Callable[[int], None], path: str, ours: Bytes, what: str) -> bool:
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
            found = store.read(path, entries.ENTRY_BYTES_MAX)
            if found == data:
                store.settle([path])
                return True
            if created is False or found is not None:
                return False
    raise OutcomeUnknownError(what, f"the store did not say {UNKNOWN_TRIES} times", "Open the writer again")


@contextmanager
def possibly_written(what: str) -> Iterator[None]:
    """Once an entry may stand in its slot, a store that does not answer, or refuses to, leaves the outcome unknown."""
    try:
        yield
    except (UnavailableError, InvalidRequestError) as error:
        raise OutcomeUnknownError(
            what,
            f"it may have been written, but then: {error.found}",
            "Open the writer again: recovery finds out",
            **error.context,
        ) from error
