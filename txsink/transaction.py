"""The life of a transaction: which entry may be appended when, and what must have happened before.

Promises: the invariants below, as far as one writer's log and files go.
Relies on: `Log.append`, which decides again after every lost race; stores that keep what they acknowledged; callers
that looked whether the log they read still stands, before they have anything published, forbidden or removed.
Does not promise: clean-up. Recovery deletes; here nothing is ever deleted.

    begin ──stage*──► prepare [prepare] ──► publish [roll_forward] ──► commit [roll_forward]
      │                  │
      │ forget           │ abort [abort], unless its removals have begun (entry `publishing`) or it is published
      ▼                  ▼
    nothing           aborting ──► cleaned [recovery.finish_aborts]

Invariants (tests cite them by number):
    I1  multiset equality: what readers see = rows of committed epochs, each once.
    I2  an epoch is visible whole or not at all to log and Delta readers.
    I3  acknowledged means readable after any later fault, power cut included.
    I4  a writer's committed epochs grow (only a rewind, which says so in the log, goes back).
    I5  at most one commit per (writer, epoch).
    I6  every committed file exists with its recorded identity.
    I7  an entry's bytes never change, and a version is never used twice.
    I8  no file is deleted while a retained version or a pending transaction names it.
    I9  after recover and sweep: no orphan, no staged left-over.
    I10 a retired run: no commit and no delete after the claim that retired it.
    I11 an outcome is committed, not committed or unknown; unknown never deletes.
    I12 recovery twice = once; it may crash anywhere.
    I13 a torn or empty entry is never "empty log".
    I14 when faults stop, a commit succeeds within bounded retries.
    I15 other tables and writers are untouched.
    I16 same seed, same trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from txsink import admission, schema
from txsink.entry import Abort, AnyEntry, Claim, Column, Commit, Create, DataFile, Prepare, Publishing
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError, UnavailableError, counted
from txsink.log import Log, Slot
from txsink.outcome import is_same
from txsink.publish import Publisher
from txsink.stage import StagedFile
from txsink.state import APPEND, OVERWRITE_PARTITIONS, REWIND, Pending, State

_log = logging.getLogger(__name__)


class Run:
    """One life of a writer. `generation` is None until it has claimed; `opened` is the version it began to read at."""

    def __init__(self, writer: str, run: str, opened: int) -> None:
        self.writer = writer
        self.run = run
        self.opened = opened
        self.generation: int | None = None


class Content(NamedTuple):
    """What a transaction is to publish."""

    epoch: int
    mode: str
    staged: list[StagedFile]
    columns: tuple[Column, ...]
    metadata: dict[str, Any]
    merge_schema: bool


def create(log: Log, table_layout: str, by: tuple[str, ...], staging: str | None, table_id: str, **more: Any) -> None:
    """Make the table, unless somebody has; `more`: fields of its `Create` entry."""

    def make(state: State, slot: Slot) -> Create | None:
        if state.version >= 0:
            return None
        own = {**slot, "table_id": table_id, "layout": table_layout, "partition_columns": by, "staging": staging}
        return Create(**own, **more)

    log.append(make)


def claim(log: Log, run: Run, retires: tuple[str, ...] = ()) -> None:
    """Make the run the holder of its writer, and retire runs that staged without ever claiming."""

    def make(state: State, slot: Slot) -> Claim | None:
        claims, generation = standing(log, state, run)
        if not claims and not retires:
            return None
        return Claim(**slot, writer=run.writer, run=run.run, generation=generation, retires=retires)

    log.append(make)
    hold(log.state, run)


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


def commit(log: Log, run: Run, publisher: Publisher, up_to: int) -> bool:
    """Publish and commit every pending epoch <= `up_to` of the writer, in order; False when there was none."""
    waiting = [pending for pending in log.state.pending_of(run.writer) if pending.epoch <= up_to]
    dropped = [pending for pending in waiting if not roll_forward(log, run, publisher, pending)]
    if dropped:
        raise ConflictError(
            f"commit epoch {dropped[0].epoch} of {run.writer!r}",
            "another program has committed this epoch of this writer, or aborted it, in Delta's log",
            "Go on after `last_epoch`: what was written here is dropped",
            writer=run.writer,
            epoch=dropped[0].epoch,
        )
    return bool(waiting)


def roll_forward(log: Log, run: Run, publisher: Publisher, pending: Pending) -> bool:
    """Publish and commit one pending transaction: the commit path and the recovery path are this one.

    False: it could not be published any more, and was aborted (only Delta's log, which others write too, may say so).
    """
    prepared = log.prepare_entry(pending.prepared)
    try:
        if publisher.goes_only_on(prepared):
            # ORDER: `publishing` entry before the first removal, else the epoch could still be aborted while a
            # stalled run takes away the files it replaces (I8).
            log.append(_resolving(log, run, pending, Publishing))
            publisher.replace(prepared)
        published = publisher.publish(prepared)
    except (CorruptError, UnavailableError):
        log.refresh()
        standing(log, log.state, run)  # a fenced run finds files moved away: that is no damage, and no call to retry
        raise
    if not published.is_visible:
        log.append(_resolving(log, run, pending, Abort))
        return log.commit_of(run.writer, pending.epoch) is not None
    # ORDER: all files published before the commit entry, else a crash leaves a commit without its rows (I6).
    log.append(_resolving(log, run, pending, Commit, **published.told))  # COMMIT POINT
    last = log.state.last_epoch(run.writer)
    if last is None or last < pending.epoch or (last > pending.epoch and not log.commit_of(run.writer, pending.epoch)):
        raise ConflictError(
            f"commit epoch {pending.epoch} of {run.writer!r}", "it was aborted meanwhile", "Write the epoch again"
        )
    _tell(log, prepared)
    return True


def _tell(log: Log, prepared: Prepare) -> None:
    """One line for each commit, whoever made it: the run that wrote the epoch, or one that found it prepared."""
    known = log.state.writers[prepared.writer]
    if _log.isEnabledFor(logging.INFO):
        _log.info(
            "committed epoch %d of %r in %s at version %s: %s, %s, %s, %d ms after it was prepared",
            prepared.epoch,
            prepared.writer,
            log.root,
            known.last_version,
            counted(len(prepared.files), "file"),
            counted(sum(file.rows for file in prepared.files), "row"),
            counted(sum(file.bytes for file in prepared.files), "byte"),
            log.stamps.now_ms() - prepared.time_ms,
        )


def abort(log: Log, run: Run, publisher: Publisher, pending: Pending) -> bool:
    """Drop a pending transaction in the log. Its files go afterwards. False: it is published, and was committed."""
    # ORDER: publish made impossible before the abort entry, else a stalled run publishes an aborted epoch (I1).
    if not publisher.forbid(log.prepare_entry(pending.prepared)):
        roll_forward(log, run, publisher, pending)
        return False
    log.append(_resolving(log, run, pending, Abort))
    return True


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


def standing(log: Log, state: State, run: Run) -> tuple[bool, int]:
    """Whether the run has yet to claim, and its generation; FencedError when another run holds the writer."""
    known = state.writers.get(run.writer)
    if known is not None and known.run == run.run:
        return False, known.generation
    if run.generation is None and not log.is_retired(run.writer, run.run, run.opened):
        return True, 1 if known is None else known.generation + 1
    by = "a sweep" if known is None else f"run {known.run} (generation {known.generation}, at version {known.claimed})"
    raise FencedError(
        f"write as {run.writer!r} (run {run.run})",
        f"the run was retired by {by}",
        "Stop this process: the newer run has taken over, and finishes or drops what this one left",
        writer=run.writer,
        run=run.run,
        by=None if known is None else known.run,
    )


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


def hold(state: State, run: Run) -> None:
    """Remember that the run has claimed."""
    known = state.writers.get(run.writer)
    if known is not None and known.run == run.run:
        run.generation = known.generation


def _resolving(
    log: Log, run: Run, pending: Pending, kind: type[Publishing | Commit | Abort], **more: Any
) -> Callable[[State, Slot], AnyEntry | None]:
    def make(state: State, slot: Slot) -> AnyEntry | None:
        _, generation = standing(log, state, run)
        found = [item for item in state.pending_of(run.writer) if item.prepared == pending.prepared]
        if not found or (kind is Publishing and found[0].is_publishing):
            return None  # done already, by an append of this run whose answer was lost
        if kind is Abort and found[0].is_publishing:
            raise ConflictError(
                f"abort epoch {pending.epoch} of {run.writer!r}",
                "its publish has begun, and can only be finished",
                "Commit it; to undo it, write the former content again",
            )
        return kind(
            **slot,
            writer=run.writer,
            run=run.run,
            generation=generation,
            epoch=pending.epoch,
            prepared=pending.prepared,
            **more,
        )

    return make


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
