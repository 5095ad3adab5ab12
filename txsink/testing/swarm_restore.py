"""A swarm of writers whose table is restored from a copy under them, at any version, again and again.

Promises: `run` plays one seed: two writers commit, leave, come back and expire; a copy is kept of every version; at any
moment between two calls one of the copies takes the table's place. After every step the table holds the rows of the
copy and of all that was acknowledged since, each once (I1, I3), and can be opened (I7); a writer is refused only when
the table was restored since it opened.
Relies on: stores in memory, whose content is one dictionary; a clock that moves on by more than `log.LOOK_AGE_MS`.
Does not promise: anything about a restore between a look and its put: `tests/test_log_gaps.py` has one.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

from txsink.environment import Stamps
from txsink.errors import ConflictError, CorruptError, FencedError
from txsink.log import expiry
from txsink.log.log import LOOK_AGE_MS
from txsink.reading.table import open_log
from txsink.testing.crash_book import ROOT, Violation
from txsink.testing.crash_world import small_blocks
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

WRITERS = ("w", "v")
_STEPS = 24


class Restores:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._disk = Objects() if self.chance.randrange(2) else Names()
        self._held: dict[str, bytes] = self._disk.objects if isinstance(self._disk, Objects) else self._disk.held
        ids, clock = itertools.count(1), itertools.count(0, 2 * LOOK_AGE_MS)
        self._stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)
        self._sinks: dict[str, Writer] = {}
        self._is_stale: dict[str, bool] = {}
        self._rows: list[int] = []  # of the table as it is to be
        self._copies: list[tuple[dict[str, bytes], list[int]]] = []
        self.counts: Counter[str] = Counter()

    def play(self) -> Counter[str]:
        """All steps, judged one by one."""
        works: list[Callable[[], None]] = [*[self._commit] * 6, self._restore, self._restore, self._leave, self._expire]
        for _ in range(_STEPS):
            self.chance.choice(works)()
            self._judge()
        return self.counts

    def _opened(self, writer: str) -> Writer:
        if writer not in self._sinks:
            self._sinks[writer] = open_sink(self._disk.store(), self._stamps, ROOT, writer, {"layout": "parquet"})
            self._is_stale[writer] = False
        return self._sinks[writer]

    def _tried(self, writer: str, act: Callable[[Writer], None]) -> None:
        try:
            act(self._opened(writer))
        except (CorruptError, ConflictError, FencedError) as error:
            if not self._is_stale.get(writer):
                raise Violation("I14 work refused", f"{type(error).__name__}: {error}") from error
            self.counts["refused"] += 1
            self._sinks.pop(writer)

    def _commit(self) -> None:
        row = self.counts["commits"] = self.counts["commits"] + 1

        def act(sink: Writer) -> None:
            txn = sink.begin(0 if sink.last_epoch is None else sink.last_epoch + 1)
            txn.write({"id": [row]})
            txn.commit()
            self._rows.append(row)
            self._copies.append((dict(self._held), [*self._rows]))

        self._tried(self.chance.choice(WRITERS), act)

    def _restore(self) -> None:
        if not self._copies:
            return
        files, rows = self.chance.choice(self._copies)
        self._held.clear()
        self._held.update(files)
        self._rows = [*rows]
        self._is_stale = dict.fromkeys(self._sinks, True)
        self.counts["restores"] += 1

    def _leave(self) -> None:
        if self._sinks:
            self._sinks.pop(self.chance.choice(sorted(self._sinks))).close()

    def _expire(self) -> None:
        self._tried(self.chance.choice(WRITERS), self._expired)

    def _expired(self, sink: Writer) -> None:
        expiry.expire(sink.log, sink.log.state.version)
        self.counts["expiries"] += 1

    def _judge(self) -> None:
        if not self._rows:
            return
        try:
            found = sorted(open_log(self._disk.store(), self._stamps, ROOT).to_arrow()["id"].to_pylist())
        except CorruptError as error:
            raise Violation("I7 the table cannot be opened", str(error)) from error
        if found != sorted(self._rows):
            raise Violation("I3 rows", f"there are {found}, expected {sorted(self._rows)}")
        self.counts["judged"] += 1


def run(seed: int) -> Counter[str]:
    """One seed, judged."""
    with small_blocks():
        return Restores(seed).play()
