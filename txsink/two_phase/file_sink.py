"""`ParquetFileSink`: the two-phase life cycle over a txsink table. One epoch per checkpoint.

Promises, by `guarantee`:
    exactly-once    a checkpoint's rows are committed whole, once, by its notice, a later one, or a restore.
    at-least-once   a row is committed when `write` returns; a replay writes it again.
    at-most-once    a row is committed once or not at all: what waits for its notice when the process ends is dropped,
                    and an epoch that was begun once is never written again, whatever came of it.
Relies on: `two_phase.sink` for the life cycle, `Writer` for everything that must survive a crash.
Does not promise: to tell replays apart whose rows fall into other checkpoints than before. Restore the state that
belongs to the source's offsets; `on_newer` decides when the table is ahead of it.

How rows become staged files: `write` buffers them and stages a file whenever a row group is full; `snapshot_state`
stages the rest and seals it all in the log under the checkpoint's id. That id is not known before, so files are staged
under the smallest it can be. When a framework skips ids, the files move to the directory of the id it came to.
An epoch without rows stages no file, but is prepared and committed like any other.

A claim is made per life: 1 log entry. Entries per epoch of n writes: exactly-once 2; at-least-once 2 n; at-most-once 4,
two of them by the writer `<writer>.attempts`, whose newest epoch is the newest that was begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from txsink import paths
from txsink.choices import Guarantee, OnNewer, require_choice
from txsink.errors import ConflictError, InvalidRequestError
from txsink.staging.epoch_stager import EpochStager, StagedFile
from txsink.store.opening import AnyPath
from txsink.store.protocol import StorageOptions
from txsink.two_phase.sink import TwoPhaseCommitSink
from txsink.writing.opening import open_writer
from txsink.writing.transaction import new_stager
from txsink.writing.writer import Writer

EXACTLY_ONCE: Guarantee = "exactly-once"
AT_LEAST_ONCE: Guarantee = "at-least-once"
AT_MOST_ONCE: Guarantee = "at-most-once"

_log = logging.getLogger(__name__)


class FileTransaction:
    """The rows of one checkpoint. `epoch` is the checkpoint's id, or the smallest it can be while that is open."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.stager: EpochStager | None = None
        self.files: list[StagedFile] | None = None  # once all rows are staged
        self.is_writable: bool | None = None  # None until the first row asks


class ParquetFileSink(TwoPhaseCommitSink[Any, FileTransaction]):
    """A two-phase sink into the table at `path`. Values are whatever `Transaction.write` takes.

    `on_newer`: what a restore does when later epochs are committed: `fail`, `skip` (their replay writes nothing) or
    `rewind` (their files are removed). `life_cycle`: what `TwoPhaseCommitSink` takes. `options`: what `open_writer`
    takes, which `opener` stands for.
    """

    def __init__(
        self,
        path: AnyPath,
        writer: str,
        *,
        guarantee: Guarantee = EXACTLY_ONCE,
        on_newer: OnNewer = "fail",
        transaction_timeout_seconds: float | None = None,
        timeout_warning_ratio: float = 0.8,
        drop_expired: bool = False,
        now_ms: Callable[[], int] | None = None,
        opener: Callable[..., Writer] = open_writer,
        **options: Any,
    ) -> None:
        if "storage_options" in options:
            options["storage_options"] = StorageOptions.of(options["storage_options"])
        super().__init__(
            transaction_timeout_seconds=transaction_timeout_seconds,
            timeout_warning_ratio=timeout_warning_ratio,
            drop_expired=drop_expired,
            now_ms=now_ms,
        )
        require_choice(f"open {path}", "guarantee", guarantee, Guarantee)
        require_choice(f"open {path}", "on_newer", on_newer, OnNewer)
        if "recover" in options:
            raise InvalidRequestError(
                f"open {path}", "recover is given, but restoring a state decides on that", "Leave it out"
            )
        self._guarantee = guarantee
        self._on_newer = on_newer
        # Rows that at-least-once had prepared were written: they roll forward. Else a restore decides.
        self._sink = opener(path, writer, recover=guarantee == AT_LEAST_ONCE, **options)
        self._attempts: Writer | None = None
        if guarantee == AT_MOST_ONCE:
            kept = {name: options[name] for name in ("storage_options",) if name in options}
            self._attempts = opener(path, f"{writer}.attempts", **kept)

    @property
    def last_epoch(self) -> int | None:
        """The newest committed epoch: unless at-least-once, the newest checkpoint whose rows are in the table."""
        return self._sink.last_epoch

    # -- the life of a transaction ----------------------------------------------------------------------

    def begin_transaction(self) -> FileTransaction:
        """A transaction with nothing staged."""
        return FileTransaction(self.next_checkpoint_id)

    def invoke(self, txn: FileTransaction, value: Any) -> None:
        """Stage the rows; at-least-once commits them as well."""
        if self._guarantee == AT_LEAST_ONCE:
            newest = max([-1, *self._sink.pending, *self._committed()])
            with self._sink.begin(newest + 1) as one:
                one.write(value)
        elif txn.files is not None:
            raise InvalidRequestError(
                f"write to epoch {txn.epoch}", "it is pre-committed", "Write to the current transaction"
            )
        elif self._is_writable(txn):
            if txn.stager is None:
                self._sink.about_to_stage(by_others=True)  # what is discarded may stay, as what others stage
                txn.stager = new_stager(self._sink, txn.epoch)
            txn.stager.write(value)

    def pre_commit(self, txn: FileTransaction) -> None:
        """Prepare the epoch of the checkpoint being taken."""
        if self._guarantee == AT_LEAST_ONCE or self.checkpoint_id is None:
            return
        prepared = self._sink.begin(self.checkpoint_id)
        if prepared.outcome == "already-committed":
            # A replay of what `on_newer="skip"` kept: the first committed content of an epoch stays.
            self._discard(txn)
        else:
            if txn.files is None:
                txn.files = [] if txn.stager is None else txn.stager.finish()
            txn.files = self._moved(txn.files, self.checkpoint_id)
            prepared.add(txn.files)
            prepared.prepare()
        txn.epoch = self.checkpoint_id

    def commit(self, txn: FileTransaction) -> None:
        """Publish and commit the epoch."""
        if self._guarantee != AT_LEAST_ONCE:
            self._sink.commit(txn.epoch)

    def abort(self, txn: FileTransaction) -> None:
        """Delete what was staged, unless the log may name it."""
        self._discard(txn)

    def recover_and_commit(self, txn: FileTransaction) -> None:
        """Commit an epoch that a former life prepared; at-most-once leaves it to be dropped."""
        if self._guarantee != EXACTLY_ONCE:
            return
        if txn.epoch not in self._sink.pending and txn.epoch > max([-1, *self._committed()]):
            raise ConflictError(
                f"restore {self._sink.writer!r} at epoch {txn.epoch}",
                "it is neither prepared nor committed: an earlier state was restored since, or this is another table",
                "Restore the newest state",
                writer=self._sink.writer,
                epoch=txn.epoch,
            )
        self._sink.commit(txn.epoch)

    def recover_and_abort(self, txn: FileTransaction) -> None:
        """Drop an epoch of a former life."""
        if self._guarantee != AT_LEAST_ONCE:
            self._drop_prepared(txn.epoch)

    def finish_recovering(self, checkpoint_id: int | None) -> None:
        """Drop what the state does not know, and decide on epochs that the table has and the state has not."""
        if self._guarantee == AT_LEAST_ONCE:
            return
        if checkpoint_id is None:
            self._require_new()
        if checkpoint_id is None or self._guarantee == AT_MOST_ONCE:
            self._drop_prepared()
        if checkpoint_id is not None:
            self._sink.recover(up_to=checkpoint_id, on_newer=self._on_newer)

    def encode(self, txn: FileTransaction) -> Any:
        """All the log does not know of it."""
        return {"epoch": txn.epoch}

    def decode(self, data: Any) -> FileTransaction:
        """The inverse of `encode`."""
        try:
            return FileTransaction(msgspec.convert(data, dict[str, int])["epoch"])
        except (msgspec.ValidationError, KeyError) as error:
            raise InvalidRequestError(
                "restore a state", f"it holds no transaction of a file sink: {error}", "Give back what was taken"
            ) from error

    def close(self) -> None:
        """Drop the open transaction and close the writer. Prepared epochs stay."""
        super().close()
        for sink in (self._sink, self._attempts):
            if sink is not None:
                sink.close()

    # -- pieces -----------------------------------------------------------------------------------------

    def _committed(self) -> list[int]:
        """The newest committed epoch, if there is one."""
        last = self._sink.last_epoch
        return [] if last is None else [last]

    def _is_writable(self, txn: FileTransaction) -> bool:
        """Whether rows of the transaction go into the table; at-most-once notes first that they were begun."""
        if self._attempts is None:
            return True
        if txn.is_writable is None:
            begun = self._attempts.last_epoch
            txn.is_writable = begun is None or txn.epoch > begun
            if txn.is_writable:
                # ORDER: attempt durable before the first row is staged, else a replay writes the epoch again (I5).
                self._attempts.begin(txn.epoch).commit()
            else:
                _log.warning("epoch %d of %r was begun by a former life: not written", txn.epoch, self._sink.writer)
        return txn.is_writable

    def _moved(self, files: list[StagedFile], epoch: int) -> list[StagedFile]:
        """The files under the epoch they came to belong to. What a move missed, `prepare` finds."""
        if self._sink.publisher.is_in_place or not self._sink.log.store.traits.moves:
            # The name keeps the smallest epoch it could belong to.
            return [msgspec.structs.replace(one, epoch=epoch) for one in files]
        records, moves = [], []
        for one in files:
            head, slash, name = one.file.path.rpartition("/")
            _, _, sequence, rest = name.split("-")
            name = paths.data_name(epoch, int(sequence), rest.removesuffix(".parquet"))
            file = msgspec.structs.replace(one.file, path=f"{head}{slash}{name}")
            records.append(msgspec.structs.replace(one, epoch=epoch, file=file))
            if one.epoch != epoch:
                moves.append((self._staged_path(one), self._staged_path(records[-1])))
        if moves:
            self._sink.log.store.move(moves)
        return records

    def _discard(self, txn: FileTransaction) -> None:
        """Delete what is staged. Once all of it is, the log may name it: then the next life's sweep decides."""
        if txn.files is None and txn.stager is not None:
            txn.stager.discard()
        txn.stager = None

    def _staged_path(self, one: StagedFile) -> str:
        return f"{self._sink.settings.place.directory}/{one.file.path}"

    def _drop_prepared(self, epoch: int | None = None) -> None:
        """Abort one prepared epoch, or all. A rewind under way can only go forward: recover sees to it."""
        for pending in self._sink.log.refresh().pending_of(self._sink.writer):
            if epoch in {None, pending.epoch} and not pending.is_publishing:
                self._sink.abort(pending.epoch)

    def _require_new(self) -> None:
        """Beginning anew in a table that has the writer's epochs would skip or double rows: the caller decides."""
        if self._committed() and self._on_newer != "skip":
            raise ConflictError(
                f"begin {self._sink.writer!r} anew",
                f"its epochs up to {self.last_epoch} are committed already",
                "Restore the state of the last checkpoint, take another writer name, or choose on_newer='skip' "
                "(epochs with those numbers write nothing)",
                writer=self._sink.writer,
                last_epoch=self.last_epoch,
            )
