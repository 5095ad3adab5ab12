"""Delete what was staged and nobody can name any more.

Promises: `sweep` may crash anywhere and be run again (I12); nothing is deleted that the log names (I8), and nothing by
age.
Relies on: `decision.decide` for every single file; names that were listed before the log was read.
Does not promise: to repair damaged files. They are reported (CorruptError) and left where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from txsink import paths
from txsink.errors import CorruptError
from txsink.log import segment
from txsink.log.log import Log
from txsink.log.state import Pending
from txsink.paths import StagedName
from txsink.protocol.fencing import Run, claim, standing
from txsink.publish.decision import Action, End, LogFact, decide
from txsink.publish.protocol import Publisher, end_of, names_of


class Swept(NamedTuple):
    """A staged file and what was (in a dry run: would be) done with it."""

    name: StagedName
    action: Action


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
    roots = [f"{log.root}/{paths.HEAD_PATH}".rpartition("/")[0], f"{log.root}/{paths.DELTA_DIRECTORY}"]
    found = [f"{root}/{path}" for root in roots for path in log.store.list(root) if paths.is_temporary(path)]
    if not dry_run:
        for path in found:
            # DELETES: half-made log objects; proof: their names; a put that misses one makes it again (I8).
            log.store.delete(path)
    return found


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
