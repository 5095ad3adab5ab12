"""Spark Connect: what `spark_connect_driver` tries against a server on this machine.

Promises: skipped, with the reason, where Java, pyspark or what Connect needs besides is missing.
Relies on: a server that the driver's own process starts.
Does not promise: a server elsewhere, but for what it plays: another disk.
"""

from __future__ import annotations

import json
import sys

import pytest

import spark_processes
from spark_processes import ROOT

if reason := spark_processes.missing("grpc", "grpc_status", "google.rpc", "zstandard"):
    pytest.skip(reason, allow_module_level=True)

from spark_connect_driver import PROMISES


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each promise."""
    directory = tmp_path_factory.mktemp("connect")
    command = [sys.executable, str(ROOT / "tests" / "spark_connect_driver.py"), str(directory)]
    ended = spark_processes.run(command, directory, spark_processes.environment())
    assert ended.code == 0, ended.errors
    return dict(json.loads(ended.output.splitlines()[-1]))


@pytest.mark.parametrize("promise", [one.__name__ for one in PROMISES])
def test_through_spark_connect(told: dict[str, str], promise: str) -> None:
    assert told[promise] == "", told[promise]
