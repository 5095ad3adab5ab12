"""The table in `docs/design.md` that says who may delete what, made from the `# DELETES:` comments.

Promises: a row for each such comment in the engine and the plug-in, with the function it stands in.
Relies on: `test_tidy.py`, which holds the form of the comments and finds calls without one.
Does not promise: that a proof holds. The crash tests, the delete fence and the variants of `# ORDER:` comments show it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

from made import ROOT, table

PAGE = "docs/design.md"
COMMENT = re.compile(r"# DELETES: (.+?); proof: (.+?) \(I\d+\)\.")


def comments(text: str) -> list[tuple[int, str]]:
    """Comments of one or more lines, by their first line."""
    found: list[tuple[int, str]] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        is_alone = token.line.lstrip().startswith("#")
        if is_alone and line == last + 1 and not token.string.startswith("# DELETES:"):
            found[-1] = (found[-1][0], f"{found[-1][1]} {token.string.lstrip('# ')}")
        else:
            found.append((line, token.string))
        last = line
    return found


def function_at(code: ast.Module, line: int) -> str:
    """The innermost function around a line."""
    around = [
        node
        for node in ast.walk(code)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def rows(sources: list[tuple[str, str]]) -> list[list[str]]:
    """What goes, the proof, and where: for each comment. One that takes nothing away (a dry run) has no row."""
    found = []
    for path, text in sources:
        code = ast.parse(text)
        for line, comment in comments(text):
            match = COMMENT.fullmatch(comment)
            if match and not match[1].startswith("nothing"):
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removeprefix("formats.")
                where = f"`{module.removeprefix('txsink.')}.{function_at(code, line)}`"
                found.append([match[1], match[2], where])
    return found


def sources() -> list[tuple[str, str]]:
    """The engine and the plug-in."""
    paths = [*(ROOT / "txsink").rglob("*.py"), *(ROOT / "formats").rglob("*.py")]
    kept = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return [(path, Path(ROOT, path).read_text(encoding="utf-8")) for path in kept if "/testing/" not in path]


def shown(name: str) -> str:
    """The made part of the page."""
    if name != "deletes":
        raise KeyError(name)
    return table(("goes", "proof", "where"), rows(sources()))
