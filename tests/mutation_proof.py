"""The crash proof in small: what `mutation.py` runs on each mutant that the quick tests let live (I1-I14).

Searches of `test_controls.py`, `test_crash_power.py`, `test_enumeration.py` and `test_crash_races.py`, as far as they
take a few seconds each. Not collected by itself: its name does not begin with `test_`.
"""

from __future__ import annotations

import pytest

from crash import Explorer, Moment, judge
from crash_races import (
    ACTS,
    BOTH,
    RIVALS,
    races,
    survivor_recovers,
    takes_over,
    takes_over_and_aborts,
)
from crash_scenarios import ALL_SCENARIOS, SCENARIOS, setting
from crash_searches import (
    FORGET,
    RESTORE,
    SLOW,
    SWEEP,
    Search,
    nothing_is_overwritten,
    race,
    refusals,
    same_run_goes_back,
    same_run_prepares,
    survival,
    sweeps,
    zombie_publishes,
)
from enumeration import Enumeration
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk

# For what they show of summaries and expiry there are quick tests.
TOO_SLOW = {"expire_while_something_is_pending", "expire_what_is_old", "summaries_and_merges"}
CRASHES = (
    *(name for name in SCENARIOS if name not in TOO_SLOW),
    "delta_append_one_epoch", "delta_sweep_what_a_dead_run_left", "delta_recover_commits_some_and_aborts_others",
    "delta_abort_an_overwrite",
)  # fmt: skip

SEARCHES: dict[str, Search] = {
    "a run that is fenced within an overwrite": race(ACTS["overwrite"], takes_over_and_aborts),
    "a store that is not there at one call": refusals("append_two_partitions"),
    "a stalled publish of what is aborted": race(RESTORE, zombie_publishes),
    "a stalled publish of what is aborted in a bucket": race(RESTORE, zombie_publishes, Objects),
    "a stalled publish of what is aborted in Delta's log": race(RESTORE, zombie_publishes, table_layout="delta"),
    "a run that is fenced within a commit to Delta's log": race(ACTS["commit"], takes_over, table_layout="delta"),
    "a name that is taken": nothing_is_overwritten,
    "a part of the run that prepares": race(FORGET, same_run_prepares),
    "a part of the run that goes back": race(SWEEP, same_run_goes_back),
    "a slow run whose files are swept": race(SLOW, sweeps),
    "somebody dies and another one recovers": survival(survivor_recovers),
}


@pytest.mark.parametrize("name", CRASHES)
def test_power_cuts(name: str) -> None:
    Explorer(ALL_SCENARIOS[name], mixtures=1).explore()


@pytest.mark.parametrize("name", ["append_two_partitions", "abort_what_was_half_published", "overwrite_the_table"])
def test_store_calls_of_a_bucket(name: str) -> None:
    Enumeration(SCENARIOS[name], Objects, 1).run()


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_of_the_controls(name: str) -> None:
    SEARCHES[name]()


@pytest.mark.parametrize("disk", [SimDisk, Objects])
@pytest.mark.parametrize("rival", RIVALS[:2], ids=lambda rival: rival.__name__)
@pytest.mark.parametrize("name", ["write once", "restore", "sweep", "expire"])
def test_races(name: str, rival: object, disk: object) -> None:
    with setting(BOTH):
        for world in races(ACTS[name], rival, disk):  # type: ignore[arg-type]
            judge(BOTH, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)
