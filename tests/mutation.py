"""Mutants of the protocol: each statement that calls the store left out, or swapped with the next one, one at a time.

Promises: `mutants` lists them in a fixed order, each with a name that survives edits elsewhere (module, function, what
is done to which statement); `run` gives one to a child process with a copy of the sources, in memory where there is
such a disk, and says which of the focussed tests killed it. `mutants_explained.txt` holds those that nothing killed.
Relies on: `ast`, for which statements call the store or the log's slots, directly or by a verb of the protocol's own.
Does not promise: other mutations (conditions, constants): those are what the crash proof's variants are for.

    python tests/mutation.py [part/parts]      runs all of them (or one part), printing the outcome of each
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MODULES = (
    "transaction.py", "recovery.py", "log.py", "slots.py", "sink.py",
    "publish/__init__.py", "publish/rename.py", "publish/multipart.py",
)  # fmt: skip
EXPLAINED = Path(__file__).parent / "mutants_explained.txt"
TEST_SECONDS_MAX = 150

# The verbs of stores, and those of the protocol's own parts that call them.
VERBS = {
    "read", "tail", "list", "put_if_absent", "put_hint", "replace", "create", "adopt", "settle", "move", "delete",
    "prune", "complete", "cancel", "uploads", "parts", "append", "refresh", "load", "expire", "put", "keep_hint",
    "ensure_segments", "hint", "summarise", "publish", "withdraw", "drop", "tidy", "left", "_reload", "_expire_below",
}  # fmt: skip
NAMES = {"claim", "recover", "sweep", "finish_aborts", "abort", "roll_forward", "standing", "_delete"}
RECEIVERS = {"store", "log", "slots", "publisher", "recovery", "transaction", "self"}

# Quick and sharp first: most mutants die in the first seconds.
TESTS = (
    ["tests/test_transaction.py", "tests/test_recovery.py", "tests/test_sweep.py", "tests/test_overwrite.py",
     "tests/test_abort_unfinished.py", "tests/test_publish.py", "tests/test_publish_uploads.py", "tests/test_sink.py",
     "tests/test_expiry.py", "tests/test_unknown.py", "tests/test_log.py", "tests/test_log_old.py",
     "tests/test_log_damage.py", "tests/test_runs.py", "tests/test_counted.py"],
    ["tests/mutation_proof.py"],
)  # fmt: skip
MEMORY = Path("/dev/shm")


class Mutant(NamedTuple):
    """A change of one statement of one module: its name and the source after it."""

    name: str
    module: str
    source: str


def mutants() -> Iterator[Mutant]:
    """All of them, in the order of the sources."""
    for module in MODULES:
        text = (ROOT / "txsink" / module).read_text(encoding="utf-8")
        yield from _of_module(module, text)


def _of_module(module: str, text: str) -> Iterator[Mutant]:
    names: dict[str, int] = {}
    lines = text.splitlines(keepends=True)
    for function, block, at in _statements(ast.parse(text)):
        statement = block[at]
        follower = block[at + 1] if at + 1 < len(block) else None
        for how, source in (("leave out", _without(lines, statement)), ("swap", _swapped(lines, statement, follower))):
            if source is not None and _compiles(source):
                what = " ".join(ast.unparse(statement).split())[:90]
                name = f"{module} {function}: {how} «{what}»"
                names[name] = names.get(name, 0) + 1
                yield Mutant(name if names[name] == 1 else f"{name} ({names[name]})", module, source)


def _statements(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Every statement in a function that calls the store: the function, its block, its place there."""
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        function, node = todo.pop(0)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for at, statement in enumerate(block if isinstance(block, list) else []):
                if not isinstance(statement, ast.stmt):
                    continue
                is_scope = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
                inner = f"{function}.{statement.name}".lstrip(".") if is_scope else function  # type: ignore[attr-defined]
                if function and not is_scope and _calls_store(statement):
                    yield function, block, at  # type: ignore[misc]
                todo.append((inner, statement))
        todo += [(function, handler) for handler in getattr(node, "handlers", [])]


def _calls_store(statement: ast.stmt) -> bool:
    """Whether the statement itself, not a block in it, makes such a call and is no answer."""
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            target = node.func
            if isinstance(target, ast.Name) and target.id in NAMES:
                return True
            if isinstance(target, ast.Attribute) and target.attr in VERBS | NAMES:
                receiver = target.value
                name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
                if name in RECEIVERS:
                    return True
    return False


def _without(lines: list[str], statement: ast.stmt) -> str | None:
    if not isinstance(statement, ast.Expr):
        return None  # an answer that is used: leaving it out is a NameError
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    return "".join([*lines[:first], f"{' ' * statement.col_offset}pass\n", *lines[last:]])


def _swapped(lines: list[str], statement: ast.stmt, follower: ast.stmt | None) -> str | None:
    if follower is None or isinstance(follower, ast.Return) or follower.end_lineno is None:
        return None
    if isinstance(statement, ast.Assign) and _names(statement.targets) & _names([follower]):
        return None  # the next one needs its answer
    first, middle, last = statement.lineno - 1, statement.end_lineno or 0, follower.end_lineno
    return "".join([*lines[:first], *lines[follower.lineno - 1 : last], *lines[first:middle], *lines[last:]])


def _names(nodes: list[ast.expr] | list[ast.stmt]) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def run(mutant: Mutant) -> str:
    """What killed the mutant: the first file whose tests fail; "" when it survives."""
    with tempfile.TemporaryDirectory(prefix="txsink-mutant-", dir=MEMORY if MEMORY.exists() else None) as directory:
        place = Path(directory)
        for name in ("txsink", "formats", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "model"))
        shutil.copy(ROOT / "pyproject.toml", place)
        (place / "txsink" / mutant.module).write_text(mutant.source, encoding="utf-8")
        for files in TESTS:
            found = _run_tests(place, files)
            if found:
                return found
    return ""


def _run_tests(place: Path, files: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{place}:{place / 'formats'}", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", f"--basetemp={place / 'temporary'}"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=TEST_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return "time-out"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 0:
        return ""
    return failed[0].split(" - ")[0] if failed else f"pytest ended with {done.returncode}"


def explained() -> dict[str, str]:
    """The mutants that survive, each with its reason."""
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" => ", 1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def main() -> None:
    """Run a part of the mutants; fail when one survives unexplained, or when the tests were too slow to tell."""
    part, parts = (int(number) for number in (sys.argv[1] if len(sys.argv) > 1 else "1/1").split("/"))
    chosen = list(mutants())[part - 1 :: parts]
    known, unexplained = explained(), []
    for mutant in chosen:
        begun = time.monotonic()
        killer = run(mutant)
        print(f"{time.monotonic() - begun:5.1f} s  {mutant.name}  ->  {killer or 'SURVIVED'}", flush=True)
        if killer == "time-out" or (not killer and mutant.name not in known):
            unexplained.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(unexplained)} survived without a reason, or timed out", flush=True)
    if unexplained:
        raise SystemExit("\n".join(unexplained))


if __name__ == "__main__":
    main()
