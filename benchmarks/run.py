"""The measurements of docs/performance.md: `python benchmarks/run.py [--quick] [--directory D] [name …]`.

Each benchmark alternates txsink with what it is compared to, in one run, and reports ratios.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path

from measure import Finding, Scale, machine

# The largest comes last: for some minutes after a big deletion ext4 is slow to hand out inodes near it.
NAMES = (
    "epochs",
    "bulk",
    "flat",
    "peers",
    "delta",
    "hdfs",
    "s3",
    "spark_batch",
    "spark_stream",
    "spark_read",
    "opening",
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="name", help=f"which ones: {', '.join(NAMES)} (all)")
    options.add_argument("--quick", action="store_true", help="a tenth of the rounds: for trying, not for the record")
    options.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="the disk to measure on")
    given = options.parse_args()
    if unknown := sorted(set(given.names) - set(NAMES)):
        options.error(f"no benchmark is called {unknown[0]}; there are {', '.join(NAMES)}")
    scale = Scale(given.quick, given.directory)
    for name, value in machine(scale.root):
        print(f"{name:>30}  {value}")
    for name in given.names or NAMES:
        start = time.perf_counter()
        findings = importlib.import_module(name).run(scale)
        print(f"\n{name} ({time.perf_counter() - start:.0f} s)")
        for finding in findings:
            print(line(finding), flush=True)
    return 0


def line(finding: Finding) -> str:
    numbers = f"{finding.ours:>14} {finding.theirs:>14} {finding.ratio:8.2f}x"
    return f"  {finding.goal:<78} {numbers}  {finding.verdict()}"


if __name__ == "__main__":
    sys.exit(main())
