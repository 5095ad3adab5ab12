"""Two processes at once: an act that is stopped at every one of its store calls while a rival does all of its own work.

Promises: `races` yields the world after each such interruption, until the act has no further store call; the act may
end, or be fenced, or be refused with a conflict, or as its `refusals` say; any other refusal is a `Violation`.
`survivals` has a process die at every system call while another one lives on and builds on what it left.
Relies on: `faults.delay`; the programs of `crash_world`.
Does not promise: two rivals that interrupt each other in turn; that is the model test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, cast

from crash import Moment, Mortal, images, moments
from crash_scenarios import Scenario, expire
from txsink.errors import ConflictError, CorruptError, FencedError, InvalidRequestError
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.crash_book import Violation
from txsink.testing.crash_check import check_wounded
from txsink.testing.crash_world import Disk, Program, World
from txsink.testing.faults import FaultyStore, delay
from txsink.testing.simdisk import Crash, SimDisk

BOTH = Scenario("race", lambda _: None, ("w", "v", "u"), is_small=True, expires=True)
NOT_EXPIRED = BOTH._replace(expires=False)


class Act(NamedTuple):
    """What is interrupted: what happens before it, with which program, and the act itself.

    `refusals`: what an InvalidRequestError may say, each with the name of the rival who gives cause for it.
    """

    before: Callable[[World], None]
    options: dict[str, Any]
    act: Callable[[World, Program], object]
    refusals: tuple[tuple[str, str], ...] = ()


# -- acts -------------------------------------------------------------------------------------------------


def two_epochs(world: World) -> None:
    writer = world.open()
    for epoch in (0, 1):
        writer.commit(epoch)


def many_epochs(world: World) -> None:
    writer = world.open()
    for epoch in range(5):
        writer.commit(epoch)


def leftovers(world: World) -> None:
    """An epoch committed, two pending, and files that nothing names."""
    writer = world.open()
    writer.commit(0)
    for epoch in (1, 2):
        writer.prepare(epoch)
    writer.stage(3)


def a_pending_overwrite(world: World) -> None:
    writer = world.open()
    writer.commit(0)
    writer.prepare(1, (0, 1, 7), mode="overwrite")


def another_writer(world: World) -> None:
    world.open("v").commit(0)


def staged_by_nobody_known(world: World) -> None:
    another_writer(world)
    world.open(is_one_shot=True).stage(0, (300, 301))


def prepare_and_finish(world: World, program: Program) -> None:
    program.prepare(2)
    program.finish(2)


def prepare_and_abort(world: World, program: Program) -> None:
    program.prepare(2)
    program.abort(2)


def begin_and_abort(world: World, program: Program) -> None:
    program.begin(2).abort()


# The writer has meanwhile committed epoch 50.
TOO_LATE = "it was never committed, or was taken back, yet epoch 50 is"

ACTS: dict[str, Act] = {
    "commit": Act(two_epochs, {}, lambda _, program: program.commit(2)),
    "prepare, commit": Act(two_epochs, {}, prepare_and_finish),
    "prepare, abort": Act(two_epochs, {}, prepare_and_abort),
    "begin, abort": Act(two_epochs, {}, begin_and_abort),
    "overwrite": Act(two_epochs, {}, lambda _, program: program.commit(2, (0, 5), mode="overwrite")),
    "open": Act(leftovers, {"recover": False}, lambda world, _: world.open()),
    "open an overwrite": Act(a_pending_overwrite, {"recover": False}, lambda world, _: world.open()),
    "write once": Act(
        another_writer,
        {"is_one_shot": True},
        lambda _, program: program.commit(0, (300, 301)),
        (("takes_over_and_overwrites", TOO_LATE), ("writes_once", TOO_LATE)),
    ),
    "write once, after a crash": Act(
        staged_by_nobody_known, {"is_one_shot": True}, lambda _, program: program.commit(0, (300, 301))
    ),
    "restore": Act(leftovers, {"recover": False}, lambda _, program: program.recover(1, "skip")),
    "rewind": Act(
        two_epochs,
        {"recover": False},
        lambda _, program: program.recover(0, "rewind"),
        (("appends_and_expires", "its metadata, to resume from, has expired"),),
    ),
    "sweep": Act(leftovers, {}, lambda _, program: program.sink.sweep()),
    "expire": Act(two_epochs, {}, lambda world, program: expire(world, program, 6)),
}

# -- rivals -----------------------------------------------------------------------------------------------


def takes_over(world: World) -> None:
    world.sink()


def takes_over_and_aborts(world: World) -> None:
    world.sink(recover=False).recover(up_to=0, on_newer="skip")


def takes_over_and_overwrites(world: World) -> None:
    world.open().commit(50, (0, 1, 9), mode="overwrite")


def appends(world: World) -> None:
    world.open("v").commit(50)


def overwrites(world: World) -> None:
    with suppress(ConflictError):
        world.open("v").commit(50, (0, 1, 9), mode="overwrite")


def appends_and_expires(world: World) -> None:
    other = world.open("v")
    for epoch in (50, 51, 52, 53):
        other.commit(epoch)
    expire(world, other, 100)


def writes_once(world: World) -> None:
    world.open(is_one_shot=True).commit(50)


RIVALS = [
    takes_over,
    takes_over_and_aborts,
    takes_over_and_overwrites,
    appends,
    overwrites,
    appends_and_expires,
    writes_once,
]


def unwrapped(world: World, rival: Callable[[World], None]) -> None:
    """The rival's turn, on a store of its own."""
    ours, world.wrap = world.wrap, plain
    rival(world)
    world.wrap = ours


def plain(store: Store) -> Store:
    """The store as it is."""
    return store


def races(
    chosen: Act, rival: Callable[[World], None], disk: Callable[[], Disk] = SimDisk, table_layout: str = "parquet"
) -> Iterator[World]:
    """The worlds after each interruption of the act by the rival."""
    for call in itertools.count(1):
        world = World(disk(), table_layout=table_layout)
        chosen.before(world)
        store = FaultyStore(world.store())
        world.wrap = lambda _, store=store: store  # type: ignore[misc]
        program = world.open(**chosen.options)

        store.plan.append(delay(store.calls + call, partial(unwrapped, world, rival)))
        try:
            with suppress(FencedError, ConflictError):
                chosen.act(world, program)
        except InvalidRequestError as error:
            if (rival.__name__, error.found.partition(":")[0]) not in chosen.refusals:
                raise Violation("I14 work refused", str(error)) from error
        except CorruptError as error:
            check_wounded(world.disk.files(), world.truth)
            raise Violation("I6 damage was found", str(error)) from error
        if not store.delivered:
            return
        yield world


# -- a process dies, another one on the same machine works on, then the power goes ------------------------


def survivor_recovers(_: World, survivor: Program) -> None:
    survivor.sink.recover()


def survivor_gets_a_late_notice(_: World, survivor: Program) -> None:
    """It reads the log to find out what it may forget, and writes down what it read when it is told once more."""
    survivor.begin(9).abort()
    survivor.sink.commit(1)


def survivor_expires(world: World, survivor: Program) -> None:
    """It summarises first, and so may count on a segment whose sync was cut short."""
    survivor.commit(7)
    expire(world, survivor, 100)


def survivor_commits(_: World, survivor: Program) -> None:
    survivor.commit(7)


def survivor_replays(world: World, _: Program) -> None:
    """A new process asks whether the dead one's epochs are committed, and believes the answer."""
    with world.sink(is_one_shot=True) as sink:
        for epoch in (0, 1):
            if sink.begin(epoch).outcome == "already-committed":
                world.tell("committed", "w", epoch)


SURVIVORS = [survivor_recovers, survivor_gets_a_late_notice, survivor_commits, survivor_expires, survivor_replays]


def survivals(act: Callable[[World, Program], None], table_layout: str = "parquet") -> Iterator[Moment]:
    """What is left when `w` died at each system call of its first epoch, `v` acted, and meanwhile the power went."""
    seen = set()
    for call in itertools.count(1):
        world = World(SimDisk(), table_layout=table_layout)
        survivor = world.open("v")
        # So that the one who dies writes a segment that is merged, whose entries an expiry takes away.
        for epoch in range(2):
            survivor.commit(epoch)
        ours, mortal = world.wrap, Mortal(cast("SimDisk", world.disk))
        world.wrap = lambda _, mortal=mortal: LocalStore(cast("ModuleType", mortal))  # type: ignore[misc]
        first = world.open(is_one_shot=True)
        mortal.calls_left = call
        with suppress(Crash):
            first.commit(0)
        world.wrap = ours
        for at, moment in enumerate(moments(world, lambda world: act(world, survivor))):  # noqa: B023 -- called at once
            for image in images(moment, f"survivor-{call}-{at}", 6):
                mark = (image.fingerprint(), frozenset(moment.truth.told))
                if mark not in seen:
                    yield Moment(image, moment.truth)
                seen.add(mark)
        if mortal.calls_left:
            return
