"""Segments: which versions each one covers, and the facts of every kind of entry."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from txsink.errors import CorruptError
from txsink.log import segment
from txsink.log.entry import FORMAT, Abort, Claim, Commit, Create, Maintenance, Prepare, Publishing
from txsink.log.segment import BLOCK, FANOUT, Fact, children, decode, encode, facts, ranges, rows_of, table
from txsink.records import DataFile

HEADER: dict[str, Any] = {"format": FORMAT, "version": 9, "time_ms": 1, "write_id": "", "previous": ""}
HEADER |= {"table_id": "", "birth": ""}
OWN: dict[str, Any] = {"writer": "w", "run": "r2", "generation": 2}
NEW = DataFile("p=a%3Db/part-7-0-aaaa.parquet", 10, "d1", 3, {"p": "a=b"})
OLD = DataFile("p=__HIVE_DEFAULT_PARTITION__/part-6-0-bbbb.parquet", 20, "d2", 4, {"p": None})


def prepare(**fields: Any) -> Prepare:
    content = {"epoch": 7, "claims": False, "mode": "overwrite", "files": (NEW,), "removes": (OLD,)}
    return Prepare(**{**HEADER, **OWN, "run": "r1", "columns": (), "metadata": {}, **content, **fields})


def commit() -> Commit:
    return Commit(**HEADER, **OWN, epoch=7, prepared=8)


# -- ranges -------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7))
def test_segments_cover_all_whole_blocks_once_in_order_and_are_few(count: int) -> None:
    found = ranges(count)
    assert [first for first, _ in found] == [0, *(last + 1 for _, last in found)][: len(found)]
    assert (found[-1][1] + 1 if found else 0) == count // BLOCK * BLOCK
    sizes = [(last - first + 1) // BLOCK for first, last in found]
    assert all(size in {FANOUT**power for power in range(10)} for size in sizes)
    assert all(sizes.count(size) < FANOUT for size in sizes)


@given(st.integers(1, 10**7))
def test_a_segment_is_made_of_segments_that_were_there_before(count: int) -> None:
    for first, last in ranges(count):
        made_of = children(first, last)
        if last - first + 1 == BLOCK:
            assert made_of == []
        else:
            assert (made_of[0][0], made_of[-1][1], len(made_of)) == (first, last, FANOUT)
            assert all(before[1] + 1 == after[0] for before, after in pairwise(made_of))
            # The newest of them is made with this one; the others were read until now.
            assert set(made_of[:-1]) <= set(ranges(last + 1 - BLOCK)) | {
                pair for one in ranges(last + 1 - BLOCK) for pair in children(*one)
            }


def test_a_version_is_rewritten_logarithmically_often() -> None:
    written = sum(
        last - first + 1
        for count in range(BLOCK, BLOCK * FANOUT**3 + 1, BLOCK)
        for first, last in ranges(count)
        if last == count - 1
    )
    assert written <= 4 * BLOCK * FANOUT**3


# -- facts --------------------------------------------------------------------------------------------------


def test_a_claim_tells_who_claimed_and_who_was_retired() -> None:
    found = facts(Claim(**HEADER, **OWN, retires=("r0", "rx")), None)
    assert [(fact.kind, fact.run) for fact in found] == [("retire", "r0"), ("retire", "rx"), ("claim", "r2")]


def test_a_prepare_entry_is_a_fact_only_when_it_claims() -> None:
    assert facts(prepare(), None) == []
    assert [(fact.kind, fact.run) for fact in facts(prepare(claims=True), None)] == [("claim", "r1")]


def test_a_commit_brings_the_end_the_removed_and_the_added_files() -> None:
    end, removed, added = facts(commit(), prepare())
    assert end == Fact(9, "commit", "w", "r2", 7, 8, 1)
    assert (removed.kind, removed.file()) == ("remove", OLD)
    assert (added.kind, added.file(), added.run) == ("add", NEW, "r1")
    assert {removed.version, added.version} == {9}


def test_an_abort_is_a_fact_and_house_work_is_none() -> None:
    assert facts(Abort(**HEADER, **OWN, epoch=7, prepared=8), prepare()) == [Fact(9, "abort", "w", "r2", 7, 8, 1)]
    assert facts(Publishing(**HEADER, **OWN, epoch=7, prepared=8), None) == []
    assert facts(Maintenance(**HEADER, action="expire", cleaned=(), boundary=3), None) == []
    create = Create(**HEADER, layout="parquet", partition_columns=(), staging=None)
    assert facts(create, None) == []


# -- bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[], facts(commit(), prepare()) * 3])
def test_a_segment_gives_its_facts_back_in_order(rows: list[Fact]) -> None:
    assert rows_of(decode(encode(table(rows)), "path")) == rows


def test_a_damaged_segment_is_corruption_that_names_it() -> None:
    data = encode(table(facts(commit(), prepare()) * 50))
    for damaged in (b"", b"PAR1", data[:-1], data[: len(data) // 4], b"\x00" * len(data)):
        with pytest.raises(CorruptError, match="read the segment a/b") as caught:
            decode(damaged, "a/b")
        assert caught.value.context == {"path": "a/b"}


def test_no_altered_byte_of_a_segment_alters_a_fact() -> None:
    rows = facts(commit(), prepare()) * 50
    data = encode(table(rows))
    found = 0
    for at in range(0, len(data), 5):
        altered = data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]
        try:
            assert rows_of(decode(altered, "a/b")) == rows
        except CorruptError:
            found += 1
    assert found > len(data) // 20


def test_a_parquet_file_of_other_columns_is_no_segment() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"version": ["x"]}), sink)
    with pytest.raises(CorruptError):
        decode(sink.getvalue().to_pybytes(), "a/b")


def test_facts_are_fields_of_the_schema_in_order() -> None:
    assert tuple(segment.SCHEMA.names) == Fact._fields
