"""Every fault at every store call, and at every store call of the recovery, to depth 2; to depth 3 for the ledger.

(F22, F27, F28, I1-I14.) The process dies before, after or within a call, the store is unavailable, the answer or the
request is lost, or the request is delivered twice; the program gives up, and the next one recovers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from broken import rewrite
from crash_scenarios import ALL_SCENARIOS, SCENARIOS
from enumeration import Enumeration
from ledger import is_full, report, seconds
from txsink.testing.crash_book import Violation
from txsink.testing.names import Names
from txsink.testing.objects import Objects

Disk = Callable[[], Names | Objects]
STORES: dict[Disk, str] = {Names: "memory", Objects: "bucket model"}

DEPTH = 3 if is_full() else 2
TOLD = (*STORES.values(), "Delta")  # as the ledger names them: Delta tables are counted apart
planned, delivered, counts = ({store: Counter[str]() for store in TOLD} for _ in range(3))


@pytest.mark.parametrize("disk", STORES)
@pytest.mark.parametrize("name", ALL_SCENARIOS)
def test_no_fault_and_no_fault_in_its_recovery_breaks_a_promise(name: str, disk: Disk) -> None:
    found = Enumeration(ALL_SCENARIOS[name], disk, DEPTH)
    found.run(seconds(0) / len(ALL_SCENARIOS) / len(STORES) if is_full() else None)
    store = STORES[disk] if name in SCENARIOS else "Delta"
    planned[store] += found.planned
    delivered[store] += found.delivered
    counts[store]["scenarios"] += 1
    counts[store]["states left out for lack of time"] += found.left_out
    for depth, states in found.states.items():
        counts[store][f"states at depth {depth}"] += states
    assert found.planned == found.delivered
    assert found.states[1] > 1
    assert found.left_out or found.states[2] >= found.states[1]


def test_the_faults_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for store in TOLD:
            done = {fault: (count, delivered[store][fault]) for fault, count in planned[store].items()}
            report("enumeration", store, done, counts[store])


def test_a_recovery_that_forgets_an_abort_is_found_at_depth_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first recovery dies between the abort and its clean-up."""
    rewrite(
        monkeypatch,
        "protocol.recovery.finish_aborts",
        ("    for item in mine:\n        publisher", "    for item in ():\n        publisher"),
        (
            "    log.append(make)",
            "    log.append(make)\n    [publisher.withdraw(log.prepare_entry(x.prepared)) for x in mine]",
        ),
    )
    with pytest.raises(Violation, match=r"I1|I9") as found:
        Enumeration(SCENARIOS["abort_what_was_half_published"], Names, 2).run()
    assert "after abort_what_was_half_published on Names, " in str(found.value)
