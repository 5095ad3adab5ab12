"""The parquet layout on MinIO against bare s3fs: small epochs, a large one, and the memory that staging takes.

A small epoch is compared with the least that puts its file there by upload and two small objects beside it: encode,
create, part, complete, put, put. A large one with s3fs writing the very bytes that txsink made, which it does not have
to encode, and with pyarrow writing them through s3fs. The columns are random, so that nothing gets smaller.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Finding, Scale, alternate, ms, p50, scratch, table

import txsink

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from s3_servers import Server, missing, started

MIB = 1 << 20
COLUMNS = 8
BATCH_ROWS = 1 << 17  # 8 MiB
SETTINGS = {"compression": "zstd"}
LARGE = {**SETTINGS, "write_page_checksum": True, "use_dictionary": False}


def run(scale: Scale) -> list[Finding]:
    if reason := missing("minio"):
        print(f"\ns3: skipped, {reason}")
        return []
    with scratch(scale.root, "s3") as directory, started("minio", directory) as server:
        # First memory: a child begins with the peak of its parent, and the large epoch is held here whole.
        return [*memory(scale, server), *small(scale, server), *large(scale, server)]


def files_of(server: Server) -> Any:
    from s3fs import S3FileSystem  # noqa: PLC0415 -- an extra

    return S3FileSystem(**server.storage_options, use_listings_cache=False, skip_instance_cache=True)


# -- small epochs -----------------------------------------------------------------------------------------


def small(scale: Scale, server: Server) -> list[Finding]:
    rows, bucket, files = table(10_000), server.make_bucket(), files_of(server)

    def bare(number: int) -> None:
        encoded = pa.BufferOutputStream()
        pq.write_table(rows, encoded, **SETTINGS)
        where = {"Bucket": bucket, "Key": f"bare/{number}.parquet"}
        upload = {**where, "UploadId": files.call_s3("create_multipart_upload", **where)["UploadId"]}
        body = encoded.getvalue().to_pybytes()
        part = {"ETag": files.call_s3("upload_part", **upload, PartNumber=1, Body=body)["ETag"], "PartNumber": 1}
        files.call_s3("complete_multipart_upload", **upload, MultipartUpload={"Parts": [part]})
        for name in ("prepare", "commit"):
            files.call_s3("put_object", Bucket=bucket, Key=f"bare/log/{number}-{name}", Body=b"x" * 500)

    with txsink.open_writer(f"s3://{bucket}/t", "bench", storage_options=server.storage_options) as sink:

        def ours(number: int) -> None:
            with sink.begin(number) as txn:
                txn.write(rows)

        times = alternate(scale.of(300, 40), {"bare": bare, "txsink": ours})
    mine, theirs = p50(times["txsink"]), p50(times["bare"])
    what = f"S3: {len(times['bare'])} epochs of 10,000 rows, p50 / bare upload and 2 puts"
    return [Finding(what, ms(mine), ms(theirs), mine / theirs, 1.5)]


# -- a large epoch ----------------------------------------------------------------------------------------


def batch(seed: int) -> pa.RecordBatch:
    """Rows of random bits, which no encoding makes smaller."""
    data = pa.py_buffer(random.Random(seed).randbytes(BATCH_ROWS * 8 * COLUMNS))
    whole = pa.Array.from_buffers(pa.int64(), BATCH_ROWS * COLUMNS, [None, data])
    columns = [whole.slice(number * BATCH_ROWS, BATCH_ROWS) for number in range(COLUMNS)]
    return pa.record_batch(columns, [f"c{number}" for number in range(COLUMNS)])


def large(scale: Scale, server: Server) -> list[Finding]:
    rows = pa.Table.from_batches([batch(seed) for seed in range(scale.of(128, 32))])
    bucket, files = server.make_bucket(), files_of(server)
    uri, options = f"s3://{bucket}/t", server.storage_options
    txsink.write(uri, rows, writer="bench", epoch=0, storage_options=options)
    made = [files.cat_file(f"{uri}/{one.path}") for one in txsink.open_table(uri, storage_options=options).files()]

    def bare(number: int) -> None:
        for place, data in enumerate(made):
            with files.open(f"{bucket}/bare/{number}-{place}.parquet", "wb") as file:
                file.write(data)

    def arrow(number: int) -> None:
        step = -(-rows.num_rows // len(made))
        for place in range(len(made)):
            with files.open(f"{bucket}/arrow/{number}-{place}.parquet", "wb") as file:
                pq.write_table(rows.slice(place * step, step), file, **LARGE)

    def ours(number: int) -> None:
        with sink.begin(number + 1) as txn:
            txn.write(rows)

    def clear(number: int) -> None:
        """What was measured, so that the disk need not hold all rounds."""
        files.rm([f"{bucket}/bare", f"{bucket}/arrow"], recursive=True)
        newest = txsink.open_table(uri, storage_options=options).files()
        files.rm([f"{uri}/{one.path}" for one in newest if one.epoch == number + 1])

    with txsink.open_writer(uri, "bench", storage_options=options) as sink:
        times = alternate(scale.of(7, 2), {"bare": bare, "arrow": arrow, "txsink": ours}, after=clear)
    mine = p50(times["txsink"])
    return [
        Finding(
            f"S3: an epoch of {rows.nbytes / MIB:,.0f} MiB, throughput / {what}",
            speed(rows, mine),
            speed(rows, p50(times[name])),
            p50(times[name]) / mine,
            limit,
            is_most=False,
        )
        for what, name, limit in (
            ("s3fs writing the same bytes, encoded before", "bare", 0.9),
            ("pyarrow writing through s3fs, same settings", "arrow", None),
        )
    ]


def speed(rows: pa.Table, seconds: float) -> str:
    return f"{rows.nbytes / seconds / MIB:.0f} MiB/s"


# -- memory -----------------------------------------------------------------------------------------------


def memory(scale: Scale, server: Server) -> list[Finding]:
    """In a process of its own: the peak once all is warm, and once 1 GiB was staged."""
    bucket = server.make_bucket()
    given = server.storage_options
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": given["key"],
        "AWS_SECRET_ACCESS_KEY": given["secret"],
        "AWS_ENDPOINT_URL_S3": given["endpoint_url"],
        "AWS_DEFAULT_REGION": given["client_kwargs"]["region_name"],
    }
    command = [sys.executable, __file__, f"s3://{bucket}/t", str(scale.of(128, 64))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    staged, idle, grown = map(float, done.stdout.split())
    what = f"S3: staging {staged:,.0f} MiB, peak memory above idle, in parts of 200 MiB"
    return [Finding(what, f"{grown:.0f} MiB", f"{idle:.0f} MiB idle", grown / 200, 1.0)]


def stage(uri: str, batches: int) -> None:
    """The child: stages the same random batch again and again, so that the data itself takes no room."""
    one = batch(0)

    def many(count: int) -> Iterator[pa.RecordBatch]:
        for _ in range(count):
            yield one

    with txsink.open_writer(uri, "memory") as sink:
        with sink.begin(0) as txn:
            txn.write(pa.Table.from_batches([one]).slice(0, 1000))
        idle = peak_mib()
        with sink.begin(1) as txn:
            txn.write(pa.RecordBatchReader.from_batches(one.schema, many(batches)))
            result = txn.commit()
    print(result.bytes / MIB, idle, peak_mib() - idle)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    stage(sys.argv[1], int(sys.argv[2]))
