"""Run by `test_spark_register` where the `python3` of the PATH has no txsink: what the format says, before and after.

Promises: the last line is JSON: the error before `register`, and the rows that are read after it.
Relies on: the environment that the test gives it.
Does not promise: anything where that `python3` has txsink.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import pyspark_txsink


def main(path: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    before = "nothing was wrong"
    try:
        spark.range(3).write.format("txsink").mode("append").save(path)
    except Exception as error:  # noqa: BLE001 -- of Spark's or of Java's, by Spark's version
        before = str(error)
    pyspark_txsink.register(spark)
    spark.range(3).write.format("txsink").mode("append").save(path)
    print(json.dumps({"before": before, "rows": spark.read.format("txsink").load(path).count()}))


if __name__ == "__main__":
    main(sys.argv[1])
