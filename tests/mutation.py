"""Mutants of the protocol: each statement that calls the store left out, or swapped with the next one, one at a time.

Promises: `mutants` lists them in a fixed order, each with a name that survives edits elsewhere (module, function, what
is done to which statement). The whole run gives each to the test that killed it the last time, then to all focussed
tests that pass its statement, those that killed most first; it writes `mutants_seen.txt`, the killer of each, and fails
when one survives that `mutants_explained.txt` gives no reason for, or when a test kills one that it explains.
Relies on: `ast`, for which statements call the store or the log's slots, directly or by a verb of the protocol's own;
`mutation_trials`, for running tests on them.
Does not promise: other mutations (conditions, constants): those are what the crash proof's variants are for.

    python tests/mutation.py             all of them
    python tests/mutation.py WORDS...    those whose names hold one of the words; writes nothing down
"""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import code_map
from ledger import report
from mutation_trials import Outcome, Trials, marked, trials

MODULES = [name for name, module in code_map.MODULES.items() if module.is_cut]
EXPLAINED = Path(__file__).parent / "mutants_explained.txt"
SEEN = Path(__file__).parent / "mutants_seen.txt"
SURVIVES, NO_END = "survives", "came to no end"

# The verbs of stores, and those of the protocol's own parts that call them.
VERBS = {
    "read", "tail", "list", "put_if_absent", "put_hint", "replace", "create", "adopt", "settle", "move", "delete",
    "prune", "complete", "cancel", "uploads", "parts", "append", "refresh", "load", "expire", "put", "keep_hint",
    "ensure_segments", "hint", "summarise", "publish", "withdraw", "drop", "tidy", "left", "_reload", "_expire_below",
    "commit", "sync", "_follow",
}  # fmt: skip
NAMES = {"claim", "recover", "sweep", "finish_aborts", "abort", "roll_forward", "standing", "_delete"}
PROTOCOL = {"blank", "fencing", "preparing", "recovery", "resolving", "sweeping"}
RECEIVERS = {"store", "log", "slots", "delta", "publisher", "self", *PROTOCOL}

# A survivor runs them all: without those that take longest and kill nothing that the others let live.
TESTS = (
    *(
        f"tests/test_{name}.py"
        for name in (
            "transaction", "recovery", "sweep", "overwrite", "abort_unfinished", "publish", "publish_uploads", "sink",
            "blank", "expiry", "unknown", "log", "log_old", "log_damage", "log_gaps", "runs", "counted", "found",
            "each_call", "delta_foreign", "delta_durable", "delta_cleanup",
        )
    ),
    "tests/test_delta_publish.py::TestLocal",
    "tests/test_convert.py::test_an_epoch_that_delta_has_is_committed_by_the_abort_that_comes_too_late",
    "tests/test_advice_delta.py::test_a_delta_table_that_was_made_anew_is_left_alone",
    "tests/mutation_proof.py",
)  # fmt: skip


class Mutant(NamedTuple):
    """A change of one statement of one module: its name by `code_map`, its line, the source after the change."""

    name: str
    module: str
    line: int
    source: str

    @property
    def mark(self) -> str:
        """What a test tells that passes the statement."""
        return f"{self.module}:{self.line}"


def mutants() -> Iterator[Mutant]:
    """All of them, in the order of the sources."""
    for module in MODULES:
        text = code_map.path_of(module).read_text(encoding="utf-8")
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
                file, inner = code_map.split(code_map.name_of(module, function))
                name = f"{file.replace('.', '/')}.py {inner}: {how} «{what}»"
                names[name] = names.get(name, 0) + 1
                whole = name if names[name] == 1 else f"{name} ({names[name]})"
                yield Mutant(whole, module, statement.lineno, source)


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


class Hunt:
    """The killers of mutants, found one after the other."""

    def __init__(self, made: Trials, chosen: list[Mutant]) -> None:
        self._trials = made
        self._seen = pairs_of(SEEN)
        self._kills = Counter(self._seen.values())
        known = {killer for one in chosen if (killer := self._known(one))}
        self._sound = self._passed(sorted(known) if all(map(self._known, chosen)) else TESTS, chosen)

    def killer_of(self, mutant: Mutant) -> str:
        """The first test that fails on the mutant; "" when it survives all that pass its statement."""
        known = self._known(mutant)
        killer = self._first_to_fail([known], mutant) if known in self._sound.seconds else ""
        killer = killer or self._first_to_fail(self._tests_of(mutant), mutant)
        self._kills[killer] += 1
        return killer

    def _known(self, mutant: Mutant) -> str:
        """What killed it the last time."""
        killer = self._seen.get(mutant.name, "")
        return "" if killer == SURVIVES else killer

    def _first_to_fail(self, tests: list[str], mutant: Mutant) -> str:
        if not tests:
            return ""
        found = self._trials.run(tests, {mutant.module: mutant.source})
        return NO_END if found is None or (found.exit_code and not found.failed) else found.failed

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """All that pass the statement, the likeliest killers and the quickest first."""
        found = self._sound
        return sorted(found.reached.get(mutant.mark, ()), key=lambda test: (-self._kills[test], found.seconds[test]))

    def _passed(self, tests: Sequence[str], chosen: list[Mutant]) -> Outcome:
        """What the tests pass of the statements when nothing is wrong."""
        marks: dict[str, dict[int, str]] = {}
        for mutant in chosen:
            marks.setdefault(mutant.module, {})[mutant.line] = mutant.mark
        sources = {
            module: marked(code_map.path_of(module).read_text(encoding="utf-8"), lines)
            for module, lines in marks.items()
        }
        found = self._trials.run(tests, sources)
        if found is None or found.exit_code:
            message = f"the tests fail without a mutant:\n{self._trials.output.read_text()[-4000:]}"
            raise RuntimeError(message)
        return found


def explained() -> dict[str, str]:
    """The mutants that survive, each with its reason."""
    return pairs_of(EXPLAINED)


def pairs_of(path: Path) -> dict[str, str]:
    """What a list says of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.split(" => ", 1) for line in lines if line and not line.startswith("#"))


def main(words: list[str]) -> int:
    """Hunt the mutants; 1 when one survives without a reason, or is killed in spite of one."""
    chosen = [one for one in mutants() if not words or any(word in one.name for word in words)]
    if not chosen:
        raise SystemExit("no mutant has such a name")
    reasons, killers, wrong = explained(), dict[str, str](), []
    with trials() as made:
        hunt = Hunt(made, chosen)
        for mutant in chosen:
            begun = time.monotonic()
            killer = killers[mutant.name] = hunt.killer_of(mutant)
            print(f"{time.monotonic() - begun:5.1f} s  {mutant.name}  ->  {killer or 'SURVIVED'}", flush=True)
            if killer == NO_END or bool(killer) == (mutant.name in reasons):
                wrong.append(f"{mutant.name}: {killer or 'survives without a reason'}")
    killed = sum(map(bool, killers.values()))
    if not words:
        head = "# Written by tests/mutation.py: which test killed which mutant in the last whole run.\n"
        SEEN.write_text(
            head + "".join(f"{name} => {killer or SURVIVES}\n" for name, killer in killers.items()), encoding="utf-8"
        )
    print(*wrong, sep="\n")
    counts = {"mutants killed": killed, "mutants explained": len(killers.keys() & reasons)}
    report("mutants", "memory", {"mutant": (len(chosen), len(killers))}, counts, failures=len(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
