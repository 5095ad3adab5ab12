"""Checkpoints and clean-up of Delta's log, off the commit path.

Promises: nothing waits for it but `finish`; whatever happens to it, the table stays readable at every moment, power
cuts included: on a local disk deltalake makes a checkpoint in a scratch directory beside the table, and it is moved in
whole and synced before anything points to it.
Relies on: `deltalake` for the content of a checkpoint. It deletes nothing: what has expired goes by the rule here.
Does not promise: a checkpoint at a certain version. It all saves time, and can be made again.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import suppress
from typing import Any

import msgspec

from txsink import paths
from txsink.delta.log import DeltaLog, is_local
from txsink.errors import InvalidRequestError, TxsinkError, UnavailableError

_log = logging.getLogger(__name__)

EVERY = 100  # commits since the last one, where the table does not say
_INTERVAL = "delta.checkpointInterval"
_FILE_BYTES_MAX = 1 << 30
_RETENTION = "interval 30 days"
_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_SPAN = re.compile(rf"(?:interval )?([0-9]+) ({'|'.join(_MS)})s?")
_WHOLE = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def start(delta: DeltaLog) -> None:
    """Make a checkpoint in a thread of its own, if enough was committed since the last one and none is under way."""
    if delta.commits < every(delta) or (delta.upkeep is not None and delta.upkeep.is_alive()):
        return
    delta.commits = 0
    delta.upkeep = threading.Thread(target=_quietly, args=(delta,), name="txsink-checkpoint")
    delta.upkeep.start()


def every(delta: DeltaLog) -> int:
    """After how many commits the table wants a checkpoint."""
    text = str(delta.state.properties.get(_INTERVAL, ""))
    return int(text) if text.isdecimal() and int(text) else EVERY


def finish(delta: DeltaLog) -> None:
    """Wait for the checkpoint that is under way."""
    if delta.upkeep is not None:
        delta.upkeep.join()
        delta.upkeep = None


def checkpoint(delta: DeltaLog) -> int:
    """Make a checkpoint of the newest version, delete commits that have expired; the version."""
    table = delta.table()
    version: int = table.version()
    if is_local(delta.uri):
        _checkpoint_aside(delta, table)
    else:
        table.create_checkpoint()
    _expire(delta, table.metadata().configuration)
    return version


def _expire(delta: DeltaLog, properties: dict[str, str]) -> None:
    """Delete commits and checkpoints that a newer checkpoint makes needless, once the table's retention is over."""
    keeps_ms = _retention_ms(str(properties.get("delta.logRetentionDuration", _RETENTION)))
    if str(properties.get("delta.enableExpiredLogCleanup")).lower() == "false" or keeps_ms is None:
        return
    directory = f"{delta.root}/{paths.DELTA_DIRECTORY}"
    names = delta.store.list(directory)
    newest = _newest(delta)
    # Others have many parts, and one that died may have left only some.
    whole = [int(name[:20]) for name in names if _WHOLE.fullmatch(name) and int(name[:20]) <= newest]
    until = delta.stamps.now_ms() - keeps_ms
    base = next((version for version in sorted(whole, reverse=True) if _time_of(delta, version) <= until), 0)
    for name in sorted(names):  # older before newer: whatever ends it, what is left is whole
        if name[:20].isdecimal() and int(name[:20]) < base and paths.is_delta_log_name(name):
            # DELETES: expired commits and checkpoints; proof: a whole checkpoint above them that is older than
            # delta.logRetentionDuration, as its own commit says (I8).
            delta.store.delete(f"{directory}/{name}")


def _newest(delta: DeltaLog) -> int:
    """The version of the last checkpoint; -1 for none."""
    pointer = delta.store.read(f"{delta.root}/{paths.DELTA_POINTER_PATH}", _FILE_BYTES_MAX)
    return int(msgspec.json.decode(pointer)["version"]) if pointer else -1


def _time_of(delta: DeltaLog, version: int) -> int:
    """When a version was committed, as it says itself; never, when it does not say."""
    found = [action["commitInfo"] for action in delta.actions(version) or () if "commitInfo" in action]
    time = found[0].get("timestamp") if found else None
    return time if isinstance(time, int) else 1 << 63


def _retention_ms(text: str) -> int | None:
    """An interval as Delta spells it; None where it is spelled in another way: then nothing expires."""
    found = _SPAN.fullmatch(text.strip().lower())
    return None if found is None else int(found[1]) * _MS[found[2]]


def _quietly(delta: DeltaLog) -> None:
    try:
        checkpoint(delta)
    except Exception as error:  # noqa: BLE001 -- whatever deltalake raises, a checkpoint only saves time
        # Of other errors not the words: of some stores they hold what was sent.
        said = str(error) if isinstance(error, TxsinkError) else type(error).__name__
        _log.warning("no checkpoint of %s was made: %s", delta.root, said)


def _checkpoint_aside(delta: DeltaLog, table: Any) -> None:
    store, scratch_root = delta.store, paths.default_staging_root(delta.root)
    for left in store.list(scratch_root):
        if left.startswith(paths.SCRATCH_PREFIX):
            _drop(delta, f"{scratch_root}/{left}", scratch_root)
    scratch = f"{scratch_root}/{paths.SCRATCH_PREFIX}{delta.stamps.new_id()}"
    names = _needed(delta, table)
    for name in names:
        data = store.read(f"{delta.root}/{paths.DELTA_DIRECTORY}/{name}", _FILE_BYTES_MAX)
        if data is not None and len(data) > _FILE_BYTES_MAX:
            raise InvalidRequestError(
                f"make a checkpoint of {delta.root}",
                f"{name} is larger than {_FILE_BYTES_MAX >> 20} MiB",
                "Make checkpoints of this table by deltalake's create_checkpoint or by Spark",
            )
        if data is not None:
            store.put_hint(f"{scratch}/{paths.DELTA_DIRECTORY}/{name}", data, delta.stamps.new_id())
    try:
        type(table)(scratch, table.version()).create_checkpoint()
        _move_in(delta, scratch, names, table.version())
    finally:
        for left in store.list(scratch):
            _drop(delta, f"{scratch}/{left}", scratch_root)


def _needed(delta: DeltaLog, table: Any) -> list[str]:
    """The files of the log that tell all there is up to this version."""
    pointer = delta.store.read(f"{delta.root}/{paths.DELTA_POINTER_PATH}", _FILE_BYTES_MAX)
    since = int(msgspec.json.decode(pointer)["version"]) if pointer else 0
    names = delta.store.list(f"{delta.root}/{paths.DELTA_DIRECTORY}")
    kept = [name for name in names if name[:20].isdecimal() and since <= int(name[:20]) <= table.version()]
    if since < table.version():
        # Who made one of this version died before the pointer: deltalake would leave that out as well.
        kept = [name for name in kept if not name.startswith(f"{table.version():020d}.checkpoint.")]
    kept += [name for name in names if name.startswith("_sidecars/")]  # parts of some engines' checkpoints
    return [*kept, *([paths.DELTA_POINTER_PATH.rpartition("/")[2]] if pointer else [])]


def _move_in(delta: DeltaLog, scratch: str, names: list[str], version: int) -> None:
    """Put what is new in the scratch directory into the table: the checkpoint, then what points to it."""
    store, log = delta.store, f"{delta.root}/{paths.DELTA_DIRECTORY}"
    found = store.list(f"{scratch}/{paths.DELTA_DIRECTORY}")
    if not {*names} <= {*found}:
        # What is there now was there all along. Of a log whose beginning is gone deltalake makes a checkpoint as well,
        # where a later commit says protocol and metadata: it lacks the files that came before.
        what = f"make a checkpoint of {delta.root}"
        raise UnavailableError(what, "another process cleared the copy of the log that it was made from", "Retry")
    checkpoints = [name for name in found if name.startswith(f"{version:020d}.checkpoint.")]
    for name in (name for name in checkpoints if name not in names):
        with suppress(TxsinkError):  # another process made the same one meanwhile
            store.adopt(f"{scratch}/{paths.DELTA_DIRECTORY}/{name}", f"{log}/{name}")
    # ORDER: checkpoint durable before the pointer to it, else a power cut leaves Delta's readers a torn one (I3).
    store.settle([f"{log}/{name}" for name in checkpoints])
    pointer = store.read(f"{scratch}/{paths.DELTA_POINTER_PATH}", _FILE_BYTES_MAX)
    # Another process that took ours for the scratch of a dead one may have deleted a part of it under us.
    is_there = bool(checkpoints) and all(store.tail(f"{log}/{name}", 0) is not None for name in checkpoints)
    # One that took long may come after a newer one, and after the clean-up that follows it.
    if is_there and pointer is not None and _newest(delta) <= version:
        store.replace(f"{delta.root}/{paths.DELTA_POINTER_PATH}", pointer, delta.stamps.new_id())


def _drop(delta: DeltaLog, path: str, root: str) -> None:
    # DELETES: scratch; proof: its name, below the hidden sibling of this very table (I8).
    delta.store.delete(path)
    # DELETES: its directories; proof: below the table's hidden sibling, and empty (I8).
    delta.store.prune(path.rpartition("/")[0], root)
