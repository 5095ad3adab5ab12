"""Spark in processes of its own: their environment, and that none of them outlives its test.

Promises: the driver leads a session, to which its JVM, executors and workers belong; `run` ends with all of them gone.
Relies on: /proc.
Does not promise: anything without /proc.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Starting is slow on a busy machine, and nothing here is a measurement.
SECONDS = 900


class Ended(NamedTuple):
    """How a driver ended, and what it said."""

    code: int
    output: str
    errors: str


def missing() -> str | None:
    """Why Spark cannot run here in processes that are killed; None when it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if shutil.which("java") is None:
        return "Spark needs Java"
    if not Path("/proc/self/stat").exists():
        return "executors are found in /proc, which is not there"
    return None


def environment(*paths: Path, **more: str) -> dict[str, str]:
    """With this tree on the path of the driver and of its workers, which run the Python of the tests."""
    found = [str(path) for path in (*paths, ROOT, ROOT / "formats", ROOT / "tests")]
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
    with (directory / "output").open("w+") as output, (directory / "errors").open("w+") as errors:
        # Files and no pipes: workers that outlive their driver would hold those open.
        driver = subprocess.Popen(command, stdout=output, stderr=errors, env=env, cwd=directory, start_new_session=True)
        try:
            code = driver.wait(SECONDS)
        finally:
            end(driver.pid)
        for told in (output, errors):
            told.seek(0)
        return Ended(code, output.read(), errors.read())


def end(session: int) -> None:
    """Kill every process of a session; those that begin meanwhile, too."""
    while found := members(session):
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def members(session: int) -> list[int]:
    """The processes of a session that are not just waiting to be forgotten."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, _, its_session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(path.name))
    return found
