"""What the log says at one version: a frozen record, and `fold`, the law of which entry may follow which. Pure.

Promises: `fold` gives the same state for the same entries in every process; it refuses (CorruptError) an entry
that no correct writer could have appended there: a broken chain, a second commit of an epoch (I5), an epoch
that does not grow (I4), an entry of a run that had been retired (I10), a commit of what was not prepared.
A state is small: it grows with the number of writers and columns, never with epochs or files.
Relies on: entries that `entry.decode` accepted.
Does not promise: where files are; that is what prepare entries and segments say.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from txsink.errors import CorruptError, InvalidRequestError
from txsink.log.entry import (
    FORMAT,
    GENESIS,
    Abort,
    AnyEntry,
    Claim,
    Commit,
    Convert,
    Create,
    Entry,
    Maintenance,
    Prepare,
    Publishing,
    WriterEntry,
    refuse_later_format,
    seal,
    unseal,
)
from txsink.records import Column, Count

APPEND, OVERWRITE, OVERWRITE_PARTITIONS, REWIND = "append", "overwrite", "overwrite-partitions", "rewind"


class Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prepared transaction: everything a commit needs to know of it but its files."""

    writer: str
    run: str
    epoch: Count
    prepared: Count
    mode: str
    is_publishing: bool
    columns: tuple[Column, ...]
    metadata: dict[str, Any]


class WriterState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A writer: the run that holds it, its newest committed epoch, and the last that a rewind ever took back.

    `in_delta`: the version of the prepare entry of its newest epoch that has a commit in Delta's log as it is now.
    """

    run: str
    generation: Count
    claimed: Count
    claimed_ms: Count
    last_epoch: Count | None = None
    last_version: Count | None = None
    last_metadata: dict[str, Any] = {}
    rewound: Count | None = None
    in_delta: Count | None = None


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log folded up to `version` (-1: nothing yet).

    `converted`: the newest version that changed the layout, 0 for none; `delta`: the newest version of Delta's log that
    it tells of.
    """

    format: int = FORMAT
    version: int = -1
    digest: str = GENESIS
    table_id: str = ""
    birth: str = ""
    layout: str = ""
    partition_columns: tuple[str, ...] = ()
    staging: str | None = None
    types: str = "spark"
    columns: tuple[Column, ...] = ()
    writers: dict[str, WriterState] = {}
    pending: tuple[Pending, ...] = ()
    aborting: tuple[Pending, ...] = ()
    boundary: Count = 0
    converted: Count = 0
    delta: Count | None = None

    def pending_of(self, writer: str) -> tuple[Pending, ...]:
        """The writer's pending transactions, in the order they were prepared."""
        if not self.pending:  # as most of the time
            return ()
        return tuple(pending for pending in self.pending if pending.writer == writer)

    def last_epoch(self, writer: str) -> int | None:
        """The newest committed epoch of the writer."""
        known = self.writers.get(writer)
        return None if known is None else known.last_epoch

    def without_pending(self) -> State:
        """The same table, as if nothing were prepared."""
        return msgspec.structs.replace(self, pending=())

    def known_columns(self) -> tuple[Column, ...]:
        """The table's columns, those of pending transactions included."""
        columns = self.columns
        for pending in self.pending:
            columns = union(columns, pending.columns)
        return columns


_Changes: TypeAlias = dict[str, Any]
_decoder = msgspec.json.Decoder(State)


def encode(state: State) -> bytes:
    """A state as the bytes of a summary."""
    return seal(msgspec.json.encode(state))


def decode(data: bytes) -> State | None:
    """The state in a summary or hint; None when it is damaged, since entries say the same."""
    try:
        body = unseal(data)
        refuse_later_format(body, "read a summary of the log")
        return _decoder.decode(body)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError):
        return None


def union(columns: tuple[Column, ...], more: tuple[Column, ...]) -> tuple[Column, ...]:
    """`columns`, then those of `more` with new names; a column without a type yet takes one."""
    typed = {column.name: column for column in more}
    known = {column.name for column in columns}
    kept = tuple(typed.get(column.name, column) if column.type == "null" else column for column in columns)
    return kept + tuple(column for column in more if column.name not in known)


def fold(state: State, entry: AnyEntry, digest: str) -> State:
    """The state after `entry`, whose bytes have `digest`."""
    if state.version >= 0 and (entry.table_id, entry.birth) != (state.table_id, state.birth):
        raise _refused(entry, f"it is of another log (birth {entry.birth}, not {state.birth})")
    if entry.version != state.version + 1 or entry.previous != state.digest:
        raise _refused(entry, "it does not follow the entry before it: the chain is broken")
    if isinstance(entry, Create) is not (state.version == -1):
        raise _refused(entry, "a table is created by version 0 and by no other")
    if isinstance(entry, Create) and entry.birth != entry.write_id:
        raise _refused(entry, "its birth is not its own write id")
    changes = _changes(state, entry)
    return msgspec.structs.replace(state, version=entry.version, digest=digest, **changes)


def _changes(state: State, entry: AnyEntry) -> _Changes:
    match entry:
        case Create():
            return {
                "table_id": entry.table_id,
                "birth": entry.birth,
                "layout": entry.layout,
                "partition_columns": entry.partition_columns,
                "staging": entry.staging,
                "types": entry.types,
            }
        case Claim():
            return _claim(state, entry)
        case Prepare():
            return _prepare(state, entry)
        case Publishing():
            return _publishing(state, entry)
        case Commit():
            return _commit(state, entry)
        case Abort():
            return _abort(state, entry)
        case Convert():
            if state.pending or state.aborting:
                raise _refused(entry, "it changes the layout while transactions are pending")
            return _convert(state, entry)
        case Maintenance():  # pragma: no branch -- there is no other kind
            return {
                "aborting": tuple(item for item in state.aborting if item.prepared not in entry.cleaned),
                "boundary": max(state.boundary, entry.boundary or 0),
            }


def _convert(state: State, entry: Convert) -> _Changes:
    # Delta's log is made for the conversion, or goes with it: it tells of no prepare entry before it.
    writers = {name: msgspec.structs.replace(known, in_delta=None) for name, known in state.writers.items()}
    changes: _Changes = {"layout": entry.layout, "converted": entry.version, "delta": entry.delta, "writers": writers}
    if entry.partition_columns is None:
        return changes
    if state.columns:
        raise _refused(entry, "it changes the partition columns of a table that has columns")
    return {**changes, "partition_columns": entry.partition_columns}


def _claim(state: State, entry: Claim) -> _Changes:
    known = state.writers.get(entry.writer)
    if known is not None and (known.run, known.generation) == (entry.run, entry.generation):
        return {}  # the run holds the writer already and only retires others
    return {"writers": _claimed(state, entry)}


def _prepare(state: State, entry: Prepare) -> _Changes:
    writers = state.writers
    if entry.claims:
        writers = _claimed(state, entry)
    else:
        _require_holder(state, entry)
    last = writers[entry.writer].last_epoch
    waiting = state.pending_of(entry.writer)
    if entry.mode == REWIND:
        if waiting or last is None or entry.epoch > last:
            raise _refused(entry, f"it rewinds to epoch {entry.epoch}, but the last committed one is {last}")
    elif entry.epoch <= max([-1 if last is None else last, *(item.epoch for item in waiting)]):
        raise _refused(entry, f"epoch {entry.epoch} does not grow")
    if entry.files and not (entry.columns or state.columns):
        raise _refused(entry, "it names files of a table that has no columns")
    pending = Pending(
        writer=entry.writer,
        run=entry.run,
        epoch=entry.epoch,
        prepared=entry.version,
        mode=entry.mode,
        is_publishing=False,
        columns=entry.columns,
        metadata=entry.metadata,
    )
    return {"writers": writers, "pending": (*state.pending, pending)}


def _publishing(state: State, entry: Publishing) -> _Changes:
    _require_holder(state, entry)
    found = _require_pending(state, entry)
    begun = msgspec.structs.replace(found, is_publishing=True)
    return {"pending": tuple(begun if item is found else item for item in state.pending)}


def _commit(state: State, entry: Commit) -> _Changes:
    _require_holder(state, entry)
    found = _require_pending(state, entry)
    if state.pending_of(entry.writer)[0] is not found:
        raise _refused(entry, "an earlier transaction of this writer is still pending")
    before = state.writers[entry.writer]
    known = msgspec.structs.replace(
        before,
        last_epoch=entry.epoch,
        last_version=entry.version,
        last_metadata=found.metadata,
        rewound=max(before.rewound or 0, before.last_epoch or 0) if found.mode == REWIND else before.rewound,
        in_delta=before.in_delta if entry.delta is None else entry.prepared,
    )
    return {
        "delta": _newer(state.delta, entry.delta),
        "writers": {**state.writers, entry.writer: known},
        "pending": tuple(item for item in state.pending if item is not found),
        "columns": union(state.columns, found.columns),
    }


def _abort(state: State, entry: Abort) -> _Changes:
    _require_holder(state, entry)
    found = _require_pending(state, entry)
    if found.is_publishing:
        raise _refused(entry, "its publish has begun to remove files, so it can only roll forward")
    return {
        "delta": _newer(state.delta, entry.delta),
        "pending": tuple(item for item in state.pending if item is not found),
        "aborting": (*state.aborting, found),
    }


def _newer(known: int | None, told: int | None) -> int | None:
    """The newest version of Delta's log, once an entry has told of one."""
    return known if told is None else max(told, known or 0)


def _claimed(state: State, entry: WriterEntry) -> dict[str, WriterState]:
    known = state.writers.get(entry.writer)
    expected = 1 if known is None else known.generation + 1
    if entry.generation != expected:
        raise _refused(entry, f"it claims generation {entry.generation}, the next one is {expected}")
    claimed = WriterState(run=entry.run, generation=entry.generation, claimed=entry.version, claimed_ms=entry.time_ms)
    if known is not None:
        claimed = msgspec.structs.replace(
            known, run=entry.run, generation=entry.generation, claimed=entry.version, claimed_ms=entry.time_ms
        )
    return {**state.writers, entry.writer: claimed}


def _require_holder(state: State, entry: WriterEntry) -> None:
    known = state.writers.get(entry.writer)
    if known is None or (known.run, known.generation) != (entry.run, entry.generation):
        raise _refused(entry, f"its run {entry.run} does not hold the writer {entry.writer!r}")


def _require_pending(state: State, entry: Publishing | Commit | Abort) -> Pending:
    for item in state.pending_of(entry.writer):
        if (item.epoch, item.prepared) == (entry.epoch, entry.prepared):
            return item
    raise _refused(entry, f"no transaction of {entry.writer!r} for epoch {entry.epoch} is pending")


def _refused(entry: Entry, found: str) -> CorruptError:
    return CorruptError(
        f"read log entry {entry.version}",
        found,
        "Restore the log from a copy, or see what `txsink repair` would do; nothing was changed",
        version=entry.version,
    )
