"""An open writer and its transactions: what a program holds in its hands.

Promises: the verbs of `protocol` for one writer of one table, one at a time, whatever threads
call them; what a transaction staged goes away with it unless it is prepared; a commit that was asked for and failed is
finished by the next `commit` or `begin`, and by whoever opens the writer.
Relies on: `opening`, which wires the parts.
Does not promise: anything once FencedError was raised. A newer run has taken over.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from txsink.choices import Mode, OnNewer, PartitionOverwrite, require_choice
from txsink.errors import ConflictError, InvalidRequestError, TxsinkError, UnavailableError, first_of_all
from txsink.log.log import Log
from txsink.log.state import OVERWRITE_PARTITIONS, Pending
from txsink.options import public
from txsink.paths import VERSION_MAX
from txsink.protocol import fencing, preparing, recovery, resolving, sweeping
from txsink.protocol.fencing import Run
from txsink.protocol.outcome import OPEN, PREPARED, UNKNOWN
from txsink.protocol.recovery import Recovered
from txsink.protocol.sweeping import Swept
from txsink.publish.choose import former_of
from txsink.publish.protocol import Publisher
from txsink.staging.place import leave_mark
from txsink.staging.stager import Settings
from txsink.writing.calls import Calls
from txsink.writing.transaction import Transaction

METADATA_BYTES_MAX = 1 << 20
MARK_AGE_MS = 1000


class Writer:
    """An open writer of one table. Safe to share between threads, as its transactions are: one call at a time."""

    def __init__(self, log: Log, run: Run, publisher: Publisher, settings: Settings) -> None:
        self.log = log
        self.identity = run
        self.publisher = publisher
        self.settings = settings
        self.calls = Calls()
        self._open: list[Transaction] = []
        self._asked: set[int] = set()  # prepare entries whose commit was asked for
        self._noticed = -1  # the largest epoch that `commit` was called with, and done
        self._is_closed = self._is_tidied = False
        self._is_marked, self._marked_ms = False, 0
        self._leaves_files = False  # perhaps: staged by others, or dropped, which a store may fail to do
        self.recovered: Recovered | None = None

    @property
    def writer(self) -> str:
        """The writer's name."""
        return self.identity.writer

    @property
    def run(self) -> str:
        """The id of this life of the writer."""
        return self.identity.run

    @property
    def last_epoch(self) -> int | None:
        """The newest committed epoch: resume after it."""
        writer = self.identity.writer
        known = [
            one for one in (self.log.state.last_epoch(writer), self.publisher.last_epoch(writer)) if one is not None
        ]
        return max(known, default=None)

    @property
    def last_metadata(self) -> dict[str, Any]:
        """The metadata of the newest committed epoch: source offsets, say."""
        known = self.log.state.writers.get(self.identity.writer)
        return {} if known is None else copy.deepcopy(known.last_metadata)

    @property
    def pending(self) -> list[int]:
        """The epochs that are prepared and neither committed nor aborted."""
        return [pending.epoch for pending in self.log.state.pending_of(self.identity.writer)]

    @public
    def begin(
        self,
        epoch: int,
        *,
        mode: Mode = "append",
        partition_overwrite: PartitionOverwrite = "static",
        metadata: Mapping[str, Any] | None = None,
        parts: int | None = None,
    ) -> Transaction:
        """Begin the transaction of `epoch`; a no-op that says so when the epoch is committed already.

        - `epoch`: the number of what is written; the writer's epochs grow, and each is committed once.
        - `mode`: `append`, or `overwrite` what was committed when the epoch is prepared.
        - `partition_overwrite`: `static`: an overwrite replaces all; `dynamic`: only the partitions that it writes to.
        - `metadata`: plain JSON that is kept with the epoch, such as the offsets of a source.
        - `parts`: how many parts workers add; `prepare` refuses any other number.
        """
        what = f"begin epoch {epoch!r} of {self.identity.writer!r}"
        self.require_open(what)
        epoch = _epoch(what, epoch)
        require_choice(what, "mode", mode, Mode)
        require_choice(what, "partition_overwrite", partition_overwrite, PartitionOverwrite)
        expected = None if parts is None else whole(parts)
        if parts is not None and (expected is None or expected < 0):
            raise InvalidRequestError(what, f"parts is {parts!r}", "Give the number of parts, 0 or more")
        if partition_overwrite == "dynamic" and mode == "append":
            found = "partition_overwrite is 'dynamic', and mode is 'append', which replaces nothing"
            raise InvalidRequestError(what, found, "Give mode='overwrite' as well, or leave partition_overwrite out")
        kept = _metadata(what, {} if metadata is None else metadata)
        is_dynamic = mode == "overwrite" and partition_overwrite == "dynamic"
        with self.calls.whole(what):
            self.require_open(what)
            if unfinished := self._unfinished():
                self.publish(max(unfinished))
                self.keep_up()
            kind = OVERWRITE_PARTITIONS if is_dynamic else mode
            txn = Transaction(self, epoch, kind, kept, expected, is_committed=self._is_committed(what, epoch))
            if txn.outcome == OPEN:
                self._open.append(txn)
        return txn

    def commit(self, epoch: int) -> None:
        """Publish and commit every prepared epoch <= `epoch`. A late notice for a committed epoch is a success."""
        what = f"commit epoch {epoch!r} of {self.identity.writer!r}"
        epoch = _epoch(what, epoch)
        with self.calls.whole(what):
            self.require_open(what)
            self.publish(epoch)
            self.keep_up()

    def publish(self, epoch: int) -> None:
        """`commit`, within a call."""
        what = f"commit epoch {epoch} of {self.identity.writer!r}"
        waiting = [one for one in self._pending if one.epoch <= epoch]
        self._asked = {one.prepared for one in self._pending if one in waiting or one.prepared in self._asked}
        try:
            self._look_and_claim()
            # ORDER: an abort's files deleted before its epoch is published anew, else a stalled run's publish of the
            # aborted files shows the rows twice (I1).
            recovery.finish_aborts(self.log, self.identity, self.publisher)
            done = resolving.commit(self.log, self.identity, self.publisher, epoch)
        except (UnavailableError, InvalidRequestError) as error:
            prepared = [one.epoch for one in self._pending if one.epoch <= epoch]
            if not prepared:
                raise
            raise type(error)(
                what,
                f"{error.attempted}: {error.found}. Prepared, and to be committed, is epoch {prepared[0]}",
                f"{first_of_all(error)}Call it again, or open the writer again: either finishes it",
                **{**error.context, "prepared": prepared},
            ) from error
        last = self.last_epoch
        is_late = done or epoch <= self._noticed or bool(self._pending)
        if not is_late and (last is None or epoch > last):
            raise InvalidRequestError(what, "no epoch up to it is prepared", "Prepare it first")
        self._noticed = max(self._noticed, epoch)

    def keep_up(self) -> None:
        """What is due from time to time, once all that a call had to do is done."""
        self.log.maintain()
        self.publisher.upkeep()

    def abort(self, epoch: int) -> None:
        """Drop a prepared epoch. One that is not prepared is not there to drop: no failure."""
        what = f"abort epoch {epoch!r} of {self.identity.writer!r}"
        epoch = _epoch(what, epoch)
        with self.calls.whole(what):
            self.drop(epoch)

    def drop(self, epoch: int) -> None:
        """`abort`, within a call."""
        self._look_and_claim()
        for pending in self._pending:
            is_meant = pending.epoch == epoch
            if is_meant and not resolving.abort(self.log, self.identity, self.publisher, pending):
                raise ConflictError(
                    f"abort epoch {epoch} of {self.identity.writer!r}",
                    "it was published, and is committed now",
                    "Leave it, or overwrite its content",
                )
        recovery.finish_aborts(self.log, self.identity, self.publisher)

    @public
    def recover(self, up_to: int | None = None, on_newer: OnNewer = "fail") -> Recovered:
        """Finish what former runs have prepared; without `up_to`, commit it all.

        - `up_to`: commit epochs up to this one, abort those above.
        - `on_newer`: when epochs above `up_to` are committed already: `fail`, `skip` them (they stay) or `rewind` them.
        """
        what = f"recover {self.identity.writer!r}"
        if up_to is not None:
            up_to = _epoch(what, up_to)
        with self.calls.whole(what):
            self._noticed = -1
            self.log.refresh()
            self._look_and_claim()
            done = recovery.recover(self.log, self.identity, self.publisher, up_to, on_newer)
            self.log.maintain()
            return done

    def sweep(self, *, dry_run: bool = False) -> list[Swept]:
        """Delete what this writer's former runs staged and never prepared."""
        with self.calls.whole(f"sweep what {self.identity.writer!r} left"):
            if not dry_run:
                self._look_and_claim()
            swept = []
            for publisher in (self.publisher, former_of(self.log)):
                names = publisher.left(self.identity.writer, ()) if publisher is not None else []
                if publisher is not None:
                    swept += sweeping.sweep(self.log, self.identity, publisher, names, dry_run=dry_run)
            return swept

    def close(self) -> None:
        """Drop transactions that are not prepared. Prepared ones stay, for the next run to finish.

        A call of another thread is over first; one that this very thread is in, as when a signal handler closes the
        writer, goes on to its end. In a forked child it does nothing: all of it is the parent's.
        """
        if not self.calls.process.is_this:
            return
        with self.calls.between() as is_idle:
            self._is_closed = True
            left = list(self._open)
        for txn in left:  # not within the call: a write that is under way ends first, and waits for none
            self._leaves_files = True
            with suppress(TxsinkError):
                txn.abandon()
        if is_idle and not self._is_tidied:
            self._is_tidied = True
            with suppress(TxsinkError):  # an empty directory is nobody's loss
                act = self.publisher.leave if self._leaves_nothing() else self.publisher.tidy
                act(self.identity.writer, self.identity.run)
            self.log.leave()

    def forget(self, txn: Transaction) -> None:
        """Drop a transaction that is prepared or resolved: `close` has nothing to do for it."""
        self._leaves_files = self._leaves_files or txn.outcome != PREPARED
        if txn in self._open and txn.outcome != UNKNOWN:
            self._open.remove(txn)

    def is_shared(self, txn: Transaction) -> bool:
        """Whether another transaction stages for the same epoch, in the same directory."""
        return any(other.epoch == txn.epoch for other in self._open if other is not txn)

    def about_to_stage(self, *, by_others: bool) -> None:
        """Leave the run's mark, where files are staged under their final names, before the first one is.

        Each epoch looks whether it is there still: a table that was restored has lost it.
        """
        self._leaves_files = self._leaves_files or by_others
        mark = self.settings.place.mark
        if mark and not self._finds_mark(mark):
            # ORDER: mark durable before the first file, else a crash leaves a file that no run looks for (I9).
            leave_mark(self.log.store, mark, self.log.stamps.new_id())
        self._is_marked = True

    def __repr__(self) -> str:
        told = f"{self.writer!r} of {self.log.root!r}, run {self.run!r}, version {self.log.state.version}"
        return f"<txsink.Writer {told}{', closed' if self._is_closed else ''}>"

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        what = f"pickle the writer {self.identity.writer!r}"
        raise InvalidRequestError(what, "a writer belongs to its process", "Send `Transaction.stager()` to the workers")

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):  # not there: making it was broken off
            what = f"the writer {self.identity.writer!r} was not closed"
            warnings.warn(what, ResourceWarning, stacklevel=2, source=self)

    @property
    def _pending(self) -> tuple[Pending, ...]:
        return self.log.state.pending_of(self.identity.writer)

    def _unfinished(self) -> set[int]:
        """The epochs that are prepared and whose commit was asked for: it failed, or was broken off."""
        if self.log.doubts:
            self.log.refresh()
        asked = {one.epoch for one in self._pending if one.prepared in self._asked}
        return asked | {txn.epoch for txn in self._open if txn.is_asked and txn.outcome == PREPARED}

    def _leaves_nothing(self) -> bool:
        """Whether all that the run staged is resolved, in this table."""
        if not self._is_marked or self._leaves_files:
            return False
        # ORDER: newest entry known looked at before the mark goes, else that of a table which was restored goes, where
        # what the run had staged by then lies again (I9).
        with suppress(TxsinkError):
            return not self.settings.place.mark or self.log.is_as_read(to_the_end=False)
        return False

    def _finds_mark(self, mark: str) -> bool:
        """Whether the run's mark is where it was left. Where a look is a request, one is good for a second."""
        store, is_known = self.log.store, self._is_marked
        if store.traits.hints_always:
            now, before = self.log.stamps.now_ms(), self._marked_ms
            if is_known and 0 <= now - before < MARK_AGE_MS:
                return True
            self._marked_ms = now
        return is_known and store.tail(mark, 0) is not None

    def _look_and_claim(self) -> None:
        """Make sure that the log is still the one we read, and claim it if the first prepare entry was to do that.

        Whoever resolves what was prepared goes on with what was read earlier, by itself or by others.
        """
        # ORDER: newest entry known looked at before the first file is published or taken away, else a table that was
        # renamed, restored or made anew shows a file that its log never names, or loses one of its own (I15).
        is_as_read = self.log.is_as_read(self.log.stamps.now_ms(), to_the_end=False)
        if self.identity.generation is None:
            fencing.claim(self.log, self.identity)
        elif not is_as_read:
            fencing.standing(self.log, self.log.state, self.identity)

    def require_open(self, what: str) -> None:
        """Refuse what a closed writer does not do."""
        if self._is_closed:
            raise InvalidRequestError(what, "the writer is closed", "Open it again")

    def _is_committed(self, what: str, epoch: int) -> bool:
        if not preparing.is_committed(self.log, self.identity.writer, epoch, what):
            elsewhere = self.publisher.last_epoch(self.identity.writer)
            # What is pending here may be in Delta's log already, and is committed by `commit`.
            return elsewhere is not None and elsewhere >= epoch and not self.pending
        # ORDER: entries read durable before the answer, else a power cut takes back a commit that another
        # process had not synced yet (I3).
        self.log.settle()
        return True


def _epoch(what: str, epoch: object) -> int:
    """The epoch as a number, of whatever kind of integer it is."""
    number = whole(epoch)
    if number is None or not 0 <= number <= VERSION_MAX:
        raise InvalidRequestError(what, f"the epoch is {epoch!r}", f"Give an integer from 0 to {VERSION_MAX}")
    return number


def whole(value: Any) -> int | None:
    """Python's, numpy's or any other integer; None for what is none, and for truth values."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _metadata(what: str, metadata: object) -> dict[str, Any]:
    """The metadata as it will be read back; refused when that is something else than was given."""
    if not isinstance(metadata, Mapping):
        raise InvalidRequestError(
            f"{what} with metadata", f"it is of type {type(metadata).__name__}", "Give a dictionary"
        )
    kept: dict[str, Any] = {}  # of its own: what the caller changes in his after this is no part of the epoch
    try:
        encoded = msgspec.json.encode(dict(metadata))
        kept = msgspec.json.decode(encoded)
        same = kept == dict(metadata)
    except (TypeError, ValueError, OverflowError, RecursionError):
        encoded, same = b"", False
    if not same or len(encoded) > METADATA_BYTES_MAX:
        found = "it is not plain JSON (strings, finite numbers, lists, dicts with string keys)"
        if same:
            found = f"it is {len(encoded)} bytes, at most {METADATA_BYTES_MAX} are kept"
        raise InvalidRequestError(f"{what} with metadata", found, "Give less, or plainer, metadata")
    return kept
