"""After a crash: finish what was prepared, drop what was not, delete what nobody can name any more.

Promises: `recover` and `sweep` may crash anywhere and be run again (I12); they end with every prepared epoch
committed or aborted and no staged left-over (I9); nothing is deleted that the log names (I8), and nothing by age.
Relies on: `decision.decide` for every single file; the claim of the run that recovers, which fences the one before.
Does not promise: to repair damaged files. They are reported (CorruptError) and left where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from txsink import layout, segment
from txsink.decision import Action, End, LogFact, decide
from txsink.entry import Maintenance
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.layout import StagedName
from txsink.log import Log, Slot
from txsink.publish import Publisher, end_of, names_of
from txsink.state import Pending, State
from txsink.store import Store
from txsink.transaction import Run, abort, claim, rewind, roll_forward, standing

__all__ = [
    "Recovered",
    "Swept",
    "decide",
    "expire",
    "finish_aborts",
    "forget",
    "recover",
    "sweep",
    "temporaries",
]

_log = logging.getLogger(__name__)

ON_NEWER = ("fail", "skip", "rewind")


class Recovered(NamedTuple):
    """What a recovery did: epochs committed, aborted, and those taken back by a rewind."""

    committed: list[int]
    aborted: list[int]
    rewound_from: int | None


class Swept(NamedTuple):
    """A staged file and what was (in a dry run: would be) done with it."""

    name: StagedName
    action: Action


def recover(log: Log, run: Run, publisher: Publisher, up_to: int | None = None, on_newer: str = "fail") -> Recovered:
    """Commit the writer's pending epochs <= `up_to`, abort those above; `on_newer` for committed ones above.

    What former runs prepared is durable by now: the claim of `run` came after it.
    """
    _require_choice(on_newer)
    standing(log, log.state, run)
    finish_aborts(log, run, publisher)
    last = log.state.last_epoch(run.writer)
    if up_to is not None and on_newer == "fail" and last is not None and last > up_to:
        raise _newer(run, up_to, last)
    committed: list[int] = []
    aborted: list[int] = []
    for pending in log.state.pending_of(run.writer):
        # What began to replace files can only go forward; `on_newer` decides on it below.
        # What is to be aborted may be published, and what is to be committed dropped, where Delta's log says so.
        if up_to is None or pending.epoch <= up_to or pending.is_publishing:
            is_committed = roll_forward(log, run, publisher, pending)
        else:
            is_committed = not abort(log, run, publisher, pending)
        (committed if is_committed else aborted).append(pending.epoch)
    finish_aborts(log, run, publisher)
    last = log.state.last_epoch(run.writer)
    if up_to is None or last is None or last < up_to or on_newer == "skip":
        _tell_of_what_is_back(run, publisher)
        return Recovered(committed, aborted, None)
    if last == up_to and not (on_newer == "rewind" and publisher.brought_back(run.writer)):
        return Recovered(committed, aborted, None)
    if on_newer == "fail":
        raise _newer(run, up_to, last)
    roll_forward(log, run, publisher, rewind(log, run, publisher, up_to))
    return Recovered(committed, aborted, log.state.writers[run.writer].rewound if last == up_to else last)


def _tell_of_what_is_back(run: Run, publisher: Publisher) -> None:
    if back := publisher.brought_back(run.writer):
        _log.warning(
            "another program brought back what a rewind of %r took away, %s for one; recover with on_newer='rewind'"
            " takes it away again",
            run.writer,
            back[0],
        )


def finish_aborts(log: Log, run: Run, publisher: Publisher) -> None:
    """Delete the files of the writer's aborted transactions, then say in the log that it is done."""
    if not any(item.writer == run.writer for item in log.state.aborting):
        return
    # ORDER: newest entry known looked at before an aborted file goes, else a table that was restored or made anew loses
    # one that its own log names (I8).
    log.is_as_read(log.stamps.now_ms(), to_the_end=False)
    standing(log, log.state, run)
    mine = [item for item in log.state.aborting if item.writer == run.writer]
    for item in mine:
        publisher.withdraw(log.prepare_entry(item.prepared))
    done = tuple(item.prepared for item in mine)

    def make(state: State, slot: Slot) -> Maintenance | None:
        if not any(item.prepared in done for item in state.aborting):
            return None
        return Maintenance(**slot, action="cleaned", cleaned=done, boundary=None)

    # ORDER: all files deleted before the `cleaned` entry, else a crash leaves published rows nobody drops (I9).
    log.append(make)


def forget(log: Log, run: Run, publisher: Publisher, epoch: int, own: list[StagedName] | None = None) -> None:
    """Delete what the run staged for an epoch (only its `own`, if given), as far as no entry names it."""
    found = own
    if found is None:
        left = publisher.left(run.writer, ())
        found = [name for name in left if name.is_of(run.run) and name.epoch == epoch]
    # ORDER: staged listed before the log is read, else an entry that lands in between names files deleted here (I8).
    log.refresh()
    known = log.state.writers.get(run.writer)
    if known is not None and known.run != run.run:
        publisher.remain(run.writer, run.run)
        return  # retired, or about to claim: what is left is the sweep's
    if log.doubts:
        return  # a prepare entry may yet appear, and name files that an earlier transaction staged for the epoch
    named = names_held(log, publisher)
    publisher.drop([name for name in found if not named(name)])


def sweep(log: Log, run: Run, publisher: Publisher, names: list[StagedName], *, dry_run: bool = False) -> list[Swept]:
    """Delete the orphans among `names`, which were listed before the log was read.

    Files of `run.writer` whose run never claimed are retired first; those of other writers are left alone.
    """
    # ORDER: staged listed (by the caller) before the log is read, else a file staged and prepared in between
    # counts as an orphan (I8).
    log.refresh()
    if not dry_run:
        standing(log, log.state, run)  # a retired run deletes nothing (I10)
    facts = {run_of: _run_fact(log, name) for run_of, name in {name[:2]: name for name in names}.items()}
    unclaimed = {named for (writer, named), fact in facts.items() if fact is LogFact.UNCLAIMED and writer == run.writer}
    if unclaimed and not dry_run:
        # ORDER: retired before swept, else a run that is merely slow prepares files deleted under it (I10).
        claim(log, run, tuple(sorted(unclaimed)))
    is_named = names_held(log, publisher)
    swept = []
    for name in names:
        fact = facts[name.writer, name.run]
        if fact is LogFact.UNCLAIMED and name.run in unclaimed and name.writer == run.writer:
            fact = LogFact.ORPHAN
        if fact is LogFact.LIVE and _is_past(log, publisher, name):
            fact = LogFact.ORPHAN
        # What a pending transaction names is decided on by recover.
        swept.append(Swept(name, Action.KEEP if is_named(name) else _swept(log, run, name, fact)))
    if not dry_run:
        publisher.drop([name for name, action in swept if action is Action.DROP_STAGED])
        for writer, named_run in facts:
            publisher.tidy(writer, named_run)
    return swept


def temporaries(log: Log, *, dry_run: bool = False) -> list[str]:
    """Delete half-made log objects. A put whose temporary file vanishes makes it again."""
    # The hint's own are here, all others below; and those of Delta's log.
    roots = [f"{log.root}/{layout.HEAD_PATH}".rpartition("/")[0], f"{log.root}/{layout.DELTA_DIRECTORY}"]
    found = [f"{root}/{path}" for root in roots for path in log.store.list(root) if layout.is_temporary(path)]
    if not dry_run:
        for path in found:
            # DELETES: half-made log objects; proof: their names; a put that misses one makes it again (I8).
            log.store.delete(path)
    return found


def expire(log: Log, before: int) -> int:
    """Delete log entries below `before`, and files that only versions below it name. Returns the boundary reached.

    Nothing a summary does not cover goes, and nothing a pending transaction needs.
    """
    # An old state would have segments made that others have merged; that of a table restored since, its files deleted.
    log.refresh()
    log.is_as_read()
    base = next((known for at in reversed(log.summaries()) if at <= before and (known := log.summary(at))), None)

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
    root = f"{log.root}/{layout.REMOVED_DIRECTORY}"
    gone = {
        layout.removed_path(fact.prepared or 0, fact.path or "")
        for fact in segment.rows_of(segment.chosen(removals, "remove"))
        if fact.version <= boundary
    }
    _delete(
        log.store, root, root, [path for path in log.store.list(root) if f"{layout.REMOVED_DIRECTORY}/{path}" in gone]
    )
    # A list, which has an order: the same run settles the same names in the same order.
    pairs = segment.ranges(log.state.version + 1)
    kept = [layout.segment_path(*one) for pair in pairs for one in (*segment.children(*pair), pair)]
    newest = max(log.summaries(), default=0)
    # ORDER: segments and summary durable before the entries they replace go, else a power cut leaves neither (I1).
    log.store.settle([f"{log.root}/{path}" for path in (*kept, layout.summary_path(newest))])
    last = segment.doubled(log.state.version + 1)  # what stands in one segment alone stays in its entries as well
    # ORDER: newest state durable as the hint before the first entry goes, else a power cut that keeps deletions out of
    # their order leaves an older hint, and behind it a slot that looks unused (I7).
    log.keep_hint()
    for directory in (layout.SEGMENT_DIRECTORY, layout.STATE_DIRECTORY, layout.LOG_DIRECTORY):
        at = f"{log.root}/{directory}"
        # ORDER: older names before newer ones, else a stalled writer finds the neighbour of a deleted slot standing
        # and uses that slot twice (I7).
        for name in sorted(log.store.list(at)):
            version, pair = layout.parse_version(name), layout.parse_segment(name)
            if pair is not None:
                doomed = pair[1] < boundary and f"{directory}/{name}" not in kept
            else:
                doomed = version is not None and version < min(boundary, newest, last)
            if not doomed:
                continue
            if version is None or directory != layout.LOG_DIRECTORY:
                # DELETES: segments and summaries; proof: newer ones, durable, tell the same (I8).
                log.store.delete(f"{at}/{name}")
            elif version >= first:
                # DELETES: an entry; proof: the boundary in the log, above it a durable summary and hint (I8).
                log.slots.expire(version)
    # Deletions that a power cut could undo out of their order are over when this returns.
    log.store.settle([f"{log.root}/{layout.entry_path(boundary)}"])


def names_held(log: Log, publisher: Publisher, *more: Pending) -> Callable[[StagedName], bool]:
    """Whether a pending transaction (or one of `more`) names a staged file, or where names are final a committed one.

    There Delta's log tells as well: ours may be an older copy.
    Told by the last part of its path, which holds an id of its own: file systems that fold names (macOS) list its
    directories in another spelling than the entry has.
    """
    items = (*log.state.pending, *(log.state.aborting if publisher.is_in_place else ()), *more)
    named = {_last(name) for item in items for name in names_of(log.prepare_entry(item.prepared))}
    if publisher.is_in_place:
        paths = {*segment.chosen(log.facts(), "add")["path"].to_pylist(), *publisher.named()}
        named |= {(path.rpartition("/")[2], "") for path in paths}
    return lambda name: _last(name) in named


def _last(name: StagedName) -> tuple[str, str]:
    return name.path.rpartition("/")[2], name.upload


def _run_fact(log: Log, name: StagedName) -> LogFact:
    """What the log says of the run that staged a file; LIVE stands for the run that holds its writer."""
    known = log.state.writers.get(name.writer)
    if known is not None and name.is_of(known.run):
        return LogFact.LIVE
    return LogFact.ORPHAN if log.is_retired(name.writer, name.run, -1) else LogFact.UNCLAIMED


def _is_past(log: Log, publisher: Publisher, name: StagedName) -> bool:
    """Whether the name was staged in a layout that the table has no more: not even its own run can prepare it.

    A mark is not: its run may stage more. Nor is an upload, as those of either layout look alike.
    """
    return publisher.layout != log.state.layout and not name.is_mark and not name.upload


def _swept(log: Log, run: Run, name: StagedName, run_fact: LogFact) -> Action:
    action = decide(_fact(log, name, run_fact), End.SAME, _target(log, name))
    if action is Action.CORRUPT and _was_replaced(log, run, name.path):
        return Action.DROP_STAGED  # it was published, so a staged copy is one too many
    if action is Action.CORRUPT:
        raise CorruptError(
            f"sweep the staged file {name.path}",
            f"epoch {name.epoch} of {name.writer!r} is committed, but the table does not have the file",
            "Inspect it: this may be the only copy. Nothing was deleted",
            path=name.path,
        )
    return action


def _was_replaced(log: Log, run: Run, path: str) -> bool:
    """Whether a committed file is gone because an overwrite has taken it away since the log was read."""
    # A log of its own: the sweep goes on with what it has decided by.
    now = Log(log.store, log.root, log.stamps)
    state = now.load()
    standing(now, state, run)  # a retired run finds files taken away: that is no damage
    leaving = {
        file.path for one in state.pending if one.is_publishing for file in now.prepare_entry(one.prepared).removes
    }
    return path in leaving or path not in now.live()


def _fact(log: Log, name: StagedName, run_fact: LogFact) -> LogFact:
    if name.path in log.live():
        return LogFact.COMMITTED
    last = log.state.last_epoch(name.writer)
    if run_fact is LogFact.LIVE and last is not None and name.epoch <= last:
        return LogFact.ORPHAN  # its epoch is committed without it: nobody can name it any more
    return run_fact


def _target(log: Log, name: StagedName) -> End:
    fact = log.live().get(name.path)
    if fact is None:
        return End.ABSENT
    return end_of(log.store, f"{log.root}/{name.path}", fact.file())


def _delete(store: Store, directory: str, root: str, paths: Iterable[str]) -> None:
    parents: dict[str, None] = {}
    for path in paths:
        # DELETES: replaced files; proof: removed by versions below the boundary in the log (I8).
        store.delete(f"{directory}/{path}")
        parents[f"{directory}/{path}".rpartition("/")[0]] = None
    for parent in parents:
        # DELETES: directories; proof: below `_txsink/removed`, and empty (I8).
        store.prune(parent, root)


def _require_choice(on_newer: str) -> None:
    if on_newer not in ON_NEWER:
        raise InvalidRequestError("recover", f"on_newer={on_newer!r}", f"Choose one of {', '.join(ON_NEWER)}")


def _newer(run: Run, up_to: int, last: int) -> ConflictError:
    return ConflictError(
        f"restore {run.writer!r} at epoch {up_to}",
        f"its epochs up to {last} are committed already",
        "Choose on_newer='skip' (keep them; their replay writes nothing) or on_newer='rewind' (remove their files)",
        writer=run.writer,
        up_to=up_to,
        last_epoch=last,
    )
