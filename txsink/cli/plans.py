"""What a command is about to do: steps, each with what it names, and what it deletes with counts and bytes.

Promises: a step whose action ends in one of `DELETING` takes something away, and says how many files and bytes.
Relies on: `table` for looking; the publish strategy for what lies staged; `conversion` for what it takes away.
Does not promise: that a plan still holds when it is carried out.
"""

from __future__ import annotations

from typing import Any

from txsink import paths
from txsink.conversion import Leaving, delta_log_names, leaving
from txsink.delta.log import DeltaLog
from txsink.errors import ConflictError
from txsink.paths import StagedName
from txsink.protocol import sweeping
from txsink.publish.choose import former_of
from txsink.publish.protocol import PARQUET, Publisher
from txsink.reading.table import PendingTransaction, Table

DELETING = ("delete", "abort", "finish the abort of")
UNPROVEN = "keep: not provably ours"


def recovery_plan(
    table: Table, waiting: list[PendingTransaction], writer: str, up_to: int | None, on_newer: str
) -> list[dict[str, Any]]:
    """What a recovery does with what waits of one writer; ConflictError where it would refuse."""
    plan = []
    for item in waiting:
        if item.state == "aborting":
            plan.append(step(item, "finish the abort of"))
        else:
            rolls = up_to is None or item.epoch <= up_to or item.state == "publishing"
            plan.append(step(item, "commit" if rolls else "abort"))
    last = table.writers()[writer].last_epoch
    is_back = up_to == last and on_newer == "rewind" and bool(table.publisher.brought_back(writer))
    if up_to is not None and last is not None and (last > up_to or is_back) and on_newer != "skip":
        if on_newer == "fail":
            # Refused here already: opening the writer would fence a live run for nothing.
            raise ConflictError(
                f"recover {writer!r} up to epoch {up_to}",
                f"its epochs up to {last} are committed already",
                "Choose --on-newer skip (keep them) or --on-newer rewind (remove their files)",
            )
        newer = [one for one in table.files() if one.writer == writer and (one.epoch or 0) > up_to]
        verb = f"rewind from epoch {last}, removing what later epochs wrote, to"
        if is_back:
            verb = "rewind again, removing what another program brought back of later epochs, to"
        content = {"files": len(newer), "rows": sum(one.rows for one in newer)}
        plan.append({"action": verb, "writer": writer, "epoch": up_to, "version": None, **content})
    return plan


def staged_plan(table: Table) -> list[dict[str, Any]]:
    """What a conversion to delta deletes: all that is staged."""
    return [on_staged(table, "delete", name) for name in table.publisher.left(None, table.log.state.writers)]


def leaving_plan(table: Table, delta: DeltaLog) -> list[dict[str, Any]]:
    """What a conversion to parquet takes away, each kind in one step: there may be very much of it."""
    found = Leaving({}, [], []) if table.layout == PARQUET else leaving(table.log, delta)
    log_names = [f"{paths.DELTA_DIRECTORY}/{name}" for name in delta_log_names(table.log, delta)]
    kinds = [
        ("move out of readers' sight", list(found.moved), f"{paths.REMOVED_DIRECTORY}/"),
        ("delete", found.deleted, "former files of the table"),
        ("delete", [*log_names, *found.marks], f"{paths.DELTA_DIRECTORY}/"),
    ]
    return [
        {"action": action, "files": len(paths), "bytes": sum(_bytes(table, f"{table.path}/{one}") for one in paths),
         "path": what}
        for action, paths, what in kinds if paths
    ]  # fmt: skip


def left_plan(table: Table, writer: str) -> list[dict[str, Any]]:
    """What the claim's sweep deletes: staged, and named by no pending transaction."""
    plan = []
    for by in filter(None, (table.publisher, former_of(table.log))):
        is_held = sweeping.names_held(table.log, by, *table.log.state.aborting)
        plan += [on_staged(table, "delete", name, by) for name in by.left(writer, ()) if not is_held(name)]
    return plan


def on_staged(table: Table, action: str, name: StagedName, by: Publisher | None = None) -> dict[str, Any]:
    """A step for one staged file; `by`: the strategy that staged it, if that is a former one."""
    path = f"{(by or table.publisher).place(name.writer, name.run).directory}/{name.path}"
    return {
        "action": action,
        "writer": name.writer,
        "run": name.run,
        "epoch": None if name.is_mark else name.epoch,
        "path": paths.told_path(table.path, path),
        # What a pending upload holds, a store tells for each of its parts alone.
        "bytes": None if name.upload else _bytes(table, path),
    }


def on_file(table: Table, action: str, path: str) -> dict[str, Any]:
    """A step for any file, by its full path."""
    return {"action": action, "writer": None, "path": path, "bytes": _bytes(table, path)}


def _bytes(table: Table, path: str) -> int:
    found = table.log.store.tail(path, 0)
    return 0 if found is None else found.bytes


def step(item: PendingTransaction, verb: str) -> dict[str, Any]:
    """A step for a transaction that waits."""
    return {
        "action": verb,
        "writer": item.writer,
        "epoch": item.epoch,
        "version": item.version,
        "files": item.files,
        "rows": item.rows,
        "bytes": item.bytes,
    }
