"""Which files of a Delta table an overwrite or a rewind takes away, whatever was committed since it was prepared.

Promises: what the table held when the transaction was prepared goes, and what earlier epochs of the same writer brought
since; what others appended since stays; a compaction of files that go is followed. A rewind takes away every file of
the epochs it takes back that Delta's readers see. What cannot be told apart is a ConflictError, and the epoch can be
aborted.
Relies on: the commits since then, which `DeltaLog` reads.
Does not promise: to follow commits that were cleaned up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from txsink import schema
from txsink.delta import state as states
from txsink.delta.log import DeltaLog, columns_of, plain_text
from txsink.delta.state import Action, DeltaState
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log.entry import Prepare
from txsink.log.log import Log
from txsink.log.state import APPEND, OVERWRITE_PARTITIONS, REWIND
from txsink.publish.delta.brought_back import shown_above


def doomed(log: Log, delta: DeltaLog, found: DeltaState, prepare: Prepare, what: str) -> set[str]:
    """The paths, as Delta spells them, of the files a transaction takes away."""
    if prepare.mode == APPEND:
        return set()
    own = {states.encoded_path(file.path) for file in prepare.removes}
    states.require_overwritable(found, what)
    if prepare.mode == REWIND:
        if lost := own - set(delta.files()):
            raise ConflictError(
                what,
                f"{min(lost)} is not in the Delta table any more: another program rewrote or removed it",
                "Abort the rewind, and write the former content again",
            )
        shown = shown_above(log, delta, found, prepare.writer, prepare.epoch)
        if shown.others:
            raise ConflictError(
                what,
                f"{min(shown.others)}, which another program wrote, may hold rows of epochs after {prepare.epoch}",
                "Abort the rewind, and write the former content again",
            )
        return own | shown.files
    base = -1 if prepare.base is None else prepare.base
    gone = set(delta.files()) if base == found.version else _since(delta, base, found, own, what)
    if prepare.mode == OVERWRITE_PARTITIONS and gone:
        known = schema.schema_of(columns_of(found.metadata["schemaString"], what))
        touched = {tuple(file.partition.items()) for file in prepare.files}
        by = log.state.partition_columns
        gone = {path for path in gone if _partition(delta.files()[path], known, by) in touched}
    return gone


def _since(delta: DeltaLog, base: int, found: DeltaState, own: set[str], what: str) -> set[str]:
    """What the table held at `base`, and what became of it since."""
    try:
        past = delta.at(base) if base >= 0 else DeltaState(files={})
        since = list(delta.between(base + 1, found.version))
    except InvalidRequestError as error:
        raise ConflictError(
            what,
            f"commits of the Delta log since version {base}, on which it was prepared, were cleaned up",
            "Drop the epoch (`txsink abort`) and write it again, and commit epochs sooner than"
            " delta.logRetentionDuration",
        ) from error
    gone = held = set(delta.files_of(past))
    for version, actions in since:
        # RESTORE by another program brings files back.
        back = {action["add"]["path"] for action in actions if "add" in action} & held - gone
        gone = followed(gone, own, actions, version, what) | back
    return gone


def followed(doomed: set[str], own: set[str], actions: list[Action], version: int, what: str) -> set[str]:
    """The files to be replaced, after a commit that came between prepare and publish.

    `own`: files that earlier epochs of the same writer bring, which are replaced as well.
    """
    bodies = [(kind, body) for action in actions for kind, body in action.items()]
    adds = [body for kind, body in bodies if kind == "add"]
    removes = {body["path"] for kind, body in bodies if kind == "remove"}
    gone = doomed & removes
    added = {body["path"] for body in adds}
    came = added & own
    if not gone or not added - own:
        return (doomed - gone) | came
    if states.is_ours(actions):
        return (doomed - gone) | came  # an overwrite of txsink's: its rows are its own
    is_rearranged = not any(body.get("dataChange", True) for body in adds)
    if is_rearranged and removes <= doomed:
        return (doomed - gone) | added
    raise ConflictError(
        what,
        f"version {version} of the Delta table rewrote files that this epoch replaces, together with others or with"
        " other rows",
        "Drop the epoch (`txsink abort`) and write it again",
        version=version,
    )


def _partition(file: dict[str, Any], known: pa.Schema, columns: Iterable[str]) -> tuple[tuple[str, str | None], ...]:
    """The partition of a file of the Delta log in our spelling."""
    return tuple((name, plain_text(file["partitionValues"].get(name), known.field(name).type)) for name in columns)
