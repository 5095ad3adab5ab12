"""The numbered slots of a log: read one, look at several, put an entry into an empty one.

Promises: `put` is True only when the slot holds our very bytes, False only when it holds others (I11).
Relies on: `chain.put_once`; write ids that nobody else has.
Does not promise: to know what an entry means, or whether it may stand where it stands.
"""

from __future__ import annotations

from typing import NamedTuple

from txsink import paths
from txsink.chain.put_once import Record, put
from txsink.environment import Stamps
from txsink.errors import InvalidRequestError
from txsink.log import entry as entries
from txsink.log.entry import AnyEntry
from txsink.store.protocol import Store

ENTRY_TAIL_BYTES = 64 << 10  # most entries are smaller
LOOK_AHEAD = 16  # slots: as many as there are entries between two hints


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
        names = self.store.list(f"{self.root}/{paths.LOG_DIRECTORY}")
        return any(paths.parse_version(name) is not None for name in names)

    def beyond(self, version: int, count: int = LOOK_AHEAD) -> list[int]:
        """Which of the `count` slots from `version` on hold something; the store may tell of later ones, too."""
        names = self.store.present([self.path(at) for at in range(version, version + count)])
        found = (paths.parse_version(name.rpartition("/")[2]) for name in names)
        return [at for at in found if at is not None]

    def put(self, version: int, data: bytes, write_id: str) -> bool:
        """Whether the slot holds our entry now."""
        return put(self.store, self.stamps.pause, self.path(version), Record(data, write_id), entry_of(version))

    def path(self, version: int) -> str:
        """Where the slot is."""
        return f"{self.root}/{paths.entry_path(version)}"


def entry_of(version: int) -> str:
    """What is attempted when an entry is put into its slot."""
    return f"append log entry {version}"
