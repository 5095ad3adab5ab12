"""Real processes, hit at single system calls by strace: killed, or told of an error; nothing is lost, nothing twice.

The CI scale is a sample, drawn by a seed; `python tests/real_faults.py` hits every call with every fault.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

import roads
from forks import DONE, OURS, Forks, forks
from real_faults import every_fault, inject, sample, wrong_after
from tally import Tally
from traced import ERRORS, Fault, hindrance, traced
from txsink.errors import TxsinkError

SEED = 20261119
KILLS, OTHERS = 40, 60


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks() as running:
        if reason := hindrance(running, tmp_path_factory.mktemp("trial") / "trace"):
            pytest.skip(reason)
        yield running


def test_a_writer_killed_or_told_of_an_error_at_any_call_writes_every_row_once(
    parent: Forks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I1, I2, I3, I5, I6, I9, I14: a sample of all calls and faults; pyarrow's own C++ writes too."""
    faults = every_fault(parent, tmp_path)
    assert len(faults) > 3000
    chosen = sample(faults, KILLS, OTHERS, SEED)
    assert {one.call for one in chosen} >= {"openat", "write", "fsync", "link", "unlink", "mkdir", "rename"}
    tally = inject(parent, tmp_path, chosen, Tally("system calls"))
    with capsys.disabled():
        tally.tell()
    assert tally.failures == []
    assert tally.planned == tally.delivered
    assert sum(tally.planned.values()) == KILLS + OTHERS


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "EINTR", "short"])
def test_a_fault_in_the_writes_of_another_program_is_its_own_and_the_epoch_is_written_again(
    kind: str, parent: Forks, tmp_path: Path
) -> None:
    """Arrow's C++ opens, writes and closes the files that are adopted; no write of the store touches them."""
    first = traced(parent.start("work", tmp_path / "first/T", tmp_path / "told", 1, stops=True), tmp_path / "trace")
    assert first.status == DONE
    lines = [line for line in first.text.splitlines() if " write(" in line]
    begun = next(number for number, line in enumerate(lines, 1) if '"PAR1", 4)' in line and is_of_cpp(first.text, line))
    fault = Fault(kind, "write", begun)
    place = tmp_path / "hit"
    place.mkdir()
    (tmp_path / "told").unlink()
    child = parent.start("work", place / "T", place / "told", 2, stops=True)
    trace = traced(child, place / "trace", fault)
    assert (trace.status, trace.delivered(fault)) == (DONE, 1)
    assert roads.acknowledged(place / "told") == roads.LAST
    assert wrong_after(parent, place) == []


def is_of_cpp(text: str, line: str) -> bool:
    """Whether the file of this write was opened by another than the store, which opens new files only (O_EXCL)."""
    before = text[: text.index(line)]
    handle = line.partition("write(")[2].partition(",")[0]
    opened = [one for one in before.splitlines() if "openat(" in one and one.endswith(f"= {handle}")]
    return "guest-" in opened[-1] and "O_EXCL" not in opened[-1]


def test_an_error_that_stays_is_ours_and_says_so(parent: Forks, tmp_path: Path) -> None:
    child = parent.start("work", tmp_path / "T", tmp_path / "told", 1, stops=True)
    fault = Fault("EIO", "link", 3)
    trace = traced(child, tmp_path / "trace", fault)
    assert (trace.status, trace.delivered(fault)) == (OURS, 1)
    assert wrong_after(parent, tmp_path) == []


# -- the instruments can fail -----------------------------------------------------------------------------------


def test_a_fault_at_a_call_that_never_comes_is_counted_as_not_delivered(parent: Forks, tmp_path: Path) -> None:
    faults = [Fault("EIO", "link", 9999), Fault("kill", "link", 9999)]
    tally = inject(parent, tmp_path, faults, Tally("system calls"))
    assert tally.planned == {"EIO at a system call": 1, "kill at a system call": 1}
    assert not +tally.delivered
    assert len(tally.failures) == 2
    assert not tally.is_good


def lose_a_file(table: Path) -> None:
    first_file(table).unlink()


def double_a_file(table: Path) -> None:
    shutil.copy(first_file(table), first_file(table).with_name("part-9-9-abcd.parquet"))


def tear_a_file(table: Path) -> None:
    first_file(table).write_bytes(b"")


def forget_an_epoch(table: Path) -> None:
    """Its entries, and what tells that they were there: without its commit entry alone it would roll forward."""
    kinds = []
    for entry in sorted((table / "_txsink/log").iterdir(), reverse=True):
        if "prepare" not in kinds:
            kinds.append(json.loads(entry.read_text())["kind"])
            entry.unlink()
    (table / "_txsink/head").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(double_a_file, "I1: the directory"), (forget_an_epoch, "I3"), (lose_a_file, None), (tear_a_file, None)],
)
def test_the_check_sees_what_is_lost_doubled_forgotten_or_torn(
    damage: Callable[[Path], None], said: str | None, tmp_path: Path
) -> None:
    table, told = tmp_path / "T", tmp_path / "told"
    roads.travel(table, told)
    assert roads.faults_of(table, told) == []
    damage(table)
    if said is None:
        with pytest.raises((TxsinkError, duckdb.Error)):
            roads.faults_of(table, told)
    else:
        found = roads.faults_of(table, told)
        assert any(one.startswith(said) for one in found), found


def first_file(table: Path) -> Path:
    return min(table.rglob("*.parquet"))


def test_every_call_has_faults_of_its_own() -> None:
    assert all("EIO" in kinds for kinds in ERRORS.values())
