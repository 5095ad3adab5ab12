"""The engine of the crash proof: every disk a crash can leave, and every disk a crash in its recovery can leave.

Promises: `explore` runs a scenario once, keeps the disk before every changing call, and after a kill or a power cut
at each of them (unsynced content and names lost, kept, or mixed at random) checks the wounded disk, recovers it as a
new process would, checks it again, and does the same with disks left by crashes within those recoveries. Same seed,
same states (I16). `planned` and `delivered` crashes are counted apart.
Relies on: `SimDisk.watch`: one run shows all its crash states (that they are those of `crash_at` is sampled).
Does not promise: every combination of two crashes. Their number is a quota, drawn evenly over the first ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from crash_scenarios import Scenario, setting
from txsink.errors import TxsinkError
from txsink.testing import crash_judge
from txsink.testing.crash_book import Truth, Violation
from txsink.testing.crash_check import check_wounded
from txsink.testing.crash_world import Disk, World
from txsink.testing.simdisk import Crash, SimDisk
from txsink.testing.simimage import Choice

RECOVERY_LIFE = 0x100  # ids of a recovery differ from those of the run before it
SECONDS_MAX = 40  # crashes looked at within one recovery


class Moment(NamedTuple):
    """A disk just before a call, and what had been told by then."""

    disk: Disk
    truth: Truth


@dataclass
class Tally:
    """What an exploration did."""

    planned: int = 0
    delivered: int = 0
    states: set[str] = field(default_factory=set)


def moments(world: World, run: Callable[[World], object]) -> list[Moment]:
    """The disk before every changing call of `run`, and after the last one."""
    found: list[Moment] = []

    def note(disk: Disk) -> None:
        found.append(Moment(disk.after_kill(), world.truth.fork()))

    world.disk.watch = note
    run(world)
    world.disk.watch = None
    note(world.disk)
    return found


def crash_state(chosen: Scenario, call: int, when: Literal["before", "after"]) -> str:
    """The fingerprint of the disk left by really dying at a call."""
    disk = SimDisk()
    disk.crash_at(call, when)
    with suppress(Crash):
        chosen.run(World(disk, table_layout=chosen.table_layout))
    is_at_the_end = (when, disk.calls) == ("after", call)  # the last call failed, so nothing came after it to die in
    if disk.delivered != 1 and not is_at_the_end:
        raise Violation("no crash", f"the one planned {when} call {call} never came")
    return disk.after_kill().fingerprint()


class Mortal:
    """One process among several on a disk: it dies after `calls_left` changing calls, and the others live on."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.calls_left = -1  # never
        self.path = disk.path

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._disk, name)

        def call(*arguments: Any) -> Any:
            if self.calls_left == 0:
                raise Crash
            before = self._disk.calls
            answer = act(*arguments)
            if self.calls_left > 0:
                self.calls_left -= self._disk.calls - before
            return answer

        return call


class Whole:
    """A power cut that mixes names at random and loses no content: by pure chance contents are rarely whole."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def randrange(self, stop: int, /) -> int:
        """Of two, either; of many lengths, the greatest."""
        return self._chance.randrange(2) if stop == 2 else stop - 1


def images(moment: Moment, seed: str, mixtures: int) -> Iterator[Disk]:
    """The disks that a kill and power cuts at this moment can leave."""
    yield moment.disk
    if not isinstance(moment.disk, SimDisk):
        return  # what was answered is durable
    kinds = [Whole, random.Random]
    choices: list[Choice] = ["lost", "kept", *(kinds[n % 2](f"{seed}-{n}") for n in range(mixtures))]
    yield from (moment.disk.after_power_cut(choice) for choice in choices)


class Explorer:
    """Explores one scenario."""

    def __init__(self, chosen: Scenario, *, mixtures: int = 4, quota: int = 0) -> None:
        self.chosen = chosen
        self.mixtures = mixtures
        self.quota = quota
        self.tally = Tally()
        self._seen: set[tuple[str, frozenset[object]]] = set()

    def explore(self) -> Tally:
        """All first crashes, then second ones until there are `quota` states."""
        with setting(self.chosen):
            self._explore()
        return self.tally

    def _explore(self) -> None:
        chance = random.Random(f"{self.chosen.name}-seconds")
        first = self._first()
        self.tally.planned += len(first)
        seconds: list[list[Moment]] = []
        for at, moment in enumerate(first):
            self.tally.delivered += 1
            for image in images(moment, f"{self.chosen.name}-{at}", self.mixtures):
                if self._is_new(image, moment.truth):
                    found = judge(self.chosen, Moment(image, moment.truth), 1, is_thorough=True)
                    chance.shuffle(found)
                    seconds.append(found[:SECONDS_MAX])
        self._explore_seconds(seconds, chance)

    def _first(self) -> list[Moment]:
        world = World(SimDisk(), table_layout=self.chosen.table_layout)
        try:
            return moments(world, self.chosen.run)
        except TxsinkError as error:
            world.disk.watch = None
            check_wounded(world.disk.files(), world.truth)
            raise Violation("I14 work refused", f"{type(error).__name__}: {error}") from error

    def _explore_seconds(self, seconds: list[list[Moment]], chance: random.Random) -> None:
        """Crashes during recoveries, one of each recovery at a time, so that the quota is spread evenly."""
        level = 0
        while len(self.tally.states) < self.quota and any(level < len(found) for found in seconds):
            for at, found in enumerate(seconds):
                if level < len(found) and len(self.tally.states) < self.quota:
                    self._second(found[level], f"{self.chosen.name}-{at}-{level}", chance)
            level += 1

    def _second(self, moment: Moment, seed: str, chance: random.Random) -> None:
        self.tally.planned += 1
        self.tally.delivered += 1
        for image in images(moment, seed, 2):
            if self._is_new(image, moment.truth):
                judge(self.chosen, Moment(image, moment.truth), 2, is_thorough=chance.randrange(8) == 0)

    def _is_new(self, image: Disk, truth: Truth) -> bool:
        mark = image.fingerprint()
        self.tally.states.add(mark)
        key = (mark, frozenset(truth.told))
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def walk(chosen: Scenario, crashes: int, seed: str) -> None:
    """Crash, crash in the recovery, crash in the recovery of that … and judge what the last one leaves (F27)."""
    chance = random.Random(f"{chosen.name}-{seed}")
    run, world = chosen.run, World(SimDisk(), table_layout=chosen.table_layout)
    for depth in range(1, crashes + 1):
        found = moments(world, run)
        moment = found[chance.randrange(len(found))]
        image = list(images(moment, f"{seed}-{depth}", 1))[chance.randrange(4)]
        check_wounded(image.files(), moment.truth)
        world = World(image.after_kill(), moment.truth.fork(), depth * RECOVERY_LIFE)

        def run(world: World) -> None:
            crash_judge.heal(world, chosen.writers, expires=chosen.expires)

    judge(chosen, Moment(world.disk, world.truth), crashes + 1, is_thorough=True)


def judge(chosen: Scenario, moment: Moment, depth: int, *, is_thorough: bool) -> list[Moment]:
    """Check the wounded disk, recover it, check it; `is_thorough`: once more, and write an epoch."""
    world = World(moment.disk.after_kill(), moment.truth.fork(), depth * RECOVERY_LIFE)
    found: list[Moment] = []
    crash_judge.judge(
        world,
        chosen.writers,
        expires=chosen.expires,
        is_thorough=is_thorough,
        run=lambda heal: found.extend(moments(world, heal)),
    )
    return found
