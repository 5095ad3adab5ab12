"""A caller that does what it is told: programs, one thing that goes wrong in each, and what the messages say then.

Promises: `trial` runs a program in which one store call is disturbed, follows every message to the letter until the
program has done what it was for, and returns what was wrong on the way: an outcome or a message that a next process,
opened at that very moment, contradicts; rows lost or doubled at the end; a disturbance that was planned and did not
happen. `calls_of` counts the calls there are to disturb.
Relies on: programs that make the same calls each time; ids of rows, each in one epoch.
Does not promise: two disturbances in one life. Crashes, lost answers and races have searches of their own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from txsink import conversion as convert
from txsink.delta.log import DeltaLog
from txsink.environment import Stamps
from txsink.errors import ConflictError, InvalidRequestError, OutcomeUnknownError, TxsinkError, UnavailableError
from txsink.log import expiry
from txsink.log.log import Log
from txsink.store.protocol import Store
from txsink.testing import tiny
from txsink.testing.crash_book import ROOT, ids_in
from txsink.testing.crash_check import directory_ids
from txsink.testing.crash_world import World, remembered, rows_table, stamps_of
from txsink.testing.faults import FaultyStore
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

WORLDS: dict[str, Callable[[], Any]] = {"memory": Names, "disk model": SimDisk, "bucket model": Objects}
ROUNDS_MAX = 8

#: What goes wrong at the call. The first two differ in what the program does after Ctrl-C: it ends, or it calls again.
KINDS = (
    "ctrl-c before a call",
    "ctrl-c after a call",
    "ctrl-c after a call, called again",
    "unavailable before a call",
    "close by another thread",
    "close by a signal handler",
)


class Lock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.RLock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Caller:
    """One program's process: its store, its writer, and what is wrong with what it was told."""

    def __init__(self, world: World, kind: str, at: int, options: dict[str, Any]) -> None:
        self.world, self.kind, self.at, self.options = world, kind, at, options
        self.store = FaultyStore(world.store())
        self.sink: Writer | None = None
        self.txns: list[Transaction] = []
        self.wrong: list[str] = []
        self.open_calls: list[int] = []  # calls made while the writer was open
        self.is_delivered = False
        self._at = self._begun_at = 0  # steps: the one being done, and the one that began the newest epoch
        self._closing: threading.Thread | None = None
        self._waits = threading.Event()
        self.store.pause = self._before
        self.store.told = self._after

    # -- what goes wrong --------------------------------------------------------------------------------

    def _before(self, verb: str, path: str) -> None:
        if self.sink is not None and self._closing is None:
            self.open_calls.append(self.store.calls)
        if self.is_delivered or self.store.calls != self.at:
            return
        if self.kind == "ctrl-c before a call":
            self.is_delivered = True
            raise KeyboardInterrupt
        if self.kind == "unavailable before a call":
            self.is_delivered = True
            raise UnavailableError(f"{verb} {path}", "a planned fault: nothing was done", "Retry")
        if self.kind.startswith("close") and self.sink is not None:
            self.is_delivered = True
            if self.kind == "close by a signal handler":
                self.sink.close()
            else:
                self._closing = threading.Thread(target=self._close, args=(self.sink,))
                self._closing.start()
                self._waits.wait()

    def _after(self, verb: str, path: str, answer: object) -> None:
        if not self.is_delivered and self.store.calls == self.at and self.kind.startswith("ctrl-c after"):
            self.is_delivered = True
            raise KeyboardInterrupt

    def _close(self, sink: Writer) -> None:
        sink.close()
        self._waits.set()

    # -- what the program does --------------------------------------------------------------------------

    def open(self) -> None:
        """Open the writer, as often as the message says."""
        self.sink, self.txns = None, []
        for _ in range(ROUNDS_MAX):
            self.world.life += 1
            stamps = stamps_of(self.world.life)
            try:
                self.sink = self._opened(stamps)
                break
            except (UnavailableError, OutcomeUnknownError, KeyboardInterrupt):
                continue
            except ConflictError as error:
                if "Finish it: `txsink convert --to parquet`" in error.advice:
                    convert_to("parquet", self.store, stamps)
                elif error.advice != "Open the writer again":
                    raise
        assert self.sink is not None
        self.sink.calls._lock = Lock(self._waits)  # type: ignore[assignment]

    def _opened(self, stamps: Stamps) -> Writer:
        chosen = {"layout": self.world.layout, **self.options}
        return open_sink(self.store, stamps, ROOT, "w", chosen, is_one_shot=chosen.pop("is_one_shot", False))

    def begin(self, epoch: int, **options: Any) -> Transaction:
        """Begin an epoch."""
        assert self.sink is not None
        self._begun_at = self._at
        txn = self.sink.begin(epoch, **options)
        txn._calls._lock = Lock(self._waits)  # type: ignore[assignment]
        self.txns.append(txn)
        return txn

    def run(self, steps: list[Callable[[Caller], object]]) -> None:
        """Do the steps in order; after an error what it says: the step again, all of them, or with a new writer."""
        self.open()
        at = rounds = 0
        while at < len(steps):
            self._at, rounds = at, rounds + 1
            if rounds > ROUNDS_MAX + len(steps):
                self.wrong.append(f"step {at} does not come to an end")
                return
            error: BaseException | None = None
            try:
                steps[at](self)
            except (TxsinkError, KeyboardInterrupt) as raised:
                error = raised
            if self._closing is not None:
                self._closing.join()
                self._closing = None
            if error is None:
                at += 1
                continue
            does = self._told_by(error)
            if does == "reopen":
                self._shut()
                self._ask_the_next_process(error)
                self.open()
            elif does == "begin":
                for txn in self.txns:
                    if txn.outcome == "open":
                        txn.abort()
            at = {"again": at, "begin": self._begun_at, "reopen": 0}[does]
        self._ask_the_next_process(None)
        self._shut()

    def _shut(self) -> None:
        assert self.sink is not None
        with suppress(KeyboardInterrupt):
            self.sink.close()

    def _told_by(self, error: BaseException) -> str:
        if isinstance(error, KeyboardInterrupt):
            return "again" if self.kind.endswith("called again") else "reopen"
        self._ask_the_next_process(error)
        assert isinstance(error, TxsinkError)
        if isinstance(error, UnavailableError):
            return "begin" if "Begin epoch" in error.advice else "again"
        if isinstance(error, OutcomeUnknownError) or "pen it again" in error.advice or "pen the writer" in error.advice:
            return "reopen"
        if isinstance(error, InvalidRequestError) and error.advice.startswith("Begin "):
            return "begin"
        raise AssertionError(f"{self.kind} at {self.at}: unexpected {type(error).__name__}: {error}") from error

    def _ask_the_next_process(self, error: BaseException | None) -> None:
        """Open the writer on a copy of what is there now: it finds what the outcomes and the error say."""
        if not self.txns:
            return
        next_world = World(self.world.disk.after_kill(), self.world.truth, 0x4000, self.world.layout)
        with next_world.sink() as found:
            committed = {fact.epoch for fact in found.log.live().values()} | {
                epoch for epoch in {txn.epoch for txn in self.txns} if found.log.commit_of("w", epoch)
            }
        for txn in self.txns:
            known = txn.outcome
            is_there = txn.epoch in committed
            others = [one for one in self.txns if one is not txn and one.epoch == txn.epoch]
            if known in {"committed", "already-committed", "prepared"} and not is_there:
                self.wrong.append(f"epoch {txn.epoch} is {known}, and the next process has not committed it")
            if known in {"aborted", "open"} and is_there and not others:
                self.wrong.append(f"epoch {txn.epoch} is {known}, and the next process has committed it")
        if isinstance(error, UnavailableError) and not set(error.context.get("prepared", ())) <= committed:  # type: ignore[call-overload]
            self.wrong.append(f"{error}: the next process has not committed it")


Step = Callable[[Caller], object]


class Program(NamedTuple):
    """What is done before on a store that works, the steps, and the ids of the rows that are there at the end."""

    before: Callable[[World], object]
    steps: list[Step]
    ids: list[int]
    options: dict[str, Any] = {}  # noqa: RUF012 -- never changed
    layout: str = "parquet"
    ids_if_committed: list[int] | None = None  # the next process commits what was prepared, and not dropped yet


def rows_of(epoch: int) -> tuple[int, ...]:
    """Two rows."""
    return (10 * epoch, 10 * epoch + 1)


def trial(program: Program, world: str, kind: str, at: int) -> tuple[list[str], bool]:
    """What was wrong, and whether the call was disturbed."""
    caller = _ran(program, world, kind, at)
    wrong = list(caller.wrong)
    end = World(caller.world.disk.after_kill(), caller.world.truth, 0x5000, caller.world.layout)
    with end.sink(**program.options) as sink:
        live = sink.log.live()
    files = end.disk.files()
    found = Counter(one for path in live for one in ids_in(files[f"{ROOT}/{path}"]))
    ids = program.ids
    if program.ids_if_committed is not None and caller.txns[-1].outcome == "already-committed":
        ids = program.ids_if_committed
    if found != Counter(ids):
        wrong.append(f"the table holds {sorted(found.elements())}, not {ids}")
    if sink.log.state.layout == "parquet" and directory_ids(files) != found and caller.world.truth.keeps_replaced:
        hidden = {path: data for path, data in files.items() if "/_txsink/" not in path}
        if directory_ids(hidden) != found:
            wrong.append(f"the directory holds {sorted(directory_ids(hidden).elements())}")
    return [f"{kind} at call {at} ({caller.store.trace[at - 1][0] if at else ''}): {one}" for one in wrong], (
        caller.is_delivered
    )


def calls_of(program: Program, world: str) -> tuple[int, list[int]]:
    """How many calls the program makes, and which of them while its writer is open."""
    caller = _ran(program, world, "", 0)
    assert not caller.wrong, caller.wrong
    return caller.store.calls, caller.open_calls


def _ran(program: Program, world: str, kind: str, at: int) -> Caller:
    made = World(WORLDS[world](), table_layout=program.layout)
    with remembered():
        program.before(made)
        caller = Caller(made, kind, at, program.options)
        caller.run(program.steps)
    return caller


# -- the programs -------------------------------------------------------------------------------------------


def write(epoch: int, **options: Any) -> Step:
    """A whole block, as `txsink.write` has it."""

    def step(caller: Caller) -> None:
        with caller.begin(epoch, **options) as txn:
            txn.write(rows_table(rows_of(epoch)))

    return step


def by_hand(epoch: int, *, is_committed: bool = True) -> list[Step]:
    """The verbs one by one."""

    def of(caller: Caller) -> Transaction:
        return next(txn for txn in reversed(caller.txns) if txn.epoch == epoch)

    found: list[Step] = [
        lambda caller: caller.begin(epoch),
        lambda caller: of(caller).write(rows_table(rows_of(epoch))),
        lambda caller: of(caller).prepare(),
    ]
    return [*found, lambda caller: of(caller).commit()] if is_committed else found


def called(name: str, *given: Any) -> Step:
    """A verb of the writer."""
    return lambda caller: getattr(caller.sink, name)(*given)


def epochs(*numbers: int, prepared: tuple[int, ...] = (), staged: tuple[int, ...] = ()) -> Callable[[World], None]:
    """A table with these epochs; of a former life, what it prepared and what it only staged."""

    def before(world: World) -> None:
        with world.sink() as sink:
            for epoch in numbers:
                with sink.begin(epoch) as txn:
                    txn.write(rows_table(rows_of(epoch)))
            for epoch in prepared:
                txn = sink.begin(epoch)
                txn.write(rows_table(rows_of(epoch)))
                txn.prepare()
        if staged:
            former = world.sink()
            for epoch in staged:
                tiny.stage(former.begin(epoch), rows_of(epoch))

    return before


def aborted(caller: Caller) -> None:
    """Drop what was prepared last."""
    caller.txns[-1].abort()


def expired(caller: Caller) -> None:
    """Let go of all versions but the newest."""
    assert caller.sink is not None
    expiry.expire(caller.sink.log, caller.sink.log.state.version)


def converted(to: str) -> Step:
    """Change the layout."""

    def step(caller: Caller) -> None:
        assert caller.sink is not None
        convert_to(to, caller.store, caller.sink.log.stamps)

    return step


def convert_to(to: str, store: Store, stamps: Stamps) -> None:
    """Change the layout as the command does: with a log of its own."""
    log = Log(store, ROOT, stamps)
    log.load()
    delta = DeltaLog(store, ROOT, stamps, ROOT)
    (convert.to_delta if to == "delta" else convert.to_parquet)(log, delta)


def nothing(_: World) -> None:
    """No table yet."""


def both(*numbers: int) -> list[int]:
    """The ids of these epochs."""
    return [one for number in numbers for one in rows_of(number)]


PROGRAMS: dict[str, Program] = {
    "write": Program(nothing, [write(1)], both(1), {"is_one_shot": True}),
    "write in place": Program(nothing, [write(1)], both(1), layout="delta"),
    "begin, write, prepare, commit": Program(nothing, by_hand(1), both(1)),
    "commit of two": Program(
        nothing,
        [*by_hand(1, is_committed=False), *by_hand(2, is_committed=False), called("commit", 2), called("commit", 2)],
        both(1, 2),
    ),
    "overwrite": Program(epochs(1), [write(2, mode="overwrite")], both(2)),
    "abort": Program(epochs(1), [*by_hand(2, is_committed=False), aborted], both(1), ids_if_committed=both(1, 2)),
    "rewind": Program(epochs(1, 2, 3), [called("recover", 1, "rewind")], both(1)),
    "recover": Program(epochs(prepared=(1, 2)), [called("recover", 1)], both(1), {"recover": False}),
    "sweep": Program(epochs(1, staged=(2,)), [called("sweep")], both(1)),
    "expire": Program(epochs(1, 2, 3), [expired], both(1, 2, 3)),
    "convert to delta": Program(epochs(1, 2), [converted("delta")], both(1, 2), {"layout": None}),
    "convert to parquet": Program(epochs(1, 2), [converted("parquet")], both(1, 2), {"layout": None}, "delta"),
}
