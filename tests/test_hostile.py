"""A table in a directory where others may write: links and pipes in place of files, modes, and what is never loaded."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txsink
from place import Place
from seen import entry_file, names, rows_of, staging
from txsink.errors import CorruptError, TxsinkError
from txsink.log.entry import decode, encode
from txsink.paths import HEAD_PATH
from txsink.schema import columns_of, schema_of
from txsink.store.local.store import LocalStore

ROOT = Path(__file__).parents[1]

# -- what stands in a file's place ------------------------------------------------------------------------------


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def link_to_a_file(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    """Who opens it to read waits for ever."""
    os.mkfifo(path)


IMPOSTORS = [link_to_nothing, link_to_a_file, link_to_a_device, link_to_itself, pipe]
a_table = pytest.mark.parametrize("impostor", IMPOSTORS, ids=lambda one: one.__name__)


@pytest.fixture
def filled(place: Place) -> Place:
    for epoch in range(2):
        place.write(epoch, {"id": [epoch]})
    return place


def outcomes(place: Place) -> Iterator[Callable[[], object]]:
    """Every way into a table."""
    yield lambda: place.write(7, {"id": [7]})
    yield lambda: place.sink().close()
    yield lambda: place.table().to_arrow()


@a_table
def test_an_entry_that_is_no_file_is_corruption_and_is_never_taken_for_an_empty_slot(
    impostor: Callable[[Path], None], filled: Place
) -> None:
    """I13, F23: also in the next slot, where a put finds it and a read does not."""
    last = max((filled.path / "_txsink/log").iterdir())
    before = names(filled.path)
    for slot in (entry_file(filled.path, int(last.stem) + 1), last):
        slot.unlink(missing_ok=True)
        impostor(slot)
        for act in outcomes(filled):
            with pytest.raises(CorruptError, match=r"it is a (symbolic link|pipe)"):
                act()
        if slot != last:
            slot.unlink()
            assert names(filled.path) == before
    assert not Path("/nowhere").exists()


@a_table
def test_a_hint_that_is_no_file_is_corruption(impostor: Callable[[Path], None], filled: Place) -> None:
    with filled.sink() as sink:
        sink.log.keep_hint()
    (filled.path / HEAD_PATH).unlink()
    impostor(filled.path / HEAD_PATH)
    for act in outcomes(filled):
        with pytest.raises(CorruptError, match=r"it is a (symbolic link|pipe)"):
            act()


@a_table
def test_a_data_file_that_is_none_is_corruption_and_verify_names_it(
    impostor: Callable[[Path], None], filled: Place
) -> None:
    """I6."""
    file = min(filled.path.glob("*.parquet"))
    file.unlink()
    impostor(file)
    with pytest.raises(CorruptError):
        filled.table().to_arrow()
    (found,) = filled.table().verify(deep=True)
    assert found.where == file.name
    assert "link" in found.what or "pipe" in found.what


@a_table
def test_a_staged_file_that_is_none_is_not_prepared(impostor: Callable[[Path], None], place: Place) -> None:
    """F19."""
    sink = place.sink()
    txn = sink.begin(0)
    staged = txn.stager().stage({"id": [1]})
    file = staging(place.path) / "w" / sink.run / staged[0].file.path
    file.unlink()
    impostor(file)
    txn.add(staged)
    with pytest.raises(CorruptError):
        txn.prepare()
    assert not list(place.path.rglob("*.parquet"))


def test_a_link_that_another_program_left_is_not_adopted(place: Place, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [9]}), tmp_path / "theirs.parquet")
    with place.sink() as sink:
        guest = sink.begin(0).guest()
        Path(guest.path).mkdir(parents=True)
        (Path(guest.path) / "x.parquet").symlink_to(tmp_path / "theirs.parquet")
        with pytest.raises(CorruptError, match="it is a symbolic link"):
            guest.adopt((), sink.log.stamps.new_id)
    assert (tmp_path / "theirs.parquet").exists()


def test_links_that_wait_under_temporary_names_are_neither_written_through_nor_followed(
    filled: Place, tmp_path: Path
) -> None:
    """The ids of this place are counted, so that a foe can know the next name; real ones are random."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for number in range(1, 200):
        (filled.path / f"_txsink/log/.{number:032x}.tmp").symlink_to(theirs)
        (filled.path / f"_txsink/.{number:032x}.tmp").symlink_to(theirs)
    with filled.sink() as sink:
        with sink.begin(5) as txn:
            txn.write({"id": [5]})
        sink.log.keep_hint()
    assert rows_of(filled.path) == [0, 1, 5]
    assert theirs.read_text() == "theirs"


def test_a_sweep_deletes_a_link_and_not_what_it_leads_to(place: Place, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "part-0-0-abcdef.parquet").write_text("theirs")
    sink = place.sink()
    run = staging(place.path) / "w" / sink.run
    run.mkdir(parents=True)
    (run / "k=v").symlink_to(theirs)
    (run / "part-0-1-abcdef.parquet").symlink_to(theirs / "part-0-0-abcdef.parquet")
    place.sink().sweep()
    assert not (run / "part-0-1-abcdef.parquet").is_symlink()
    assert (theirs / "part-0-0-abcdef.parquet").read_text() == "theirs"


# -- modes ------------------------------------------------------------------------------------------------------


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0, 0o022, 0o027, 0o077])
def test_files_and_directories_have_the_modes_that_the_umask_leaves_and_no_file_can_be_run(
    mask: int, place: Place
) -> None:
    """As every program's: who may read a table is for who starts the program to say."""
    with umask(mask), place.sink(partition_by=["k"]) as sink:
        for epoch in range(3):
            with sink.begin(epoch, mode="overwrite" if epoch == 2 else "append") as txn:
                txn.write({"id": [epoch], "k": ["v"]})
        sink.log.summarise(sink.log.state)
        sink.log.keep_hint()
        sink.begin(3).stager().stage({"id": [3], "k": ["v"]})
    found = [one for root in (place.path, staging(place.path)) for one in (root, *root.rglob("*"))]
    modes = {(one.is_dir(), stat.S_IMODE(one.lstat().st_mode)) for one in found}
    assert modes == {(True, 0o777 & ~mask), (False, 0o666 & ~mask)}
    assert len([one for one in found if one.is_file()]) > 8


# -- what is never loaded ---------------------------------------------------------------------------------------

RUNS_WHAT_IT_READS = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "importlib"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
CARRIERS = {
    # Spark carries a parcel from driver to executor as it carries all of its own; none reaches a store.
    "formats/pyspark_txsink/parcel.py": {"pickle", "cloudpickle"},
    # A store's module, by the scheme of a path, out of a table of four.
    "txsink/store/opening.py": {"importlib"},
}


def loads(text: str) -> set[str]:
    """The modules and functions in a program that run what they read."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & RUNS_WHAT_IT_READS
        elif isinstance(node, ast.ImportFrom):
            parts = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
            found |= parts & RUNS_WHAT_IT_READS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & RUNS_TEXT
    return found


def test_nothing_that_runs_what_it_reads_is_used_but_by_spark_s_carrier() -> None:
    found = {}
    for path in sorted([*ROOT.glob("txsink/**/*.py"), *ROOT.glob("formats/**/*.py")]):
        if loaded := loads(path.read_text()):
            found[path.relative_to(ROOT).as_posix()] = loaded
    assert found == CARRIERS


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "from pyspark import cloudpickle", "eval('1')", "import yaml.x as y"],
)
def test_the_look_at_programs_sees(text: str) -> None:
    assert loads(text)


def test_everything_that_is_stored_is_json_or_parquet(place: Place) -> None:
    """No pickle in any store: whoever may write there could run a program here."""
    with place.sink(partition_by=["k"]) as sink:
        for epoch in range(3):
            with sink.begin(epoch, metadata={"offset": epoch}) as txn:
                txn.write({"id": [epoch], "k": ["v"]})
        sink.log.summarise(sink.log.state)
        sink.log.keep_hint()
        sink.begin(3).stager().stage({"id": [3], "k": ["v"]})
        found = [one for root in (place.path, staging(place.path)) for one in root.rglob("*") if one.is_file()]
        kinds = {file.suffix or file.name for file in found}
        assert kinds == {".json", ".parquet", "head"}
        for file in found:
            if file.suffix == ".parquet":
                assert pq.ParquetFile(file).metadata.num_rows > 0
                assert set(pq.ParquetFile(file).schema_arrow.metadata or {}) <= {b"pandas"}
            else:
                json.loads(file.read_bytes())


class Bomb:
    """What a pickle can do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def test_a_column_that_carries_a_pickle_is_read_without_loading_it(place: Place, tmp_path: Path) -> None:
    """Older Arrow made Python objects of extension types that a schema named (CVE-2023-47248)."""
    bomb = pickle.dumps(Bomb(tmp_path / "boom"))
    marks = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": bomb}
    field = pa.field("x", pa.binary(), metadata=marks)
    (column,) = columns_of(pa.schema([pa.field("x", pa.binary())]))
    armed = base64.b64encode(pa.schema([field]).serialize()).decode()
    forged = type(column)(column.name, column.type, armed)
    with suppress(TxsinkError):
        schema_of((forged,))
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [b"1"]}, schema=pa.schema([field])), sink)
    with place.sink() as opened, opened.begin(0) as txn:
        guest = txn.guest()
        Path(guest.path).mkdir(parents=True)
        (Path(guest.path) / "x.parquet").write_bytes(sink.getvalue())
        txn.add(guest.adopt((column,), opened.log.stamps.new_id))
    assert place.table().to_arrow()["x"].to_pylist() == [b"1"]
    assert not (tmp_path / "boom").exists()
    pickle.loads(bomb)
    assert (tmp_path / "boom").exists(), "the pickle was harmless, so this proves nothing"


@pytest.mark.parametrize("column", ["", "!", "AAAA", "/////w==", base64.b64encode(b"\xff" * 4000).decode()])
def test_a_column_that_no_schema_says_is_refused(column: str, filled: Place) -> None:
    for file in sorted((filled.path / "_txsink/log").iterdir()):
        text = file.read_bytes()
        if b'"prepare"' in text:
            entry = decode(text, int(file.stem))
            held = entry.columns  # type: ignore[union-attr]
            bad = tuple(type(one)(one.name, one.type, column) for one in held)
            file.write_bytes(
                encode(
                    type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__} | {"columns": bad})
                )
            )
    (filled.path / "_txsink/head").unlink()
    with pytest.raises(TxsinkError):
        filled.table().to_arrow()


# -- size ---------------------------------------------------------------------------------------------------------


def test_an_entry_of_a_terabyte_costs_no_memory(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole in a file costs whoever makes it nothing. No more than the cap is read."""
    monkeypatch.setattr("txsink.log.entry.ENTRY_BYTES_MAX", 1 << 20)
    asked: list[int] = []
    real = LocalStore._read_at

    def read_at(self: LocalStore, handle: int, start: int, count: int) -> bytes:
        asked.append(count)
        return real(self, handle, start, count)

    monkeypatch.setattr(LocalStore, "_read_at", read_at)
    last = max((filled.path / "_txsink/log").iterdir())
    with entry_file(filled.path, int(last.stem) + 1).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptError, match="it is larger than"):
        filled.table()
    assert max(asked) <= (1 << 20) + 1


def test_a_table_path_is_resolved_once_so_that_a_link_cannot_be_turned_under_an_open_writer(tmp_path: Path) -> None:
    """The path that users give may be a link, like any directory's."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with txsink.open_writer(tmp_path / "link" / "T", "w") as sink:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "two")
        with sink.begin(0) as txn:
            txn.write({"id": [1]})
    assert rows_of(tmp_path / "one" / "T") == [1]
    assert list((tmp_path / "two").iterdir()) == []
