"""After a crash: finish what was prepared, drop what was not, delete what nobody can name any more.

Promises: `recover` and `sweep` may crash anywhere and be run again (I12); they end with every prepared epoch
committed or aborted and no staged left-over (I9); nothing is deleted that the log names (I8), and nothing by age.
Relies on: `decision.decide` for every single file; the claim of the run that recovers, which fences the one before.
Does not promise: to repair damaged files. They are reported (CorruptError) and left where they are.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from txsink.choices import OnNewer, require_choice
from txsink.errors import ConflictError
from txsink.log.entry import Maintenance
from txsink.log.log import Log, Slot
from txsink.log.state import State
from txsink.protocol.fencing import Run, standing
from txsink.protocol.preparing import rewind
from txsink.protocol.resolving import abort, roll_forward
from txsink.publish.protocol import Publisher

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """What a recovery did: epochs committed, aborted, and those taken back by a rewind."""

    committed: list[int]
    aborted: list[int]
    rewound_from: int | None


def recover(log: Log, run: Run, publisher: Publisher, up_to: int | None = None, on_newer: str = "fail") -> Recovered:
    """Commit the writer's pending epochs <= `up_to`, abort those above; `on_newer` for committed ones above.

    What former runs prepared is durable by now: the claim of `run` came after it.
    """
    require_choice("recover", "on_newer", on_newer, OnNewer)
    standing(log, log.state, run)
    finish_aborts(log, run, publisher)
    last = log.state.last_epoch(run.writer)
    if up_to is not None and on_newer == "fail" and last is not None and last > up_to:
        raise _newer(run, up_to, last)
    committed: list[int] = []
    aborted: list[int] = []
    for pending in log.state.pending_of(run.writer):
        # What began to replace files can only go forward; `on_newer` decides on it below.
        # What is to be aborted may be published, and what is to be committed dropped, where Delta's log says so.
        if up_to is None or pending.epoch <= up_to or pending.is_publishing:
            is_committed = roll_forward(log, run, publisher, pending)
        else:
            is_committed = not abort(log, run, publisher, pending)
        (committed if is_committed else aborted).append(pending.epoch)
    finish_aborts(log, run, publisher)
    last = log.state.last_epoch(run.writer)
    if up_to is None or last is None or last < up_to or on_newer == "skip":
        _tell_of_what_is_back(run, publisher)
        return Recovered(committed, aborted, None)
    if last == up_to and not (on_newer == "rewind" and publisher.brought_back(run.writer)):
        return Recovered(committed, aborted, None)
    if on_newer == "fail":
        raise _newer(run, up_to, last)
    roll_forward(log, run, publisher, rewind(log, run, publisher, up_to))
    return Recovered(committed, aborted, log.state.writers[run.writer].rewound if last == up_to else last)


def _tell_of_what_is_back(run: Run, publisher: Publisher) -> None:
    if back := publisher.brought_back(run.writer):
        _log.warning(
            "another program brought back what a rewind of %r took away, %s for one; recover with on_newer='rewind'"
            " takes it away again",
            run.writer,
            back[0],
        )


def finish_aborts(log: Log, run: Run, publisher: Publisher) -> None:
    """Delete the files of the writer's aborted transactions, then say in the log that it is done."""
    if not any(item.writer == run.writer for item in log.state.aborting):
        return
    # ORDER: newest entry known looked at before an aborted file goes, else a table that was restored or made anew loses
    # one that its own log names (I8).
    log.is_as_read(log.stamps.now_ms(), to_the_end=False)
    standing(log, log.state, run)
    mine = [item for item in log.state.aborting if item.writer == run.writer]
    for item in mine:
        publisher.withdraw(log.prepare_entry(item.prepared))
    done = tuple(item.prepared for item in mine)

    def make(state: State, slot: Slot) -> Maintenance | None:
        if not any(item.prepared in done for item in state.aborting):
            return None
        return Maintenance(**slot, action="cleaned", cleaned=done, boundary=None)

    # ORDER: all files deleted before the `cleaned` entry, else a crash leaves published rows nobody drops (I9).
    log.append(make)


def _newer(run: Run, up_to: int, last: int) -> ConflictError:
    return ConflictError(
        f"restore {run.writer!r} at epoch {up_to}",
        f"its epochs up to {last} are committed already",
        "Choose on_newer='skip' (keep them; their replay writes nothing) or on_newer='rewind' (remove their files)",
        writer=run.writer,
        up_to=up_to,
        last_epoch=last,
    )
