"""Publish and commit what was prepared, or abort it: the commit path and the recovery path are the same.

Promises: the invariants of `txsink.protocol`, as far as one writer's log and files go.
Relies on: `Log.append`, which decides again after every lost race; stores that keep what they acknowledged; callers
that looked whether the log they read still stands, before they have anything published, forbidden or removed.
Does not promise: clean-up. Recovery deletes; here nothing is ever deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from txsink.errors import ConflictError, CorruptError, UnavailableError, counted
from txsink.log.entry import Abort, AnyEntry, Commit, Prepare, Publishing
from txsink.log.log import Log, Slot
from txsink.log.state import Pending, State
from txsink.protocol.fencing import Run, standing
from txsink.publish.protocol import Publisher

_log = logging.getLogger(__name__)


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
        log.append(_resolving(log, run, pending, Abort, **published.told))
        return log.commit_of(run.writer, pending.epoch) is not None
    # ORDER: all files published before the commit entry, else a crash leaves a commit without its rows (I6).
    log.append(_resolving(log, run, pending, Commit, **published.told))  # COMMIT POINT (parquet)
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
    if (forbidden := publisher.forbid(log.prepare_entry(pending.prepared))).is_visible:
        roll_forward(log, run, publisher, pending)
        return False
    log.append(_resolving(log, run, pending, Abort, **forbidden.told))
    return True


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
