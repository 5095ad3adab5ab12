"""The commit log over a store: read it, follow it, append to it.

Promises: an append creates exactly the slot after the newest entry, after every entry before it was read, and is
durable when it returns; a lost race is decided again on what the winner wrote; a torn, empty or missing entry is
an error and never "no entry" (I13). Opening reads the hint, one entry and the few entries after it, however long
the log. Summaries, segments and the hint are written by `maintain`, after commits, and can all be made again.
Relies on: `Store.put_if_absent`; `state.fold`, which refuses an entry that may not stand where it stands.
Does not promise: thread safety (a sink has one lock), nor anything about Parquet data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa

from txsink import paths
from txsink.chain.put_once import possibly_written
from txsink.environment import Stamps
from txsink.errors import CorruptError, InternalError, InvalidRequestError, TxsinkError, UnavailableError
from txsink.log import entry as entries, gaps, segment
from txsink.log.entry import Abort, AnyEntry, Commit, Prepare
from txsink.log.segment import BLOCK, Fact
from txsink.log.slots import Slots, entry_of
from txsink.log.state import State, encode, fold
from txsink.store.protocol import Store

HINT_EVERY = 16
APPEND_TRIES, FACTS_TRIES, SEGMENT_BYTES_MAX = 1000, 3, 1 << 30
LOOK_AGE_MS = 1000  # where a look is a request, who has read or appended within it puts without one: a look follows

Slot: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[State, Slot], AnyEntry | None]


class Log:
    """The log of the table at `root`."""

    def __init__(self, store: Store, root: str, stamps: Stamps) -> None:
        self.store = store
        self.root = root
        self.stamps = stamps
        self.slots = Slots(store, root, stamps)
        self.state = State()
        self._recent: dict[int, AnyEntry] = {}  # entries no segment holds yet, and pending ones
        self._due: State | None = None
        self._looked_ms = 0
        self._hinted = self._settled = -1  # versions: of the hint, up to which all are durable
        self._ensured: set[tuple[int, int]] = set()
        self._live: tuple[int, dict[str, Fact]] = (-1, {})
        self._unanswered: list[AnyEntry] = []

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self.state.version >= 0

    @property
    def doubts(self) -> list[AnyEntry]:
        """Entries whose put was never answered, as long as their slots were not seen taken: each may yet appear."""
        return [one for one in self._unanswered if one.version > self.state.version]

    # -- reading --------------------------------------------------------------------------------------

    def load(self, *, is_followed: bool = True) -> State:
        """The newest state, by way of the newest hint or summary; unless followed, that of the hint or summary."""
        self._start_from(gaps.newest_known(self.slots) or State())
        if is_followed or not self.exists:
            self.refresh()
        if not self.exists and self.slots.are_used() and not self.refresh().version >= 0:
            raise gaps.headless(self.root)
        if self.exists:
            self._require_whole()
        return self.state

    def refresh(self) -> State:
        """The newest state, by way of the entries appended since."""
        before = self.state
        problem: TxsinkError | None = None
        try:
            while (found := self.slots.read(self.state.version + 1)) is not None:
                self._take(*found)
        except (CorruptError, InvalidRequestError) as error:
            problem = error
        if self._is_behind(before, problem):
            self._reload(before)
        elif problem is not None:
            raise problem
        if self.state is not before:  # that the next slot is empty says nothing of whose log it is
            self._looked_ms = self.stamps.now_ms()
        return self.state

    def entry(self, version: int) -> AnyEntry:
        """The entry at `version`."""
        if (known := self._recent.get(version)) is not None:
            return known
        found = self.slots.read(version)
        if found is not None:
            return found[0]
        boundary = self.state.boundary
        if version >= boundary:
            boundary = Log(self.store, self.root, self.stamps).load().boundary  # expired since we last looked, perhaps
        if version < boundary:
            raise InvalidRequestError(
                f"read log entry {version}", f"entries below {boundary} have expired", "Name a later version"
            )
        raise gaps.missing(version)

    def prepare_entry(self, version: int) -> Prepare:
        """The prepare entry at `version`."""
        found = self.entry(version)
        if not isinstance(found, Prepare):
            raise CorruptError(f"read log entry {version}", "it is no prepare entry", "Inspect the log")
        return found

    def entries(self, first: int, last: int) -> Iterator[AnyEntry]:
        """The entries `first` to `last`."""
        return (self.entry(version) for version in range(first, last + 1))

    def facts(self) -> pa.Table:
        """All facts up to the newest entry known."""
        for _ in range(FACTS_TRIES):
            with suppress(InvalidRequestError):
                return self._all_facts()
            # A segment was merged and its parts expired under us: the newest state names the merged one.
            if self.is_as_read(to_the_end=False):  # if not, it was loaded, unless the log went back
                self.load()
        with gaps.unlisted(self.root):
            return self._all_facts()

    def live(self) -> dict[str, Fact]:
        """The files of the newest state known, by path, in the order they were committed."""
        version, found = self._live
        if version > self.state.version or version < (self.state.version + 1) // BLOCK * BLOCK - 1:
            new, found = segment.rows_of(self.facts()), {}
        else:
            new = self.facts_of(version + 1, self.state.version)
        for fact in new:
            if fact.kind == "add":
                found[fact.path or ""] = fact
            elif fact.kind == "remove":
                found.pop(fact.path or "", None)
        self._live = (self.state.version, found)
        return found

    def commit_of(self, writer: str, epoch: int) -> Fact | None:
        """The commit of an epoch (or the rewind to it); None when it was never committed, or was taken back."""
        return segment.commit_of(self.facts(), writer, epoch)

    def replacements(self, writer: str) -> list[Fact]:
        """The files the writer's epochs replaced: all that they removed, but for what rewinds took back."""
        return segment.replacements(self.facts(), writer)

    def is_retired(self, writer: str, run: str, since: int) -> bool:
        """Whether an entry after `since` retired the run (or the one that has this tag), or took the writer from it."""
        if since >= (self.state.version + 1) // BLOCK * BLOCK - 1:
            found = self.facts_of(since + 1, self.state.version)
        else:
            found = segment.rows_of(segment.chosen(self.facts(), "claim", "retire"))
        holder = self.state.writers.get(writer)
        kinds = {"retire"} if holder is not None and paths.is_same_run(holder.run, run) else {"claim", "retire"}
        mine = (fact for fact in found if fact.kind in kinds and fact.writer == writer)
        return any(paths.is_same_run(fact.run or "", run) for fact in mine)

    # -- appending ------------------------------------------------------------------------------------

    def append(self, make: Make) -> AnyEntry | None:
        """Append what `make` says for the newest state; None when it says that nothing is to be appended."""
        for attempt in range(APPEND_TRIES):
            write_id = self.stamps.new_id()
            slot: Slot = {
                "format": entries.FORMAT,
                "version": self.state.version + 1,
                "time_ms": self.stamps.now_ms(),
                "write_id": write_id,
                "previous": self.state.digest,
                "table_id": self.state.table_id,
                "birth": self.state.birth or write_id,
            }
            try:
                entry = make(self.state, slot)
            except TxsinkError:
                # A refusal counts only when nothing was appended since the state it was made on.
                if self.refresh().version < slot["version"]:
                    raise
                continue
            if self.state.version >= slot["version"]:
                continue  # what `make` looked up had expired, so the log was loaded anew: decide again
            # ORDER: entries read durable before the next one gets its name (or the caller believes them), else a power
            # cut keeps that one and takes those away: a gap (I13).
            self.settle()
            if entry is None:
                return None
            data = entries.encode(entry)
            self._require_fit(entry)
            # ORDER: newest entry known looked at before ours gets its name, else a writer of a table that was restored
            # or made anew plants an entry above its head, or is told that it is committed (I3).
            if not self.is_as_read(slot["time_ms"]):
                continue
            if self._put(entry, data):
                # ORDER: the entry before looked at again before the append counts, else a stalled writer uses a slot
                # twice whose neighbour expired before it (I7), or that of a log which was restored counts (I3).
                with possibly_written(entry_of(entry.version)):
                    stands = (self.store.traits.keeps_names and not self.exists) or self._stands(self.state)
                if stands:
                    self._take(entry, entries.digest(data))
                    self._settled = entry.version  # with everything before it: it is one directory
                    self._looked_ms = slot["time_ms"]
                    return entry
                self._reload(self.state)
            else:
                self.refresh()
            self.stamps.pause(attempt)
        found = f"{APPEND_TRIES} other appends came first"
        raise UnavailableError(f"append to the log of {self.root}", found, "Retry with fewer writers")

    def settle(self) -> None:
        """Make the entries read so far durable, also those of a process that died before it could."""
        if self._settled < self.state.version:
            self.store.settle([self._at(paths.entry_path(self.state.version))])
            self._settled = self.state.version

    # -- off the commit path --------------------------------------------------------------------------

    def maintain(self) -> None:
        """Write what makes reading cheap: segments, summary, hint. Nothing depends on its success."""
        if self._due is not None:
            with suppress(TxsinkError):
                # ORDER: entries read durable before segments that repeat them, else a power cut takes an entry back
                # and its facts stay (I1).
                self.settle()
                self.summarise(self._due)
                self._due = None
        self.hint()

    def leave(self) -> None:
        """Tell of the newest entry: as long as none follows, nothing else does."""
        if self.state.version > self._hinted:
            with suppress(TxsinkError):
                self.refresh()
                self.is_as_read()
                self.hint(every=1)

    def hint(self, every: int | None = None) -> None:
        """Write the newest state down, unless a recent one is."""
        if self.state.version - self._hinted >= (1 if self.store.traits.hints_always else every or HINT_EVERY):
            with suppress(TxsinkError):
                # ORDER: entries read durable before the hint that counts on them, else a power cut leaves a hint at
                # an entry that never was (I13).
                self.settle()
                self.store.put_hint(self._at(paths.HEAD_PATH), encode(self.state), self.stamps.new_id())
                self._hinted = self.state.version

    def keep_hint(self) -> None:
        """Write the newest state down durably."""
        self.store.replace(self._at(paths.HEAD_PATH), encode(self.state), self.stamps.new_id())
        self._hinted = self.state.version

    def summarise(self, state: State) -> None:
        """Make the segments below `state` and then the summary that counts on them."""
        self.ensure_segments(state.version)
        self.store.put_if_absent(self._at(paths.summary_path(state.version)), encode(state), self.stamps.new_id())
        covered = (self.state.version + 1) // BLOCK * BLOCK
        needed = {pending.prepared for pending in (*self.state.pending, *self.state.aborting)}
        self._recent = {at: kept for at, kept in self._recent.items() if at >= covered or at in needed}

    def ensure_segments(self, version: int | None = None, *, twice: bool = False) -> None:
        """Make the segments that a reader at `version` (the newest, if None) reads; `twice`: their parts as well."""
        for pair in segment.ranges((self.state.version if version is None else version) + 1):
            for one in (*(segment.children(*pair) if twice else ()), pair):
                self._ensure(*one)

    # -- pieces ---------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _put(self, entry: AnyEntry, data: bytes) -> bool:
        before, self._unanswered = self.doubts, [*self.doubts, entry]
        try:
            return self.slots.put(entry.version, data, entry.write_id)
        except (UnavailableError, InvalidRequestError):
            self._unanswered = before  # refused: it is not there
            raise

    def _require_fit(self, entry: AnyEntry) -> None:
        """Refuse an entry that nobody could read where it is to stand: it would end the log for ever."""
        try:
            fold(self.state, entry, "")
        except CorruptError as error:
            raise InternalError(f"append log entry {entry.version}", error.found, "Report it") from error

    def _take(self, entry: AnyEntry, digest: str) -> None:
        self.state = fold(self.state, entry, digest)
        self._recent[entry.version] = entry
        if entry.version % BLOCK == BLOCK - 1:
            self._due = self.state

    def _start_from(self, state: State) -> None:
        self.state = state
        self._hinted = state.version
        self._recent, self._due, self._looked_ms = {}, None, self.stamps.now_ms()

    def is_as_read(self, now_ms: int = -1, *, to_the_end: bool = True) -> bool:
        """Whether the log is the one we read, and ends there, as far as one look tells; if not, it was read on."""
        is_costly = self.store.traits.hints_always  # not `to_the_end`: no later look brings back what goes next
        if not self.exists or (is_costly and to_the_end and 0 <= now_ms - self._looked_ms < LOOK_AGE_MS):
            return True
        if not self._stands(self.state):
            self._reload(self.state)
            return False
        self._looked_ms = now_ms
        if is_costly or not to_the_end or not gaps.is_gap(self.state, self.slots.beyond(self.state.version + 1, 2)):
            return True
        self._require_whole()  # an append below a stray entry would be the last one that anybody can read
        return False

    def _require_whole(self) -> None:
        """Refuse a log without an entry that no segment repeats, or with something beyond its first empty slot."""
        while (lost := gaps.first_lost(self.slots, self.state)) is not None:
            # ORDER: names beyond seen before the slot is read again, else two appends or an expiry that come in between
            # pass for a hole (I13).
            before = self.state.version
            if self.refresh().version == before:
                raise gaps.hole(self.slots, self.state, *lost)

    def _is_behind(self, state: State, problem: TxsinkError | None) -> bool:
        """Whether slots after `state`, which were just read, had expired."""
        if self.store.traits.keeps_names:
            return problem is not None and "expired" in problem.context
        # ORDER: slots read before the entry we started from is looked at once more, else an expired one counts as
        # unused, and what a stalled writer has put into it as an entry, or as a damaged one (I7).
        return not self._stands(state)

    def _stands(self, state: State) -> bool:
        """Whether the newest entry of `state` is still in its slot; before the first: whether nothing is expired."""
        if state.version < 0:
            known = gaps.newest_known(self.slots)
            return known is None or known.version <= self.state.version
        return self.slots.digest(state.version) == state.digest

    def _reload(self, state: State) -> None:
        """Start again from what was written down since `state`, whose newest entry is gone: it must have expired."""
        known, now = gaps.newest_known(self.slots), Log(self.store, self.root, self.stamps).load()
        if known is None or known.version <= state.version or now.boundary <= state.version:
            raise gaps.went_back(self.root, state, now)
        self._start_from(known)
        self.refresh()

    def facts_of(self, first: int, last: int) -> list[Fact]:
        """The facts of the entries `first` to `last`, from these very entries."""
        rows, prepares = list[Fact](), dict[int, Prepare]()
        for entry in self.entries(first, last):
            prepare = None
            if isinstance(entry, Prepare):
                prepares[entry.version] = entry
            elif isinstance(entry, Commit | Abort):
                prepare = prepares.pop(entry.prepared, None) or self.prepare_entry(entry.prepared)
            rows += segment.facts(entry, prepare)
        return rows

    def _all_facts(self) -> pa.Table:
        parts = [self._segment(first, last) for first, last in segment.ranges(self.state.version + 1)]
        covered = (self.state.version + 1) // BLOCK * BLOCK
        return pa.concat_tables([*parts, segment.table(self.facts_of(covered, self.state.version))])

    def _segment(self, first: int, last: int) -> pa.Table:
        """The facts of a range: its segment, else (also if that is damaged) what the segment is made of."""
        path = self._at(paths.segment_path(first, last))
        data = self.store.read(path, SEGMENT_BYTES_MAX)
        try:
            if data is not None:
                return segment.decode(data, path)
        except CorruptError:
            with suppress(CorruptError, InvalidRequestError):
                return self._parts(first, last)
            raise
        return self._parts(first, last)

    def _parts(self, first: int, last: int) -> pa.Table:
        parts = [self._segment(*child) for child in segment.children(first, last)]
        return pa.concat_tables(parts) if parts else segment.table(self.facts_of(first, last))

    def _ensure(self, first: int, last: int) -> None:
        if (first, last) in self._ensured:
            return
        path = self._at(paths.segment_path(first, last))
        if self.store.tail(path, 0) is None:
            body = segment.encode(self._segment(first, last))
            if self.store.put_if_absent(path, body, self.stamps.new_id()) is None and self.store.tail(path, 0) is None:
                raise UnavailableError(f"write {path}", "the store did not say that it is there", "Retry")
        self._ensured.add((first, last))
