"""Ctrl-C, an error and `close` at every store call: the caller does what it is told, and rows and outcomes agree.

One trial in `SHARE` runs here, `make faults` runs all.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

import caller
import ledger
from txsink.log.log import Log
from txsink.protocol import outcome
from txsink.protocol.outcome import Own

SHARE = 1 if ledger.is_full() else 5  # no divisor of the number of kinds


def trials(name: str, world: str, share: int) -> list[tuple[str, int]]:
    """A fixed share of what can go wrong in the program, at every part of it."""
    calls, open_calls = caller.calls_of(caller.PROGRAMS[name], world)
    every = [
        (kind, at)
        for at in range(1, calls + 1)
        for kind in caller.KINDS
        if not kind.startswith("close") or at in open_calls
    ]
    return every[::share]


@pytest.mark.parametrize("world", caller.WORLDS)
def test_who_does_what_the_message_says_has_every_row_once_and_was_told_the_truth(
    world: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I11."""
    began, wrong = time.monotonic(), list[str]()
    planned, delivered, calls = Counter[str](), Counter[str](), 0
    for name, program in caller.PROGRAMS.items():
        calls += caller.calls_of(program, world)[0]
        for kind, at in trials(name, world, SHARE):
            found, is_delivered = caller.trial(program, world, kind, at)
            planned[kind] += 1
            delivered[kind] += is_delivered
            wrong += [f"{name}: {one}" for one in found]
    with capsys.disabled():
        ledger.report(
            "caller",
            world,
            {kind: (planned[kind], delivered[kind]) for kind in caller.KINDS},
            {"programs": len(caller.PROGRAMS), "store calls": calls, "trials": planned.total()},
            failures=len(wrong),
            seconds=time.monotonic() - began,
        )
    assert not wrong, "\n".join(wrong[:10])
    assert planned == delivered
    assert min(delivered.values()) > 20


def test_an_outcome_that_lies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: Ctrl-C right after the prepare entry was called aborted."""
    honest = outcome.outcome

    def lying(log: Log, writer: str, epoch: int, own: Own) -> str:
        found = honest(log, writer, epoch, own)
        return "aborted" if found == "unknown" else found

    monkeypatch.setattr(outcome, "outcome", lying)
    program = caller.PROGRAMS["begin, write, prepare, commit"]
    kind = "ctrl-c after a call"
    found = [caller.trial(program, "memory", kind, at)[0] for _, at in trials("commit of two", "memory", 7)[:30]]
    assert any("is aborted, and the next process has committed it" in one for wrong in found for one in wrong)
