"""What stands where a log ends: nothing, or something that proves that the log is not what it was.

Promises: a `Gap` is found when an entry is there beyond an empty slot of those that no segment repeats, or when a hint,
summary or segment of this log tells of a later entry than there is; the error says which entry is missing, what proves
it, and what to do.
Relies on: slots that fill one after the other, and are emptied oldest first (by expiry) and by `repair` alone.
Does not promise: to know entries that nothing tells of. Who loses the newest entries and every later trace of them,
or restores all of it together, has an older table: docs/security.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txsink import paths
from txsink.errors import ConflictError, CorruptError, InvalidRequestError, TxsinkError
from txsink.log import entry as entries, segment
from txsink.log.slots import LOOK_AHEAD, Slots
from txsink.log.state import State, decode

REPAIR = "see what `txsink repair` would do; nothing was changed"


def is_gap(state: State, beyond: list[int]) -> bool:
    """Whether an empty slot lies between the newest entry of `state` and what is there beyond it."""
    return beyond != [*range(state.version + 1, state.version + 1 + len(beyond))]


def first_lost(slots: Slots, state: State) -> tuple[int, int] | None:
    """An entry that is missing, and a later one that is there, of those that no segment repeats; None for no such."""
    first = (state.version + 1) // segment.BLOCK * segment.BLOCK
    there = slots.beyond(first, state.version + 1 + LOOK_AHEAD - first)
    return next((pair for pair in enumerate(there, first) if pair[0] != pair[1]), None)


def hole(slots: Slots, state: State, missing: int, found: int) -> CorruptError:
    """An entry is missing, and `found` is there: entries were lost, or `found` is a stray one."""
    return CorruptError(
        f"read log entry {missing} of {slots.root}",
        f"it is missing, yet entry {found} is there{whose(slots, state, found)}",
        f"Restore it from a copy, or {REPAIR}",
        version=missing,
        beyond=found,
    )


def headless(root: str) -> CorruptError:
    """The first entry is missing, later ones are there, and nothing says what they followed."""
    return CorruptError(
        f"read log entry 0 of {root}",
        "it is missing, yet later ones are there, and no summary tells what they followed",
        "Restore the log from a copy; nothing was changed",
        version=0,
    )


def missing(version: int) -> CorruptError:
    """An entry that is not the newest is missing."""
    return CorruptError(
        f"read log entry {version}", "it is missing", "Restore it from a copy; nothing was changed", version=version
    )


@contextmanager
def unlisted(root: str) -> Iterator[None]:
    """A segment that is missing is damage, once its entries have expired: nothing lists their files any more."""
    try:
        yield
    except InvalidRequestError as error:
        raise CorruptError(
            f"list the files of {root}",
            "a segment is missing, and what it was made of has expired",
            f"Restore {paths.SEGMENT_DIRECTORY} from a copy, or {REPAIR}",
        ) from error


def whose(slots: Slots, state: State, version: int) -> str:
    """What a clause can say of the entry at `version`, which does not follow `state`."""
    data = slots.store.read(slots.path(version), entries.ENTRY_BYTES_MAX)
    try:
        found = entries.decode(data or b"", version)
    except (CorruptError, InvalidRequestError):
        return ", and it cannot be read"
    if found.birth != state.birth:
        return f", a stray one of another log (birth {found.birth}): the table was deleted and made anew under a writer"
    return ", of this very log: either entries were lost, or the table was restored from a copy under a writer"


def untold(root: str, version: int, teller: str) -> CorruptError:
    """Entry `version` is missing, and `teller` had been written after it."""
    return CorruptError(
        f"read log entry {version} of {root}",
        f"it is missing, yet it had been read before: {teller} tells of it",
        f"Restore it from a copy, or {REPAIR}",
        version=version,
        teller=teller,
    )


def went_back(root: str, before: State, now: State) -> TxsinkError:
    """Whoever had read `before` finds a log that does not lead there: `now` is its newest state."""
    what = f"go on after log entry {before.version} of {root}"
    if now.version < 0:
        return ConflictError(
            what,
            "there is no log any more: the table was deleted or renamed",
            "Name the path where it is now: opened here it would be a new table, without its rows",
            version=before.version,
        )
    if now.birth != before.birth:
        return ConflictError(
            what,
            f"the table was deleted and made anew since (its birth was {before.birth}, it is {now.birth})",
            "Open it again: what is written now goes into the new table",
            version=before.version,
        )
    if now.version < before.version:
        return CorruptError(
            what,
            f"the log ends at entry {now.version}: it was restored from a copy, or its newest entries are lost",
            "Open it again if it was restored. If not, restore the lost entries from a copy first; nothing was changed",
            version=before.version,
            head=now.version,
        )
    return ConflictError(
        what,
        "another entry has that number: the table was restored from a copy and written to since",
        "Open it again: it goes on from what is there",
        version=before.version,
        head=now.version,
    )


def newest_known(slots: Slots) -> State | None:
    """The newest of hint and summaries that agrees with the log; none may tell of an entry that is missing."""
    hint = _state_at(slots, paths.HEAD_PATH)
    found = None if hint is None else slots.digest(hint.version)
    if hint is not None and found == hint.digest:
        return hint
    known = _newest_summary(slots)
    last = -1 if known is None else known.version
    if hint is not None and found is None and last < hint.version and hint.birth == _birth(slots, known, hint):
        raise untold(slots.root, hint.version, paths.HEAD_PATH)
    for directory in (paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY):
        told = _last_told(slots, directory)
        if told > last and slots.digest(told) is None:
            # ORDER: an entry seen missing before what tells of it is listed again, else one that expired meanwhile
            # counts as lost: expiry takes away what tells of it first (I13).
            if _last_told(slots, directory) == told:
                raise untold(slots.root, told, directory)
            return newest_known(slots)
    return known


def newest_fitting(slots: Slots) -> State | None:
    """The newest of hint and summaries that agrees with the log, whatever else they tell of."""
    hint = _state_at(slots, paths.HEAD_PATH)
    return hint if hint is not None and slots.digest(hint.version) == hint.digest else _newest_summary(slots)


def tellers(slots: Slots, birth: str) -> dict[str, int]:
    """What tells how far the log of this birth leads, by path: hint, summaries, segments and their last version."""
    hint = _state_at(slots, paths.HEAD_PATH)
    found = {} if hint is None or hint.birth != birth else {paths.HEAD_PATH: hint.version}
    for directory in (paths.STATE_DIRECTORY, paths.SEGMENT_DIRECTORY):
        for name in slots.store.list(f"{slots.root}/{directory}"):
            if (told := _told_by(name)) is not None:
                found[f"{directory}/{name}"] = told
    return found


def _newest_summary(slots: Slots) -> State | None:
    written = (summary(slots, version) for version in reversed(summaries(slots)))
    return next((one for one in written if one and slots.digest(one.version) == one.digest), None)


def summaries(slots: Slots) -> list[int]:
    """The versions that have a summary."""
    names = slots.store.list(f"{slots.root}/{paths.STATE_DIRECTORY}")
    return sorted(version for name in names if (version := paths.parse_version(name)) is not None)


def summary(slots: Slots, version: int) -> State | None:
    """The summary at `version`; None when there is none, or a damaged one."""
    return _state_at(slots, paths.summary_path(version))


def _state_at(slots: Slots, path: str) -> State | None:
    """The state in a hint or a summary; None when there is none, or a damaged one."""
    data = slots.store.read(f"{slots.root}/{path}", entries.ENTRY_BYTES_MAX)
    return decode(data) if data else None


def _birth(slots: Slots, known: State | None, hint: State) -> str:
    """The birth of the log that is there; that of the hint when nothing is left to tell."""
    if known is not None:
        return known.birth
    try:
        first = slots.read(0)
    except (CorruptError, InvalidRequestError):
        first = None
    return hint.birth if first is None else first[0].birth


def _last_told(slots: Slots, directory: str) -> int:
    """The newest version that the summaries or segments in a directory tell of; -1 for none."""
    told = map(_told_by, slots.store.list(f"{slots.root}/{directory}"))
    return max((at for at in told if at is not None), default=-1)


def _told_by(name: str) -> int | None:
    """The last version that a summary or segment of this name tells of."""
    pair = paths.parse_segment(name)
    return paths.parse_version(name) if pair is None else pair[1]
