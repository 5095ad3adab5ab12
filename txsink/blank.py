"""A table that never held a row: what it was to be can still be changed.

Promises: the layout and the partition columns change in one entry, and only of a table that has no columns: none that
any version could name a file of; a writer that was open meanwhile is refused at its next prepare.
Relies on: `fold`, which refuses the entry anywhere else; `transaction.prepare`, which looks at both again.
Does not promise: anything about a Delta table that is there already, whose own log says how it is partitioned.
"""

from __future__ import annotations

from txsink.entry import Convert
from txsink.log import Log, Slot
from txsink.state import State


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
