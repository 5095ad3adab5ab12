"""Parts of pages that are made from code or from bytes: `python tests/made.py` writes them all.

Promises: a made part stands between `<!-- made: NAME -->` and `<!-- end -->`; `filled` gives the page as it has to be,
and tests compare it with the page.
Relies on: what makes the parts of each page (`PAGES`).
Does not promise: anything about the text between made parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PART = re.compile(r"(<!-- made: ([^ ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, shown: Callable[[str], str]) -> str:
    """A page with its made parts made."""
    return PART.sub(lambda match: f"{match[1]}{shown(match[2])}{match[4]}", text)


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [[*head], ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  ", "| ") for line in lines)


def problem(page: str, shown: Callable[[str], str]) -> str | None:
    """What is wrong with the made parts of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if not PART.search(text):
        return f"{page} has no made part"
    return None if filled(text, shown) == text else f"{page} is not as it is made: run tests/made.py"


if __name__ == "__main__":
    import deletes
    import format_table

    for page, shown in {deletes.PAGE: deletes.shown, format_table.PAGE: format_table.shown}.items():
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), shown), encoding="utf-8")
