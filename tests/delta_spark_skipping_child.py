"""What Spark's Delta reader finds: python delta_spark_skipping_child.py TASKS, in `.venv-bench-delta`.

TASKS is a file of JSON: of each table its path, its twin's, conditions, and totals (queries of aggregates). Prints one
line of JSON for each table: the ids that meet each condition and the totals, of the table and of its twin. The twin is
read once for all conditions, which are columns there, so that nothing skips a row of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from delta_spark_child import session, tell

CONF = {
    # Parquet's own filter, inside a file, loses -0.0 where 0.0 is asked for, in Spark's own files as well.
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.codegen.wholeStage": "false",  # it takes longer than these rows
}


def main() -> None:
    spark = session(CONF)
    if spark is None:
        return

    def rows(sql: str, path: str) -> list[Any]:
        return list(spark.sql(sql.format(f"delta.`{path}`")).collect())

    for task in json.loads(Path(sys.argv[1]).read_text()):
        path, twin, conditions, totals = task["path"], task["twin"], task["conditions"], task["totals"]
        found = [sorted(row.id for row in rows(f"select id from {{}} where {one}", path)) for one in conditions]
        columns = ", ".join(f"({one}) c{at}" for at, one in enumerate(conditions))
        whole = rows(f"select id, {columns} from {{}}", twin)
        expected = [sorted(row.id for row in whole if row[f"c{at}"]) for at in range(len(conditions))]
        sums = [[str(rows(one, place)[0]) for one in totals] for place in (path, twin)]
        tell(path=path, found=found, expected=expected, totals=sums[0], expected_totals=sums[1])
    spark.stop()


if __name__ == "__main__":
    main()
