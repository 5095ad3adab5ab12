"""What every test runs under: the same examples each time, whatever the machine's speed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

import delete_fence
from hdfs_cluster import hdfs_cluster
from place import Place
from s3_servers import Server, started
from spark_session import spark, spark_place

pytest_plugins = ["skips"]  # a skip that CI did not expect fails it

# Suites that test modules import keep pytest's account of a failed assert.
pytest.register_assert_rewrite("contract_store", "contract_publish", "contract_log")

__all__ = ["hdfs_cluster", "spark", "spark_place"]  # fixtures that modules of their own define

delete_fence.raised()

settings.register_profile("txsink", derandomize=True, deadline=None, database=None)
settings.load_profile("txsink")

# They only compute: beside the others (`lanes.py`).
PROOF = (
    "test_checkers", "test_controls", "test_crash_", "test_enumeration", "test_formal",
    "test_kill", "test_lossless", "test_model", "test_mutation", "test_naive", "test_real_", "test_schedules",
    "test_simdisk", "test_swarm", "test_two_phase",
)  # fmt: skip

# They wait for time-outs of servers: beside the others of `make test-stores`.
WAITS = "test_faults_s3"

# What only these tests run is measured with them. The others of them run the same lines thousands of times.
MEASURED = ("test_two_phase", "test_kill")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(WAITS):
            item.add_marker(pytest.mark.waits)
        if item.path.name.startswith(PROOF):
            item.add_marker(pytest.mark.proof)
            if not item.path.name.startswith(MEASURED):
                item.add_marker(pytest.mark.no_cover)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(delete_fence.told())


def pytest_sessionfinish(session: pytest.Session) -> None:
    ran = {item.path.name for item in session.items}
    unseen = [store for store, files in WRITE.items() if ran.intersection(files) and not delete_fence.seen[store]]
    is_part = session.config.option.keyword or any("::" in one for one in session.config.args)
    if session.exitstatus == 0 and (delete_fence.outside or (unseen and not is_part)):
        print(f"\ndelete fence: saw no delete on {unseen}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "T")


# What writes so much, by store, that a run of the whole file in which the fence saw no delete has no fence.
WRITE = {
    "local": ("test_recovery.py", "test_sweep.py", "test_overwrite.py", "test_whose_files.py"),
    "memory": ("test_store_memory.py",),
    "S3": ("test_table_s3.py", "test_delta_s3.py"),
    "HDFS": ("test_store_hdfs.py",),
}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """The S3 server of that name, shared by all tests: never kill it, make a bucket of your own."""
    servers: dict[str, Server] = {}
    with ExitStack() as running:

        def one(name: str) -> Server:
            if name not in servers:
                servers[name] = running.enter_context(started(name, tmp_path_factory.mktemp(name)))
            return servers[name]

        yield one
