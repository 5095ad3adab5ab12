"""What DuckDB or chDB reads of a Delta table: python delta_readers_child.py READER PATH COLUMNS TO, in `.venv-readers`.

COLUMNS is JSON; the rows come as an Arrow file at TO.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import feather


def by_duckdb(path: str, columns: list[str]) -> pa.Table:
    import duckdb  # noqa: PLC0415 -- one of two
    import duckdb_extension_delta  # noqa: PLC0415

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    named = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        connection.execute(f"load '{extension}'")
        connection.execute("set TimeZone = 'UTC'")
        return connection.execute(f"select {named} from delta_scan(?)", [path]).to_arrow_table()


def by_chdb(path: str, columns: list[str]) -> pa.Table:
    import chdb  # noqa: PLC0415

    named = ", ".join(f"`{name}`" for name in columns)
    found = chdb.query(f"select {named} from deltaLakeLocal('{path}')", "Arrow")
    return pa.ipc.open_file(found.bytes()).read_all()


def main() -> None:
    reader, path, columns, to = sys.argv[1:]
    rows = {"duckdb": by_duckdb, "chdb": by_chdb}[reader](path, json.loads(columns))
    feather.write_feather(rows, to, compression="uncompressed")


if __name__ == "__main__":
    main()
