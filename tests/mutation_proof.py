"""The crash proof in small: what `mutation.py` runs on each mutant that the quick tests let live (I1-I14).

The same searches as in `test_controls.py`, `test_crash_power.py`, `test_enumeration.py` and `test_crash_races.py`,
fewer of them. Not collected by itself: its name does not begin with `test_`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash import Explorer, Moment, judge
from crash_races import ACTS, BOTH, RIVALS, SURVIVORS, races
from crash_scenarios import SCENARIOS, setting
from crash_searches import survival
from enumeration import Enumeration
from test_controls import VARIANTS
from txsink.testing.objects import Objects
from txsink.testing.simdisk import SimDisk


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts(name: str) -> None:
    Explorer(SCENARIOS[name], mixtures=1).explore()


@pytest.mark.parametrize("name", ["append_two_partitions", "abort_what_was_half_published", "overwrite_the_table"])
def test_store_calls_of_a_bucket(name: str) -> None:
    Enumeration(SCENARIOS[name], Objects, 1).run()


@pytest.mark.parametrize("name", dict.fromkeys(variant.search for variant in VARIANTS.values()))
def test_searches_of_the_controls(name: Callable[[], None]) -> None:
    name()


@pytest.mark.parametrize("act", SURVIVORS, ids=lambda act: act.__name__)
def test_survivors(act: object) -> None:
    survival(act)()


@pytest.mark.parametrize("disk", [SimDisk, Objects])
@pytest.mark.parametrize("rival", RIVALS[:2], ids=lambda rival: rival.__name__)
@pytest.mark.parametrize("name", ["write once", "restore", "sweep", "expire"])
def test_races(name: str, rival: object, disk: object) -> None:
    with setting(BOTH):
        for world in races(ACTS[name], rival, disk):  # type: ignore[arg-type]
            judge(BOTH, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=False)
