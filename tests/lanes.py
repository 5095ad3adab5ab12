"""Runs the tests in processes beside each other: two that share two cores, and two that wait most of the time.

Promises: all are run to their end and printed whole, one after the other; the last line adds them up; the exit code is
0 only when all are, and when the gated modules (`coverage_sum`) are covered by the first two together.
Relies on: the markers `proof` and `waits`, which `conftest.py` gives to the suites that only compute, and to those that
wait for time-outs; pytest's closing lines.
Does not promise: to share servers between processes: each starts those that its tests ask for.

    python tests/lanes.py             those without servers that must be built
    python tests/lanes.py stores      the room of the servers that are built, without the gate
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from coverage_sum import DIRECTORY, GATE, OPTIONS, environment, sum_up

# What each room runs; the first is printed while it runs.
ROOMS = {"others": "not proof and not stores", "proof": "proof"}
STORES = {"stores": "stores and not waits", "waits": "stores and waits"}
COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|xfailed|xpassed)")
CLOSING = re.compile(r"^=* ?(\d+ (passed|failed|skipped|error).*) in [0-9.]+s", re.MULTILINE)


def command(marks: str) -> list[str]:
    """The tests with these marks, measured."""
    return [sys.executable, "-m", "pytest", "-m", marks, *OPTIONS]


def counted(texts: Sequence[str]) -> Counter[str]:
    """What the closing lines say, added up; a text without one is an error."""
    found = Counter[str]()
    for part in texts:
        closings = CLOSING.findall(part)
        for count, what in COUNT.findall(closings[-1][0] if closings else "1 error"):
            found[what] += int(count)
    return found


def run(rooms: Mapping[str, str]) -> tuple[list[int], list[str]]:
    """Run all rooms; their exit codes, and what they told, which is printed."""
    first, *beside = rooms
    with tempfile.TemporaryDirectory() as kept:
        accounts = [Path(kept, room) for room in beside]
        processes = []
        for room, account in zip(beside, accounts, strict=True):
            with account.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command(rooms[room]), stdout=output, stderr=subprocess.STDOUT, env=environment(room)
                    )
                )
        told = []
        with subprocess.Popen(
            command(rooms[first]), stdout=subprocess.PIPE, text=True, errors="replace", env=environment(first)
        ) as shown:
            for line in shown.stdout or ():
                print(line, end="", flush=True)
                told.append(line)
        codes = [shown.returncode, *(process.wait() for process in processes)]
        texts = [account.read_text(errors="replace") for account in accounts]
    print(*texts, sep="\n", flush=True)
    return codes, ["".join(told), *texts]


def main(rooms: Mapping[str, str], gate: Sequence[str]) -> int:
    """Run the rooms and add them up; the exit code."""
    codes, texts = run(rooms)
    if gate:
        codes.append(sum_up(DIRECTORY, [*rooms], [*gate]))
    found = counted(texts)
    failed = found["failed"] + found["error"]
    print(f"{found['passed']} passed, {failed} failed, {found['skipped']} skipped")
    return max(codes)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["stores"]):
        raise SystemExit(__doc__)
    sys.exit(main(STORES, ()) if sys.argv[1:] else main(ROOMS, GATE))
