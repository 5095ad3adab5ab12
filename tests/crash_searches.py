"""Where the crash proof looks: enumerations that end at the first violation, for the negative controls to run.

Promises: a `Search` raises `Violation` when the engine, as it is at the time of the call, breaks a promise there.
Relies on: `crash`, `crash_races`; the scenarios and acts that the proof itself runs, and some that need three parties.
Does not promise: anything on an engine that is whole: that each search is silent there is a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import cast

import pytest

import crash_races
from crash import Explorer, Moment, judge
from crash_races import ACTS, BOTH, NOT_EXPIRED, Act
from crash_scenarios import ALL_SCENARIOS, SCENARIOS, expire, setting
from txsink.errors import InternalError, TxsinkError
from txsink.log import log
from txsink.store.local import store as local
from txsink.testing.crash_book import ROOT, STAGING, Violation
from txsink.testing.crash_world import Disk, Program, World
from txsink.testing.faults import FaultyStore, fail_before
from txsink.testing.simdisk import SimDisk

Search = Callable[[], object]
CRASH_STATES_MAX = 4_000


@cache
def crashes(*names: str, quota: int = 0) -> Search:
    """Crashes in scenarios, and in their recoveries up to `quota` states."""
    return lambda: [Explorer(ALL_SCENARIOS[name], quota=quota).explore() for name in names]


def race(
    act: Act, rival: Callable[[World], None], disk: Callable[[], Disk] = SimDisk, table_layout: str = "parquet"
) -> Search:
    """An act that a rival interrupts."""

    def search() -> None:
        with setting(BOTH):
            for world in crash_races.races(act, rival, disk, table_layout):
                judge(BOTH, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)

    return search


@cache
def survival(act: Callable[[World, Program], None], hint_every: int = 3, table_layout: str = "parquet") -> Search:
    """Somebody dies, somebody else goes on, and the power goes."""

    def search() -> None:
        with setting(NOT_EXPIRED), pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "HINT_EVERY", hint_every)
            for moment in crash_races.survivals(act, table_layout):
                judge(NOT_EXPIRED, moment, 1, is_thorough=False)

    return search


def refusals(name: str) -> Search:
    """The store is unavailable at one call, and the program gives up."""

    def search() -> None:
        chosen = SCENARIOS[name]
        with setting(chosen), pytest.MonkeyPatch.context() as patch:
            patch.setattr("txsink.testing.crash_world.TRIES", 1)
            for call in range(1, 100):
                world = World(SimDisk())
                store = FaultyStore(world.store(), [fail_before(call)])
                world.wrap = lambda _, store=store: store  # type: ignore[misc]
                with suppress(TxsinkError):
                    chosen.run(world)
                judge(chosen, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)

    return search


# -- acts and rivals that only the controls need ---------------------------------------------------------


def zombie_publishes(world: World) -> None:
    """A run that read its prepare entry long ago goes on with its publish."""
    sink = world.stale  # type: ignore[attr-defined]
    with suppress(TxsinkError):
        sink.publisher.publish(sink.log.prepare_entry(sink.log.state.pending[0].prepared))


def with_a_stale_run(world: World) -> None:
    program = world.open()
    program.commit(0)
    program.prepare(1)
    world.stale = program.sink  # type: ignore[attr-defined]


def sleeper_commits(world: World) -> None:
    with suppress(TxsinkError):
        world.sleeper.commit(60)  # type: ignore[attr-defined]


def with_a_sleeper(world: World) -> None:
    """A writer that has read two entries, and a log that has grown far beyond."""
    world.sleeper = world.open("v")  # type: ignore[attr-defined]
    program = world.open()
    for epoch in range(8):
        program.commit(epoch)


def same_run_prepares(world: World) -> None:
    """A part of the same run prepares the epoch that another part of it is about to drop."""
    with suppress(TxsinkError):
        world.open(run="abcd", recover=False).prepare(2)


def same_run_goes_back(world: World) -> None:
    """A part of the same run takes epochs back and prepares one of them anew."""
    with suppress(TxsinkError):
        other = world.open(run="abcd", recover=False)
        other.recover(0, "rewind")
        other.prepare(1)


def catch_up_and_commit(world: World, program: Program) -> None:
    program.sink.recover()
    program.commit(60)


def log_expires_and_sleeper_commits(world: World) -> None:
    """The log moves on and forgets; then somebody who slept puts an entry into a slot that is free again."""
    world.sleeper.sink.log.refresh()  # type: ignore[attr-defined]
    other = world.open("u")
    for epoch in range(5):
        other.commit(epoch, (50_000 + 2 * epoch, 50_001 + 2 * epoch))
    expire(world, other, 100)
    sleeper_commits(world)


def nothing_is_overwritten() -> None:
    """F14: a file of somebody else's under the name that is about to be published stays as it is."""

    def foreign_file(world: World) -> None:
        staged = [path for path in world.disk.files() if path.startswith(STAGING)]
        taken.extend(f"{ROOT}/{path.rpartition('/')[2]}" for path in staged)
        for path in taken:
            output = world.store().create(path)
            output.write(b"foreign")
            output.seal()

    def finish(_: World, program: Program) -> None:
        program.prepare(2)
        with suppress(TxsinkError):
            program.sink.commit(2)

    taken: list[str] = []
    with setting(BOTH), suppress(InternalError):  # once it is published, the name is taken
        for world in crash_races.races(Act(crash_races.two_epochs, {}, finish), foreign_file):
            files = world.disk.files()
            if any(files[path] != b"foreign" for path in taken):
                raise Violation("F14 overwritten", f"{taken}")
            taken.clear()


def sweeps(world: World) -> None:
    world.open()


def replaced_for_good() -> None:
    """What `Store.replace` acknowledged is there after a power cut."""
    disk = SimDisk()
    store = local.LocalStore(cast("ModuleType", disk))
    for content in (b"old", b"new"):
        store.replace("/d/x", content, "token")
    if disk.after_power_cut("lost").files() != {"/d/x": b"new"}:
        raise Violation("I3 replaced content", "the old content came back")


APPENDS = crashes("append_two_partitions")
RESTORE = Act(with_a_stale_run, {"recover": False}, lambda _, program: program.recover(0, "skip"))
EXPIRE = Act(with_a_sleeper, {}, lambda world, program: expire(world, program, 100))
FORGET = Act(crash_races.two_epochs, {"run": "abcd"}, crash_races.begin_and_abort)
SWEEP = Act(crash_races.two_epochs, {"run": "abcd"}, lambda _, program: program.sink.sweep())
SLOW = ACTS["write once"]
