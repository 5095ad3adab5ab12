"""What keeps a transaction from being prepared, whatever it holds.

Promises: a refusal before anything is logged, in words that say what to do next.
Relies on: the state of the log that the prepare entry is to follow.
Does not promise: that what is not refused here can be prepared. `preparing.prepare` asks the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from txsink.errors import ConflictError, InvalidRequestError, TxsinkError
from txsink.log.log import Log
from txsink.log.state import State
from txsink.staging.epoch_stager import StagedFile


@contextmanager
def unless_converted(log: Log, layout: str) -> Iterator[int]:
    """A conversion takes files and Delta's log away from a run that was open: it is told of that, and of no damage.

    Gives the version of the last conversion before, for `require_layout`.
    """
    before = log.state.converted
    try:
        yield before
    except TxsinkError:
        log.refresh()
        require_unconverted(log, layout, before)
        raise


def require_unconverted(log: Log, layout: str, converted: int) -> None:
    """The same for a run that has just read on."""
    if log.state.converted != converted:
        log.hint()  # who opens the writer again begins after the conversion
    require_layout(log.root, log.state, layout, converted)


def require_layout(root: str, state: State, layout: str, converted: int) -> None:
    """Refuse a run that was opened, or whose files were looked at, before a conversion, also one there and back."""
    if (state.layout, state.converted) != (layout, converted):
        raise ConflictError(
            f"write to {root}",
            f"it was converted to the layout {state.layout} meanwhile",
            "Open the writer again",
            layout=state.layout,
        )


def require_types_of_delta(types: str, what: str) -> None:
    """Refuse the layout Delta for a table whose types are Arrow's."""
    if types != "spark":
        found = f"its types are {types!r}, some of which Delta does not have"
        raise InvalidRequestError(what, found, "Choose layout='parquet', or types='spark' for a new table", types=types)


def require_no_abort(state: State, writer: str, epoch: int) -> None:
    """Rows of an aborted epoch may still be seen, and its files are yet to be deleted: none may be named again."""
    for item in state.aborting:
        if item.writer == writer:
            raise ConflictError(
                f"prepare epoch {epoch} of {writer!r}",
                f"epoch {item.epoch} was aborted (prepared at version {item.prepared}) and is not cleaned up yet",
                "Try again: it is cleaned up first",
                writer=writer,
                epoch=item.epoch,
            )


def require_partitions(state: State, epoch: int, staged: Iterable[StagedFile]) -> None:
    """Refuse files that were staged with other partition columns than the table's."""
    expected = state.partition_columns
    for one in staged:
        if tuple(one.file.partition) != expected:
            raise InvalidRequestError(
                f"prepare epoch {epoch}",
                f"{one.file.path} is partitioned by {list(one.file.partition)}, the table by {list(expected)}",
                "Stage with the table's partition columns",
            )
