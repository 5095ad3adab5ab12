"""What a Delta table shows of the epochs above one: a rewind takes them back, and a RESTORE brings them back.

Promises: the answer is Delta's, whatever our log thinks of a file: another program may have brought back what an
overwrite replaced, or a rewind took away. A file of another program that may hold rows of these epochs is told apart.
Relies on: the log's facts, which never forget a file that an epoch brought; the commits of Delta's log since.
Does not promise: to follow rows through commits that were cleaned up: then every file of another program may hold some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from txsink.delta.log import DeltaLog
from txsink.delta.state import Action, DeltaState, decoded_path, is_ours
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log import segment
from txsink.log.log import Log
from txsink.log.segment import Fact


class Shown(NamedTuple):
    """Files of the Delta table, as it spells them."""

    files: set[str]  # that these epochs brought
    others: set[str]  # that another program may have made of those


def shown_above(log: Log, delta: DeltaLog, found: DeltaState, writer: str, epoch: int) -> Shown:
    """What the table shows of the writer's epochs above `epoch`, each as often as it was ever committed."""
    added = segment.rows_of(segment.chosen(log.facts(), "add"))
    own = {fact.path or "": fact for fact in added if fact.writer == writer and (fact.epoch or 0) > epoch}
    if not own or found.version < 0:
        return Shown(set(), set())
    ours = {fact.path for fact in added}
    files = delta.files_of(found)
    strange = {path for path in files if decoded_path(path) not in ours}
    if strange:
        strange = {path for path in strange if decoded_path(path) in _made_of(log, delta, found, own, strange)}
    return Shown({path for path in files if decoded_path(path) in own}, strange)


def shown_again(log: Log, delta: DeltaLog, found: DeltaState, writer: str) -> Shown:
    """What the table shows of epochs that were taken back, and that the writer has not passed since."""
    known = log.state.writers.get(writer)
    if known is None or known.rewound is None or known.last_epoch is None or known.rewound <= known.last_epoch:
        return Shown(set(), set())
    return shown_above(log, delta, found, writer, known.last_epoch)


def require_no_replay(shown: Shown, last: int | None, gone: set[str], what: str) -> None:
    """Refuse an epoch after `last` whose rows, or those of a later one, are there again; it replaces those `gone`."""
    if files := shown.files - gone:
        raise ConflictError(
            what,
            f"{min(files)} is in the Delta table again: its epoch was taken back, and another program brought it back",
            f"Recover with up_to={last}, on_newer='rewind', which takes it away again; where opening says this, open"
            " it with recover=False first",
        )
    if others := shown.others - gone:
        raise ConflictError(
            what,
            f"{min(others)}, which another program wrote, may hold rows of epochs after {last}, which were taken back",
            "Write what the table is to hold with mode='overwrite', or restore the Delta table to a version without it",
        )


def _made_of(log: Log, delta: DeltaLog, found: DeltaState, own: dict[str, Fact], strange: set[str]) -> set[str]:
    """The files that may hold rows of `own`: other programs wrote them while they removed such a file."""
    held: set[str] = set(own)
    known: set[str] = set()
    try:
        bases = [log.prepare_entry(fact.prepared or 0).base for fact in own.values()]
        first = min(-1 if base is None else base for base in bases) + 1
        for _, actions in delta.between(first, found.version):
            added, removed = _paths(actions, "add"), _paths(actions, "remove")
            if removed & held and not is_ours(actions) and not _is_restore(actions):
                held |= added - known
            known |= added
    except InvalidRequestError:  # entries have expired, or commits were cleaned up
        return {decoded_path(path) for path in strange}
    return held


def _paths(actions: list[Action], kind: str) -> set[str]:
    return {decoded_path(action[kind]["path"]) for action in actions if kind in action}


def _is_restore(actions: list[Action]) -> bool:
    """Whether a commit says that it brings back files of a former version, and so writes none."""
    return any(action.get("commitInfo", {}).get("operation") == "RESTORE" for action in actions)


def problems(log: Log, shown: Iterable[Fact]) -> Iterator[tuple[str, str]]:
    """Each file among those that readers see which a rewind took back, where its rows are or would be there twice."""
    facts, files = log.facts(), [fact for fact in shown if fact.version >= 0]
    for writer in dict.fromkeys(fact.writer for fact in files):
        commits = segment.rows_of(segment.chosen(facts, "commit", writer=writer))
        # Only a rewind goes back (I4), or to where the writer is.
        rewinds = [(one, after) for one, after in pairwise(commits) if (after.epoch or 0) <= (one.epoch or 0)]
        mine = [fact for fact in files if fact.writer == writer]
        for fact in mine if rewinds else ():
            epoch = fact.epoch or 0
            taken = [pair for pair in rewinds if pair[1].version > fact.version and (pair[1].epoch or 0) < epoch]
            if not taken:
                continue
            last, rewind = taken[0]
            whose = f"epoch {epoch} of {writer!r} was taken back at version {rewind.version}, and another program"
            if epoch > (commits[-1].epoch or 0):
                yield fact.path or "", f"{whose} brought this file of it back: its replay would double the rows"
            elif any(one.version > rewind.version and (one.epoch or 0) <= (last.epoch or 0) for one in mine):
                yield fact.path or "", f"{whose} brought this file of it back: rows of its replay are there twice"
