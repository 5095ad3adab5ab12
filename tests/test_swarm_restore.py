"""Tables restored from a copy under living writers, at every version (I1, I3, I7)."""

from __future__ import annotations

from collections import Counter

import pytest

from broken import rewrite
from txsink.testing import swarm_restore
from txsink.testing.crash_book import Violation

SEEDS = 100


def searched(seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        counts += swarm_restore.run(seed)
    return counts


def test_no_row_is_lost_doubled_or_planted_when_a_table_is_restored_under_its_writers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = searched(SEEDS)
    with capsys.disabled():
        print(f"\nrestores: {SEEDS} seeds, {dict(counts)}")
    assert counts["restores"] > 3 * SEEDS
    assert counts["refused"] > SEEDS
    assert counts["expiries"] > SEEDS


def test_without_the_look_before_the_put_the_search_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, "log.log.Log.append", ('if not self.is_as_read(slot["time_ms"]):', "if False:"))
    with pytest.raises(Violation, match=r"I7|I3"):
        searched(SEEDS)
