"""One life of a writer in the swarm: it opens, does a few things that chance picks, and ends, crashes or is fenced.

Promises: every kind of work the engine has, in any order; what a call promised by returning is told before the next
store call; an error that no fault and no rival explains is a `Violation`.
Relies on: `Swarm` for the store, the turns and the faults.
Does not promise: to be reasonable. A life may go on after an error, after it was fenced, or stop half-way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from txsink.choices import Mode, PartitionOverwrite
from txsink.errors import CorruptError, FencedError, InternalError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.log import expiry
from txsink.log.log import Log
from txsink.testing import tiny
from txsink.testing.crash_book import ROOT, Violation, book_of
from txsink.testing.crash_check import check_wounded
from txsink.testing.crash_world import OTHER_ROOT, World, stamps_of
from txsink.testing.faults import FaultyStore
from txsink.testing.names import mounted
from txsink.testing.simdisk import Crash
from txsink.writing.opening import open_sink
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

_APPEND: tuple[Mode, PartitionOverwrite] = ("append", "static")
_DYNAMIC: tuple[Mode, PartitionOverwrite] = ("overwrite", "dynamic")
MODES: tuple[tuple[Mode, PartitionOverwrite], ...] = (*[_APPEND] * 5, ("overwrite", "static"), *[_DYNAMIC] * 2)


class Host(Protocol):
    """What a life needs of its swarm."""

    world: World
    partition_by: tuple[str, ...]
    is_small: bool
    has_copies: bool
    mounts: int

    def add(self, writer: str) -> None:
        """One more life of the writer."""


def rows_of_epoch(writer: str, epoch: int) -> tuple[int, ...]:
    """What an epoch holds: nothing, one row, two or three; no two epochs share a row."""
    start = 10 * epoch + (10_000 if writer == "v" else 0)
    return tuple(range(start, start + (2, 1, 3, 0)[epoch % 4]))


class Life:
    """One life."""

    def __init__(self, host: Host, writer: str, number: int, store: FaultyStore, chance: random.Random) -> None:
        self._host, self._world = host, host.world
        self._writer, self._number = writer, number
        self._store, self._chance = store, chance
        self._sink: Writer | None = None
        self._left: list[Transaction] = []
        # By which name of the table it opens: drawn apart, so that all else stays as it was drawn before.
        self._roads = random.Random(f"roads-{chance.getstate()[1][:3]}-{number}")

    def live(self) -> None:
        """Open, work, end."""
        works: list[tuple[Callable[[Writer], object], int]] = [
            (self._commit, 6),
            (self._prepare, 4),
            (self._finish, 3),
            (self._begin, 1),
            (self._go_on, 2),
            (self._abort, 1),
            (self._recover, 1),
            (self._sweep, 1),
            (self._expire, 2 if self._host.is_small else 0),
            (self._read, 1),
            (self._look, 1),
            (self._copy, 3 if self._host.has_copies else 0),
        ]
        todo = self._chance.choices(
            [work for work, _ in works], [weight for _, weight in works], k=2 + self._chance.randrange(4)
        )
        try:
            for work in (self._open, *todo):
                if not self._tried(work):
                    return
            if self._sink is not None and self._chance.randrange(2):
                self._sink.close()
        except Crash:
            if self._chance.randrange(4):
                self._host.add(self._writer)
            raise

    def _tried(self, work: Callable[[Any], object]) -> bool:
        """Whether to go on."""
        try:
            work(self._sink)
        except (CorruptError, InternalError) as error:
            raise Violation("I6 damage was found", f"{type(error).__name__}: {error}") from error
        except (UnavailableError, OutcomeUnknownError) as error:
            if not self._store.delivered:
                raise Violation("I14 work refused", f"{type(error).__name__}: {error}") from error
            return self._after_failure()
        except FencedError:
            return self._sink is not None and self._chance.randrange(3) == 0
        except TxsinkError:
            return self._after_failure()
        return True

    def _after_failure(self) -> bool:
        """Give up, open again, or go on with the same sink."""
        match self._chance.randrange(3):
            case 0:
                return False
            case 1:
                return self._tried(self._open) if self._chance.randrange(8) else False
            case _:
                return self._sink is not None

    def _tell(self, what: str, epoch: int) -> None:
        self._world.tell(what, self._writer, epoch)

    # -- what it does -----------------------------------------------------------------------------------

    def _open(self, _: object) -> None:
        chance = self._chance
        options: dict[str, Any] = {"partition_by": self._host.partition_by}
        if chance.randrange(5) == 0:
            options["recover"] = False
        self._number += 0x100  # each opening is a process of its own
        stamps = stamps_of(self._number)
        self._left = []
        options["layout"] = "parquet"
        is_one_shot = chance.randrange(5) == 0
        is_mounted = self._roads.randrange(3) == 0
        self._host.mounts += is_mounted
        store, root = (mounted(self._store), OTHER_ROOT) if is_mounted else (self._store, ROOT)
        self._sink = open_sink(store, stamps, root, self._writer, options, is_one_shot=is_one_shot)
        if self._sink.last_epoch is not None:
            self._sink.log.settle()
            self._tell("committed", self._sink.last_epoch)

    def _begun(self, sink: Writer, *, is_told: bool = True) -> Transaction:
        """An epoch after the last one, seldom one that was skipped to, or an old one."""
        known = [-1 if sink.last_epoch is None else sink.last_epoch, *sink.pending]
        epoch = max(0, max(known) + self._chance.choice((1, 1, 1, 1, 2, 0, -1)))
        rows = rows_of_epoch(self._writer, epoch)
        if is_told:
            self._world.truth.rows[self._writer, epoch] = rows
        mode, partitions = self._chance.choice(MODES)
        txn = sink.begin(epoch, mode=mode, partition_overwrite=partitions)
        if txn.outcome == "open" and rows:
            tiny.stage(txn, rows)
        return txn

    def _commit(self, sink: Writer) -> None:
        self._committed(self._begun(sink))

    def _committed(self, txn: Transaction) -> None:
        if txn.outcome in {"aborted", "unknown"}:
            return
        txn.commit()
        self._tell("committed", txn.epoch)

    def _prepare(self, sink: Writer) -> None:
        txn = self._begun(sink)
        txn.prepare()
        self._tell("prepared" if txn.outcome == "prepared" else "committed", txn.epoch)

    def _finish(self, sink: Writer) -> None:
        pending = sink.pending
        if not pending:
            return
        upto = self._chance.choice(pending)
        sink.commit(upto)
        for epoch in pending:
            if epoch <= upto:
                self._tell("committed", epoch)

    def _begin(self, sink: Writer) -> None:
        self._left.append(self._begun(sink))

    def _go_on(self, sink: Writer) -> None:
        """With a transaction that was begun earlier; else begin one and drop it."""
        if self._left:
            self._committed(self._left.pop(0))
        else:
            self._begun(sink).abort()

    def _abort(self, sink: Writer) -> None:
        if sink.pending:
            sink.abort(self._chance.choice(sink.pending))

    def _recover(self, sink: Writer) -> None:
        last = sink.last_epoch
        if last is None or self._chance.randrange(3) == 0:
            sink.recover()
        else:
            sink.recover(max(0, last - self._chance.randrange(3)), self._chance.choice(("skip", "rewind")))

    def _sweep(self, sink: Writer) -> None:
        sink.sweep()

    def _expire(self, sink: Writer) -> None:
        expiry.expire(sink.log, sink.log.state.version)

    def _copy(self, _: object) -> None:
        """The table is copied, and the copy's writer does what it likes: the original must not feel it."""
        self._number += 0x100
        root = f"/d/copy-{self._number}"
        self._world.copy(root)
        options: dict[str, Any] = {"recover": self._chance.randrange(3) > 0}
        try:
            with open_sink(self._store, stamps_of(self._number), root, self._writer, options) as sink:
                if self._chance.randrange(2) and sink.pending:
                    sink.abort(self._chance.choice(sink.pending))
                sink.sweep()
                self._begun(sink, is_told=False).commit()
                if self._chance.randrange(4) == 0:
                    expiry.expire(sink.log, sink.log.state.version)
        except CorruptError as error:
            # What was pending is published by the original, or dropped, since it was copied.
            if "staged file" not in str(error):
                raise

    # -- what it sees -----------------------------------------------------------------------------------

    def _read(self, _: object) -> None:
        """The log reader sees the whole table of one version (I2)."""
        self._number += 0x100
        reader = Log(self._store, ROOT, stamps_of(self._number))
        reader.load()
        live = {path: fact.file() for path, fact in reader.live().items()}
        book = book_of(self._world.disk.files(), self._world.truth, last=reader.state.version)
        if live != book.files:
            raise Violation("I2 log reader", f"it sees {sorted(live)}, committed are {sorted(book.files)}")

    def _look(self, _: object) -> None:
        """What must hold at every moment."""
        check_wounded(self._world.disk.files(), self._world.truth)
