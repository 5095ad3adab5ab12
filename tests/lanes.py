"""Runs the tests in two processes at once, as there are two cores: those that only compute, and all others.

Promises: both are run to their end and printed whole, one after the other; the last line adds both up; the exit code is
0 only when both are, and when the gated modules (`coverage_sum`) are covered by both together.
Relies on: the marker `proof`, which `conftest.py` gives to the suites that only compute; pytest's closing lines.
Does not promise: to share servers between the two: only the others have any.

    python tests/lanes.py             both
    python tests/lanes.py stores      the room of the servers that are built, alone and without the gate
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coverage_sum import DIRECTORY, GATE, OPTIONS, environment, sum_up

# What each room runs.
ROOMS = {"others": "not proof and not stores", "proof": "proof"}
STORES = "stores"
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


def main() -> int:
    """Run both; the exit code."""
    with tempfile.TemporaryDirectory() as kept:
        account = Path(kept, "proof")
        with account.open("wb") as output:
            proof = subprocess.Popen(
                command(ROOMS["proof"]), stdout=output, stderr=subprocess.STDOUT, env=environment("proof")
            )
        others = subprocess.Popen(
            command(ROOMS["others"]), stdout=subprocess.PIPE, text=True, errors="replace", env=environment("others")
        )
        told = []
        for line in others.stdout or ():
            print(line, end="", flush=True)
            told.append(line)
        codes = [others.wait(), proof.wait()]
        text = account.read_text(errors="replace")
    print(text, flush=True)
    codes.append(sum_up(DIRECTORY, [*ROOMS], GATE))
    found = counted(["".join(told), text])
    failed = found["failed"] + found["error"]
    print(f"{found['passed']} passed, {failed} failed, {found['skipped']} skipped")
    return max(codes)


if __name__ == "__main__":
    if sys.argv[1:] == [STORES]:
        sys.exit(subprocess.run(command(STORES), env=environment(STORES), check=False).returncode)
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    sys.exit(main())
