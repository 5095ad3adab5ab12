"""The tiny table whose bytes `docs/format.md` shows, in `tests/golden/table/orders`.

`python tests/format_table.py` makes the table anew, and `python tests/made.py` writes its records into the page.
Do that only with a new format and a decision record: the files are what a release leaves on people's disks, and every
later one must read them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from format_reader import Fact, Reader
from made import table
from place import Place

PAGE = "docs/format.md"
TABLE_PATH = Path(__file__).parent / "golden" / "table" / "orders"
WIDTH = 98
INDENT = "    "
FACT_COLUMNS = ("version", "kind", "writer", "epoch", "prepared", "path", "rows")


def make(path: Path) -> None:
    """A table with an epoch of one file, one that replaces it, and a claim of each."""
    place = Place(path)
    place.write(0, {"id": [1, 2]}, "nightly", partition_by=[])
    place.write(1, {"id": [3]}, "nightly", mode="overwrite")


def wrapped(line: str) -> str:
    """A line of JSON in many lines: each break is followed by four blanks, and belongs to the page alone."""
    parts, room = [""], WIDTH
    for part in re.split(r'(?<=,)(?=["{])', line):
        if parts[-1] and len(parts[-1]) + len(part) > room:
            parts.append("")
            room = WIDTH - len(INDENT)
        parts[-1] += part
    return f"\n{INDENT}".join(parts)


def unwrapped(text: str) -> str:
    """The inverse."""
    return text.replace(f"\n{INDENT}", "")


def shown(name: str, root: Path = TABLE_PATH) -> str:
    """What the page shows under a name: the bytes of a file of the table, or what a reader makes of them."""
    reader = Reader(root)
    if name == "facts":
        return table(FACT_COLUMNS, [[_told(fact, column) for column in FACT_COLUMNS] for fact in reader.facts])
    if name == "files":
        last = reader.state["version"]
        found = [(version, reader.files(version)) for version in range(last + 1)]
        lines = [[str(version), ", ".join(f"`{file.path}`" for file in files)] for version, files in found]
        return table(("version", "files"), lines)
    return f"```json\n{wrapped((root / name).read_text(encoding='utf-8'))}```\n"


def _told(fact: Fact, column: str) -> str:
    value = getattr(fact, column)
    return "" if value is None else f"`{value}`" if column == "path" else str(value)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        make(Path(place) / "orders")
        shutil.rmtree(TABLE_PATH, ignore_errors=True)
        shutil.copytree(Path(place) / "orders", TABLE_PATH)
