"""Lead a table out of the states that `verify` names: first as a plan, then done.

Promises: nothing is destroyed: what nobody can follow, or believe, is copied to `_txsink/strays` before its name is
given up, and a data file that no entry names is moved there; hint, summaries and segments are made again from what is
there. Done again after a crash, it goes on where it stopped (I12). What only a copy can bring back is told (`RESTORE`).
Relies on: no writer at work meanwhile that has not opened the table since: stop them first. Bytes are compared once
more just before a name goes, as no store deletes on a condition.
Does not promise: rows whose files are gone, nor which writer wrote a file that nothing lists any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from txsink import paths
from txsink.delta.log import DeltaLog
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.log import entry as entries, gaps, segment
from txsink.log.entry import Commit, Maintenance
from txsink.log.log import SEGMENT_BYTES_MAX, Log, Slot
from txsink.log.segment import Fact
from txsink.log.state import Pending, State, decode, encode, fold
from txsink.protocol.fencing import Run, claim
from txsink.protocol.recovery import finish_aborts
from txsink.protocol.resolving import abort
from txsink.publish.decision import Action, LogFact, decide
from txsink.publish.delta import again as delta_again
from txsink.publish.protocol import Publisher
from txsink.reading.audit import data_files, unnamed, waiting_files
from txsink.staging.parquet import footer_of

SET_ASIDE, MAKE_AGAIN, MOVE_ASIDE, REBUILD, ABORT, RESTORE = (
    "set aside", "make again", "move aside", "rebuild from footers", "abort", "restore by hand",
)  # fmt: skip
GIVE_UP, TAKE_UP, COMMIT_AGAIN = "give up", "take up again", "commit again"


class Step(NamedTuple):
    """Something to do: with which file (relative to the table), and why."""

    action: str
    path: str
    what: str


# -- the entries --------------------------------------------------------------------------------------


def head_of(log: Log) -> State:
    """The state that the log leads to, from the newest hint or summary that fits it; whatever lies beyond."""
    state = gaps.newest_fitting(log.slots) or State()
    try:
        while (found := log.slots.read(state.version + 1)) is not None:
            state = fold(state, *found)
    except (CorruptError, InvalidRequestError):
        pass  # the next one cannot be followed
    return state


def entry_steps(log: Log, head: State) -> list[Step]:
    """What stands in the way of opening the log, or would when it gets there."""
    beyond = [at for at in _versions(log, paths.LOG_DIRECTORY) if at > head.version]
    if head.version < 0:
        what = "the first entry cannot be read, and no hint or summary tells what it said"
        return [Step(RESTORE, paths.entry_path(0), what)] if beyond else []
    steps = [Step(SET_ASIDE, paths.entry_path(at), _described(log, head, at)) for at in beyond]
    for path, version in gaps.tellers(log.slots, head.birth).items():
        if version > head.version:
            found = f"it tells of entry {version}, and the log ends at {head.version}"
            lost = "restore the entries between from a copy, or their epochs are given up"
            steps.append(Step(SET_ASIDE, path, f"{found}: {lost}"))
    return steps


def set_aside(log: Log, head: State, steps: list[Step]) -> None:
    """Give up the names of what stands beyond `head`, under a maintenance entry right after it."""
    first = [step for step in steps if step.path == paths.entry_path(head.version + 1)]
    for step in first:  # it stands where the maintenance entry is to stand
        _give_up(log, step.path)
    slot: Slot = {
        "format": entries.FORMAT,
        "version": head.version + 1,
        "time_ms": log.stamps.now_ms(),
        "write_id": log.stamps.new_id(),
        "previous": head.digest,
        "table_id": head.table_id,
        "birth": head.birth,
    }
    entry = Maintenance(**slot, action="repair", cleaned=(), boundary=_expired(log, head))
    # ORDER: maintenance entry before the names beyond it go, else two repairs take turns, and the slower one gives up
    # the name of an entry that a writer has put there since (I7).
    if not log.slots.put(entry.version, entries.encode(entry), entry.write_id):
        raise ConflictError(
            f"repair {log.root}", "somebody else has appended to its log meanwhile", "Look again: `txsink repair`"
        )
    for step in steps:
        if step.path == paths.HEAD_PATH:
            _keep(log, step.path)
            log.store.replace(f"{log.root}/{step.path}", encode(head), log.stamps.new_id())
        elif step not in first:
            _give_up(log, step.path)


def _expired(log: Log, head: State) -> int | None:
    """The boundary of an expiry whose own entry is lost: its hint, which is durable before it deletes, tells."""
    data = log.store.read(f"{log.root}/{paths.HEAD_PATH}", entries.ENTRY_BYTES_MAX)
    hint = decode(data) if data else None
    if hint is None or hint.birth != head.birth:
        return None
    needed = (one.prepared for one in (*head.pending, *head.aborting))
    boundary = min([hint.boundary, head.version, *needed])
    return boundary if boundary > head.boundary else None


def _described(log: Log, head: State, version: int) -> str:
    data = log.store.read(log.slots.path(version), entries.ENTRY_BYTES_MAX)
    try:
        found = entries.decode(data or b"", version)
    except (CorruptError, InvalidRequestError) as error:
        return f"it cannot be read: {error.found}; what follows it is given up with it, unless a copy has it"
    if found.birth != head.birth:
        return f"it is of another log (birth {found.birth})"
    lost = f"; epoch {found.epoch} of {found.writer!r} is given up" if isinstance(found, Commit) else ""
    if version == head.version + 1:
        return f"it does not follow entry {head.version}{lost}"
    return f"entry {head.version + 1} is missing or unreadable: put it back from a copy if it was lost{lost}"


# -- what is derived ----------------------------------------------------------------------------------


def derived_steps(log: Log) -> Iterator[Step]:
    """Hint, summaries and segments of a log that is open which are damaged or another log's."""
    data = log.store.read(f"{log.root}/{paths.HEAD_PATH}", entries.ENTRY_BYTES_MAX)
    hint = decode(data) if data else None
    if data is not None and (hint is None or hint.birth != log.state.birth):
        yield Step(MAKE_AGAIN, paths.HEAD_PATH, "it is damaged, or of another log")
    for version in gaps.summaries(log.slots):
        summary = gaps.summary(log.slots, version)
        if summary is None or summary.digest != log.slots.digest(version):
            yield Step(SET_ASIDE, paths.summary_path(version), "it is damaged, or stands on another entry")
    there, read = _segments(log), segment.ranges(log.state.version + 1)
    for first, last in sorted({*there, *read}):
        path = paths.segment_path(first, last)
        if _held(log, path) is not None:
            continue
        if _source(log, first, last) is not None:
            if (first, last) in there:
                yield Step(MAKE_AGAIN, path, "it is damaged, and another place holds the same")
        elif (first, last) in read:
            lost = "which writer wrote a file, and when, is lost"
            yield Step(REBUILD, path, f"it is damaged or missing, and nothing else holds what it said: {lost}")
        else:
            yield Step(SET_ASIDE, path, "it is damaged, and not read any more")


def make_again(log: Log, step: Step) -> None:
    """Make the hint or a segment again."""
    if step.path == paths.HEAD_PATH:
        log.keep_hint()
        return
    pair = paths.parse_segment(step.path.rpartition("/")[2])
    if pair is None:
        return
    facts = _source(log, *pair) if step.action == MAKE_AGAIN else found_in_footers(log, *pair)
    if facts is None:
        raise CorruptError(f"make {step.path} again", "what it is made of has changed meanwhile", "Look again")
    _keep(log, step.path)
    log.store.replace(f"{log.root}/{step.path}", segment.encode(segment.table(facts)), log.stamps.new_id())


def found_in_footers(log: Log, first: int, last: int) -> list[Fact]:
    """The files of the table that nothing else lists, as their own footers tell of them, as if committed at `last`."""
    listed: set[str] = set()
    for pair in segment.ranges(log.state.version + 1):
        if not (pair[0] >= first and pair[1] <= last):
            listed |= {fact.path or "" for fact in _held(log, paths.segment_path(*pair)) or _source(log, *pair) or []}
    covered = (log.state.version + 1) // segment.BLOCK * segment.BLOCK
    listed |= {fact.path or "" for fact in log.facts_of(covered, log.state.version)} | waiting_files(log)
    return [fact for path in data_files(log) if path not in listed and (fact := _from_footer(log, path, last))]


def _from_footer(log: Log, path: str, version: int) -> Fact | None:
    found = footer_of(log.store, f"{log.root}/{path}")
    if found is None or not found.identity.digest:
        return None
    rows = pq.read_metadata(pa.BufferReader(found.region)).num_rows
    partition = msgspec.json.encode(paths.parse_partitions(path)).decode()
    return Fact(
        version, "add", "", "", paths.data_epoch(path), None, log.stamps.now_ms(),
        path, found.identity.bytes, found.identity.digest, rows, partition,
    )  # fmt: skip


# -- transactions and files ---------------------------------------------------------------------------


def stuck(log: Log, publisher: Publisher) -> Iterator[tuple[Pending, Step]]:
    """Transactions that can neither be published nor be found published: their staged files are gone or altered."""
    for pending in log.state.pending:
        prepare = log.prepare_entry(pending.prepared)
        ends = [publisher.ends(prepare, file) for file in prepare.files]
        if Action.CORRUPT in {decide(LogFact.PENDING, *end) for end in ends}:
            whose = f"epoch {pending.epoch} of {pending.writer!r} is pending, and its staged files are lost or altered"
            action = RESTORE if pending.is_publishing else ABORT
            yield pending, Step(action, paths.entry_path(pending.prepared), whose)


def move_aside(log: Log, path: str) -> None:
    """Take a data file out of the readers' sight, and keep it."""
    target = f"{log.root}/{paths.STRAY_DIRECTORY}/{path}.removed"
    if log.store.move([(f"{log.root}/{path}", target)]):
        raise ConflictError(f"move {path} aside", "it is gone, or was moved before", "Look again: `txsink repair`")


def older_steps(log: Log, publisher: Publisher, delta: DeltaLog | None) -> Iterator[Step]:
    """What there is to do about one log of a Delta table that is older than the other."""
    found = publisher.disagreements()
    if not found or delta is None:
        return
    records, why = delta_again.given_up(log, delta)
    for writer in sorted(records):
        yield Step(TAKE_UP, writer, "a repair gave up what this log tells of it, and nothing was committed since")
    if why:
        yield Step(RESTORE, paths.LOG_DIRECTORY, f"{why}: {delta_again.WENT_ON}")
    if records or why:
        return
    again, why = delta_again.lost(log, delta)
    for one in again:
        others = f"what others committed after version {again[-1].version}, if they did, is not"
        yield Step(COMMIT_AGAIN, paths.delta_commit_path(one.version), f"{one.what}: it is made again; {others}")
    if why:
        what = f"what is lost cannot be made again: {why}. {delta_again.ELSEWHERE}"
        yield Step(RESTORE, paths.DELTA_DIRECTORY, what)
    for told in found:
        if told.writer is not None and not why:
            lost = "its epochs and rows stay; the metadata of those epochs is in Delta's history alone"
            yield Step(GIVE_UP, told.writer, f"{told.what}. Given up is what our log told of them: {lost}")
        elif not again:
            yield Step(RESTORE, told.where, told.what)


def table_steps(log: Log, publisher: Publisher, delta: DeltaLog | None) -> list[Step]:
    """What there is to do with a log that is open; `delta`: its Delta log, if it has the Delta layout."""
    steps = [*derived_steps(log), *older_steps(log, publisher, delta), *(step for _, step in stuck(log, publisher))]
    if any(step.action == REBUILD for step in steps):
        return steps  # what no entry names is known once the list is there again
    what = "no entry names it: the epoch that it was published for is lost or was given up, and could be written again"
    return steps + [Step(MOVE_ASIDE, path, what) for path in unnamed(log)]


def carry_out(log: Log, publisher: Publisher, delta: DeltaLog | None, steps: list[Step]) -> None:
    """Do what `table_steps` says, in its order."""
    waiting = {step.path: pending for pending, step in stuck(log, publisher)}
    if delta is not None and any(step.action == COMMIT_AGAIN for step in steps):
        delta_again.commit_again(log, delta)
    if delta is not None and any(step.action == TAKE_UP for step in steps):
        delta_again.take_up(log, delta)
    for step in steps:
        if step.action == GIVE_UP:
            publisher.give_up(step.path)
        elif step.action in {MAKE_AGAIN, REBUILD}:
            make_again(log, step)
        elif step.action == SET_ASIDE:
            _give_up(log, step.path)
        elif step.action == MOVE_ASIDE:
            move_aside(log, step.path)
        elif step.action == ABORT:
            pending = waiting[step.path]
            run = Run(pending.writer, log.stamps.new_id(), log.state.version)
            claim(log, run)
            abort(log, run, publisher, pending)
            finish_aborts(log, run, publisher)


# -- pieces -------------------------------------------------------------------------------------------


def _keep(log: Log, path: str) -> bytes | None:
    """A durable copy of what lies there, under a name of its own."""
    data = log.store.read(f"{log.root}/{path}", SEGMENT_BYTES_MAX)
    if data is not None:
        copy = f"{log.root}/{paths.STRAY_DIRECTORY}/{path.removeprefix('_txsink/')}-{log.stamps.new_id()}"
        log.store.replace(copy, data, log.stamps.new_id())
    return data


def _give_up(log: Log, path: str) -> None:
    """Copy what lies there, then take its name away."""
    kept = _keep(log, path)
    at = f"{log.root}/{path}"
    if kept is not None and log.store.read(at, SEGMENT_BYTES_MAX) == kept:
        # DELETES: an entry beyond the head, or what tells of lost ones; proof: the maintenance entry, and a copy (I8).
        log.store.delete(at)
        log.store.settle([at])


def _versions(log: Log, directory: str) -> list[int]:
    found = (paths.parse_version(name) for name in log.store.list(f"{log.root}/{directory}"))
    return sorted(at for at in found if at is not None)


def _segments(log: Log) -> list[tuple[int, int]]:
    found = (paths.parse_segment(name) for name in log.store.list(f"{log.root}/{paths.SEGMENT_DIRECTORY}"))
    return sorted(pair for pair in found if pair is not None)


def _held(log: Log, path: str) -> list[Fact] | None:
    """What a segment holds; None when it is missing or damaged."""
    data = log.store.read(f"{log.root}/{path}", SEGMENT_BYTES_MAX)
    try:
        found = None if data is None else segment.rows_of(segment.decode(data, path))
        for fact in found or ():
            if fact.kind in {"add", "remove"}:
                fact.file()  # or it is no file of a table
    except CorruptError:
        return None
    return found


def _source(log: Log, first: int, last: int) -> list[Fact] | None:
    """What a segment is to hold, from what it is made of or from one that was made of it; None when all are gone."""
    for pair in _segments(log):
        if pair != (first, last) and pair[0] <= first and pair[1] >= last:
            held = _held(log, paths.segment_path(*pair))
            if held is not None:
                return [fact for fact in held if first <= fact.version <= last]
    return _parts(log, first, last)


def _parts(log: Log, first: int, last: int) -> list[Fact] | None:
    """What a segment is made of, from its parts or entries; None when these are gone as well."""
    children = segment.children(first, last)
    found: list[Fact] = []
    for child in children:
        held = _held(log, paths.segment_path(*child))
        held = _parts(log, *child) if held is None else held
        if held is None:
            return None
        found += held
    if children:
        return found
    try:
        return log.facts_of(first, last)
    except (CorruptError, InvalidRequestError):
        return None
