"""Faults at every call of the store: an answer is lost, the store is unavailable, the program tries again (I1-I14).

It goes on as a reasonable one does (`crash_world.Program`), a new process recovers, and the checker of the power cuts
judges. Programs that die or give up, and their recoveries, stand in `test_enumeration.py`; what other runs may do in
between in `test_crash_races.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from crash import Moment, judge
from crash_scenarios import ALL_SCENARIOS, SCENARIOS, Scenario, setting
from txsink.errors import CorruptError, OutcomeUnknownError, UnavailableError
from txsink.store.protocol import Store
from txsink.testing.crash_book import STAGING, Book, book_of
from txsink.testing.crash_world import Disk, Program, World
from txsink.testing.faults import Fault, FaultyStore, fail_before, lose_answer, lose_request
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk

READS = {"resolve", "read", "tail", "list", "present", "same_place", "uploads", "parts"}
NewDisk: TypeAlias = Callable[[], Disk]
DISKS: list[NewDisk] = [SimDisk, Objects]


def faulty_world(
    *plan: Fault, disk: NewDisk = SimDisk, table_layout: str = "parquet"
) -> tuple[World, list[FaultyStore]]:
    """A world whose processes share one count of store calls."""
    world = World(disk(), table_layout=table_layout)
    made: list[FaultyStore] = []

    def wrap(store: Store) -> Store:
        # One store for all: a later process goes on counting where the one before stopped.
        if not made:
            made.append(FaultyStore(store, plan))
        return made[0]

    world.wrap = wrap
    return world, made


def calls_of(chosen: Scenario, disk: NewDisk) -> list[str]:
    """The verbs that the scenario calls, in order."""
    world, made = faulty_world(disk=disk, table_layout=chosen.table_layout)
    chosen.run(world)
    return [verb for verb, _ in made[0].trace]


def check(chosen: Scenario, world: World, *, is_thorough: bool = False) -> None:
    judge(chosen, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=is_thorough)


def committed(world: World) -> list[tuple[str, int]]:
    return [epoch for epoch, mode in book(world).committed if mode != "rewind"]


def book(world: World) -> Book:
    return book_of(world.disk.files(), world.truth)


def faults_at(call: int, verb: str) -> Iterator[Fault]:
    yield fail_before(call)
    if verb not in READS:
        yield lose_answer(call)
        yield lose_request(call)
    if verb == "put_if_absent":
        yield lose_answer(call, raises=True)


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("name", ALL_SCENARIOS)
def test_a_program_that_tries_again_after_a_fault_gets_every_epoch_in_once(name: str, disk: NewDisk) -> None:
    """F22, I11, I14: an error or a lost answer at any store call; then the program goes on to its end."""
    chosen = ALL_SCENARIOS[name]
    with setting(chosen):
        expected = World(disk(), table_layout=chosen.table_layout)
        chosen.run(expected)
        wanted = {told for told in expected.truth.told if told.what == "committed"}
        for call, verb in enumerate(calls_of(chosen, disk), 1):
            for fault in faults_at(call, verb):
                world, made = faulty_world(fault, disk=disk, table_layout=chosen.table_layout)
                chosen.run(world)
                made[0].check_delivered()
                check(chosen, world, is_thorough=call % 10 == 0)
                assert wanted <= world.truth.told
                assert len(set(committed(world))) >= len({(told.writer, told.epoch) for told in wanted})


def prepared(*plan: Fault) -> tuple[World, Program, FaultyStore]:
    """A program with epoch 0 committed and epoch 1 prepared, over a store that begins to fail as planned after that."""
    world, made = faulty_world()
    program = world.open()
    program.commit(0)
    program.prepare(1)
    store = made[0]
    store.plan += [fault._replace(call=store.calls + fault.call) for fault in plan]
    return world, program, store


@pytest.mark.parametrize("kind", [lose_answer, lose_request])
def test_an_answer_lost_for_good_is_an_unknown_outcome_and_deletes_nothing(kind: Callable[[int], Fault]) -> None:
    """I11: the store never says whether the entry landed; the next process finds out, and the epoch is there once."""
    world, made = faulty_world()
    program = world.open()
    txn = program.begin(0)
    twin, same = faulty_world()
    twin.open().begin(0).prepare()
    put = [at for at, (verb, _) in enumerate(same[0].trace, 1) if verb == "put_if_absent"][-1]
    # The put, and whatever it asks afterwards.
    made[0].plan += [kind(put), *(fail_before(call) for call in range(put + 1, put + 60))]
    with pytest.raises(OutcomeUnknownError), txn:
        pass
    assert [path for path in world.disk.files() if path.startswith(STAGING)], "an unknown outcome never deletes"
    made[0].plan.clear()
    program = world.open()
    program.commit(0)
    check(SCENARIOS["first_open"], world, is_thorough=True)
    assert committed(world) == [("w", 0)]


def test_a_commit_told_twice_is_a_success_and_one_entry() -> None:
    """F28, I5."""
    world, program, _ = prepared()
    for _ in range(3):
        program.sink.commit(1)
    assert committed(world) == [("w", 0), ("w", 1)]


def test_a_file_that_is_nowhere_is_named_and_nothing_else_is_touched() -> None:
    """F15, F28, I8: neither staged nor published."""
    world, program, store = prepared()
    lost = next(path for path in world.disk.files() if path.startswith(STAGING))
    store.delete(lost)
    before = world.disk.files()
    with pytest.raises(CorruptError, match=lost.rpartition("/")[2]):
        program.sink.commit(1)
    assert world.disk.files() == before


def test_a_move_that_fails_is_raised_and_the_next_commit_succeeds() -> None:
    """F28, I14."""
    world, program, store = prepared()
    _, twin, same = prepared()
    twin.finish(1)
    moves = [at for at, (verb, _) in enumerate(same.trace, 1) if verb == "move"]
    store.plan.append(fail_before(moves[-1]))
    with pytest.raises(UnavailableError):
        program.sink.commit(1)
    store.check_delivered()
    program.finish(1)
    check(SCENARIOS["first_open"], world, is_thorough=True)
