"""Whatever a value, a name, a record, an entry, a segment or a summary says: no path outside of the table is asked for.

The store is fenced: it fails on any path that lies neither in the table nor in its staging root.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from fence import EscapeError, fenced
from txsink import paths
from txsink.cli.commands import explain, files, log, pending, status, sweep, verify
from txsink.environment import Stamps
from txsink.errors import CorruptError, InvalidRequestError, TxsinkError
from txsink.log import segment
from txsink.log.entry import ENTRY_BYTES_MAX, Prepare, decode, encode, seal, unseal
from txsink.log.segment import Fact
from txsink.log.state import State, decode as decode_state, encode as encode_state
from txsink.reading.table import open_log
from txsink.records import DataFile
from txsink.store.local.store import LocalStore
from txsink.store.protocol import Store
from txsink.testing.simdisk import SimDisk
from txsink.writing.opening import open_sink
from txsink.writing.transaction import new_stager
from txsink.writing.writer import Writer

ROOT, STAGING = "/data/T", "/data/.T.txsink"

# What climbs, what is absolute, what ends a name, what hides: pieces that any text may be made of.
PIECES = [
    "..",
    ".",
    "/",
    "//",
    "\\",
    "~",
    "\x00",
    "\n",
    "%2F",
    "%2E%2E",
    "%00",
    "=",
    ":",
    "a",
    "ü",
    "_txsink",
    "\u202e",
]
HOSTILE = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.sampled_from(["../../etc/passwd", "/etc/passwd", "..", ".", "a/../../../b", "C:\\x", "k=../x", "\\\\host\\x"]),
)
FILE_NAME = "part-0-0-abcdef.parquet"


class Site:
    """A table on a simulated disk, behind a fence."""

    def __init__(self, *columns: str) -> None:
        self.disk = SimDisk()
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000, 1000)
        self.stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)
        self.columns = columns

    @property
    def store(self) -> Store:
        return fenced(LocalStore(cast("ModuleType", self.disk)), ROOT, STAGING)

    def sink(self, writer: str = "w", **options: Any) -> Writer:
        return open_sink(self.store, self.stamps, ROOT, writer, {"partition_by": self.columns, **options})

    def rows(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", open_log(self.store, self.stamps, ROOT).to_arrow().to_pylist())

    def write(self, path: str, data: bytes) -> None:
        """As somebody who may write into the table."""
        if path in self.disk.files():
            self.disk.unlink(path)
        LocalStore(cast("ModuleType", self.disk)).replace(path, data, "hostile")


def all_inside(site: Site) -> bool:
    return all(path.startswith((f"{ROOT}/", f"{STAGING}/")) for path in site.disk.files())


# -- what users give --------------------------------------------------------------------------------------------


@given(st.lists(HOSTILE, min_size=1, max_size=4, unique=True))
def test_a_partition_value_stays_a_value(values: list[str]) -> None:
    """Each is a directory below the table and reads back as it was, or is refused."""
    site = Site("k")
    written = []
    with site.sink() as sink:
        for epoch, value in enumerate(values):
            try:
                with sink.begin(epoch) as txn:
                    txn.write({"id": [epoch], "k": [value]})
                written.append({"id": epoch, "k": value})
            except InvalidRequestError:
                assert "\x00" in value or len(paths.escape(value).encode()) > 200
    assert site.rows() == written if written else True
    assert all_inside(site)


@given(HOSTILE)
def test_a_partition_column_stays_a_column(name: str) -> None:
    site = Site(name)
    try:
        with site.sink() as sink, sink.begin(0) as txn:
            txn.write({"id": [1], name: ["v"]})
    except InvalidRequestError:
        pass
    else:
        assert site.rows() == [{"id": 1, name: "v"}] or name == "id"
    assert all_inside(site)


@given(HOSTILE, HOSTILE)
def test_names_of_writers_and_runs_stay_names(writer: str, run: str) -> None:
    site = Site()
    try:
        with site.sink(writer, run=run) as sink, sink.begin(0) as txn:
            txn.write({"id": [1]})
    except InvalidRequestError:
        assert paths.name_problem(writer) or paths.name_problem(run)
    else:
        assert site.rows() == [{"id": 1}]
        # Its left-overs are its own: a name like another's directory is another name.
        site.sink(writer).close()
    assert all_inside(site)


# -- what workers send back -------------------------------------------------------------------------------------

PLACES = st.sampled_from(["writer", "run", "part", "stamp", "file.path", "file.digest", "file.partition", "upload"])


def staged_record(sink: Writer) -> dict[str, Any]:
    """What a worker of epoch 0 sends back."""
    stager = new_stager(sink, 0)
    stager.write({"id": [1], "k": ["v"]})
    (record,) = stager.finish()
    return record.to_dict()


@given(PLACES, HOSTILE)
def test_a_record_of_a_staged_file_leads_nowhere_else(place: str, text: str) -> None:
    site = Site("k")
    with site.sink() as sink:
        record = json.loads(json.dumps(staged_record(sink)))
        holder, _, field = place.rpartition(".")
        value: Any = {"id": text, "parts": [text]} if place == "upload" else text
        value = {text: text} if field == "partition" else value
        (record[holder] if holder else record)[field] = value
        with suppress(TxsinkError), sink.begin(0) as txn:
            txn.add([record])
    assert site.rows() in ([], [{"id": 1, "k": "v"}])
    assert all_inside(site)


@pytest.mark.parametrize(
    "path",
    [f"../{FILE_NAME}", f"/etc/{FILE_NAME}", f"k=v/../{FILE_NAME}", f"k=%2E%2E/{FILE_NAME}", f"a/{FILE_NAME}", "../x"],
)
def test_a_record_that_climbs_is_refused(path: str) -> None:
    site = Site("k")
    with site.sink() as sink:
        record = staged_record(sink)
        record["file"]["path"] = path
        with pytest.raises(InvalidRequestError, match="read the record of a staged file"):
            sink.begin(0).add([record])


@pytest.mark.parametrize("directory", ["nested", "k=%2E%2E", "k=v/b", "_k=1", "=", "k=", "k=v/_k=1", "k=a%2Fb%2F..%zz"])
def test_another_program_that_makes_strange_directories_is_refused_and_loses_no_row_silently(
    directory: str, tmp_path: Path
) -> None:
    table = tmp_path / "T"
    store = fenced(LocalStore(), str(table), f"{tmp_path}/.T.txsink")
    with open_sink(store, Site().stamps, str(table), "w", {}) as sink:
        guest = sink.begin(0).guest()
        place = Path(guest.path) / directory
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), place / "x.parquet")
        with pytest.raises(InvalidRequestError, match="it lies in a directory that no table has"):
            guest.adopt((), sink.log.stamps.new_id)
    assert list(table.rglob("*.parquet")) == []
    assert {one.name for one in tmp_path.iterdir()} <= {"T", ".T.txsink"}


# -- what the log says ------------------------------------------------------------------------------------------


@given(HOSTILE)
def test_an_entry_that_names_a_file_elsewhere_is_corrupt(path: str) -> None:
    """Sealed as we seal, chained as we chain: a forger can do that."""
    site = Site()
    with site.sink() as sink:
        txn = sink.begin(0)
        txn.write({"id": [1]})
        txn.prepare()
    name, data = max(
        (name, data) for name, data in site.disk.files().items() if "/log/" in name and b'"prepare"' in data
    )
    entry = decode(data, int(Path(name).stem))
    assert isinstance(entry, Prepare)
    fields = msgspec.json.decode(unseal(encode(entry)))
    for hostile in (path, f"{path}/{FILE_NAME}", f"../{FILE_NAME}"):
        fields["files"][0]["path"] = hostile
        site.write(name, sealed(fields))
        try:
            site.sink().close()
        except (CorruptError, InvalidRequestError):
            continue
        assert paths.is_data_path(hostile)
    assert all_inside(site)


def sealed(fields: dict[str, Any]) -> bytes:
    return seal(msgspec.json.encode(fields))


FACT = Fact(1, "add", "w", "r", 0, 0, 1, FILE_NAME, 10, "d" * 64, 1, "{}")
WRONG_FACTS: dict[str, dict[str, Any]] = {
    "climbs": {"path": f"../../{FILE_NAME}"},
    "absolute": {"path": f"/etc/{FILE_NAME}"},
    "passwd": {"path": "/etc/passwd"},
    "dots within": {"path": f"k=v/../{FILE_NAME}"},
    "hidden": {"path": f".k=v/{FILE_NAME}"},
    "empty part": {"path": f"k=v//{FILE_NAME}"},
    "new line": {"path": f"{FILE_NAME}\n"},
    "no path": {"path": None},
    "no size": {"bytes": None},
    "no rows": {"rows": None},
    "no version": {"version": None},
    "no writer": {"writer": None},
    "another kind": {"kind": "rm -rf"},
}


@pytest.mark.parametrize("wrong", WRONG_FACTS)
def test_a_segment_that_names_a_file_elsewhere_is_corrupt(wrong: str) -> None:
    good = segment.encode(segment.table([FACT]))
    assert segment.rows_of(segment.decode(good, "x")) == [FACT]
    bad = segment.encode(segment.table([FACT, FACT._replace(**WRONG_FACTS[wrong])]))
    with pytest.raises(CorruptError, match="read the segment x"):
        segment.decode(bad, "x")


@given(HOSTILE)
def test_a_fact_reads_as_a_file_of_the_table_or_is_corrupt(text: str) -> None:
    for fact in (
        FACT._replace(path=f"{text}/{FILE_NAME}"),
        FACT._replace(partition=text),
        FACT._replace(digest=text * 70),
    ):
        try:
            file = fact.file()
        except CorruptError:
            continue
        else:
            assert paths.is_data_path(file.path)


@given(HOSTILE)
def test_what_passes_the_quick_look_at_many_paths_stays_below_the_root(text: str) -> None:
    found_paths = [f"{text}/{FILE_NAME}", text, f"k={text}/{FILE_NAME}", f"{text}=v/{FILE_NAME}", f"k=v/{text}"]
    for path, fits in zip(
        found_paths, pc.match_substring_regex(pa.array(found_paths), paths.DATA_PATH).to_pylist(), strict=True
    ):
        assert fits or not paths.is_data_path(path), "a path that a writer makes is refused"
        if fits:
            assert not {".", "..", ""} & {*path.split("/")}
            assert "\x00" not in path


STATE_FIELDS = st.sampled_from(["staging", "layout", "table_id", "digest", "partition_columns", "writers"])


@given(STATE_FIELDS, HOSTILE)
def test_a_hint_with_hostile_texts_touches_nothing_but_the_table_and_the_staging_root_it_names(
    field: str, text: str
) -> None:
    site = Site()
    with site.sink() as sink:
        for epoch in range(3):
            with sink.begin(epoch) as txn:
                txn.write({"id": [epoch]})
        sink.log.keep_hint()
    hint = decode_state(site.disk.files()[f"{ROOT}/_txsink/head"])
    assert isinstance(hint, State)
    value: Any = {"partition_columns": (text,), "writers": {text: hint.writers["w"]}}.get(field, text)
    forged = msgspec.structs.replace(hint, **{field: value})
    site.write(f"{ROOT}/_txsink/head", encode_state(forged))
    try:
        site.rows()
        if field != "staging":  # whoever writes the log says where staged files lie, see docs/security.md
            site.sink("w" if field != "writers" else "x", partition_by=None).close()
    except TxsinkError:
        pass
    assert all_inside(site)


def test_whatever_staging_root_a_log_names_only_files_that_txsink_staged_are_deleted_there(tmp_path: Path) -> None:
    """I8: somebody else's files, also below directories that are called like ours."""
    victim = tmp_path / "victim"
    for name in (
        "secret.txt",
        "w/secret.txt",
        "w/run/secret.parquet",
        "w/run/part-x.parquet",
        f"other/run/{FILE_NAME}",
    ):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("theirs")
    (tmp_path / ".T.txsink").symlink_to(victim)
    site = Site()
    with open_sink(LocalStore(), site.stamps, str(tmp_path / "T"), "w", {}) as sink, sink.begin(0) as txn:
        txn.write({"id": [1]})
    sink = open_sink(LocalStore(), site.stamps, str(tmp_path / "T"), "w", {})
    sink.sweep()
    assert len([one for one in victim.rglob("*") if one.is_file()]) == 5


def test_the_fence_itself_refuses_what_lies_outside() -> None:
    """Else the absence of escapes would prove nothing."""
    store = fenced(LocalStore(cast("ModuleType", SimDisk())), ROOT)
    store.put_if_absent(f"{ROOT}/a", b"", "x")
    for path in ("/data/T2/a", f"{ROOT}/../x", "/etc/passwd", f"{ROOT}//a", f"{ROOT}/./a", STAGING):
        for act in cast(
            "list[Callable[[str], object]]",
            [
                lambda path: store.read(path, 1),
                lambda path: store.move([(f"{ROOT}/a", path)]),
                lambda path: store.settle([path]),
                store.delete,
                store.create,
            ],
        ):
            with pytest.raises(EscapeError):
                act(path)


# -- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [status, log, files, pending, verify, explain, sweep], ids=lambda one: one.__name__)
def test_a_command_reads_no_file_that_a_hostile_name_points_at(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, writer = tmp_path / "T", "../../outside\x1b[31m"
    (tmp_path / "outside").write_text("theirs")
    with open_sink(LocalStore(), Site().stamps, str(table), writer, {"partition_by": ("k",)}) as sink:
        with sink.begin(0, metadata={"x": "../../outside"}) as txn:
            txn.write({"id": [1], "k": ["../../outside"]})
        sink.begin(1).stager().stage({"id": [2], "k": [".."]})
    opened: list[str] = []
    real = LocalStore.read

    def read(self: LocalStore, path: str, limit: int) -> bytes | None:
        opened.append(path)
        assert limit <= ENTRY_BYTES_MAX * 16
        return real(self, path, limit)

    monkeypatch.setattr(LocalStore, "read", read)
    of_command: dict[str, dict[str, Any]] = {
        "log": {"limit": 0},
        "files": {"version": None},
        "verify": {"deep": True},
        "explain": {"writer": writer, "epoch": 0},
        "sweep": {"writer": writer, "yes": True},
    }
    command(str(table), **of_command.get(command.__name__, {}))
    assert opened
    assert all(Path(path).is_relative_to(table) for path in opened)
    assert (tmp_path / "outside").read_text() == "theirs"
    assert {one.name for one in tmp_path.iterdir()} == {"T", ".T.txsink", "outside"}


def test_a_data_file_knows_no_path_outside() -> None:
    for path in (f"../{FILE_NAME}", f"/{FILE_NAME}", f"k=v/../{FILE_NAME}"):
        with pytest.raises(ValueError, match="is not a data path"):
            DataFile(path, 1, "", 1, {})
