"""What a Delta table holds at a version of our log, other programs' files included.

Promises: the files Delta's own readers see at that version, with the commit of ours that brought each, if one did.
Relies on: the version of Delta's log that each commit entry tells; `DeltaLog`.
Does not promise: tables whose files cannot be read as they are (deletion vectors, mapped columns): they are refused.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from txsink import schema
from txsink.delta.log import DeltaLog, columns_of, plain_text
from txsink.delta.state import DeltaState, fold, path_in_table, resolved
from txsink.errors import InvalidRequestError
from txsink.log import segment
from txsink.log.entry import Commit, Convert, Prepare
from txsink.log.log import Log
from txsink.log.segment import Fact
from txsink.log.state import Pending
from txsink.publish.delta.agreement import require_whole
from txsink.records import Column
from txsink.staging import statistics


def state_at(log: Log, delta: DeltaLog, version: int | None) -> DeltaState:
    """The Delta table at a version of our log; None: the newest."""
    if version is None:
        delta.load()
        return delta.state
    found = _delta_version(log, version)
    return DeltaState(files={}) if found is None else delta.at(found)


def columns_in(state: DeltaState) -> tuple[Column, ...]:
    """The columns of the Delta table."""
    return columns_of(state.metadata.get("schemaString", ""), "read a Delta table")


def facts_in(log: Log, delta: DeltaLog, state: DeltaState) -> list[Fact]:
    """Its files, those of our epochs as our log knows them."""
    _require_plain(delta, state)
    if state.version == delta.state.version:
        require_whole(delta, f"read the Delta table {delta.root}")
    known = schema.schema_of(columns_in(state))
    ours = _added(log)
    found = []
    for body in delta.files_of(state).values():
        path = path_in_table(body["path"], f"read the Delta table {delta.root}")
        if path in ours:
            found.append(ours[path])
            continue
        texts = {
            name: plain_text(body["partitionValues"].get(name), known.field(name).type)
            for name in state.partition_columns
        }
        rows = statistics.rows_in(body.get("stats"))
        found.append(
            Fact(-1, "add", "", "", None, None, 0, path, body["size"], "", rows, msgspec.json.encode(texts).decode())
        )
    return found


def is_visible(delta: DeltaLog, pending: Pending) -> bool:
    """Whether Delta's log has the commit of a transaction that is pending in ours: new readers see it."""
    # Apart from `delta.state`, which may be what somebody reads just now.
    found = delta.state
    later = DeltaState(found.version, protocol=found.protocol, metadata=found.metadata, txn_of=found.txn)
    while (actions := delta.actions(later.version + 1)) is not None:
        fold(later, actions, later.version + 1)
    return resolved(later, pending.writer, pending.prepared) is True


def _added(log: Log) -> dict[str, Fact]:
    """Every file our epochs ever brought, by path."""
    facts = log.facts()
    return {fact.path or "": fact for fact in segment.rows_of(facts.filter(pc.field("kind") == "add"))}


def is_told_by(log: Log, version: int) -> bool:
    """Whether Delta's log tells a version of a table that has the Delta layout: not those before it was converted."""
    converted = log.facts().filter(pc.field("kind") == "convert")["version"].to_pylist()
    return version >= max(converted, default=0)


def _delta_version(log: Log, version: int) -> int | None:
    """Where Delta's log was at a version of ours; None when there was no Delta table yet."""
    for at in range(version, log.state.boundary - 1, -1):
        entry = log.entry(at)
        if isinstance(entry, Commit | Convert) and entry.delta is not None:
            return entry.delta
    # Before the first commit the table is what the first epoch found.
    for at in range(log.state.boundary, log.state.version + 1):
        entry = log.entry(at)
        if isinstance(entry, Prepare):
            return entry.base
    return None


def _require_plain(delta: DeltaLog, state: DeltaState) -> None:
    features = set(state.protocol.get("readerFeatures") or ())
    bad = "columnMapping" if state.properties.get("delta.columnMapping.mode", "none") != "none" else ""
    if "deletionVectors" in features and pa.table(delta.table(state.version).deletion_vectors().read_all()).num_rows:
        bad = "deletionVectors"
    if bad:
        raise InvalidRequestError(
            f"read the Delta table {delta.root}",
            f"it uses {bad}, which only Delta's own readers apply",
            "Read it with deltalake's QueryBuilder (its to_pyarrow_table shows mapped columns as nulls), DuckDB or"
            " Spark's Delta",
            feature=bad,
        )
