"""The meetings of runs whose every schedule is tried: what stood before, and what each run then does.

Promises: `search(meeting, bound)` gives every schedule of the real code with at most `bound` preemptions at store
calls, reads included; each ends with the verdict of the crash proof on what it left.
Relies on: `txsink.testing.schedule`. A run depends on nothing but what its store calls answered, and so two schedules
after which the store and all those answers are the same have the same future: it is tried once.
Does not promise: faults. Those are the swarm's and the enumeration's.

python tests/schedules.py MEETING STORE DECISION...     replays the schedule of a failure
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

from txsink.choices import Mode
from txsink.errors import ConflictError, FencedError, TxsinkError, UnavailableError
from txsink.log import expiry
from txsink.store.protocol import Store
from txsink.testing import tiny
from txsink.testing.crash_book import Truth, Violation
from txsink.testing.crash_judge import judge
from txsink.testing.crash_world import Disk, World, remembered, small_blocks
from txsink.testing.faults import FaultyStore
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.schedule import Search, Setting
from txsink.writing.transaction import Transaction
from txsink.writing.writer import Writer

#: Done alone, before the runs meet: opens what is open by then. Returns what the run does when they meet.
Begin = Callable[[World], Callable[[], object]]

LIFE, JUDGE_LIFE = 0x100, 0x1000
ROWS = {0: (0, 1), 1: (10, 11), 2: (20, 21), 3: (30,), 50: (50, 51)}


class Meeting(NamedTuple):
    """Runs that meet. `writers`: who recovers in the end; `is_small`: summaries every four entries."""

    before: Callable[[World], object]
    runs: tuple[Begin, ...]
    writers: tuple[str, ...] = ("w",)
    is_small: bool = False


# -- pieces -----------------------------------------------------------------------------------------------


def begun(world: World, sink: Writer, epoch: int, mode: Mode = "append") -> Transaction:
    """An epoch, staged."""
    rows = tuple(row + (1000 if sink.writer != "w" else 0) for row in ROWS[epoch])
    world.truth.rows[sink.writer, epoch] = rows
    txn = sink.begin(epoch, mode=mode)
    if txn.outcome == "open":
        tiny.stage(txn, rows)
    return txn


def finish(world: World, txn: Transaction) -> None:
    txn.commit()
    world.tell("committed", txn._sink.identity.writer, txn.epoch)


def committed(world: World, *epochs: int, writer: str = "w") -> Writer:
    sink = world.sink(writer)
    for epoch in epochs:
        finish(world, begun(world, sink, epoch))
    return sink


def one_pending(world: World) -> None:
    sink = committed(world, 0)
    begun(world, sink, 1).prepare()
    world.tell("prepared", "w", 1)


def an_overwrite_pending(world: World) -> None:
    sink = committed(world, 0)
    begun(world, sink, 1, "overwrite").prepare()
    world.tell("prepared", "w", 1)


def old_log(world: World) -> None:
    committed(world, 0, 1, 2)


# -- what runs do -----------------------------------------------------------------------------------------


def commits(epoch: int, writer: str = "w", mode: Mode = "append") -> Begin:
    """A run that is open and has staged commits."""

    def begin(world: World) -> Callable[[], object]:
        txn = begun(world, world.sink(writer), epoch, mode)
        return lambda: finish(world, txn)

    return begin


def opens(**options: bool) -> Begin:
    """A newer run of the writer begins: it claims, recovers, sweeps."""
    return lambda world: lambda: world.sink(**options)  # type: ignore[arg-type]


def opens_and_commits(epoch: int, *, is_one_shot: bool = False) -> Begin:
    def begin(world: World) -> Callable[[], object]:
        return lambda: finish(world, begun(world, world.sink(is_one_shot=is_one_shot), epoch))

    return begin


def finishes(epoch: int) -> Begin:
    """The run that holds what is pending publishes it."""

    def begin(world: World) -> Callable[[], object]:
        sink = world.sink(recover=False)

        def act() -> None:
            sink.commit(epoch)
            world.tell("committed", "w", epoch)

        return act

    return begin


def aborts(epoch: int) -> Begin:
    """A newer run takes over and drops what is pending above an epoch."""
    return lambda world: lambda: world.sink(recover=False).recover(epoch, "skip")


def grows_and_expires(world: World) -> Callable[[], object]:
    """The log moves on by more than a summary, and forgets what was before."""
    sink = world.sink("u")

    def act() -> None:
        for epoch in (0, 1, 2):
            world.truth.rows["u", epoch] = ()
            finish(world, sink.begin(epoch))
        expiry.expire(sink.log, sink.log.state.version)

    return act


MEETINGS: dict[str, Meeting] = {
    "commit, commit": Meeting(partial(committed), (commits(1), opens_and_commits(1))),
    "commit, sweep": Meeting(partial(committed), (opens_and_commits(1, is_one_shot=True), opens())),
    "abort, publish": Meeting(one_pending, (finishes(1), aborts(0))),
    "abort, replace": Meeting(an_overwrite_pending, (finishes(1), aborts(0))),
    "claim, commit": Meeting(partial(committed), (commits(1), opens())),
    "expiry, stalled append": Meeting(old_log, (commits(50, "v"), grows_and_expires), ("w", "v", "u"), is_small=True),
    "overwrite, append": Meeting(partial(committed), (commits(1, mode="overwrite"), commits(50, "v")), ("w", "v")),
    "overwrite, open": Meeting(an_overwrite_pending, (opens(), commits(50, "v", mode="overwrite")), ("w", "v")),
    "commit, commit, commit": Meeting(partial(committed), (commits(1), opens_and_commits(1), opens_and_commits(1))),
    "abort, publish, open": Meeting(one_pending, (finishes(1), aborts(0), opens())),
    "commit, expiry, append": Meeting(
        old_log, (commits(50, "v"), grows_and_expires, opens_and_commits(3)), ("w", "v", "u"), is_small=True
    ),
}


# -- the search -------------------------------------------------------------------------------------------


class _Run:
    """One run: a world of its own over the common disk, whose store calls are points once the runs meet."""

    def __init__(self, disk: Names | Objects, truth: Truth, number: int, begin: Begin) -> None:
        self._point: Callable[[], object] | None = None
        self.seen = 0  # what it was answered so far
        self.world = World(disk, truth, (number + 1) * LIFE)
        self.world.wrap = self._heard
        self._act = begin(self.world)

    def __call__(self, point: Callable[..., None]) -> None:
        self._point = point
        self._act()

    def _heard(self, store: Store) -> Store:
        faulty = FaultyStore(store)
        faulty.pause, faulty.told = self._pause, self._told
        return faulty

    def _pause(self, verb: str, path: str) -> None:
        if self._point is not None:
            self._point()
        self.world.remember_before(verb, path)

    def _told(self, verb: str, path: str, answer: object) -> None:
        kept = tuple(answer) if isinstance(answer, list) else answer
        self.seen = hash((self.seen, verb, path, kept if verb != "create" else None))


def search(name: str, bound: int, disk: Callable[[], Names | Objects] = Names) -> Search:
    """All schedules of a meeting."""
    meeting = MEETINGS[name]
    first = World(disk())
    meeting.before(first)

    def make() -> Setting:
        disk, truth = first.disk.after_kill(), first.truth.fork()
        runs = [_Run(disk, truth, number, begin) for number, begin in enumerate(meeting.runs)]  # type: ignore[arg-type]
        return Setting(
            acts=runs,
            mark=lambda: (_state(disk), *(run.seen for run in runs), len(truth.told)),
            end=partial(_end, name, meeting, World(disk, truth, JUDGE_LIFE)),
        )

    return Search(make, bound)


@contextmanager
def sizes(name: str) -> Iterator[None]:
    """What the meeting runs with."""
    with remembered(), small_blocks() if MEETINGS[name].is_small else nullcontext():
        yield


def _state(disk: Disk) -> Hashable:
    if isinstance(disk, Objects):
        return hash((frozenset(disk.objects.items()), repr(sorted(disk.pending))))
    return hash(frozenset(disk.files().items()))


def _end(name: str, meeting: Meeting, world: World, decisions: list[int], errors: dict[int, BaseException]) -> None:
    """Nobody heard what nobody may hear, and what is left is judged."""
    try:
        for error in errors.values():
            _require_allowed(error)
        judge(world, meeting.writers, expires=meeting.is_small)
    except Violation as violation:
        replay = f"python tests/schedules.py {name!r} {type(world.disk).__name__} {' '.join(map(str, decisions))}"
        raise Violation(violation.kind, f"{violation}\n    replay: {replay}") from violation


def _require_allowed(error: BaseException) -> None:
    if not isinstance(error, TxsinkError):
        raise error
    # A publish that an abort has overtaken finds its object deleted: tried again, it hears that it is fenced.
    is_overtaken = isinstance(error, UnavailableError) and "there is no such object" in error.found
    if not is_overtaken and not isinstance(error, FencedError | ConflictError):
        raise Violation("I14 work refused", f"{type(error).__name__}: {error}") from error


def main() -> None:
    name, disk, *decisions = sys.argv[1:]
    with sizes(name):
        search(name, len(decisions), {"Names": Names, "Objects": Objects}[disk]).replay([int(one) for one in decisions])


if __name__ == "__main__":
    main()
