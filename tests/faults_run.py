"""Runs every part of the fault suite at full size, and writes what was delivered to `docs/faults.md`.

python tests/faults_run.py [--budget SECONDS] [--only NAME,NAME] [--seed NUMBER] [--ci] [--page PATH]

A part is a command. It hears FAULTS_SCALE=full and, when it could go on for ever, FAULTS_SECONDS: its share of the
budget. It tells what it did by lines `FAULTS {json}` (`ledger.report`). To plug a part in, add it to `PARTS` with the
cells it promises to fill, and take those cells out of `REASONS`.

Promises: exit 0 only when every part ended well, delivered all it planned and filled all it promised; the page is
written in any case, and says so.
Relies on: parts that end by themselves; one that does not is ended, with its children, after its time-out.
Does not promise: what a part promises.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from ledger import Cell, Ran, page, parsed, problems

ROOT = Path(__file__).parents[1]
BUDGET_SECONDS = 3600
PYTEST = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider")


class Part(NamedTuple):
    """One part: arguments of this Python, the cells it fills, its share of the budget (0: it ends by itself)."""

    name: str
    command: tuple[str, ...]
    covers: frozenset[Cell]
    share: float = 0
    seconds_max: float = 4 * 3600


def on(stores: str, *faults: str) -> frozenset[Cell]:
    """The cells of some classes on some stores."""
    return frozenset((fault, store) for fault in faults for store in stores.split(", "))


def part(name: str, *tests: str, covers: frozenset[Cell], share: float = 0, seconds_max: float = 4 * 3600) -> Part:
    """A part that is a run of pytest."""
    return Part(name, (*PYTEST, *(f"tests/{test}" for test in tests)), covers, share, seconds_max)


CALLS = (
    "crash before a call", "crash after a call", "torn write", "error before", "error after", "lost answer",
    "lost request", "duplicate delivery",
)  # fmt: skip
SWARM = (*CALLS, "stale listing", "reordered listing", "delay")
MODELS = "memory, bucket model"

PARTS: tuple[Part, ...] = (
    Part("swarm", ("tests/swarm_run.py",), on("memory", *SWARM), share=3),
    part("enumeration", "test_enumeration.py", covers=on(MODELS, *CALLS), share=3),
    part("schedules", "test_schedules.py", covers=on(MODELS, "chosen schedule")),
    part("power cuts", "test_crash_power.py", covers=on("disk model", "power cut or kill at a system call")),
)

IN_MEMORY = "the swarm plays in memory; its buckets are counted there"
SYSTEM_CALLS = "tried below, at each system call of the disk model"
NOT_YET = "comes with the parts for real processes, S3, HDFS and the Delta layout"

# Why a class was not tried on a store. The first line of a class says where its row stands.
REASONS: dict[Cell, str] = {
    **{(fault, store): NOT_YET for fault in SWARM for store in ("local disk", "S3", "HDFS", "Delta")},
    **{(fault, "disk model"): SYSTEM_CALLS for fault in CALLS},
    **{(fault, "disk model"): IN_MEMORY for fault in ("stale listing", "reordered listing", "delay")},
    **{(fault, "bucket model"): IN_MEMORY for fault in ("stale listing", "reordered listing", "delay")},
    **{
        ("chosen schedule", store): "the engine's code is the same, and its calls are those of the models"
        for store in ("disk model", "local disk", "S3", "HDFS", "Delta")
    },
    **{
        ("power cut or kill at a system call", store): "nothing in memory outlives the power"
        for store in ("memory", "bucket model")
    },
    **{("power cut or kill at a system call", store): NOT_YET for store in ("local disk", "HDFS", "Delta")},
    ("power cut or kill at a system call", "S3"): "what an object store has acknowledged is durable",
}


def main() -> int:
    options = _options()
    chosen = [one for one in PARTS if not options.only or one.name in options.only.split(",")]
    started = time.monotonic()
    ran: list[Ran] = []
    for one in chosen:
        ran.append(_run(one, _share(one, chosen, options.budget), options))
        minutes = (time.monotonic() - started) / 60
        header = (
            f"{datetime.now(timezone.utc):%Y-%m-%d}, {'CI' if options.ci else 'full'} size, {minutes:.0f} minutes on "
            f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.release()}, "
            f"Python {platform.python_version()}. {len(ran)} of {len(PARTS)} parts."
        )
        Path(options.page).write_text(page(ran, REASONS, header))  # so far: a run that is ended leaves what it knows
    wrong = problems(ran)
    print("\n".join(wrong) or f"{len(ran)} parts, every planned fault delivered, no failure: {options.page}")
    return bool(wrong)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the fault suite and its ledger")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds, for all parts that have no end")
    parser.add_argument("--only", default="", help=f"of {', '.join(one.name for one in PARTS)}")
    parser.add_argument("--seed", type=int, default=1_000_000, help="where the swarm begins")
    parser.add_argument("--ci", action="store_true", help="the sizes of `make test`")
    parser.add_argument("--page", default=str(ROOT / "docs" / "faults.md"))
    found = parser.parse_args()
    unknown = {*filter(None, found.only.split(","))} - {one.name for one in PARTS}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return found


def _share(one: Part, chosen: list[Part], budget: float) -> float:
    return budget * one.share / max(sum(other.share for other in chosen), 1e-9)


def _run(one: Part, seconds: float, options: argparse.Namespace) -> Ran:
    scale = "ci" if options.ci else "full"
    environment = {**os.environ, "FAULTS_SCALE": scale, "FAULTS_SEED": str(options.seed)}
    if one.share and not options.ci:
        environment["FAULTS_SECONDS"] = str(round(seconds, 1))
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *one.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    reports = []
    print(f"== {one.name}", flush=True)
    with process, _ended_after(process, one.seconds_max + seconds):
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if (found := parsed(line)) is not None:
                reports.append(found)
        code = process.wait()
    return Ran(one.name, one.covers, reports, code, time.monotonic() - started)


@contextmanager
def _ended_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """End the process, and all it started, when it takes too long or we go."""

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if process.poll() is None:
            end()


def _processor() -> str:
    """What the machine calls its processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
