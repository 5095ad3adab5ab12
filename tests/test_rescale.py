"""Restarts, other numbers of workers, workers that are killed, sources that repeat themselves: each value once."""

from __future__ import annotations

import json
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txsink
from forks import DONE, Forks, forks
from seen import names, rows_of, staging
from txsink.errors import UnavailableError

VALUES, SUBTASKS, STEP = 10_000, 4, 1_000
CRASH_AT = VALUES * 4 // 10


def rows(first: int, count: int) -> pa.Table:
    values = range(first, first + count)
    return pa.table({"id": list(values), "k": [value % 4 for value in values]})


def counted(path: Path) -> Counter[int]:
    """How often each value is there, by the log and by the directory; each lies in the partition that is its own."""
    found = rows_of(path)
    held = txsink.open_table(path).to_arrow()
    assert held["k"].to_pylist() == [value % 4 for value in held["id"].to_pylist()]
    for file in txsink.open_table(path).files():
        assert file.path.startswith(f"k={file.partition['k']}/")
    return Counter(found)


# -- a job that fails at 40 % ---------------------------------------------------------------------------------


class Subtask:
    """One of several that write the same values, each its own share of them a checkpoint."""

    def __init__(self, path: Path, number: int, state: dict[str, Any] | None, position: int) -> None:
        self.sink = txsink.ParquetFileSink(path, f"subtask-{number}", partition_by=["k"])
        self.sink.restore_state(state)
        self.position = position

    def write(self, count: int) -> None:
        self.sink.write(rows(self.position, count))
        self.position += count


@pytest.mark.parametrize("sealed_by", [0, 2, SUBTASKS])
def test_a_stream_that_fails_at_40_percent_has_each_value_once_from_each_subtask(
    sealed_by: int, tmp_path: Path
) -> None:
    """F29, I1: the checkpoint under way was sealed by none, some or all of the subtasks, and completed for nobody."""
    path = tmp_path / "T"
    states: dict[int, Any] = dict.fromkeys(range(SUBTASKS))
    position, checkpoint, has_failed = 0, 0, False
    subtasks = [Subtask(path, number, None, 0) for number in range(SUBTASKS)]
    while position < VALUES:
        for one in subtasks:
            one.write(STEP)
        checkpoint += 1
        if position + STEP > CRASH_AT and not has_failed:
            for one in subtasks[:sealed_by]:
                one.sink.snapshot_state(checkpoint)
            has_failed = True
            checkpoint -= 1
            subtasks = [Subtask(path, number, states[number], position) for number in range(SUBTASKS)]
            continue
        states = {
            number: json.loads(json.dumps(one.sink.snapshot_state(checkpoint))) for number, one in enumerate(subtasks)
        }
        position += STEP
        for one in subtasks:
            one.sink.notify_checkpoint_complete(checkpoint)
    for one in subtasks:
        one.sink.close()
    assert has_failed
    assert counted(path) == dict.fromkeys(range(VALUES), SUBTASKS)
    assert names(staging(path)) == []


def failing(count: int) -> Iterator[pa.RecordBatch]:
    """A task's rows, and its end before the others come."""
    yield from rows(0, count).to_batches(max_chunksize=500)
    raise RuntimeError("the task fails")


def test_a_batch_whose_tasks_fail_at_40_percent_has_each_value_once_from_each_task(tmp_path: Path) -> None:
    """F29, I1: each task fails once; what its first attempt staged is not reported."""
    path = tmp_path / "T"
    with txsink.open_writer(path, "batch", partition_by=["k"]) as sink, sink.begin(0, parts=SUBTASKS) as txn:
        for task in range(SUBTASKS):
            with pytest.raises(RuntimeError):
                txn.stager(task).stage(failing(CRASH_AT))
            txn.add(txn.stager(task).stage(rows(0, VALUES)), task)
    assert counted(path) == dict.fromkeys(range(VALUES), SUBTASKS)
    assert names(staging(path)) == []


# -- other numbers of workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [(1, 2), (2, 1), (1, 3, 2, 1)])
def test_a_job_that_goes_on_with_more_or_fewer_workers_has_each_value_once(
    parallelism: tuple[int, ...], tmp_path: Path
) -> None:
    """F30, I1, I12: each run dies with an epoch prepared, and the next one has another number of workers."""
    path, epoch = tmp_path / "T", 0
    for workers in parallelism:
        sink = txsink.open_writer(path, "job", partition_by=["k"])
        assert sink.last_epoch == (epoch - 1 if epoch else None)
        for _ in range(2):
            txn = sink.begin(epoch, parts=workers)
            for part in range(workers):
                share = STEP // workers + (STEP % workers if part == workers - 1 else 0)
                txn.add(txn.stager(part).stage(rows(epoch * STEP + part * (STEP // workers), share)), part)
            txn.prepare()
            epoch += 1
    txsink.open_writer(path, "job").close()
    assert counted(path) == dict.fromkeys(range(epoch * STEP), 1)


def test_the_states_of_two_subtasks_are_restored_by_one(tmp_path: Path) -> None:
    """F30: whoever is left restores the state of each writer there was, and then writes as one."""
    path = tmp_path / "T"
    before = [Subtask(path, number, None, number * STEP) for number in range(2)]
    for one in before:
        one.write(STEP)
    states = [one.sink.snapshot_state(1) for one in before]  # completed, and the notices are lost
    for one in before:
        one.write(STEP)  # and more, which the source will give again
    gone = Subtask(path, 1, states[1], 0)
    gone.sink.close()
    left = Subtask(path, 0, states[0], 2 * STEP)
    left.write(STEP)
    left.sink.snapshot_state(2)
    left.sink.notify_checkpoint_complete(2)
    left.sink.close()
    assert counted(path) == dict.fromkeys(range(3 * STEP), 1)
    assert names(staging(path)) == []


# -- workers that are killed --------------------------------------------------------------------------------------

CHECKPOINTS, WORKERS, SHARE = 10, 3, 2_000
# Before which row of its share a worker dies at a checkpoint; the last: staged, and nobody is told.
KILLED = {(3, 0): SHARE // 3, (5, 1): SHARE // 2, (5, 2): SHARE}


def test_workers_that_are_killed_after_three_checkpoints_lose_and_double_nothing(tmp_path: Path) -> None:
    """F31, I1, I9: one, then two of three real processes, killed (-9) while they stage; another does their share."""
    path, kills = tmp_path / "T", 0
    with forks() as parent, txsink.open_writer(path, "job", partition_by=["k"]) as sink:
        for epoch in range(CHECKPOINTS):
            with sink.begin(epoch, parts=WORKERS) as txn:
                for worker in range(WORKERS):
                    first = (epoch * WORKERS + worker) * SHARE
                    dies_at = KILLED.get((epoch, worker), -1)
                    if dies_at >= 0:
                        assert staged_by(parent, tmp_path, txn.stager(worker), first, dies_at) is None
                        kills += 1
                    records = staged_by(parent, tmp_path, txn.stager(worker), first, -1)
                    assert records is not None
                    txn.add(records, worker)
    assert kills == len(KILLED)
    assert counted(path) == dict.fromkeys(range(CHECKPOINTS * WORKERS * SHARE), 1)
    assert len(names(staging(path))) > 0, "the killed left nothing, so nothing was swept below"
    txsink.open_writer(path, "job").close()
    assert names(staging(path)) == []


def staged_by(
    parent: Forks, place: Path, stager: txsink.Stager, first: int, dies_at: int
) -> list[dict[str, Any]] | None:
    """What a process of its own has staged; None when it was killed."""
    (place / "stager").write_bytes(pickle.dumps(stager))
    (place / "records").unlink(missing_ok=True)
    status = parent.run("stage", place / "stager", first, SHARE, dies_at, place / "records")
    assert status == (DONE if dies_at < 0 else -signal.SIGKILL)
    return json.loads((place / "records").read_text()) if dies_at < 0 else None


# -- two tasks, two levels ------------------------------------------------------------------------------------------


def test_two_tasks_in_two_levels_of_partitions_keep_what_was_there(tmp_path: Path) -> None:
    """F32: an append keeps old files; directories that are missing are no error, for readers and writers."""
    path = tmp_path / "T"
    columns = ["year", "month"]

    def data(*items: tuple[int, int, int]) -> dict[str, list[int]]:
        ids, years, months = zip(*items, strict=True)
        return {"id": list(ids), "year": list(years), "month": list(months)}

    txsink.write(path, data((1, 2025, 1), (2, 2025, 2), (3, 2026, 1)), writer="w", epoch=0, partition_by=columns)
    old = {file.path for file in txsink.open_table(path).files()}
    with txsink.open_writer(path, "w") as sink, sink.begin(1, parts=2) as txn:
        txn.add(txn.stager(0).stage(data((4, 2025, 1), (5, 2027, 12))), 0)
        txn.add(txn.stager(1).stage(data((6, 2027, 12), (7, 2025, 2))), 1)
    table = txsink.open_table(path)
    assert old < {file.path for file in table.files()}
    assert rows_of(path) == [1, 2, 3, 4, 5, 6, 7]
    found = table.to_arrow(columns=["id", "year", "month"]).sort_by("id").to_pylist()
    assert [(row["year"], row["month"]) for row in found[3:]] == [(2025, 1), (2027, 12), (2027, 12), (2025, 2)]
    # A partition that an overwrite empties takes its directory along, and is written again later.
    with txsink.open_writer(path, "w") as sink:
        with sink.begin(2, mode="overwrite") as txn:
            txn.write(data((8, 2026, 1)))
        for directory in ("year=2025/month=1", "year=2025/month=2", "year=2027/month=12"):
            if (path / directory).exists():
                (path / directory).rmdir()
        assert rows_of(path) == [8]
        with sink.begin(3) as txn:
            txn.write(data((9, 2025, 1)))
    assert rows_of(path) == [8, 9]
    assert txsink.open_table(path).verify(deep=True) == []


# -- a source that repeats itself -----------------------------------------------------------------------------------


class Source:
    """Gives the rows behind its mark, again and again, until the mark is moved; for a while it cannot be."""

    def __init__(self, failures: int) -> None:
        self.mark = 0
        self.failures = failures

    def read(self) -> tuple[int, pa.Table]:
        return self.mark, rows(self.mark * 100, 100)

    def advance(self) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("move the mark", "the source does not answer", "Retry")
        self.mark += 1


@pytest.mark.parametrize("failures", [1, 50])
def test_a_source_whose_marks_fail_after_each_commit_causes_no_second_effect(failures: int, tmp_path: Path) -> None:
    """F33, I5: the epoch is delivered again, by the same process and by ones started anew; it writes nothing."""
    path, source, outcomes = tmp_path / "T", Source(failures), []
    while source.mark < 3:
        epoch, data = source.read()
        outcomes.append(txsink.write(path, data, writer="w", epoch=epoch, partition_by=["k"]).outcome)
        before = names(path)
        try:
            source.advance()
        except UnavailableError:
            source.failures -= source.failures > 40  # some by the same process
            txsink.write(path, data, writer="w", epoch=epoch)
            assert names(path) == before
    assert outcomes.count("committed") == 3
    assert outcomes.count("already-committed") == len(outcomes) - 3 > 0
    assert counted(path) == dict.fromkeys(range(300), 1)
    assert [one.kind for one in txsink.open_table(path).history()].count("commit") == 3
