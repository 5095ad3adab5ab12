"""A reader that was written from `docs/format.md` alone sees what txsink sees."""

from __future__ import annotations

import ast
import random
import re
import shutil
import typing
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import format_reader
import txsink
from format_reader import File, Reader, RefusedError, digest
from format_table import PAGE, TABLE_PATH, make, shown, unwrapped
from made import PART, ROOT, problem
from place import Place, begin_publish, prepared, tree
from txsink import conversion as convert, paths, records
from txsink.delta.log import DeltaLog
from txsink.errors import ConflictError, CorruptError, TxsinkError
from txsink.log import entry, expiry, segment
from txsink.log.log import Log
from txsink.log.slots import Slots
from txsink.log.state import Pending, State, WriterState
from txsink.store.local.store import LocalStore

ALLOWED = {
    "__future__",
    "collections",
    "contextlib",
    "hashlib",
    "io",
    "json",
    "msgspec",
    "pathlib",
    "pyarrow",
    "re",
    "typing",
    "urllib",
}


def test_the_reader_imports_nothing_of_txsink() -> None:
    """Nor anything that could."""
    code = ast.parse(Path(format_reader.__file__).read_text(encoding="utf-8"))
    plain = [one.name for node in ast.walk(code) if isinstance(node, ast.Import) for one in node.names]
    given = [str(node.module) for node in ast.walk(code) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in plain + given} <= ALLOWED
    called = [node.func.id for node in ast.walk(code) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not {"__import__", "eval", "exec"} & {*called}


# -- the same files -----------------------------------------------------------------------------------------


def seen_by_txsink(table: txsink.Table, version: int | None) -> list[File]:
    return [File(**one._asdict()) for one in table.files(version)]


def require_agreement(path: Path, *, every: int = 1) -> Reader:
    """Both see the same at the head and at each retained version, every so many; the bytes are where the page says."""
    table, reader = txsink.open_table(str(path)), Reader(path)
    head, boundary = reader.state["version"], reader.state["boundary"]
    assert (head, boundary) == (table.version, table.boundary)
    assert reader.state == msgspec.json.decode(msgspec.json.encode(table.log.state))
    in_order: Callable[[list[File]], list[File]] = list if reader.state["layout"] == "parquet" else sorted
    for version in (None, head, *range(boundary, head, every)):
        files = reader.files(version)
        assert in_order(files) == in_order(seen_by_txsink(table, version)), version
        for file in files:
            data = reader.bytes_of(file)
            assert len(data) == file.bytes
            assert file.version < 0 or digest(data) == reader.digest_of(file.path)
    for beyond in (boundary - 1, head + 1):
        with pytest.raises(RefusedError):
            reader.files(beyond)
    return reader


def rows(*ids: int) -> dict[str, list[Any]]:
    return {"id": list(ids), "day": ["ab"[one % 2] for one in ids]}


ACTS = ("append", "append", "empty", "static", "dynamic", "abort", "pending", "rewind")


def drawn_life(place: Place, layout_name: str, seed: int, steps: int = 30) -> set[str]:
    """Whatever three writers do, drawn; what was done."""
    chance, done = random.Random(seed), set[str]()
    for step in range(steps):
        act = chance.choice(ACTS)
        with place.sink(chance.choice(["v", "w", "é/W"]), layout=layout_name, partition_by=["day"]) as sink:
            last = -1 if sink.last_epoch is None else sink.last_epoch
            if act == "rewind":
                with suppress(ConflictError):  # across an overwrite
                    done |= (
                        {act} if last > 0 and sink.recover(up_to=last - 1, on_newer="rewind").rewound_from else set()
                    )
                continue
            is_overwrite = act in {"static", "dynamic"}
            if is_overwrite and sink.log.state.pending:
                continue
            more: dict[str, Any] = {"mode": "overwrite", "partition_overwrite": act} if is_overwrite else {}
            txn = sink.begin(last + 1, **more)
            if act != "empty":
                txn.write(rows(*(10 * step + one for one in range(chance.randint(1, 3)))))
            if act in {"abort", "pending"}:
                txn.prepare()
            if act == "abort":
                txn.abort()
            elif act != "pending":
                txn.commit()
            done.add(act)
    return done


@pytest.mark.parametrize("layout_name", ["parquet", "delta"])
def test_both_see_the_same_files_of_drawn_lives(tmp_path: Path, layout_name: str) -> None:
    done = set[str]()
    for seed in range(5):
        place = Place(tmp_path / f"{seed}")
        done |= drawn_life(place, layout_name, seed)
        require_agreement(place.path, every=3)
    assert done == {*ACTS}


def epochs(place: Place, first: int, last: int, **options: Any) -> None:
    with place.sink("w", **options) as sink:
        for epoch in range(first, last):
            with sink.begin(epoch) as txn:
                if epoch % 20 == 0:
                    txn.write(rows(epoch))


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of more than 600 versions, with a merged segment, an overwrite among the first and one later."""
    place = Place(tmp_path_factory.mktemp("aged") / "T")
    epochs(place, 0, 100, partition_by=["day"])
    place.write(0, rows(7), "v", mode="overwrite", partition_overwrite="dynamic")
    epochs(place, 100, 305)
    place.write(1, rows(8), "v", mode="overwrite")
    place.write(2, rows(9), "v")
    return place.path


def beside(path: Path, tmp_path: Path) -> Path:
    """The same table once more, to be damaged."""
    return Path(shutil.copytree(path, tmp_path / "T"))


def test_partition_values_are_spelled_as_the_page_says(place: Place) -> None:
    moment = datetime.fromisoformat("2026-01-31T01:02:03.500000")
    values = {
        "n": (7, "7"),
        "b": (True, "true"),
        "d": (moment.date(), "2026-01-31"),
        "t": (moment, "2026-01-31 01:02:03.5"),
        "z": (moment.replace(microsecond=0, tzinfo=timezone.utc), "2026-01-31 01:02:03"),
        "m": (Decimal("1.50"), "1.50"),
        "f": (1e20, "1.0E20"),
        "g": (1e6, "1000000.0"),
        "h": (1e7, "1.0E7"),
        "i": (0.0001, "1.0E-4"),
        "s": ("a/b=ü", "a/b=ü"),
        "o": (None, None),
    }
    given = pa.table({"id": [1], **{name: [value] for name, (value, _) in values.items() if name != "o"}})
    given = given.append_column("o", pa.array([None], pa.string()))
    place.write(0, given, partition_by=[*values])
    assert Reader(place.path).files()[0].partition == {name: text for name, (_, text) in values.items()}
    typed = txsink.open_table(place.path).files()[0].partition
    assert {name: typed[name] for name in values} == {name: value for name, (value, _) in values.items()}


def log_of(path: Path) -> Log:
    log = Log(LocalStore(), str(path), Place(path).stamps)
    log.load()
    return log


def test_both_see_the_same_over_hundreds_of_versions_with_merged_segments(aged: Path) -> None:
    reader = require_agreement(aged, every=37)
    assert format_reader.ranges(reader.state["version"] + 1)[0] == (0, 511)
    assert (aged / paths.segment_path(0, 511)).exists()
    assert len([*(aged / paths.REMOVED_DIRECTORY).rglob("*.removed")]) > 10


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 511, 512, 1100, 4095, 4096, 100_000])
def test_the_segments_of_a_reader_are_those_of_txsink(count: int) -> None:
    assert format_reader.ranges(count) == segment.ranges(count)


@pytest.mark.parametrize("keeps_names", [False, True])
def test_both_see_the_same_of_what_expiry_leaves(
    aged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_names: bool
) -> None:
    path = beside(aged, tmp_path)
    if keeps_names:  # as on S3
        monkeypatch.setattr(Slots, "expire", lambda slots, at: slots.store.replace(slots.path(at), entry.EXPIRED, "1"))
    log = log_of(path)
    boundary = expiry.expire(log, 600)
    assert boundary > 500
    first = path / paths.entry_path(0)
    assert first.read_bytes() == entry.EXPIRED if keeps_names else not first.exists()
    assert (path / paths.entry_path(512)).exists()
    require_agreement(path, every=5)
    (path / paths.HEAD_PATH).unlink()
    require_agreement(path, every=50)


def test_both_read_the_parts_of_a_merged_segment_that_is_damaged_and_refuse_a_table_without_them(
    aged: Path, tmp_path: Path
) -> None:
    path = beside(aged, tmp_path)
    expiry.expire(log_of(path), 600)
    torn(paths.segment_path(0, 511), 0.5)(path)
    require_agreement(path, every=50)
    gone(paths.segment_path(64, 127))(path)
    with pytest.raises(RefusedError):
        Reader(path)
    with pytest.raises(TxsinkError):
        txsink.open_table(path).files()


def test_both_find_the_bytes_of_files_that_an_overwrite_is_taking_away(place: Place) -> None:
    place.write(0, rows(1, 2, 3))
    sink = place.sink()
    entry_of = prepared(sink, 1, rows(4), mode="overwrite")
    require_agreement(place.path)
    begin_publish(sink, entry_of)
    sink.publisher.replace(entry_of)
    reader = require_agreement(place.path)
    assert [file.epoch for file in reader.files()] == [0]


# -- the Delta layout ---------------------------------------------------------------------------------------


def converted(path: Path, way: str) -> None:
    log = log_of(path)
    delta = DeltaLog(LocalStore(), str(path), log.stamps, str(path))
    (convert.to_delta if way == "delta" else convert.to_parquet)(log, delta)


def test_both_see_the_same_before_and_after_conversions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs(place, 0, 45, partition_by=["day"])
    for way in ("delta", "parquet", "delta"):
        converted(place.path, way)
        place.write(Reader(place.path).state["version"], rows(3, 4))
        place.write(Reader(place.path).state["version"], rows(5), mode="overwrite")
        require_agreement(place.path, every=4)
    stop = pytest.raises(KeyboardInterrupt)
    with monkeypatch.context() as patch, stop:
        patch.setattr(convert, "_put_away", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        converted(place.path, "parquet")
    assert require_agreement(place.path, every=4).state["layout"] == "closed"


def test_both_see_the_same_of_a_table_that_changed_before_its_first_row(place: Place) -> None:
    place.write(0, None)
    with place.sink("w", partition_by=["day"], layout="delta"):
        pass
    assert [*Reader(place.path).files()] == []
    place.write(1, rows(1, 2))
    require_agreement(place.path)


def test_both_see_files_of_other_programs_and_what_is_left_of_a_cleaned_log(place: Place) -> None:
    for epoch in range(3):
        place.write(epoch, rows(epoch), layout="delta", partition_by=["day"])
    there = DeltaTable(str(place.path))
    write_deltalake(there, txsink.open_table(place.path).to_arrow().slice(0, 2), mode="append")
    place.write(3, rows(8))
    reader = require_agreement(place.path)
    assert [file.version for file in reader.files()].count(-1) > 0
    there = DeltaTable(str(place.path))
    there.create_checkpoint()
    (place.path / paths.delta_commit_path(0)).unlink()
    place.write(4, rows(9))
    assert sorted(Reader(place.path).files()) == sorted(seen_by_txsink(txsink.open_table(place.path), None))


def test_the_commits_of_delta_hold_the_records_that_the_page_says(place: Place) -> None:
    place.write(0, rows(1), "v", layout="delta")
    with place.sink("w", recover=False) as sink:
        prepared(sink, 0, rows(2))
        prepared(sink, 1, rows(3))
        sink.abort(1)  # while an earlier one is pending
        sink.abort(0)
    place.write(2, rows(4), "w")
    reader = Reader(place.path)
    names = [name for name in reader.names(format_reader.DELTA_LOG) if name.endswith(".json")]
    actions = [
        [msgspec.json.decode(line) for line in (reader.read(f"_delta_log/{name}") or b"").splitlines()]
        for name in names
    ]
    txns = [[(one["txn"]["appId"], one["txn"]["version"]) for one in commit if "txn" in one] for commit in actions]
    ends = [one for one in map(reader.entry, range(reader.state["version"] + 1)) if one["kind"] in {"commit", "abort"}]
    seals = [2 * one["prepared"] for one in ends]
    assert [one["kind"] for one in ends] == ["commit", "abort", "abort", "commit"]
    assert txns == [
        [("v", 0), ("txsink:v", seals[0])],
        [(f"txsink-abort-{seals[1] + 1}:w", seals[1] + 1)],
        [("txsink:w", seals[2] + 1)],
        [("w", 2), ("txsink:w", seals[3])],
    ]
    infos = [commit[0]["commitInfo"] for commit in actions]
    assert {one["engineInfo"] for one in infos} == {"txsink"}
    assert len({one["txnId"] for one in infos}) == len(infos)


def test_a_table_with_deletion_vectors_is_refused(place: Place) -> None:
    place.write(0, rows(1), layout="delta")
    commit = place.path / paths.delta_commit_path(0)
    commit.write_bytes(
        commit.read_bytes().replace(b'"dataChange":true', b'"dataChange":true,"deletionVector":{"storageType":"u"}')
    )
    with pytest.raises(RefusedError, match="deletion vectors"):
        Reader(place.path).files()


# -- what is damaged ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a summary, a segment, and entries beyond them; the last entry is a commit, with a hint after it."""
    place = Place(tmp_path_factory.mktemp("sound") / "T")
    epochs(place, 0, 35)
    place.write(35, rows(1))
    return place.path


LAST = 73
Damage: TypeAlias = Callable[[Path], object]
at = paths.entry_path


def torn(name: str, keep: float) -> Damage:
    return lambda path: (path / name).write_bytes(
        (path / name).read_bytes()[: int((path / name).stat().st_size * keep)]
    )


def gone(*names: str) -> Damage:
    return lambda path: [one.unlink() for one in map(path.joinpath, names)]  # type: ignore[func-returns-value]


def altered(old: bytes, new: bytes, name: str = at(LAST)) -> Damage:
    """Other bytes under a checksum that fits."""

    def alter(path: Path) -> None:
        body = (path / name).read_bytes()
        assert body.count(old) == 1, body
        (path / name).write_bytes(entry.seal(entry.unseal(body.replace(old, old)).replace(old, new)))

    return alter


def both(*acts: Damage) -> Damage:
    return lambda path: [act(path) for act in acts]


def copied_to(name: str, source: str = at(LAST)) -> Damage:
    return lambda path: (path / name).write_bytes((path / source).read_bytes())


def resegmented(**fields: Any) -> Damage:
    """A segment whose last fact is another."""

    def change(path: Path) -> None:
        facts = segment.rows_of(segment.decode((path / SEGMENT).read_bytes(), SEGMENT))
        (path / SEGMENT).write_bytes(segment.encode(segment.table([*facts[:-1], facts[-1]._replace(**fields)])))

    return change


SUMMARY, SEGMENT, HINT = paths.summary_path(63), paths.segment_path(0, 63), paths.HEAD_PATH
SAME = {
    "nothing": lambda path: None,
    "the hint is torn": torn(HINT, 0.5),
    "the hint is empty": torn(HINT, 0),
    "the hint is garbage": lambda path: (path / HINT).write_bytes(bytes(range(256))),
    "the hint is missing": gone(HINT),
    "the hint is an entry": copied_to(HINT, at(3)),
    "the hint says another digest": altered(b'"digest":"', b'"digest":"0', HINT),
    "hint and summary are gone": gone(HINT, SUMMARY),
    "the summary is torn, no hint": both(gone(HINT), torn(SUMMARY, 0.9)),
    "the segment is torn": torn(SEGMENT, 0.5),
    "the segment is missing": gone(SEGMENT),
    "the segment holds another version": resegmented(version=64),
    "the segment holds another kind": resegmented(kind="other"),
    "the segment names a file outside": resegmented(kind="add", path="../x/part-0-0-abcd.parquet", bytes=1, rows=1),
    "an entry that a segment repeats is missing": gone(at(10)),
    "half-made objects lie about": copied_to("_txsink/log/.ab12.tmp"),
    "the newest entry was never told of": gone(at(LAST), HINT),
}
REFUSED = {
    "the newest entry is torn": torn(at(LAST), 0.5),
    "the newest entry is empty": torn(at(LAST), 0),
    "the newest entry lacks its line feed": torn(at(LAST), 0.999),
    "the newest entry is torn, no hint": both(gone(HINT), torn(at(LAST), 0.3)),
    "the newest entry is missing, the hint tells of it": gone(at(LAST)),
    "an entry after the summary is torn, no hint": both(gone(HINT), torn(at(66), 0.5)),
    "an entry after the summary is missing": gone(at(66)),
    "an entry is missing, no hint": both(gone(HINT), gone(at(66))),
    "the first entry is torn, nothing else tells": both(gone(HINT, SUMMARY), torn(at(0), 0.5)),
    "the first entry is missing, nothing else tells": gone(HINT, SUMMARY, SEGMENT, at(0)),
    "the segment is torn and an entry of it missing": both(torn(SEGMENT, 0.5), gone(at(10))),
    "an entry lies beyond the end": copied_to(at(LAST + 3)),
    "a summary tells of a later entry, no hint": both(gone(HINT), copied_to(paths.summary_path(127), SUMMARY)),
    "a segment tells of a later entry, no hint": both(gone(HINT), copied_to(paths.segment_path(64, 127), SEGMENT)),
    "another entry stands in the slot": copied_to(at(LAST), at(LAST - 2)),
    "an entry stands twice": copied_to(at(LAST + 1)),
    "a key is repeated": altered(b'"epoch":35', b'"epoch":35,"epoch":35'),
    "there is a blank": altered(b'"epoch":35', b'"epoch": 35'),
    "a key is unknown": altered(b'"epoch":35', b'"epoch":35,"more":1'),
    "a key is missing": altered(b'"epoch":35,', b""),
    "keys are in another order": altered(b'"kind":"commit","format":1', b'"format":1,"kind":"commit"'),
    "a number is spelled otherwise": altered(b'"epoch":35', b'"epoch":35.0'),
    "a number is negative": altered(b'"epoch":35', b'"epoch":-35'),
    "a default is spelled out": altered(b'"epoch":35', b'"epoch":35,"delta":null'),
    "the epoch was never prepared": altered(b'"epoch":35', b'"epoch":36'),
    "the prepare entry is another": altered(b'"prepared":72', b'"prepared":70'),
    "the kind is unknown": altered(b'"kind":"commit"', b'"kind":"commits"'),
    "the format is later": altered(b'"format":1', b'"format":2'),
    "the hint is of a later format": altered(b'"format":1', b'"format":2', HINT),
    "the hint has a reserved key": altered(b'"boundary":0', b'"boundary":0,"watermark":1', HINT),
    "a key is reserved": altered(b'"epoch":35', b'"epoch":35,"positions":{}'),
    "the generation is another": altered(b'"generation":2', b'"generation":3'),
    "the chain is broken": altered(b'"previous":"', b'"previous":"0'),
    "the birth is another": altered(b'"birth":"', b'"birth":"0'),
    "a claim skips a generation": both(gone(HINT, at(LAST)), altered(b'"generation":2', b'"generation":5', at(72))),
    "an epoch does not grow": both(gone(HINT, at(LAST)), altered(b'"epoch":35', b'"epoch":34', at(LAST - 1))),
    "a file lies outside": both(gone(HINT, at(LAST)), altered(b'"path":"part-', b'"path":"../part-', at(LAST - 1))),
    "the log went on as expired": lambda path: (path / at(LAST)).write_bytes(entry.EXPIRED),
}  # fmt: skip


@pytest.mark.parametrize("damage", SAME.values(), ids=SAME)
def test_both_read_a_table_whose_damage_something_else_repeats(sound: Path, tmp_path: Path, damage: Damage) -> None:
    path = beside(sound, tmp_path)
    damage(path)
    reader = Reader(path)
    assert reader.files() == seen_by_txsink(txsink.open_table(path), None)
    assert len(reader.files()) >= 2


@pytest.mark.parametrize("damage", REFUSED.values(), ids=REFUSED)
def test_both_refuse_a_table_that_nobody_can_read_rightly(sound: Path, tmp_path: Path, damage: Damage) -> None:
    """I13: never fewer rows."""
    path = beside(sound, tmp_path)
    damage(path)
    with pytest.raises(RefusedError):
        Reader(path).files()
    with pytest.raises(TxsinkError):
        txsink.open_table(path).files()


# -- the law ------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(place: Place) -> Path:
    """`v` has committed epoch 0; `w` has epoch 0 pending, whose removals have begun, and epoch 1 behind it."""
    place.write(0, rows(1), "v")
    sink = place.sink("w")
    begin_publish(sink, prepared(sink, 0, rows(2), mode="overwrite"))
    prepared(sink, 1, rows(3))
    return place.path


def append(path: Path, kind: str, writer: str = "", **fields: Any) -> None:
    """What a program that does not know the law would append; unless given, by the run that holds `writer`."""
    found = Reader(path).state
    common = {"kind": kind, "format": 1, "version": found["version"] + 1, "time_ms": 1, "write_id": "ff"}
    common |= {"previous": found["digest"], "table_id": found["table_id"], "birth": found["birth"]}
    known = found["writers"].get(writer, {"run": "new", "generation": 1})
    own = {"writer": writer, "run": known["run"], "generation": known["generation"]} if writer else {}
    data = entry.seal(msgspec.json.encode({**common, **own, **fields}))
    assert entry.decode(data, found["version"] + 1), "its form is good"
    (path / at(found["version"] + 1)).write_bytes(data)


FILE = {"path": "part-9-0-abcd.parquet", "bytes": 1, "digest": "00", "rows": 1, "partition": {}}
COLUMN = {"name": "id", "type": "int64", "arrow": ""}


def sealing(epoch: int, mode: str = "append", claims: bool = False, **more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"files": [], "removes": [], "columns": [], "metadata": {}}
    return {"kind": "prepare", "epoch": epoch, "claims": claims, "mode": mode, **content, **more}


def ending(kind: str, epoch: int, prepared_at: int) -> dict[str, Any]:
    return {"kind": kind, "epoch": epoch, "prepared": prepared_at}


FIRST, SECOND = 4, 6  # where the pending epochs of `w` were prepared
CREATE: dict[str, Any] = {"layout": "parquet", "partition_columns": [], "staging": None, "types": "spark"}
LAWFUL: dict[str, dict[str, Any]] = {
    "a commit of the oldest": {"writer": "w", **ending("commit", 0, FIRST)},
    "publishing of a later one": {"writer": "w", **ending("publishing", 1, SECOND)},
    "an abort of what has not begun": {"writer": "w", **ending("abort", 1, SECOND)},
    "the next epoch": {"writer": "w", **sealing(2)},
    "an epoch that skips": {"writer": "w", **sealing(20)},
    "a rewind": {"writer": "v", **sealing(0, "rewind")},
    "a file": {"writer": "v", **sealing(9, files=[FILE])},
    "the next generation": {"kind": "claim", "writer": "w", "run": "next", "generation": 2, "retires": ["x"]},
    "the next generation, which prepares": {"writer": "w", "run": "next", "generation": 2, **sealing(2, claims=True)},
    "a new writer": {"kind": "claim", "writer": "u", "retires": []},
    "one that only retires": {"kind": "claim", "writer": "w", "retires": ["x"]},
    "a boundary": {"kind": "maintenance", "action": "expire", "cleaned": [], "boundary": 2},
}
LAWLESS: dict[str, dict[str, Any]] = {
    "a commit of a later one first": {"writer": "w", **ending("commit", 1, SECOND)},
    "a commit under another version": {"writer": "w", **ending("commit", 0, SECOND)},
    "a second commit": {"writer": "v", **ending("commit", 0, 1)},
    "a commit by another run": {"writer": "w", "run": "next", **ending("commit", 0, FIRST)},
    "a commit of another generation": {"writer": "w", "generation": 2, **ending("commit", 0, FIRST)},
    "a commit by nobody": {"writer": "u", **ending("commit", 0, FIRST)},
    "an abort of what has begun": {"writer": "w", **ending("abort", 0, FIRST)},
    "an abort by another run": {"writer": "w", "run": "next", **ending("abort", 1, SECOND)},
    "publishing by another run": {"writer": "w", "run": "next", **ending("publishing", 1, SECOND)},
    "an epoch that is pending": {"writer": "w", **sealing(1)},
    "an epoch that is committed": {"writer": "v", **sealing(0)},
    "an epoch by another run": {"writer": "w", "run": "next", **sealing(2)},
    "an epoch by nobody": {"writer": "u", **sealing(2)},
    "a claim that came before, in an epoch": {"writer": "w", **sealing(2, claims=True)},
    "a rewind while an epoch is pending": {"writer": "w", **sealing(0, "rewind")},
    "a rewind to what is not there": {"writer": "v", **sealing(1, "rewind")},
    "a generation twice": {"kind": "claim", "writer": "w", "run": "next", "generation": 1, "retires": []},
    "a generation too many": {"kind": "claim", "writer": "w", "run": "next", "generation": 3, "retires": []},
    "a first generation that is not 1": {"kind": "claim", "writer": "u", "generation": 2, "retires": []},
    "another layout while epochs are pending": {"kind": "convert", "layout": "delta"},
    "a table in a table": {"kind": "create", **CREATE},
    "another table": {"kind": "maintenance", "table_id": "x", "action": "x", "cleaned": [], "boundary": None},
    "another birth": {"kind": "maintenance", "birth": "x", "action": "x", "cleaned": [], "boundary": None},
    "another chain": {"kind": "maintenance", "previous": "x", "action": "x", "cleaned": [], "boundary": None},
}  # fmt: skip


@pytest.mark.parametrize("given", LAWFUL.values(), ids=LAWFUL)
def test_both_follow_a_lawful_entry_to_the_same_state(waiting: Path, given: dict[str, Any]) -> None:
    append(waiting, **given)
    assert Reader(waiting).state == msgspec.json.decode(msgspec.json.encode(log_of(waiting).state))


@pytest.mark.parametrize("given", LAWLESS.values(), ids=LAWLESS)
def test_both_refuse_an_entry_that_breaks_the_law(waiting: Path, given: dict[str, Any]) -> None:
    append(waiting, **given)
    require_both_refuse(waiting)


def require_both_refuse(path: Path) -> None:
    with pytest.raises(RefusedError, match="may not stand"):
        Reader(path)
    with pytest.raises(CorruptError):
        txsink.open_table(path)


def test_both_refuse_files_of_a_table_without_columns_and_new_partitions_of_one_with_some(place: Place) -> None:
    with place.sink():
        pass
    untyped = Path(shutil.copytree(place.path, place.path.with_name("V")))
    append(untyped, writer="u", **sealing(0, claims=True, files=[FILE]))
    require_both_refuse(untyped)
    blank = Path(shutil.copytree(place.path, place.path.with_name("U")))
    append(blank, kind="convert", layout="parquet", partition_columns=["day"])
    append(blank, writer="w", **sealing(0, files=[FILE], columns=[COLUMN]))
    assert Reader(blank).state["partition_columns"] == ["day"]
    assert log_of(blank).state.partition_columns == ("day",)
    place.write(0, rows(1), "v")
    append(place.path, kind="convert", layout="parquet", partition_columns=["day"])
    require_both_refuse(place.path)


def test_both_refuse_a_table_whose_birth_is_not_its_first_entry(place: Place) -> None:
    with place.sink():
        pass
    for name in (HINT, at(1)):
        (place.path / name).unlink(missing_ok=True)
    altered(b'"write_id":"', b'"write_id":"0', at(0))(place.path)
    require_both_refuse(place.path)


def test_both_refuse_uploads_that_are_not_one_for_each_file(sound: Path, tmp_path: Path) -> None:
    path = beside(sound, tmp_path)
    gone(HINT, at(LAST))(path)
    altered(b'"metadata":{}', b'"metadata":{},"uploads":[{"id":"u","parts":[]},{"id":"v","parts":[]}]', at(LAST - 1))(
        path
    )
    with pytest.raises(RefusedError, match="files without uploads"):
        Reader(path)
    with pytest.raises(CorruptError):
        txsink.open_table(path)


def test_whatever_byte_of_the_newest_entry_changes_both_refuse_it(sound: Path, tmp_path: Path) -> None:
    path = beside(sound, tmp_path)
    last = path / at(LAST)
    whole = last.read_bytes()
    for place in range(0, len(whole), 9):
        last.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RefusedError):
            Reader(path)
        with pytest.raises(TxsinkError):
            txsink.open_table(path)


# -- the worked records -------------------------------------------------------------------------------------


def test_the_page_shows_the_bytes_of_the_table_that_is_kept() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    names = [match[2] for match in PART.finditer(page)]
    assert names == [*(at(version) for version in range(4)), HINT, "facts", "files"]
    assert problem(PAGE, shown) is None
    for match in PART.finditer(page):
        if match[3].startswith("```"):
            assert unwrapped(match[3]).encode() == b"```json\n" + (TABLE_PATH / match[2]).read_bytes() + b"```\n"
    assert f"```json\n{entry.EXPIRED.decode()}```" in page


def test_the_table_that_is_kept_is_read_by_both_and_holds_what_the_page_says() -> None:
    reader = require_agreement(TABLE_PATH)
    assert [file.rows for file in reader.files()] == [1]
    assert txsink.open_table(TABLE_PATH).to_arrow(version=2)["id"].to_pylist() == [1, 2]
    assert txsink.open_table(TABLE_PATH).to_arrow()["id"].to_pylist() == [3]


def test_the_same_steps_make_the_same_table_again(tmp_path: Path) -> None:
    """But for the bytes of Parquet files, which are pyarrow's, and for the directory where it staged."""
    make(tmp_path / "orders")
    new, kept = tree(tmp_path / "orders"), tree(TABLE_PATH)
    assert [*sorted(new)] == [*sorted(kept)]
    theirs = re.compile(rb'"(?:digest|bytes|previous|checksum)":(?:"[0-9a-f]+"|[0-9]+)|txsink/[0-9a-f]{16}"')
    for name, data in new.items():
        if not name.endswith((".parquet", ".removed")):
            assert theirs.sub(b"", data) == theirs.sub(b"", kept[name]), name


def test_every_field_of_every_record_is_on_the_page() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    kinds = typing.get_args(entry.AnyEntry)
    for record in (*kinds, records.Column, records.DataFile, records.Upload, State, Pending, WriterState):
        assert [field for field in record.__struct_fields__ if f"`{field}`" not in page] == [], record
    assert [kind for kind in format_reader.KINDS if f"| `{kind}` |" not in page] == []
    assert {kind.__struct_config__.tag for kind in kinds} == {*format_reader.KINDS} == {*format_reader.LAW}
    assert [*format_reader.BEFORE] == [*State.__struct_fields__]
    assert format_reader.Fact._fields == segment.Fact._fields == tuple(segment.SCHEMA.names)
