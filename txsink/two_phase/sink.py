"""The two-phase life cycle, for any target: write, pre-commit at a checkpoint, commit when the checkpoint completed.

Promises: a pre-committed transaction is committed by the first notice for its checkpoint or a later one, in the order
of the checkpoints; one that fails stays pending and is tried again, and does not keep the others from being tried; a
checkpoint that was aborted loses no row and doubles none; `restore_state` commits exactly what the state names and
aborts the transaction that was open when it was taken, as often as it is called.
Relies on: a target that keeps what `pre_commit` acknowledged through a crash, and whose `commit` and `abort` may be
repeated (from another process too); a source that is set back to the very checkpoint whose state is restored.
Does not promise: thread safety, nor that a transaction the state does not know (begun after it was taken) is cleaned
up: the target sees to that, as `file_sink` does.

    restore_state ──► begin_transaction ──► invoke* ──► snapshot_state: pre_commit ──► notify: commit
          │                 ▲                                  │
          │                 └──────────────────────────────────┘  unless finished
          └── recover_and_commit what was pre-committed, recover_and_abort what was open

What one `snapshot_state` returns (plain JSON, checked when it comes back):

    {"format": 1, "checkpoint": 7, "pending": [{"checkpoint": 7, "begun_ms": 0, "transaction": encode(txn)}],
     "open": {"checkpoint": 8, "begun_ms": 0, "transaction": encode(txn)}}
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar, cast

import msgspec

from txsink.environment import stamps
from txsink.errors import InvalidRequestError
from txsink.paths import VERSION_MAX
from txsink.records import Count
from txsink.writing.writer import whole

if TYPE_CHECKING:
    from typing_extensions import Self

In = TypeVar("In")
Txn = TypeVar("Txn")

STATE_FORMAT = 1

_log = logging.getLogger(__name__)


class SavedTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A transaction in a state. `checkpoint`: its checkpoint; of an open one, the smallest id that can have."""

    checkpoint: Count
    begun_ms: Count
    transaction: Any


class SavedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `snapshot_state` returns, before it is plain."""

    format: int
    checkpoint: Count
    pending: list[SavedTransaction]
    open: SavedTransaction | None


class _Held(Generic[Txn]):
    """A transaction of this life, and since when it is open."""

    def __init__(self, checkpoint: int, begun_ms: int, txn: Txn) -> None:
        self.checkpoint = checkpoint
        self.begun_ms = begun_ms
        self.txn = txn


class TwoPhaseCommitSink(ABC, Generic[In, Txn]):
    """A sink that takes part in a framework's checkpoints. Subclasses say what a transaction is.

    `transaction_timeout_seconds`: how long the target keeps a pre-committed transaction; `timeout_warning_ratio`:
    from which part of it on a commit logs a warning; `drop_expired`: what a restore does with a transaction that is
    older and can no longer be committed: True logs the failure and aborts it (its rows are lost), False raises.
    `now_ms`: the clock. Its times go into the state, so it must be one that other machines share.
    """

    def __init__(
        self,
        *,
        transaction_timeout_seconds: float | None = None,
        timeout_warning_ratio: float = 0.8,
        drop_expired: bool = False,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        _require_timeout(transaction_timeout_seconds, timeout_warning_ratio, drop_expired=drop_expired)
        self._timeout_ms = None if transaction_timeout_seconds is None else 1000 * transaction_timeout_seconds
        self._warning_ratio = timeout_warning_ratio
        self._drops_expired = drop_expired
        self._now_ms = stamps().now_ms if now_ms is None else now_ms
        self._current: _Held[Txn] | None = None
        self._pending: dict[int, _Held[Txn]] = {}
        self._last: int | None = None
        self._taking: int | None = None
        self._is_finished = False
        # `new` until restore_state is called, then `open`, or `unrestored` while a restore has failed.
        self._phase = "new"

    # -- what a target does -----------------------------------------------------------------------------

    @abstractmethod
    def begin_transaction(self) -> Txn:
        """A new transaction. `next_checkpoint_id` is the smallest id its checkpoint can have."""

    @abstractmethod
    def invoke(self, txn: Txn, value: In) -> None:
        """Write `value` in the transaction, where nobody sees it yet."""

    @abstractmethod
    def pre_commit(self, txn: Txn) -> None:
        """Make the transaction durable, so that `commit` can no longer fail for lack of anything.

        `checkpoint_id` says for which checkpoint. When it raised, it may be called again for the same one.
        """

    @abstractmethod
    def commit(self, txn: Txn) -> None:
        """Make the transaction visible. Doing it twice is doing it once."""

    @abstractmethod
    def abort(self, txn: Txn) -> None:
        """Drop a transaction that was not pre-committed. Doing it twice is doing it once."""

    def recover_and_commit(self, txn: Txn) -> None:
        """Commit a transaction of an earlier life; it may be committed already."""
        self.commit(txn)

    def recover_and_abort(self, txn: Txn) -> None:
        """Drop a transaction of an earlier life; it may be gone already, or pre-committed since."""
        self.abort(txn)

    def finish_recovering(self, checkpoint_id: int | None) -> None:
        """Called once a restore settled all that its state names; None when there was no state."""

    def encode(self, txn: Txn) -> Any:
        """The transaction as plain JSON data."""
        return txn

    def decode(self, data: Any) -> Txn:
        """The inverse of `encode`, perhaps in another process."""
        return cast("Txn", data)

    # -- what a framework calls -------------------------------------------------------------------------

    @property
    def checkpoint_id(self) -> int | None:
        """The checkpoint being taken, else the newest that was taken or restored."""
        return self._last if self._taking is None else self._taking

    @property
    def next_checkpoint_id(self) -> int:
        """The smallest id the next checkpoint can have: one above the last, or 0."""
        return 0 if self._last is None else self._last + 1

    @property
    def pending_checkpoints(self) -> list[int]:
        """The checkpoints whose transactions wait for a notice."""
        return sorted(self._pending)

    def restore_state(self, state: Mapping[str, Any] | None) -> None:
        """Begin where `state` was taken; None: begin anew. Without this call the first write begins anew."""
        what = "restore a state"
        self._require_open(what)
        saved = None if state is None else _parsed(what, state)
        self._phase = "unrestored"
        self._drop_current()
        self._taking, self._is_finished = None, False
        self._last = None if saved is None else saved.checkpoint
        pending = [] if saved is None else [self._held(one) for one in saved.pending]
        self._pending = {held.checkpoint: held for held in pending}
        self._settle(pending, self._recover)
        if saved is not None and saved.open is not None:
            self.recover_and_abort(self.decode(saved.open.transaction))
        self.finish_recovering(self._last)
        self._phase = "open"
        self._begin()

    def write(self, value: In) -> None:
        """Add `value` to the current transaction."""
        what = "write"
        self._require_ready(what)
        if self._is_finished:
            raise InvalidRequestError(what, "the sink is finished: no rows come after it", "Open another sink")
        if self._taking is not None:
            raise _half_taken(what, self._taking)
        self.invoke(self._begin().txn, value)

    def snapshot_state(self, checkpoint_id: SupportsIndex) -> dict[str, Any]:
        """Pre-commit the current transaction for the checkpoint and begin the next. Returns what to restore."""
        what = f"take checkpoint {checkpoint_id!r}"
        self._require_ready(what)
        checkpoint_id = _id(what, checkpoint_id)
        if self._taking not in {None, checkpoint_id}:
            raise _half_taken(what, self._taking)
        if self._last is not None and checkpoint_id <= self._last:
            raise InvalidRequestError(
                what, f"checkpoint {self._last} was taken or restored before it", "Number checkpoints upwards"
            )
        if self._current is None and not self._is_finished:
            self._begin()
        if self._current is not None:
            self._taking = checkpoint_id
            self.pre_commit(self._current.txn)
            self._current.checkpoint = checkpoint_id
            self._pending[checkpoint_id] = self._current
        self._current, self._taking, self._last = None, None, checkpoint_id
        following = None if self._is_finished else self._begin()
        return self._state(what, following)

    def notify_checkpoint_complete(self, checkpoint_id: SupportsIndex) -> None:
        """Commit everything pre-committed for this checkpoint or an earlier one. Late notices do nothing."""
        what = f"complete checkpoint {checkpoint_id!r}"
        self._require_open(what)
        checkpoint_id = _id(what, checkpoint_id)
        due = [self._pending[one] for one in self.pending_checkpoints if one <= checkpoint_id]
        self._settle(due, self._commit)

    def notify_checkpoint_aborted(self, checkpoint_id: SupportsIndex) -> None:
        """Nothing is dropped: what was pre-committed for it is committed with the next checkpoint that completes."""
        self._require_open(f"abort checkpoint {checkpoint_id!r}")

    def finish(self) -> None:
        """No rows come any more. What was written is pre-committed by the next checkpoint."""
        self._require_ready("finish")
        self._is_finished = True

    def close(self) -> None:
        """Abort the open transaction. Pre-committed ones stay, for a restore to finish."""
        if self._phase != "closed":
            self._phase = "closed"
            self._drop_current()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- pieces -----------------------------------------------------------------------------------------

    def _begin(self) -> _Held[Txn]:
        """The current transaction, begun when there is none."""
        if self._current is None:
            self._current = _Held(self.next_checkpoint_id, self._now_ms(), self.begin_transaction())
        return self._current

    def _drop_current(self) -> None:
        held, self._current = self._current, None
        if held is not None:
            self.abort(held.txn)

    def _settle(self, due: Iterable[_Held[Txn]], act: Callable[[_Held[Txn]], None]) -> None:
        """Try each; forget those that went well; raise the first failure at the end."""
        failure: Exception | None = None
        for held in due:
            try:
                act(held)
            except Exception as error:  # noqa: BLE001 -- a target raises what it likes; the first is raised below
                _log.warning("checkpoint %d stays pending: %s", held.checkpoint, error)
                failure = failure or error
            else:
                del self._pending[held.checkpoint]
        if failure is not None:
            raise failure

    def _commit(self, held: _Held[Txn]) -> None:
        self._warn_when_late(held)
        self.commit(held.txn)

    def _recover(self, held: _Held[Txn]) -> None:
        self._warn_when_late(held)
        try:
            self.recover_and_commit(held.txn)
        except Exception as error:
            if not self._drops_expired or not self._is_older_than(held, 1):
                raise
            _log.error("checkpoint %d has expired, its rows are dropped: %s", held.checkpoint, error)
            self.recover_and_abort(held.txn)

    def _warn_when_late(self, held: _Held[Txn]) -> None:
        if self._is_older_than(held, self._warning_ratio):
            _log.warning(
                "the transaction of checkpoint %d is open for %d ms, the target keeps it %d ms",
                held.checkpoint,
                self._now_ms() - held.begun_ms,
                self._timeout_ms,
            )

    def _is_older_than(self, held: _Held[Txn], ratio: float) -> bool:
        return self._timeout_ms is not None and self._now_ms() - held.begun_ms > ratio * self._timeout_ms

    def _held(self, saved: SavedTransaction) -> _Held[Txn]:
        return _Held(saved.checkpoint, saved.begun_ms, self.decode(saved.transaction))

    def _saved(self, held: _Held[Txn]) -> SavedTransaction:
        return SavedTransaction(held.checkpoint, held.begun_ms, self.encode(held.txn))

    def _state(self, what: str, following: _Held[Txn] | None) -> dict[str, Any]:
        pending = [self._saved(self._pending[one]) for one in self.pending_checkpoints]
        saved = SavedState(
            STATE_FORMAT, self._last or 0, pending, None if following is None else self._saved(following)
        )
        try:
            data = msgspec.json.encode(saved)
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(
                what, f"encode() gave what JSON cannot hold: {error}", "Let encode() return plain data"
            ) from error
        return cast("dict[str, Any]", msgspec.json.decode(data))

    def _require_open(self, what: str) -> None:
        if self._phase == "closed":
            raise InvalidRequestError(what, "the sink is closed", "Open another sink")

    def _require_ready(self, what: str) -> None:
        self._require_open(what)
        if self._phase == "unrestored":
            raise InvalidRequestError(what, "restoring the state has failed", "Call restore_state again")
        if self._phase == "new":
            self.restore_state(None)


def _parsed(what: str, state: Mapping[str, Any]) -> SavedState:
    """The state, believing nothing."""
    advice = "Give what snapshot_state returned, unchanged"
    try:
        saved = msgspec.convert(state, SavedState)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequestError(what, f"it is no state: {error}", advice) from error
    if saved.format != STATE_FORMAT:
        raise InvalidRequestError(
            what, f"it has format {saved.format}, this txsink reads {STATE_FORMAT}", "Use the txsink that took it"
        )
    ids = [one.checkpoint for one in saved.pending]
    if ids != sorted(set(ids)) or (ids and ids[-1] > saved.checkpoint):
        raise InvalidRequestError(what, f"its pending checkpoints {ids} do not grow up to its own", advice)
    return saved


def _half_taken(what: str, checkpoint_id: int | None) -> InvalidRequestError:
    return InvalidRequestError(
        what,
        f"pre-committing for checkpoint {checkpoint_id} failed, so it may or may not have happened",
        f"Take checkpoint {checkpoint_id} again, or restore the last state",
    )


def _id(what: str, checkpoint_id: SupportsIndex) -> int:
    """The id as a number, of whatever kind of integer it is."""
    number = whole(checkpoint_id)
    if number is None or not 0 <= number <= VERSION_MAX:
        raise InvalidRequestError(
            what, "the checkpoint id is no integer from 0 to 2^63 - 1", "Number checkpoints from 0"
        )
    return number


def _require_timeout(seconds: float | None, ratio: float, *, drop_expired: bool) -> None:
    what = "open a two-phase sink"
    if seconds is not None and not seconds > 0:
        raise InvalidRequestError(what, f"transaction_timeout_seconds is {seconds}", "Give more than 0, or None")
    if not 0 <= ratio <= 1:
        raise InvalidRequestError(what, f"timeout_warning_ratio is {ratio}", "Give a number from 0 to 1")
    if drop_expired and seconds is None:
        raise InvalidRequestError(
            what, "drop_expired is set, but nothing ever expires", "Give transaction_timeout_seconds"
        )
