"""`verify` of a Delta table with files of other programs: it finds whatever `to_arrow` refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from place import Place, rows
from txsink.errors import TxsinkError


def added(root: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Another program's file, with what its commit says of it changed."""
    write_deltalake(str(root), pa.table(rows(7, 8)), mode="append")
    commit = max((root / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            change(line["add"])
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))


def says_more_rows(root: Path) -> None:
    def change(add: dict[str, object]) -> None:
        stats = json.loads(str(add["stats"]))
        add["stats"] = json.dumps(stats | {"numRecords": stats["numRecords"] + 1})

    added(root, change)


def is_no_parquet(root: Path) -> None:
    def change(add: dict[str, object]) -> None:
        path = root / str(add["path"])
        path.write_bytes(b"x" * path.stat().st_size)

    added(root, change)


def has_damaged_pages(root: Path) -> None:
    def change(add: dict[str, object]) -> None:
        path = root / str(add["path"])
        data = bytearray(path.read_bytes())
        data[4:40] = bytes(36)
        path.write_bytes(data)

    added(root, change)


def has_text_in_a_number(root: Path) -> None:
    pq.write_table(pa.table({"id": ["x"]}), root / "other.parquet")
    size = (root / "other.parquet").stat().st_size
    table = DeltaTable(str(root))
    table.create_write_transaction([AddAction("other.parquet", size, {}, 0, True, "{}")], "append", table.schema())


DAMAGES: dict[Callable[[Path], None], tuple[bool, str]] = {
    says_more_rows: (False, "holds 2 rows, recorded 3"),
    is_no_parquet: (False, "is no Parquet file"),
    has_damaged_pages: (True, "cannot be read"),
    has_text_in_a_number: (True, "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_to_arrow_refuses_is_no_sound_table(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Seen: `numRecords` of another program was wrong, `to_arrow` refused, and `verify` said that all is sound."""
    place = Place(tmp_path / "t")
    place.write(1, rows(1), layout="delta")
    damage(place.path)
    is_deep, expected = DAMAGES[damage]
    with pytest.raises(TxsinkError):
        place.table().to_arrow()
    found = place.table().verify(deep=is_deep)
    assert [expected in problem.what for problem in found] == [True]
    assert len(place.table().verify(deep=True)) == 1


def test_a_file_whose_rows_nobody_recorded_is_sound(tmp_path: Path) -> None:
    place = Place(tmp_path / "t")
    place.write(1, rows(1), layout="delta")
    added(place.path, lambda add: add.pop("stats", None))
    assert place.table().to_arrow().num_rows == 3
    assert place.table().verify() == place.table().verify(deep=True) == []
