"""Tables on a file system that folds names (macOS, SMB), through a stand-in for `os`: nothing is lost by a spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folding import FoldingSystem
from place import Place
from txsink.reading.table import open_log
from txsink.store.local.store import LocalStore
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer

# One directory each, where names fold.
VALUES = ["A", "a", "\u00c9", "\u00e9", "E\u0301", "stra\u00dfe", "STRASSE"]
IDS = list(range(len(VALUES)))
ROWS = {"id": IDS, "k": VALUES}
EXPECTED = list(zip(IDS, VALUES, strict=True))


class Folded:
    """A table on such a file system."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root / "t")
        self.system = FoldingSystem(root)
        self.store = LocalStore(self.system)

    def sink(self, **options: Any) -> Writer:
        return open_sink(self.store, self.place.stamps, str(self.place.path), "w", {"partition_by": "k", **options})

    def rows(self) -> list[tuple[int, str]]:
        found = open_log(self.store, self.place.stamps, str(self.place.path)).to_arrow()
        return sorted(zip(found["id"].to_pylist(), found["k"].to_pylist(), strict=True))


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_values_that_share_a_directory_come_back_as_they_were_written(tmp_path: Path, layout: str) -> None:
    folded = Folded(tmp_path)
    with folded.sink(layout=layout) as sink, sink.begin(1) as txn:
        txn.write(ROWS)
    assert folded.rows() == EXPECTED
    assert folded.system.folded > len(VALUES)


def test_a_prepared_file_that_is_listed_by_another_spelling_is_not_swept(tmp_path: Path) -> None:
    """I8: its run is retired, and the listing does not hold the name that the entry has."""
    folded = Folded(tmp_path)
    sink = folded.sink()
    txn = sink.begin(1)
    txn.write(ROWS)
    txn.prepare()
    later = folded.sink(recover=False)
    kept = later.sweep()
    assert len(kept) == len(VALUES)
    assert {one.action.value for one in kept} == {"keep"}
    assert later.recover().committed == [1]
    later.close()
    assert folded.rows() == EXPECTED


def test_committed_files_that_are_listed_by_another_spelling_are_not_swept(tmp_path: Path) -> None:
    """I8: the run died with its mark left, so the next one lists the table for its orphans."""
    folded = Folded(tmp_path)
    with folded.sink(layout="delta").begin(1) as txn:
        txn.write(ROWS)
    folded.sink().close()
    assert folded.rows() == EXPECTED
