"""One write of 5 million rows against `pyarrow.parquet.write_table` with the same settings, which syncs nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Finding, Scale, alternate, p50, scratch, table

import txsink

SETTINGS = {"compression": "zstd", "row_group_size": 1 << 20}
CHECKED = {**SETTINGS, "write_page_checksum": True}


def run(scale: Scale) -> list[Finding]:
    rows = table(scale.of(5_000_000, 1_000_000))
    with scratch(scale.root, "bulk") as directory:
        tuned = {**CHECKED, "use_dictionary": _dictionaries(directory, rows)}
        times = alternate(
            scale.of(9, 3),
            {
                "same": lambda _: _bare(directory / "same", rows, CHECKED),
                "unchecked": lambda _: _bare(directory / "unchecked", rows, SETTINGS),
                "tuned": lambda _: _bare(directory / "tuned", rows, tuned),
                "txsink": lambda _: txsink.write(str(directory / "table"), rows, writer="bench", epoch=0),
            },
            after=lambda _: _clear(directory),
        )
    ours = p50(times["txsink"])
    return [
        Finding(goal, _speed(rows, ours), _speed(rows, p50(times[name])), p50(times[name]) / ours, limit, is_most=False)
        for goal, name, limit in (
            (f"one write of {rows.num_rows:,} rows, throughput / bare write_table, same settings", "same", 0.95),
            ("the same / write_table without page checksums", "unchecked", None),
            ("the same / write_table told which columns are worth a dictionary", "tuned", None),
        )
    ]


def _bare(path: Path, rows: pa.Table, settings: Mapping[str, Any]) -> None:
    pq.write_table(rows, str(path), **settings)


def _dictionaries(directory: Path, rows: pa.Table) -> list[str]:
    """The columns that txsink gives a dictionary."""
    txsink.write(str(directory / "table"), rows.slice(0, 1 << 20), writer="bench", epoch=0)
    (path,) = (directory / "table").glob("*.parquet")
    group = pq.read_metadata(path).row_group(0)
    _clear(directory)
    columns = (group.column(number) for number in range(group.num_columns))
    return [column.path_in_schema for column in columns if column.has_dictionary_page]


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _speed(rows: pa.Table, seconds: float) -> str:
    return f"{rows.num_rows / seconds / 1e6:.2f} M rows/s"
