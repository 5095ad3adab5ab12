"""Real disks: one that is full at every size, and ext4 and xfs whose power really goes. For root; else skipped.

The CI scale is a sample, drawn by a seed; `python tests/real_faults.py` takes every size and every call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import power
import roads
from forks import Forks, forks
from real_faults import calls_of_the_work, chosen_cuts, cut, fill, pages_needed
from tally import Tally

SEED = 20261119
SIZES, CUTS, LYING_CUTS = 20, 8, 6


@pytest.fixture(scope="module")
def parent() -> Iterator[Forks]:
    with forks() as running:
        yield running


def require(root: Path, kind: str) -> None:
    if reason := power.hindrance(root, kind):
        pytest.skip(reason)


def test_a_disk_that_is_full_at_any_size_loses_nothing_and_goes_on_once_there_is_room(
    parent: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I5, I14: writes come back short, names and directories do not fit."""
    require(tmp_path, "tmpfs")
    needed = pages_needed(parent, tmp_path)
    assert needed > SIZES
    sizes = random.Random(SEED).sample(range(1, needed), SIZES)
    tally = fill(parent, tmp_path, sizes, Tally("full disks"))
    with capsys.disabled():
        tally.tell()
    assert tally.failures == []
    assert tally.delivered == {"full disk": SIZES}


@pytest.mark.parametrize("kind", power.KINDS)
def test_what_was_acknowledged_before_the_power_went_is_there_after_the_journal_is_replayed(
    kind: str, parent: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I3, I6, I9, I13: the power goes before a call of the operating system, without a flush of the journal."""
    require(tmp_path, kind)
    with power.disk(tmp_path, kind) as disk:
        calls = chosen_cuts(calls_of_the_work(parent, disk), CUTS, SEED)
        tally = cut(parent, disk, calls, Tally("power cuts"))
    with capsys.disabled():
        tally.tell()
    assert tally.failures == []
    told = len(roads.ROADS) + 1  # one of them twice: prepared, and committed
    assert tally.delivered == {f"power cut, {kind}": told + CUTS}


@pytest.mark.parametrize("kind", power.KINDS)
def test_without_fsync_the_same_cuts_lose_what_was_acknowledged(kind: str, parent: Forks, tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    require(tmp_path, kind)
    with power.disk(tmp_path, kind) as disk:
        last = calls_of_the_work(parent, disk)[-1]
        calls = random.Random(SEED).sample(range(last // 2, last + 1), LYING_CUTS)
        tally = cut(parent, disk, calls, Tally("power cuts"), "work_unsynced")
    assert tally.delivered == {f"power cut, {kind}": LYING_CUTS}
    assert all(any(f"call {call}:" in one for one in tally.failures) for call in calls), tally.failures


@pytest.mark.parametrize("kind", power.KINDS)
def test_without_syncs_of_directories_a_cut_after_an_acknowledgement_takes_the_entry_s_name(
    kind: str, parent: Forks, tmp_path: Path
) -> None:
    """The finest fault of a store there is: one name that is not durable yet when the caller believes it."""
    require(tmp_path, kind)
    with power.disk(tmp_path, kind) as disk:
        calls = chosen_cuts(calls_of_the_work(parent, disk), 0, SEED)
        tally = cut(parent, disk, calls, Tally("power cuts"), "work_unnamed")
    assert tally.delivered == {f"power cut, {kind}": len(roads.ROADS) + 1}
    assert any("I3" in one for one in tally.failures), tally.failures
