"""Nodes of HDFS that are killed in the middle of everything, and started again: every row once, nothing told is lost.

A writer stands still before each store call of its life, one writer for each call: opening over what a dead run left,
which recovers that; staging, preparing, publishing, committing. All stand there at once; then nodes are killed (-9).

Beside the tests on built servers, as it waits most of the time; it needs none of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

import txsink
from hdfs_cluster import Cluster, Node
from tally import Tally
from test_store_hdfs import ids_of, left_behind
from txsink.environment import stamps
from txsink.errors import TxsinkError
from txsink.protocol.sweeping import temporaries
from txsink.store.opening import open_store
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.opening import open_sink

pytestmark = pytest.mark.stores
SECONDS_MAX = 180
COUNT = itertools.count(1)
HASTY: dict[str, object] = {"deadline_seconds": 5}


class Life(threading.Thread):
    """A writer that stands still before one of its store calls until it may go on."""

    def __init__(self, uri: str, call: int) -> None:
        super().__init__(daemon=True)
        self.uri, self.call = uri, call
        self.stands, self.may_go_on = threading.Event(), threading.Event()
        self.acknowledged: list[int] = []
        self.error: BaseException | None = None
        self.verb = ""

    def run(self) -> None:
        store = FaultyStore(open_store(self.uri, HASTY), [delay(self.call, self.stand)])
        try:
            with open_sink(store, stamps(), self.uri, "w", {"row_group_rows": 2}) as sink:
                self.acknowledged.append(0)  # opening has recovered it
                with sink.begin(1) as txn:
                    txn.write({"id": [2, 3]})
                self.acknowledged.append(1)
        except BaseException as error:  # noqa: BLE001 -- looked at by the test
            self.error = error
        finally:
            self.verb = store.trace[self.call - 1][0] if len(store.trace) >= self.call else ""
            self.stands.set()

    def stand(self) -> None:
        self.stands.set()
        if not self.may_go_on.wait(SECONDS_MAX):
            raise TimeoutError


class Fate(NamedTuple):
    """Which nodes are killed, and whether they run again when the writers go on."""

    nodes: Callable[[Cluster], list[Node]]
    are_back: bool


FATES = {
    "the NameNode is away": Fate(lambda cluster: [cluster.namenode], are_back=False),
    "the NameNode was away": Fate(lambda cluster: [cluster.namenode], are_back=True),
    "the DataNodes are away": Fate(lambda cluster: cluster.datanodes, are_back=False),
    "a DataNode was away": Fate(lambda cluster: cluster.datanodes[:1], are_back=True),
}


def left_pending(cluster: Cluster, root: str) -> str:
    """A table whose epoch 0 was prepared by a run that died."""
    uri = f"{cluster.uri}{root}"
    txn = txsink.open_writer(uri, "w").begin(0)
    txn.write({"id": [0, 1]})
    txn.prepare()
    return uri


def calls_of_a_life(cluster: Cluster) -> int:
    life = Life(left_pending(cluster, f"/faults/{next(COUNT)}"), 1 << 20)
    life.run()
    assert life.error is None
    store = FaultyStore(open_store(cluster.uri, HASTY))
    uri = left_pending(cluster, f"/faults/{next(COUNT)}")
    with open_sink(store, stamps(), uri, "w", {"row_group_rows": 2}) as sink, sink.begin(1) as txn:
        txn.write({"id": [2, 3]})
    return store.calls


@pytest.mark.parametrize("fate", FATES)
def test_nodes_killed_before_any_store_call_of_a_writer_lose_and_double_nothing(
    hdfs_cluster: Cluster, fate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F22, F27, I1, I3, I5, I9, I11, I12: in each of staging, preparing, publishing, committing and recovering."""
    nodes, are_back = FATES[fate]
    calls = calls_of_a_life(hdfs_cluster)
    assert calls > 25
    lives = [Life(left_pending(hdfs_cluster, f"/faults/{next(COUNT)}"), call) for call in range(1, calls + 1)]
    tally = Tally("nodes killed", "HDFS")
    fault = f"nodes killed: {fate}"
    tally.planned[fault] = len(lives)
    for life in lives:
        life.start()
    try:
        for life in lives:
            assert life.stands.wait(SECONDS_MAX)
            tally.delivered[fault] += life.is_alive()
        for node in nodes(hdfs_cluster):
            node.kill()
        if are_back:
            hdfs_cluster.resume()
    finally:
        for life in lives:
            life.may_go_on.set()
    for life in lives:
        life.join(SECONDS_MAX)
        assert not life.is_alive()
    hdfs_cluster.resume()
    for life in lives:
        tally.failures += [f"{fate}, before call {life.call} ({life.verb}): {one}" for one in wrong(life)]
    failed = sum(life.error is not None for life in lives)
    with capsys.disabled():
        tally.tell(calls_told_of_an_error=failed)
    assert tally.failures == []
    assert tally.planned == tally.delivered
    assert {"create", "seal", "put_if_absent", "move", "settle", "read"} <= {life.verb for life in lives}
    assert failed or are_back
    lives[0].acknowledged.append(7)
    assert any("I3" in one for one in wrong(lives[0])), "what is lost is not seen"


def wrong(life: Life) -> list[str]:
    """What is wrong with the table of a writer, once another run has opened it and finished its work."""
    found = [] if isinstance(life.error, TxsinkError | None) else [f"it ended with {life.error!r}"]
    with txsink.open_writer(life.uri, "w") as sink:
        last = -1 if sink.last_epoch is None else sink.last_epoch
        if last < max(life.acknowledged, default=-1):
            found.append(f"I3: {life.acknowledged} were acknowledged, {last} is the last one")
        if ids_of(life.uri) != list(range(2 * (last + 1))):
            found.append(f"I1: {ids_of(life.uri)} at epoch {last}")
        if last < 1:
            with sink.begin(1) as txn:
                txn.write({"id": [2, 3]})
        temporaries(sink.log)
    if ids_of(life.uri) != [0, 1, 2, 3]:
        found.append(f"I1: {ids_of(life.uri)} at the end")
    return [*found, *(f"I9: {one} is left" for one in left_behind(life.uri))]
