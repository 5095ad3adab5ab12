"""A producer that is killed: writes ten orders an epoch until 180 epochs are committed, and says what it did.

python killed.py TABLE CALL [EPOCHS]      kill -9 of itself at its store call number CALL, over all verbs (0: never)

Once it has committed EPOCHS it waits to be killed: whoever kills it from outside must not have to be faster.
"""

from __future__ import annotations

import os
import signal
import sys

from txsink.environment import stamps
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay
from txsink.writing.opening import open_sink

EPOCHS = 180
ROWS = 10


def orders(epoch: int) -> dict[str, list[int]]:
    ids = list(range(epoch * ROWS, (epoch + 1) * ROWS))
    return {"id": ids, "day": [one % 2 for one in ids]}


def main() -> None:
    path, call, *rest = sys.argv[1], *map(int, sys.argv[2:])
    plan = [delay(call, lambda: os.kill(os.getpid(), signal.SIGKILL))] if call else []
    store = FaultyStore(LocalStore(), plan)
    print("opening", flush=True)
    with open_sink(store, stamps(), path, "orders", {"partition_by": ("day",)}) as sink:
        first = 0 if sink.last_epoch is None else sink.last_epoch + 1
        for epoch in range(first, EPOCHS):
            if rest and epoch >= first + rest[0]:
                signal.pause()
            with sink.begin(epoch, metadata={"next": (epoch + 1) * ROWS}) as txn:
                txn.write(orders(epoch))
            print("committed", epoch, flush=True)


if __name__ == "__main__":
    main()
