"""What a test sees of a table from outside, and block sizes that make a log old in a few entries."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from txsink import paths
from txsink.log import log, segment
from txsink.reading.table import open_table
from txsink.staging.place import own_staging
from txsink.store.local.store import LocalStore


def by_log(path: Path) -> list[int]:
    """The ids that a reader of the log gets."""
    found = open_table(str(path)).to_arrow()
    return sorted(found["id"].to_pylist()) if "id" in found.column_names else []


def by_directory(path: Path) -> list[int]:
    """The ids in all Parquet files below the root, wherever they lie."""
    return sorted(
        value
        for file in path.rglob("*.parquet")
        for value in pq.ParquetFile(file).read(columns=["id"])["id"].to_pylist()
    )


def rows_of(path: Path) -> list[int]:
    """The ids, seen the same by both."""
    found = by_log(path)
    assert found == by_directory(path)
    return found


def names(path: Path) -> list[str]:
    """The files below a directory."""
    return sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file())


def staging(path: Path) -> Path:
    """The directory that the table at `path` stages in, below its default staging root."""
    state = open_table(str(path)).log.state
    return Path(own_staging(LocalStore(), os.path.realpath(path), state.staging, state.birth))


def entry_file(path: Path, version: int) -> Path:
    """Where the entry of a table lies."""
    return path / paths.entry_path(version)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries and segments every four entries, merged by twos, hints every third."""
    # Both modules name the constant: they must agree.
    monkeypatch.setattr(segment, "BLOCK", 4)
    monkeypatch.setattr(log, "BLOCK", 4)
    monkeypatch.setattr(segment, "FANOUT", 2)
    monkeypatch.setattr(log, "HINT_EVERY", 3)
