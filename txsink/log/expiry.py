"""Delete old log entries, and files that only they name.

Promises: nothing that a summary does not cover goes, and nothing that a pending transaction needs (I8); a slot is never
used twice (I7).
Relies on: `Log.append` for the boundary, which comes before the first deletion.
Does not promise: to reach the boundary that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from txsink import paths
from txsink.log import gaps, segment
from txsink.log.entry import Maintenance
from txsink.log.log import Log, Slot
from txsink.log.state import State
from txsink.store.protocol import Store


def expire(log: Log, before: int) -> int:
    """Delete log entries below `before`, and files that only versions below it name. Returns the boundary reached.

    Nothing a summary does not cover goes, and nothing a pending transaction needs.
    """
    # An old state would have segments made that others have merged; that of a table restored since, its files deleted.
    log.refresh()
    log.is_as_read()
    base = next(
        (
            known
            for at in reversed(gaps.summaries(log.slots))
            if at <= before and (known := gaps.summary(log.slots, at))
        ),
        None,
    )

    def make(state: State, slot: Slot) -> Maintenance | None:
        if base is None:
            return None
        needed = [item.prepared for known in (base, state) for item in (*known.pending, *known.aborting)]
        boundary = min([before, base.version, *needed])
        if boundary <= state.boundary:
            return None
        return Maintenance(**slot, action="expire", cleaned=(), boundary=boundary)

    # Where names are kept, what expired before is there still, and needs no second look.
    first = segment.doubled(log.state.boundary) if log.store.traits.keeps_names else 0
    # ORDER: boundary in the log before the first deletion, else a reader takes an expired entry for a lost one (I13).
    log.append(make)
    _expire_below(log, first, log.state.boundary)
    return log.state.boundary


def _expire_below(log: Log, first: int, boundary: int) -> None:
    log.ensure_segments(twice=True)  # of durable entries: `append` has settled all that were read
    removals = log.facts()
    root = f"{log.root}/{paths.REMOVED_DIRECTORY}"
    gone = {
        paths.removed_path(fact.prepared or 0, fact.path or "")
        for fact in segment.rows_of(segment.chosen(removals, "remove"))
        if fact.version <= boundary
    }
    _delete(
        log.store, root, root, [path for path in log.store.list(root) if f"{paths.REMOVED_DIRECTORY}/{path}" in gone]
    )
    # A list, which has an order: the same run settles the same names in the same order.
    pairs = segment.ranges(log.state.version + 1)
    kept = [paths.segment_path(*one) for pair in pairs for one in (*segment.children(*pair), pair)]
    newest = max(gaps.summaries(log.slots), default=0)
    # ORDER: segments and summary durable before the entries they replace go, else a power cut leaves neither (I1).
    log.store.settle([f"{log.root}/{path}" for path in (*kept, paths.summary_path(newest))])
    last = segment.doubled(log.state.version + 1)  # what stands in one segment alone stays in its entries as well
    # ORDER: newest state durable as the hint before the first entry goes, else a power cut that keeps deletions out of
    # their order leaves an older hint, and behind it a slot that looks unused (I7).
    log.keep_hint()
    for directory in (paths.SEGMENT_DIRECTORY, paths.STATE_DIRECTORY, paths.LOG_DIRECTORY):
        at = f"{log.root}/{directory}"
        # ORDER: older names before newer ones, else a stalled writer finds the neighbour of a deleted slot standing
        # and uses that slot twice (I7).
        for name in sorted(log.store.list(at)):
            version, pair = paths.parse_version(name), paths.parse_segment(name)
            if pair is not None:
                doomed = pair[1] < boundary and f"{directory}/{name}" not in kept
            else:
                doomed = version is not None and version < min(boundary, newest, last)
            if not doomed:
                continue
            if version is None or directory != paths.LOG_DIRECTORY:
                # DELETES: segments and summaries; proof: newer ones, durable, tell the same (I8).
                log.store.delete(f"{at}/{name}")
            elif version >= first:
                # DELETES: an entry; proof: the boundary in the log, above it a durable summary and hint (I8).
                log.slots.expire(version)
    # Deletions that a power cut could undo out of their order are over when this returns.
    log.store.settle([f"{log.root}/{paths.entry_path(boundary)}"])


def _delete(store: Store, directory: str, root: str, paths: Iterable[str]) -> None:
    parents: dict[str, None] = {}
    for path in paths:
        # DELETES: replaced files; proof: removed by versions below the boundary in the log (I8).
        store.delete(f"{directory}/{path}")
        parents[f"{directory}/{path}".rpartition("/")[0]] = None
    for parent in parents:
        # DELETES: directories; proof: below `_txsink/removed`, and empty (I8).
        store.prune(parent, root)
