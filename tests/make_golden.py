"""The entries whose bytes are pinned in `golden/v1`, one of each kind, chained as in a real log.

`python tests/make_golden.py` writes them anew. Do that only with a new format, a golden directory of its own
and a decision record: the files are what older releases of txsink have left on people's disks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from txsink.log.entry import (
    GENESIS,
    Abort,
    AnyEntry,
    Claim,
    Commit,
    Convert,
    Create,
    Maintenance,
    Prepare,
    Publishing,
    digest,
    encode,
)
from txsink.records import Column, DataFile

GOLDEN_PATH = Path(__file__).parent / "golden" / "v1"

NIGHTLY: dict[str, Any] = {"writer": "nightly/ü", "run": "51c0", "generation": 1}
FILES = (
    DataFile(
        path="day=2026-01-31/part-7-0-51ad.parquet",
        bytes=4096,
        digest="ab" * 32,
        rows=10_000,
        partition={"day": "2026-01-31"},
    ),
    DataFile(
        path="day=__HIVE_DEFAULT_PARTITION__/part-7-1-51ae.parquet",
        bytes=512,
        digest="cd" * 32,
        rows=1,
        partition={"day": None},
    ),
)
COLUMNS = (Column(name="id", type="int64", arrow="/////w=="), Column(name="day", type="string", arrow="AA=="))
METADATA = {"offsets": {"p0": 991, "p1": 2**63}, "note": 'quote " and ü', "share": 0.1, "none": None, "list": [True]}

# File name and what makes the entry of a chain position.
CHAIN: list[tuple[str, Callable[..., AnyEntry], dict[str, Any]]] = [
    ("create", Create, {"table_id": "7ab1", "layout": "parquet", "partition_columns": ("day",), "staging": None}),
    ("claim", Claim, {**NIGHTLY, "retires": ("0c1d", "..")}),
    (
        "prepare",
        Prepare,
        {
            **NIGHTLY,
            "epoch": 7,
            "claims": False,
            "mode": "append",
            "files": FILES,
            "removes": (),
            "columns": COLUMNS,
            "metadata": METADATA,
            "staging": "../.events.txsink/0123456789abcdef",
        },
    ),
    ("publishing", Publishing, {**NIGHTLY, "epoch": 7, "prepared": 2}),
    ("commit", Commit, {**NIGHTLY, "epoch": 7, "prepared": 2}),
    (
        "prepare-overwrite",
        Prepare,
        {
            **NIGHTLY,
            "run": "52c0",
            "generation": 2,
            "epoch": 2**63 - 1,
            "claims": True,
            "mode": "overwrite",
            "files": (),
            "removes": FILES,
            "columns": (),
            "metadata": {},
        },
    ),
    ("abort", Abort, {**NIGHTLY, "run": "52c0", "generation": 2, "epoch": 2**63 - 1, "prepared": 5}),
    ("maintenance", Maintenance, {"action": "cleaned", "cleaned": (5,), "boundary": None}),
    ("maintenance-boundary", Maintenance, {"action": "expire", "cleaned": (), "boundary": 4}),
    ("convert", Convert, {"layout": "delta", "delta": 3}),
    (
        "prepare-delta",
        Prepare,
        {
            **NIGHTLY,
            "run": "52c0",
            "generation": 2,
            "epoch": 8,
            "claims": False,
            "mode": "append",
            "files": (msgspec.structs.replace(FILES[0], stats='{"numRecords":10000}'),),
            "removes": (),
            "columns": (),
            "metadata": {},
            "base": 3,
        },
    ),
    ("commit-delta", Commit, {**NIGHTLY, "run": "52c0", "generation": 2, "epoch": 8, "prepared": 10, "delta": 4}),
    ("convert-blank", Convert, {"layout": "parquet", "partition_columns": ("day", "hour")}),
]


def entries() -> list[tuple[str, AnyEntry]]:
    """File name and entry of the whole chain."""
    made: list[tuple[str, AnyEntry]] = []
    previous = GENESIS
    for version, (name, kind, fields) in enumerate(CHAIN):
        write_id = f"{version:032x}"
        entry = kind(
            format=1,
            version=version,
            time_ms=1_760_000_000_000 + version,
            write_id=write_id,
            previous=previous,
            **{"table_id": "7ab1", "birth": f"{0:032x}", **fields},
        )
        previous = digest(encode(entry))
        made.append((f"{version:02d}-{name}.json", entry))
    return made


if __name__ == "__main__":
    GOLDEN_PATH.mkdir(parents=True, exist_ok=True)
    for file_name, entry in entries():
        (GOLDEN_PATH / file_name).write_bytes(encode(entry))
