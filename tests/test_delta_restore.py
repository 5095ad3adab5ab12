"""RESTORE by another program brings back what our log took away: no rewind leaves it, no replay doubles it (I1, I5)."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from place import Place
from txsink.cli import commands
from txsink.errors import ConflictError, TxsinkError
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.opening import open_sink
from txsink.writing.writer import Writer


def table_of(place: Place) -> Any:
    return deltalake.DeltaTable(str(place.path))


def ids(place: Place) -> list[int]:
    return sorted(pa.table(table_of(place).to_pyarrow_table())["id"].to_pylist())


def own_ids(place: Place) -> list[int]:
    return sorted(place.table().to_arrow()["id"].to_pylist())


def commit(sink: Writer, epoch: int, *rows: int, **options: Any) -> None:
    with sink.begin(epoch, **options) as txn:
        txn.write({"id": list(rows)})


def lived(place: Place, *epochs: int, **options: Any) -> Writer:
    sink = place.sink("a", layout="delta", **options)
    for epoch in epochs:
        commit(sink, epoch, epoch)
    return sink


def restore(place: Place, version: int) -> None:
    table_of(place).restore(version)


def overwrite_and_restore(place: Place) -> None:
    before = table_of(place).version()
    with place.sink("b") as other:
        commit(other, 1, 100, mode="overwrite")
    restore(place, before)


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["", "checkpoint"])
@pytest.mark.parametrize("by", [None, ["day"]], ids=["flat", "partitioned"])
def test_a_rewind_takes_away_what_an_overwrite_had_replaced_and_a_restore_brought_back(
    place: Place, by: list[str] | None, *, is_checkpointed: bool
) -> None:
    sink = place.sink("a", layout="delta", partition_by=by)
    for epoch in (1, 2):
        with sink.begin(epoch) as txn:
            txn.write({"id": [epoch], "day": [f"a b%{epoch}"]})
    before = table_of(place).version()
    with place.sink("b") as other, other.begin(1, mode="overwrite") as txn:
        txn.write({"id": [100], "day": ["x"]})
    restore(place, before)
    if is_checkpointed:
        table_of(place).create_checkpoint()
    sink = place.sink("a", recover=False)
    assert sink.recover(1, "rewind").rewound_from == 2
    assert ids(place) == own_ids(place) == [1]
    with sink.begin(2) as txn:
        txn.write({"id": [2], "day": ["y"]})
    assert ids(place) == own_ids(place) == [1, 2]
    assert place.table().verify() == []


def test_a_rewind_across_a_rewind_takes_away_both_files_of_an_epoch(place: Place) -> None:
    sink = lived(place, 1, 2)
    old = table_of(place).version()
    sink.recover(1, "rewind")
    commit(sink, 2, 2)
    restore(place, old)
    overwrite_and_restore(place)
    assert sink.recover(1, "rewind").rewound_from == 2
    commit(sink, 2, 2)
    assert ids(place) == own_ids(place) == [1, 2]
    assert place.table().verify() == []


def test_a_rewind_of_a_compacted_file_that_was_replaced_and_came_back_is_a_conflict(place: Place) -> None:
    """Our log has the files replaced, and their rows are in one that it never named."""
    sink = lived(place, 1, 2)
    table_of(place).optimize.compact()
    overwrite_and_restore(place)
    assert ids(place) == [1, 2]
    with pytest.raises(ConflictError, match="rows of epochs after 1"):
        sink.recover(1, "rewind")
    sink.abort(1)
    commit(sink, 3, 3)
    assert ids(place) == own_ids(place) == [1, 2, 3]


def test_what_another_program_appended_meanwhile_stays(place: Place) -> None:
    sink = lived(place, 1, 2)
    deltalake.write_deltalake(str(place.path), pa.table({"id": [7]}), mode="append")
    commit(sink, 3, 3)
    overwrite_and_restore(place)
    sink.recover(1, "rewind")
    assert ids(place) == own_ids(place) == [1, 7]


# -- a RESTORE after the rewind -----------------------------------------------------------------------------


def rewound_and_restored(place: Place) -> Writer:
    sink = lived(place, 1, 2, 3)
    before = table_of(place).version()
    sink.recover(1, "rewind")
    restore(place, before)
    return sink


@pytest.mark.parametrize("epoch", [2, 4])
def test_a_replay_of_what_a_restore_brought_back_is_refused_until_it_is_taken_away(place: Place, epoch: int) -> None:
    sink = rewound_and_restored(place)
    assert ids(place) == [1, 2, 3]
    assert all("was taken back" in problem.what for problem in place.table().verify())
    assert len(place.table().verify()) == 2
    with pytest.raises(ConflictError, match="was taken back") as found:
        commit(sink, epoch, epoch)
    assert "up_to=1, on_newer='rewind'" in found.value.advice
    assert (sink.pending, ids(place)) == ([], [1, 2, 3])
    assert sink.recover(up_to=1, on_newer="rewind").rewound_from == 3
    assert place.table().verify() == []
    commit(sink, epoch, epoch)
    assert ids(place) == own_ids(place) == [1, epoch]
    assert place.table().verify() == []
    assert sink.recover(up_to=epoch, on_newer="rewind").rewound_from is None


def test_a_replay_that_was_prepared_before_the_restore_is_refused_at_its_commit(place: Place) -> None:
    sink = lived(place, 1, 2)
    before = table_of(place).version()
    sink.recover(1, "rewind")
    txn = sink.begin(2)
    txn.write({"id": [2]})
    txn.prepare()
    restore(place, before)
    with pytest.raises(ConflictError, match="was taken back"):
        sink.commit(2)
    with pytest.raises(ConflictError, match="was taken back"):
        place.sink("a")
    late = place.sink("a", recover=False)
    late.recover(up_to=1, on_newer="rewind")
    commit(late, 2, 2)
    assert ids(place) == own_ids(place) == [1, 2]
    assert place.table().verify() == []


def test_an_overwrite_replaces_what_came_back_and_is_not_refused(place: Place) -> None:
    sink = rewound_and_restored(place)
    commit(sink, 2, 7, mode="overwrite")
    assert ids(place) == own_ids(place) == [7]


def test_opening_tells_of_what_came_back(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    rewound_and_restored(place).close()
    place.sink("a").close()
    assert "brought back" in caplog.text
    caplog.clear()
    place.sink("b").close()
    assert caplog.text == ""


def test_what_came_back_compacted_is_refused_too(place: Place) -> None:
    sink = rewound_and_restored(place)
    table_of(place).optimize.compact()
    for _ in range(2):
        with pytest.raises(ConflictError, match="rows of epochs after 1"):
            commit(sink, 2, 2)
        with pytest.raises(ConflictError, match="rows of epochs after 1"):
            sink.recover(1, "rewind")
        sink.abort(1)
    table_of(place).delete("id > 1")
    with pytest.raises(ConflictError, match="rows of epochs after 1"):
        commit(sink, 2, 2)
    commit(sink, 2, 1, 2, mode="overwrite")
    assert ids(place) == own_ids(place) == [1, 2]


def test_rows_that_are_there_twice_are_told_by_verify_and_a_rewind_mends_them(place: Place) -> None:
    sink = lived(place, 1, 2)
    (body,) = [
        json.loads(line)["add"]
        for line in (place.path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    sink.recover(1, "rewind")
    commit(sink, 2, 2)
    version = table_of(place).version() + 1
    (place.path / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"add": body}) + "\n")
    assert ids(place) == [1, 2, 2]
    (problem,) = place.table().verify()
    assert problem.where == body["path"]
    assert "twice" in problem.what
    sink.recover(1, "rewind")
    commit(sink, 2, 2)
    assert ids(place) == own_ids(place) == [1, 2]
    assert place.table().verify() == []


def test_a_table_that_was_restored_for_good_is_no_problem(place: Place) -> None:
    sink = lived(place, 1, 2)
    before = table_of(place).version()
    sink.recover(1, "rewind")
    for epoch in (2, 3):
        commit(sink, epoch, epoch)
    restore(place, before)
    assert place.table().verify() == []
    commit(sink, 4, 4)
    assert ids(place) == own_ids(place) == [1, 2, 4]
    assert place.table().verify() == []


def test_the_command_line_plans_and_does_the_rewind_that_the_error_advises(place: Place) -> None:
    rewound_and_restored(place).close()
    for options in ({"up_to": 1, "on_newer": "skip"}, {"up_to": None, "on_newer": "rewind"}):
        assert commands.recover(str(place.path), "a", **options, yes=False).data["plan"] == []
    (step,) = commands.recover(str(place.path), "a", 1, "rewind", yes=True).data["plan"]
    assert (step["files"], step["rows"]) == (2, 2)
    assert "brought back" in step["action"]
    assert ids(place) == [1]


@pytest.mark.parametrize("deed", ["rewind", "replay"])
def test_a_restore_at_any_moment_of_a_rewind_or_a_replay_doubles_nothing(place: Place, deed: str) -> None:
    parent, conflicts = place.path.parent, 0
    for call in range(1, 200):
        place.path = parent / f"t{call}"
        store = FaultyStore(LocalStore())
        sink = open_sink(store, place.stamps, str(place.path), "a", {"layout": "delta"})
        for epoch in (1, 2):
            commit(sink, epoch, epoch)
        before = table_of(place).version()
        with place.sink("b") as other:
            commit(other, 1, 100, mode="overwrite")
        if deed == "replay":
            sink.recover(1, "rewind")
        store.plan.append(delay(store.calls + call, partial(restore, place, before)))
        for _ in range(2):
            try:
                sink.recover(1, "rewind")
                commit(sink, 2, 2)
                break
            except ConflictError:
                conflicts += 1
        if not store.delivered:
            assert call > 8
            assert conflicts > 0
            return
        found = ids(place)
        # A RESTORE after the replay takes its rows as they were then.
        assert found in ([1, 2], [2, 100]), (call, found)
        assert sink.last_epoch == 2
        assert place.table().verify() == []
        sink.close()


# -- any order ----------------------------------------------------------------------------------------------

SINGLE = ("commit", "commit", "restore", "rewind", "overwrite", "append", "sweep", "open")
# What the class of bugs is made of, which single deeds seldom come to.
IN_A_ROW = (("rewind", "restore", "commit"), ("overwrite", "restore", "rewind", "commit"), ("commit", "commit"))
DEEDS = (*((one,) for one in SINGLE), *IN_A_ROW)
SEQUENCES, DEEDS_EACH = 40, 6


class Streams:
    """Two writers and another program, beside a dictionary of what has to be there: a file's number and its row."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sink = place.sink("a", layout="delta")
        self.there: dict[int, int] = {}
        self.live: dict[int, int] = {}  # by our log
        self.epochs: dict[int, int] = {}  # of the first writer's files
        self.snapshots: dict[int, dict[int, int]] = {}
        self.last = -1
        self.refused = 0
        self.number = 0
        self.act("commit", random.Random(0))

    def act(self, deed: str, chance: random.Random) -> None:
        getattr(self, f"do_{deed}")(chance)
        self.snapshots[table_of(self.place).version()] = dict(self.there)

    def _came(self, row: int) -> int:
        self.number += 1
        self.there[self.number] = self.live[self.number] = row
        return self.number

    def do_commit(self, _: random.Random) -> None:
        epoch = self.last + 1
        if any(self.epochs.get(number, -1) > self.last for number in self.there):
            with pytest.raises(ConflictError, match="was taken back"):
                commit(self.sink, epoch, epoch)
            self.refused += 1
            return
        commit(self.sink, epoch, epoch)
        self.epochs[self._came(epoch)] = self.last = epoch

    def do_overwrite(self, _: random.Random) -> None:
        self.there, self.live = {}, {}
        with self.place.sink("b") as other:
            number = self._came(0)
            self.there[number] = self.live[number] = 1000 + number
            commit(other, number, 1000 + number, mode="overwrite")

    def do_append(self, _: random.Random) -> None:
        self.number += 1
        self.there[self.number] = 1000 + self.number
        rows = pa.table({"id": pa.array([1000 + self.number], pa.int64())})
        deltalake.write_deltalake(str(self.place.path), rows, mode="append")

    def do_restore(self, chance: random.Random) -> None:
        version = -min(int(chance.expovariate(0.5)) + 2, len(self.snapshots))
        version = sorted(self.snapshots)[version]
        if version == table_of(self.place).version():
            return
        restore(self.place, version)
        self.there = dict(self.snapshots[version])

    def do_rewind(self, chance: random.Random) -> None:
        epoch = chance.randint(max(0, self.last - 2), self.last)
        doomed = {number for number, of in self.epochs.items() if of > epoch}
        if epoch < self.last and doomed & set(self.live) - set(self.there):
            with pytest.raises(ConflictError, match="is not in the Delta table any more"):
                self.sink.recover(epoch, "rewind")
            self.sink.abort(epoch)
            self.refused += 1
            return
        self.sink.recover(epoch, "rewind")
        for number in doomed:
            self.there.pop(number, None)
            self.live.pop(number, None)
        self.last = epoch

    def do_sweep(self, _: random.Random) -> None:
        self.sink.sweep()

    def do_open(self, _: random.Random) -> None:
        self.sink.close()
        self.sink = self.place.sink("a")


def test_no_order_of_commits_overwrites_restores_and_rewinds_loses_or_doubles_a_row(tmp_path: Path) -> None:
    refused = came_back = 0
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        streams = Streams(Place(tmp_path / f"t{seed}"))
        deeds = [deed for _ in range(DEEDS_EACH) for deed in chance.choice(DEEDS)]
        for at, deed in enumerate(deeds):
            try:
                streams.act(deed, chance)
            except TxsinkError as error:
                raise AssertionError((seed, deeds[: at + 1])) from error
            found, expected = ids(streams.place), sorted(streams.there.values())
            assert found == expected == own_ids(streams.place), (seed, deeds[: at + 1], found, expected)
            back = [number for number in streams.there if streams.epochs.get(number, -1) > streams.last]
            told = streams.place.table().verify()
            assert len(told) == len(back), (seed, deeds[: at + 1], told)
            assert len(found) == len(set(found)), (seed, deeds[: at + 1], found)
            came_back += len(back)
        streams.sink.close()
        refused += streams.refused
    print(f"\n{SEQUENCES} sequences: {refused} refused, {came_back} times a file had come back")
    assert refused > 0 < came_back
