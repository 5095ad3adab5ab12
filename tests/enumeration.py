"""Every fault at every store call of a program, of its recovery, and of the recovery of that: to any depth.

Promises: `Enumeration` runs a scenario once for each fault at each of its store calls; from every distinct state that
leaves, a recovery once for each fault at each of its calls, and so on; every state is judged as after any crash.
A state is what the store holds and what was told; it is gone on from once at each depth. Where `seconds` end it, the
rest is left out, evenly over the scenarios, and counted as left out.
Relies on: `crash_scenarios` for the programs, `crash_judge` for the verdict; stores in memory.
Does not promise: power cuts: those are `crash`'s.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from crash_scenarios import Scenario, setting
from txsink.errors import TxsinkError
from txsink.store.protocol import Store
from txsink.testing import crash_world
from txsink.testing.crash_book import Truth, Violation
from txsink.testing.crash_judge import heal, judge
from txsink.testing.crash_world import World
from txsink.testing.faults import Fault, FaultyStore, class_of, faults_at
from txsink.testing.names import Names
from txsink.testing.objects import Objects
from txsink.testing.simdisk import Crash

LIFE = 0x100  # ids of a recovery differ from those of the run before it


class State(NamedTuple):
    """What a fault left, and how it came about."""

    disk: Names | Objects
    truth: Truth
    faults: tuple[Fault, ...]


@contextmanager
def _giving_up() -> Iterator[None]:
    """Programs that try nothing twice."""
    tries, crash_world.TRIES = crash_world.TRIES, 1
    try:
        yield
    finally:
        crash_world.TRIES = tries


class Enumeration:
    """One scenario on one kind of store."""

    def __init__(self, chosen: Scenario, disk: Callable[[], Names | Objects], depth: int) -> None:
        self.chosen = chosen
        self.depth = depth
        self.planned, self.delivered = Counter[str](), Counter[str]()
        self.states: Counter[int] = Counter()  # by depth
        self.left_out = 0
        self._disk = disk
        self._seen: set[tuple[int, str, frozenset[object]]] = set()

    def run(self, seconds: float | None = None) -> None:
        """All of it, or as much as fits."""
        end = None if seconds is None else time.process_time() + seconds
        level = [State(self._disk(), World(self._disk(), table_layout=self.chosen.table_layout).truth, ())]
        with setting(self.chosen), _giving_up():
            for depth in range(1, self.depth + 1):
                # The last of the states are those that are left out: of every kind some.
                random.Random(f"{self.chosen.name}-{depth}").shuffle(level)
                following = []
                for at, state in enumerate(level):
                    if end is not None and time.process_time() > end:
                        self.left_out += len(level) - at
                        break
                    following += self._after(state, depth)
                level = following

    def _after(self, state: State, depth: int) -> list[State]:
        """The new states that one more fault leads to from here, judged."""
        verbs = [verb for verb, _ in self._played(state, depth, None)[0].trace]
        found = []
        for call, verb in enumerate(verbs, 1):
            for fault in faults_at(call, verb):
                self.planned[class_of(fault)] += 1
                store, after = self._played(state, depth, fault)
                self.delivered[class_of(fault)] += len(store.delivered)
                if self._is_new(after, depth):
                    self._judge(after, depth)
                    found.append(after)
        return found

    def _played(self, state: State, depth: int, fault: Fault | None) -> tuple[FaultyStore, State]:
        """Run the program (at depth 1) or a recovery with one fault; it gives up at the first error."""
        disk = state.disk.after_kill()
        world = World(disk, state.truth.fork(), (depth - 1) * LIFE)
        faulty = FaultyStore(disk.store(), [] if fault is None else [fault])
        faulty.pause = world.remember_before

        def wrap(_: Store) -> Store:
            return faulty

        world.wrap = wrap
        # Crash is no Exception: the dead catch nothing.
        with suppress(Crash, TxsinkError):
            self._play(world, depth)
        faulty.deliver_rest()
        return faulty, State(disk, world.truth, (*state.faults, *([fault] if fault else [])))

    def _play(self, world: World, depth: int) -> None:
        if depth == 1:
            self.chosen.run(world)
            return
        try:
            heal(world, self.chosen.writers, expires=self.chosen.expires)
        except Violation as violation:
            # A recovery may refuse while faults last, as long as it reports no damage.
            if "CorruptError" in str(violation) or "InternalError" in str(violation):
                raise

    def _is_new(self, state: State, depth: int) -> bool:
        mark = (depth, state.disk.fingerprint(), frozenset(state.truth.told))
        if mark in self._seen:
            return False
        self._seen.add(mark)
        self.states[depth] += 1
        return True

    def _judge(self, state: State, depth: int) -> None:
        world = World(state.disk.after_kill(), state.truth.fork(), depth * LIFE)
        is_thorough = self.states[depth] % 16 == 0
        try:
            judge(world, self.chosen.writers, expires=self.chosen.expires, is_thorough=is_thorough)
        except Violation as violation:
            faults = ", then in the recovery ".join(f"{class_of(one)} {one.call}" for one in state.faults)
            told = f"{self.chosen.name} on {type(state.disk).__name__}, {faults}"
            raise Violation(violation.kind, f"{violation}\n    after {told}") from violation
