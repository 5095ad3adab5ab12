"""What errors about paths, stores and what lies there advise, done word for word: every row is there once."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import deltalake
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import txsink
from advice import advised
from advised_calls import Wrong, follow
from place import Place, commit, rows
from seen import rows_of
from txsink import paths
from txsink.store.local.store import LocalStore
from txsink.store.memory import MemoryStore
from txsink.testing import Objects, open_on, table_on
from txsink.writing.opening import open_sink

ROW: dict[str, Any] = {"id": [1]}


def at(path: Any, **options: Any) -> Callable[[Place], object]:
    """One epoch at this path, or at the one that this function makes of the table's."""
    return lambda place: txsink.write(
        path(place) if callable(path) else path, ROW, writer="w", epoch=1, storage_options=options
    )


def own(place: Place) -> str:
    return str(place.path)


PATHS = (
    Wrong("store.opening.uri_of", "Give a path", at(5), (at(own),)),
    Wrong("store.opening.uri_of", "Name another path", at(lambda place: f"{place.path}\ud800"), (at(own),)),
    Wrong("store.opening.open_store", "Drop them", at(own, key="a"), (at(own),)),
    Wrong("store.opening._scheme", "Give a path of Linux or macOS", at("C:\\lake\\t"), (at(own),)),
    Wrong(
        "store.opening._scheme",
        "Use a local path or file://",
        at("gs://bucket/t"),
        (at(own), at(lambda p: f"file://{p.path}")),
    ),
    Wrong(
        "store.local.store.resolve",
        "Give a path, or file:///path",
        at("file:t"),
        (at(own), at(lambda p: f"file://{p.path}")),
    ),
    Wrong("store.local.store.resolve", "Name a directory", at(__file__), (at(own),)),
)


@pytest.mark.parametrize("case", PATHS, ids=lambda case: f"{case.place}-{case.words[:30]}")
def test_a_path_that_is_changed_as_its_error_says_has_its_rows_once(place: Place, case: Wrong) -> None:
    follow(case, place)


def test_a_path_in_memory_is_spelled_as_the_message_says() -> None:
    path = f"memory://advice-{uuid.uuid4().hex}/t"
    for wrong in (path.replace("://", ":/"), path.replace("memory", "memry"), f"{path}/../t", f"{path}/file/t"):
        MemoryFileSystem().pipe_file(f"{path}/file".removeprefix("memory:/"), b"x")
        block = {
            "memory:/a": advised("store.opening._scheme", "Write {}://"),
            "memry://a": advised("store.opening._scheme", "Did you mean {}?"),
        }.get(wrong[:9], advised("store.memory.resolve", "Give memory://name/of/the/table"))
        if wrong.endswith("file/t"):
            block = advised("store.memory._put", "Name another path")
        with block:
            txsink.write(wrong, ROW, writer="w", epoch=1)
    with advised("store.memory.resolve", "Name a directory"):
        txsink.write(f"{path}/file", ROW, writer="w", epoch=1)
    MemoryFileSystem().rm(f"{path}/file")
    txsink.write(path, ROW, writer="w", epoch=1)
    assert txsink.open_table(path).to_arrow()["id"].to_pylist() == [1]


def test_a_home_that_is_not_there_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with advised("store.local.store.resolve", "Write the whole path, or ./{} for a directory of that name"):
        txsink.write("~nobody-has-this-name/t", ROW, writer="w", epoch=1)
    for path in ("./~nobody-has-this-name/t", str(tmp_path / "t")):
        txsink.write(path, ROW, writer="w", epoch=1)
        assert rows_of(tmp_path / path) == [1]


def test_a_store_whose_client_is_installed_later_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"memory://advice-{uuid.uuid4().hex}/t"
    with monkeypatch.context() as bare:
        bare.delitem(sys.modules, "txsink.store.memory")
        bare.setitem(sys.modules, "fsspec.implementations.memory", None)
        with advised("store.opening.open_store", "Install it: pip install 'txsink[{}]'") as caught:
            txsink.write(path, ROW, writer="w", epoch=1)
    extra = caught.value.advice.partition("[")[2].partition("]")[0]
    extras = Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert f"\n{extra} = [" in extras
    txsink.write(path, ROW, writer="w", epoch=1)
    assert txsink.open_table(path).to_arrow()["id"].to_pylist() == [1]


# -- what a system refuses ---------------------------------------------------------------------------------


class System:
    """The operating system, of which one function fails."""

    def __init__(self) -> None:
        self.failing = ""
        self.code = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._fail if name == self.failing else real

    def _fail(self, *_: object, **__: object) -> None:
        raise OSError(self.code, os.strerror(self.code))

    def fail(self, name: str = "", code: int = 0) -> None:
        self.failing, self.code = name, code


@pytest.fixture
def system() -> System:
    return System()


def sink_on(system: System, place: Place) -> Any:
    return open_sink(LocalStore(cast("ModuleType", system)), place.stamps, str(place.path), "w", {})


REFUSED = [
    ("link", errno.ENOTSUP, advised("store.local.errors.refuse_without_links", "Use a file system with hard links")),
    ("fsync", errno.EINVAL, advised("store.local.errors.refuse_without_directory_sync", "Use a file system that can")),
    ("mkdir", errno.ENOSPC, advised("store.local.errors.__exit__", "Make room, then retry")),
    ("mkdir", errno.EROFS, advised("store.local.errors.__exit__", "Make it writable, then call again")),
    ("mkdir", errno.ENOTDIR, advised("store.local.errors.__exit__", "Name another path")),
    ("mkdir", errno.EIO, advised("store.local.errors.__exit__", "Retry when the disk answers again")),
]


@pytest.mark.parametrize(("function", "code", "block"), REFUSED)
def test_what_a_file_system_refuses_is_done_where_or_when_it_does_not(
    place: Place, system: System, function: str, code: int, block: Any
) -> None:
    system.fail(function, code)
    with block:
        commit(sink_on(system, place), 1)
    system.fail()
    with sink_on(system, place) as sink:
        commit(sink, 1)
    assert rows_of(place.path) == [1]


def test_the_file_of_another_user_is_published_by_its_owner(
    place: Place, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_on(system, place)
    txn = sink.begin(1)
    txn.write(ROW)
    txn.prepare()
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12_345)
        system.fail("link", errno.EPERM)
        with advised("store.local.errors.refuse_foreign", "Run as the user who staged it, or give this one the right"):
            sink.commit(1)
        system.fail()
    sink.commit(1)
    assert rows_of(place.path) == [1]


def test_a_table_is_opened_again_where_nobody_knows_what_became_of_an_entry(place: Place, system: System) -> None:
    sink = sink_on(system, place)
    txn = sink.begin(1)
    txn.write(ROW)
    real = os.link

    def linked(*names: Any, **options: Any) -> None:
        real(*names, **options)
        system.fail("fsync", errno.EIO)  # once the name is there

    with (
        pytest.MonkeyPatch.context() as patch,
        advised("store.local.errors.__exit__", "Open the writer again: it recovers"),
    ):
        patch.setattr(os, "link", linked)
        txn.prepare()
    system.fail()
    sink.close()
    place.sink()
    assert rows_of(place.path) == [1]


def test_a_temporary_that_vanishes_each_time_is_written_when_nothing_sweeps(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    txn = sink.begin(1)
    txn.write(ROW)
    with monkeypatch.context() as swept:
        swept.setattr(LocalStore, "_put_once", lambda *given: None)
        with advised("store.local.store.put_if_absent", "Retry when nothing sweeps the table"):
            txn.commit()
    txn.commit()
    assert rows_of(place.path) == [1]


def test_memory_that_is_short_is_written_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"memory://advice-{uuid.uuid4().hex}/t"
    with txsink.open_writer(path, "w") as sink:
        txn = sink.begin(1)
        txn.write(ROW)
        with monkeypatch.context() as full:

            def short(*given: Any) -> None:
                raise MemoryError

            full.setattr(MemoryFileSystem, "pipe_file", short)
            with advised("store.memory._no_room", "Make room, then retry") as caught:
                txn.commit()
        if "Begin" in caught.value.advice:
            txn = sink.begin(1)
            txn.write(ROW)
        txn.commit()
    assert txsink.open_table(path).to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_names_that_are_not_random_are_what_is_to_be_reported(tmp_path: Path, kind: str) -> None:
    store, root = (LocalStore(), str(tmp_path / "T")) if kind == "local" else (MemoryStore(), f"/advice-{uuid.uuid4()}")
    store.create(f"{root}/a").seal()
    if kind == "local":
        with advised("store.local.store.create", "Report it: names are random"):
            store.create(f"{root}/a")
        store.create(f"{root}/b").seal()
        with advised("store.local.store.adopt", "Report it: names are random"):
            store.adopt(f"{root}/a", f"{root}/b")
    else:
        with advised("store.memory._taken", "Report it: names are random"):
            store.create(f"{root}/a").seal()
        store.create(f"{root}/b").seal()
        with advised("store.memory.adopt", "Report it: names are random"):
            store.adopt(f"{root}/a", f"{root}/b")
    assert store.list(root) == ["a", "b"]  # nothing was taken for the other


# -- what lies there ---------------------------------------------------------------------------------------


def test_a_directory_that_holds_files_of_others_is_no_table(place: Place) -> None:
    place.write(1, ROW)
    log = place.path / paths.LOG_DIRECTORY
    kept = log.parent.rename(place.path.with_name("kept"))
    with advised(
        "writing.ground._require_free", "Name another path; if it was a txsink table, put its {} back from a copy"
    ):
        place.write(2, {"id": [2]})
    other = Place(place.path.with_name("other"))
    other.write(1, ROW)
    kept.rename(log.parent)
    place.write(2, {"id": [2]})
    assert (rows_of(other.path), rows_of(place.path)) == ([1], [1, 2])


@pytest.mark.parametrize("does", ["back", "delete", "other"])
def test_a_table_whose_log_is_gone_is_put_back_or_forgotten(place: Place, does: str) -> None:
    place.sink().close()
    ours = place.path / "_txsink"
    kept = (ours / "log").rename(place.path.with_name("kept"))
    left = place.path / paths.removed_path(3, "part.parquet")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left")
    (place.path / paths.HEAD_PATH).unlink(missing_ok=True)
    with advised(
        "writing.ground._require_free", "Put {} back from a copy, delete it if its rows are to be forgotten, or name"
    ):
        place.write(1, ROW)
    there = place
    if does == "back":
        kept.rename(ours / "log")
    elif does == "delete":
        shutil.rmtree(ours)
    else:
        there = Place(place.path.with_name("other"))
    there.write(1, ROW)
    assert rows_of(there.path) == [1]


@pytest.mark.parametrize("where", ["in a table", "in its own files"])
def test_a_table_begins_beside_another_and_not_in_it(place: Place, where: str) -> None:
    place.write(1, ROW)
    within = place.path / ("in" if where == "in a table" else "_txsink/t")
    with advised("writing.ground.require_apart", "Name a path beside it"):
        txsink.write(within, ROW, writer="w", epoch=1)
    txsink.write(place.path.with_name("beside"), ROW, writer="w", epoch=1)
    assert rows_of(place.path.with_name("beside")) == [1]


@pytest.mark.parametrize("does", ["delta", "other"])
def test_a_delta_table_is_written_into_as_one(place: Place, does: str) -> None:
    deltalake.write_deltalake(place.path, pa.table({"id": [0]}))
    with advised(
        "writing.ground._require_free", "Open it without layout='parquet' to write into the Delta table, or name"
    ):
        place.write(1, ROW, layout="parquet")
    there = place if does == "delta" else Place(place.path.with_name("other"))
    there.write(1, ROW, **({} if does == "delta" else {"layout": "parquet"}))
    assert rows_of(there.path) == ([0, 1] if does == "delta" else [1])


# -- reading -----------------------------------------------------------------------------------------------


def test_a_reader_that_asks_for_what_is_not_there_is_told_what_is(place: Place) -> None:
    with advised(
        "reading.table.open_log", "Check the path, or create the table: txsink.write and txsink.open_writer do"
    ):
        txsink.open_table(str(place.path))
    place.write(1, ROW)
    table = txsink.open_table(place.path)
    with advised("reading.table._field", "Did you mean {}?"):
        table.to_arrow(columns=["idd"])
    with advised("reading.table._field", "Choose among {}"):
        table.to_arrow(columns=["zzz"])
    assert table.to_arrow(columns=["id"])["id"].to_pylist() == [1]
    with advised("reading.table.history", "Give 0 or more"):
        table.history(-1)
    assert (table.history(0), len(table.history(1))) == ([], 1)


def test_a_data_file_that_was_altered_is_put_back_from_a_copy(place: Place) -> None:
    place.write(1, ROW)
    (file,) = place.path.glob("*.parquet")
    good = file.read_bytes()
    file.write_bytes(good[:-9])
    with advised("reading.versions.damaged", "Put the recorded file back from a copy; `txsink verify` lists"):
        place.table().to_arrow()
    assert [problem.where for problem in place.table().verify()] == [file.name]
    file.write_bytes(good)
    assert (rows_of(place.path), place.table().verify()) == ([1], [])


def test_the_newest_version_is_read_where_replaced_files_cannot_be_kept() -> None:
    bucket = Objects()
    with open_on(bucket.store(), "/t", "w", life=1, layout="parquet") as sink:
        commit(sink, 0)
        before = table_on(bucket.store(), "/t")
        version = before.version
        with sink.begin(1, mode="overwrite") as txn:
            txn.write(rows(1))
    with advised("reading.versions.read", "Read the newest version, again if the overwrite is still under way"):
        table_on(bucket.store(), "/t").to_arrow(version)
    assert table_on(bucket.store(), "/t").to_arrow()["id"].to_pylist() == [1]
