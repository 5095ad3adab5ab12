"""Logs made of the smallest entries there are: new runs that claim a writer."""

from __future__ import annotations

from place import Place
from txsink.log.entry import Claim
from txsink.log.log import Log, Make, Slot
from txsink.log.state import State
from txsink.protocol import blank
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store

LOOKS = 2  # before a put: at the newest entry known, and at the slots after it


def opened(place: Place, store: Store | None = None) -> Log:
    """A log as a new process reads it; created when it is not there."""
    found = Log(store or LocalStore(), str(place.path), place.stamps)
    found.load()
    if not found.exists:
        blank.create(found, "parquet", (), None, "a table")
    return found


def claim_by(writer: str) -> Make:
    """A new run claims the writer: the smallest entry there is."""

    def make(state: State, slot: Slot) -> Claim:
        known = state.writers.get(writer)
        generation = 1 if known is None else known.generation + 1
        return Claim(**slot, writer=writer, run=slot["write_id"], generation=generation, retires=())

    return make


def grow(found: Log, count: int, writer: str = "w") -> None:
    """Append `count` entries, with the house work a sink does."""
    for _ in range(count):
        found.append(claim_by(writer))
        found.maintain()


def retired_runs(found: Log) -> list[str]:
    return [fact["run"] for fact in found.facts().to_pylist()]
