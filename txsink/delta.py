"""Delta's own log over a store: follow it, and append exactly the next commit to it.

Promises: a commit takes the version after the newest one, after every commit before it was read and made durable, is
durable when `commit` returns, and is made once however often its answer is lost; a lost race is decided again on what
the winner wrote. What clean-up took away is never written anew and believed in.
Relies on: `Store.put_if_absent`, as `log` does; `deltalake` for what has checkpoints, and for types. The only user of
`deltalake`, which is imported when it is needed.
Does not promise: to keep other engines from breaking the table; that they create commits without replacing any (on S3:
writers with conditional puts, which delta-rs has and Spark needs a log store for) is Delta's own condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from threading import Thread
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from txsink import delta_state as states
from txsink import layout, schema
from txsink.delta_state import Action, DeltaState
from txsink.entry import ENTRY_BYTES_MAX, Column
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError, UnavailableError
from txsink.slots import Stamps, put
from txsink.store import StorageOptions, Store

COMMIT_TRIES = 100
FILES_KEPT = 10_000  # of a table read from its first commit on; larger ones are asked of deltalake when needed
_POINTER_BYTES_MAX = 1 << 20

Make: TypeAlias = Callable[[DeltaState], list[Action] | None]


class DeltaLog:
    """The Delta log of the table at `root`, which other programs know as `uri`."""

    def __init__(self, store: Store, root: str, stamps: Stamps, uri: str, storage_options: StorageOptions) -> None:
        self.store = store
        self.root = root
        self.stamps = stamps
        self.uri = uri
        self.storage_options = storage_options
        self.state = DeltaState()
        self.commits = 0  # made here since the last checkpoint
        self.upkeep: Thread | None = None
        self._unsettled: list[str] = []  # commits of others that we have read and not made durable

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return self.state.version >= 0

    # -- reading --------------------------------------------------------------------------------------

    def load(self) -> DeltaState:
        """The newest state, from the first commit on or from what deltalake makes of the last checkpoint."""
        self.state = DeltaState(files={})
        pointer = self.store.read(f"{self.root}/{layout.DELTA_POINTER_PATH}", _POINTER_BYTES_MAX)
        if pointer is None:
            self.refresh()
            if self.exists or not self._has_commits():
                return self.state
        self.state = self._state_of(self.table())
        return self.refresh()

    def refresh(self) -> DeltaState:
        """The newest state, by way of the commits made since."""
        while (actions := self.actions(self.state.version + 1)) is not None:
            version = self.state.version + 1
            states.fold(self.state, actions, version)
            self._unsettled.append(self._at(version))
        if self.state.files is not None and len(self.state.files) > FILES_KEPT:
            self.state.files = None
        return self.state

    def actions(self, version: int) -> list[Action] | None:
        """What one commit holds; None when it is not there."""
        data = self.store.read(self._at(version), ENTRY_BYTES_MAX)
        return None if data is None else states.actions_of(data, version)

    def between(self, first: int, last: int) -> Iterator[tuple[int, list[Action]]]:
        """The commits `first` to `last`."""
        for version in range(first, last + 1):
            found = self.actions(version)
            if found is None:
                raise CorruptError(
                    f"read version {version} of the Delta log",
                    "it was cleaned up",
                    "Keep commits (delta.logRetentionDuration) for longer than an epoch stays prepared",
                    delta_version=version,
                )
            yield version, found

    def files(self) -> dict[str, dict[str, Any]]:
        """The files of the newest state known, by path."""
        if self.state.files is None:
            self.state.files = self._files_of(self.table(self.state.version))
        return self.state.files

    def files_at(self, version: int) -> set[str]:
        """The paths of the files at an earlier version."""
        past = DeltaState(files={})
        if self.store.tail(self._at(0), 0) is None:
            return set(self._files_of(self.table(version)))
        for at, actions in self.between(0, version):
            states.fold(past, actions, at)
        return set(past.files or ())

    def table(self, version: int | None = None) -> Any:
        """The table as deltalake has it."""
        what = f"read the Delta table {self.uri}"
        deltalake = _deltalake(what)
        try:
            return deltalake.DeltaTable(self.uri, version, _options_of(self.store, self.storage_options))
        except deltalake.exceptions.TableNotFoundError as error:
            advice = "Restore its _delta_log from a copy; nothing was changed"
            raise CorruptError(what, "deltalake finds no Delta table there", advice) from error
        except (deltalake.exceptions.DeltaError, OSError) as error:
            # Not its words: of some stores they hold what was sent.
            found = f"deltalake cannot read it ({type(error).__name__})"
            raise UnavailableError(what, found, "Retry; if it stays so, read it by deltalake alone") from None

    # -- appending ------------------------------------------------------------------------------------

    def commit(self, make: Make, info: Action, what: str) -> int | None:
        """Commit what `make` says for the newest state; None when it says that nothing is to be committed."""
        for attempt in range(COMMIT_TRIES):
            base = self.state.version
            try:
                actions = make(self.state)
            except TxsinkError:
                # A refusal counts only when nothing was committed since the state it was made on.
                if self.refresh().version == base:
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
            if put(self.store, self.stamps, self._at(base + 1), states.encode(whole), write_id, what):
                # ORDER: the commit before looked at again before ours counts, else a writer that slept through a
                # clean-up writes a version that no reader looks at any more (I3).
                if base < 0 or self.store.tail(self._at(base), 0) is not None:
                    states.fold(self.state, whole, base + 1)
                    self.commits += 1
                    return base + 1
                self.load()
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

    def _at(self, version: int) -> str:
        return f"{self.root}/{layout.delta_commit_path(version)}"

    def _has_commits(self) -> bool:
        names = self.store.list(f"{self.root}/{layout.DELTA_DIRECTORY}")
        return any(name[:20].isdecimal() for name in names)

    def _state_of(self, table: Any) -> DeltaState:
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

    def _files_of(self, table: Any) -> dict[str, dict[str, Any]]:
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = [str(name) for name in table.metadata().partition_columns]
        texts = {
            name: schema.partition_text(actions.column(f"partition.{name}").combine_chunks(), name) for name in columns
        }
        sizes = actions.column("size_bytes").to_pylist()
        return {
            path: {"path": path, "size": sizes[at], "texts": {name: texts[name][at] for name in columns}}
            for at, path in enumerate(actions.column("path").to_pylist())
        }


# -- types --------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def fields_of(columns: tuple[Column, ...], what: str) -> tuple[dict[str, Any], ...]:
    """Columns as the fields of a Delta schema; a column without a type yet is none."""
    typed = pa.schema([field for field in schema.schema_of(columns) if not pa.types.is_null(field.type)])
    for field in typed:
        if bad := _unsigned(field.type):
            found = f"column {field.name!r} is of type {bad}, and Delta has no unsigned integers"
            raise InvalidRequestError(what, found, "Cast it to a signed integer", column=field.name)
    text = _deltalake(what).Schema.from_arrow(typed).to_json()
    return tuple(msgspec.json.decode(text)["fields"])


@lru_cache(maxsize=64)
def columns_of(text: str, what: str) -> tuple[Column, ...]:
    """A Delta schema, as its metadata has it, as columns."""
    return schema.columns_of(pa.schema(_deltalake(what).Schema.from_json(text).to_arrow())) if text else ()


def _unsigned(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_unsigned_integer(kind):
        return kind
    parts = [kind.field(at).type for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return next((found for part in parts if (found := _unsigned(part)) is not None), None)


def _deltalake(what: str) -> Any:
    try:
        import deltalake  # noqa: PLC0415 -- an extra, and 40 MB
        import deltalake.exceptions  # noqa: PLC0415
    except ImportError as error:
        advice = "Install it: pip install 'txsink[delta]', or choose layout='parquet'"
        raise InvalidRequestError(what, "the package deltalake is missing, which the Delta layout needs", advice) from error
    return deltalake


def _options_of(store: Store, given: StorageOptions) -> dict[str, str] | None:
    """The storage options as deltalake's clients take them."""
    known = getattr(store, "object_store_options", None)
    return known(given) if known is not None else None
