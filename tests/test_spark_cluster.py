"""Spark on a standalone cluster: what `spark_cluster_driver` tries there.

Promises: skipped, with the reason, where Java or pyspark is missing.
Relies on: `spark_cluster`, a master and two workers of this test alone.
Does not promise: several machines, but for what it plays: another disk, and no second attempt on the same host.
"""

from __future__ import annotations

import json
import sys

import pytest

import spark_processes
from spark_processes import ROOT

if reason := spark_processes.missing():
    pytest.skip(reason, allow_module_level=True)

from spark_cluster import Cluster
from spark_cluster_driver import PROMISES


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each promise."""
    directory = tmp_path_factory.mktemp("cluster")
    site = ROOT / "tests" / "spark_site"
    hidden = {"TXSINK_HIDDEN": str(directory / "hidden-mark"), "SPARK_HOME": str(directory / "spark")}
    env = spark_processes.environment(site, **hidden)
    cluster = Cluster(directory)
    try:
        cluster.start(PYTHONPATH=env["PYTHONPATH"], **hidden)
        command = [sys.executable, str(ROOT / "tests" / "spark_cluster_driver.py"), cluster.master, str(directory)]
        ended = spark_processes.run(command, directory, env)
    finally:
        cluster.stop()
    assert ended.code == 0, ended.errors
    return dict(json.loads(ended.output.splitlines()[-1]))


@pytest.mark.parametrize("promise", [one.__name__ for one in PROMISES])
def test_on_a_cluster(told: dict[str, str], promise: str) -> None:
    assert told[promise] == "", told[promise]
