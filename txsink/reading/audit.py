"""Whether the stored bytes are what the log says, and why one epoch is where it is.

Promises: `verify` reads every retained entry, every summary and segment, every file that a retained version or a
pending transaction names, and reports all it finds, not the first; it changes nothing. `explain` says in one plain
sentence what became of an epoch.
Relies on: the digests in the log. Pages are checked only when `deep`, rows too.
Does not promise: to tell an accident from a forgery, nor to judge orphans: they are `sweep`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import pyarrow.compute as pc

from txsink import paths
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError, counted
from txsink.log import entry as entries, gaps, segment
from txsink.log.entry import Abort, AnyEntry, Commit, Prepare
from txsink.log.log import SEGMENT_BYTES_MAX, Log
from txsink.log.segment import Fact
from txsink.log.state import REWIND, Pending, State, decode, fold
from txsink.publish.decision import Action, End, LogFact, decide
from txsink.publish.delta import brought_back as delta_back
from txsink.publish.protocol import PARQUET, Publisher
from txsink.reading.versions import Places, moment

_TRIES = 3


class Problem(NamedTuple):
    """Something that is not as the log says: where (a path, relative to the table if it lies there), and what."""

    where: str
    what: str


class Explanation(NamedTuple):
    """What became of an epoch: `committed`, `rewound`, `skipped`, `aborted`, `pending` or `unknown`, and why."""

    writer: str
    epoch: int
    outcome: str
    sentence: str
    run: str | None = None
    prepared: int | None = None
    version: int | None = None
    time: datetime | None = None
    files: int | None = None
    rows: int | None = None


# -- verify -------------------------------------------------------------------------------------------


def verify(
    log: Log, publisher: Publisher, *, deep: bool = False, files: Callable[[], list[Fact]] | None = None
) -> list[Problem]:
    """All that is not as it should be. Work that goes on meanwhile is no problem: it is looked at again.

    `files`: what lists the table's files, where the log alone does not say which these are.
    """
    found: list[Problem] = []
    for _ in range(_TRIES):
        try:
            before = log.refresh().version
        except CorruptError:
            return verify_log(log)
        named = _named(log) if files is None else files
        found = [*_log_problems(log, log.state), *_file_problems(log, named, deep=deep)]
        found += _pending_problems(log, publisher)
        found += [Problem(one.where, one.what) for one in publisher.disagreements()]
        if not found or log.refresh().version == before:
            break
    return found


def verify_log(log: Log) -> list[Problem]:
    """`verify` for a log that cannot be opened: what its entries, summaries and segments show by themselves."""
    return _log_problems(log, None)


class _Chain:
    """Walks the entries in order and notes what does not follow from what came before."""

    def __init__(self, state: State | None) -> None:
        self.state = state
        self.digest: str | None = None if state is None else state.digest
        self.facts: dict[int, list[Fact]] = {}
        self._prepares: dict[int, Prepare] = {}

    def take(self, entry: AnyEntry, digest: str) -> str | None:
        """What is wrong with the entry; None when it follows."""
        self._note(entry)
        if self.digest is not None and entry.previous != self.digest:
            self.state, self.digest = None, digest
            return "it does not follow the entry before it: the chain is broken"
        self.digest = digest
        if self.state is None:
            return None
        try:
            self.state = fold(self.state, entry, digest)
        except CorruptError as error:
            self.state = None
            return error.found
        return None

    def skip(self) -> None:
        """An entry is missing or unreadable: what follows is judged by itself again."""
        self.state = self.digest = None

    def _note(self, entry: AnyEntry) -> None:
        if isinstance(entry, Prepare):
            self._prepares[entry.version] = entry
        resolved = self._prepares.pop(entry.prepared, None) if isinstance(entry, Commit | Abort) else None
        if not isinstance(entry, Commit) or resolved is not None:
            self.facts[entry.version] = segment.facts(entry, resolved)


def _log_problems(log: Log, state: State | None) -> list[Problem]:
    """`state`: the newest one known; None when the log cannot be opened."""
    names = log.store.list(f"{log.root}/{paths.LOG_DIRECTORY}")
    there = {version for name in names if (version := paths.parse_version(name)) is not None}
    first = state.boundary if state is not None else min(there, default=0)
    last = max(there | {-1 if state is None else state.version})
    summaries = set(gaps.summaries(log.slots))
    chain = _Chain(State() if first == 0 else None)
    found = []
    for version in range(first, last + 1):
        problem = _entry_problem(log, chain, version) if version in there else "it is missing"
        if problem is not None:
            found.append(Problem(paths.entry_path(version), problem))
        if version not in there:
            chain.skip()
        if version in summaries:
            found += _summary_problems(log, chain, version)
    data = log.store.read(f"{log.root}/{paths.HEAD_PATH}", entries.ENTRY_BYTES_MAX)
    if data is not None and ((hint := decode(data)) is None or hint.birth != (state or hint).birth):
        found.append(Problem(paths.HEAD_PATH, "it is torn, altered or of another log"))
    return found + _segment_problems(log, chain.facts)


def _entry_problem(log: Log, chain: _Chain, version: int) -> str | None:
    data = log.store.read(f"{log.root}/{paths.entry_path(version)}", entries.ENTRY_BYTES_MAX)
    try:
        # Gone since it was listed reads as empty here, and is looked at again by `verify`.
        return chain.take(entries.decode(data or b"", version), entries.digest(data or b""))
    except (CorruptError, InvalidRequestError) as error:
        chain.skip()
        return error.found


def _summary_problems(log: Log, chain: _Chain, version: int) -> list[Problem]:
    path = paths.summary_path(version)
    data = log.store.read(f"{log.root}/{path}", entries.ENTRY_BYTES_MAX)
    if data is None:
        return []  # expired since it was listed
    summary = decode(data)
    if summary is None:
        return [Problem(path, "it is torn or altered; delete it, it only saves time")]
    if chain.digest is not None and summary.digest != chain.digest:
        return [Problem(path, "it stands on another log entry than the one that is there")]
    if chain.state is None:
        chain.state = summary
    elif summary != chain.state:
        return [Problem(path, "it does not say what the log entries up to it say")]
    return []


def _segment_problems(log: Log, facts: dict[int, list[Fact]]) -> list[Problem]:
    found = []
    for name in log.store.list(f"{log.root}/{paths.SEGMENT_DIRECTORY}"):
        if (pair := paths.parse_segment(name)) is None:
            continue
        path = f"{paths.SEGMENT_DIRECTORY}/{name}"
        data = log.store.read(f"{log.root}/{path}", SEGMENT_BYTES_MAX)
        if data is None:
            continue  # expired since it was listed
        try:
            rows = segment.rows_of(segment.decode(data, path))
        except CorruptError as error:
            found.append(Problem(path, f"it cannot be read: {error.found}"))
            continue
        held = defaultdict(list)
        for row in rows:
            held[row.version].append(row)
        wrong = [at for at in range(pair[0], pair[1] + 1) if at in facts and held[at] != facts[at]]
        if wrong:
            found.append(Problem(path, f"it does not say what log entry {wrong[0]} says"))
    return found


def _named(log: Log) -> Callable[[], list[Fact]]:
    """The files of the newest version, and those that an older retained one still names (I8), where they are kept."""

    def listed() -> list[Fact]:
        named = {fact.path or "": fact for fact in log.live().values()}
        facts = log.facts()
        # An overwrite also names what was pending before it. What was aborted since never came.
        came = pc.field("path").isin(facts.filter(pc.field("kind") == "add")["path"].combine_chunks())
        gone = (pc.field("kind") == "remove") & (pc.field("version") > log.state.boundary) & came
        for fact in segment.rows_of(facts.filter(gone)) if log.store.traits.moves else ():
            named.setdefault(fact.path or "", fact)
        return list(named.values())

    return listed


def unnamed(log: Log) -> list[str]:
    """Data files in the table that no entry names: of entries that are lost, or that were given up."""
    if not log.store.traits.moves or log.state.layout != PARQUET:
        return []
    names = data_files(log)  # listed before the log is read on: what is published meanwhile was prepared in it before
    log.refresh()
    named = set(segment.chosen(log.facts(), "add")["path"].to_pylist()) | waiting_files(log)
    return [path for path in names if path not in named]


def waiting_files(log: Log) -> set[str]:
    """The files of transactions that are not done."""
    items = (*log.state.pending, *log.state.aborting)
    return {file.path for item in items for file in log.prepare_entry(item.prepared).files}


def data_files(log: Log) -> list[str]:
    """What lies in the table under the name of a data file of ours."""
    found = paths.in_no_other_table(log.store.list(log.root))
    return [path for path in found if paths.is_data_path(path)]


def _file_problems(log: Log, files: Callable[[], list[Fact]], *, deep: bool) -> list[Problem]:
    try:
        named = files()
    except (CorruptError, InvalidRequestError) as error:
        return [Problem(paths.LOG_DIRECTORY, f"the data files were not looked at: {error.attempted}: {error.found}")]
    lost = "no log entry names it: was an epoch lost from the log's end?"
    strange = [Problem(path, lost) for path in unnamed(log)]
    places = Places(log)
    problems = ((fact.path or "", places.problem(fact, deep=deep)) for fact in named)
    back = [Problem(*one) for one in delta_back.problems(log, named)] if log.state.layout != PARQUET else []
    return [Problem(path, f"it {what}") for path, what in problems if what is not None] + strange + back


def _pending_problems(log: Log, publisher: Publisher) -> list[Problem]:
    found = []
    for pending in log.state.pending:
        try:
            prepare = log.prepare_entry(pending.prepared)
        except TxsinkError as error:
            found.append(Problem(paths.entry_path(pending.prepared), error.found))
            continue
        for file in prepare.files:
            staged, target = publisher.ends(prepare, file)
            if decide(LogFact.PENDING, staged, target) is Action.CORRUPT:
                whose = f"epoch {prepare.epoch} of {prepare.writer!r} is pending"
                both = f"{_lies(staged)} in staging, {_lies(target)} in the table"
                where = paths.told_path(log.root, publisher.staged_path(prepare, file))
                what = _lies(staged) if publisher.is_in_place else both
                found.append(Problem(where, f"{whose}, and its file is {what}"))
    return found


def _lies(end: End) -> str:
    return {End.ABSENT: "missing", End.SAME: "whole", End.OTHER: "altered"}[end]


# -- explain ------------------------------------------------------------------------------------------


def explain(log: Log, writer: str, epoch: int, is_visible: Callable[[Pending], bool] = lambda _: False) -> Explanation:
    """Why an epoch is committed, skipped, aborted, pending, or nothing the log knows of.

    `is_visible`: whether another log has a pending one for its readers already.
    """
    state = log.refresh()
    for pending in state.pending_of(writer):
        if pending.epoch == epoch and pending.mode != REWIND:
            return _pending(log, pending, is_visible=is_visible(pending))
    chosen = (pc.field("writer") == writer) & pc.field("kind").isin(["commit", "abort", "add"])
    facts = segment.rows_of(log.facts().filter(chosen))
    committed, last = _walk(facts, epoch)
    if last is None:
        return _without_end(state, writer, epoch)
    if committed is None:
        return _aborted(log, last)
    files = [fact for fact in facts if fact.kind == "add" and fact.version == committed.version]
    rows = sum(fact.rows or 0 for fact in files)
    sentence = (
        f"It was committed at version {committed.version}, {counted(len(files), 'file')} with {counted(rows, 'row')}"
    )
    outcome = "committed"
    if last is not committed:
        outcome = "rewound"
        sentence += f", and taken back by the rewind to epoch {last.epoch} at version {last.version}"
    elif gone := sum(fact.path not in log.live() for fact in files):
        sentence += f"; overwrites have replaced {counted(gone, 'file')} of it since"
    for pending in state.pending_of(writer):
        if pending.mode == REWIND and pending.epoch < epoch:
            sentence += f"; a rewind to epoch {pending.epoch}, which takes it back, is pending"
    return Explanation(
        writer, epoch, outcome, f"{sentence}.", committed.run, committed.prepared, committed.version,
        moment(committed.time_ms), len(files), rows,
    )  # fmt: skip


def _walk(facts: list[Fact], epoch: int) -> tuple[Fact | None, Fact | None]:
    """The newest commit of the epoch, and what came last to it: that commit, or the rewind that took it back.

    No commit and an abort when it was only aborted; twice None when the log says nothing of it.
    """
    committed = last = None
    for fact in facts:
        is_back = committed is not None and last is not committed
        if fact.kind == "commit" and fact.epoch == epoch:
            # A second commit of an epoch that stands is a rewind to it (I5).
            if committed is None or is_back:
                committed = last = fact
        elif fact.kind == "commit" and (fact.epoch or 0) < epoch and committed is not None and not is_back:
            last = fact  # only a rewind goes back (I4)
        elif fact.kind == "abort" and fact.epoch == epoch and (committed is None or is_back):
            committed, last = None, fact
    return committed, last


def _pending(log: Log, pending: Pending, *, is_visible: bool) -> Explanation:
    prepare = log.prepare_entry(pending.prepared)
    rows = sum(file.rows for file in prepare.files)
    if is_visible:
        sentence = (
            f"It was prepared at version {pending.prepared} and is committed in Delta's log; the entry that says so"
            " here is still to come, and recover appends it."
        )
        return Explanation(
            pending.writer, pending.epoch, "committed", sentence, pending.run, pending.prepared, None,
            moment(prepare.time_ms), len(prepare.files), rows,
        )  # fmt: skip
    sentence = f"It was prepared at version {pending.prepared} and is neither committed nor aborted"
    if pending.is_publishing:
        sentence += "; it has begun to replace files, so it can only be committed"
    if log.state.writers[pending.writer].run == pending.run:
        sentence += ". The run that prepared it still holds the writer and may commit it; if it died, recover does."
    else:
        sentence += ". The run that prepared it was retired, so recover has to finish it."
    return Explanation(
        pending.writer, pending.epoch, "pending", sentence, pending.run, pending.prepared, None,
        moment(prepare.time_ms), len(prepare.files), rows,
    )  # fmt: skip


def _aborted(log: Log, end: Fact) -> Explanation:
    sentence = f"It was prepared at version {end.prepared} and aborted at version {end.version}"
    if any(item.prepared == end.prepared for item in log.state.aborting):
        sentence += "; its files are still to be deleted, which recover does"
    last = log.state.last_epoch(end.writer)
    if last is not None and last >= (end.epoch or 0):
        sentence += f". Epoch {last} is committed, so it cannot be written any more"
    return Explanation(
        end.writer, end.epoch or 0, "aborted", f"{sentence}.", end.run, end.prepared, end.version, moment(end.time_ms)
    )


def _without_end(state: State, writer: str, epoch: int) -> Explanation:
    known = state.writers.get(writer)
    if known is None:
        return Explanation(writer, epoch, "unknown", "The log knows no writer of that name.")
    if known.last_epoch is not None and epoch < known.last_epoch:
        sentence = (
            f"It was never committed, and epoch {known.last_epoch} is: it was skipped, and cannot be written any more."
        )
        return Explanation(writer, epoch, "skipped", sentence, known.run, None, known.last_version)
    last = "no epoch" if known.last_epoch is None else f"epoch {known.last_epoch}"
    sentence = f"The log does not know it yet: {last} is the last committed one, so it was not prepared."
    return Explanation(writer, epoch, "unknown", sentence, known.run)
