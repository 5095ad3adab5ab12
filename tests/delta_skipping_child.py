"""What DuckDB or chDB finds in Delta tables: python delta_skipping_child.py READER TASKS TO, in `.venv-readers`.

TASKS and TO are files of JSON: pairs of a table's path and conditions; the ids of the rows that meet each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

Ask = Callable[[str, str], list[int]]


def by_duckdb() -> Ask:
    import duckdb  # noqa: PLC0415 -- one of two
    import duckdb_extension_delta  # noqa: PLC0415

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    connection.execute(f"load '{extension}'")
    connection.execute("set TimeZone = 'UTC'")

    def ask(path: str, condition: str) -> list[int]:
        found = connection.execute(f"select id from delta_scan(?) where {condition} order by id", [path])
        return [row[0] for row in found.fetchall()]

    return ask


def by_chdb() -> Ask:
    import chdb  # noqa: PLC0415

    def ask(path: str, condition: str) -> list[int]:
        found = chdb.query(f"select id from deltaLakeLocal('{path}') where {condition} order by id", "JSONCompact")
        return [int(row[0]) for row in json.loads(str(found))["data"]]

    return ask


def main() -> None:
    reader, tasks, to = sys.argv[1:]
    ask = {"duckdb": by_duckdb, "chdb": by_chdb}[reader]()
    answers = [
        [ask(path, condition) for condition in conditions] for path, conditions in json.loads(Path(tasks).read_text())
    ]
    Path(to).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
