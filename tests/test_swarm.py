"""Thousands of small worlds of writers, zombies and faults, each decided by one number (I1-I16).

`make faults` goes on where this stops: `tests/swarm_run.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from broken import Swap, rewrite
from swarm_run import tally, tell
from txsink.testing import swarm
from txsink.testing.crash_book import Violation

SEEDS = 20_000
SEEDS_TO_FIND = 5_000


def test_no_seed_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """What 60 seconds of one core hold."""
    began = time.monotonic()
    done = tally(0, SEEDS)
    with capsys.disabled():
        tell(done, began)
    assert not done.failures
    assert done.planned == done.delivered
    assert min(done.delivered.values()) > 50
    assert len(done.delivered) == 11
    assert done.mounts > SEEDS // 2


# Among the first, 316 has uploads in several directories; the last has an expiry that settles several segments at once.
SEEDS_TWICE = ((300, 120), (813, 1))


@pytest.mark.parametrize(("first", "number"), SEEDS_TWICE)
def test_the_same_seed_gives_the_same_trace_in_another_process(first: int, number: int) -> None:
    """I16: also where sets come in another order."""
    program = Path(__file__).with_name("swarm_run.py")
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, program, str(first), str(number)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces = [line.split()[1] for line in done.stdout.splitlines()]
        assert traces == [swarm.run(seed).trace for seed in range(first, first + number)]


# -- the swarm finds what is broken ------------------------------------------------------------------------


class Planted(NamedTuple):
    """A bug: where, what is written there instead, and as what it must be found."""

    broken: list[tuple[str, list[Swap]]]
    kinds: str
    first: int = 0  # the seed to begin at


PLANTED: dict[str, Planted] = {
    "a copy stages where the original does": Planted(
        [("staging.place.own_staging", [('origin = store.origin(f"{root}/{paths.LOG_DIRECTORY}")', 'origin = ""')])],
        "I6 I8",
    ),
    "whose files they are is told by how the table is spelled": Planted(
        [("staging.place.own_staging", [('origin = store.origin(f"{root}/{paths.LOG_DIRECTORY}")', "origin = root")])],
        "I6 I8 I9",
    ),
    "a retired run claims again": Planted(
        [
            (
                "protocol.fencing.standing",
                [("if run.generation is None and not log.is_retired", "if True or log.is_retired")],
            )
        ],
        "I10",
        first=40,  # earlier seeds show the damage that the claim leads to (I6)
    ),
    "publish after commit": Planted(
        [
            (
                "protocol.resolving.roll_forward",
                [
                    ("        published = publisher.publish(prepared)\n", "        pass\n"),
                    ("    if not published.is_visible:\n", "    if False:\n"),
                    (", Commit, **published.told)", ", Commit)"),
                    ("    last = ", "    publisher.publish(prepared)\n    last = "),
                ],
            )
        ],
        "I1 I6",
        first=12,  # seed 11 shows the damage as a replaced file that is missing (I8)
    ),
    "sweep without retiring": Planted(
        [("protocol.sweeping.sweep", [("        claim(log, run, tuple(sorted(unclaimed)))\n", "        pass\n")])],
        "I6 I8 I10",
    ),
    "delete on commit error": Planted(
        [
            (
                "protocol.resolving.roll_forward",
                [
                    (
                        "    except (CorruptError, UnavailableError):\n",
                        (
                            "    except Exception as error:\n        if type(error) is not CorruptError:\n"
                            "            publisher.withdraw(prepared)\n            raise\n"
                        ),
                    )
                ],
            )
        ],
        "I6 I8",
    ),
    "a lost answer is taken for a success": Planted(
        [("chain.put_once.put", [("            if created:\n", "            if created is not False:\n")])],
        "I3 I6 I7 I13 I14",
    ),
    "a slot that expired is used twice": Planted(
        [("log.log.Log.append", [("if stands:", "if True:")])],
        "I3 I6 I7",
        first=20_000,  # one seed in some ten thousand shows it
    ),
    "replay unchecked": Planted(
        [("protocol.preparing.is_committed", [("last is None or epoch > last", "True")])], "I1 I4 I6 I14"
    ),
    "damage is reported without looking again": Planted(
        [("protocol.sweeping._swept", [("and _was_replaced(log, run, name.path)", "and False")])],
        "I6",
        first=109_000,  # one seed in some ten thousand shows it
    ),
    "an unclaimed run resolves what others prepared": Planted(
        [("writing.writer.Writer._look_and_claim", [("self.identity.generation is None", "False")])], "I6"
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for target, swaps in PLANTED[name].broken:
            rewrite(patch, target, *swaps)
        yield


@pytest.mark.parametrize("name", PLANTED)
def test_the_swarm_finds_it(name: str) -> None:
    with planted(name):
        for seed in range(PLANTED[name].first, PLANTED[name].first + SEEDS_TO_FIND):
            try:
                swarm.run(seed)
            except Violation as violation:
                found = f"seed {seed}: {violation}"
                break
        else:
            pytest.fail(f"{SEEDS_TO_FIND} seeds do not show it")
    print(f"{name} => {found}")
    assert found.split()[2] in PLANTED[name].kinds.split(), found
