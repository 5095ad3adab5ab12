"""Mutants of conditions, comparisons and constants in every module of the engine and of the plug-in, one at a time.

Each comparison is turned (`<` and `<=`, `==` and `!=`, `in` and `not in`, `is` and `is not`), each condition negated,
`and` exchanged with `or`, `not` dropped, each integer made one more and one less, `True` and `False` exchanged.

Promises: `mutants` lists them in the order of the sources, each with a name that survives edits elsewhere (module,
function, what becomes what). A whole run of a module gives each mutant to the tests that pass its line, of those that
`code_map` names for the module; it writes down which test killed it, or that it survives (`logic_seen.txt`), and fails
when one survives that `logic_survivors.txt` does not list, or is killed though it is listed. A test that does not end
is stopped by the processor time it took, not by the clock.
Relies on: `os.fork` after everything was imported and collected: a mutant is code that a child gives to its functions.
Does not promise: a mutant in what other processes run (Spark's workers, programs that a test starts); defaults of
parameters; what is computed when a module is imported, but for constants of its own.

    python tests/mutation_logic.py                       all modules, two at once; rewrites logic_seen.txt
    python tests/mutation_logic.py MODULE...             these, by their names in `code_map`; rewrites their lines
    python tests/mutation_logic.py --again < NAMES       kills these once more, each by the test that killed it
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

import code_map
from code_map import MODULES, ROOT, path_of
from ledger import report

TESTS = Path(__file__).parent
SEEN = TESTS / "logic_seen.txt"
SURVIVORS = TESTS / "logic_survivors.txt"
SURVIVES, NO_END = "survives", "came to no end"
# Of a child: what its tests took when nothing was wrong, this many times, and so many more seconds of the processor.
CPU_TIMES, CPU_SECONDS = 4, 8
WAIT_SECONDS = 240  # for a child that waits for something that never comes
MEMORY = Path("/dev/shm")

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
NEGATED_BY_TURNING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)


class Mutant(NamedTuple):
    """A change within one function, or of one constant of a module."""

    name: str
    module: str
    function: str  # "" for a constant of the module
    line: int
    source: str


# -- the mutants ------------------------------------------------------------------------------------------------------


def mutants(module: str) -> Iterator[Mutant]:
    """All of one module."""
    text = path_of(module).read_text(encoding="utf-8")
    tree = ast.parse(text)
    names = Counter[str]()
    for function, owner, before, after in _changes(tree):
        source = _replaced(text, before, after)
        if source is None:
            continue
        inner = code_map.name_of(module, function or "module").removeprefix(f"{module}.")
        shown = f"«{_short(before)}» -> «{_short(after)}»" + (f" in «{_short(owner)}»" if owner is not before else "")
        name = f"{module} {inner}: {shown}"
        names[name] += 1
        whole = name if names[name] == 1 else f"{name} ({names[name]})"
        yield Mutant(whole, module, function, before.lineno, source)


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:70]


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.expr, ast.expr]]:
    """The function, what the expression is a part of, the expression and what it becomes."""
    for function, statement in _statements(tree, ""):
        for owner, node, is_condition in _expressions(statement):
            for after in _mutated(node, is_condition=is_condition):
                yield function, owner, node, after


def _statements(node: ast.AST, function: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every statement of functions, and the constants of the module."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            yield from _statements(one, f"{function}.{one.name}".lstrip("."))
        elif isinstance(one, ast.stmt):
            is_in_function = bool(function) and not isinstance(node, ast.ClassDef)
            is_constant = not function and isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
            if is_in_function or is_constant:
                yield function, one
            if not isinstance(one, ast.If) or "TYPE_CHECKING" not in ast.unparse(one.test):
                yield from _statements(one, function)
        elif isinstance(one, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(one, function)


def _expressions(statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.expr, bool]]:
    """The expressions of a statement itself, not of those within it: what each is a part of, and whether it decides."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    todo: list[tuple[ast.AST, ast.AST]] = [
        (statement, one) for one in ast.iter_child_nodes(statement) if isinstance(one, ast.expr)
    ]
    if isinstance(statement, ast.AnnAssign):
        todo = [(statement, statement.value)] if statement.value is not None else []
    if isinstance(statement, ast.With):
        todo = [(statement, item.context_expr) for item in statement.items]
    while todo:
        parent, node = todo.pop(0)
        if isinstance(node, ast.JoinedStr):
            continue  # where its parts lie is not told right
        if isinstance(node, ast.expr):
            owner = statement if isinstance(parent, (ast.If, ast.While, ast.stmt)) else parent
            tests = [getattr(parent, "test", None), *getattr(parent, "ifs", ())]
            yield (node if owner is statement else owner), node, any(node is one for one in tests)
        todo += [(node, one) for one in ast.iter_child_nodes(node)]


def _mutated(node: ast.expr, *, is_condition: bool) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            if type(operator) in TURNED:
                turned = deepcopy(node)
                turned.ops[at] = TURNED[type(operator)]()
                yield turned
    if isinstance(node, ast.BoolOp):
        turned_bool = deepcopy(node)
        turned_bool.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield turned_bool
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif is_condition and not (
        isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], NEGATED_BY_TURNING)
    ):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))


def _replaced(text: str, before: ast.expr, after: ast.expr) -> str | None:
    """The source with the expression exchanged; None where that is no program."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: before.lineno - 1])) + before.col_offset
    end = sum(map(len, lines[: (before.end_lineno or 0) - 1])) + (before.end_col_offset or 0)
    data = text.encode()
    breaks = b"\n" * data[start:end].count(b"\n")  # what follows keeps its line
    source = (data[:start] + b"(" + ast.unparse(after).encode() + breaks + b")" + data[end:]).decode()
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return None
    return source


# -- one module: a session of pytest that forks a child for each mutant ------------------------------------------------


class Hunter:
    """A plugin of pytest that runs the collected tests on mutants instead."""

    def __init__(self, module: str, chosen: Sequence[Mutant], known: Mapping[str, str]) -> None:
        self.module, self.chosen, self.known = module, chosen, known
        self.kills = Counter(known.values())

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        importlib.import_module(MODULES[self.module].name)
        lines = sorted({one.line for one in self.chosen})
        sound = _in_child(lambda: _sound(list(items.values()), str(path_of(self.module)), lines), None)
        if sound is None:
            print(json.dumps({"wrong": f"{self.module}: the tests come to no end without a mutant"}), flush=True)
            return True
        red = set(sound["failed"])
        for test in sorted(red):  # it says nothing of a mutant
            print(json.dumps({"wrong": f"{self.module}: without a mutant fails {test}"}), flush=True)
        seconds = {test: took for test, took in sound["seconds"].items() if test not in red}
        reached = {line: [test for test in tests if test not in red] for line, tests in sound["reached"].items()}
        for mutant in self.chosen:
            begun = time.monotonic()
            known = self.known.get(mutant.name, "")
            tests = reached.get(str(mutant.line), []) if mutant.function else [*seconds]
            tests = sorted(tests, key=lambda test: (test != known, -self.kills[test], seconds[test]))
            cpu = CPU_SECONDS + CPU_TIMES * sum(seconds[test] for test in tests)
            killer = self._killer(mutant, [items[test] for test in tests], cpu) if tests else ""
            self.kills[killer] += 1
            found = {"mutant": mutant.name, "killer": killer or SURVIVES, "seconds": time.monotonic() - begun}
            print(json.dumps({**found, "tests": len(tests)}), flush=True)
        return True

    def _killer(self, mutant: Mutant, items: list[pytest.Item], cpu: float) -> str:
        path = str(path_of(self.module))

        def run() -> dict[str, Any]:
            _apply(mutant, path)
            watch = Watch(stops=True)
            return {"failed": watch.run(items)[:1]}

        found = _in_child(run, cpu)
        return NO_END if found is None else "".join(found["failed"])


class Watch:
    """Runs items one after the other; what failed, and what each took. `stops`: at the first that fails."""

    def __init__(self, *, stops: bool) -> None:
        self.stops = stops
        self.failed: list[str] = []
        self.test = ""
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def run(self, items: list[pytest.Item]) -> list[str]:
        for item, following in zip(items, [*items[1:], None], strict=True):
            if not item.config.pluginmanager.is_registered(self):
                item.config.pluginmanager.register(self)
            self.test = item.nodeid
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.stops and self.failed:
                break
        return self.failed


def _sound(items: list[pytest.Item], path: str, lines: list[int]) -> dict[str, Any]:
    """Which tests pass which lines when nothing is wrong, and what each takes."""
    reached: dict[int, dict[str, None]] = defaultdict(dict)
    watch = Watch(stops=False)
    wanted = set(lines)

    def trace_lines(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_lineno in wanted:
            reached[frame.f_lineno][watch.test] = None
        return trace_lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        return trace_lines if frame.f_code.co_filename == path else None

    import threading  # noqa: PLC0415 -- only here

    threading.settrace(trace)
    sys.settrace(trace)
    failed = watch.run(items)
    sys.settrace(None)
    return {"failed": failed, "seconds": watch.seconds, "reached": {str(at): [*tests] for at, tests in reached.items()}}


def _apply(mutant: Mutant, path: str) -> None:
    """Give the mutant's code to the function, wherever it was imported to; or its value to the constant."""
    code = compile(mutant.source, path, "exec", dont_inherit=True)
    if not mutant.function:
        _set_constant(mutant, code)
        return
    fresh = {_key(one): one for one in _codes(code)}
    changed = 0
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == path and _key(one.__code__) in fresh:
            one.__code__ = fresh[_key(one.__code__)]
            changed += 1
    if not changed:
        message = f"no function of {path} is there"
        raise RuntimeError(message)


def _set_constant(mutant: Mutant, code: CodeType) -> None:
    module = importlib.import_module(MODULES[mutant.module].name)
    statement = next(one for one in ast.parse(mutant.source).body if one.lineno <= mutant.line <= (one.end_lineno or 0))
    target = statement.targets[0]  # type: ignore[attr-defined]
    names = dict(vars(module))
    exec(compile(ast.Module([statement], []), "mutant", "exec"), names)
    before, after = vars(module)[target.id], names[target.id]
    for one in [*sys.modules.values()]:
        if vars(one).get(target.id) is before or one is module:
            setattr(one, target.id, after)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _in_child(run: Any, cpu: float | None) -> dict[str, Any] | None:
    """What `run` says in a child of its own; None when that comes to no end."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            os.setsid()
            os.chdir(tempfile.gettempdir())  # a mutant may write to a relative path
            os.close(reads)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            if cpu is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
            told = json.dumps(run()).encode()
            with os.fdopen(writes, "wb") as output:
                output.write(told)
        finally:
            os._exit(0)
    os.close(writes)
    told = b""
    until = time.monotonic() + WAIT_SECONDS if cpu is not None else None
    with os.fdopen(reads, "rb") as source:
        while True:
            ready, _, _ = select.select([source], [], [], None if until is None else max(0, until - time.monotonic()))
            more = os.read(source.fileno(), 1 << 20) if ready else b""
            if not more:
                break
            told += more
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return json.loads(told) if told else None


def hunt_here(module: str, names: list[str]) -> int:
    """In a process of its own: the mutants of one module, or those of these names."""
    chosen = [one for one in mutants(module) if not names or one.name in names]
    known = pairs_of(SEEN)
    files = [f"tests/test_{test}.py" for test in MODULES[module].tests.split()]
    if names:
        files = sorted({known[name].partition("::")[0] for name in names if "::" in known.get(name, "")}) or files
    place = tempfile.mkdtemp(prefix="txsink-logic-", dir=MEMORY if MEMORY.exists() else None)
    try:
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "--tb=short", "-o", "timeout=0"]
        os.chdir(ROOT)
        return int(pytest.main([*options, f"--basetemp={place}/t", *files], plugins=[Hunter(module, chosen, known)]))
    finally:
        shutil.rmtree(place, ignore_errors=True)


# -- all modules -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What became of mutants: who killed each, what went wrong, how long it took."""

    killers: dict[str, str]
    wrong: list[str]


def hunt(module: str, names: Sequence[str] = ()) -> Found:
    """The mutants of one module, tried in a process of their own."""
    command = [sys.executable, str(Path(__file__)), "--here", module]
    killers, wrong = dict[str, str](), list[str]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        if process.stdin is not None:
            process.stdin.write("\n".join(names))
            process.stdin.close()
        for line in process.stdout or ():
            if line.startswith('{"wrong"'):
                wrong.append(json.loads(line)["wrong"])
            elif '{"mutant"' in line:
                told = json.loads(line[line.index('{"mutant"') :])
                killers[told["mutant"]] = told["killer"]
                print(f"{told['seconds']:5.1f} s {told['tests']:4}  {told['mutant']}  ->  {told['killer']}", flush=True)
    return Found(killers, wrong)


def pairs_of(path: Path) -> dict[str, str]:
    """What a list says of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.rsplit(" => ", 1) for line in lines if line and not line.startswith("#"))


def keep(module: str, killers: Mapping[str, str]) -> None:
    """Write down what became of the mutants of a module, in place of what is known of it."""
    lines = {name: killer for name, killer in pairs_of(SEEN).items() if name.partition(" ")[0] != module}
    lines |= killers
    head = "# Written by tests/mutation_logic.py: which test killed which mutant in the last run of its module.\n"
    SEEN.write_text(head + "".join(f"{name} => {lines[name]}\n" for name in sorted(lines)), encoding="utf-8")


def drawn(share: int, modules_max: int, there: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Of the mutants that are there, some that were killed, by module: which ones follows from the sources."""
    known: dict[str, list[str]] = defaultdict(list)
    for name, killer in pairs_of(SEEN).items():
        module = name.partition(" ")[0]
        if "::" in killer and name in there.get(module, ()):
            known[module].append(name)
    texts = "".join(path_of(module).read_text(encoding="utf-8") for module in MODULES)
    chance = random.Random(hashlib.sha256(texts.encode()).hexdigest())
    modules = chance.sample(sorted(known), min(modules_max, len(known)))
    each = share // max(1, len(modules))
    return {module: chance.sample(known[module], min(each, len(known[module]))) for module in modules}


def again(names: Sequence[str]) -> int:
    """Kill these once more; 1 when one lives."""
    modules = sorted({name.partition(" ")[0] for name in names})
    with ThreadPoolExecutor(2) as pool:
        chosen = [[name for name in names if name.partition(" ")[0] == module] for module in modules]
        found = [*pool.map(hunt, modules, chosen)]
    wrong = [line for one in found for line in one.wrong]
    killers = {name: killer for one in found for name, killer in one.killers.items()}
    wrong += [f"{name}: {killers.get(name, 'not tried')}" for name in names if killers.get(name, SURVIVES) == SURVIVES]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    """Hunt; 1 when one survives that is not listed, or is killed though it is."""
    if arguments[:1] == ["--here"]:
        return hunt_here(arguments[1], [line for line in sys.stdin.read().splitlines() if line])
    if arguments == ["--again"]:
        return again([line for line in sys.stdin.read().splitlines() if line])
    if unknown := [module for module in arguments if module not in MODULES]:
        raise SystemExit(f"no such module: {', '.join(unknown)}")
    chosen = [module for module in arguments or MODULES if MODULES[module].tests]
    listed, wrong, killers = pairs_of(SURVIVORS), list[str](), dict[str, str]()
    with ThreadPoolExecutor(2) as pool:
        for module, found in zip(chosen, pool.map(hunt, chosen), strict=True):
            wrong += found.wrong
            killers |= found.killers
            if found.killers:
                keep(module, found.killers)
    for name, killer in killers.items():
        if (killer == SURVIVES) != (name in listed):
            wrong.append(f"{name}: {killer}, {'listed' if name in listed else 'not listed'} as a survivor")
    killed = sum(killer != SURVIVES for killer in killers.values())
    print(*wrong, sep="\n")
    counts = {"mutants killed": killed, "mutants listed": len(killers.keys() & listed)}
    report(
        "mutants of logic",
        "memory",
        {"mutant of a condition, comparison or constant": (len(killers), len(killers))},
        counts,
        failures=len(wrong),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
