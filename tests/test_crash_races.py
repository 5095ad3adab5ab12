"""Another process does its work in the middle of ours, at every single store call (I1, I3, I5, I7, I8, I10, I13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash import Moment, judge
from crash_races import (
    ACTS,
    BOTH,
    RIVALS,
    SURVIVORS,
    Act,
    appends,
    appends_and_expires,
    many_epochs,
    overwrites,
    races,
    two_epochs,
)
from crash_scenarios import setting
from crash_searches import survival
from txsink.testing.crash_book import book_of
from txsink.testing.crash_world import Disk, Program, World
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk


@pytest.mark.parametrize("disk", [SimDisk, Objects])
@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.__name__)
@pytest.mark.parametrize("name", ACTS)
def test_whatever_a_rival_does_in_between_no_promise_is_broken(
    name: str, rival: Callable[[World], None], disk: Callable[[], Disk]
) -> None:
    with setting(BOTH):
        for world in races(ACTS[name], rival, disk):
            judge(BOTH, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)


@pytest.mark.parametrize("rival", [appends, overwrites, appends_and_expires], ids=lambda rival: rival.__name__)
def test_a_reader_sees_the_whole_table_of_one_version(rival: Callable[[World], None]) -> None:
    """F26: also while summaries are merged and entries expire under it."""

    def read(world: World, _: Program) -> None:
        reader = world.reader()
        live = {path: fact.file() for path, fact in reader.live().items()}
        book = book_of(world.disk.files(), world.truth, last=reader.state.version)
        assert live == book.files

    with setting(BOTH):
        assert len(list(races(Act(many_epochs, {}, read), rival))) > 5


def test_a_writer_that_slept_through_an_expiry_never_uses_a_version_twice() -> None:
    """F25, I7: its append lands in a slot whose entry was deleted, is not believed, and is made again at the end."""

    def sleeper_appends(world: World, program: Program) -> None:
        program.commit(2)
        assert [epoch for epoch, _ in book_of(world.disk.files(), world.truth).committed].count(("w", 2)) == 1

    with setting(BOTH):
        assert len(list(races(Act(two_epochs, {}, sleeper_appends), appends_and_expires))) > 5


@pytest.mark.parametrize("act", SURVIVORS, ids=lambda act: act.__name__)
def test_what_a_survivor_builds_on_entries_of_the_dead_outlives_a_power_cut(
    act: Callable[[World, Program], None],
) -> None:
    """An entry whose sync was cut short by a kill is read, believed and summarised by others (I1, I3, I13)."""
    survival(act)()
