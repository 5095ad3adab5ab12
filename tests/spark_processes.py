"""Spark in processes of its own: their environment, and that none of them outlives its test.

Promises: the driver leads a session, to which its JVM, executors and workers belong; `run` ends with all of them gone.
Relies on: /proc.
Does not promise: anything without /proc.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import installs
from ledger import is_full

ROOT = Path(__file__).parents[1]
# Starting is slow on a busy machine, and nothing here is a measurement.
SECONDS = 7200 if is_full() else 900
TOLD = ("output", "errors")


class Ended(NamedTuple):
    """How a driver ended, and what it said."""

    code: int
    output: str
    errors: str


def missing(*modules: str) -> str | None:
    """Why Spark cannot run here in processes that are killed, or has not these modules; None when it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if reason := installs.missing("java"):
        return f"Spark needs Java: {reason}"
    if not Path("/proc/self/stat").exists():
        return "executors are found in /proc, which is not there"
    for module in modules:
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None or importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return None


def environment(*paths: Path, **more: str) -> dict[str, str]:
    """With this tree on the path of the driver and of its workers, which run the Python of the tests."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = [*map(str, (*paths, ROOT, ROOT / "formats", ROOT / "tests")), *filter(None, before)]
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return {**os.environ, **python, "PYTHONPATH": os.pathsep.join(found), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def home(directory: Path) -> Path:
    """Spark's own directory again, where a cluster may leave what it leaves there."""
    import pyspark  # noqa: PLC0415 -- `missing` says whether it is there

    found = directory / "spark"
    found.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (found / path.name).symlink_to(path)
    return found


def run(command: list[str], directory: Path, env: Mapping[str, str]) -> Ended:
    """Run a driver to its end; what it started ends with it."""
    with started(command, directory, env) as driver:
        code = driver.wait(SECONDS)
    return Ended(code, *((directory / name).read_text() for name in TOLD))


@contextmanager
def started(command: list[str], directory: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs meanwhile; what it started ends with the block. It tells into the files `TOLD`."""
    with (directory / TOLD[0]).open("w") as output, (directory / TOLD[1]).open("w") as errors:
        # Files and no pipes: workers that outlive their driver would hold those open.
        driver = subprocess.Popen(command, stdout=output, stderr=errors, env=env, cwd=directory, start_new_session=True)
        try:
            yield driver
        finally:
            end(driver.pid)
            driver.wait()


def end(session: int) -> None:
    """Kill every process of a session; those that begin meanwhile, too."""
    while found := members(session):
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def wait_until_stopped(driver: subprocess.Popen[bytes]) -> bool:
    """Whether it stands still, and has not ended instead."""
    for _ in range(10 * SECONDS):
        if driver.poll() is not None or _states(driver.pid).get(driver.pid) == "T":
            return driver.returncode is None
        time.sleep(0.1)
    return False


def go_on(session: int) -> None:
    """Every stopped process of a session."""
    for process in members(session):
        os.kill(process, signal.SIGCONT)


def members(session: int) -> list[int]:
    """The processes of a session that are not just waiting to be forgotten."""
    return [process for process, state in _states(session).items() if state not in "ZX"]


def _states(session: int) -> dict[int, str]:
    found = {}
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, _, its_session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session:
                found[int(path.name)] = state
    return found
