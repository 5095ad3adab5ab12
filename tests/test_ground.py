"""Where a new table may begin: beside nothing that a reader of the directory takes for rows.

Promises: what is refused is what pyarrow, which shares no code with txsink, lists as the files of that directory; every
store looks alike, once, and only when a table is created.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import txsink
from place import Place, rows, tree
from txsink.environment import Stamps
from txsink.errors import CorruptError, InvalidRequestError
from txsink.store.local.store import LocalStore
from txsink.store.memory import MemoryStore
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore
from txsink.testing.names import Names, NameStore
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing import ground
from txsink.writing.opening import open_sink

ROOT = "/lake/t"
DATA = [
    "x.parquet", "a/b/c/x.parq", "day=1/x.orc", "x.avro", "x.csv", "x.csv.gz", "x.json", "part-00000", "000000_0",
    "data/1.lance", "metadata/v1.metadata.json", "_day=1/x.parquet", "day=__HIVE_DEFAULT_PARTITION__/x",
    "x.parquet.tmp",    "part-0-0-0123456789abcdef.parquet", "README.md",
]  # fmt: skip
HIDDEN = [
    "_SUCCESS", ".x.parquet.crc", "_temporary/0/x.parquet", "day=1/_SUCCESS", ".hoodie/x.parquet", "_metadata",
    "a/.b/c/x.parquet", "day=1_$folder$", ".DS_Store", "_delta_log/.00000000000000000000.json.tmp.1",
    "_txsink/log/.0123456789abcdef.tmp",
]  # fmt: skip


def stamps() -> Stamps:
    ids, clock = count(1), count(1_760_000_000_000)
    return Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda _: None)


def opened(store: Store, root: str = ROOT, **options: Any) -> None:
    open_sink(store, stamps(), root, "w", options).close()


@pytest.fixture(params=["names", "objects", "memory", "local"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    """A store, and a directory of its own in it."""
    stores: dict[str, Callable[[], Store]] = {
        "names": lambda: NameStore(Names()),
        "objects": lambda: ObjectStore(Objects()),
        "memory": MemoryStore,
        "local": LocalStore,
    }
    return stores[request.param](), str(tmp_path / "t")  # a name of its own in the memory that all tests share, too


def put(store: Store, root: str, *names: str) -> None:
    for number, name in enumerate(names):
        assert store.put_if_absent(f"{root}/{name}", b"theirs", f"{number:032x}")


@pytest.mark.parametrize("name", DATA)
def test_a_directory_with_a_file_that_readers_see_is_refused_by_its_name_and_left_alone(
    there: tuple[Store, str], name: str
) -> None:
    store, root = there
    put(store, root, *[hidden for hidden in HIDDEN if not hidden.startswith("_delta")], name)
    before = store.list(root)
    for options in ({}, {"layout": "parquet"}, {"layout": "delta"}):
        with pytest.raises(InvalidRequestError, match="files that no log names are there") as refused:
            opened(store, root, **options)
        assert refused.value.context["path"] == name
        assert "Name another path" in refused.value.advice
    assert store.list(root) == before


def test_a_directory_with_hidden_files_only_takes_a_table(there: tuple[Store, str]) -> None:
    store, root = there
    put(store, root, *HIDDEN)
    opened(store, root)
    opened(store, root)


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_a_table_that_lost_its_log_is_not_begun_again_over_its_files(tmp_path: Path, layout: str) -> None:
    """Seen: `_txsink` deleted, and a new table started over the old files."""
    place = Place(tmp_path / "t")
    place.write(1, rows(1), layout=layout)
    shutil.rmtree(place.path / "_txsink")
    shutil.rmtree(place.path / "_delta_log", ignore_errors=True)
    before = tree(place.path)
    for epoch in (1, 2):
        with pytest.raises(InvalidRequestError, match="put its _txsink/ back from a copy"):
            place.write(epoch, rows(2), layout=layout)
    assert tree(place.path) == before


def test_what_is_left_of_a_log_is_not_taken_into_a_new_one(tmp_path: Path) -> None:
    """An old segment would be believed: it tells of files by version, and versions begin anew."""
    place = Place(tmp_path / "t")
    sink = place.sink()
    for epoch in range(40):
        with sink.begin(epoch):
            pass
    sink.close()
    shutil.rmtree(place.path / "_txsink/log")
    (place.path / "_txsink/head").unlink()
    with pytest.raises(CorruptError, match="it had been read before"):  # a summary proves what was there
        place.sink()
    for proof in ("state", "files"):
        shutil.rmtree(place.path / "_txsink" / proof, ignore_errors=True)
    (place.path / "_txsink/removed").mkdir(exist_ok=True)
    (place.path / "_txsink/removed/x.removed").touch()
    with pytest.raises(CorruptError, match="a table was there: _txsink/") as refused:
        place.sink()
    assert str(refused.value.context["path"]).startswith("_txsink/")
    shutil.rmtree(place.path / "_txsink")  # as the advice says
    place.write(1, rows(1))
    assert place.table().to_arrow().num_rows == 1


def test_a_delta_table_is_written_into_and_gets_no_second_table_beside_it(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table(rows(1)))
    place = Place(tmp_path / "t")
    with pytest.raises(InvalidRequestError, match="a Delta table is there") as refused:
        place.write(1, rows(2), layout="parquet")
    assert "without layout='parquet'" in refused.value.advice
    assert not (place.path / "_txsink").exists()
    place.write(1, rows(2))  # as the advice says
    assert place.table().to_arrow().num_rows == 2


def test_a_creation_that_lost_a_race_opens_the_table_of_the_one_that_won(tmp_path: Path) -> None:
    """The winner has published by the time the loser looks around."""
    place = Place(tmp_path / "t")
    rival = Place(tmp_path / "t")

    class Late(FaultyStore):
        def list(self, path: str, limit: int | None = None) -> list[str]:
            if limit is not None and not (tmp_path / "t/_txsink").exists():
                rival.write(1, rows(1), "rival")
            return super().list(path, limit)

    open_sink(Late(LocalStore()), place.stamps, str(place.path), "w", {}).close()
    assert place.table().log.state.table_id == rival.table().log.state.table_id
    assert place.table().to_arrow().num_rows == 1


def test_a_mount_point_with_a_directory_that_may_not_be_listed_takes_a_table(tmp_path: Path) -> None:
    """`lost+found` belongs to root."""

    class Guarded(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def listdir(self, path: str) -> list[str]:
            if path.endswith("lost+found"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return os.listdir(path)  # noqa: PTH208

    (tmp_path / "t/lost+found").mkdir(parents=True)
    store = LocalStore(Guarded("guarded"))
    opened(store, str(tmp_path / "t"))
    with pytest.raises(txsink.TxsinkError, match="EACCES"):
        store.list(str(tmp_path / "t"))


@pytest.mark.parametrize("kind", ["objects", "names"])
def test_the_look_is_one_listing_at_creation_and_none_later(kind: str) -> None:
    store = FaultyStore(ObjectStore(Objects()) if kind == "objects" else NameStore(Names()))
    opened(store)
    looks = [path for verb, path in store.trace if verb == "list" and path == ROOT]
    assert len(looks) == 1
    opened(store)
    assert [path for verb, path in store.trace if verb == "list" and path == ROOT] == looks


def test_no_more_names_are_looked_at_than_promised(tmp_path: Path) -> None:
    """A file behind a thousand hidden ones is not found, and a million names cost no million calls."""
    calls = []

    class Counting(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def lstat(self, path: str) -> Any:
            calls.append(path)
            return os.lstat(path)

    for number in range(ground.NAMES_LOOKED_AT):
        (tmp_path / f"t/d{number % 7}/_{number}").mkdir(parents=True)
    (tmp_path / "t/d0/_0/x.parquet").touch()
    system = Counting("counting")
    assert LocalStore(system).list(str(tmp_path / "t"), ground.NAMES_LOOKED_AT) == []
    assert len(calls) == ground.NAMES_LOOKED_AT
    (tmp_path / "t/z.parquet").touch()  # files near the root are seen first, however much lies below
    assert LocalStore(system).list(str(tmp_path / "t"), ground.NAMES_LOOKED_AT) == ["z.parquet"]


PARTS = ["a", "day=1", "_a", ".a", "x.parquet", "_x.parquet", ".x.parquet", "0", "part-0", "Z", "a_b", "a.b", "~", "é"]


def test_what_is_refused_is_what_pyarrow_lists_as_files_of_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search: random trees of real files, judged by a reader that has no code of ours."""
    chance = random.Random(12)
    refused = taken = 0
    pq.write_table(pa.table(rows(1)), tmp_path / "one")
    for number in range(300):
        root = tmp_path / f"{number}/t"
        for _ in range(chance.randint(0, 4)):
            path = root.joinpath(*chance.choices(PARTS, k=chance.randint(1, 4)))
            if not any(one.is_file() for one in [path, *path.parents]) and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(tmp_path / "one", path)
        theirs = (
            [Path(name).relative_to(root).as_posix() for name in ds.dataset(root, format="parquet").files]
            if root.exists()
            else []
        )
        act = partial(opened, LocalStore(), str(root))
        if theirs:
            with pytest.raises(InvalidRequestError) as error:
                act()
            assert error.value.context["path"] in theirs
            refused += 1
        else:
            act()
            taken += 1
    with capsys.disabled():
        print(f" [ground: {refused} directories refused, {taken} taken]", end="")
    assert min(refused, taken) > 40
