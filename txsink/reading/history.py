"""Log entries in plain words, for people and programs that look back. Reads, and changes nothing.

Promises: one record an entry; commit, abort and publishing tell what their transaction prepared, while it is retained.
Relies on: `log` for the entries.
Does not promise: anything an entry does not say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from txsink.log.entry import (
    Abort,
    AnyEntry,
    Claim,
    Commit,
    Convert,
    Create,
    Maintenance,
    Prepare,
    Publishing,
    WriterEntry,
)
from txsink.log.log import Log
from txsink.reading.versions import moment


class HistoryEntry(NamedTuple):
    """One log entry in plain words. Commit, abort and publishing tell what their transaction prepared."""

    version: int
    kind: str
    time: datetime
    writer: str | None = None
    run: str | None = None
    generation: int | None = None
    epoch: int | None = None
    prepared: int | None = None
    mode: str | None = None
    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    removes: int | None = None
    metadata: dict[str, Any] | None = None
    note: str = ""


def told(log: Log, entry: AnyEntry) -> HistoryEntry:
    """An entry in plain words."""
    found = HistoryEntry(entry.version, _kind(entry), moment(entry.time_ms), note=_note(entry))
    if isinstance(entry, WriterEntry):
        found = found._replace(writer=entry.writer, run=entry.run, generation=entry.generation)
    if isinstance(entry, Prepare):
        return _with_content(found, entry)
    if isinstance(entry, Publishing | Commit | Abort):
        found = found._replace(epoch=entry.epoch, prepared=entry.prepared)
        if entry.prepared >= log.state.boundary:
            return _with_content(found, log.prepare_entry(entry.prepared))
    return found


def _with_content(found: HistoryEntry, prepare: Prepare) -> HistoryEntry:
    return found._replace(
        epoch=prepare.epoch,
        mode=prepare.mode,
        files=len(prepare.files),
        rows=sum(file.rows for file in prepare.files),
        bytes=sum(file.bytes for file in prepare.files),
        removes=len(prepare.removes),
        metadata=dict(prepare.metadata),
    )


def _kind(entry: AnyEntry) -> str:
    return str(entry.__struct_config__.tag)


def _note(entry: AnyEntry) -> str:
    match entry:
        case Create():
            by = f", partitioned by {', '.join(entry.partition_columns)}" if entry.partition_columns else ""
            return f"layout {entry.layout}{by}"
        case Claim() if entry.retires:
            return f"retires {', '.join(entry.retires)}"
        case Prepare() if entry.claims:
            return "claims the writer"
        case Convert():
            columns = entry.partition_columns
            by = "" if columns is None else f", partitioned by {', '.join(columns) or 'nothing'}"
            return f"to the layout {entry.layout}{by}"
        case Maintenance() if entry.boundary is not None:
            return f"{entry.action}: versions below {entry.boundary} have expired"
        case Maintenance() if not entry.cleaned:
            return f"{entry.action}: what nobody can follow or believe was set aside"
        case Maintenance():
            return f"{entry.action}: the aborts of {', '.join(map(str, entry.cleaned))} are finished"
        case _:
            return ""
