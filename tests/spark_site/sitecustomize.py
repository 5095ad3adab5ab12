"""Read by every Python that has this directory on its path: the driver of a test and Spark's workers alike."""

import os
import sys
from pathlib import Path

if "TXSINK_KILL" in os.environ:
    import spark_kill_points

    spark_kill_points.arm(os.environ["TXSINK_KILL"])

if "TXSINK_HIDDEN" in os.environ:

    class Hidden:
        """While the file is there, txsink is not installed for executors, which run in directories of their own."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            is_ours = name.partition(".")[0] in ("txsink", "pyspark_txsink")
            if is_ours and "/app-" in str(Path.cwd()) and Path(os.environ["TXSINK_HIDDEN"]).exists():
                message = f"No module named {name!r}"
                raise ModuleNotFoundError(message, name=name)

    sys.meta_path.insert(0, Hidden)
