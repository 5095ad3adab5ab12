"""Negative controls: sinks as people write them, each caught by the checkers that judge the engine (I1-I14).

A careful small sink passes every search, so what is reported of the others is theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import naive_sinks as sinks
from naive_check import Adapter, crashes, errors, takeovers
from naive_sinks import Careful
from txsink.testing.crash_book import Violation

Search = Callable[[Adapter], int]

# Each sink, where it is found out, and as what.
CAUGHT: list[tuple[type[Careful], Search, str]] = [
    (sinks.RenameOnly, crashes, "I3 committed was told"),
    (sinks.NoDataSync, crashes, "I6 damaged file"),
    (sinks.NoDirectorySync, crashes, "I3 committed was told"),
    (sinks.AcknowledgeBeforeDurable, crashes, "I3 committed was told"),
    (sinks.LogFirst, crashes, "I6 committed file is missing"),
    (sinks.LogInPlace, crashes, "I13 torn entry"),
    (sinks.ReplayUnchecked, crashes, "I4 epochs do not grow"),
    (sinks.Unfenced, takeovers, "I10 retired run wrote"),
    (sinks.SameGeneration, crashes, "I10 generation"),
    (sinks.SweepEverything, crashes, "I8 pending file"),
    (sinks.DeleteOnCommitError, errors, "I8 pending file"),
    (sinks.ListThenPut, takeovers, "I7 broken chain"),
    (sinks.LockWithTimeout, takeovers, "I7 broken chain"),
    (sinks.ForeachBatchAppend, crashes, "I1 seen twice"),
    (sinks.FileSinkReadByListing, crashes, "I1 seen twice"),
]


def test_there_are_at_least_twelve_and_all_are_tried() -> None:
    kinds = {one for one in vars(sinks).values() if isinstance(one, type) and issubclass(one, Careful)}
    assert kinds - {Careful} == {kind for kind, _, _ in CAUGHT}
    assert len(CAUGHT) >= 12


@pytest.mark.parametrize("search", [crashes, takeovers, errors])
def test_a_careful_small_sink_passes(search: Search) -> None:
    assert search(Adapter(Careful)) > 20


@pytest.mark.parametrize(("sink", "search", "kind"), CAUGHT, ids=[sink.__name__ for sink, _, _ in CAUGHT])
def test_a_naive_sink_is_caught(sink: type[Careful], search: Search, kind: str) -> None:
    with pytest.raises(Violation) as found:
        search(Adapter(sink))
    print(sink.__name__, "=>", found.value)
    assert found.value.kind == kind
