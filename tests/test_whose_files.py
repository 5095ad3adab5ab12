"""Two tables in one world, and one table by several roads: each deletes its own, and the roads lead to one.

Before the name of a directory was the proof, tables with one `staging_path`, and copies, took each other's files.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from place import Place, kinds, prepared, rows, stage_only
from seen import by_directory, by_log, names, rows_of
from txsink import paths
from txsink.cli.main import main
from txsink.environment import Stamps
from txsink.errors import ConflictError, CorruptError, InvalidRequestError
from txsink.reading.table import open_log
from txsink.staging.place import own_staging
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Traits
from txsink.testing.names import Names, NameStore
from txsink.testing.objects import Objects
from txsink.writing.opening import open_sink, open_writer
from txsink.writing.writer import Writer


def aborted(place: Place) -> None:
    sink = place.sink(recover=False)
    prepared(sink, 7, rows(700))
    for epoch in sink.pending:
        sink.abort(epoch)
    sink.close()


# What a program may do to a table that lies beside another one, whose staging root it shares.
DEEDS: dict[str, Callable[[Place], object]] = {
    "open": lambda place: place.sink().close(),
    "open and sweep": lambda place: place.sink().sweep(),
    "write once": lambda place: place.write(9, rows(900)),
    "overwrite": lambda place: place.write(9, rows(900), mode="overwrite"),
    "abort": aborted,
    "txsink sweep": lambda place: main(["sweep", str(place.path), "--yes"]),
    "txsink recover": lambda place: main(["recover", str(place.path), "--yes"]),
    "txsink convert": lambda place: main(["convert", str(place.path), "--to", "delta", "--yes"]),
}
SEEN_IN_THE_COPY = {"overwrite": [900], "write once": [0, 1, 900], "abort": [0], "txsink sweep": [0]}


def busy(place: Place) -> Writer:
    """A writer with everything in flight: an epoch prepared, one staged by a worker, one open."""
    sink = place.sink(staging_path=str(place.path.parent / "stage"))
    with sink.begin(0) as txn:
        txn.write(rows(0))
    prepared(sink, 1, rows(1))
    return sink


@pytest.mark.parametrize("deed", DEEDS)
def test_two_tables_with_one_staging_root_never_touch_each_others_files(tmp_path: Path, deed: str) -> None:
    """I8, I15: the same writer, the same run ids."""
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    with busy(two) as sink:
        sink.commit(1)
    first = busy(one)
    txn = first.begin(2)
    txn.add(txn.stager().stage(rows(2)))
    DEEDS[deed](two)
    txn.commit()
    first.close()
    assert rows_of(one.path) == [0, 1, 2]


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_copy_of_a_table_with_a_pending_epoch_takes_nothing_of_the_original(
    tmp_path: Path, deed: str, shares: bool
) -> None:
    """I8, I15: whether the staging root is shared, or the copy's sibling is none of the original's."""
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    first = busy(one) if shares else one.sink()
    if not shares:
        with first.begin(0) as begun:
            begun.write(rows(0))
        prepared(first, 1, rows(1))
    txn = first.begin(2)
    txn.add(txn.stager().stage(rows(2)))
    shutil.copytree(one.path, two.path)
    if deed == "txsink convert":
        main(["recover", str(two.path), "--yes"])
    DEEDS[deed](two)
    txn.commit()
    first.close()
    assert rows_of(one.path) == [0, 1, 2]
    assert by_log(two.path) == SEEN_IN_THE_COPY.get(deed, [0, 1])


def test_a_copy_publishes_what_was_pending_without_taking_it_and_can_be_finished_only(tmp_path: Path) -> None:
    """A stalled run may give the second name at any later moment, so no abort may come between."""
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    first = busy(one)
    shutil.copytree(one.path, two.path)
    two.sink().close()
    assert (rows_of(two.path), kinds(two)[-2:]) == ([0, 1], ["publishing", "commit"])
    first.commit(1)
    assert rows_of(one.path) == [0, 1]
    third = Place(tmp_path / "three")
    prepared(first, 2, rows(2))
    shutil.copytree(one.path, third.path)
    first.commit(2)
    with pytest.raises(CorruptError, match="its staged file is absent"):
        third.sink()
    assert "publishing" not in kinds(third)
    with third.sink(recover=False) as sink:
        sink.abort(2)
    assert (rows_of(third.path), rows_of(one.path)) == ([0, 1], [0, 1, 2])


def test_a_sweep_lists_what_is_not_provably_the_tables_own_and_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    first = busy(one)
    busy(two).commit(1)
    stranger = tmp_path / "stage" / "w" / "run" / "part-0-0-abcd.parquet"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("theirs")
    before = names(tmp_path / "stage")
    assert main(["sweep", str(two.path), "--yes"]) == 0
    assert main(["sweep", str(two.path), "--output", "json"]) == 0
    told = capsys.readouterr().out
    assert "not provably ours" in told
    assert f"{tmp_path}/stage/{before[0]}" in told
    assert str(stranger) in told
    assert names(tmp_path / "stage") == before
    first.commit(1)
    assert rows_of(one.path) == [0, 1]


class OneNameStore(NameStore):
    """A store as HDFS is: a file has one name, which a rename changes."""

    traits = Traits()


def test_where_a_file_has_one_name_a_copy_refuses_to_publish_and_says_what_to_do() -> None:
    """I8: a rename would take the original's file."""
    disk, ids, clock = Names(), itertools.count(1), itertools.count(1_760_000_000_000)
    stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda _: None)

    def opened(path: str, **options: Any) -> Writer:
        return open_sink(OneNameStore(disk), stamps, path, "w", {"staging_path": "/d/stage", **options})

    first = opened("/d/one")
    prepared(first, 0, rows(0))
    for path, data in disk.files().items():
        if path.startswith("/d/one/"):
            disk.held[path.replace("/d/one/", "/d/two/")] = data
    with pytest.raises(ConflictError, match=r"not provably this table's.*txsink abort"):
        opened("/d/two")
    with opened("/d/two", recover=False) as sink:
        sink.abort(0)
    first.commit(0)
    for path, found in (("/d/one", [0]), ("/d/two", [])):
        table = open_log(OneNameStore(disk), stamps, path)
        assert table.verify() == []
        assert [file.rows for file in table.files()] == [1 for _ in found]


# -- one table by several roads -----------------------------------------------------------------------------


def roads(tmp_path: Path) -> dict[str, str]:
    """Spellings of one table."""
    lake = tmp_path / "lake"
    lake.mkdir()
    (tmp_path / "link").symlink_to(lake)
    (lake / "t").mkdir()
    (tmp_path / "straight").symlink_to(lake / "t")
    return {
        "path": str(lake / "t"),
        "file:///": f"file://{lake}/t",
        "with dots": f"{lake}/x/../t/.",
        "a link above": str(tmp_path / "link" / "t"),
        "a link": str(tmp_path / "straight"),
    }


@pytest.mark.parametrize("staging", [None, "stage"])
def test_what_one_spelling_prepared_another_commits_and_nothing_is_left(tmp_path: Path, staging: str | None) -> None:
    """I1, I9: links, dots and URIs."""
    spelled = roads(tmp_path)
    given: dict[str, Any] = {} if staging is None else {"staging_path": str(tmp_path / "lake" / staging)}
    epoch = 0
    for one, two in itertools.permutations(spelled.values(), 2):
        first = open_writer(one, "w", **given)
        prepared(first, epoch, rows(epoch))
        stage_only(first, epoch + 1)
        with open_writer(two, "w") as second:
            assert second.last_epoch == epoch
        epoch += 1
    assert rows_of(tmp_path / "lake" / "t") == [*range(epoch)]
    assert names(tmp_path / "lake" / (staging or ".t.txsink")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_what_was_prepared_by_a_bind_mount_is_committed_by_the_other_road(tmp_path: Path) -> None:
    """I1, I9."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "mounted").mkdir()
    mounted = subprocess.run(["mount", "--bind", tmp_path / "lake", tmp_path / "mounted"], check=False)
    if mounted.returncode:
        pytest.skip("this machine allows no bind mount")
    try:
        paths = [str(tmp_path / "lake" / "t"), str(tmp_path / "mounted" / "t")]
        for epoch in range(6):
            first = open_writer(paths[epoch % 2], "w")
            prepared(first, epoch, rows(epoch))
            stage_only(first, epoch + 1)
            open_writer(paths[(epoch + 1) % 2], "w").close()
        assert rows_of(tmp_path / "lake" / "t") == [*range(6)]
        assert names(tmp_path / "lake" / ".t.txsink") == []
    finally:
        subprocess.run(["umount", tmp_path / "mounted"], check=True)


def test_a_copy_has_another_directory_and_a_renamed_table_the_same(tmp_path: Path) -> None:
    store = LocalStore()

    def key(path: Path) -> str:
        return own_staging(store, str(path), None, "birth").rpartition("/")[2]

    Place(tmp_path / "one").write(0, rows(0))
    first = key(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one").rename(tmp_path / "three")
    assert key(tmp_path / "three") == first != key(tmp_path / "two")


# -- names that a file system folds -------------------------------------------------------------------------


def folded(name: str) -> str:
    """What is left of a name where case, the forms of a character, and a dot or blank at the end make no difference."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFD", name).casefold()).rstrip(". ")


ALIKE = st.text(st.sampled_from("aAäÄ\u0308ßsSıİiI.K\u212a _-%"), min_size=1, max_size=6)


@given(ALIKE, ALIKE)
@example("Orders", "orders")
@example("\u00fc", "u\u0308")
@example("a", "a.")
def test_no_two_writers_share_a_directory_whatever_a_file_system_folds(one: str, two: str) -> None:
    directories = [folded(paths.writer_directory(name)) for name in (one, two)]
    assert (directories[0] == directories[1]) is (one == two)
    assert paths.parse_mark(f"{directories[0]}/r") == (one, "r")


def left(sink: Writer, epoch: int) -> None:
    """A file is staged, and its process dies."""
    txn = sink.begin(epoch)
    txn.write(rows(epoch))
    if txn._stager is not None:
        txn._stager.finish()


class FoldingNames(dict[str, bytes]):
    """Names as macOS and SMB shares take them."""

    def __setitem__(self, path: str, data: bytes) -> None:
        super().__setitem__(folded(path), data)

    def __getitem__(self, path: str) -> bytes:
        return super().__getitem__(folded(path))

    def __contains__(self, path: object) -> bool:
        return super().__contains__(folded(str(path)))

    def get(self, path: str, default: Any = None) -> Any:
        return super().get(folded(path), default)

    def pop(self, path: str, *default: Any) -> Any:
        return super().pop(folded(path), *default)


@pytest.mark.parametrize(("one", "two"), [("Orders", "orders"), ("\u00fc", "u\u0308"), ("w", "w.")])
@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_on_a_file_system_that_folds_names_no_writer_takes_what_another_staged(
    one: str, two: str, table_layout: str
) -> None:
    """I8, I15."""
    disk, ids, clock = Names(FoldingNames()), itertools.count(1), itertools.count(1_760_000_000_000)
    stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda _: None)

    def opened(writer: str) -> Writer:
        return open_sink(disk.store(), stamps, "/d/t", writer, {"layout": table_layout})

    first, second = opened(one), opened(two)
    prepared(first, 0, rows(0))
    txn = first.begin(1)
    txn.write(rows(1))
    left(second, 0)
    opened(two).sweep()
    txn.commit()
    left(first, 2)
    second = opened(two)
    prepared(second, 0, rows(100))
    opened(one).sweep()
    second.commit(0)
    table = open_log(disk.store(), stamps, "/d/t")
    assert sorted(fact.writer or "" for fact in table.files()) == sorted([one, one, two])
    assert table.verify() == []


def test_the_other_rows_are_seen_by_readers_of_the_directory_too(tmp_path: Path) -> None:
    """The second name is a file like any other: an expiry of one table leaves the other's."""
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    first = busy(one)
    shutil.copytree(one.path, two.path)
    two.write(2, rows(2), mode="overwrite")
    first.commit(1)
    assert (by_directory(one.path), by_directory(two.path)) == ([0, 1], [2])


# -- a table in another one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
@pytest.mark.parametrize(
    "below",
    ["in", "day=a", "day=a/deep/er", "_txsink", "_txsink/log/x", "_delta_log/x", "../.t.txsink", "../.t.txsink/x"],
)
def test_a_table_in_another_one_is_refused_and_nothing_is_made(tmp_path: Path, below: str, table_layout: str) -> None:
    """I15: its files would be swept as the outer table's."""
    outer = Place(tmp_path / "t")
    outer.write(0, rows(0), layout=table_layout)
    before = names(tmp_path)
    inner = Place(Path(os.path.normpath(outer.path / below)))
    with pytest.raises(InvalidRequestError, match="Name a path beside it"):
        inner.sink()
    assert names(tmp_path) == before


@pytest.mark.parametrize("table_layout", ["parquet", "delta"])
def test_a_table_made_above_another_one_never_takes_anything_of_it(tmp_path: Path, table_layout: str) -> None:
    """I8, I15: the same writer and run, whose tags and marks are the same."""
    inner, outer = Place(tmp_path / "aside" / "day=a"), Place(tmp_path / "t")
    first = inner.sink(run="r1", layout=table_layout)
    prepared(first, 0, rows(0))
    stage_only(first, 1)
    outer.write(0, rows(500), writer="v", layout=table_layout)
    stage_only(outer.sink(run="r1"), 0)
    for one in sorted((tmp_path / "aside").iterdir()):
        one.rename(outer.path / one.name)
    inner.path = outer.path / "day=a"
    before = {one: one.read_bytes() for one in outer.path.rglob("*") if "day=a" in str(one) and one.is_file()}
    outer.sink(run="r2").sweep()
    assert main(["sweep", str(outer.path), "--yes"]) == 0
    assert main(["convert", str(outer.path), "--to", "parquet", "--yes"]) == 0
    assert len(before) > 2
    assert all(one.read_bytes() == data for one, data in before.items())
    inner.sink().close()
    assert by_log(inner.path) == [0]


def test_a_bucket_keeps_the_uploads_of_a_table_below_another_one() -> None:
    """I8: an upload to a name in a directory that has a log is that table's."""
    bucket, ids, clock = Objects(), itertools.count(1), itertools.count(1_760_000_000_000)
    stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda _: None)

    def opened(path: str, run: str) -> Writer:
        return open_sink(bucket.store(), stamps, path, "w", {"layout": "parquet", "run": run})

    inner = opened("/b/t/day=a", "r1")
    prepared(inner, 0, rows(0))
    left(inner, 1)
    dead = opened("/b/t", "r1")
    left(dead, 0)
    assert len(bucket.pending) == 3
    opened("/b/t", "r2").sweep()
    assert sorted(path for path, _ in bucket.pending) == sorted(path for path, _ in bucket.pending if "/day=a/" in path)
    assert len(bucket.pending) == 2
    inner.commit(0)
    assert open_log(bucket.store(), stamps, "/b/t/day=a").verify() == []
