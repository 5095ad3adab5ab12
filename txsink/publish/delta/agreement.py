"""Whether our log and Delta's are of one age, and which files Delta's log names.

Promises: one of the two logs that was restored from an older copy, or has lost its newest part, is told from all that
other programs may do to a Delta table: they remove files by name, and take no record of a transaction of ours back.
What Delta's log names, or did before it was removed, is said of every file, as far as Delta's log still tells.
Relies on: the record ("txsink:" + writer), which every publish and abort of ours raises, and the versions of Delta's
log that commit entries tell of, as the state of our log keeps them.
Does not promise: to see that both logs went back to the same moment: that is an older table. Nor to find, in
checkpoints that are no single Parquet file, writers that our log does not know; they are found when they are opened.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txsink import paths
from txsink.delta import state as states
from txsink.delta.actions import info_of, txn_of
from txsink.delta.log import DeltaLog, deltalake_for, fields_of
from txsink.delta.state import Action, DeltaState, decoded_path
from txsink.errors import ConflictError, CorruptError, TxsinkError
from txsink.log.log import Log
from txsink.log.slots import LOOK_AHEAD
from txsink.log.state import State

_FORMER = "Put the former Delta log back, and open the writer again; or see what `txsink repair` would do"
_NEWEST = "Restore the newest `_txsink` from a copy; or read the table, and write what it holds to another path"
_CHECKPOINT_BYTES_MAX = 1 << 30


class Disagreement(NamedTuple):
    """What shows that the logs are not of one age; `writer`: whose lost transactions a `repair` may give up."""

    where: str
    what: str
    writer: str | None = None


def problem(own: State, found: DeltaState, what: str, base: int | None, writer: str) -> TxsinkError | None:
    """Why the Delta log is not the one that our log counts on; None when it is, or there is none yet."""
    told = [version for version in (base, own.delta) if version is not None]
    if found.version < 0:
        was_there = told or fields_of(own.columns, what)
        return CorruptError(what, "the Delta log is gone", _FORMER) if was_there else None
    if told and found.version < max(told):
        past = f"the Delta table is at version {found.version}, and was at {max(told)} before"
        return CorruptError(what, past, _FORMER)
    ours, theirs = (own.table_id, own.partition_columns), (found.table_id, found.partition_columns)
    if ours != theirs:
        other = f"the Delta table is another: {theirs} are its id and partition columns, the log says {ours}"
        return ConflictError(what, other, _FORMER)
    known = own.writers.get(writer)
    needed = None if known is None else known.in_delta
    if known is not None and needed is not None and _record(found, writer) < states.published(needed):
        past = f"the Delta log does not know that epoch {known.last_epoch} of {writer!r} is committed"
        why = "it is an older one, or a repair gave the epoch up"
        return CorruptError(what, f"{past}: {why}", _FORMER, writer=writer, epoch=known.last_epoch)
    return None


def ahead(log: Log, found: DeltaState, writer: str, what: str) -> CorruptError | None:
    """The error when Delta's log tells of a transaction of the writer that our log does not know."""
    prepared = _record(found, writer) // 2
    if _is_known(log, writer, prepared):
        return None
    # ORDER: Delta's record read before our log is read on, else a transaction that another process has prepared and
    # published in between counts as lost, and the writer is refused for nothing (I14).
    log.refresh()
    if _is_known(log, writer, prepared):
        return None
    if _is_rewound(log, found, writer):
        past = f"the Delta log says that epochs of {writer!r} were taken back, and this table's own log does not"
        return CorruptError(what, f"{past}: it is an older copy", _NEWEST, writer=writer)
    return CorruptError(
        what,
        f"the Delta log tells of a transaction of {writer!r} that was prepared at version {prepared}, and this table's"
        f" own log, which ends at {log.state.version}, does not: it is an older copy, or was made anew",
        "Restore the newest `_txsink` from a copy; or, if there is none, see what `txsink repair` would do",
        writer=writer,
    )


def require_whole(delta: DeltaLog, what: str) -> None:
    """Refuse a Delta log with commits beyond its end: one that was lost had come before them."""
    while beyond := _beyond(delta):
        # ORDER: names beyond seen before the log is loaded anew, else commits that land in between, or were cleaned up,
        # pass for a lost one (I13).
        lost = delta.state.version + 1
        if delta.load().version < lost:
            found = f"version {lost} of its log is missing, yet version {beyond} is there"
            raise CorruptError(what, found, f"Restore {paths.delta_commit_path(lost)} from a copy", delta_version=lost)


def _beyond(delta: DeltaLog) -> int | None:
    """The first commit that is there after the newest one known."""
    first = delta.state.version + 1
    names = [f"{delta.root}/{paths.delta_commit_path(at)}" for at in range(first, first + LOOK_AHEAD)]
    found = (paths.parse_version(name.rpartition("/")[2]) for name in delta.store.present(names))
    return min((at for at in found if at is not None), default=None)


def disagreements(log: Log, delta: DeltaLog) -> list[Disagreement]:
    """All that shows that the logs are not of one age."""
    where, what = paths.DELTA_DIRECTORY, f"verify {log.root}"
    names = delta.store.list(f"{log.root}/{where}")
    own, found = log.state, delta.refresh()
    shown = [one for writer in (*own.writers, "") if (one := problem(own, found, what, None, writer))]
    told = [Disagreement(where, f"{one.found}. {one.advice}") for one in shown]
    beyond = sorted(at for name in names if (at := paths.parse_version(name)) is not None and at > found.version)
    if beyond:
        missing = f"version {found.version + 1} is missing, yet version {beyond[0]} is there: restore it from a copy"
        told.append(Disagreement(where, missing))
    if found.files is not None and found.gone is not None:
        known = named(delta)
        told += [
            Disagreement(
                path, f"epoch {fact.epoch} of {fact.writer!r} is committed with it; Delta's log never names it"
            )
            for path, fact in log.live().items()
            if path not in known
        ]
    for writer in sorted({*own.writers, *_recorded(delta, names)}):
        if (error := ahead(log, found, writer, what)) is not None:
            lost = None if _is_rewound(log, found, writer) else writer
            told.append(Disagreement(paths.LOG_DIRECTORY, f"{error.found}. {error.advice}", lost))
    return list(dict.fromkeys(told))


def give_up(log: Log, delta: DeltaLog, writer: str) -> None:
    """Take Delta's record of the writer's transactions back to what our log knows; its epochs and files stay."""
    what = f"give up what only a lost part of the log of {log.root} tells of {writer!r}"

    def make(found: DeltaState) -> list[Action] | None:
        if (lost := ahead(log, found, writer, what)) is None:
            return None
        if _is_rewound(log, found, writer):
            raise lost
        states.require_writable(found, what, is_empty=True)
        known = log.state.writers.get(writer)
        at = 0 if known is None or known.in_delta is None else known.in_delta
        return [txn_of(states.app_id(writer), states.published(at))]

    delta.commit(make, info_of("REPAIR", {"writer": writer}), what)


def named(delta: DeltaLog) -> set[str]:
    """The files that Delta's log names, and those that it says were removed, relative to the table."""
    found = delta.refresh()
    if found.version < 0:
        return set()
    live, gone = found.files, found.gone
    table = None if live is not None and gone is not None else delta.table(found.version)
    paths = set(live or ())
    if live is None:
        paths |= {*pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()}  # type: ignore[union-attr]
    if gone is None:
        with suppress(deltalake_for(f"list the files of {delta.uri}").exceptions.DeltaError):
            # DELETES: nothing, it lists; proof: `dry_run` (I8).
            paths |= {*table.vacuum(0, dry_run=True, enforce_retention_duration=False)}  # type: ignore[union-attr]
    return {decoded_path(path) for path in (*paths, *(gone or ()))}


# -- pieces -------------------------------------------------------------------------------------------


def _record(found: DeltaState, writer: str) -> int:
    """What Delta's log says of the writer's newest transaction; 0: nothing."""
    return found.txn(states.app_id(writer)) or 0


def _is_rewound(log: Log, found: DeltaState, writer: str) -> bool:
    """Whether an epoch that our log calls committed lies above the newest one of Delta's log."""
    known = log.state.writers.get(writer)
    if known is None or known.in_delta is None or known.last_epoch is None:
        return False
    newest = found.txn(writer)
    return newest is None or newest < known.last_epoch


def _is_known(log: Log, writer: str, prepared: int) -> bool:
    """Whether our log tells of the writer's transaction that was prepared at a version; 0 stands for none."""
    known = log.state.writers.get(writer)
    if not prepared or (known is not None and known.in_delta == prepared):
        return True
    if known is None or prepared > log.state.version:
        return False
    waiting = (*log.state.pending, *log.state.aborting)
    if any((one.writer, one.prepared) == (writer, prepared) for one in waiting):
        return True
    is_its = (pc.field("writer") == writer) & (pc.field("prepared") == prepared)
    return bool(log.facts().filter(is_its & pc.field("kind").isin(["commit", "abort"])).num_rows)


def _recorded(delta: DeltaLog, names: list[str]) -> set[str]:
    """The writers that Delta's log has a record of ours for: in commits that were read, and in the last checkpoint."""
    found = {*delta.state.txns}
    checkpoints = [name for name in names if ".checkpoint." in name and name.endswith(".parquet")]
    newest = max(checkpoints, default="")[:20]
    for name in checkpoints:
        path = f"{delta.root}/{paths.DELTA_DIRECTORY}/{name}"
        data = delta.store.read(path, _CHECKPOINT_BYTES_MAX) if name.startswith(newest) else None
        with suppress(pa.ArrowException, OSError, ValueError):  # another program's, half-made, or too large
            rows = pq.read_table(pa.BufferReader(data), columns=["txn"]) if data else None
            found |= {one["appId"] for one in (rows["txn"].to_pylist() if rows is not None else ()) if one}
    start = states.app_id("")
    return {app.removeprefix(start) for app in found if app.startswith(start)}
