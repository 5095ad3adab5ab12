"""What is sent to executors, wrapped so that its opening says what an executor lacks.

Promises: where txsink is missing, the task fails with a message that names the Python and what to do, and not with
the name of a module its user may never have heard of.
Relies on: cloudpickle, which carries a function of a function's body whole, and needs no module of ours for that.
Does not promise: anything where Spark pickles with something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle


def sent(restore: Callable[..., Any], *arguments: object) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """What `__reduce__` of an object that goes to executors returns; there it is `restore(*arguments)`."""

    def opened(content: bytes) -> Any:
        # Nothing of this module is to be had here: whatever is used is imported here.
        import pickle  # noqa: PLC0415 -- Spark's own wrapping of it is a pickle too # nosec B403
        import sys  # noqa: PLC0415

        try:
            restore, arguments = pickle.loads(content)  # noqa: S301 -- Spark carried it, no store # nosec B301
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"txsink", "pyspark_txsink", "msgspec"}:
                raise
            found = f"the Python of this worker, {sys.executable}, has no module {error.name!r}"
            advice = "Install txsink with what it needs for that Python on every node, or send it along: "
            advice += "spark.archives with an environment, or spark.submit.pyFiles"
            raise ModuleNotFoundError(f"use txsink on an executor: {found}. {advice}.", name=error.name) from error
        return restore(*arguments)

    return opened, (cloudpickle.dumps((restore, arguments)),)


def restored(kind: type, state: dict[str, Any]) -> Any:
    """An object as it was sent."""
    found: Any = object.__new__(kind)
    found.__dict__.update(state)
    return found
