"""An epoch on HDFS against the least that is durable there: create, write, hsync, close, rename.

The floor is three such files, as many as an epoch has (the rows, two entries), and no other call: once one after the
other, once at the same time, which is the most that overlapping could ever gain.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
            for name in ("bare", "turn", "overlap"):
                client.mkdirs(f"/{name}")

            def durable(name: str, data: bytes) -> None:
                with client.create(f"{name}.tmp", WriteOptions()) as file:
                    file.write(data)
                    file.hsync()

            def bare(number: int) -> None:
                durable(f"/bare/{number}", encoded(rows))
                client.rename(f"/bare/{number}.tmp", f"/bare/{number}.parquet")

            def floor(number: int, place: str, each: Callable[..., Iterable[None]]) -> None:
                names = [f"/{place}/{number}-{one}" for one in ("rows", "prepare", "commit")]
                list(each(durable, names, (encoded(rows), b"x" * 700, b"x" * 500)))
                for name in names:
                    client.rename(f"{name}.tmp", name)

            with txsink.open_writer(f"{cluster.uri}/t", "bench") as sink, ThreadPoolExecutor(3) as threads:

                def ours(number: int) -> None:
                    with sink.begin(number) as txn:
                        txn.write(rows)

                contestants = {
                    "bare": bare,
                    "txsink": ours,
                    "turn": partial(floor, place="turn", each=map),
                    "overlap": partial(floor, place="overlap", each=threads.map),
                }
                times = alternate(scale.of(200, 30), contestants)
        finally:
            cluster.stop()
    theirs = p50(times["bare"])
    return [
        Finding(
            f"{what} / bare create, hsync, rename", ms(p50(times[name])), ms(theirs), p50(times[name]) / theirs, limit
        )
        for what, name, limit in (
            (f"HDFS: {len(times['bare'])} epochs of 10,000 rows, p50", "txsink", 1.5),
            ("floor: its three durable files alone", "turn", None),
            ("floor, all three at the same time", "overlap", None),
        )
    ]


def encoded(rows: pa.Table) -> bytes:
    made = pa.BufferOutputStream()
    pq.write_table(rows, made, **SETTINGS)
    return made.getvalue().to_pybytes()
