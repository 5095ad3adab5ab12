"""Negative controls: the crash proof reports what is broken, else its silence would prove nothing (I1-I14).

Every variant breaks one line of the engine; the enumeration of crashes or races that the proof uses must stop at a
violation of the expected kind. `ORDERS` says for every `# ORDER:` comment of the engine which variant swaps it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, cast

import pytest

import crash_races
from broken import Swap, rewrite
from crash import Explorer, Moment, images, judge
from crash_check import ROOT, STAGING, Violation
from crash_races import ACTS, BOTH, NOT_EXPIRED, Act
from crash_scenarios import SCENARIOS, setting
from crash_world import Program, World
from faults import FaultyStore, fail_before
from simdisk import SimDisk
from txsink import log, parquet, publish, recovery, transaction, writer
from txsink.errors import TxsinkError
from txsink.store import local

Search = Callable[[], object]
CRASH_STATES_MAX = 4_000


# -- where the proof looks --------------------------------------------------------------------------------


def crashes(*names: str, quota: int = 0) -> Search:
    """Crashes in scenarios, and in their recoveries up to `quota` states."""
    return lambda: [Explorer(SCENARIOS[name], quota=quota).explore() for name in names]


def race(act: Act, rival: Callable[[World], None]) -> Search:
    """An act that a rival interrupts."""

    def search() -> None:
        with setting(BOTH):
            for world in crash_races.races(act, rival):
                judge(BOTH, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)

    return search


def survival(act: Callable[[World, Program], None]) -> Search:
    """Somebody dies, somebody else goes on, and the power goes."""

    def search() -> None:
        with setting(NOT_EXPIRED):
            for moment in crash_races.survivals(act):
                judge(NOT_EXPIRED, moment, 1, is_thorough=False)

    return search


def refusals(name: str) -> Search:
    """The store is unavailable at one call, and the program gives up."""

    def search() -> None:
        chosen = SCENARIOS[name]
        with setting(chosen), pytest.MonkeyPatch.context() as patch:
            patch.setattr("crash_world.TRIES", 1)
            for call in range(1, 100):
                world = World(SimDisk())
                store = FaultyStore(world.store(), [fail_before(call)])
                world.wrap = lambda _, store=store: store  # type: ignore[misc]
                with suppress(TxsinkError):
                    chosen.run(world)
                judge(chosen, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)

    return search


# -- variants ---------------------------------------------------------------------------------------------


class Variant(NamedTuple):
    """What is broken, where that shows, and as what."""

    broken: list[tuple[object, list[Swap]]]
    search: Search
    kinds: str


def variant(target: object, before: str, after: str, search: Search, kinds: str) -> Variant:
    return Variant([(target, [(before, after)])], search, kinds)


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


def sweeps(world: World) -> None:
    world.open()


def foreign_file(world: World) -> None:
    """Somebody puts a file of his own under the name that is about to be published."""
    for path in world.disk.files():
        if path.startswith(STAGING) and not (target := f"{ROOT}/{path.rpartition('/')[2]}") in world.disk.files():
            world.store().create(target).seal()


APPENDS = crashes("append_two_partitions")
RESTORE = Act(with_a_stale_run, {"recover": False}, lambda _, program: program.recover(0, "skip"))
EXPIRE = Act(with_a_sleeper, {}, lambda world, program: crash_races.expire(world, program, 100))
FORGET = Act(crash_races.two_epochs, {"run": "abcd"}, crash_races.begin_and_abort)
SLOW = ACTS["write once"]

VARIANTS: dict[str, Variant] = {
    # What the issue asks for.
    "no file fsync": variant(
        parquet.ParquetOutput.seal, "self._output.seal()", "self._output._empty()", APPENDS, "I[68] .*(file|damaged)"
    ),
    "no directory fsync": variant(
        local.LocalStore._sync_directory, "self._os.fsync(handle)", "pass", APPENDS, "I3|I6|I8|I13"
    ),
    "commit entry before publish": variant(
        transaction.roll_forward,
        "        publisher.publish(prepared)\n",
        "        log.append(_resolving(log, run, pending, Commit))\n        publisher.publish(prepared)\n",
        APPENDS,
        "I6 committed file is missing|I1 rows lost",
    ),
    "staged names not durable before the prepare entry": variant(
        transaction.prepare, "    log.store.settle(paths)\n", "", APPENDS, "I8 pending file"
    ),
    "replay unchecked": Variant(
        [
            (writer.Sink._is_committed, [("return True", "return False"), ("return False", "return False")]),
        ],
        crashes("write_once_and_replay"),
        "I4|I5",
    ),
    "unfenced sweep": variant(
        recovery.sweep, "        claim(log, run, unclaimed)\n", "        pass\n", race(SLOW, sweeps), "I8 pending file|I6"
    ),
    "delete on commit error": variant(
        transaction.roll_forward,
        "    except CorruptError:\n",
        "    except Exception:\n        publisher.withdraw(prepared)\n        raise\n    except CorruptError:\n",
        refusals("append_two_partitions"),
        "I8 pending file",
    ),
    "abort deletes before its entry": variant(
        transaction.abort,
        "    log.append(",
        "    from txsink.publish import RenamePublisher\n"
        "    RenamePublisher(log.store, log.root, '/d/.t.txsink').withdraw(log.prepare_entry(pending.prepared))\n"
        "    log.append(",
        crashes("abort_a_prepared_epoch"),
        "I8 pending file",
    ),
    "append overwrites": variant(
        local.LocalStore._put_once,
        "self._os.link(temporary, path)",
        "self._os.replace(temporary, path)",
        race(ACTS["commit"], crash_races.appends),
        "I7|I3|I13",
    ),
    "publish overwrites": variant(
        local.LocalStore._link,
        "self._os.link(source, target)",
        "self._os.replace(source, target)",
        crashes("append_two_partitions", quota=CRASH_STATES_MAX),
        "I",
    ),
}
