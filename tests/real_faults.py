"""Real faults against real processes on the local store, at full scale.

python real_faults.py [SECONDS] [SEED]      with SECONDS: a sample of about that length, drawn by SEED

Every kill and every error at every system call of a writer's whole work (see roads.py), then full disks and power cuts
where we are root. Each part tells the ledger what was planned and what was delivered. The seconds and the seed of
`make faults` come in its environment. Exits with 1 when anything was lost, doubled or not delivered.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import power
from forks import DONE, FOREIGN, Forks, forks
from tally import Tally
from traced import ERRORS, Fault, hindrance, plan, traced


def wrong_after(parent: Forks, place: Path, table: Path | None = None) -> list[str]:
    """What a fresh process finds wrong with the table, once it has recovered it."""
    report = place / "report"
    status = parent.run("check", table or place / "T", place / "told", report)
    return report.read_text().splitlines() if status == DONE else [f"I14: the recovery ended with {status}"]


# -- system calls ---------------------------------------------------------------------------------------------


def every_fault(parent: Forks, place: Path) -> list[Fault]:
    """Every fault at every call that an undisturbed writer makes."""
    trace = traced(parent.start("work", place / "T", place / "told", 1, stops=True), place / "trace")
    return plan(trace.calls())


def sample(faults: Sequence[Fault], kills: int, errors: int, seed: int) -> list[Fault]:
    """Kills at calls of all kinds, and of each pair of an error and a call at least one while they last."""
    chance = random.Random(seed)
    chosen = chance.sample([one for one in faults if one.kind == "kill" and one.call not in {"close", "lseek"}], kills)
    rest = [one for one in faults if one.kind != "kill"]
    chance.shuffle(rest)
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for one in rest:
        seen[one.kind, one.call] += 1
        ranked.append((seen[one.kind, one.call], one))
    return chosen + [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:errors]]


def inject(parent: Forks, root: Path, faults: Iterable[Fault], tally: Tally) -> Tally:
    """Each fault in a table of its own; every other process that met an error goes on, the rest give up."""
    for number, fault in enumerate(faults):
        place = root / f"{number}"
        place.mkdir()
        tries = 1 + number % 2
        child = parent.start("work", place / "T", place / "told", tries, stops=True)
        trace = traced(child, place / "trace", fault)
        tally.planned[f"{fault.kind} at a system call"] += 1
        tally.delivered[f"{fault.kind} at a system call"] += min(1, trace.delivered(fault))
        wrong = wrong_after(parent, place)
        # One fault does not hinder a second try, and its error is ours.
        if trace.status == FOREIGN or (fault.kind != "kill" and tries == 2 and trace.status != DONE):
            wrong.append(f"I14: the writer ended with {trace.status}")
        if not trace.delivered(fault):
            wrong.append("it was not delivered")
        tally.failures += [f"{fault} ({'goes on' if tries == 2 else 'gives up'}): {one}" for one in wrong]
        shutil.rmtree(place)
    return tally


# -- full disks -------------------------------------------------------------------------------------------------


def fill(parent: Forks, root: Path, sizes: Iterable[int], tally: Tally) -> Tally:
    """A disk that has room for so many pages and no more; then it gets room."""
    for pages in sizes:
        place = root / f"{pages}"
        disk = place / "disk"
        disk.mkdir(parents=True)
        with power.small_disk(disk, pages):
            status = parent.run("work", disk / "T", place / "told", 1)
            tally.planned["full disk"] += 1
            tally.delivered["full disk"] += int(status != DONE)
            power.enlarge(disk)
            wrong = wrong_after(parent, place, disk / "T")
        if status == FOREIGN:
            wrong.append("the writer ended with an error that is not ours")
        tally.failures += [f"{pages} pages: {one}" for one in wrong]
        shutil.rmtree(place)
    return tally


def pages_needed(parent: Forks, root: Path) -> int:
    """The least number of pages that the work fits in, found by halving."""
    low, high = 1, 4096
    while low < high:
        middle = (low + high) // 2
        place = root / f"needed{middle}"
        disk = place / "disk"
        disk.mkdir(parents=True)
        with power.small_disk(disk, middle):
            fits = parent.run("work", disk / "T", place / "told", 1) == DONE
        low, high = (low, middle) if fits else (middle + 1, high)
        shutil.rmtree(place)
    return low


# -- power cuts -------------------------------------------------------------------------------------------------


def calls_of_the_work(parent: Forks, disk: power.Disk) -> list[int]:
    """After how many calls each epoch is acknowledged; the last number: how many there are.

    Counted on the disk itself: each directory above the table is synced too.
    """
    disk.format()
    place = Path(tempfile.mkdtemp(dir=disk.beside))
    parent.run("count", disk.path / "T", place / "told", place / "calls")
    return list(map(int, json.loads((place / "calls").read_text())))


def chosen_cuts(calls: Sequence[int], others: int, seed: int) -> list[int]:
    """The call after each acknowledgement, where what was acknowledged has nothing but its own syncs; and others."""
    *told, last = calls
    after = [call + 1 for call in told]
    rest = sorted({*range(1, last + 1)} - {*after})
    return after + random.Random(seed).sample(rest, min(others, len(rest)))


def cut(parent: Forks, disk: power.Disk, calls: Iterable[int], tally: Tally, program: str = "work_until") -> Tally:
    """The power goes before the nth call; the disk is mounted again, and nothing acknowledged may be gone."""
    for call in calls:
        place = disk.beside / f"{call}"
        place.mkdir()
        ends = place / "ends"
        disk.format()
        parent.run(program, disk.path / "T", place / "told", call, disk.path, ends)
        tally.planned[f"power cut, {disk.kind}"] += 1
        tally.delivered[f"power cut, {disk.kind}"] += int(ends.exists())
        disk.again()
        wrong = wrong_after(parent, place, disk.path / "T") if ends.exists() else ["the power never went"]
        tally.failures += [f"{disk.kind}, call {call}: {one}" for one in wrong]
        shutil.rmtree(place)
    return tally


# -- all of it --------------------------------------------------------------------------------------------------


def main() -> int:
    given = [*sys.argv[1:], *filter(None, [os.environ.get("FAULTS_SECONDS")])]
    seconds = float(given[0]) if given else None
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(os.environ.get("FAULTS_SEED", "20261119"))
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    tallies = []
    try:
        with forks() as parent:
            for part in (_calls, _full_disks, _power_cuts):
                started = time.monotonic()
                tallies += part(parent, root, None if seconds is None else seconds / 3, seed)
                print(f"{part.__name__.strip('_')}: {time.monotonic() - started:.0f} s", flush=True)
    finally:
        shutil.rmtree(root)
    for tally in tallies:
        print("\n".join(tally.failures[:50]))
        tally.tell()
    return int(not all(tally.is_good for tally in tallies))


def _drawn(items: Sequence[Any], seconds: float | None, each: float, seed: int) -> list[Any]:
    """As many of the items as fit in the time, drawn by the seed; all of them when there is no limit."""
    if seconds is None or seconds / each >= len(items):
        return list(items)
    return random.Random(seed).sample(list(items), max(1, int(seconds / each)))


def _calls(parent: Forks, root: Path, seconds: float | None, seed: int) -> list[Tally]:
    tally = Tally("system calls")
    if reason := hindrance(parent, root / "trial"):
        kinds = {"kill"}.union(*ERRORS.values())
        tally.skipped = {f"{kind} at a system call": reason for kind in kinds}
        return [tally]
    (root / "first").mkdir()
    return [inject(parent, root, _drawn(every_fault(parent, root / "first"), seconds, 0.7, seed), tally)]


def _full_disks(parent: Forks, root: Path, seconds: float | None, seed: int) -> list[Tally]:
    if reason := power.hindrance(root):
        return [Tally("full disks", skipped={"full disk": reason})]
    return [fill(parent, root, _drawn(range(1, pages_needed(parent, root)), seconds, 0.3, seed), Tally("full disks"))]


def _power_cuts(parent: Forks, root: Path, seconds: float | None, seed: int) -> list[Tally]:
    tallies = []
    for kind in power.KINDS:
        tally = Tally("power cuts")
        tallies.append(tally)
        if reason := power.hindrance(root, kind):
            tally.skipped[f"power cut, {kind}"] = reason
            continue
        with power.disk(root, kind) as disk:
            calls = calls_of_the_work(parent, disk)
            others = calls[-1] if seconds is None else int(seconds / 2 / 0.7)
            cut(parent, disk, chosen_cuts(calls, others, seed), tally)
    return tallies


if __name__ == "__main__":
    sys.exit(main())
