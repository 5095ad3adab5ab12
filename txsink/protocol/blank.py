"""Make a table; and as long as it never held a row, change what it was to be.

Promises: a table is made once, whoever else makes it meanwhile; the layout and the partition columns change
in one entry, and only of a table that has no columns: none that any version could name a file of; a writer that was
open meanwhile is refused at its next prepare.
Relies on: `fold`, which refuses the entry anywhere else; `preparing.prepare`, which looks at both again.
Does not promise: anything about a Delta table that is there already, whose own log says how it is partitioned.
"""

from __future__ import annotations

from typing import Any

from txsink.log.entry import Convert, Create
from txsink.log.log import Log, Slot
from txsink.log.state import State


def is_blank(state: State) -> bool:
    """Whether no version of the table has a column, and nothing pending brings one."""
    return state.version >= 0 and not (state.columns or state.pending or state.aborting)


def lay_anew(log: Log, at: State, layout: str, partition_columns: tuple[str, ...]) -> None:
    """Give the table another layout and other partition columns, unless something came after the state `at`."""

    def make(state: State, slot: Slot) -> Convert | None:
        if state.version != at.version:
            return None
        return Convert(**slot, layout=layout, partition_columns=partition_columns)

    log.append(make)


def create(log: Log, table_layout: str, by: tuple[str, ...], staging: str | None, table_id: str, **more: Any) -> None:
    """Make the table, unless somebody has; `more`: fields of its `Create` entry."""

    def make(state: State, slot: Slot) -> Create | None:
        if state.version >= 0:
            return None
        own = {**slot, "table_id": table_id, "layout": table_layout, "partition_columns": by, "staging": staging}
        return Create(**own, **more)

    log.append(make)
