"""What a table holds at one version: its columns, its files, and where their bytes lie now.

Promises: the files of every retained version are found and read whole, also while an overwrite takes them away:
a file lies under its path, or under the removed path of a transaction that replaces it, or for a moment under both.
Relies on: `Store.move`, which gives the new name before it takes the old one; names that are never used twice.
Does not promise: anything about versions below the boundary, nor that bytes are still there when expiry passes by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txsink import paths, schema
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import gaps, segment
from txsink.log.log import Log
from txsink.log.segment import Fact
from txsink.log.state import State, fold
from txsink.records import Column
from txsink.staging.conform import conform
from txsink.staging.epoch_stager import verify
from txsink.staging.parquet import footer_of
from txsink.store.protocol import Store

_EPOCH_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999: datetime knows none after it


def moment(milliseconds: int) -> datetime:
    """The time of an entry."""
    return _EPOCH_START + timedelta(milliseconds=min(milliseconds, _TIME_MS_MAX))


def require_retained(state: State, version: int, what: str) -> None:
    """Refuse a version that is not in the log any more, or not yet."""
    if not isinstance(version, int) or isinstance(version, bool) or not state.boundary <= version <= state.version:
        found = f"versions {state.boundary} to {state.version} are there"
        if isinstance(version, int) and 0 <= version < state.boundary:
            found = f"{found}; older ones have expired"
        raise InvalidRequestError(
            what, found, "Name one of them", version=version, boundary=state.boundary, head=state.version
        )


def columns_at(log: Log, version: int) -> tuple[Column, ...]:
    """The columns of the table at a retained version."""
    if version == log.state.version:
        return log.state.columns
    summaries = gaps.summaries(log.slots)
    below = (gaps.summary(log.slots, at) for at in reversed(summaries) if at <= version)
    state = next((known for known in below if known is not None), None)
    if state is None and log.state.boundary > 0:
        # Expiry stopped short of a summary for the sake of a pending transaction. The columns of the next summary
        # are those of `version` and perhaps some more, which are null in its files.
        above = (gaps.summary(log.slots, at) for at in summaries if at > version)
        return next((known for known in above if known is not None), log.state).columns
    state = State() if state is None else state
    # An entry's digest stands in the entry after it, and there is one: `version` is not the newest.
    for entry, after in pairwise(log.entries(state.version + 1, version + 1)):
        state = fold(state, entry, after.previous)
    return state.columns


def live_at(log: Log, version: int) -> list[Fact]:
    """The files of a retained version, in the order they were committed."""
    if version == log.state.version:
        return list(log.live().values())
    chosen = pc.field("kind").isin(["add", "remove"]) & (pc.field("version") <= version)
    found: dict[str, Fact] = {}
    for fact in segment.rows_of(log.facts().filter(chosen)):
        if fact.kind == "add":
            found[fact.path or ""] = fact
        else:
            found.pop(fact.path or "", None)
    return list(found.values())


def partitions_of(facts: list[Fact], columns: tuple[str, ...], known: pa.Schema) -> list[dict[str, object]]:
    """The typed partition values of each file."""
    texts = [fact.texts() for fact in facts]
    names = [name for name in columns if name in known.names]
    typed = [schema.partition_values([text[name] for text in texts], known.field(name).type) for name in names]
    values = [array.to_pylist() for array in typed]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)] if names else [{} for _ in facts]


class Places:
    """Finds the bytes of data files."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known = -1
        self._removers: dict[str, list[int]] = {}

    def problem(self, fact: Fact, *, deep: bool = False) -> str | None:
        """What is wrong with the file; None when it is as recorded. `deep`: its pages and rows as well."""
        found = None
        if not fact.digest:
            return _problem_of_others(self._log.store, f"{self._log.root}/{fact.path}", fact)
        for path in self._paths(fact):
            found = verify(self._log.store, path, fact.file(), deep=deep)
            if found is None or not found.endswith("missing"):
                break
        return found

    def read(self, fact: Fact) -> bytes:
        """The bytes of the file."""
        recorded = fact.bytes or 0
        for path in self._paths(fact):
            data = self._log.store.read(path, recorded)
            if data is not None:
                if len(data) == recorded:
                    return data
                size = f"at least {len(data)}" if len(data) > recorded else str(len(data))
                raise damaged(fact, f"it is {size} bytes, {recorded} were recorded")
        if self._removers.get(fact.path or "") and not self._log.store.traits.moves:
            raise InvalidRequestError(
                f"read the data file {fact.path} of epoch {fact.epoch} of {fact.writer!r}",
                "an overwrite took it away, and this store cannot keep replaced files",
                "Read the newest version, again if the overwrite is still under way",
            )
        raise damaged(fact, "it is missing")

    def _paths(self, fact: Fact) -> Iterator[str]:
        """Where the file may lie. Whoever stops at the first hit pays for no more than it needs."""
        root, path = self._log.root, fact.path or ""
        yield f"{root}/{path}"
        tried = self._removers.get(path, [])
        yield from (f"{root}/{paths.removed_path(version, path)}" for version in tried)
        # Read anew: whatever moved the file since was prepared in the log before it did.
        if self._known != self._log.refresh().version:
            self._learn()
        later = [version for version in self._removers.get(path, []) if version not in tried]
        yield from (f"{root}/{paths.removed_path(version, path)}" for version in later)

    def _learn(self) -> None:
        """Which transactions, by prepare version, remove which file."""
        removers = defaultdict(list)
        for fact in segment.rows_of(self._log.facts().filter(pc.field("kind") == "remove")):
            removers[fact.path or ""].append(fact.prepared or 0)
        for pending in self._log.state.pending:
            for file in self._log.prepare_entry(pending.prepared).removes:
                removers[file.path].append(pending.prepared)
        self._removers, self._known = removers, self._log.state.version


def rows_in(data: bytes, fact: Fact, target: pa.Schema, partition: dict[str, object]) -> pa.Table:
    """The rows of a file's bytes with the columns of `target`; null what the file does not have."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        held = [field for field in target if field.name in file.schema_arrow.names and field.name not in partition]
        found = file.read([field.name for field in held]) if held else None
        count = file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(fact, f"it cannot be read: {error}") from error
    if count != (count if fact.rows is None else fact.rows) or (found is not None and found.num_rows != count):
        raise damaged(fact, f"it holds {count} rows, {fact.rows} were recorded")
    kept = {} if found is None else _by_name(conform(found, pa.schema(held), f"read {fact.path}"))
    arrays = []
    for field in target:
        if field.name in partition:
            arrays.append(_repeated(partition[field.name], field.type, count))
        else:
            arrays.append(kept.get(field.name, pa.chunked_array([pa.nulls(count, field.type)])))
    return pa.Table.from_arrays(arrays, schema=target)


def damaged(fact: Fact, found: str) -> CorruptError:
    """A data file whose bytes are not the recorded ones."""
    return CorruptError(
        f"read the data file {fact.path} of epoch {fact.epoch} of {fact.writer!r}",
        found,
        "Put the recorded file back from a copy; `txsink verify` lists all that is damaged",
        path=fact.path,
        epoch=fact.epoch,
        writer=fact.writer,
        version=fact.version,
    )


def _problem_of_others(store: Store, path: str, fact: Fact) -> str | None:
    """What is wrong with another program's file, of which Delta's log has the size and perhaps the number of rows."""
    found = footer_of(store, path)
    if found is None or found.identity.bytes != fact.bytes:
        return "is missing or has another size than recorded"
    try:
        rows = pq.read_metadata(pa.BufferReader(found.region)).num_rows
    except (pa.ArrowException, OSError, ValueError):
        return "is no Parquet file"
    return None if fact.rows in {None, rows} else f"holds {rows} rows, recorded {fact.rows}"


def _by_name(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    if value is None:
        return pa.chunked_array([pa.nulls(count, kind)])
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), count)])
