"""One epoch in a program's hands: write, prepare, commit, abort.

Promises: what was staged goes away with the transaction unless it is prepared; an unknown outcome deletes nothing.
Relies on: its `Sink`, whose lock lets one thread at a time speak with the log.
Does not promise: to be shared between threads. Each thread begins its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from txsink import recovery, transaction
from txsink.adopt import Guest
from txsink.entry import Column
from txsink.errors import FencedError, InvalidRequestError, OutcomeUnknownError, TxsinkError
from txsink.log import Log
from txsink.place import Place
from txsink.publish import Publisher, name_of
from txsink.stage import EpochStager, StagedFile, StageOptions
from txsink.stager import Stager
from txsink.state import union
from txsink.store import StorageOptions
from txsink.transaction import Content, Run


class Settings(NamedTuple):
    """What an open writer stages with: `place` as its publisher says."""

    uri: str
    storage_options: StorageOptions
    place: Place
    merge_schema: bool
    stage: StageOptions


class Result(NamedTuple):
    """What became of a transaction: `committed` or `already-committed`, at which version, with what."""

    outcome: str
    epoch: int
    version: int
    files: int
    rows: int
    bytes: int


class Owner(Protocol):
    """What a transaction needs of the open writer it belongs to."""

    log: Log
    identity: Run
    publisher: Publisher
    settings: Settings
    lock: RLock

    def commit(self, epoch: int) -> None:
        """Publish and commit every prepared epoch <= `epoch`."""

    def abort(self, epoch: int) -> None:
        """Drop a prepared epoch."""

    def forget(self, txn: Transaction) -> None:
        """Drop a transaction that is prepared or resolved."""

    def is_shared(self, txn: Transaction) -> bool:
        """Whether another transaction stages for the same epoch."""

    def about_to_stage(self, *, by_others: bool) -> None:
        """Make sure that what is staged from here on is found, should it be left."""


class Transaction:
    """One epoch of one writer. As a context manager it commits on exit, and aborts on an exception."""

    def __init__(
        self, sink: Owner, epoch: int, mode: str, metadata: dict[str, Any], parts: int | None, *, is_committed: bool
    ) -> None:
        self._sink = sink
        self._mode = mode
        self._metadata = metadata
        self._parts_expected = parts
        self._parts: list[str] = []
        self._staged: list[StagedFile] = []
        self._columns: tuple[Column, ...] = ()
        self._stager: EpochStager | None = None
        self._is_sealed = False
        self.epoch = epoch
        #: `open`, `prepared`, `committed`, `aborted`, `already-committed`, or `unknown` (recovery finds out).
        self.outcome = "already-committed" if is_committed else "open"

    def write(self, data: object) -> int:
        """Stage rows: Arrow data of any kind, pandas, polars, batches, a reader. Returns how many."""
        if self.outcome == "already-committed":
            return 0
        self._require("write to", "open")
        if self._stager is None:
            self._sink.about_to_stage(by_others=False)
            self._stager = new_stager(self._sink, self.epoch)
        return self._stager.write(data)

    def stager(self, part: str | int | None = None) -> Stager:
        """What a worker stages with; give each part of a counted transaction its own name."""
        sink = self._sink
        state, settings = sink.log.state, sink.settings
        sink.about_to_stage(by_others=True)
        return Stager(
            uri=settings.uri,
            storage_options=settings.storage_options,
            directory=settings.place.directory,
            id_prefix=settings.place.id_prefix,
            is_in_place=sink.publisher.is_in_place,
            writer=sink.identity.writer,
            run=sink.identity.run,
            epoch=self.epoch,
            partition_columns=state.partition_columns,
            columns=sink.publisher.columns(state),
            merge_schema=settings.merge_schema,
            options=settings.stage,
            new_id=sink.log.stamps.new_id,
            part=None if part is None else str(part),
        )

    def guest(self) -> Guest:
        """A directory for another program's files; `add` what `Guest.adopt` returns."""
        store, run = self._sink.log.store, self._sink.identity
        if not store.traits.moves:
            raise InvalidRequestError(
                f"stage files of another program for epoch {self.epoch} of {run.writer!r}",
                "this store cannot move files",
                "Stage them through Arrow, with `write` or a stager",
            )
        self._sink.about_to_stage(by_others=True)
        place = self._sink.settings.place
        guest_id = f"{place.id_prefix}{self._sink.log.stamps.new_id()}"
        return Guest(store, place, run.writer, run.run, self.epoch, guest_id)

    def add(
        self,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        part: str | int | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        """Add what workers staged. `part` names the part these are all files of, also when there are none.

        `columns`: those of the data, which no file tells when there is none.
        """
        if self.outcome == "already-committed":
            return
        self._require("add to", "open")
        files = [one if isinstance(one, StagedFile) else StagedFile.from_dict(one) for one in staged]
        for one in files:
            if (one.writer, one.run, one.epoch) != (self._sink.identity.writer, self._sink.identity.run, self.epoch):
                raise InvalidRequestError(
                    f"add {one.file.path} to epoch {self.epoch} of {self._sink.identity.writer!r}",
                    f"it was staged for epoch {one.epoch} of {one.writer!r} by run {one.run}",
                    "Add what this transaction's stager staged",
                )
        known = Counter(one.file.path for one in (*self._staged, *files))
        if repeated := [path for path, count in known.items() if count > 1]:
            raise InvalidRequestError(f"add to epoch {self.epoch}", f"{repeated[0]} is added twice", "Add it once")
        names = {str(part)} if part is not None else {one.part for one in files if one.part is not None}
        self._parts += sorted(names)
        self._staged += files
        self._columns = union(self._columns, columns)

    def prepare(self) -> None:
        """Seal: after this no worker is needed. The epoch is committed by `commit`, or by recovery."""
        if self.outcome not in {"open", "aborted", "unknown"}:
            return
        self._require("prepare", "open")
        self._require_parts()
        if self._stager is not None:
            # From here on only the log decides what may be deleted, so the stager must not.
            self._columns = union(self._columns, self._stager.columns)
            self._staged = [*self._stager.finish(), *self._staged]
            self._stager = None
        sink = self._sink
        columns = self._columns
        for one in self._staged:
            columns = union(columns, one.columns)
        content = Content(
            epoch=self.epoch,
            mode=self._mode,
            staged=self._staged,
            columns=columns,
            metadata=self._metadata,
            merge_schema=sink.settings.merge_schema,
        )
        with sink.lock:
            # ORDER: aborts finished before the next prepare entry, else a reader sees the rows of an epoch from two
            # transactions, or a late deletion takes files that were prepared again (I1).
            recovery.finish_aborts(sink.log, sink.identity, sink.publisher)
            try:
                is_new = transaction.prepare(sink.log, sink.identity, sink.publisher, content)
            except OutcomeUnknownError:
                self.outcome = "unknown"
                raise
            except FencedError:
                with suppress(TxsinkError):  # that it is fenced says more
                    self._forget()
                raise
            self.outcome = "prepared" if is_new else "already-committed"
            sink.forget(self)
            if not is_new:
                self._forget()

    def commit(self) -> Result:
        """Prepare if need be, publish and commit; earlier prepared epochs of the writer first."""
        self.prepare()
        if self.outcome == "prepared":
            self._is_sealed = True
            self._sink.commit(self.epoch)
            self.outcome = "committed"
        return self.result()

    def abort(self) -> None:
        """Drop the epoch. What is committed stays committed; an unknown outcome is left to recovery."""
        if self.outcome == "open":
            try:
                self._forget()
            finally:
                if self._stager is not None:
                    self._stager.discard()
            self.outcome = "aborted"
        elif self.outcome == "prepared":
            self._sink.abort(self.epoch)
            self.outcome = "aborted"
        self._sink.forget(self)

    def result(self) -> Result:
        """What became of it."""
        known = self._sink.log.state.writers.get(self._sink.identity.writer)
        version = -1 if known is None or known.last_version is None else known.last_version
        files = [one.file for one in self._staged] if self.outcome == "committed" else []
        return Result(
            outcome=self.outcome,
            epoch=self.epoch,
            version=version,
            files=len(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
        )

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.outcome != "aborted":
                self.commit()
        elif not self._is_sealed:  # a commit that failed is finished by recovery, or by trying again
            with suppress(TxsinkError):  # the error that is under way says more
                self.abort()

    def _forget(self) -> None:
        """Delete what was staged for the epoch, as far as no entry names it."""
        sink = self._sink
        with sink.lock:
            is_alone = not sink.is_shared(self) and not sink.publisher.is_in_place  # there, looking lists the table
            own = None if is_alone else [name_of(one) for one in self._staged]
            recovery.forget(sink.log, sink.identity, sink.publisher, self.epoch, own)

    def _require(self, verb: str, outcome: str) -> None:
        if self.outcome != outcome:
            raise InvalidRequestError(
                f"{verb} epoch {self.epoch} of {self._sink.identity.writer!r}",
                f"the transaction is {self.outcome}",
                "Begin another one",
                epoch=self.epoch,
            )

    def _require_parts(self) -> None:
        repeated = sorted({name for name in self._parts if self._parts.count(name) > 1})
        expected = self._parts_expected
        if repeated or (expected is not None and len(self._parts) != expected):
            found = f"part {repeated[0]} was added twice" if repeated else f"{len(self._parts)} parts were added"
            raise InvalidRequestError(
                f"prepare epoch {self.epoch} of {self._sink.identity.writer!r}",
                f"{found}, {'each part once' if expected is None else expected} was expected",
                "Add every part once; one attempt of each task",
                parts=len(self._parts),
            )


def new_stager(owner: Owner, epoch: int) -> EpochStager:
    """What an open writer stages an epoch with, in its own process."""
    log, settings = owner.log, owner.settings
    return EpochStager(
        log.store,
        settings.place.directory,
        writer=owner.identity.writer,
        run=owner.identity.run,
        epoch=epoch,
        partition_columns=log.state.partition_columns,
        columns=owner.publisher.columns(log.state),
        merge_schema=settings.merge_schema,
        options=settings.stage,
        new_id=lambda: f"{settings.place.id_prefix}{log.stamps.new_id()}",
        is_in_place=owner.publisher.is_in_place,
    )
