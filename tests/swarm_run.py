"""Runs the swarm: seeds one after the other, on as many processes as there are cores when it runs for the ledger.

python tests/swarm_run.py [SEED] [COUNT]     replays COUNT (1) seeds from SEED on, and prints the trace of each

Promises: a seed that breaks a promise is told with the way to replay it; faults are counted where they happened.
Relies on: `txsink.testing.swarm`, where the same seed is the same run.
Does not promise: an order among processes. Each has seeds of its own.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import NamedTuple

from ledger import report, seconds
from txsink.testing import swarm
from txsink.testing.crash_book import Violation

BATCH = 100
FAILURES_MAX = 10  # then there is enough to look at


class Tally(NamedTuple):
    """What some seeds did."""

    seeds: int
    calls: int
    planned: Counter[str]
    delivered: Counter[str]
    failures: list[str]
    mounts: int  # openings by another name of the table


def tally(first: int, number: int) -> Tally:
    """Run `number` seeds from `first` on."""
    planned, delivered = Counter[str](), Counter[str]()
    calls, mounts, failures = 0, 0, []
    with seldom_collected():
        for seed in range(first, first + number):
            try:
                done = swarm.run(seed)
            except Violation as violation:
                failures.append(f"seed {seed}: {violation}\n    replay: .venv/bin/python tests/swarm_run.py {seed}")
                continue
            planned.update(done.planned)
            delivered.update(done.delivered)
            calls += done.calls
            mounts += done.mounts
    return Tally(number, calls, planned, delivered, failures, mounts)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Garbage is looked for every few seeds, and seldom among what lives long: that is the decoded, which stays."""
    before = gc.get_threshold()
    gc.set_threshold(2_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def added(found: list[Tally]) -> Tally:
    """All of them together."""
    planned, delivered = Counter[str](), Counter[str]()
    for one in found:
        planned.update(one.planned)
        delivered.update(one.delivered)
    failures = [failure for one in found for failure in one.failures]
    seeds, calls, mounts = (sum(getattr(one, of) for one in found) for of in ("seeds", "calls", "mounts"))
    return Tally(seeds, calls, planned, delivered, failures, mounts)


def tell(done: Tally, began: float) -> None:
    """Print failures, and the report for the ledger."""
    print("\n".join(done.failures), flush=True)
    report(
        "swarm",
        "memory",
        {fault: (done.planned[fault], done.delivered[fault]) for fault in sorted(done.planned)},
        {"seeds": done.seeds, "store calls": done.calls, "openings by another name": done.mounts},
        failures=len(done.failures),
        seconds=time.monotonic() - began,
    )


def for_a_while(first: int) -> Tally:
    """Seeds from `first` on for as long as the ledger gives, on every core."""
    began, cores = time.monotonic(), os.cpu_count() or 1
    end = began + seconds(60)
    found: list[Tally] = []
    # Spawned: a fork would copy the threads of the schedule half.
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        starts = count(first, BATCH)
        while time.monotonic() < end and sum(len(one.failures) for one in found) < FAILURES_MAX:
            batches = [next(starts) for _ in range(4 * cores)]
            found += pool.map(partial(tally, number=BATCH), batches)
    done = added(found)
    tell(done, began)
    return done


def main() -> int:
    if len(sys.argv) == 1:
        return bool(for_a_while(int(os.environ.get("FAULTS_SEED", "1000000"))).failures)
    first, number = int(sys.argv[1]), int([*sys.argv, "1"][2])
    for seed in range(first, first + number):
        print(seed, swarm.run(seed).trace)
    return 0


if __name__ == "__main__":
    sys.exit(main())
