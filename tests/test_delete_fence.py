"""The delete fence can fail, and lets by what is a table's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import delete_fence
from place import Place, rows
from txsink import convert, recovery
from txsink.store.local import LocalStore


@pytest.mark.parametrize(
    "path",
    [
        "/d/report.parquet",
        "/d/t/part-0.parquet",
        "/d/_txsink/head",
        "/d/t/_txsink/id",
        "/d/x",
        "/d/.t.txsink/w/r/x.txt",
    ],
)
def test_it_refuses_what_no_table_has(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    with pytest.raises(delete_fence.OutsideError):
        delete_fence.check(path)
    assert delete_fence.outside == [path]


def test_it_stands_in_the_store_that_the_engine_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setattr(delete_fence, "outside", [])
    (tmp_path / "theirs.parquet").write_text("theirs")
    store = LocalStore()
    for module in (recovery, convert):
        act = eval("lambda store, path: store.delete(path)", vars(module))
        with pytest.raises(delete_fence.OutsideError):
            act(store, str(tmp_path / "theirs.parquet"))
    assert (tmp_path / "theirs.parquet").exists()
    before = delete_fence.seen
    place.write(0, rows(0))
    with place.sink() as sink, sink.begin(1) as txn:
        txn.add(txn.stager().stage(rows(1)))
    dead = place.sink().begin(2)
    dead.add(dead.stager().stage(rows(2)))
    place.sink().close()
    assert delete_fence.seen > before
