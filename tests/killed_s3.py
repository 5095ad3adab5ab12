"""A producer that is killed in the middle of an epoch: python killed_s3.py URI POINT, credentials in the environment.

It commits epoch 0, says so, and kills itself (-9) at the point of epoch 1 that the table below names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from txsink.environment import stamps
from txsink.store.opening import open_store
from txsink.store.protocol import Store
from txsink.testing.faults import FaultyStore
from txsink.writing.opening import open_sink

ROWS = {0: [1, 2], 1: [3, 4]}
TWO_FILES: dict[str, Any] = {"row_group_rows": 1, "target_file_bytes": 1, "layout": "parquet"}

# Before which call of which verb of the store, once epoch 1 is begun.
POINTS = {
    "before a part is sent": ("seal", 1),
    "between two files": ("seal", 2),
    "staged": ("put_if_absent", 1),
    "prepared": ("complete", 1),
    "half published": ("complete", 2),
    "published": ("put_if_absent", 2),
    "committed": ("put_hint", 1),
}


class Doomed(FaultyStore):
    """A store that acts before the chosen call of a verb."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._verb, self._left = "", 0
        self._act: Callable[[], object] = int

    def doom(self, verb: str, nth: int, act: Callable[[], object]) -> None:
        self._verb, self._left, self._act = verb, nth, act
        self.pause = self._passes

    def _passes(self, verb: str, path: str) -> None:
        if verb == self._verb:
            self._left -= 1
            if self._left == 0:
                self._act()


def main() -> None:
    uri, point = sys.argv[1:]
    store = Doomed(open_store(uri))
    with open_sink(store, stamps(), uri, "w", dict(TWO_FILES)) as sink:
        for epoch, ids in ROWS.items():
            if epoch == 1:
                store.doom(*POINTS[point], lambda: os.kill(os.getpid(), signal.SIGKILL))
            with sink.begin(epoch) as txn:
                txn.write({"id": ids})
            print("committed", epoch, flush=True)


if __name__ == "__main__":
    main()
