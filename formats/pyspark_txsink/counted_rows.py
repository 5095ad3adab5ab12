"""The rows that Spark says it wrote, against those that are found, where the two may be on different disks.

Promises: an epoch that executors staged on disks which the driver does not see is refused, and not committed without
its rows. Elsewhere nothing is counted, and nothing is slowed down.
Relies on: Spark's observation, which counts each task once however often it was tried.
Does not promise: anything of other stores. Those are the same wherever one looks from.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from pyspark_txsink import session
from txsink.errors import InvalidRequestError
from txsink.stage import StagedFile


def are_needed(df: DataFrame, uri: str) -> bool:
    """Whether an executor may have another file system than this process."""
    if not uri.startswith("file:"):
        return False
    spark = df.sparkSession
    return session.is_connect(spark) or not spark.sparkContext.master.startswith("local")


class Counted:
    """A DataFrame whose rows are counted while they are written."""

    def __init__(self, df: DataFrame) -> None:
        self._observed = Observation()
        self.df = df.observe(self._observed, sql.count(sql.lit(1)).alias("rows"))

    def check(self, staged: Sequence[StagedFile], uri: str) -> None:
        """Refuse what is not all of it."""
        written = self._observed.get["rows"]
        found = sum(one.file.rows for one in staged)
        if written != found:
            raise InvalidRequestError(
                f"stage by Spark's own writer in {uri}",
                f"Spark wrote {written} rows, and {found} of them are found here: other machines have other disks",
                "Give a path that the driver and all executors share: hdfs://, s3://, or a file system mounted by all",
            )
