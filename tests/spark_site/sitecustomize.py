"""Read by every Python that has this directory on its path: the driver of a test and Spark's workers alike."""

import os

if "TXSINK_KILL" in os.environ:
    import spark_kill_points

    spark_kill_points.arm(os.environ["TXSINK_KILL"])
