"""Log entries: one spelling, hostile-safe reading, bytes pinned for ever."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from make_golden import GOLDEN_PATH, entries
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import entry as codec
from txsink.log.entry import FORMAT, GENESIS, RESERVED, AnyEntry, Commit, Prepare, decode, digest, encode, seal, unseal
from txsink.paths import VERSION_MAX, name_problem
from txsink.records import DataFile

GOLDEN = entries()
GOLDEN_FILES = sorted(GOLDEN_PATH.glob("*.json"))
COMMIT = Commit(
    format=FORMAT,
    version=3,
    time_ms=1,
    write_id="9f",
    previous="c0",
    table_id="7ab1",
    birth="3b",
    writer="nightly",
    run="51",
    generation=1,
    epoch=7,
    prepared=2,
)
PREPARE = Prepare(
    format=FORMAT,
    version=2,
    time_ms=1,
    write_id="9e",
    previous="c0",
    table_id="7ab1",
    birth="3b",
    writer="nightly",
    run="51",
    generation=1,
    epoch=7,
    claims=False,
    mode="append",
    files=(DataFile(path="part-7-0-51ad.parquet", bytes=4, digest="ab", rows=1, partition={}),),
    removes=(),
    columns=(),
    metadata={},
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
COUNTS = st.integers(0, VERSION_MAX)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


def altered(entry: AnyEntry, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The entry's bytes after `change`, with the checksum that fits them."""
    fields = msgspec.json.decode(unseal(encode(entry)))
    change(fields)
    return seal(json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode())


def respelled(entry: AnyEntry, old: str, new: str) -> bytes:
    """The entry's bytes with one piece of text replaced, and the checksum that fits them."""
    body = unseal(encode(entry)).decode()
    assert body.count(old) == 1
    return seal(body.replace(old, new).encode())


# -- one spelling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [entry for _, entry in GOLDEN], ids=[name for name, _ in GOLDEN])
def test_every_kind_of_entry_reads_back_equal(entry: AnyEntry) -> None:
    again = decode(encode(entry), entry.version)
    assert again == entry
    assert type(again) is type(entry)


@given(version=COUNTS, epoch=COUNTS, writer=TEXT.filter(lambda name: name_problem(name) is None), metadata=JSON)
def test_any_json_metadata_reads_back_equal(version: int, epoch: int, writer: str, metadata: object) -> None:
    entry = msgspec.structs.replace(
        PREPARE, version=version, epoch=epoch, writer=writer, metadata={"offsets": metadata}
    )
    assert decode(encode(entry), version) == entry


@pytest.mark.parametrize("name", RESERVED)
def test_a_key_that_is_reserved_is_refused_by_name_as_of_a_later_release(name: str) -> None:
    """F24: not as damage. What it would leave out could be rows."""

    def holding(key: str, value: object) -> bytes:
        return altered(COMMIT, lambda fields: fields.update({key: value}))

    for value in ({"p0": 1}, 7, "events", None):
        with pytest.raises(InvalidRequestError, match=f"it holds '{name}'.*Upgrade txsink"):
            decode(holding(name, value), 3)
    with pytest.raises(CorruptError):
        decode(holding(f"{name}s", 1), 3)


def test_an_entry_is_one_line_that_ends_in_its_checksum() -> None:
    data = encode(COMMIT)
    assert data.count(b"\n") == 1
    assert re.fullmatch(rb'\{"kind":"commit","format":1,.*,"checksum":"[0-9a-f]{64}"\}\n', data)
    assert list(json.loads(data)) == [
        "kind", "format", "version", "time_ms", "write_id", "previous", "table_id", "birth",
        "writer", "run", "generation", "epoch", "prepared", "checksum",
    ]  # fmt: skip


def test_entries_with_different_bytes_have_different_digests() -> None:
    """I7: the chain names an entry by its bytes."""
    other = msgspec.structs.replace(COMMIT, time_ms=2)
    assert digest(encode(COMMIT)) == digest(encode(COMMIT))
    assert digest(encode(COMMIT)) != digest(encode(other))


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": math.nan},
        {"x": math.inf},
        {"x": (1, 2)},
        {"x": b"bytes"},
        {1: "a", "1": "b"},
        {"x": {1: "a"}},
        {"x": object()},
        {"x": "\ud800"},
        {"x": {1, 2}},
    ],
    ids=repr,
)
def test_metadata_that_would_not_read_back_is_refused_before_it_is_written(metadata: dict[Any, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="write log entry 2") as caught:
        encode(msgspec.structs.replace(PREPARE, metadata=metadata))
    assert "nothing was written" in str(caught.value)


@pytest.mark.parametrize("kind", [list, dict])
def test_metadata_nested_too_deeply_is_refused_before_it_is_written(kind: type) -> None:
    value: object = 1
    for _ in range(codec.METADATA_DEPTH_MAX - 1):
        value = {"k": value} if kind is dict else [value]
    deepest = msgspec.structs.replace(PREPARE, metadata={"x": value})
    assert decode(encode(deepest), 2) == deepest
    value = {"k": value} if kind is dict else [value]
    with pytest.raises(InvalidRequestError, match="nested more than 100 deep"):
        encode(msgspec.structs.replace(PREPARE, metadata={"x": value}))


def test_metadata_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidRequestError, match="write log entry 2"):
        encode(msgspec.structs.replace(PREPARE, metadata={"x": loop}))


@pytest.mark.parametrize(
    "change", [{"epoch": -1}, {"epoch": VERSION_MAX + 1}, {"write_id": "9" * 65}, {"generation": 1.5}, {"format": 0}]
)
def test_a_field_that_would_not_read_back_is_refused_before_it_is_written(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="write log entry 3"):
        encode(msgspec.structs.replace(COMMIT, **change))


def test_an_entry_too_large_to_read_back_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "ENTRY_BYTES_MAX", len(encode(COMMIT)))
    assert decode(encode(COMMIT), 3) == COMMIT
    with pytest.raises(InvalidRequestError, match="it is larger than"):
        encode(msgspec.structs.replace(COMMIT, epoch=10))


# -- damaged bytes ---------------------------------------------------------------------------------------


def test_an_empty_entry_is_corrupt_and_names_its_version() -> None:
    """F23, I13."""
    with pytest.raises(CorruptError, match="read log entry 41: it is empty") as caught:
        decode(b"", 41)
    assert caught.value.context == {"version": 41}


@pytest.mark.parametrize("entry", [COMMIT, PREPARE], ids=["commit", "prepare"])
def test_an_entry_torn_at_any_byte_is_corrupt(entry: AnyEntry) -> None:
    """F23, I13."""
    data = encode(entry)
    for length in range(len(data)):
        with pytest.raises(CorruptError, match=f"read log entry {entry.version}"):
            decode(data[:length], entry.version)


def test_an_entry_whose_end_reads_as_zeros_is_corrupt() -> None:
    """F23, I13: what a power cut leaves of a block that was never written."""
    data = encode(COMMIT)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            decode(data[:length] + bytes(len(data) - length), 3)


@pytest.mark.parametrize("entry", [COMMIT, GOLDEN[0][1]], ids=["commit", "create"])
def test_an_entry_with_any_single_bit_flipped_is_corrupt(entry: AnyEntry) -> None:
    """F23, I7, I13: also a flip that makes its format look like a later one."""
    data = encode(entry)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptError):
                decode(bytes(flipped), entry.version)


@pytest.mark.parametrize("extra", [b" ", b"\n", b"\x00", b"x"])
def test_an_entry_with_bytes_added_is_corrupt(extra: bytes) -> None:
    """F23."""
    for data in (encode(COMMIT) + extra, extra + encode(COMMIT), encode(COMMIT) * 2):
        with pytest.raises(CorruptError):
            decode(data, 3)


def test_an_entry_in_another_slot_is_corrupt() -> None:
    """I13: a right entry in the wrong place is not that place's entry."""
    with pytest.raises(CorruptError, match="read log entry 4: it says it is version 3"):
        decode(encode(COMMIT), 4)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_entry_or_corrupt(data: bytes) -> None:
    """I13."""
    for candidate in (data, seal(data), seal(b"{" + data + b"}")):
        with pytest.raises(CorruptError):
            decode(candidate, 3)


# -- hostile bytes: the checksum is right ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epoch":7', '"epoch":7,"epoch":7'),
        ('"epoch":7', '"epoch":8,"epoch":7'),
        ('"format":1', '"format":1,"format":1'),
        ('"kind":"commit"', '"kind":"commit","kind":"commit"'),
        ('"epoch":7', '"epoch": 7'),
        ('"epoch":7', '"\\u0065poch":7'),
        ('"epoch":7', '"epoch":7.0'),
        ('"epoch":7,"prepared":2', '"prepared":2,"epoch":7'),
    ],
)
def test_any_other_spelling_of_an_entry_is_corrupt(old: str, new: str) -> None:
    """F23: repeated keys above all, since readers differ on which one counts."""
    data = respelled(COMMIT, old, new)
    with pytest.raises(CorruptError):
        decode(data, 3)


def test_repeated_keys_are_refused_at_every_depth() -> None:
    entry = msgspec.structs.replace(PREPARE, metadata={"offsets": {"p0": 1}})
    with pytest.raises(CorruptError, match="repeated key"):
        decode(respelled(entry, '"p0":1', '"p0":2,"p0":1'), 2)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "1e999"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    entry = msgspec.structs.replace(PREPARE, metadata={"x": 0})
    with pytest.raises(CorruptError, match="read log entry 2"):
        decode(respelled(entry, '"x":0', f'"x":{number}'), 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.update(extra=1),
        lambda fields: fields.pop("epoch"),
        lambda fields: fields.update(kind="unheard-of"),
        lambda fields: fields.pop("kind"),
        lambda fields: fields.pop("format"),
        lambda fields: fields.update(format=0),
        lambda fields: fields.update(format="1"),
        lambda fields: fields.update(epoch=-1),
        lambda fields: fields.update(epoch=VERSION_MAX + 1),
        lambda fields: fields.update(epoch="7"),
        lambda fields: fields.update(epoch=True),
        lambda fields: fields.update(epoch=None),
        lambda fields: fields.update(write_id="9" * 65),
        lambda fields: fields.update(writer=""),
        lambda fields: fields.update(writer="a\x00b"),
        lambda fields: fields.update(run="x" * 256),
    ],
)
def test_a_field_outside_the_grammar_is_corrupt(change: Callable[[dict[str, Any]], object]) -> None:
    """F23."""
    with pytest.raises(CorruptError, match="read log entry 3"):
        decode(altered(COMMIT, change), 3)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"1", b'""', b"{", b"", b'{"format":1}'])
def test_json_that_is_no_entry_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(seal(body), 3)


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_a_deeply_nested_entry_is_corrupt_and_no_crash(depth: int, brackets: str) -> None:
    """F23."""
    before, after = ("[", "]") if brackets == "[]" else ('{"k":', "}")
    entry = msgspec.structs.replace(PREPARE, metadata={"x": 0})
    with pytest.raises(CorruptError):
        decode(respelled(entry, '"x":0', f'"x":{before * depth}0{after * depth}'), 2)


def test_an_over_large_entry_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F23."""
    data = encode(COMMIT)
    monkeypatch.setattr(codec, "ENTRY_BYTES_MAX", len(data))
    assert decode(data, 3) == COMMIT
    for larger in (data + b" ", bytes(len(data) + 1), encode(COMMIT) * 2):
        with pytest.raises(CorruptError, match=f"it is larger than {len(data)} bytes"):
            decode(larger, 3)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/part-7-0-51ad.parquet",
        "../part-7-0-51ad.parquet",
        "a=1/../../part-7-0-51ad.parquet",
        "./part-7-0-51ad.parquet",
        "_txsink/log/00000000000000000000.json",
        "_txsink/part-7-0-51ad.parquet",
        "a=\x00/part-7-0-51ad.parquet",
        "file:///etc/part-7-0-51ad.parquet",
        "a=1//part-7-0-51ad.parquet",
        "..",
        "",
    ],
)
@pytest.mark.parametrize("where", ["files", "removes"])
def test_a_path_that_leaves_the_table_is_corrupt(where: str, path: str) -> None:
    file = {"path": path, "bytes": 4, "digest": "ab", "rows": 1, "partition": {}}
    with pytest.raises(CorruptError, match="is not a data path"):
        decode(altered(PREPARE, lambda fields: fields.update({where: [file]})), 2)


@pytest.mark.parametrize(
    "staging",
    [
        "/etc/0123456789abcdef",
        "..",
        "../.t.txsink",
        "../.t.txsink/",
        "0123456789abcdef/w",
        "a//0123456789abcdef",
        "x\x00y",
    ],
)
def test_a_staging_directory_that_no_table_stages_in_is_corrupt(staging: str) -> None:
    """A commit moves files out of it: no entry may send it elsewhere."""
    good = decode(altered(PREPARE, lambda fields: fields.update(staging="../.t.txsink/0123456789abcdef")), 2)
    assert isinstance(good, Prepare)
    assert good.staging == "../.t.txsink/0123456789abcdef"
    with pytest.raises(CorruptError, match="is no directory that a table stages in"):
        decode(altered(PREPARE, lambda fields: fields.update(staging=staging)), 2)


def test_an_entry_of_a_later_format_says_both_versions() -> None:
    """F24: whatever else that format holds."""
    for data in (
        altered(COMMIT, lambda fields: fields.update(format=2)),
        altered(COMMIT, lambda fields: fields.update(format=2, kind="unheard-of", extra=[1])),
        seal(b'{"format":2}'),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            decode(data, 3)
        assert str(caught.value) == (
            "read log entry 3: it is of format 2, this txsink reads format 1. "
            "Upgrade txsink to a release that reads format 2."
        )
        assert caught.value.context == {"format": 2, "supported": 1}


def test_a_torn_entry_of_a_later_format_is_corrupt() -> None:
    """F23, F24: a format is believed only when the checksum fits."""
    data = altered(COMMIT, lambda fields: fields.update(format=2))
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            decode(data[:length], 3)


# -- bytes on people's disks -----------------------------------------------------------------------------


def test_there_is_a_golden_entry_of_every_kind() -> None:
    assert [path.name for path in GOLDEN_FILES] == [name for name, _ in GOLDEN]
    assert {type(entry) for _, entry in GOLDEN} == set(AnyEntry.__args__)


@pytest.mark.parametrize("path", GOLDEN_FILES, ids=lambda path: path.stem)
def test_golden_bytes_decode_and_encode_to_the_same_bytes(path: Path) -> None:
    """I7: what an older release wrote reads the same for ever."""
    version = int(path.name[:2])
    data = path.read_bytes()
    entry = decode(data, version)
    assert entry == GOLDEN[version][1]
    assert encode(entry) == data


def test_golden_entries_are_one_chain() -> None:
    """I7."""
    bytes_of = [path.read_bytes() for path in GOLDEN_FILES]
    found = [decode(data, version) for version, data in enumerate(bytes_of)]
    assert found[0].previous == GENESIS
    for before, after in pairwise(range(len(found))):
        assert found[after].previous == digest(bytes_of[before])
