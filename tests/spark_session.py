"""One local session of Spark for all tests of a run, and what it tells: its log and its events.

Promises: skipped, with the reason, where Java or pyspark is missing; Spark's Python workers see this tree and the
tests; a task that fails is tried once more; nothing is printed.
Relies on: a process having one session. Tests that need others start processes of their own.
Does not promise: clusters, kills.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import installs

ROOT = Path(__file__).parents[1]
WAIT_SECONDS = 300
_LOG = """
rootLogger.level = off
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
"""


def missing() -> str | None:
    """Why no session can be started here; None when one can."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    reason = installs.missing("java")
    return f"Spark needs Java: {reason}" if reason else None


@pytest.fixture(scope="session")
def spark_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session writes its log and its events."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_place: Path) -> Iterator[Any]:
    if reason := missing():
        pytest.skip(reason)
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- most runs of few tests do without

    (spark_place / "events").mkdir()
    (spark_place / "log4j2.properties").write_text(_LOG.format(path=spark_place / "log"))
    with pytest.MonkeyPatch.context() as patch:  # its process is started in here, and keeps them
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # else the first python3 on the PATH
            patch.setenv(name, sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / name) for name in (".", "formats", "tests")))
        session = (
            SparkSession.builder.master("local[2,2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", f"file://{spark_place}/events")
            .config("spark.eventLog.compress", "false")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{spark_place}/log4j2.properties")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def wait_for(state: Callable[[], bool]) -> None:
    """Until it is so."""
    for _ in range(WAIT_SECONDS * 20):
        if state():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about")


@contextmanager
def told(session: Any, place: Path) -> Iterator[list[str]]:
    """What the session logs and tells of its events during a block, as text; filled when the block ends."""
    before = _read(place)
    found: list[str] = []
    session.sparkContext.setLogLevel("INFO")
    try:
        yield found
    finally:
        session.sparkContext.setLogLevel("OFF")
        # The events of a job are written behind it: when this job's are told, all before are.
        session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        found += [text[len(before.get(path, "")) :] for path, text in _read(place).items()]


def _read(place: Path) -> dict[Path, str]:
    files = [place / "log", *(place / "events").rglob("*")]
    return {path: path.read_text(errors="replace") for path in files if path.is_file()}
