"""How things are measured here: alternating rounds in one run, medians, and the facts of the machine.

Promises: `alternate` times every contestant once per round, in an order that turns from round to round, so that
whatever else the machine does hits all of them; the garbage collector runs between rounds, never inside one.
Relies on: a monotonic clock.
Does not promise: that absolute numbers travel. Ratios from one run do.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import txsink
from txsink.environment import stamps
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink


class Finding(NamedTuple):
    """One line of the report. `limit` is the goal; `is_most`: the ratio may at most be that, else at least."""

    goal: str
    ours: str
    theirs: str
    ratio: float
    limit: float | None = None
    is_most: bool = True

    def verdict(self) -> str:
        if self.limit is None:
            return ""
        is_met = self.ratio <= self.limit if self.is_most else self.ratio >= self.limit
        return f"{'met' if is_met else 'NOT MET'} ({'<=' if self.is_most else '>='} {self.limit:g})"


class Scale(NamedTuple):
    """How much of each benchmark is run, and where."""

    is_quick: bool
    root: Path

    def of(self, whole: int, quick: int) -> int:
        return quick if self.is_quick else whole


def alternate(
    rounds: int, contestants: dict[str, Callable[[int], object]], after: Callable[[int], object] | None = None
) -> dict[str, list[float]]:
    """Seconds per round of each contestant; each is called with the number of the round, then `after`, untimed."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(timed(contestants[name], number))
            if after is not None:
                after(number)
            gc.collect(0)
    finally:
        gc.enable()
    return times


def timed(act: Callable[[int], object], number: int) -> float:
    """Seconds that one round takes."""
    start = time.perf_counter()
    act(number)
    return time.perf_counter() - start


def p50(seconds: list[float]) -> float:
    return statistics.median(seconds)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def table(rows: int, seed: int = 7) -> pa.Table:
    """Six columns as a program would have them: ids, a key, a measure, a text, a time, a flag."""
    chance = random.Random(seed)
    words = [f"item-{number:05d}" for number in range(5_000)]
    picks = pa.array([chance.randrange(len(words)) for _ in range(min(rows, 1 << 20))], pa.int32())
    picks = pa.concat_arrays([picks] * -(-rows // len(picks))).slice(0, rows)
    ids = pa.array(range(rows), pa.int64())
    measure = pc.multiply(pc.sin(pc.add(pc.cast(ids, pa.float64()), float(seed))), 1e3)
    return pa.table(
        {
            "id": ids,
            "shop": pc.cast(picks, pa.int32()),
            "price": measure,
            "item": pa.array(words).take(picks),
            "at": pc.cast(pc.add(pc.multiply(ids, 1_000), 1_700_000_000_000_000), pa.timestamp("us")),
            "is_paid": pc.greater(measure, 0.0),
        }
    )


@contextmanager
def scratch(root: Path, name: str) -> Iterator[Path]:
    """An empty directory that goes away."""
    with tempfile.TemporaryDirectory(prefix=f"txsink-{name}-", dir=root, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


class Unsynced(ModuleType):
    """`os`, but nothing is made durable: to build old tables fast, and to compare with peers that do not sync."""

    def __init__(self) -> None:
        super().__init__("unsynced")

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        """Nothing."""


def unsynced_writer(root: Path, writer: str) -> txsink.Writer:
    """An open writer whose store takes every promise of durability back."""
    return open_sink(LocalStore(Unsynced()), stamps(), str(root), writer, {})


def sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def machine(root: Path) -> list[tuple[str, str]]:
    """What one must know of a machine to judge its numbers."""
    return [
        ("cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
        ("load at start", f"{os.getloadavg()[0]:.1f}"),
        ("file system", _file_system(root)),
        ("one fsync of a new 4 KiB file", ms(_fsync_seconds(root))),
        ("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("python", sys.version.split()[0]),
        *((name, _version(name)) for name in ("pyarrow", "msgspec", "deltalake")),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _file_system(root: Path) -> str:
    """The type of the mount that holds `root`, where the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    path = str(root.resolve())
    above = [mount for mount in mounts if path == mount[1] or path.startswith(f"{mount[1].rstrip('/')}/")]
    return max(above, key=lambda mount: len(mount[1]))[2] if above else "unknown"


def _fsync_seconds(root: Path) -> float:
    def once(number: int) -> None:
        with (directory / str(number)).open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())

    with scratch(root, "fsync") as directory:
        return p50([timed(once, number) for number in range(20)])
