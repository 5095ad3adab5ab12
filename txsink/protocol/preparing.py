"""Seal the staged files of an epoch in the log: after the prepare entry no worker is needed.

Promises: an entry names files that are there, whole and durable; what the table could not take at publish is refused
before anything is logged; a prepare of the same content is one entry however often it is called.
Relies on: `fencing`; `Publisher.admit` and `Publisher.settle`.
Does not promise: to publish.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from txsink import schema
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.log.entry import Prepare
from txsink.log.log import Log, Slot
from txsink.log.state import APPEND, OVERWRITE_PARTITIONS, REWIND, Pending, State
from txsink.protocol import admission
from txsink.protocol.fencing import Run, hold, standing
from txsink.protocol.outcome import is_same
from txsink.publish.protocol import Publisher
from txsink.records import Column, DataFile
from txsink.staging.epoch_stager import StagedFile


class Content(NamedTuple):
    """What a transaction is to publish."""

    epoch: int
    mode: str
    staged: list[StagedFile]
    columns: tuple[Column, ...]
    metadata: dict[str, Any]
    merge_schema: bool


def prepare(log: Log, run: Run, publisher: Publisher, content: Content) -> bool:
    """Seal the staged files in the log; False when the epoch is committed already."""
    what, written = f"prepare epoch {content.epoch} of {run.writer!r}", [staged.file for staged in content.staged]
    with admission.unless_converted(log, publisher.layout) as converted:
        admitted = publisher.admit((run.writer, content.epoch), content.mode, content.columns, written)
        if admitted.is_committed and not any(one.epoch >= content.epoch for one in log.state.pending_of(run.writer)):
            log.refresh()
            standing(log, log.state, run)
            # Delta's log knows the newest epoch alone: what our log says was skipped is refused.
            is_committed(log, run.writer, content.epoch, what)
            return False
        if _is_settled_without(log, run, publisher, content):
            return False
    # ORDER: names of staged files durable before the prepare entry, else a power cut leaves an entry that
    # names files nobody can find (I6).
    publisher.settle(content.staged)
    ordered = sorted(content.staged, key=lambda staged: staged.file.path)
    files, uploads = tuple(one.file for one in ordered), tuple(one.upload for one in ordered if one.upload)
    # Also those a pending epoch brings: it may be aborted, or committed later than this one.
    own = {column.name for column in content.columns}

    def make(state: State, slot: Slot) -> Prepare | None:
        claims, generation = standing(log, state, run)
        if _is_prepared(log, state, run, content):
            return None
        admission.require_layout(log.root, state, publisher.layout, converted)
        admission.require_partitions(state, content.epoch, content.staged)
        admission.require_no_abort(state, run.writer, content.epoch)
        columns = schema.merge(publisher.columns(state), content.columns, merge_schema=content.merge_schema, what=what)
        there = {one.name for one in publisher.columns(state.without_pending())}  # others may have dropped some
        return Prepare(
            **slot,
            writer=run.writer,
            run=run.run,
            generation=generation,
            epoch=content.epoch,
            claims=claims,
            mode=content.mode,
            files=files,
            removes=_removes(log, state, run, content.mode, files),
            columns=tuple(
                one for one in columns if one.name in own and not (one in state.columns and one.name in there)
            ),
            metadata=content.metadata,
            uploads=uploads,
            base=admitted.base,
            staging=publisher.staging if files else "",
        )

    log.append(make)
    hold(log.state, run)
    last = log.state.last_epoch(run.writer)
    return last is None or content.epoch > last


def _is_settled_without(log: Log, run: Run, publisher: Publisher, content: Content) -> bool:
    """Whether the epoch was committed by another transaction, so that a sweep has dropped staged files of this one."""
    for staged in content.staged:
        if problem := publisher.problem(staged):
            log.refresh()
            standing(log, log.state, run)  # a fenced run finds its files swept: that is no damage
            if is_committed(log, run.writer, content.epoch, f"prepare epoch {content.epoch} of {run.writer!r}"):
                log.settle()
                return True  # by another transaction, so a sweep has dropped the files of this one
            raise CorruptError(
                f"prepare epoch {content.epoch} of {run.writer!r}",
                f"the staged file {staged.file.path} {problem}",
                "Abort the transaction and write the epoch again",
                path=staged.file.path,
            )
    return False


def rewind(log: Log, run: Run, publisher: Publisher, epoch: int) -> Pending:
    """Prepare the removal of everything the writer committed after `epoch`."""

    def make(state: State, slot: Slot) -> Prepare | None:
        claims, generation = standing(log, state, run)
        if any(pending.mode == REWIND for pending in state.pending_of(run.writer)):
            return None
        later = [fact for fact in log.live().values() if fact.writer == run.writer and (fact.epoch or 0) > epoch]
        return Prepare(
            **slot,
            writer=run.writer,
            run=run.run,
            generation=generation,
            epoch=epoch,
            claims=claims,
            mode=REWIND,
            files=(),
            removes=tuple(fact.file() for fact in later),
            columns=(),
            metadata=log.prepare_entry(_commit_to_rewind_to(log, run.writer, epoch)).metadata,
            base=publisher.base(),
        )

    log.append(make)
    hold(log.state, run)
    return log.state.pending_of(run.writer)[-1]


def is_committed(log: Log, writer: str, epoch: int, what: str) -> bool:
    """Whether the epoch is committed; an epoch that was skipped is refused, or its rows would be lost silently."""
    last = log.state.last_epoch(writer)
    if last is None or epoch > last:
        return False
    if epoch < last and log.commit_of(writer, epoch) is None:
        raise InvalidRequestError(
            what,
            f"it was never committed, or was taken back, yet epoch {last} is",
            "Epochs of a writer grow: use a larger one, or a writer name of its own for the back-fill",
            last_epoch=last,
        )
    return True


def _is_prepared(log: Log, state: State, run: Run, content: Content) -> bool:
    """Whether nothing is to be appended: the epoch is committed, or this very content is prepared."""
    epoch, paths = content.epoch, frozenset(staged.file.path for staged in content.staged)
    if is_committed(log, run.writer, epoch, f"prepare epoch {epoch} of {run.writer!r}"):
        return True
    for pending in state.pending_of(run.writer):
        prepared = log.prepare_entry(pending.prepared)
        if pending.epoch == epoch and is_same(prepared, paths, run.run, content.mode):
            return True
        if pending.epoch >= epoch:
            raise ConflictError(
                f"prepare epoch {epoch} of {run.writer!r}",
                f"epoch {pending.epoch} is prepared already (version {pending.prepared})",
                "Commit or abort that one first; epochs of a writer grow",
                writer=run.writer,
                epoch=pending.epoch,
            )
    return False


def _removes(log: Log, state: State, run: Run, mode: str, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    if mode == APPEND:
        return ()
    doomed = [fact.file() for fact in log.live().values()]
    for pending in state.pending:
        waiting = log.prepare_entry(pending.prepared)
        gone = {file.path for file in waiting.removes}
        if pending.writer == run.writer:
            doomed = [file for file in doomed if file.path not in gone] + list(waiting.files)
        elif gone:
            raise ConflictError(
                f"overwrite as {run.writer!r}",
                f"epoch {pending.epoch} of {pending.writer!r}, still pending, replaces files as well",
                "Retry when it is committed or aborted",
                writer=pending.writer,
                epoch=pending.epoch,
            )
    if mode == OVERWRITE_PARTITIONS:
        touched = {tuple(file.partition.items()) for file in files}
        doomed = [file for file in doomed if tuple(file.partition.items()) in touched]
    return tuple(doomed)


def _commit_to_rewind_to(log: Log, writer: str, epoch: int) -> int:
    """The prepare version of the committed `epoch`, when all after it only added files."""
    what = f"rewind {writer!r} to epoch {epoch}"
    commit = log.commit_of(writer, epoch)
    if commit is None or commit.prepared is None:
        raise InvalidRequestError(what, "that epoch was never committed, or was taken back", "Name a committed epoch")
    if commit.prepared < log.state.boundary:
        raise InvalidRequestError(
            what,
            f"its metadata, to resume from, has expired: entries below {log.state.boundary} are gone",
            "Name a later epoch, or choose `skip`",
        )
    for fact in log.replacements(writer):
        if (fact.epoch or 0) > epoch and fact.version > commit.version:
            raise ConflictError(
                what,
                f"epoch {fact.epoch} replaced files, which a rewind cannot bring back",
                "Choose `skip`, or write the former content again under a new epoch",
            )
    return commit.prepared
