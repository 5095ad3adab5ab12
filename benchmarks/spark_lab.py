"""Spark for benchmarks: each peer in a process of its own, beside txsink and Spark's own sink in the same session.

Promises: a peer that cannot be fetched or does not run is a line with the reason, and the others go on.
Relies on: Spark's package resolver; `.venv-bench-<peer>/`, which `make bench` makes because no peer runs on every
Spark. Without that directory a peer is tried on the Spark that runs this.
Does not promise: that figures of two peers can be compared. Their ratios to Spark's own sink can, with care.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from measure import Finding, Scale

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[1]
MARK = "FINDINGS "
# The same settings for all: what txsink writes by default.
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Peer(NamedTuple):
    """What Spark needs to know of it."""

    package: str = ""
    conf: dict[str, str] = {}  # noqa: RUF012 -- never changed


PEERS = {
    "none": Peer(),
    "delta": Peer(
        "io.delta:delta-spark_2.13:4.4.0",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",  # 50 by default: seconds per commit
        },
    ),
    "iceberg": Peer(
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        {
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
        },
    ),
}


def session(peer: str, directory: Path) -> SparkSession:
    """A local session with the peer on its class path."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- the parent needs no Spark

    conf = {**CONF, **PEERS[peer].conf}
    if PEERS[peer].package:
        conf["spark.jars.packages"] = PEERS[peer].package
    if peer == "iceberg":
        conf["spark.sql.catalog.ice.warehouse"] = str(directory / "iceberg")
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def columns(of: DataFrame, number: str) -> DataFrame:
    """Six columns as a program would have them."""
    return of.selectExpr(
        f"{number} id",
        f"cast({number} % 20 as int) shop",
        f"sin({number}) * 1000 price",
        f"concat('item-', lpad(cast(pmod(hash({number}), 5000) as string), 5, '0')) item",
        f"timestamp_micros(1700000000000000 + {number} * 1000) at",
        f"sin({number}) > 0 is_paid",
    )


def with_each_peer(script: str, scale: Scale, peers: tuple[str, ...] = tuple(PEERS)) -> list[Finding]:
    """What the script finds, run once for each peer."""
    findings: list[Finding] = []
    for peer in peers:
        own = ROOT / f".venv-bench-{peer}" / "bin" / "python"
        command = [
            str(own) if own.exists() else sys.executable,
            script,
            peer,
            str(scale.root),
            str(int(scale.is_quick)),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "formats")])}
        environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = command[0]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        for line in done.stdout.splitlines():
            if line.startswith(MARK):
                findings += [Finding(*one) for one in json.loads(line[len(MARK) :])]
        if done.returncode:
            print(f"\n{Path(script).stem}: {peer} ended with {done.returncode}: {reason(done.stdout + done.stderr)}")
    return findings


def reason(output: str) -> str:
    """The lines of a failure that say most."""
    told = [line.strip() for line in output.splitlines() if "Exception" in line or "rror" in line]
    told = [line for line in dict.fromkeys(told) if not line.startswith(("at ", "File "))]
    return " | ".join(line[:200] for line in told[-3:]) or output[-300:]


def child(run: Callable[[str, Scale], list[Finding]]) -> None:
    """The other end of `with_each_peer`."""
    peer, root, is_quick = sys.argv[1:]
    print(MARK + json.dumps(run(peer, Scale(bool(int(is_quick)), Path(root)))), flush=True)
