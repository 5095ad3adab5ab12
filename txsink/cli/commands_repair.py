"""The command `repair`, as a function from options to a report.

Promises: what `commands` promises of a command that changes something: a plan, done only when told `yes`; afterwards it
says what `verify` still finds.
Relies on: `repair` for the plan and the doing.
Does not promise: to bring back what only a copy has.
"""

from __future__ import annotations

from txsink import paths
from txsink.cli.commands import DRY, OK, UNHEALTHY, Grid, Report, found_by_verify
from txsink.environment import stamps
from txsink.errors import CorruptError
from txsink.log.log import Log
from txsink.reading.table import open_table
from txsink.store.opening import open_store
from txsink.upkeep import repair as repairs
from txsink.upkeep.repair import RESTORE, Step


def repair(path: str, *, yes: bool) -> Report:
    """Lead the table out of what `verify` names: lost, damaged and stray log objects, transactions that are stuck."""
    store = open_store(path)
    log = Log(store, store.resolve(path), stamps())
    head = repairs.head_of(log)
    steps = repairs.entry_steps(log, head)
    if steps and yes and head.version >= 0:
        repairs.set_aside(log, head, steps)
    if not steps or (yes and head.version >= 0):
        steps += _on_open(path, yes=yes, is_first=not steps)
    problems = found_by_verify(path, deep=False)
    plan = [step._asdict() for step in steps]
    data = {"path": log.root, "is_dry_run": not yes, "plan": plan, "problems": [one._asdict() for one in problems]}
    text: list[str | Grid] = [Grid(["action", "path", "what"], [list(step) for step in steps])] if steps else []
    if problems:
        text += ["What `txsink verify` says now:", Grid(["where", "what"], [list(one) for one in problems])]
    if steps and not yes:
        text.append(f"{DRY} Stop the writers first; what can be put back from a copy is better put back before.")
    return Report(data, text or ["There is nothing to repair."], UNHEALTHY if problems else OK)


def _on_open(path: str, *, yes: bool, is_first: bool) -> list[Step]:
    """What there is to do once the log can be followed; or the entry that only a copy can bring back."""
    try:
        table = open_table(path)
        steps = repairs.table_steps(table.log, table.publisher, table.delta)
    except CorruptError as error:
        lost = error.context.get("version")
        if not is_first or not isinstance(lost, int):
            raise
        return [Step(RESTORE, paths.entry_path(lost), f"{error.found}; nothing else holds what it said")]
    if yes:
        repairs.carry_out(table.log, table.publisher, table.delta, steps)
    return steps
