"""The checker of Delta tables: every kind of violation it knows is reported of a table that is wrong in that way.

A whole table is made by the engine and then altered by hand in one place (I1-I9).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txsink import paths
from txsink.testing.crash_book import ROOT, Files, Truth, Violation, book_of
from txsink.testing.crash_check import check_healed, check_wounded
from txsink.testing.crash_delta import check_delta_healed, check_delta_reader
from txsink.testing.crash_world import World
from txsink.testing.simdisk import SimDisk

Actions = list[dict[str, Any]]


def table(*, is_pending: bool = False, aborted: bool = False) -> tuple[Files, Truth]:
    """A Delta table of two partitions: epochs 0 and 1 are in it, 2 perhaps pending, 3 perhaps aborted."""
    world = World(SimDisk(), table_layout="delta")
    program = world.open(partition_by=["day"])
    program.commit(0, (0, 1))
    program.commit(1, (2,))
    if is_pending or aborted:
        program.prepare(2, (4,))
    if aborted:
        program.abort(2)
    if not is_pending:
        program.sink.close()
    return world.disk.files(), world.truth


def at(version: int) -> str:
    return f"{ROOT}/{paths.delta_commit_path(version)}"


def altered(files: Files, version: int, change: Callable[[Actions], Actions]) -> None:
    """Another content of one commit."""
    actions = [json.loads(line) for line in files[at(version)].splitlines()]
    files[at(version)] = b"".join(json.dumps(one).encode() + b"\n" for one in change(actions))


def of(kind: str, actions: Actions) -> dict[str, Any]:
    """The body of the last action of a kind."""
    return [one[kind] for one in actions if kind in one][-1]


def without(kind: str, **fields: Any) -> Callable[[Actions], Actions]:
    """The actions but those of a kind that have these fields."""
    return lambda found: [
        one for one in found if kind not in one or any(one[kind].get(name) != value for name, value in fields.items())
    ]


def with_body(kind: str, **fields: Any) -> Callable[[Actions], Actions]:
    """The last action of a kind with other fields."""

    def change(found: Actions) -> Actions:
        of(kind, found).update(fields)
        return found

    return change


def active(files: Files) -> str:
    return next(path for path in files if path.endswith(".parquet") and path.startswith(f"{ROOT}/day="))


def wounded(change: Callable[[Files], object], *, is_pending: bool = False, aborted: bool = False) -> None:
    files, truth = table(is_pending=is_pending, aborted=aborted)
    change(files)
    check_wounded(files, truth)


def healed(change: Callable[[Files], object], *, is_pending: bool = False) -> None:
    """The change is made by the recovery, so to speak."""
    before, truth = table(is_pending=is_pending)
    files = dict(before)
    change(files)
    check_healed(files, truth, before, book_of(before, truth))


def more(version: int, *actions: dict[str, Any]) -> Callable[[Files], None]:
    """One more commit."""
    info = {"commitInfo": {"txnId": f"by hand {version}"}}

    def change(files: Files) -> None:
        files[at(version)] = b"".join(json.dumps(one).encode() + b"\n" for one in (info, *actions))

    return change


def txn(app: str, version: int, **fields: Any) -> dict[str, Any]:
    return {"txn": {"appId": app, "version": version, **fields}}


def prepared(files: Files, epoch: int) -> int:
    """The version of the prepare entry of an epoch."""
    start = f"{ROOT}/{paths.LOG_DIRECTORY}/"
    entries = [json.loads(data) for path, data in files.items() if path.startswith(start)]
    return next(one["version"] for one in entries if one["kind"] == "prepare" and one["epoch"] == epoch)


def first_files(files: Files) -> list[dict[str, Any]]:
    return [one["add"] for line in files[at(0)].splitlines() if "add" in (one := json.loads(line))]


def first_id(files: Files) -> str:
    return str(json.loads(files[at(0)].splitlines()[0])["commitInfo"]["txnId"])


def _added_by_hand(files: Files) -> None:
    """A file once more under another name."""
    body = first_files(files)[0]
    path = body["path"].replace("part-0", "part-9")
    files[f"{ROOT}/{path}"] = files[f"{ROOT}/{body['path']}"]
    more(2, {"add": {**body, "path": path}})(files)


def _published_and_not_committed() -> None:
    """Delta's log has what our log still waits for: right at a crash, wrong after a recovery."""
    files, truth = table(is_pending=True)
    more(2, txn("txsink:w", 2 * prepared(files, 2)))(files)
    check_delta_healed(files, truth, files, book_of(files, truth))


CASES: dict[str, Callable[[], object]] = {
    "I13 strange file in Delta's log": lambda: wounded(lambda f: f.update({f"{ROOT}/_delta_log/x": b"x"})),
    "I13 gap in Delta's log": lambda: wounded(lambda f: f.pop(at(0))),
    "I13 Delta commit": lambda: wounded(lambda f: altered(f, 1, lambda found: found[1:])),
    "I13 torn Delta commit": lambda: wounded(lambda f: f.update({at(1): f[at(1)][:-3]})),
    "I5 one commit twice in Delta's log": lambda: wounded(
        lambda f: altered(f, 1, with_body("commitInfo", txnId=first_id(f)))
    ),
    "I1 removed twice": lambda: wounded(more(2, {"remove": {"path": "day=a/gone.parquet"}})),
    "I1 added twice": lambda: wounded(lambda f: more(2, {"add": first_files(f)[0]})(f)),
    "I5 Delta may forget an epoch": lambda: wounded(lambda f: altered(f, 1, with_body("txn", lastUpdated=1))),
    "I5 resolved twice": lambda: wounded(lambda f: more(2, txn("txsink:w", 2 * prepared(f, 1)))(f)),
    "I1 rows lost": lambda: wounded(lambda f: more(2, {"remove": {"path": first_files(f)[0]["path"]}})(f)),
    "I1 rows not committed": lambda: wounded(_added_by_hand),
    "I8 pending file": lambda: wounded(
        lambda f: f.pop(next(path for path in f if "/part-2-" in path)), is_pending=True
    ),
    "I6 published what was never prepared": lambda: wounded(more(2, txn("txsink:w", 2_000))),
    "I1 published and aborted": lambda: wounded(
        lambda f: altered(f, 2, lambda found: [*found[:-1], txn("txsink:w", 2 * prepared(f, 2))]), aborted=True
    ),
    "I1 poisoned and committed": lambda: wounded(
        lambda f: altered(f, 1, lambda found: [*without("txn")(found), txn("txsink:w", 2 * prepared(f, 1) + 1)])
    ),
    "I6 committed and not in Delta's log": lambda: wounded(lambda f: f.pop(at(1))),
    "I6 active file is missing": lambda: wounded(lambda f: f.pop(active(f))),
    "I6 active file is another": lambda: wounded(lambda f: f.update({active(f): f[active(f)] + b"x"})),
    "I6 statistics": lambda: wounded(
        lambda f: altered(f, 1, with_body("add", stats='{"numRecords":9,"minValues":{},"maxValues":{},"nullCount":{}}'))
    ),
    "I6 partition values": lambda: wounded(lambda f: altered(f, 1, with_body("add", partitionValues={"day": "q"}))),
    "I7 Delta commit changed": lambda: healed(lambda f: altered(f, 1, with_body("commitInfo", operation="other"))),
    "I5 epoch in Delta's log": lambda: healed(more(2, txn("w", 7))),
    "I9 published and not committed": _published_and_not_committed,
    "I9 orphan in the table": lambda: healed(lambda f: f.update({f"{ROOT}/day=a/left": b"x"})),
    "I9 mark of a run that is over": lambda: healed(
        lambda f: f.update({f"{ROOT}/{paths.mark_path('w', 'former')}": b"x"})
    ),
    "I2 Delta reader": lambda: check_delta_reader(table()[0], {"day=a/another.parquet"}),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_checker_reports_it(kind: str) -> None:
    with pytest.raises(Violation) as found:
        CASES[kind]()
    assert found.value.kind == kind, found.value


def test_nothing_is_reported_of_a_table_that_is_right() -> None:
    wounded(lambda _: None)
    wounded(lambda _: None, is_pending=True)
    wounded(lambda _: None, aborted=True)
    healed(lambda _: None)


def test_every_kind_of_violation_has_its_case() -> None:
    text = (Path(__file__).parents[1] / "txsink/testing/crash_delta.py").read_text(encoding="utf-8")
    known = set(re.findall(r'Violation\(\s*f?"([^"]+)"', text))
    # An entry that names a version of Delta's log too early cannot be forged: its digest is in the chain.
    assert known - {"I6 committed elsewhere"} == set(CASES)
