"""From one layout to the other, in place: the data files stay where they are, and what makes them visible changes.

Promises: a conversion that crashes anywhere leaves a table that reads as before or as after it, and is finished by
doing it again; nothing that is committed is lost or doubled, for readers of either layout; a writer that was open
meanwhile is refused at its next prepare, and what it had staged goes. On the way to `parquet` the table is `closed` for
a moment: it reads as a Delta table, and no writer opens it.
Relies on: nothing being pending; no other program writing to the Delta table meanwhile.
Does not promise: Delta's older versions once a table has the parquet layout, nor to take over files that other programs
wrote into a Delta table: they have other names, so the table is refused.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc

from txsink import paths
from txsink.delta import actions as delta_actions
from txsink.delta.actions import Made, add_of, begun, info_of, new_fields, remove_of, txn_of, zoned_columns
from txsink.delta.files import told
from txsink.delta.log import DeltaLog
from txsink.delta.state import Action, DeltaState, decoded_path, encoded_path
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.log import segment
from txsink.log.entry import Convert
from txsink.log.log import Log, Slot
from txsink.log.segment import Fact
from txsink.log.state import State
from txsink.protocol import admission
from txsink.publish.choose import publisher_of
from txsink.publish.protocol import DELTA, PARQUET
from txsink.reading.audit import waiting_files
from txsink.staging.place import own_staging
from txsink.writing.ground import is_data

TRIES = 5
CLOSED = "closed"
_COPY = "Copy it: read it, and write what was read to another path"


class Converted(NamedTuple):
    """What a conversion did."""

    layout: str
    files: int
    version: int


def to_delta(log: Log, delta: DeltaLog) -> Converted:
    """Give the table a Delta log that names exactly its files, then say in its own log that this one counts."""
    what = f"convert {log.root} to the layout delta"
    for _ in range(TRIES):
        _require_settled(log, what)
        at = log.state
        if at.layout == DELTA:
            break
        admission.require_types_of_delta(at.types, what)
        if not at.columns:
            raise InvalidRequestError(what, "it has no columns yet", "Write its first rows, then convert it")
        delta_actions.require_partition_types(at.partition_columns, at.columns, what)
        delta.load()
        if delta.exists and delta.state.table_id != at.table_id:
            raise ConflictError(what, "another Delta table lies there", "Remove its _delta_log first")
        _require_known(log, delta, what)
        delta.commit(partial(_caught_up, log, delta, dict(log.live()), what), info_of("CONVERT", {}), what)
        # ORDER: Delta's commit before the entry that makes it count, else a crash leaves a table without files (I1).
        if _append(log, at, DELTA, delta.state.version):
            break
    else:
        raise ConflictError(what, f"it was written to during each of {TRIES} attempts", "Stop its writers, then retry")
    # ORDER: converted before staged files go, else a run that stages them could still prepare them (I6).
    _drop_staged(log)
    log.keep_hint()  # where opening trusts the hint, it must not tell of the former layout
    return Converted(DELTA, len(log.live()), log.state.version)


def to_parquet(log: Log, delta: DeltaLog) -> Converted:
    """Close the table to writers, take former files, as the logs prove, out of the directory, then Delta's log."""
    what = f"convert {log.root} to the layout parquet"
    for _ in range(TRIES):
        _require_settled(log, what)
        at = log.state
        if at.layout == PARQUET:
            break
        delta.load()
        other = {decoded_path(path) for path in delta.files()} ^ set(log.live())
        if other and log.refresh().version == at.version:
            raise ConflictError(
                what,
                f"{len(other)} of its files were written or removed by other programs, {min(other)} for one",
                _COPY,
            )
        if other:
            continue
        _require_columns(at, delta.state, what)
        try:
            leaving(log, delta)  # refused because of files of others before the table is closed, not after
        except ConflictError:
            if log.refresh().version == at.version:
                raise
            continue
        # ORDER: closed to writers before a file goes, else one that was committed meanwhile goes as well (I1).
        if at.layout == CLOSED or _append(log, at, CLOSED, delta.state.version):
            _put_away(log, leaving(log, delta))
            if _append(log, log.state, PARQUET, None):
                break
    else:
        raise ConflictError(what, f"it was written to during each of {TRIES} attempts", "Stop its writers, then retry")
    # ORDER: converted before Delta's log goes, else a crash leaves a Delta table that has none (I1).
    for name in delta_log_names(log, delta):
        # DELETES: Delta's log; proof: its table id is ours, and the convert entry says that it counts no more (I8).
        log.store.delete(f"{log.root}/{paths.DELTA_DIRECTORY}/{name}")
    for directory in ("_sidecars", "_commits", "_staged_commits", ""):
        # DELETES: directories of Delta's log; proof: below the table, and empty (I8).
        log.store.prune(f"{log.root}/{paths.DELTA_DIRECTORY}/{directory}".rstrip("/"), log.root)
    log.keep_hint()  # where opening trusts the hint, it must not tell of the former layout
    return Converted(PARQUET, len(log.live()), log.state.version)


def _require_columns(at: State, found: DeltaState, what: str) -> None:
    """Refuse a table whose columns our log would tell wrongly: another program dropped some, or changed their types."""
    try:
        lost = new_fields(found, at.columns, what)
    except ConflictError as error:
        raise ConflictError(what, error.found, _COPY) from error
    if lost:
        raise ConflictError(what, f"another program dropped its column {lost[0]['name']!r}", _COPY)


class Leaving(NamedTuple):
    """What the conversion to parquet takes out of the sight of readers of the directory: relative paths."""

    moved: dict[str, str]  # replaced files, which older versions of our log name, and where they wait for expiry
    deleted: list[str]
    marks: list[str]


def leaving(log: Log, delta: DeltaLog) -> Leaving:
    """What our log or Delta's proves to be a former file of the table; ConflictError when there is anything else."""
    names = paths.in_no_other_table(log.store.list(log.root))  # before the marks that tell whose some of them are
    live, moves = log.live(), log.store.traits.moves
    replaced = {
        fact.path or "": fact.prepared or 0
        for fact in segment.rows_of(log.facts().filter(pc.field("kind") == "remove"))
        if fact.path not in live
    }
    left = publisher_of(log, delta).left(None, ())
    staged = [name.path for name in left]
    former = {*replaced, *staged, *_removed(delta)} - {*live}
    there = [path for path in names if path in former and not path.startswith("_txsink/")]
    strangers = [path for path in names if is_data(path) and path not in live and path not in former]
    what = f"convert {log.root} to the layout parquet"
    if others := {*strangers} & ({decoded_path(path) for path in delta.files()} if strangers else set()):
        raise ConflictError(
            what, f"{len(others)} of its files were written by other programs, {min(others)} for one", _COPY
        )
    if strangers:
        raise ConflictError(
            what,
            f"{len(strangers)} files are there that neither log names, {strangers[0]} for one: readers of the directory"
            " would take them for rows",
            "Move them out of the directory, or let VACUUM delete what is left of Delta's, then convert it",
            paths=strangers[:10],
        )
    moved = {path: paths.removed_path(replaced[path], path) for path in there if path in replaced and moves}
    # Those of runs that may live stay: what they stage from now on lies in the sight of readers, and a sweep finds it.
    marks = [name.path for name in left if name.is_mark and log.is_retired(name.writer, name.run, -1)]
    return Leaving(moved, [path for path in there if path not in moved], marks)


def _removed(delta: DeltaLog) -> set[str]:
    """The files that were taken out of the table, as far as Delta's log still tells, relative to the table."""
    try:
        commits = [actions for _, actions in delta.between(0, delta.state.version)]
        found = [action["remove"]["path"] for actions in commits for action in actions if "remove" in action]
    except (CorruptError, InvalidRequestError):  # the first commits were cleaned up: a checkpoint tells
        # DELETES: nothing, it lists; proof: `dry_run` (I8).
        found = delta.table().vacuum(0, dry_run=True, enforce_retention_duration=False)
    return {decoded_path(path) for path in found}


def delta_log_names(log: Log, delta: DeltaLog) -> list[str]:
    """What there is of the table's Delta log, the newest first: what is left of it tells whose it is to the end."""
    directory = f"{log.root}/{paths.DELTA_DIRECTORY}"
    names = [name for name in log.store.list(directory) if paths.is_delta_log_name(name)]
    if names and (delta.load().version < 0 or delta.state.table_id != log.state.table_id):
        raise ConflictError(
            f"delete {directory}",
            "it is the log of another Delta table, or of none that can be read",
            "Delete it by hand if nobody needs it: the table has the layout parquet, and is whole",
        )
    if names:
        _require_known(log, delta, f"delete {directory}")
    pointer = paths.DELTA_POINTER_PATH.rpartition("/")[2]
    return sorted(names, key=lambda name: (name == pointer, not name[:1].isdecimal(), name), reverse=True)


def _require_known(log: Log, delta: DeltaLog, what: str) -> None:
    """Refuse to take files out of a Delta log which is newer than ours: nothing else would name them."""
    theirs = {decoded_path(path) for path in delta.files()}
    if theirs - _brought(log):
        log.refresh()  # they were committed since it was read, perhaps
    if newer := theirs - _brought(log) - waiting_files(log):
        raise ConflictError(
            what,
            f"the Delta log names {min(newer)}, which the table's own log does not know: that is an older copy",
            "Restore the newest `_txsink` from a copy; or move _delta_log away, if its newer rows are not wanted",
            path=min(newer),
        )


def _brought(log: Log) -> set[str]:
    return {*segment.chosen(log.facts(), "add")["path"].to_pylist()}


def _require_settled(log: Log, what: str) -> None:
    state = log.refresh()
    if state.pending or state.aborting:
        writers = sorted({item.writer for item in (*state.pending, *state.aborting)})
        found = f"transactions of {', '.join(writers)} are not finished"
        raise ConflictError(what, found, "Finish them first: `txsink recover`")


def _append(log: Log, at: State, new: str, delta_version: int | None) -> bool:
    """Append the entry, unless something came after the state the conversion was made for."""

    def make(state: State, slot: Slot) -> Convert | None:
        if state.version != at.version:
            return None
        return Convert(**slot, layout=new, delta=delta_version)

    log.append(make)
    return log.state.layout == new


def _caught_up(log: Log, delta: DeltaLog, live: dict[str, Fact], what: str, found: DeltaState) -> list[Action] | None:
    """What makes the Delta table hold exactly these files; also after a conversion that stopped half-way."""
    there = delta.files_of(found)
    missing = [fact for path, fact in live.items() if encoded_path(path) not in there]
    extra = [body for path, body in there.items() if decoded_path(path) not in live]
    made = Made(log.state.table_id, log.state.partition_columns, log.stamps.now_ms())
    actions = begun(found, made, log.state.columns, what)
    zoned = zoned_columns(log.state.columns, log.state.partition_columns)
    metadata = next((one["metaData"] for one in actions if "metaData" in one), found.metadata)
    for fact in missing:
        stats = told(log.store, log.root, fact.file(), metadata)
        actions.append(add_of(fact.file(), fact.time_ms, zoned, stats))
    actions += [remove_of(body, made.time_ms) for body in extra]
    for writer, known in log.state.writers.items():
        if known.last_epoch is not None and (found.txn(writer) or -1) < known.last_epoch:
            actions.append(txn_of(writer, known.last_epoch))
    return actions or None


def _put_away(log: Log, found: Leaving) -> None:
    if found.moved:
        log.store.move([(f"{log.root}/{path}", f"{log.root}/{removed}") for path, removed in found.moved.items()])
    for path in (*found.moved, *found.deleted):
        # DELETES: former files; proof: our log or Delta's says replaced, or a retired run's mark and tags (I8).
        log.store.delete(f"{log.root}/{path}")
    # ORDER: gone durably before the entry, else a power cut shows readers of the directory files of no epoch (I1).
    log.store.settle([f"{log.root}/{path}" for path in (*found.moved, *found.deleted)])
    for path in found.marks:
        # DELETES: marks; proof: the table is closed, and what they lead to is gone for good (I8).
        log.store.delete(f"{log.root}/{path}")


def _drop_staged(log: Log) -> None:
    """Delete what was staged to be moved: no run can prepare it any more."""
    if not log.store.traits.moves:
        return
    own = own_staging(log.store, log.root, log.state.staging, log.state.birth)
    for path in log.store.list(own):
        if paths.parse_staged(path) is not None:
            # DELETES: staged files; proof: own staging directory, and the convert entry: no run names them (I8).
            log.store.delete(f"{own}/{path}")
            # DELETES: directories; proof: own staging directory, and empty (I8).
            log.store.prune(f"{own}/{path}".rpartition("/")[0], own)
