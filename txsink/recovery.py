"""After a crash: finish what was prepared, drop what was not, delete what nobody can name any more.

Promises: `recover` and `sweep` may crash anywhere and be run again (I12); they end with every prepared epoch
committed or aborted and no staged left-over (I9); nothing is deleted that the log names (I8), and nothing by age.
Relies on: `decision.decide` for every single file; the claim of the run that recovers, which fences the one before.
Does not promise: to repair damaged files. They are reported (CorruptError) and left where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow.compute as pc

from txsink import layout, segment
from txsink.decision import Action, End, LogFact, decide
from txsink.entry import Maintenance
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.layout import StagedName
from txsink.log import Log, Slot
from txsink.publish import Publisher, end_of
from txsink.state import State
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
    "staged_names",
    "sweep",
    "temporaries",
]

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
    committed, aborted = [], []
    for pending in log.state.pending_of(run.writer):
        # What began to replace files can only go forward; `on_newer` decides on it below.
        if up_to is None or pending.epoch <= up_to or pending.is_publishing:
            roll_forward(log, run, publisher, pending)
            committed.append(pending.epoch)
        else:
            abort(log, run, pending)
            aborted.append(pending.epoch)
    finish_aborts(log, run, publisher)
    last = log.state.last_epoch(run.writer)
    if up_to is None or last is None or last <= up_to or on_newer == "skip":
        return Recovered(committed, aborted, None)
    if on_newer == "fail":
        raise _newer(run, up_to, last)
    roll_forward(log, run, publisher, rewind(log, run, up_to))
    return Recovered(committed, aborted, last)


def finish_aborts(log: Log, run: Run, publisher: Publisher) -> None:
    """Delete the files of the writer's aborted transactions, then say in the log that it is done."""
    mine = [item for item in log.state.aborting if item.writer == run.writer]
    if not mine:
        return
    standing(log, log.state, run)
    for item in mine:
        publisher.withdraw(log.prepare_entry(item.prepared))
    done = tuple(item.prepared for item in mine)

    def make(state: State, slot: Slot) -> Maintenance | None:
        if not any(item.prepared in done for item in state.aborting):
            return None
        return Maintenance(**slot, action="cleaned", cleaned=done, boundary=None)

    # ORDER: all files deleted before the `cleaned` entry, else a crash leaves published rows nobody drops (I9).
    log.append(make)


def forget(log: Log, run: Run, staging_root: str, epoch: int, paths: list[str] | None = None) -> None:
    """Delete what was staged for an epoch (only `paths`, if given), as far as no entry names it."""
    root = f"{staging_root}/{layout.run_directory(run.writer, run.run)}"
    found = paths
    if found is None:
        found = [
            path for path in log.store.list(root) if layout.is_data_path(path) and layout.data_epoch(path) == epoch
        ]
    # ORDER: staged listed before the log is read, else an entry that lands in between names files deleted here (I8).
    log.refresh()
    known = log.state.writers.get(run.writer)
    if known is not None and known.run != run.run:
        return  # retired, or about to claim: what is left is the sweep's
    named = {
        file.path
        for pending in log.state.pending_of(run.writer)
        if (pending.run, pending.epoch) == (run.run, epoch)
        for file in log.prepare_entry(pending.prepared).files
    }
    _delete(log.store, root, root, [path for path in found if path not in named])


def staged_names(store: Store, staging_root: str, writer: str | None = None) -> list[StagedName]:
    """What is staged, by one writer or by all."""
    below = f"{layout.writer_directory(writer)}/" if writer is not None else ""
    found = store.list(f"{staging_root}/{below}".rstrip("/"))
    names = (layout.parse_staged(f"{below}{path}") for path in found)
    return [name for name in names if name is not None]


def sweep(log: Log, run: Run, staging_root: str, names: list[StagedName], *, dry_run: bool = False) -> list[Swept]:
    """Delete the orphans among `names`, which were listed before the log was read.

    Files of `run.writer` whose run never claimed are retired first; those of other writers are left alone.
    """
    # ORDER: staged listed (by the caller) before the log is read, else a file staged and prepared in between
    # counts as an orphan (I8).
    log.refresh()
    if not dry_run:
        standing(log, log.state, run)  # a retired run deletes nothing (I10)
    runs = sorted({(name.writer, name.run) for name in names})
    facts = {pair: _run_fact(log, *pair) for pair in runs}
    unclaimed = tuple(
        named for (writer, named), fact in facts.items() if fact is LogFact.UNCLAIMED and writer == run.writer
    )
    if unclaimed and not dry_run:
        # ORDER: retired before swept, else a run that is merely slow prepares files deleted under it (I10).
        claim(log, run, unclaimed)
    swept = []
    for name in names:
        fact = facts[name.writer, name.run]
        if fact is LogFact.UNCLAIMED and name.run in unclaimed and name.writer == run.writer:
            fact = LogFact.ORPHAN
        swept.append(_sweep_one(log, staging_root, name, fact, dry_run=dry_run))
    if not dry_run:
        for name in names:
            # Up to the writer's directory: who finds it there trusts that its name is durable.
            root = f"{staging_root}/{layout.writer_directory(name.writer)}"
            staged = f"{staging_root}/{layout.run_directory(name.writer, name.run)}/{name.path}"
            log.store.prune(staged.rpartition("/")[0], root)
    return swept


def temporaries(log: Log, *, dry_run: bool = False) -> list[str]:
    """Delete half-made log objects. A put whose temporary file vanishes makes it again."""
    root = f"{log.root}/{layout.HEAD_PATH}".rpartition("/")[0]  # the hint's own are here, all others below
    found = [f"{root}/{path}" for path in log.store.list(root) if layout.is_temporary(path)]
    if not dry_run:
        for path in found:
            log.store.delete(path)
    return found


def expire(log: Log, before: int) -> int:
    """Delete log entries below `before`, and files that only versions below it name. Returns the boundary reached.

    Nothing a summary does not cover goes, and nothing a pending transaction needs.
    """
    base = next((known for at in reversed(log.summaries()) if at <= before and (known := log.summary(at))), None)

    def make(state: State, slot: Slot) -> Maintenance | None:
        if base is None:
            return None
        needed = [item.prepared for known in (base, state) for item in (*known.pending, *known.aborting)]
        boundary = min([before, base.version, *needed])
        if boundary <= state.boundary:
            return None
        return Maintenance(**slot, action="expire", cleaned=(), boundary=boundary)

    # ORDER: boundary in the log before the first deletion, else a reader takes an expired entry for a lost one (I13).
    log.append(make)
    _expire_below(log, log.state.boundary)
    return log.state.boundary


def _expire_below(log: Log, boundary: int) -> None:
    log.ensure_segments()  # of durable entries: `append` has settled all that were read
    removals = log.facts()
    root = f"{log.root}/{layout.REMOVED_DIRECTORY}"
    gone = {
        layout.removed_path(fact.prepared or 0, fact.path or "")
        for fact in segment.rows_of(removals.filter(pc.field("kind") == "remove"))
        if fact.version <= boundary
    }
    _delete(
        log.store, root, root, [path for path in log.store.list(root) if f"{layout.REMOVED_DIRECTORY}/{path}" in gone]
    )
    kept = {layout.segment_path(*pair) for pair in segment.ranges(log.state.version + 1)}
    newest = max(log.summaries(), default=0)
    # ORDER: segments and summary durable before the entries they replace go, else a power cut leaves neither (I1).
    log.store.settle([f"{log.root}/{path}" for path in (*kept, layout.summary_path(newest))])
    # ORDER: newest state durable as the hint before the first entry goes, else a power cut that keeps deletions out of
    # their order leaves an older hint, and behind it a slot that looks unused (I7).
    log.keep_hint()
    for directory in (layout.SEGMENT_DIRECTORY, layout.STATE_DIRECTORY, layout.LOG_DIRECTORY):
        at = f"{log.root}/{directory}"
        # ORDER: older names before newer ones, else a stalled writer finds the neighbour of a deleted slot standing
        # and uses that slot twice (I7).
        for name in log.store.list(at):
            version, pair = layout.parse_version(name), layout.parse_segment(name)
            if pair is not None:
                doomed = pair[1] < boundary and f"{directory}/{name}" not in kept
            else:
                doomed = version is not None and version < min(boundary, newest)
            if doomed:
                log.store.delete(f"{at}/{name}")
    # Deletions that a power cut could undo out of their order are over when this returns.
    log.store.settle([f"{log.root}/{layout.entry_path(boundary)}"])


def _run_fact(log: Log, writer: str, run: str) -> LogFact:
    """What the log says of a run; LIVE stands for the run that holds its writer."""
    known = log.state.writers.get(writer)
    if known is not None and known.run == run:
        return LogFact.LIVE
    return LogFact.ORPHAN if log.is_retired(writer, run, -1) else LogFact.UNCLAIMED


def _sweep_one(log: Log, staging_root: str, name: StagedName, run_fact: LogFact, *, dry_run: bool) -> Swept:
    action = decide(_fact(log, name, run_fact), End.SAME, _target(log, name))
    if action is Action.CORRUPT:
        raise CorruptError(
            f"sweep the staged file {name.path}",
            f"epoch {name.epoch} of {name.writer!r} is committed, but the table does not have the file",
            "Inspect it: this may be the only copy. Nothing was deleted",
            path=name.path,
        )
    if action is Action.DROP_STAGED and not dry_run:
        directory = layout.run_directory(name.writer, name.run)
        log.store.delete(f"{staging_root}/{directory}/{name.path}")
    return Swept(name, action)


def _fact(log: Log, name: StagedName, run_fact: LogFact) -> LogFact:
    for pending in log.state.pending:
        if (pending.writer, pending.run, pending.epoch) == (name.writer, name.run, name.epoch) and any(
            file.path == name.path for file in log.prepare_entry(pending.prepared).files
        ):
            return LogFact.LIVE  # recover decides on it, not sweep
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
    parents = set()
    for path in paths:
        store.delete(f"{directory}/{path}")
        parents.add(f"{directory}/{path}".rpartition("/")[0])
    for parent in parents:
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
