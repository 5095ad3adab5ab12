"""The commands, as functions from options to a report. Nothing here prints.

Promises: a command that changes something returns its plan and does it only when told `yes`; `Report.data` is the
JSON object that docs/cli.md lists; looking never writes.
Relies on: `table` for looking; `opening.open_writer` and `recovery` for doing.
Does not promise: that a plan still holds when it is carried out. What happened stands in the report of the doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from txsink import paths
from txsink.choices import OnNewer
from txsink.cli.plans import (
    DELETING,
    UNPROVEN,
    leaving_plan,
    left_plan,
    on_file,
    on_staged,
    recovery_plan,
    staged_plan,
    step,
)
from txsink.conversion import to_delta, to_parquet
from txsink.delta import checkpoints as delta_upkeep
from txsink.delta.log import DeltaLog
from txsink.environment import new_id, stamps
from txsink.errors import ConflictError, CorruptError, InvalidRequestError, counted, did_you_mean
from txsink.log.log import Log
from txsink.protocol import sweeping
from txsink.protocol.fencing import Run, hold
from txsink.publish.choose import former_of
from txsink.publish.decision import Action
from txsink.publish.protocol import DELTA, PARQUET
from txsink.reading import audit
from txsink.reading.audit import Problem
from txsink.reading.table import PendingTransaction, Table, open_table
from txsink.store.opening import open_store
from txsink.writing.opening import open_writer

OK, UNHEALTHY = 0, 3

DRY = "Nothing was changed. Add --yes to do it."
_CLAIMS = (
    "Doing it claims the writer: a run of it that is alive is fenced (its next commit fails), and what former runs "
    "staged and never prepared is deleted."
)


class Grid(NamedTuple):
    """A table of the text output."""

    heads: list[str]
    rows: Sequence[Sequence[object]]


class Report(NamedTuple):
    """What a command found or did: the JSON object, the same as text, and the exit code."""

    data: dict[str, Any]
    text: list[str | Grid]
    code: int = OK


class UsageError(Exception):
    """Options that do not go together."""


# -- looking ------------------------------------------------------------------------------------------


def status(path: str) -> Report:
    """What the table is, its writers, and what waits to be finished."""
    table = open_table(path)
    files, writers, pending = table.files(), table.writers(), table.pending()
    left = [item for item in pending if item.state == "aborting" or item.run != writers[item.writer].run]
    total = {"files": len(files), "rows": sum(file.rows for file in files), "bytes": sum(file.bytes for file in files)}
    data = {
        "path": table.path,
        "table_id": table.table_id,
        "layout": table.layout,
        "version": table.version,
        "boundary": table.boundary,
        **total,
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
        "partition_columns": table.partition_columns,
        "writers": [{"writer": name, **known._asdict()} for name, known in writers.items()],
        "pending": [item._asdict() for item in pending],
        "unfinished": [{"writer": item.writer, "epoch": item.epoch, "state": item.state} for item in left],
        "is_healthy": not left,
    }
    known = [
        [name, one.last_epoch, one.last_version, one.generation, one.run, _when(one.claimed)]
        for name, one in writers.items()
    ]
    text: list[str | Grid] = [
        f"{table.path} at version {table.version}: "
        + ", ".join(counted(count, what[:-1]) for what, count in total.items()),
        Grid(["writer", "last epoch", "at version", "generation", "run", "claimed"], known),
    ]
    if pending:
        text.append(_pending_grid(pending))
    if left:
        waiting = counted(len(left), "transaction")
        text.append(f"{waiting} of retired runs or half-done aborts: see `txsink recover`.")
    return Report(data, text, UNHEALTHY if left else OK)


def log(path: str, limit: int) -> Report:
    """The log entries, newest first."""
    table = open_table(path)
    found = table.history(limit or None)
    rows = [
        [one.version, one.kind, _when(one.time), one.writer, one.epoch, one.files, one.rows, one.run, one.note]
        for one in found
    ]
    data = {
        "path": table.path,
        "version": table.version,
        "boundary": table.boundary,
        "entries": [one._asdict() for one in found],
    }
    text: list[str | Grid] = [
        Grid(["version", "kind", "time", "writer", "epoch", "files", "rows", "run", "note"], rows)
    ]
    if table.boundary:
        text.append(f"Versions below {table.boundary} have expired.")
    return Report(data, text)


def files(path: str, version: int | None) -> Report:
    """The data files at a version."""
    table = open_table(path)
    found = table.files(version)
    at = table.version if version is None else version
    rows = [[one.path, one.bytes, one.rows, one.epoch, one.writer, one.version] for one in found]
    data = {"path": table.path, "version": at, "files": [one._asdict() for one in found]}
    return Report(data, [Grid(["path", "bytes", "rows", "epoch", "writer", "version"], rows)])


def pending(path: str) -> Report:
    """What is prepared and not done, and aborts with work left."""
    table = open_table(path)
    found = table.pending()
    data = {"path": table.path, "version": table.version, "pending": [one._asdict() for one in found]}
    return Report(data, [_pending_grid(found)] if found else ["Nothing is pending."])


def verify(path: str, *, deep: bool) -> Report:
    """Whether all bytes are what the log says."""
    found = found_by_verify(path, deep=deep)
    data = {"path": path, "deep": deep, "problems": [one._asdict() for one in found], "is_healthy": not found}
    text: list[str | Grid] = [Grid(["where", "what"], [list(one) for one in found])] if found else []
    return Report(data, [*text, f"{counted(len(found), 'problem')} found."], UNHEALTHY if found else OK)


def explain(path: str, writer: str, epoch: int) -> Report:
    """What became of one epoch, and why."""
    table = open_table(path)
    found = table.explain(writer, epoch)
    data = {"path": table.path, **found._asdict()}
    detail = [
        [name, _when(value) if isinstance(value, datetime) else value]
        for name, value in found._asdict().items()
        if value is not None and name not in {"writer", "epoch", "outcome", "sentence"}
    ]
    return Report(data, [f"Epoch {epoch} of {writer}: {found.outcome}. {found.sentence}", Grid(["", ""], detail)])


# -- doing --------------------------------------------------------------------------------------------


def recover(path: str, writer: str | None, up_to: int | None, on_newer: OnNewer, *, yes: bool) -> Report:
    """Finish or drop what is pending."""
    if up_to is not None and writer is None:
        raise UsageError("--up-to needs --writer: every writer counts its own epochs")
    table = open_table(path)
    waiting = table.pending()
    names = [_known(table, writer)] if writer is not None else sorted({item.writer for item in waiting})
    plan: list[dict[str, Any]] = []
    for name in names:
        steps = recovery_plan(table, [item for item in waiting if item.writer == name], name, up_to, on_newer)
        plan += [*steps, *left_plan(table, name)] if steps else []
    done = []
    if yes:
        for name in sorted({step["writer"] for step in plan}):
            with open_writer(path, name, recover=False) as sink:
                done.append({"writer": name, **sink.recover(up_to, on_newer)._asdict()})
    text: list[str | Grid] = [
        f"{one['writer']}: committed {one['committed']}, aborted {one['aborted']}, rewound from {one['rewound_from']}"
        for one in done
    ]
    return _planned(table, plan, {"done": done}, text, is_done=yes)


def abort(path: str, writer: str, epoch: int, *, yes: bool) -> Report:
    """Drop one pending epoch."""
    table = open_table(path)
    what = f"abort epoch {epoch} of {writer!r}"
    found = [item for item in table.pending() if (item.writer, item.epoch) == (writer, epoch)]
    if not found:
        raise InvalidRequestError(what, table.explain(writer, epoch).sentence.rstrip("."), "See `txsink pending`")
    if found[0].state == "publishing":
        raise ConflictError(
            what, "its publish has begun to take away the files it replaces", "Commit it: `txsink recover`"
        )
    verb = "finish the abort of" if found[0].state == "aborting" else "abort"
    plan = [step(found[0], verb), *left_plan(table, writer)]
    if yes:
        with open_writer(path, writer, recover=False) as sink:
            sink.abort(epoch)
        if (told := table.explain(writer, epoch)).outcome == "committed":
            raise ConflictError(what, f"meanwhile: {told.sentence.rstrip('.')}", "Leave it, or overwrite its content")
    text: list[str | Grid] = [f"Epoch {epoch} of {writer} is aborted and its files are deleted."] if yes else []
    return _planned(table, plan, {}, text, is_done=yes)


def sweep(path: str, writer: str | None, *, yes: bool) -> Report:
    """Delete what nobody can name any more: orphans among staged files, half-made log objects."""
    table = open_table(path)
    # Listed before `sweep` reads the log once more.
    publishers = [one for one in (table.publisher, former_of(table.log)) if one is not None]
    left = [(one, one.left(writer, table.log.state.writers)) for one in publishers]
    table.refresh()
    # Asked on behalf of no writer, a dry run tells the runs that are to be retired from those that were.
    nobody = Run("", "", table.version)
    looks = [(one, sweeping.sweep(table.log, nobody, one, names, dry_run=True)) for one, names in left]
    asked = [swept for _, found in looks for swept in found]
    verbs = {Action.KEEP: "keep", Action.RETIRE: "retire its run, then delete", Action.DROP_STAGED: "delete"}
    plan = [on_staged(table, verbs[one.action], one.name, by) for by, found in looks for one in found]
    half_made = sweeping.temporaries(table.log, dry_run=True)
    plan += [on_file(table, "delete", found) for found in half_made]
    unproven = [on_file(table, UNPROVEN, found) for one in publishers for found in one.unproven()]
    deleted = 0
    if yes:
        for name in sorted({one.name.writer for one in asked if one.action is not Action.KEEP}):
            for by, names in left:
                mine = [one for one in names if one.writer == name]
                swept = sweeping.sweep(table.log, _sweeper(table, name), by, mine)
                deleted += sum(one.action is Action.DROP_STAGED for one in swept)
        deleted += len(sweeping.temporaries(table.log))
    text: list[str | Grid] = [f"{counted(deleted, 'file')} deleted."] if yes else []
    note = ""
    if any(one.action is Action.RETIRE for one in asked):
        note = "A run to be retired never claimed its writer: if it is alive, in its first epoch, it is fenced."
    if yes and unproven:
        text.append(_grid(unproven))
    return _planned(table, [*plan, *unproven], {"deleted": deleted}, text, is_done=yes, note=note)


def checkpoint(path: str) -> Report:
    """Make a checkpoint of a Delta table's log, and delete commits that have expired."""
    version = delta_upkeep.checkpoint(_delta_of(open_table(path), "make a checkpoint of"))
    return Report({"path": path, "delta_version": version}, [f"A checkpoint of Delta's version {version} is there."])


def convert(path: str, to: str, *, yes: bool) -> Report:
    """Give the table another layout, in place."""
    table = open_table(path)
    left = to == PARQUET and table.log.store.list(f"{table.path}/{paths.DELTA_DIRECTORY}")
    if table.layout == to and not left:
        return Report({"path": table.path, "is_dry_run": not yes, "plan": [], "layout": to}, [f"It is {to} already."])
    files = table.files()
    content = {"files": len(files), "rows": sum(one.rows for one in files)}
    delta = table.delta or DeltaLog(table.log.store, table.path, stamps(), path)
    plan = [{"action": f"convert to {to}", "writer": None, "epoch": None, **content}]
    plan += staged_plan(table) if to == DELTA else leaving_plan(table, delta)
    if not yes:
        note = "Writers that are open are refused at their next prepare, and what they have staged is deleted."
        if to == PARQUET:
            note += " Older versions can no longer be read by Delta's readers."
        return _planned(table, plan, {"layout": table.layout}, [], is_done=False, note=note)
    done = to_delta(table.log, delta) if to == DELTA else to_parquet(table.log, delta)
    problems = open_table(path).verify()
    data = {"path": table.path, "is_dry_run": False, "plan": plan, "layout": to, "version": done.version}
    data["problems"] = [one._asdict() for one in problems]
    text: list[str | Grid] = [
        f"{table.path} has the layout {to} from version {done.version} on: {counted(done.files, 'file')}."
    ]
    if problems:
        text.append(Grid(["where", "what"], [list(one) for one in problems]))
    return Report(data, text, UNHEALTHY if problems else OK)


def _delta_of(table: Table, what: str) -> DeltaLog:
    if table.delta is None:
        found = f"its layout is {table.layout}"
        raise InvalidRequestError(f"{what} {table.path}", found, "Convert it first: `txsink convert --to delta`")
    return table.delta


def _sweeper(table: Table, writer: str) -> Run:
    """Who retires the writer's unclaimed runs: the run that holds it, so that it is not fenced; else a new one."""
    holder = table.log.state.writers.get(writer)
    run = Run(writer, new_id() if holder is None else holder.run, table.log.state.version)
    hold(table.log.state, run)
    return run


def _planned(
    table: Table, plan: list[dict[str, Any]], more: dict[str, Any], text: list[str | Grid], *, is_done: bool,
    note: str = _CLAIMS,
) -> Report:  # fmt: skip
    data = {"path": table.path, "is_dry_run": not is_done, "plan": plan, **more}
    doomed = [step for step in plan if step["action"].endswith(DELETING)]
    count = sum(step.get("files", 1) for step in doomed)
    data["deletes"] = {"files": count, "bytes": sum(step["bytes"] or 0 for step in doomed)}
    if all(step["action"] in {"keep", UNPROVEN} for step in plan):
        kept = [step for step in plan if step["action"] == UNPROVEN]
        return Report(data, [*([_grid(kept)] if kept else []), "Nothing is to be done."])
    told = f"To be deleted: {data['deletes']['files']} files, {data['deletes']['bytes']} bytes."
    return Report(data, text if is_done else [_grid(plan), *([told] if doomed else []), *filter(None, [note]), DRY])


def _grid(plan: list[dict[str, Any]]) -> Grid:
    heads = ["action", "writer", "epoch", "files", "rows", "bytes", "path"]
    return Grid(heads, [[step.get(head) for head in heads] for step in plan])


def _pending_grid(found: list[PendingTransaction]) -> Grid:
    heads = ["writer", "epoch", "version", "state", "mode", "files", "rows", "time", "run"]
    return Grid(heads, [[_when(one.time) if head == "time" else getattr(one, head) for head in heads] for one in found])


def _known(table: Table, writer: str) -> str:
    names = list(table.writers())
    if writer in names:
        return writer
    advice = did_you_mean(writer, names, "See `txsink status` for its writers")
    raise InvalidRequestError(f"recover {writer!r}", "the table has no writer of that name", advice)


def found_by_verify(path: str, *, deep: bool) -> list[Problem]:
    """All that is not as the log says, also where it cannot be opened."""
    try:
        return open_table(path).verify(deep=deep)
    except CorruptError as error:
        # The log cannot be read to its end: what it shows piece by piece is all there is.
        store = open_store(path)
        seen = audit.verify_log(Log(store, store.resolve(path), stamps()))
        version = error.context.get("version")
        other = paths.DELTA_DIRECTORY if "delta_version" in error.context else paths.LOG_DIRECTORY
        where = paths.entry_path(version) if isinstance(version, int) else other
        return seen or [Problem(where, f"{error.attempted}: {error.found}")]


def _when(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
