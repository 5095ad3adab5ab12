"""An epoch on HDFS against the least that is durable there: create, write, hsync, close, rename."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hdfs_native import Client, WriteOptions
from measure import Finding, Scale, alternate, ms, p50, table

import txsink

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from hdfs_cluster import Cluster, missing

SETTINGS = {"compression": "zstd"}


def run(scale: Scale) -> list[Finding]:
    if reason := missing():
        print(f"\nhdfs: skipped, {reason}")
        return []
    rows = table(10_000)
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory))
        cluster.start()
        try:
            client = Client(cluster.uri)
            client.mkdirs("/bare")

            def bare(number: int) -> None:
                data = encoded(rows)
                with client.create(f"/bare/.{number}", WriteOptions()) as file:
                    file.write(data)
                    file.hsync()
                client.rename(f"/bare/.{number}", f"/bare/{number}.parquet")

            with txsink.open_writer(f"{cluster.uri}/t", "bench") as sink:

                def ours(number: int) -> None:
                    with sink.begin(number) as txn:
                        txn.write(rows)

                times = alternate(scale.of(200, 30), {"bare": bare, "txsink": ours})
        finally:
            cluster.stop()
    mine, theirs = p50(times["txsink"]), p50(times["bare"])
    what = f"HDFS: {len(times['bare'])} epochs of 10,000 rows, p50 / bare create, hsync, rename"
    return [Finding(what, ms(mine), ms(theirs), mine / theirs, 1.5)]


def encoded(rows: pa.Table) -> bytes:
    made = pa.BufferOutputStream()
    pq.write_table(rows, made, **SETTINGS)
    return made.getvalue().to_pybytes()
