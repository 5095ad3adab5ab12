"""One epoch in a program's hands: write, prepare, commit, abort.

Promises: what was staged goes away with the transaction unless it is prepared; an unknown outcome deletes nothing;
threads may share it: each call is whole, one after another, and `prepare` takes what was written before it; a call that
was broken off, by an error or Ctrl-C, may be made again.
Relies on: its `Writer`, which lets one thread at a time speak with the log; `outcome`, which names what became of it.
Does not promise: the order of rows that several threads write.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, NoReturn, Protocol

from txsink import schema
from txsink.errors import FencedError, InvalidRequestError, TxsinkError, UnavailableError, first_of_all, is_of_store
from txsink.log.log import Log
from txsink.log.state import union
from txsink.protocol import outcome, preparing, recovery, sweeping
from txsink.protocol.fencing import Run
from txsink.protocol.outcome import ABORTED, ALREADY_COMMITTED, COMMITTED, ENDS, OPEN, PREPARED, UNKNOWN, Own, Result
from txsink.protocol.preparing import Content
from txsink.publish.protocol import Publisher, name_of
from txsink.records import Column
from txsink.staging.adopt import Guest
from txsink.staging.conform import require_kept
from txsink.staging.epoch_stager import EpochStager, StagedFile
from txsink.staging.stager import Settings, Stager
from txsink.writing.calls import Calls


class Owner(Protocol):
    """What a transaction needs of the open writer it belongs to."""

    log: Log
    identity: Run
    publisher: Publisher
    settings: Settings
    calls: Calls

    def require_open(self, what: str) -> None:
        """Refuse what a closed writer does not do."""

    def publish(self, epoch: int) -> None:
        """Publish and commit every prepared epoch <= `epoch`, within a call on the writer."""

    def keep_up(self) -> None:
        """What is due from time to time, off the commit path."""

    def drop(self, epoch: int) -> None:
        """Drop a prepared epoch, within a call on the writer."""

    def forget(self, txn: Transaction) -> None:
        """Drop a transaction that is prepared or resolved."""

    def is_shared(self, txn: Transaction) -> bool:
        """Whether another transaction stages for the same epoch."""

    def about_to_stage(self, *, by_others: bool) -> None:
        """Make sure that what is staged from here on is found, should it be left."""


class Transaction:
    """One epoch of one writer. As a context manager it commits on exit, and aborts on an exception.

    Threads may share it: each call is whole.
    """

    def __init__(
        self, sink: Owner, epoch: int, mode: str, metadata: dict[str, Any], parts: int | None, *, is_committed: bool
    ) -> None:
        self._calls = Calls()
        self._own = Own(sink.identity.run, mode, is_redundant=is_committed)
        self._end = ""  # the outcome, once no entry can change it
        self._sink = sink
        self._mode = mode
        self._metadata = metadata
        self._parts_expected = parts
        self._parts: list[str] = []
        self._added: list[StagedFile] = []
        self._written: list[StagedFile] = []  # by `write`, once sealed
        self._columns: tuple[Column, ...] = ()
        self._stager: EpochStager | None = None
        self._is_sealed = False  # and asked to commit
        self.epoch = epoch
        self.is_asked = False  # to commit, whether that came to an end or not

    @property
    def outcome(self) -> str:
        """`open`, `prepared`, `committed`, `aborted`, `already-committed`, or `unknown` (recovery finds out)."""
        if not self._end:
            found = outcome.outcome(self._sink.log, self._sink.identity.writer, self.epoch, self._own)
            if found == PREPARED:
                self._own = self._own._replace(was_prepared=True)
            if found not in ENDS:
                return found
            self._end = found
        return self._end

    def write(self, data: object) -> int:
        """Stage rows: Arrow data of any kind, pandas, polars, batches, a reader. Returns how many."""
        with self._calling("write to"):
            if self.outcome == ALREADY_COMMITTED:
                return 0
            self._require_open("write to")
            if self._stager is None:
                self._sink.about_to_stage(by_others=False)
                self._stager = new_stager(self._sink, self.epoch)
            try:
                return self._stager.write(data)
            except (UnavailableError, InvalidRequestError) as error:
                self._advise(error, self._stager)

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
            types=state.types,
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
        place, state = self._sink.settings.place, self._sink.log.state
        guest_id = f"{place.id_prefix}{self._sink.log.stamps.new_id()}"
        return Guest(store, place, run.writer, run.run, self.epoch, guest_id, state.partition_columns, state.types)

    def add(
        self,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        part: str | int | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        """Add what workers staged. `part` names the part these are all files of, also when there are none.

        `columns`: those of the data, which no file tells when there is none.
        """
        with self._calling("add to"):
            if self.outcome == ALREADY_COMMITTED:
                return
            self._require_open("add to")
            files = [one if isinstance(one, StagedFile) else StagedFile.from_dict(one) for one in staged]
            self._require_own(files)
            names = {str(part)} if part is not None else {one.part for one in files if one.part is not None}
            self._parts += sorted(names)
            self._added += files
            require_kept(columns, self._sink.log.state.types, self._what("add to"))
            self._columns = union(self._columns, columns)

    def prepare(self) -> None:
        """Seal: after this no worker is needed. The epoch is committed by `commit`, or by recovery."""
        with self._calling("prepare"), self._speaking("prepare"):
            self._prepare()

    def commit(self) -> Result:
        """Prepare if need be, publish and commit; earlier prepared epochs of the writer first.

        What failed or was broken off is finished by calling it again.
        """
        self.is_asked = True
        with self._calling("commit"), self._speaking("commit"):
            if self.outcome not in ENDS:
                self._sink.require_open(self._what("commit"))
            self._prepare()
            if self.outcome in {PREPARED, UNKNOWN}:
                self._is_sealed = True
                self._sink.publish(self.epoch)
                if self.outcome == COMMITTED:  # asked while the entries that say so are at hand
                    self._sink.keep_up()
        return self.result()

    def abort(self) -> None:
        """Drop the epoch, or finish that. What is committed stays; an unknown prepare is left to recovery."""
        with self._calling("abort"):
            self._abandon(drops_prepared=True)

    def abandon(self) -> None:
        """Drop it unless it is prepared: the writer is closed."""
        with self._calling("abort"):
            self._abandon(drops_prepared=False)

    def result(self) -> Result:
        """What became of it."""
        found = self.outcome
        is_over = found in {COMMITTED, ALREADY_COMMITTED}
        version = outcome.version_of(self._sink.log, self._sink.identity.writer, self.epoch) if is_over else -1
        files = [one.file for one in self._staged] if found == COMMITTED else []
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return Result(found, self.epoch, version, len(files), rows, size)

    def __repr__(self) -> str:
        known = self._end or (PREPARED if self._own.was_prepared else OPEN)  # without a look at the log
        return f"<txsink.Transaction of {self._sink.identity.writer!r}, epoch {self.epoch}: {known}>"

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.outcome != ABORTED:
                self.commit()
        elif not self._is_sealed:  # a commit that failed is finished by recovery, or by trying again
            with suppress(TxsinkError):  # the error that is under way says more
                self.abort()

    def __reduce__(self) -> NoReturn:
        found = "a transaction belongs to its process"
        raise InvalidRequestError(self._what("pickle"), found, "Send what `stager()` returns to the workers")

    def __del__(self) -> None:
        is_made = hasattr(self, "is_asked")  # Ctrl-C may have come before
        if is_made and self._has_rows and not self._end and self._own.files is None and not self._own.is_dropped:
            found = "it was written to, and neither committed nor aborted"
            warnings.warn(f"{self._what('drop')}: {found}", ResourceWarning, stacklevel=2, source=self)

    # -- pieces -----------------------------------------------------------------------------------------

    @property
    def _staged(self) -> list[StagedFile]:
        return [*self._written, *self._added]

    @property
    def _has_rows(self) -> bool:
        return self._stager is not None or bool(self._added)

    def _what(self, verb: str) -> str:
        return f"{verb} epoch {self.epoch} of {self._sink.identity.writer!r}"

    def _calling(self, verb: str) -> AbstractContextManager[None]:
        return self._calls.whole(self._what(verb))

    def _speaking(self, verb: str) -> AbstractContextManager[None]:
        """The log is ours until the call is over: a `close` by another thread comes before it or after it."""
        return self._sink.calls.whole(self._what(verb))

    def _prepare(self) -> None:
        sink, writer = self._sink, self._sink.identity.writer
        if self._own.files is not None and self.outcome in {OPEN, UNKNOWN}:
            # Asked before: what came of that decides, and its staged files may be published by now.
            sink.log.refresh()
            if outcome.prepared_at(sink.log, writer, self.epoch, self._own) is not None:
                return
        if self.outcome in {PREPARED, COMMITTED, ALREADY_COMMITTED}:
            return
        self._require_open("prepare")
        self._require_parts()
        content = self._sealed()
        # ORDER: aborts finished before the next prepare entry, else a reader sees the rows of an epoch from two
        # transactions, or a late deletion takes files that were prepared again (I1).
        recovery.finish_aborts(sink.log, sink.identity, sink.publisher)
        # From here on only the log decides what may be deleted.
        self._own = self._own._replace(files=frozenset(one.file.path for one in content.staged))
        try:
            is_new = preparing.prepare(sink.log, sink.identity, sink.publisher, content)
        except FencedError:
            with suppress(TxsinkError):  # that it is fenced says more
                self._forget()
            raise
        if not is_new:
            self._own = self._own._replace(is_redundant=True)
        found = self.outcome
        sink.forget(self)
        if found == ALREADY_COMMITTED:
            self._forget()

    def _sealed(self) -> Content:
        """What the prepare entry is to say; the same however often it is asked for."""
        if self._stager is not None:
            try:
                self._written = self._stager.finish()
            except (UnavailableError, InvalidRequestError) as error:
                self._advise(error, self._stager)
            self._columns = union(self._columns, self._stager.columns)
        columns = self._columns
        for brought in dict.fromkeys(one.columns for one in (*self._written, *self._added)):
            columns = schema.merge(columns, brought, merge_schema=True, what=self._what("prepare"))
        return Content(
            epoch=self.epoch,
            mode=self._mode,
            staged=self._staged,
            columns=columns,
            metadata=self._metadata,
            merge_schema=self._sink.settings.merge_schema,
        )

    def _abandon(self, *, drops_prepared: bool) -> None:
        sink = self._sink
        with self._speaking("abort"):
            found, is_prepared = self.outcome, self._own.was_prepared and drops_prepared
            if is_prepared and outcome.prepared_at(sink.log, sink.identity.writer, self.epoch, self._own) is not None:
                sink.drop(self.epoch)
            elif is_prepared and found == ABORTED:
                # A call before this one may have failed with its files still there.
                recovery.finish_aborts(sink.log, sink.identity, sink.publisher)
            elif found == OPEN or (found == ABORTED and self._own.is_dropped):
                # Once its files go it must never be prepared.
                self._own = self._own._replace(is_dropped=True)
                try:
                    self._forget()
                finally:
                    if self._stager is not None:
                        self._stager.discard()
            sink.forget(self)

    def _forget(self) -> None:
        """Delete what was staged for the epoch, as far as no entry names it."""
        sink = self._sink
        is_alone = not sink.is_shared(self) and not sink.publisher.is_in_place  # there, looking lists the table
        own = None if is_alone else [name_of(one) for one in self._staged]
        sweeping.forget(sink.log, sink.identity, sink.publisher, self.epoch, own)

    def _advise(self, error: UnavailableError | InvalidRequestError, stager: EpochStager) -> NoReturn:
        """The store failed: whether the call can be made again, or the epoch has to be begun again."""
        if not stager.closed or not is_of_store(error):
            raise error
        begin = f"Begin epoch {self.epoch} again, and write all of it: nothing of it is in the table"
        again = f"{first_of_all(error)}{begin}"
        raise type(error)(error.attempted, error.found, again, **error.context) from error

    def _require_open(self, verb: str) -> None:
        found = self.outcome
        if found != OPEN and not (found == UNKNOWN and verb == "prepare"):
            raise InvalidRequestError(
                self._what(verb), f"the transaction is {found}", "Begin another one", epoch=self.epoch
            )
        self._sink.require_open(self._what(verb))

    def _require_own(self, files: list[StagedFile]) -> None:
        for one in files:
            if (one.writer, one.run, one.epoch) != (self._sink.identity.writer, self._sink.identity.run, self.epoch):
                raise InvalidRequestError(
                    f"add {one.file.path} to epoch {self.epoch} of {self._sink.identity.writer!r}",
                    f"it was staged for epoch {one.epoch} of {one.writer!r} by run {one.run}",
                    "Add what this transaction's stager staged",
                )
        known = Counter(one.file.path for one in (*self._added, *files))
        if repeated := [path for path, count in known.items() if count > 1]:
            raise InvalidRequestError(f"add to epoch {self.epoch}", f"{repeated[0]} is added twice", "Add it once")

    def _require_parts(self) -> None:
        repeated = sorted({name for name in self._parts if self._parts.count(name) > 1})
        expected = self._parts_expected
        if repeated or (expected is not None and len(self._parts) != expected):
            found = f"part {repeated[0]} was added twice" if repeated else f"{len(self._parts)} parts were added"
            raise InvalidRequestError(
                self._what("prepare"),
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
        types=log.state.types,
        columns=owner.publisher.columns(log.state),
        merge_schema=settings.merge_schema,
        options=settings.stage,
        new_id=lambda: f"{settings.place.id_prefix}{log.stamps.new_id()}",
        is_in_place=owner.publisher.is_in_place,
    )
