"""Delta's own log over a store: follow it, and append exactly the next commit to it.

Promises: a commit takes the version after the newest one, after every commit before it was read and made durable, is
durable when `commit` returns, and is made once however often its answer is lost; a lost race is decided again on what
the winner wrote. What clean-up took away is never written anew and believed in.
Relies on: `Store.put_if_absent`, as `log` does; `deltalake`, imported when needed, for checkpoints and for types.
Does not promise: to keep other engines from breaking the table; that they create commits without replacing any (on S3:
writers with conditional puts, which delta-rs has and Spark needs a log store for) is Delta's own condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from threading import Thread
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec
import pyarrow as pa

from txsink import paths, schema
from txsink.chain.put_once import Record, possibly_written, put
from txsink.delta import state as states
from txsink.delta.state import Action, DeltaState
from txsink.environment import Stamps
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError, UnavailableError
from txsink.records import Column
from txsink.store.protocol import StorageOptions, Store

COMMIT_TRIES = 100
TABLE_READS = 5
ZONED = pa.timestamp("us", "UTC")
FILES_KEPT = 10_000  # of a table read from its first commit on; larger ones are asked of deltalake when needed
_POINTER_BYTES_MAX, _COMMIT_BYTES_MAX = 1 << 20, 1 << 30
_END_BYTES = 4096  # of a commit: enough to tell it from any other

Make: TypeAlias = Callable[[DeltaState], list[Action] | None]


class _Pointer(msgspec.Struct):
    version: int


class DeltaLog:
    """The Delta log of the table at `root`, which a user named as `uri`, and other programs know as `self.uri`."""

    def __init__(self, store: Store, root: str, stamps: Stamps, uri: str) -> None:
        self.store = store
        self.root = root
        self.stamps = stamps
        self.uri = _address(store, root, uri)
        self.state = DeltaState()
        self.commits = 0  # since the last checkpoint, as far as this process knows
        self.upkeep: Thread | None = None
        self._unsettled: list[str] = []  # commits of others that we have read and not made durable
        self._newest: tuple[int, bytes] | None = None  # size and end of the newest commit known

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return self.state.version >= 0

    # -- reading --------------------------------------------------------------------------------------

    def load(self) -> DeltaState:
        """The newest state, from the first commit on or from what deltalake makes of the last checkpoint."""
        self.state = DeltaState(files={}, gone=set())
        pointer = self._pointed()
        if pointer is None:
            self._follow()
        if pointer is not None or (not self.exists and self._has_commits()):
            self.state = _state_of(table := self.table())
            self.state.txn_of = partial(self._recorded, table)
            # What deltalake read beyond the checkpoint may be no more durable than what we read.
            self._unsettled = [self._at(version) for version in range(pointer or 0, self.state.version + 1)]
            self._newest = self._end(self.state.version)
            self._follow()
        # A process that commits once and ends must not leave the checkpoint to the next one for ever.
        self.commits = self.state.version - (-1 if pointer is None else pointer)
        return self.state

    def refresh(self) -> DeltaState:
        """The newest state, by way of the commits made since."""
        start, newest = self.state.version, self._newest
        self._follow()
        # ORDER: commits read before the one we started from is looked at once more, else the dead commit of a writer
        # that slept through a clean-up as well is taken for the next one (I3).
        if self.state.version > start >= 0 and self._end(start) != newest:
            self.load()
        return self.state

    def _follow(self) -> None:
        while (data := self.store.read(self._at(self.state.version + 1), _COMMIT_BYTES_MAX)) is not None:
            version = self.state.version + 1
            states.fold(self.state, states.actions_of(data, version), version)
            self._newest = len(data), data[-_END_BYTES:]
            self._unsettled.append(self._at(version))
        self.state.keep(FILES_KEPT)

    def _recorded(self, table: Any, app_id: str) -> int | None:
        """What the table that `load` found has under an application's id; it is read only now."""
        what = f"read the Delta table {self.uri}"
        with suppress(deltalake_for(what).exceptions.DeltaError, OSError):
            return None if (found := table.transaction_version(app_id)) is None else int(found)
        self.load()
        raise UnavailableError(what, "its log was cleaned up since it was read, or the store failed", "Retry")

    def actions(self, version: int) -> list[Action] | None:
        """What one commit holds; None when it is not there."""
        data = self.store.read(self._at(version), _COMMIT_BYTES_MAX)
        return None if data is None else states.actions_of(data, version)

    def between(self, first: int, last: int) -> Iterator[tuple[int, list[Action]]]:
        """The commits `first` to `last`."""
        for version in range(first, last + 1):
            found = self.actions(version)
            if found is None:
                raise _cleaned_up(version)
            yield version, found

    def files(self) -> dict[str, dict[str, Any]]:
        """The files of the newest state known, by path."""
        return self.files_of(self.state)

    def files_of(self, state: DeltaState) -> dict[str, dict[str, Any]]:
        """The files of a state, by path."""
        if state.files is None:
            state.files = _files_in(self.table(state.version))
        return state.files

    def at(self, version: int) -> DeltaState:
        """The table at an earlier version."""
        if self._pointed() is not None:
            return _state_of(self.table(version))
        past = DeltaState(files={})
        for at, actions in self.between(0, version):
            states.fold(past, actions, at)
        return past

    def table(self, version: int | None = None) -> Any:
        """The table as deltalake has it."""
        what = f"read the Delta table {self.uri}"
        deltalake = deltalake_for(what)
        kind = ""
        # A listing of a local directory that grows may hold a commit and not the one before it: deltalake sees a gap
        # there, and none when it looks again. Listings of other stores come in the order of names.
        for _ in range(TABLE_READS if is_local(self.uri) else 1):
            try:
                return deltalake.DeltaTable(self.uri, version, _options_of(self.store, self.root))
            except deltalake.exceptions.TableNotFoundError as error:
                if version is not None and self._has_commits():
                    raise _cleaned_up(version) from error
                advice = "Restore its _delta_log from a copy; nothing was changed"
                raise CorruptError(what, "deltalake finds no Delta table there", advice) from error
            except (deltalake.exceptions.DeltaError, OSError) as error:
                kind = type(error).__name__  # not its words: of some stores they hold what was sent
        self._require_whole(what)
        found = f"deltalake cannot read it ({kind})"
        raise UnavailableError(what, found, "Retry; if it stays so, read it by deltalake alone")

    # -- appending ------------------------------------------------------------------------------------

    def commit(self, make: Make, info: Action, what: str) -> int | None:
        """Commit what `make` says for the newest state; None when it says that nothing is to be committed."""
        for attempt in range(COMMIT_TRIES):
            known, base = self.state, self.state.version
            try:
                actions = make(known)
            except TxsinkError:
                # A refusal counts only when nothing was committed since the state it was made on.
                if self.state is known and self.refresh().version == base:
                    raise
                continue
            # ORDER: commits read durable before the next one gets its name (or the caller believes them), else a power
            # cut keeps that one and takes those away: a Delta log with a gap (I13).
            self.settle()
            if actions is None:
                return None
            write_id = self.stamps.new_id()
            info["commitInfo"] |= {"timestamp": self.stamps.now_ms(), "txnId": write_id}
            whole = [info, *actions]
            ours = Record(states.encode(whole), write_id)
            # ORDER: the commit we build on looked at again before ours gets its name, else that comes to stand in a
            # table which somebody made anew in this one's place (I15).
            if base >= 0 and self._end(base) != self._newest:
                self.load()
                continue
            if put(self.store, self.stamps.pause, self._at(base + 1), ours, what):  # COMMIT POINT (delta)
                # ORDER: the last checkpoint looked at before ours counts, else a writer that slept through a clean-up
                # believes in a version that no reader looks at any more (I3).
                with possibly_written(what):
                    checkpoint = self._pointed()
                if checkpoint is None or checkpoint <= base:
                    states.fold(self.state, whole, base + 1)
                    self._newest = len(ours.data), ours.data[-_END_BYTES:]
                    self.commits += 1
                    return base + 1
                self.load()  # it covers ours, or ours came too late: that is read from it
            else:
                self.refresh()
            self.stamps.pause(attempt)
        found = f"{COMMIT_TRIES} other commits came first"
        raise UnavailableError(what, found, "Retry when fewer programs write to the table")

    def settle(self) -> None:
        """Make commits of other programs durable: content and names."""
        for path in self._unsettled:
            self.store.sync(path)
        if self._unsettled:
            self.store.settle(self._unsettled)
            self._unsettled = []

    # -- pieces ---------------------------------------------------------------------------------------

    def _end(self, version: int) -> tuple[int, bytes] | None:
        """Size and end of a commit, which tell it from any other; None when it is not there."""
        found = self.store.tail(self._at(version), _END_BYTES)
        return None if found is None else (found.bytes, found.data)

    def _pointed(self) -> int | None:
        """The version of the last checkpoint; -1 when nobody can tell."""
        data = self.store.read(f"{self.root}/{paths.DELTA_POINTER_PATH}", _POINTER_BYTES_MAX)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=_Pointer).version
        except (ValueError, RecursionError):
            return -1

    def _require_whole(self, what: str) -> None:
        """Refuse a log without its last checkpoint, or without its beginning: what only a copy can mend."""
        pointer, names = self._pointed(), self._names()
        checkpoints = [name for name in names if ".checkpoint." in name]
        if pointer is not None and pointer >= 0 and not any(name[:20] == f"{pointer:020d}" for name in checkpoints):
            found = f"{paths.DELTA_POINTER_PATH} names a checkpoint of version {pointer}, and there is none"
            advice = "which only saves time, and retry"
            raise CorruptError(what, found, f"Delete {paths.DELTA_POINTER_PATH}, {advice}", delta_version=pointer)
        first = min((int(name[:20]) for name in names if name[:20].isdecimal()), default=0)
        if pointer is None and first and not checkpoints:
            found = f"version 0 of its log is missing, yet version {first} is there"
            raise CorruptError(what, found, f"Restore {paths.delta_commit_path(0)} from a copy", delta_version=0)

    def _at(self, version: int) -> str:
        return f"{self.root}/{paths.delta_commit_path(version)}"

    def _has_commits(self) -> bool:
        return any(name[:20].isdecimal() for name in self._names())

    def _names(self) -> list[str]:
        return self.store.list(f"{self.root}/{paths.DELTA_DIRECTORY}")


def _cleaned_up(version: int) -> InvalidRequestError:
    what = f"read version {version} of the Delta log"
    advice = "Read a newer version; delta.logRetentionDuration says for how long versions are kept"
    return InvalidRequestError(what, "it was cleaned up", advice, delta_version=version)


# -- what deltalake says ------------------------------------------------------------------------------


def _state_of(table: Any) -> DeltaState:
    metadata, protocol = table.metadata(), table.protocol()
    asked: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.reader_features is not None:
        asked["readerFeatures"] = list(protocol.reader_features)
    if protocol.writer_features is not None:
        asked["writerFeatures"] = list(protocol.writer_features)
    return DeltaState(
        version=table.version(),
        metadata_version=table.version(),  # or before
        protocol=asked,
        metadata={
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": list(metadata.partition_columns),
            "createdTime": metadata.created_time,
            "configuration": dict(metadata.configuration),
        },
        txn_of=table.transaction_version,
    )


def _files_in(table: Any) -> dict[str, dict[str, Any]]:
    """The table's files as add actions, as far as we need them."""
    features = table.protocol().reader_features or ()
    if "deletionVectors" in features and pa.table(table.deletion_vectors().read_all()).num_rows:
        # A remove action has to name the vector, which deltalake does not tell: without it the file would stay.
        raise InvalidRequestError(
            "list the files of a Delta table",
            "some have deletionVectors, and only a checkpoint tells which",
            "Purge them first (REORG TABLE ... APPLY (PURGE)), or append",
        )
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [str(name) for name in table.metadata().partition_columns]
    values = {name: _spelled(actions.column(f"partition.{name}").combine_chunks(), name) for name in names}
    found = {}
    counts = (
        actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None] * len(actions)
    )
    sizes = actions.column("size_bytes").to_pylist()
    for at, path in enumerate(actions.column("path").to_pylist()):
        stats = "" if counts[at] is None else f'{{"numRecords":{counts[at]}}}'
        texts = {name: values[name][at] for name in names}
        found[path] = {"path": path, "size": sizes[at], "partitionValues": texts, "stats": stats}
    return found


def _spelled(values: Any, name: str) -> list[str | None]:
    if pa.types.is_string(values.type):
        values = pa.array([value or None for value in values.to_pylist()], values.type)  # "" is null to Delta
    texts = schema.partition_text(values, name)
    return [zoned_text(text) for text in texts] if values.type == ZONED else texts


def zoned_text(text: str | None) -> str | None:
    """A partition value that is a time in UTC, in the one form that no reader of Delta takes for local time."""
    if text is None:
        return None
    moment = text if " " in text else f"{text} 00:00:00"
    return f"{moment.replace(' ', 'T')}{'' if '.' in moment else '.000000'}Z"


def plain_text(text: str | None, kind: pa.DataType) -> str | None:
    """A partition value of Delta's log in our own spelling; typed on the way, because spellings differ."""
    if not text:
        return None
    if kind == ZONED:
        with suppress(pa.ArrowInvalid):  # a time that names no zone is one of UTC
            text = str(pa.array([text]).cast(ZONED).cast(pa.timestamp("us"))[0])
    return schema.partition_text(schema.partition_values([text], kind), "")[0]


# -- types --------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def fields_of(columns: tuple[Column, ...], what: str) -> tuple[dict[str, Any], ...]:
    """Columns as the fields of a Delta schema; a column without a type yet is none."""
    typed = pa.schema([field for field in schema.schema_of(columns) if not pa.types.is_null(field.type)])
    for field in typed:
        if bad := _unsigned(field.type):
            found = f"column {field.name!r} is of type {bad}, and Delta has no unsigned integers"
            advice = "Cast it to a signed integer"
            raise InvalidRequestError(what, found, advice, column=field.name, type=str(field.type))
    text = deltalake_for(what).Schema.from_arrow(typed).to_json()
    return tuple(msgspec.json.decode(text)["fields"])


@lru_cache(maxsize=64)
def columns_of(text: str, what: str) -> tuple[Column, ...]:
    """A Delta schema, as its metadata has it, as columns."""
    return schema.columns_of(pa.schema(deltalake_for(what).Schema.from_json(text).to_arrow())) if text else ()


def _unsigned(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_unsigned_integer(kind):
        return kind
    parts = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return next((found for part in parts if (found := _unsigned(part)) is not None), None)


def is_local(uri: str) -> bool:
    """Whether the table lies on a local disk."""
    return "://" not in uri or uri.startswith("file://")


def deltalake_for(what: str) -> Any:
    """The package, of which the Delta layout is the only user."""
    try:
        import deltalake  # noqa: PLC0415 -- an extra, and 40 MB
        import deltalake.exceptions  # noqa: PLC0415
    except ImportError as error:
        advice = "Install it: pip install 'txsink[delta]', or choose layout='parquet'"
        found = "the package deltalake is missing, which the Delta layout needs"
        raise InvalidRequestError(what, found, advice) from error
    return deltalake


def _address(store: Store, root: str, uri: str) -> str:
    """The root as deltalake's clients have it: percent-encoded, but for a local path."""
    known = getattr(store, "object_store_uri", None)
    if known is not None:
        return str(known(root))
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}{quote(root)}" if separator and scheme != "file" else root


def _options_of(store: Store, root: str) -> StorageOptions | None:
    """What deltalake's clients have to be told; secrets among it."""
    known = getattr(store, "object_store_options", None)
    return known(root) if known is not None else None
