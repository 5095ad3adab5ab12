"""Power cuts and kills at every system call of every kind of work, and of its recovery (I1-I14).

The number of distinct disks that were judged is printed; the proof asks for at least 50,000.
"""

from __future__ import annotations

from functools import cache

import pytest

from crash import Explorer, Tally, crash_state, moments, walk
from crash_scenarios import ALL_SCENARIOS, SCENARIOS, setting
from ledger import is_full, report
from txsink.testing.crash_world import World
from txsink.testing.simdisk import SimDisk

STATES_MIN = 50_000
QUOTA, DELTA_QUOTA = (20_000, 4_000) if is_full() else (3_200, 600)


@cache
def explored(name: str) -> Tally:
    return Explorer(ALL_SCENARIOS[name], quota=QUOTA if name in SCENARIOS else DELTA_QUOTA).explore()


@pytest.mark.parametrize("name", ALL_SCENARIOS)
def test_no_crash_and_no_crash_in_its_recovery_breaks_a_promise(name: str) -> None:
    tally = explored(name)
    assert tally.planned == tally.delivered


def test_at_least_fifty_thousand_distinct_crash_states_were_judged(capsys: pytest.CaptureFixture[str]) -> None:
    states = {}
    for store, names in (("disk model", SCENARIOS), ("Delta", ALL_SCENARIOS.keys() - SCENARIOS.keys())):
        tallies = [explored(name) for name in sorted(names)]
        states[store] = sum(len(tally.states) for tally in tallies)
        planned, delivered = sum(tally.planned for tally in tallies), sum(tally.delivered for tally in tallies)
        faults = {"power cut or kill at a system call": (planned, delivered)}
        with capsys.disabled():
            report("power cuts", store, faults, {"distinct states": states[store], "scenarios": len(tallies)})
    assert states["disk model"] >= STATES_MIN


@pytest.mark.parametrize("name", ALL_SCENARIOS)
def test_the_disks_judged_are_those_that_a_real_crash_leaves(name: str) -> None:
    """The n-th disk that was watched is the one left by dying at the n-th call."""
    chosen = ALL_SCENARIOS[name]
    with setting(chosen):
        watched = [
            moment.disk.fingerprint()
            for moment in moments(World(SimDisk(), table_layout=chosen.table_layout), chosen.run)
        ]
        for call in range(1, len(watched), max(1, len(watched) // 8)):
            assert crash_state(chosen, call, "before") == watched[call - 1]
            assert crash_state(chosen, call, "after") == watched[call]


@pytest.mark.parametrize("name", SCENARIOS)
def test_six_crashes_in_a_row_converge(name: str) -> None:
    """F27, I12: each one in the recovery of the one before."""
    with setting(SCENARIOS[name]):
        for seed in range(8):
            walk(SCENARIOS[name], 6, str(seed))
