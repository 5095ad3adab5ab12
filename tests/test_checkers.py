"""The checkers themselves: every kind of violation they know is reported of a disk that is wrong in that way (I1-I14).

A whole disk is made by the engine and then altered by hand in one place. That each kind has its case is a test, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crash
import crash_races
from broken import rewrite
from crash import Explorer, Moment, crash_state
from crash_races import Act, two_epochs
from crash_scenarios import SCENARIOS, Scenario, parquet_of
from naive_sinks import entry_of
from test_controls import VARIANTS
from txsink import paths
from txsink.errors import CorruptError, UnavailableError
from txsink.log import entry as entries, expiry
from txsink.log.entry import Abort, AnyEntry, Claim, Commit, Prepare, Publishing
from txsink.testing.crash_book import ROOT, STAGING, Files, Told, Truth, Violation, book_of, slots_of
from txsink.testing.crash_check import check_healed, check_log_reader, check_same, check_wounded
from txsink.testing.crash_judge import heal, read_log
from txsink.testing.crash_world import World
from txsink.testing.simdisk import SimDisk

Check = Callable[[pytest.MonkeyPatch], object]
CASES: dict[str, Check] = {}
FIRST = SCENARIOS["first_open"]


def case(kind: str) -> Callable[[Check], Check]:
    """What must be reported as this kind."""

    def register(check: Check) -> Check:
        CASES[kind] = check
        return check

    return register


# -- disks ------------------------------------------------------------------------------------------------


def disk_after(run: Callable[[World], object], life: int = 0) -> tuple[Files, Truth]:
    """The files that a program leaves, and what it was told."""
    world = World(SimDisk(), life=life)
    run(world)
    return world.disk.files(), world.truth


def one_pending(world: World) -> None:
    program = world.open()
    program.commit(0)
    program.prepare(1)


def one_replaced(world: World) -> None:
    program = world.open()
    program.commit(0)
    program.commit(1, (5, 6), mode="overwrite")


def committed_file(files: Files) -> str:
    return next(path for path in files if path.startswith(f"{ROOT}/part-"))


def slot(version: int) -> str:
    return f"{ROOT}/{paths.entry_path(version)}"


def forge(disk: Files, kind: type[AnyEntry], **fields: Any) -> None:
    """One more entry, in the chain, that a correct run would not have appended."""
    raw = slots_of(disk)
    log = [entries.decode(raw[at], at) for at in range(len(raw))]
    disk[slot(len(log))] = entries.encode(entry_of(kind, log, raw[len(log) - 1], "ff", **fields))


def last(files: Files, kind: type[AnyEntry]) -> Any:
    raw = slots_of(files)
    return [one for at in sorted(raw) if isinstance(one := entries.decode(raw[at], at), kind)][-1]


def by(entry: Any) -> dict[str, Any]:
    """The run that holds the writer."""
    return {"writer": entry.writer, "run": entry.run, "generation": entry.generation}


# -- the log ----------------------------------------------------------------------------------------------


@case("I13 lost entry")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    del files[slot(2)]
    check_wounded(files, truth)


@case("I13 torn entry")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[slot(2)] = files[slot(2)][:40]
    check_wounded(files, truth)


@case("I7 broken chain")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[slot(2)] = disk_after(two_epochs, life=7)[0][slot(2)]
    check_wounded(files, truth)


@case("I8 aborted while it removed")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(crash_races.a_pending_overwrite)
    prepare = last(files, Prepare)
    for kind in (Publishing, Abort):
        forge(files, kind, **by(prepare), epoch=prepare.epoch, prepared=prepare.version)
    check_wounded(files, truth)


@case("I10 generation")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    forge(files, Claim, writer="w", run="abcd", generation=7, retires=())
    check_wounded(files, truth)


@case("I10 retired run wrote")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(one_pending)
    prepare = last(files, Prepare)
    forge(files, Claim, writer="w", run="abcd", generation=prepare.generation + 1, retires=())
    forge(files, Commit, **by(prepare), epoch=prepare.epoch, prepared=prepare.version)
    check_wounded(files, truth)


@case("I4 epochs do not grow")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    fields = {"claims": False, "mode": "append", "files": (), "removes": (), "columns": (), "metadata": {}}
    forge(files, Prepare, **by(last(files, Prepare)), epoch=0, **fields)
    check_wounded(files, truth)


@case("I5 committed twice")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    done = last(files, Commit)
    forge(files, Commit, **by(done), epoch=done.epoch, prepared=done.prepared)
    check_wounded(files, truth)


@case("I7 made of a lost entry")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[f"{ROOT}/{paths.summary_path(999)}"] = b"{}"
    check_wounded(files, truth)


def told(what: str) -> Check:
    def check(_: pytest.MonkeyPatch) -> None:
        files, truth = disk_after(two_epochs)
        truth.told.add(Told(what, "w", 77))
        check_wounded(files, truth)

    return check


for _what in ("prepared", "committed", "rewound", "aborted"):
    CASES[f"I3 {_what} was told"] = told(_what)


# -- the files --------------------------------------------------------------------------------------------


@case("I6 damaged file")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[f"{ROOT}/x.parquet"] = b"PAR1"
    check_wounded(files, truth)


@case("I6 committed file is missing")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    del files[committed_file(files)]
    check_wounded(files, truth)


@case("I6 committed file is another")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[committed_file(files)] = parquet_of({"id": [0, 1], "x": [0, 1]})
    check_wounded(files, truth)


@case("I8 replaced file is missing")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(one_replaced)
    del files[next(path for path in files if path.endswith(".removed"))]
    check_wounded(files, truth)


@case("I8 replaced file is another")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(one_replaced)
    files[next(path for path in files if path.endswith(".removed"))] = parquet_of({"id": [3]})
    check_wounded(files, truth)


@case("I8 pending file")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(one_pending)
    del files[next(path for path in files if path.startswith(STAGING))]
    check_wounded(files, truth)


@case("I1 seen twice")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[f"{ROOT}/copy.parquet"] = files[committed_file(files)]
    check_wounded(files, truth)


@case("I1 rows lost")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    path = committed_file(files)
    files[f"{ROOT}/{paths.removed_path(1, path.removeprefix(f'{ROOT}/'))}"] = files.pop(path)
    check_wounded(files, truth)


@case("I1 rows not committed")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    files[f"{ROOT}/x.parquet"] = parquet_of({"id": [4711]})
    check_wounded(files, truth)


# -- readers and recoveries -------------------------------------------------------------------------------


@case("I2 log reader")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    book = check_wounded(files, truth)
    check_log_reader(files, dict(list(book.files.items())[1:]), book, truth)


@case("I1 log reader")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    book = check_wounded(files, truth)
    files[committed_file(files)] = parquet_of({"id": [4711]})
    check_log_reader(files, book.files, book, truth)


@case("I13 reader refused")
def _(_: pytest.MonkeyPatch) -> None:
    world = World(SimDisk())
    two_epochs(world)
    book = check_wounded(world.disk.files(), world.truth)
    world.store().delete(slot(0))
    world.store().delete(slot(2))
    read_log(world, world.disk.files(), book)


def healed(run: Callable[[World], object], alter: Callable[[Files], object]) -> None:
    files, truth = disk_after(run)
    before, book = dict(files), book_of(files, truth)
    alter(files)
    check_healed(files, truth, before, book)


def publish(files: Files) -> None:
    path = next(path for path in files if path.startswith(STAGING))
    files[f"{ROOT}/{path.rpartition('/')[2]}"] = files.pop(path)


@case("I1 directory reader")
def _(_: pytest.MonkeyPatch) -> None:
    healed(one_pending, publish)


@case("I9 unresolved")
def _(_: pytest.MonkeyPatch) -> None:
    healed(one_pending, lambda _: None)


@case("I9 staged left-over")
def _(_: pytest.MonkeyPatch) -> None:
    healed(two_epochs, lambda files: files.update({f"{STAGING}/x": b""}))


@case("I9 temporary left-over")
def _(_: pytest.MonkeyPatch) -> None:
    healed(two_epochs, lambda files: files.update({paths.temporary_path(slot(99), "ff"): b""}))


@case("I7 entry changed")
def _(_: pytest.MonkeyPatch) -> None:
    files, truth = disk_after(two_epochs)
    before = {**files, slot(1): files[slot(2)]}
    check_healed(files, truth, before, book_of(files, truth))


@case("I12 second recovery")
def _(_: pytest.MonkeyPatch) -> None:
    files, _truth = disk_after(two_epochs)
    check_same({**files, f"{ROOT}/x": b""}, files)


# -- work that is refused ---------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> None:
    raise UnavailableError("test", "it is refused", "Do not")


@case("I14 work refused")
def _(_: pytest.MonkeyPatch) -> None:
    Explorer(Scenario("refused", refuse)).explore()


@case("I14 recovery refused")
def _(_: pytest.MonkeyPatch) -> None:
    world = World(SimDisk())
    two_epochs(world)
    world.store().delete(slot(2))
    world.store().delete(slot(0))
    heal(world, FIRST.writers, expires=False)


@case("I14 expiry refused")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expiry, "expire", refuse)
    heal(World(SimDisk()), FIRST.writers, expires=True)


@case("I14 no further epoch")
def _(patch: pytest.MonkeyPatch) -> None:
    world = World(SimDisk())
    world.open()
    patch.setattr("txsink.testing.crash_world.Program.commit", refuse)
    crash.judge(FIRST, Moment(world.disk.after_kill(), world.truth), 1, is_thorough=True)


@case("I6 damage was found")
def _(_: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any) -> None:
        raise CorruptError("test", "it is damaged", "Do not")

    list(crash_races.races(Act(two_epochs, {}, damaged), crash_races.appends))


@case("no crash")
def _(_: pytest.MonkeyPatch) -> None:
    crash_state(FIRST, 10_000, "before")


def variant(name: str) -> Check:
    def check(patch: pytest.MonkeyPatch) -> None:
        for target, swaps in VARIANTS[name].broken:
            rewrite(patch, target, *swaps)
        VARIANTS[name].search()

    return check


CASES["F14 overwritten"] = variant("publish overwrites")
CASES["I3 replaced content"] = variant("name durable before return, else a power cut brings")


# -- the tests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CASES)
def test_the_checkers_report_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Violation) as found:
        CASES[kind](monkeypatch)
    assert found.value.kind == kind, found.value


def kinds_known() -> set[str]:
    """Every kind that stands in a checker, spelled out where it is put together."""
    tests = Path(__file__).parent
    # Those of `crash_delta` are tried in test_delta_checkers.py.
    everywhere = [*tests.glob("crash*.py"), *tests.parent.glob("txsink/testing/crash*.py")]
    paths = [path for path in everywhere if path.name != "crash_delta.py"]
    texts = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    found = {kind for text in texts for kind in re.findall(r'Violation\(\s*f?"([^"]+)"', text)}
    told = {f"I3 {what} was told" for what in ("prepared", "committed", "rewound", "aborted")}
    files = {f"{what} is {how}" for what in ("I6 committed file", "I8 replaced file") for how in ("missing", "another")}
    assert {"I3 {told.what} was told", "{kind} is missing", "{kind} is another"} <= found, "they are put together anew"
    return {kind for kind in found if "{" not in kind} | told | files


def test_every_kind_of_violation_has_its_case() -> None:
    assert kinds_known() == set(CASES)
    assert len(CASES) >= 35
