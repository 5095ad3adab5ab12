"""F21: many processes append to one log at once."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
import pytest

from logs import claim_by, opened
from place import Place
from seen import names
from txsink import layout
from txsink.entry import Claim
from txsink.log import Log
from txsink.sink import stamps
from txsink.store.local import LocalStore

PROCESSES = 16
VERSIONS = 200  # appended by each of them
pa.array([0])  # imports pandas if it is there, which takes as long as all the appends


def append_many(root: str, barrier: Barrier, answer: Connection) -> None:
    """One process: append, with the house work a sink does."""
    log = Log(LocalStore(), root, stamps())
    log.load()
    writer = f"w{multiprocessing.current_process().name}"
    won: list[tuple[int, str]] = []
    barrier.wait(timeout=120)
    for _ in range(VERSIONS):
        entry = log.append(claim_by(writer))
        assert isinstance(entry, Claim)
        won.append((entry.version, entry.write_id))
        log.maintain()
    answer.send(won)


def test_sixteen_processes_append_with_one_winner_a_version_and_none_starves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F21, I7, I14: each slot has one winner, who knows it; the chain is whole; every process gets its share."""
    place = Place(tmp_path / "T")
    opened(place)
    context = multiprocessing.get_context("forkserver")
    # All of them begin as copies of a process that has imported everything.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    context.set_forkserver_preload([__name__])
    barrier = context.Barrier(PROCESSES)
    answers, running = [], []
    for number in range(PROCESSES):
        answer, told = context.Pipe(duplex=False)
        process = context.Process(target=append_many, args=(str(place.path), barrier, told), name=str(number))
        process.start()
        told.close()  # so that a process that dies ends the wait for its answer
        answers.append(answer)
        running.append(process)
    try:
        won = [answer.recv() for answer in answers]
    finally:
        for process in running:
            process.join()
    versions = Counter(version for mine in won for version, _ in mine)
    found = opened(place)
    last = PROCESSES * VERSIONS
    assert found.state.version == last
    assert versions == Counter(range(1, last + 1))
    assert {len(mine) for mine in won} == {VERSIONS}
    # Read from the first entry on: the chain, and whose entry each slot holds.
    (place.path / layout.HEAD_PATH).unlink()
    for file in (place.path / layout.STATE_DIRECTORY).iterdir():
        file.unlink()
    assert opened(place).state == found.state
    assert {(entry.version, entry.write_id) for entry in found.entries(1, last)} == {
        one for mine in won for one in mine
    }
    assert not [name for name in names(place.path) if layout.is_temporary(name)]
