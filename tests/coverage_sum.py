"""Sums up what the tests of all rooms cover: each room measures what it runs, the gate looks at the sum.

A room is a process of pytest with `environment` of its name: the tests beside servers and Spark (`others`), those that
compute (`proof`), those on S3 servers that are built (`stores`), and of these those that wait for time-outs (`waits`).

Promises: `main` prints the branches of every module of the engine and of the plug-in that no room takes, and fails when
one of them is in a gated module (`code_map`), or when a room that it was told of left nothing.
Relies on: coverage.py; rooms that ended.
Does not promise: what runs in other processes than pytest's own: Spark's workers, programs that a test starts or kills.

    python tests/coverage_sum.py ROOM...
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from code_map import GATED, MODULES, ROOT

DIRECTORY = ROOT / ".coverage-rooms"
GATE = [MODULES[name].path for name in GATED]
OPTIONS = ("--cov", "--cov-report=")


def environment(room: str) -> dict[str, str]:
    """For a pytest with `OPTIONS`: where the room keeps what it covers; what it kept before is gone."""
    (DIRECTORY / room).unlink(missing_ok=True)
    return {**os.environ, "COVERAGE_FILE": str(DIRECTORY / room)}


def sum_up(directory: Path, rooms: list[str], gate: list[str], root: Path = ROOT) -> int:
    """Print the sum of the rooms; the exit code."""
    missing = [room for room in rooms if not (directory / room).exists()]
    if missing:
        print(f"coverage: nothing of {', '.join(missing)}")
        return 1
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={directory / 'sum'}"
    files = [str(directory / room) for room in rooms]
    subprocess.run([*coverage, "combine", "--quiet", "--keep", data, *files], cwd=root, check=True)
    print(f"coverage of {', '.join(rooms)}, summed up:", flush=True)
    subprocess.run([*coverage, "report", data], cwd=root, check=True)
    gated = [*coverage, "report", data, f"--include={','.join(gate)}", "--fail-under=100"]
    found = subprocess.run(gated, cwd=root, check=False, capture_output=True, text=True)
    print(f"the gate, {len(gate)} modules: {found.stdout.splitlines()[-1]}", flush=True)
    return found.returncode


if __name__ == "__main__":
    sys.exit(sum_up(DIRECTORY, sys.argv[1:], GATE))
