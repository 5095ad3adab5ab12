"""The options of the public calls, read from their signatures and docstrings, and the page `docs/options.md`.

Promises: `options_of` tells of every argument its type, default and line of help; `page` is the whole text of the page,
and `python tests/surface.py` writes it.
Relies on: lines of docstrings of the form "- `name`: help".
Does not promise: to know what an option does. The tests of the options do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyspark_txsink
import txsink
from pyspark_txsink import options as format_options
from txsink import choices

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
HELP = re.compile(r"^- `(\w+)`: (.+)$", re.MULTILINE)
ALIASES = {name: choices.values_of(kind) for name, kind in vars(choices).items() if choices.values_of(kind)}

CALLS: dict[str, Callable[..., Any]] = {
    "open_writer": txsink.open_writer,
    "Writer.begin": txsink.Writer.begin,
    "write": txsink.write,
    "Writer.recover": txsink.Writer.recover,
    "open_table": txsink.open_table,
    "pyspark_txsink.each_batch": pyspark_txsink.each_batch,
    "pyspark_txsink.write": pyspark_txsink.write,
    "pyspark_txsink.read": pyspark_txsink.read,
}


class Option(NamedTuple):
    """One argument: the text of its type, its default (`inspect.Parameter.empty` without one), its line of help."""

    name: str
    type: str
    default: Any
    help: str
    is_keyword: bool


def options_of(call: Callable[..., Any]) -> dict[str, Option]:
    """All arguments of a call but `self`, in their order."""
    told = dict(HELP.findall(inspect.getdoc(call) or ""))
    return {
        name: Option(name, str(one.annotation), one.default, told.get(name, ""), one.kind is one.KEYWORD_ONLY)
        for name, one in inspect.signature(call).parameters.items()
        if name != "self"
    }


def keywords_of(call: Callable[..., Any]) -> dict[str, Option]:
    """The arguments that are given by name."""
    return {name: one for name, one in options_of(call).items() if one.is_keyword}


# -- the page ---------------------------------------------------------------------------------------------

INTRODUCTION = """\
# Options

Made from the signatures by `python tests/surface.py`, and compared by a test. An editor and
`help()` show the same lines. An unknown name is refused with the one that may be meant; a value
that cannot be is refused with those that can.
"""

SECTIONS = {
    "open_writer": "What is asked for once, when a writer is opened. `write` takes all of it as well.",
    "Writer.begin": "What is asked for with each epoch. `write` takes all of it as well.",
    "Writer.recover": "What to do with what a former run has prepared.",
    "open_table": "A table is read as of one version; its methods take another one.",
    "pyspark_txsink.each_batch": "A stream. What the options do in Spark says [spark.md](spark.md).",
    "pyspark_txsink.write": "A DataFrame as one epoch.",
    "pyspark_txsink.read": "A version of the table as a DataFrame.",
}


def page() -> str:
    """The text of `docs/options.md`."""
    parts = [INTRODUCTION]
    for name, about in SECTIONS.items():
        rows = "\n".join(map(_row, options_of(CALLS[name]).values()))
        parts.append(
            f"## `{name}`\n\n{about}\n\n| option | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}\n"
        )
    rows = "\n".join(f"| `{name}` | `{meant}` |" for name, meant in format_options.MEANING.items())
    parts.append(
        "## The format `txsink` of Spark\n\nText, under names in any case. `mode` is Spark's own `.mode(…)`.\n\n"
        f"| option | is |\n| --- | --- |\n{rows}\n"
    )
    return "\n".join(parts)


def _row(one: Option) -> str:
    kind = one.type
    for alias, values in ALIASES.items():
        kind = re.sub(rf"\b{alias}\b", " or ".join(f"`{value}`" for value in values), kind)
    kind = kind.replace("AnyPath", "str or a path").replace(" | ", " or ")
    default = "" if one.default is inspect.Parameter.empty else f"`{_shown(one.default)}`"
    return f"| `{one.name}` | {kind.replace('|', ' or ')} | {default} | {one.help} |"


def _shown(value: object) -> str:
    if type(value) is int:
        return f"{value:,}" if value < 1 << 40 else f"2**{value.bit_length() - 1}"
    return repr(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
