"""Which skips a run may have: `TXSINK_REQUIRE=java,go,root,pip` says what the machine is known to have.

Promises: `unexpected` finds the skips that a run has no excuse for: for want of something that is required, or for a
reason that is of no kind known here.
Relies on: reasons that name what is missing; `installs` writes most of them.
Does not promise: that what is required is there. A test that needs it says so by being skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import pytest

VARIABLE = "TXSINK_REQUIRE"

# What can be required, and how reasons tell of its want.
NEEDS = {
    "java": r"\bjava is not installed|jar of HDFS could not be fetched|^Spark cannot fetch",
    "go": r"built by Go|could not fetch or build it|is not built",
    "root": r"^only root mount",
    "pip": r"\.venv-\w+|^(pyspark|the client of HDFS|TLC) is not installed",
    "apt": r"is not installed: apt-get install (e2fsprogs|xfsprogs|strace)$",
}
# What no package brings: the rights, the mounts and the servers of the machine.
GIVEN = (
    r"^root may write everywhere",
    r"^no second writable file system here",
    r"is no other file system than the temporary directory$",
    r"^only root may mount",
    r"^this machine allows no bind mount",
    r"^no \w+ disk can be mounted here",
    r"^strace may not attach",
    r"^versitygw gives no temporary credentials",
    r"^its file systems have no names but UTF-8",
    r"^Linux tells a process",
    r"^there is no /proc to look into",
)


def unexpected(reasons: Iterable[str], required: str) -> list[str]:
    """The reasons that this machine has no excuse for; `required`: names of `NEEDS`, with commas between them."""
    excused = [*GIVEN, *(words for name, words in NEEDS.items() if name not in required.split(","))]
    return sorted({reason for reason in reasons if not any(re.search(words, reason) for words in excused)})


# -- for pytest: `from skips import pytest_runtest_logreport, ...` in a conftest ------------------------------------

_seen: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note why a test was skipped."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note why a module was skipped."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        _seen.append(report.longrepr[2].removeprefix("Skipped: "))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped what it should not have, where something is required."""
    required = os.environ.get(VARIABLE)
    if required is not None and (found := unexpected(_seen, required)):
        print("\nunexpected skips:", *found, sep="\n  ")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
