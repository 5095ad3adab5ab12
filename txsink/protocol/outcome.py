"""What became of a transaction: the one place that names an outcome.

Promises: `outcome` is a function of the log as far as it was read, the writer, the epoch and what the transaction knows
of itself; it says `aborted` only of what no entry names and none will, and `unknown` while an entry may yet appear.
Relies on: names of staged files, which no two transactions share; `Log.doubts`.
Does not promise: to be the newest truth. Who needs that reads the log first.

    | the log names its files in     | and                                   | outcome             |
    | ------------------------------ | ------------------------------------- | ------------------- |
    | a commit                       |                                       | `committed`         |
    | a pending prepare entry        | an abort of it may be in its slot     | `unknown`           |
    | a pending prepare entry        | else                                  | `prepared`          |
    | nothing                        | its prepare entry may be in its slot  | `unknown`           |
    | nothing                        | it was given up, or was pending once  | `aborted`           |
    | nothing                        | another has committed the epoch       | `already-committed` |
    | nothing                        | else                                  | `open`              |
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from txsink.errors import InvalidRequestError
from txsink.log.entry import Abort, AnyEntry, Commit, Prepare
from txsink.log.log import Log

OPEN, PREPARED, COMMITTED, ABORTED = "open", "prepared", "committed", "aborted"
ALREADY_COMMITTED, UNKNOWN = "already-committed", "unknown"
ENDS = frozenset({COMMITTED, ABORTED, ALREADY_COMMITTED})  # what no later entry changes


class Own(NamedTuple):
    """What a transaction knows of itself.

    `files`: the paths it asked the log to name, None before that; `run` and `mode`: whose it is, and how it was to be
    written, which tell epochs without files apart; `is_dropped`: it was given up, so that nothing will
    ask again; `was_prepared`: its prepare entry was seen; `is_redundant`: the epoch was found committed by another.
    """

    run: str
    mode: str
    files: frozenset[str] | None = None
    is_dropped: bool = False
    was_prepared: bool = False
    is_redundant: bool = False


class Result(NamedTuple):
    """What became of a transaction: `committed` or `already-committed`, at which version of the log, with what."""

    outcome: str
    epoch: int
    version: int
    files: int
    rows: int
    bytes: int


def outcome(log: Log, writer: str, epoch: int, own: Own) -> str:
    """What became of a transaction of this writer, as far as the log was read."""
    if own.files is not None:
        # In this order: a log that another thread reads on moves from pending to committed.
        prepared = prepared_at(log, writer, epoch, own)
        if prepared is not None:
            return UNKNOWN if any(_drops(one, prepared) for one in log.doubts) else PREPARED
        if _is_committed(log, writer, epoch, own):
            return COMMITTED
        if any(_names(one, writer, epoch, own) for one in log.doubts):
            return UNKNOWN
    if own.is_dropped or own.was_prepared:
        return ABORTED
    return ALREADY_COMMITTED if own.is_redundant else OPEN


def prepared_at(log: Log, writer: str, epoch: int, own: Own) -> int | None:
    """The version of the pending prepare entry that is this transaction's."""
    for one in log.state.pending_of(writer):
        if one.epoch == epoch and _names(log.prepare_entry(one.prepared), writer, epoch, own):
            return one.prepared
    return None


def version_of(log: Log, writer: str, epoch: int) -> int:
    """The version that committed the epoch; -1 when no entry of this log did."""
    known = log.state.writers.get(writer)
    if known is None or known.last_epoch is None or known.last_version is None or known.last_epoch < epoch:
        return -1
    if known.last_epoch == epoch:
        return known.last_version
    commit = log.commit_of(writer, epoch)
    return -1 if commit is None else commit.version


def is_same(prepared: Prepare, files: frozenset[str], run: str, mode: str) -> bool:
    """Whether an entry prepares this very content. Two without files are one when a run writes both in one mode."""
    if not files and (prepared.run, prepared.mode) != (run, mode):
        return False
    return frozenset(file.path for file in prepared.files) == files


def _is_committed(log: Log, writer: str, epoch: int, own: Own) -> bool:
    version = version_of(log, writer, epoch)
    if version < 0:
        return False
    with suppress(InvalidRequestError):  # it has expired: a transaction as old as that was asked before
        commit = log.entry(version)
        return isinstance(commit, Commit) and _names(log.prepare_entry(commit.prepared), writer, epoch, own)
    return False


def _names(entry: AnyEntry, writer: str, epoch: int, own: Own) -> bool:
    if own.files is None or not isinstance(entry, Prepare) or (entry.writer, entry.epoch) != (writer, epoch):
        return False
    return is_same(entry, own.files, own.run, own.mode)


def _drops(entry: AnyEntry, prepared: int) -> bool:
    return isinstance(entry, Abort) and entry.prepared == prepared
