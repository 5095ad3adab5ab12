"""Runs every part of the fault suite at full size, and writes what was delivered to `docs/faults.md`.

python tests/faults_run.py [--budget SECONDS] [--only NAME,NAME] [--seed NUMBER] [--ci] [--page PATH]

A part is a command. It hears FAULTS_SCALE=full and, when it could go on for ever, FAULTS_SECONDS: its share of the
budget. It tells what it did by lines `FAULTS {json}` (`ledger.report`). To plug a part in, add it to `PARTS` with the
cells it promises to fill, and a new class to `WHY`.

Promises: exit 0 only when every part ended well, delivered all it planned and filled all it promised; the page is
written in any case, and says so. Beside it a file of the same name keeps what the parts told, so that those that take
hours can be run one by one (`--only`).
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
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import caller
import power
import test_faults_hdfs
import test_faults_s3
import traced
from ledger import STORES, Cell, Ran, found_again, kept, page, parsed, problems

ROOT = Path(__file__).parents[1]
BUDGET_SECONDS = 3600
PYTEST = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout", "14400")


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
DRAWN = ("stale listing", "reordered listing", "delay")
DISK_CALL = "power cut or kill at a system call"
POWER = tuple(f"power cut, {kind}" for kind in power.KINDS)
SYSTEM_CALLS = tuple(f"{kind} at a system call" for kind in ("kill", *sorted({*chain(*traced.ERRORS.values())})))
REQUESTS = tuple(f"request: {kind}" for kind in (*test_faults_s3.ONCE, *test_faults_s3.FOR_EVER))
TORN = "request: answer torn"
NODES = tuple(f"nodes killed: {fate}" for fate in test_faults_hdfs.FATES)
SPARK = ("Spark's driver killed", "Spark's executor killed")
KILLS_OF_SPARK = "test_spark_kills.py"
TEN_TIMES = "test_a_driver_killed_ten_times_writes_every_row_once"
TWENTY_TIMES = "test_executors_killed_twenty_times_write_every_row_once"
MODELS = "memory, bucket model"
LOGIC = "mutant of a condition, comparison or constant"
CALLER = caller.KINDS

PARTS: tuple[Part, ...] = (
    Part("swarm", ("tests/swarm_run.py",), on("memory", *CALLS, *DRAWN), share=3),
    part("enumeration", "test_enumeration.py", covers=on(f"{MODELS}, Delta", *CALLS), share=3),
    part("schedules", "test_schedules.py", covers=on(MODELS, "chosen schedule")),
    part("power cuts", "test_crash_power.py", covers=on("disk model, Delta", DISK_CALL)),
    part("caller", "test_caller_search.py", covers=on(f"disk model, {MODELS}", *CALLER)),
    part("kills", "test_kill.py", covers=on("local disk", "kill before a store call")),
    Part("real disks", ("tests/real_faults.py",), on("local disk", *SYSTEM_CALLS, *POWER, "full disk"), share=3),
    part("requests", "test_faults_s3.py", covers=on("S3", *REQUESTS)),
    part("requests on Delta tables", "test_delta_faults_s3.py", covers=on("Delta", *REQUESTS) - on("Delta", TORN)),
    part("nodes", "test_faults_hdfs.py", covers=on("HDFS", *NODES)),
    part("drivers of Spark", f"{KILLS_OF_SPARK}::{TEN_TIMES}", covers=on("local disk", SPARK[0])),
    part("executors of Spark", f"{KILLS_OF_SPARK}::{TWENTY_TIMES}", covers=on("local disk", SPARK[1])),
    part(
        "rows", "test_lossless.py", covers=frozenset()
    ),  # values, and no faults: it fills no cell, and tells its counts
    Part("mutants", ("tests/mutation.py",), on("memory", "mutant")),
    Part("mutants of logic", ("tests/mutation_logic.py",), on("memory", LOGIC), seconds_max=12 * 3600),
    Part("formal model", ("tests/formal.py",), on("memory", "rule switched off in the model"), share=3),
)

# Why a class is not tried on the other stores.
WHY = {
    **dict.fromkeys(CALLS, "the same engine makes the same calls there; rows further down hit the real store"),
    **dict.fromkeys(DRAWN, "drawn by the swarm, which plays in memory"),
    "chosen schedule": "the engine's code is the same, and its calls are those of the models",
    **dict.fromkeys(CALLER, "what the caller is told does not depend on the store; each store has errors of its own"),
    DISK_CALL: "no power cut takes what was told: memory has none, buckets and NameNodes answer when it is durable; "
    "a local disk loses it for real, further down",
    "kill before a store call": "a crash on the models; on S3 and HDFS requests are broken, and nodes killed",
    **dict.fromkeys(SYSTEM_CALLS, "only the local store makes system calls on files"),
    **dict.fromkeys((*POWER, "full disk"), "only the local store has a disk of its own"),
    **dict.fromkeys(REQUESTS, "only S3 is spoken to in requests that a proxy can break"),
    TORN: "only answers to reads are worth tearing, and those are torn on S3 for both layouts alike",
    **dict.fromkeys(NODES, "only HDFS has nodes"),
    **dict.fromkeys(SPARK, "tried on local disks; restarts on S3 and HDFS are among the tests of Spark"),
    LOGIC: "its tests are those of the module it changes",
    "mutant": "its tests play in memory and on the models",
    "rule switched off in the model": "the model has stores of its own",
}
FILLED = {cell for one in PARTS for cell in one.covers}
REASONS: dict[Cell, str] = {
    (fault, store): why for fault, why in WHY.items() for store in STORES if (fault, store) not in FILLED
}


def main() -> int:
    options = _options()
    chosen = [one for one in PARTS if not options.only or one.name in options.only.split(",")]
    page_path = Path(options.page)
    # What the page was made of. Parts that are not chosen now stay as they were told last.
    record = page_path.with_suffix(".json")
    done = found_again(record.read_text(), {one.name: one.covers for one in PARTS}) if record.exists() else {}
    for one in chosen:
        done[one.name] = _run(one, _share(one, chosen, options.budget), options)
        parts = [done[part.name] for part in PARTS if part.name in done]
        header = (
            f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.release()}, "
            f"Python {platform.python_version()}. {len(parts)} of {len(PARTS)} parts, "
            f"{sum(one.seconds for one in parts) / 60:.0f} minutes."
        )
        # So far: a run that is ended leaves what it knows.
        page_path.write_text(page(parts, REASONS, header))
        record.write_text(kept(parts))
    wrong = problems([done[one.name] for one in chosen])
    print("\n".join(wrong) or f"{len(chosen)} parts, every planned fault delivered, no failure: {options.page}")
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
    told = f"{datetime.now(timezone.utc):%Y-%m-%d}, {'CI' if options.ci else 'full'} size"
    return Ran(one.name, one.covers, reports, code, time.monotonic() - started, told)


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
