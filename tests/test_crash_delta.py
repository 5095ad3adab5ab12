"""The races of the crash proof on Delta tables: what others do at every store call of ours (I1, I5, I8-I10, I12).

The crashes of Delta tables are judged with all others, in `test_crash_power.py` and `test_crash_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash import Moment, judge
from crash_races import (
    ACTS,
    BOTH,
    NOT_EXPIRED,
    RIVALS,
    SURVIVORS,
    appends,
    overwrites,
    races,
    survivals,
    takes_over_and_aborts,
)
from crash_scenarios import setting
from txsink.testing.crash_world import Program, World
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk

DELTA, DELTA_NOT_EXPIRED = (one._replace(table_layout="delta") for one in (BOTH, NOT_EXPIRED))


# On a bucket those rivals that change what is visible: the others do the same there.
PAIRS = [(SimDisk, rival) for rival in RIVALS] + [
    (Objects, one) for one in (takes_over_and_aborts, appends, overwrites)
]


@pytest.mark.parametrize(("disk", "rival"), PAIRS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ACTS)
def test_whatever_a_rival_does_in_between_no_promise_is_broken(
    name: str, rival: Callable[[World], None], disk: Callable[[], SimDisk | Objects]
) -> None:
    with setting(DELTA):
        for world in races(ACTS[name], rival, disk, "delta"):
            judge(DELTA, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)


@pytest.mark.parametrize("act", SURVIVORS, ids=lambda act: act.__name__)
def test_what_a_survivor_builds_on_commits_of_the_dead_outlives_a_power_cut(
    act: Callable[[World, Program], None],
) -> None:
    """A Delta commit whose sync was cut short by a kill is read and believed by others (I1, I3, I13)."""
    with setting(DELTA_NOT_EXPIRED):
        for moment in survivals(act, "delta"):
            judge(DELTA_NOT_EXPIRED, moment, 1, is_thorough=False)
