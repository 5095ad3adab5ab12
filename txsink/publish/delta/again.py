"""Commits of ours that Delta's log has lost, made again where it can be proven that nobody else's were among them.

Promises: each lost version gets the commit that it had, under its own number, so that whatever our log tells of a
version of Delta's log is true again. Done again after a crash, it goes on where it stopped (I12). Where others may have
committed nothing is done, and the reason is said.
Relies on: entries that tell of a version of Delta's log not older than their own commit; no writer at work meanwhile.
Does not promise: what other programs committed after the newest version that our log tells of. That was lost with the
log, and is seen here only if it brought files.

The proof counts. Delta's log ends at M with a commit of ours, under the number that our log knows it by: so what is
there is the beginning of the log that was. Our log tells of that log up to N. Each transaction that our log resolved by
a commit there, and that this beginning does not resolve, had a commit of its own among M + 1 to N. If they are N - M,
they are all that there was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from txsink import paths
from txsink.delta import state as states
from txsink.delta.actions import begun, info_of, txn_of
from txsink.delta.log import DeltaLog
from txsink.delta.state import Action, DeltaState
from txsink.errors import ConflictError
from txsink.log import gaps, segment
from txsink.log.entry import Abort, AnyEntry, Commit, Convert, Prepare
from txsink.log.log import Log
from txsink.log.state import APPEND, State, fold
from txsink.publish.decision import End
from txsink.publish.delta import agreement as delta_agreement
from txsink.publish.delta.publisher import DeltaPublisher
from txsink.publish.protocol import end_of

ELSEWHERE = (
    "Put the former Delta log back; if there is no copy of it, read the table, and write what it holds, and the epochs"
    " that it lacks, to another path"
)

WENT_ON = "put that one back; if it is lost, read the table, and write what it holds to another path"


class Lost(NamedTuple):
    """A version of Delta's log, and what its commit was."""

    version: int
    what: str


class _Ended(NamedTuple):
    """A transaction that our log has resolved, and the state of our log once it was prepared."""

    end: Commit | Abort
    prepare: Prepare
    then: State

    @property
    def told(self) -> int:
        """A version of Delta's log that resolves it; -1 for none."""
        return -1 if self.end.delta is None else self.end.delta

    @property
    def before(self) -> int:
        """A version of Delta's log that was there before; -1 for none."""
        return max(-1 if known is None else known for known in (self.prepare.base, self.then.delta))


def lost(log: Log, delta: DeltaLog) -> tuple[list[Lost], str]:
    """What has to be committed again, oldest first; nothing and the reason, where others may have committed."""
    found, why = _proven(log, delta)
    return [Lost(at, _described(one)) for at, one in found], why


def commit_again(log: Log, delta: DeltaLog) -> None:
    """Make the lost commits again, each under its own number."""
    for version, one in _proven(log, delta)[0]:
        _PublisherThen(_LogThen(log, one.then), delta).commit_at(version, one)


def given_up(log: Log, delta: DeltaLog) -> tuple[dict[str, int], str]:
    """Delta's records that a repair took back, by writer, where our log is the one again that tells of them.

    Nothing and the reason, where txsink has committed since: with the numbers of another log.
    """
    found = delta.refresh()
    if not _is_older(log, found):
        return {}, ""
    newest, names, is_used, version = log.state.delta or 0, list[str](), False, found.version
    while version >= 0 and (actions := delta.actions(version)) is not None:
        if (name := _repaired(actions)) is not None:
            names.append(name)
        elif version <= newest and _records_in(actions):
            break
        is_used = is_used or (name is None and bool(_records_in(actions)))
        version -= 1
    if not names:
        return {}, ""
    if is_used or not _is_known(delta, version, _ended(log)[0]):
        return {}, "a repair gave up what this log tells of, and the table went on with an older one"
    told: dict[str, int] = {}
    for at in range(version, -1, -1):
        told = dict(_records_in(delta.actions(at) or [])) | told  # the newest of each
    return {name: told[states.app_id(name)] for name in names if states.app_id(name) in told}, ""


def take_up(log: Log, delta: DeltaLog) -> None:
    """Give Delta's log back the records that a repair took back."""
    records, version = given_up(log, delta)[0], delta.state.version + 1
    what = f"take up again what a repair of {log.root} gave up"

    def make(found: DeltaState) -> list[Action]:
        _require_next(found, version, what)
        return [txn_of(states.app_id(name), value) for name, value in records.items()]

    if records:
        delta.commit(make, info_of("TAKE UP", {"writers": ", ".join(sorted(records))}), what)


class _LogThen(Log):
    """The log with a former state; what it says of files is as of now."""

    def __init__(self, now: Log, then: State) -> None:
        super().__init__(now.store, now.root, now.stamps)
        self._now = now
        self.state = then

    def facts(self) -> pa.Table:
        return self._now.facts()

    def entry(self, version: int) -> AnyEntry:
        return self._now.entry(version)


class _PublisherThen(DeltaPublisher):
    """Commits what was prepared as it was committed then."""

    def commit_at(self, version: int, one: _Ended) -> None:
        """Commit it as this version of Delta's log, or not at all."""
        prepare = one.prepare
        what = f"commit epoch {prepare.epoch} of {prepare.writer!r} to Delta's log again"

        def make(found: DeltaState) -> list[Action]:
            # ORDER: the number compared before the commit gets its name, else another program's, made meanwhile, has
            # the number, and what our log tells of that version is another epoch's (I2).
            _require_next(found, version, what)
            self._require_ours(found, what, prepare.writer, prepare.base)
            if isinstance(one.end, Commit):
                return self._actions(found, prepare, what)
            first = begun(found, self._made(prepare), self._columns(prepare), what) if version == 0 else []
            return [*first, self._poison(prepare)]

        told = {"mode": prepare.mode, "writer": prepare.writer, "epoch": str(prepare.epoch)}
        operation = "WRITE" if isinstance(one.end, Commit) else "ABORT"
        self.delta.commit(make, info_of(operation, told, prepare.metadata, is_append=prepare.mode == APPEND), what)


def _require_next(found: DeltaState, version: int, what: str) -> None:
    """Refuse another number than the one that was proven."""
    if found.version + 1 != version:
        problem = f"it is to be version {version}, and version {found.version} is there: others commit meanwhile"
        raise ConflictError(what, problem, "Look again: `txsink repair`")


# -- the proof ----------------------------------------------------------------------------------------


def _proven(log: Log, delta: DeltaLog) -> tuple[list[tuple[int, _Ended]], str]:
    """Each lost version with the transaction that it resolved; nothing and the reason, where that is not proven."""
    own, found, what = log.refresh(), delta.refresh(), f"repair {log.root}"
    if not _is_older(log, found):
        return [], ""
    if found.version >= 0 and found.table_id != own.table_id:
        return [], "another program has made the Delta table anew"
    if any(delta_agreement.ahead(log, found, writer, what) for writer in own.writers):
        return [], "the table's own log is an older copy as well"
    names = delta.store.list(f"{log.root}/{paths.DELTA_DIRECTORY}")
    if beyond := [name for name in names if name[:20].isdecimal() and int(name[:20]) > found.version]:
        return [], f"{beyond[0]} is there, and version {found.version + 1} is not"
    ended, told = _ended(log)
    if (version := _expired(log, found, ended)) is not None:
        return [], f"an entry that log entry {version} follows has expired"
    if found.version >= 0 and not _is_known(delta, found.version, ended):
        return [], f"its newest commit, version {found.version}, is none that this table's own log tells of"
    missing = [one for one in ended if one.told >= 0 and _resolved(found, one.end) is None]
    missing.sort(key=lambda one: (one.told, one.before, one.end.version))
    count = told - found.version
    if count != len(missing):
        return [], f"{count} versions are lost, and {len(missing)} of them were txsink's"
    numbered = [*enumerate(missing, found.version + 1)]
    return (numbered, "") if not (why := _unfit(log, delta, numbered)) else ([], why)


def _unfit(log: Log, delta: DeltaLog, numbered: list[tuple[int, _Ended]]) -> str:
    """Why these commits cannot be made again, although all were ours; nothing where they can."""
    for at, one in numbered:
        if not one.before < at <= one.told:
            return f"the log does not tell whether version {at} was that of epoch {one.end.epoch} of {one.end.writer!r}"
        for file in one.prepare.files if isinstance(one.end, Commit) else ():
            if end_of(log.store, f"{log.root}/{file.path}", file) is not End.SAME:
                return f"{file.path} of epoch {one.end.epoch} of {one.end.writer!r} is gone, or is another file"
    known = delta_agreement.named(delta)
    for path in paths.in_no_other_table(log.store.list(log.root)):
        is_data = path.endswith((".parquet", ".bin")) and not path.startswith(("_", "."))
        if is_data and path not in known and not paths.is_data_path(path):
            return f"another program wrote {path}, and no log names it: it may have been committed"
    return ""


def _history(log: Log) -> Iterator[tuple[AnyEntry, State]]:
    """The entries from the first state on that is known, each with the state after it."""
    boundary = log.state.boundary
    summaries = (gaps.summary(log.slots, at) for at in gaps.summaries(log.slots) if at >= boundary)
    state = State() if not boundary else next((one for one in summaries if one is not None), log.state)
    for version in range(state.version + 1, log.state.version + 1):
        found = log.slots.read(version)
        if found is None:
            raise gaps.missing(version)
        state = fold(state, *found)
        yield found[0], state


def _ended(log: Log) -> tuple[list[_Ended], int]:
    """The transactions that our log resolved since the table has this layout; the newest version that it tells of."""
    newest = -1 if log.state.delta is None else log.state.delta
    told, ended, waiting = newest, list[_Ended](), dict[int, tuple[Prepare, State]]()
    for item, state in _history(log):
        if isinstance(item, Convert):
            told, ended = newest, []
        elif isinstance(item, Prepare):
            waiting[item.version] = (item, state)
            told = max(told, -1 if item.base is None else item.base)
        elif isinstance(item, Commit | Abort) and item.prepared in waiting:
            ended.append(_Ended(item, *waiting.pop(item.prepared)))
    return ended, told


def _expired(log: Log, found: DeltaState, ended: list[_Ended]) -> int | None:
    """The version of an entry that resolved a transaction which Delta's log does not, and whose entries are gone."""
    seen = {one.end.version for one in ended}
    for fact in segment.rows_of(segment.chosen(log.facts(), "commit", "abort")):
        is_here = fact.version > log.state.converted and fact.version not in seen
        if is_here and states.resolved(found, fact.writer, fact.prepared or 0) is None:
            return fact.version
    return None


def _is_known(delta: DeltaLog, version: int, ended: list[_Ended]) -> bool:
    """Whether a commit of Delta's log is one that our log knows under this number."""
    found = _records_in(delta.actions(version) or [])
    return any(one.told >= version and not found.isdisjoint(_records(one.end)) for one in ended)


def _records(end: Commit | Abort) -> set[tuple[str, int]]:
    """What the commit that resolved a transaction may hold."""
    value = states.published(end.prepared) + isinstance(end, Abort)
    names = (states.app_id(end.writer), *([states.abort_id(end.writer, end.prepared)] if value % 2 else ()))
    return {(name, value) for name in names}


def _records_in(actions: list[Action]) -> set[tuple[str, int]]:
    """What a commit records of transactions of ours."""
    found = ((action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action)
    return {one for one in found if one[0].startswith((states.app_id(""), "txsink-abort-"))}


def _repaired(actions: list[Action]) -> str | None:
    """Whose record a repair has taken back by this commit; None when it is another one."""
    info = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    is_ours = (info.get("engineInfo"), info.get("operation")) == ("txsink", "REPAIR")
    return str(info["operationParameters"]["writer"]) if is_ours else None


def _is_older(log: Log, found: DeltaState) -> bool:
    """Whether Delta's log lacks something that our log counts on."""
    writers = (*log.state.writers, "")
    return any(delta_agreement.problem(log.state, found, "repair", None, writer) for writer in writers)


def _resolved(found: DeltaState, end: Commit | Abort) -> bool | None:
    return states.resolved(found, end.writer, end.prepared)


def _described(one: _Ended) -> str:
    verb = "committed" if isinstance(one.end, Commit) else "aborted"
    return f"epoch {one.end.epoch} of {one.end.writer!r} was {verb} by it, says log entry {one.end.version}"
