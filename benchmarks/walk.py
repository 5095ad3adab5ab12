"""How far one append walks through the code: `python benchmarks/walk.py`.

One append of an open writer on a local disk, counted after a first one has warmed everything up. A crossing is a call
from a function of one module to a function of another. The counts follow from the code, not from the machine.
"""

from __future__ import annotations

import ast
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import txsink
from txsink.store.local.store import LocalStore

ENGINE = Path(txsink.__file__).parent
STORE = "store/"


def main() -> None:
    for name, value in {**walked(), **written()}.items():
        print(f"{name:>52}  {value:,}")


def walked() -> dict[str, int]:
    """What one append enters."""
    directory = Path(tempfile.mkdtemp(prefix="txsink-walk-"))
    try:
        with txsink.open_writer(str(directory / "table"), writer="walk", partition_by=[]) as writer:
            append(writer, 1)
            calls = Counter[tuple[CodeType | None, CodeType]]()

            def count(frame: FrameType, event: str, _: Any) -> None:
                if event == "call" and is_ours(frame.f_code):
                    calls[caller_of(frame), frame.f_code] += 1

            sys.setprofile(count)
            try:
                append(writer, 2)
            finally:
                sys.setprofile(None)
    finally:
        shutil.rmtree(directory)
    entered = {callee for _, callee in calls}
    modules = {module_of(code) for code in entered}
    verbs = {name for name, value in vars(LocalStore).items() if callable(value) and not name.startswith("_")}
    between = [(a, b) for a, b in calls if a is not None and module_of(a) != module_of(b)]
    into_store = [
        (a, b) for a, b in calls if a is not None and not module_of(a).startswith(STORE) and b.co_name in verbs
    ]
    return {
        "functions entered": len(entered),
        "lines of the modules entered": sum(lines_of(ENGINE / module) for module in modules),
        "lines of all modules of the engine": sum(lines_of(path) for path in sources()),
        "modules entered": len(modules),
        "packages entered": len({Path(module).parent.as_posix() for module in modules}),
        "crossings between modules": sum(calls[pair] for pair in between),
        "store calls": sum(calls[a, b] for a, b in into_store if module_of(b).startswith(STORE)),
    }


def append(writer: Any, epoch: int) -> None:
    with writer.begin(epoch) as transaction:
        transaction.write({"id": [epoch]})


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{ENGINE}/") and not code.co_name.startswith("<")


def caller_of(frame: FrameType) -> CodeType | None:
    """The function of ours that called, past those of libraries and comprehensions."""
    before = frame.f_back
    while before is not None and not is_ours(before.f_code):
        before = before.f_back
    return None if before is None else before.f_code


def module_of(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ENGINE).as_posix()


# -- what is written, whether or not an append meets it --------------------------------------------------------


def written() -> dict[str, int]:
    """What a reader of the source meets."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    )
    return {
        "signatures that begin with `log`": sum(
            bool(one.args.args) and one.args.args[0].arg == "log" for one in functions
        ),
        "public names defined in two modules": sum(count > 1 for count in names.values()),
        "modules above 300 lines": sum(lines_of(path) > 300 for path in trees),
    }


def sources() -> list[Path]:
    return [path for path in sorted(ENGINE.rglob("*.py")) if "testing" not in path.relative_to(ENGINE).parts]


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
