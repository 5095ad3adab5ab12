"""The swarm: one number decides a whole world of writers, and which faults befall them; the checkers judge the end.

Promises: `run(seed)` plays several lives of two writers on one store in memory (a bucket that cannot move files in one
seed of four): their programs, the order of their store calls, and the faults are drawn from the seed, so the same seed
gives the same trace (I16). Lives stall at any call and go on at any later one, as zombies; a life that crashed is
followed by another. One opening in three is by another name of the table, as by a bind mount. While it lasts, somebody
looks: at the names (what a directory reader sees), and through the log. In the end all writers recover, and what is
left is judged as after any crash (I1-I14). The first broken promise is a `Violation` that names the seed.
Relies on: the engine's real code but for the encoding of Parquet (`tiny`); `Schedule`, `FaultyStore`, `crash_judge`.
Does not promise: power cuts (nothing in memory is ever lost), or damage to bytes that were acknowledged.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from txsink.testing.crash_book import STAGING, Files
from txsink.testing.crash_judge import judge
from txsink.testing.crash_world import World, remembered, small_blocks
from txsink.testing.faults import READS, REPEATABLE, TEARABLE, Fault, FaultyStore, class_of
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.schedule import Schedule
from txsink.testing.swarm_life import Life

WRITERS = ("w", "v")
LIVES_MAX = 7
JUDGE_LIFE = 0x4000  # ids of the recovery differ from those of all lives

_SWITCH, _STALL = 0.15, 0.02  # at a point: somebody else goes on; whoever goes on sleeps for long
_SLEEP_MAX = 300
_LATER_MAX = 40


class Outcome(NamedTuple):
    """What one seed did."""

    trace: str  # a digest of every call of every life, in order, and of what is left
    calls: int
    planned: Counter[str]
    delivered: Counter[str]
    mounts: int = 0  # how often a writer was opened by the table's other name


class Turns:
    """Whose turn it is, by chance. Whoever sleeps is passed over, as long as anybody else is ready."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._time = 0
        self._asleep: dict[int, int] = {}
        self.stalls: list[tuple[int, int]] = []  # who, and since when

    def __call__(self, ready: Sequence[int], current: int | None) -> int:
        self._time += 1
        if current is not None and (drawn := self._chance.random()) >= _SWITCH:
            return current
        awake = [one for one in ready if one != current and self._asleep.get(one, 0) <= self._time]
        if current is None:
            return self._chance.choice(awake or list(ready))
        if not awake:
            return current
        if drawn < _STALL:
            self._asleep[current] = self._time + self._chance.randrange(_SLEEP_MAX)
            self.stalls.append((current, self._time))
        return self._chance.choice(awake)


class Swarm:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        disk = Objects() if self.chance.randrange(4) == 0 else Names()
        self.world = World(disk)
        self.is_small = self.chance.randrange(6) == 0
        self.partition_by: tuple[str, ...] = ("day",) if self.chance.randrange(2) else ()
        self.has_copies = seed % 5 == 0 and isinstance(disk, Names)
        self.mounts = 0
        self.turns = Turns(random.Random(f"{seed}-turns"))
        self.schedule = Schedule(self.turns)
        self.stores: list[FaultyStore] = []
        self._trace: list[str] = []  # every call, a line each
        self._writers = WRITERS[: 1 + self.chance.randrange(2)]

    def run(self) -> Outcome:
        """Live, die, recover, judge."""
        with remembered(), small_blocks() if self.is_small else nullcontext():
            for writer in self._writers:
                for _ in range(1 + self.chance.randrange(2)):
                    self.add(writer)
            self.schedule.run()
            for error in self.schedule.errors.values():
                raise error
            for store in self.stores:
                store.deliver_rest()
            end = World(self.world.disk, self.world.truth, JUDGE_LIFE)
            files = judge(
                end, self._writers, expires=self.chance.randrange(8) == 0, is_thorough=self.chance.randrange(12) == 0
            )
        return self._outcome(files)

    def add(self, writer: str) -> None:
        """One more life of the writer."""
        if len(self.stores) == LIVES_MAX:
            return
        number = len(self.stores)
        chance = random.Random(f"{self.seed}-{number}")
        store = FaultyStore(self.world.store())
        self.stores.append(store)
        faults_left = chance.choice((0, 0, 1, 1, 2, 3))
        every = chance.choice((2, 5, 12))

        trace, point, remember_before = self._trace.append, self.schedule.point, self.world.remember_before

        def pause(verb: str, path: str) -> None:
            nonlocal faults_left
            trace(f"{number}{verb}{path}\n")
            point()
            remember_before(verb, path)
            # Most calls are reads, and most of what can go wrong is not.
            if faults_left and chance.randrange(4 * every if verb in READS else every) == 0:
                faults_left -= 1
                store.plan.append(self._fault(chance, store.calls, verb, path))

        store.pause = pause
        self.schedule.add(lambda: Life(self, writer, number, store, chance).live())

    @staticmethod
    def _fault(chance: random.Random, call: int, verb: str, path: str) -> Fault:
        kinds = ["crash-before", "fail-before"]
        if verb == "list" and path.startswith(STAGING):
            kinds += ["stale", "reorder"]  # elsewhere a store promises whole listings
        elif verb == "list":
            kinds.append("reorder")
        if verb not in READS:
            kinds += ["crash-after", "lose-answer", "lose-request"]
        if verb == "put_if_absent":
            kinds.append("fail-after")
        if verb in TEARABLE:
            kinds.append("tear")
        if verb in REPEATABLE:
            kinds.append("repeat")
        kind = chance.choice(kinds)
        if kind == "fail-after":
            return Fault(call, "lose-answer", text="raises")
        return Fault(call, kind, later=chance.randrange(_LATER_MAX) if kind == "repeat" else 0)

    def _outcome(self, files: Files) -> Outcome:
        planned = Counter(class_of(fault) for store in self.stores for fault in store.plan)
        delivered = Counter(class_of(fault) for store in self.stores for fault in store.delivered)
        planned["delay"] = delivered["delay"] = len(self.turns.stalls)
        trace = hashlib.blake2b(f"{''.join(self._trace)}{sorted(files)!r}".encode(), digest_size=16).hexdigest()
        return Outcome(trace, sum(store.calls for store in self.stores), planned, delivered, self.mounts)


def run(seed: int) -> Outcome:
    """One seed, judged."""
    return Swarm(seed).run()
