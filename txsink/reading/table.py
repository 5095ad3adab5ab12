"""The reader's side of a table: its rows, its files, its history, what is pending.

Promises: exactly the rows of committed epochs, each once (I1), an epoch whole or not at all (I2), at every retained
version; nothing is created or changed. A table is read as of `version`, which stays until `refresh`, or until it has
expired: then it is the newest. A missing or altered file is CorruptError naming it.
Relies on: `versions`, which finds files that an overwrite is taking away just now.
Does not promise: to see files that no commit names, nor rows in any order but that of the commits.
"""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from txsink import schema
from txsink.delta.log import DeltaLog
from txsink.delta.state import DeltaState
from txsink.environment import Stamps, stamps
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError, counted, did_you_mean
from txsink.log.log import Log
from txsink.log.segment import Fact
from txsink.log.state import Pending
from txsink.options import public
from txsink.publish.choose import publisher_of
from txsink.publish.protocol import PARQUET, Publisher
from txsink.reading import audit, delta_view, versions
from txsink.reading.audit import Explanation, Problem
from txsink.reading.history import HistoryEntry, told
from txsink.records import Column
from txsink.store.opening import AnyPath, open_store, uri_of
from txsink.store.protocol import Store

_T = TypeVar("_T")
_TRIES = 5


class TableFile(NamedTuple):
    """One data file, with the commit that brought it. `partition`: typed values by column.

    Of a file that another program wrote into a Delta table, `epoch` and `writer` are None, and `version` is -1.
    """

    path: str
    bytes: int
    rows: int
    partition: dict[str, Any]
    epoch: int | None
    writer: str | None
    version: int


class WriterInfo(NamedTuple):
    """One writer: the run that holds it, and its newest committed epoch."""

    run: str
    generation: int
    claimed: datetime
    last_epoch: int | None
    last_version: int | None
    metadata: dict[str, Any]


class PendingTransaction(NamedTuple):
    """A transaction that is not done: `prepared`, `publishing` (it can only be committed) or `aborting`."""

    writer: str
    epoch: int
    version: int
    state: str
    run: str
    mode: str
    files: int
    rows: int
    bytes: int
    removes: int
    time: datetime
    metadata: dict[str, Any]


@public
def open_table(path: AnyPath, *, storage_options: Mapping[str, object] | None = None) -> Table:
    """Open a table for reading. Nothing is created: a path without a table is InvalidRequestError.

    - `path`: the table: a local path, `file://`, `hdfs://`, `s3://` or `memory://`.
    - `storage_options`: credentials, endpoint and other settings of the store; never shown.
    """
    uri = uri_of(path)
    return open_log(open_store(uri, storage_options), stamps(), uri)


def open_log(store: Store, parts: Stamps, path: str) -> Table:
    """`open_table` over a given store and clock."""
    log = Log(store, store.resolve(path), parts)
    log.load()
    if log.exists:
        delta = DeltaLog(store, log.root, parts, path)
        return Table(log, None if log.state.layout == PARQUET else delta)
    raise InvalidRequestError(
        f"open the table {path}",
        "there is no txsink table",
        "Check the path, or create the table: txsink.write and txsink.open_writer do, at their first epoch",
        path=log.root,
    )


class Table:
    """A table as of one version. Not safe to share between threads."""

    def __init__(self, log: Log, delta: DeltaLog | None = None) -> None:
        self.log = log
        self.delta = delta
        self._state = log.state
        self._seen = DeltaState() if delta is None else delta_view.state_at(log, delta, None)
        self._places = versions.Places(log)

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The table's root."""
        return self.log.root

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._state.version

    @property
    def boundary(self) -> int:
        """The oldest version that can still be read."""
        return self.log.state.boundary

    @property
    def table_id(self) -> str:
        """The id the table got when it was created; it stays when the table is moved."""
        return self._state.table_id

    @property
    def schema(self) -> pa.Schema:
        """All columns, partition columns among them."""
        return schema.schema_of(self._state.columns if self.delta is None else delta_view.columns_in(self._seen))

    def columns(self, version: int | None = None) -> tuple[Column, ...]:
        """All columns at a version, as the log spells them."""
        return self._retrying(lambda: self._columns_at(*self._at(version)))

    @property
    def partition_columns(self) -> list[str]:
        """The columns that are kept in the paths."""
        return list(self._partitioned_by(self._seen))

    @property
    def publisher(self) -> Publisher:
        """How the table's transactions become visible."""
        return publisher_of(self.log, self.delta)

    @property
    def layout(self) -> str:
        """How a commit becomes visible: `parquet` or `delta`."""
        return self._state.layout

    def refresh(self) -> Table:
        """Move on to the newest version."""
        self._state = self.log.refresh()
        if self.delta is not None:
            self._seen = delta_view.state_at(self.log, self.delta, None)
        return self

    def writers(self) -> dict[str, WriterInfo]:
        """Every writer that ever claimed its name here."""
        return {
            name: WriterInfo(
                run=known.run,
                generation=known.generation,
                claimed=versions.moment(known.claimed_ms),
                last_epoch=known.last_epoch,
                last_version=known.last_version,
                metadata=copy.deepcopy(known.last_metadata),
            )
            for name, known in sorted(self._state.writers.items())
        }

    # -- what it holds --------------------------------------------------------------------------------

    def files(self, version: int | None = None) -> list[TableFile]:
        """The data files, in the order they were committed."""
        facts, partitions, _ = self._held(version)
        return [
            TableFile(
                path=fact.path or "",
                bytes=fact.bytes or 0,
                rows=fact.rows or 0,
                partition=partition,
                epoch=fact.epoch,
                writer=fact.writer or None,
                version=fact.version,
            )
            for fact, partition in zip(facts, partitions, strict=True)
        ]

    def file_list(self, version: int | None = None) -> pa.Table:
        """The data files as a table: one row a file, one column for each partition column."""
        facts, partitions, known = self._held(version)
        columns = {
            "path": pa.array([fact.path for fact in facts], pa.string()),
            "bytes": pa.array([fact.bytes for fact in facts], pa.int64()),
            "rows": pa.array([fact.rows for fact in facts], pa.int64()),
            "epoch": pa.array([fact.epoch for fact in facts], pa.int64()),
            "writer": pa.array([fact.writer for fact in facts], pa.string()),
            "version": pa.array([fact.version for fact in facts], pa.int64()),
        }
        for name in partitions[0] if partitions else self.partition_columns:
            if name in known.names:
                values = pa.array([partition[name] for partition in partitions], known.field(name).type)
                columns[f"partition.{name}" if name in columns else name] = values
        return pa.table(columns)

    def to_arrow(self, version: int | None = None, columns: Sequence[str] | str | None = None) -> pa.Table:
        """The rows, as one Arrow table; of some `columns` only, or of the one that is named."""

        def read() -> pa.Table:
            target, tables = self._tables(version, columns)
            return pa.concat_tables([target.empty_table(), *tables])

        return self._retrying(read)

    def to_reader(
        self,
        version: int | None = None,
        columns: Sequence[str] | str | None = None,
        files: Collection[str] | None = None,
    ) -> pa.RecordBatchReader:
        """The rows (of some `files` only, by path), as a stream that holds one file in memory at a time."""
        target, tables = self._retrying(lambda: self._tables(version, columns, files))
        return pa.RecordBatchReader.from_batches(target, (batch for table in tables for batch in table.to_batches()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    # -- what happened to it --------------------------------------------------------------------------

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The log entries, newest first; at most `limit` of them."""
        if limit is not None and limit < 0:
            raise InvalidRequestError(f"read the history of {self.path}", f"limit is {limit}", "Give 0 or more")

        def read() -> list[HistoryEntry]:
            first = self.boundary if limit is None else max(self.boundary, self.version + 1 - limit)
            return [told(self.log, entry) for entry in self.log.entries(first, self.version)][::-1]

        return self._retrying(read)

    def pending(self) -> list[PendingTransaction]:
        """The transactions that are prepared and neither committed nor aborted, and aborts with work left."""

        def read() -> list[PendingTransaction]:
            state = self._state
            waiting = [
                self._waiting(item, "publishing" if item.is_publishing or self._is_visible(item) else "prepared")
                for item in state.pending
            ]
            return waiting + [self._waiting(item, "aborting") for item in state.aborting]

        return self._retrying(read)

    def verify(self, *, deep: bool = False) -> list[Problem]:
        """All that is not as the log says; `deep` reads every row of the newest version as well, as `to_arrow` does."""
        found = audit.verify(self.log, self.publisher, deep=deep, files=self._files_now if self.delta else None)
        for _ in range(_TRIES if deep and not found else 0):
            newest = Table(self.log, self.delta)
            found = newest._unread()
            if not found or self.log.refresh().version == newest.version:
                break
        return found

    def _unread(self) -> list[Problem]:
        """What cannot be read, though each file is as recorded."""
        try:
            facts, partitions, known = self._held(None)
        except TxsinkError as error:
            return [Problem(".", f"it cannot be read: {error.found}")]
        found = []
        for fact, values in zip(facts, partitions, strict=True):
            try:
                versions.rows_in(self._places.read(fact), fact, known, values)
            except TxsinkError as error:
                found.append(Problem(fact.path or "", f"it cannot be read: {error.found}"))
        return found

    def _files_now(self) -> list[Fact]:
        return self.refresh()._held(None)[0]  # noqa: SLF001 -- it is this table

    def explain(self, writer: str, epoch: int) -> Explanation:
        """What became of an epoch, and why."""
        return self._retrying(lambda: audit.explain(self.log, writer, epoch, self._is_visible))

    def __repr__(self) -> str:
        return f"<txsink.Table {self.path!r} version {self.version}>"

    def _repr_html_(self) -> str:
        files = self.files()
        rows_there = counted(sum(file.rows for file in files), "row")
        told = f"version {self.version}, {counted(len(files), 'file')}, {rows_there}"
        by = set(self.partition_columns)
        rows = "".join(
            f"<tr><td>{html.escape(field.name)}</td><td>{html.escape(str(field.type))}</td>"
            f"<td>{'partition' if field.name in by else ''}</td></tr>"
            for field in self.schema
        )
        return f"<div><b>{html.escape(self.path)}</b> ({told})<table>{rows}</table></div>"

    # -- pieces ---------------------------------------------------------------------------------------

    def _retrying(self, act: Callable[[], _T]) -> _T:
        """Do `act` again when expiry took away what it was reading."""
        for _ in range(_TRIES):
            boundary = self.log.state.boundary
            prepared = [item.prepared for item in (*self._state.pending, *self._state.aborting)]
            if min([self._state.version, *prepared]) < boundary:
                self._state = self.log.state
            try:
                return act()
            except (CorruptError, InvalidRequestError):
                if self.log.load().boundary == boundary:
                    raise
        return act()

    def _held(self, version: int | None) -> tuple[list[Fact], list[dict[str, Any]], pa.Schema]:
        """The files, their partition values, and all columns."""
        return self._retrying(lambda: self._read_held(version))

    def _read_held(self, version: int | None) -> tuple[list[Fact], list[dict[str, Any]], pa.Schema]:
        at, seen = self._at(version)
        known = schema.schema_of(self._columns_at(at, seen))
        if seen is not None and self.delta is not None:
            facts = delta_view.facts_in(self.log, self.delta, seen)
        else:
            facts = versions.live_at(self.log, at)
        return facts, versions.partitions_of(facts, self._partitioned_by(seen), known), known

    def _partitioned_by(self, seen: DeltaState | None) -> tuple[str, ...]:
        """The partition columns: those of the Delta table, which another program may have partitioned anew."""
        return self._state.partition_columns if seen is None or seen.version < 0 else seen.partition_columns

    def _at(self, version: int | None) -> tuple[int, DeltaState | None]:
        """The version that is meant; the Delta table then, if that tells what is there."""
        at = self._state.version if version is None else version
        if version is not None:
            if isinstance(version, int) and version > self.log.state.version:
                self.log.refresh()
            versions.require_retained(self.log.state, version, f"read {self.path} at version {version!r}")
        if self.delta is not None and at == self._state.version:
            return at, self._seen
        is_told = self.delta is not None and delta_view.is_told_by(self.log, at)
        return at, delta_view.state_at(self.log, self.delta, at) if self.delta is not None and is_told else None

    def _columns_at(self, at: int, seen: DeltaState | None) -> tuple[Column, ...]:
        if seen is not None:
            return delta_view.columns_in(seen)
        return self._state.columns if at == self._state.version else versions.columns_at(self.log, at)

    def _tables(
        self, version: int | None, columns: Sequence[str] | str | None, files: Collection[str] | None = None
    ) -> tuple[pa.Schema, Iterator[pa.Table]]:
        facts, partitions, known = self._read_held(version)
        names = [columns] if isinstance(columns, str) else columns
        target = known if names is None else pa.schema([self._field(known, name) for name in dict.fromkeys(names)])
        held = [pair for pair in zip(facts, partitions, strict=True) if files is None or pair[0].path in files]
        return target, (versions.rows_in(self._places.read(fact), fact, target, values) for fact, values in held)

    def _field(self, known: pa.Schema, name: str) -> pa.Field:
        if name in known.names:
            return known.field(name)
        advice = did_you_mean(name, known.names, f"Choose among {', '.join(known.names)}")
        raise InvalidRequestError(f"read {self.path}", f"there is no column {name!r}", advice)

    def _is_visible(self, item: Pending) -> bool:
        return self.delta is not None and delta_view.is_visible(self.delta, item)

    def _waiting(self, item: Pending, state: str) -> PendingTransaction:
        prepare = self.log.prepare_entry(item.prepared)
        return PendingTransaction(
            writer=item.writer,
            epoch=item.epoch,
            version=item.prepared,
            state=state,
            run=item.run,
            mode=item.mode,
            files=len(prepare.files),
            rows=sum(file.rows for file in prepare.files),
            bytes=sum(file.bytes for file in prepare.files),
            removes=len(prepare.removes),
            time=versions.moment(prepare.time_ms),
            metadata=dict(item.metadata),
        )
