"""Runs the tests in two processes at once, as there are two cores: those that only compute, and all others.

Promises: both are run to their end and printed whole, one after the other; the last line adds both up; the exit code is
0 only when both are, and when the others take every branch of the gated modules (`code_map`).
Relies on: the marker `proof`, which `conftest.py` gives to the suites that only compute; pytest's closing lines.
Does not promise: to share servers between the two: only the others have any.

    python tests/lanes.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from code_map import GATED, MODULES, ROOT

GATE = [MODULES[name].path for name in GATED]
COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|xfailed|xpassed)")
CLOSING = re.compile(r"^=* ?(\d+ (passed|failed|skipped|error).*) in [0-9.]+s", re.MULTILINE)


def main() -> int:
    """Run both; the exit code."""
    python = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryDirectory() as kept:
        account = Path(kept, "proof")
        with account.open("wb") as output:
            proof = subprocess.Popen([*python, "-m", "proof"], stdout=output, stderr=subprocess.STDOUT)
        others = subprocess.Popen(
            [*python, "-m", "not proof and not stores", "--cov", "--cov-report="],
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        told = []
        for line in others.stdout or ():
            print(line, end="", flush=True)
            told.append(line)
        codes = [others.wait(), proof.wait()]
        text = account.read_text(errors="replace")
    print(text, flush=True)
    found = Counter[str]()
    for part in ("".join(told), text):
        closings = CLOSING.findall(part)
        for count, what in COUNT.findall(closings[-1][0] if closings else "1 error"):
            found[what] += int(count)
    codes.append(gate())
    failed = found["failed"] + found["error"]
    print(f"{found['passed']} passed, {failed} failed, {found['skipped']} skipped")
    return max(codes)


def gate() -> int:
    """Say what of the gated modules no test takes; the exit code."""
    report = [sys.executable, "-m", "coverage", "report", f"--include={','.join(GATE)}", "--fail-under=100"]
    return subprocess.run(report, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
