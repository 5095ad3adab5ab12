"""The house rules, as tests. A rule is a function from one file to what it finds wrong there; its name is its promise.

Each rule is tried on a bad and on a good snippet first: a rule counts only for what it has been seen to report.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# The floor plan: each room (a package of txsink, or a module at its top) with the rooms that it may import.
BASE = "errors choices paths environment records schema"
FLOOR: dict[str, str] = {
    "errors": "",
    "choices": "errors",
    "paths": "",
    "environment": "errors",
    "records": "paths",
    "schema": "errors paths records",
    "store": "errors paths environment records",
    "chain": "errors store",
    "log": "errors paths environment records store chain",
    "staging": f"{BASE} store",
    "options": "errors choices store staging",
    "delta": f"{BASE} store chain staging",
    "publish": f"{BASE} store log staging delta",
    "protocol": f"{BASE} store log staging publish",
    "writing": f"{BASE} store log staging options delta publish protocol",
    "reading": f"{BASE} store log staging options delta publish",
    "two_phase": f"{BASE} store staging options writing",
    "upkeep": f"{BASE} store log staging delta publish protocol reading",
    "following": f"{BASE} store log writing reading",
    "kafka": f"{BASE} following",
    "observing": f"{BASE} store log publish reading",
    "conversion": f"{BASE} store log staging delta publish protocol writing reading",
}
# On top stand the front door, the command line and what tests of others may use.
TOP = ("__init__", "cli", "__main__", "testing")
EMPTY = ("following", "kafka", "observing")  # what is to come

# What may be imported in few places only; nowhere else in txsink/ (and, where it says so, in formats/).
FILE_SYSTEM = ("txsink/store/local", "txsink/environment.py", "txsink/cli/main.py", "txsink/testing/")
ONLY_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("os", "shutil", "tempfile", "glob", "fcntl", "pathlib"), (*FILE_SYSTEM, "formats/")),
    **dict.fromkeys(("time", "uuid", "secrets"), ("txsink/environment.py",)),
    "random": ("txsink/environment.py", "txsink/testing/"),
    **dict.fromkeys(("s3fs", "botocore", "aiobotocore"), ("txsink/store/s3",)),
    **dict.fromkeys(("click", "rich"), ("txsink/cli/main.py",)),
    **dict.fromkeys(("tests", "benchmarks", "examples", "asyncio"), ()),
    "difflib": ("txsink/errors.py",),
    "deltalake": ("txsink/delta/log.py",),
    "pytest": ("txsink/testing/fixtures.py",),
    "fsspec": ("txsink/store/memory.py", "txsink/store/s3"),
    "hdfs_native": ("txsink/store/hdfs",),
    "pyspark": ("formats/",),
    "pyspark_txsink": ("formats/",),
}
CALLERS = {
    ("log", "append"): ("txsink/protocol/", "txsink/conversion.py", "txsink/log/", "txsink/testing/"),
    ("store", "delete"): (
        "txsink/protocol/sweeping.py",
        "txsink/log/expiry.py",
        "txsink/log/slots.py",
        "txsink/upkeep/repair.py",
        "txsink/staging/adopt.py",
        "txsink/conversion.py",
        "txsink/delta/checkpoints.py",  # its own scratch files
        "txsink/publish/",
        "txsink/store/",
        "txsink/testing/",
    ),
}
VAGUE_NAMES = {"utils", "common", "base", "helpers", "manager"}
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
INVARIANTS = range(1, 17)
INVARIANTS_OF_THE_CORE = range(1, 14)
ORDER_COMMENT = re.compile(r"# ORDER: \S.* before \S.*, else \S.* \(I(\d+)\)\.")
TAKING = {"delete", "cancel", "prune", "unlink", "rmdir", "rmtree", "expire", "vacuum", "cleanup_metadata"}
DELETES_COMMENT = re.compile(r"DELETES: [^;]+; proof: .+ \(I\d+\)\.")
# Spelled in pieces, or these lines would report themselves.
MACHINE_PATH = re.compile(r"(?<![\w.}/)$-])/(?:" + "work|root|farm|home" + r")(?![\w-])")
REGISTRY = re.compile(
    r"(?:py" + r"pi|python" + r"hosted|maven|anaconda|npmjs|artifactory|jfrog)[\w.-]*\.(?:org|com|io|net)\b"
)


class Source(NamedTuple):
    """One text file of the repository."""

    path: str
    text: str


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = []


def rule(found: Rule) -> Rule:
    RULES.append(found)
    return found


# -- reading the tree --------------------------------------------------------------------------------------


@cache
def tree() -> tuple[Source, ...]:
    """Every text file that git would take."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split() if line]
    return tuple(sorted(_walk(ROOT, [*ignored, ".git"])))


def _walk(directory: Path, ignored: list[str]) -> Iterator[Source]:
    for path in directory.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in ignored) or path.is_symlink():
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path, ignored)
        else:
            try:
                yield Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue


def is_engine(source: Source) -> bool:
    """Whether the file is code that users run."""
    return source.path.endswith(".py") and source.path.startswith(("txsink/", "formats/"))


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def comments(text: str) -> dict[int, str]:
    """Comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported; `from a import b` is `a.b`."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def calls(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, last name of the receiver (without leading underscores) and method of every call `x.y()`."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = node.func.value
            name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            yield node.lineno, name.lstrip("_"), node.func.attr


# -- the rules ---------------------------------------------------------------------------------------------


def room_of(dotted: str) -> str:
    """The room that `txsink.room.module` lies in."""
    return dotted.split(".")[1] if "." in dotted else "__init__"


@rule
def a_room_imports_only_rooms_below_it(source: Source) -> Iterator[str]:
    if not source.path.startswith("txsink/") or not is_engine(source):
        return
    room = PurePosixPath(source.path).with_suffix("").parts[1]
    if room not in (*FLOOR, *TOP):
        yield f"1: {room} has no place in the floor plan"
        return
    below = FLOOR.get(room, " ".join([*FLOOR, *TOP[: TOP.index(room)]] if room in TOP else [])).split()
    for line, name in imports(source.text):
        if name.startswith("."):
            yield f"{line}: a relative import"
        if name.partition(".")[0] != "txsink" or room_of(name) == room:
            continue
        if room_of(name) not in (*FLOOR, *TOP):
            if name != "txsink.__version__":
                yield f"{line}: imports {name}, not the module that holds it"
        elif room_of(name) not in below:
            yield f"{line}: imports {name}, which {room} may not know"


@rule
def a_package_opens_with_one_sentence_and_holds_nothing_else(source: Source) -> Iterator[str]:
    if not fnmatch(source.path, "txsink/*/__init__.py") or source.path == "txsink/testing/__init__.py":
        return
    sentence = (ast.get_docstring(parsed(source.text)) or "").partition("\n")[0]
    if len(parsed(source.text).body) != 1 or not sentence.endswith("."):
        yield "1: not a sentence alone"


@rule
def stores_never_import_each_other(source: Source) -> Iterator[str]:
    path = PurePosixPath(source.path)
    if not fnmatch(source.path, "txsink/store/*.py"):
        return
    own = path.parts[2].removesuffix(".py")
    kinds = {other.stem for other in (ROOT / "txsink" / "store").iterdir()} - {"protocol", "opening", own}
    for line, name in imports(source.text):
        if name.startswith("txsink.store.") and name.split(".")[2] in kinds:
            yield f"{line}: imports {name}"


@rule
def disk_clock_chance_and_clients_are_used_only_where_they_belong(source: Source) -> Iterator[str]:
    if not is_engine(source):
        return
    for line, name in imports(source.text):
        top = name.partition(".")[0]
        if top in ONLY_IN and not source.path.startswith(ONLY_IN[top] or "nowhere"):
            yield f"{line}: imports {top}"


@rule
def only_the_environment_asks_for_the_date(source: Source) -> Iterator[str]:
    if not is_engine(source) or source.path == "txsink/environment.py":
        return
    for line, receiver, method in calls(source.text):
        if receiver in {"datetime", "date", "dt"} and method in {"now", "utcnow", "today"}:
            yield f"{line}: {receiver}.{method}()"


@rule
def only_the_cli_prints(source: Source) -> Iterator[str]:
    if not is_engine(source) or source.path == "txsink/cli/main.py":
        return
    for node in ast.walk(parsed(source.text)):
        if isinstance(node, ast.Name) and node.id == "print":
            yield f"{node.lineno}: print"
        if isinstance(node, ast.Attribute) and node.attr in {"stdout", "stderr"}:
            yield f"{node.lineno}: {node.attr}"


@rule
def no_module_has_a_vague_name(source: Source) -> Iterator[str]:
    if is_engine(source):
        yield from (f"1: {part}" for part in PurePosixPath(source.path).with_suffix("").parts if part in VAGUE_NAMES)


@rule
def no_assert_outside_tests(source: Source) -> Iterator[str]:
    if source.path.endswith(".py") and not source.path.startswith("tests/"):
        for node in ast.walk(parsed(source.text)):
            if isinstance(node, ast.Assert):
                yield f"{node.lineno}: assert"


@rule
def files_and_functions_fit_in_the_head(source: Source) -> Iterator[str]:
    if not is_engine(source):
        return
    if (lines := source.text.count("\n")) > FILE_LINES_MAX:
        yield f"1: {lines} lines, at most {FILE_LINES_MAX}"
    for node in ast.walk(parsed(source.text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


@rule
def every_module_says_what_it_promises_relies_on_and_does_not_promise(source: Source) -> Iterator[str]:
    # A front door only lists names, and a package has its sentence.
    if not is_engine(source) or (source.path.endswith("/__init__.py") and source.path != "txsink/testing/__init__.py"):
        return
    essay = ast.get_docstring(parsed(source.text)) or ""
    for words in ("Promises", "Relies on", "Does not promise"):
        if words not in essay:
            yield f"1: its docstring lacks {words!r}"


@rule
def order_comments_have_their_one_form(source: Source) -> Iterator[str]:
    if not is_engine(source):
        return
    found = comments(source.text)
    for line, text in found.items():
        if "ORDER:" not in text:
            continue
        whole = text if text.endswith(").") else f"{text} {found.get(line + 1, '').lstrip('# ')}"
        match = ORDER_COMMENT.fullmatch(whole)
        if match is None or int(match[1]) not in INVARIANTS:
            yield f"{line}: not `# ORDER: <A> before <B>, else <bad state> (I<n>).` within two lines"


@rule
def whatever_takes_something_away_says_what_and_by_which_proof(source: Source) -> Iterator[str]:
    if not is_engine(source) or source.path.startswith("txsink/testing/"):
        return
    # The verb of a store does as it is told: what it deletes, and why, its caller says.
    verbs = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(parsed(source.text))
        if isinstance(node, ast.FunctionDef) and node.name == "delete"
    ]
    found = comments(source.text)
    for line, receiver, method in calls(source.text):
        if method not in TAKING or any(line in verb for verb in verbs):
            continue
        first = line
        while first - 1 in found:
            first -= 1
        told = " ".join(found[at].lstrip("# ") for at in range(first, line + 1) if at in found)
        if not DELETES_COMMENT.search(told):
            yield f"{line}: {receiver}.{method}() without `# DELETES: <what>; proof: <proof> (I<n>).` above it"


COMMIT_POINTS = {"txsink/protocol/resolving.py": "parquet", "txsink/delta/log.py": "delta"}


@rule
def a_layout_has_exactly_one_commit_point(source: Source) -> Iterator[str]:
    if not is_engine(source):
        return
    lines = {line: text for line, text in comments(source.text).items() if "COMMIT POINT" in text}
    expected = [f"# COMMIT POINT ({COMMIT_POINTS[source.path]})"] if source.path in COMMIT_POINTS else []
    if [*lines.values()] != expected:
        yield f"{next(iter(lines), 1)}: {[*lines.values()]}, expected {expected}"


@rule
def entries_are_appended_and_files_deleted_only_where_the_order_rules_stand(source: Source) -> Iterator[str]:
    if not is_engine(source):
        return
    for line, receiver, method in calls(source.text):
        allowed = CALLERS.get((receiver, method))
        if allowed is not None and not source.path.startswith(allowed):
            yield f"{line}: {receiver}.{method}()"


@rule
def no_file_names_a_machine_or_a_registry(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.split("\n"), 1):
        for pattern in (MACHINE_PATH, REGISTRY):
            if match := pattern.search(line):
                yield f"{number}: {match[0]}"
    if PurePosixPath(source.path).name == "uv.lock":
        yield "1: it records hosts"


@rule
def requirements_are_pinned_with_hashes_and_name_no_index(source: Source) -> Iterator[str]:
    if not fnmatch(source.path, "requirements/*.txt"):
        return
    lines = source.text.split("\n")
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        if "://" in line or re.match(r"\s*-(?!-hash=sha256:)", line):
            yield f"{number}: {line}"
        is_requirement = line[:1].isalnum()
        if is_requirement and not ("==" in line and following.strip().startswith("--hash=sha256:")):
            yield f"{number}: {line} is not pinned with a hash"


@pytest.mark.parametrize("promise", RULES, ids=lambda promise: promise.__name__)
def test_the_tree_keeps_the_rule(promise: Rule) -> None:
    found = [f"{source.path}:{problem}" for source in tree() for problem in promise(source)]
    assert not found, "\n".join(found)


# -- rules about the tree as a whole -----------------------------------------------------------------------


def uncited(texts: list[str]) -> list[str]:
    """The invariants of the core that no text cites."""
    cited = {int(number) for text in texts for number in re.findall(r"\bI(\d{1,2})\b", text)}
    return [f"I{number}" for number in INVARIANTS_OF_THE_CORE if number not in cited]


def test_every_invariant_of_the_core_is_cited_by_a_test() -> None:
    texts = [
        source.text for source in tree() if fnmatch(source.path, "tests/*.py") and source.path != "tests/test_tidy.py"
    ]
    assert uncited(texts) == []


def test_the_floor_plan_lists_only_rooms_above_it_and_all_of_them_are_there() -> None:
    rooms = [*FLOOR]
    for at, (room, below) in enumerate(FLOOR.items()):
        assert {*below.split()} <= {*rooms[:at]}, room
    there = {
        path.stem for path in (ROOT / "txsink").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there == {*FLOOR, *TOP}
    assert all([path.name for path in (ROOT / "txsink" / room).glob("*.py")] == ["__init__.py"] for room in EMPTY)


def cycle(wanted: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle."""
    left = dict(wanted)
    while free := [name for name, others in left.items() if not others & {*left} - {name}]:
        for name in free:
            del left[name]
    return sorted(left)


def imported_modules() -> dict[str, set[str]]:
    """What each module of txsink imports of it."""
    engine = {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source
        for source in tree()
        if is_engine(source) and source.path.startswith("txsink/")
    }
    return {
        module: {name if name in engine else name.rpartition(".")[0] for _, name in imports(source.text)}
        for module, source in engine.items()
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]
    assert cycle(imported_modules()) == []


def test_the_walk_sees_the_whole_tree() -> None:
    paths = {source.path for source in tree()}
    assert {
        "txsink/log/entry.py",
        "txsink/store/local/store.py",
        "tests/test_tidy.py",
        ".ci/run",
        "requirements/test.txt",
    } <= paths
    assert not any("__pycache__" in path or path.startswith(".git/") for path in paths)


# -- each rule can fail ------------------------------------------------------------------------------------

ESSAY = '"""X.\n\nPromises: a.\nRelies on: b.\nDoes not promise: c.\n"""\n'
# For each rule: path, bad text, good text.
TRIALS: dict[Rule, list[tuple[str, str, str]]] = {
    a_room_imports_only_rooms_below_it: [
        ("txsink/log/log.py", "from txsink.publish.rename import x", "from txsink.log.state import x"),
        ("txsink/log/log.py", "from txsink.staging import parquet", "from txsink import paths"),
        ("txsink/log/log.py", "import txsink.protocol.recovery", "import txsink.records"),
        ("txsink/log/log.py", "import txsink", "import msgspec"),
        ("txsink/log/log.py", "from txsink import write", "import pyarrow"),
        ("txsink/log/log.py", "from .state import x", "from txsink.log.state import x"),
        ("txsink/log/log.py", "def f():\n    import txsink.cli.main", ""),
        ("txsink/staging/rows.py", "from txsink.log import entry", "from txsink.store.protocol import Tail"),
        ("txsink/delta/state.py", "from txsink.log import entry", "from txsink.staging import parquet"),
        ("txsink/reading/table.py", "from txsink.writing import opening", "from txsink.log.log import Log"),
        ("txsink/writing/writer.py", "from txsink.reading import table", "from txsink.protocol import recovery"),
        ("txsink/store/s3/store.py", "import txsink.log.log", "from txsink.store.protocol import Tail"),
        ("txsink/__init__.py", "from txsink.cli.main import main", "from txsink.writing.opening import x"),
        ("txsink/__init__.py", "from txsink.testing import Crash", ""),
        ("txsink/cli/main.py", "from txsink.testing.faults import Fault", "from txsink import __version__"),
        ("txsink/testing/faults.py", "from txsink import write", "from txsink.cli.main import main"),
        ("txsink/errors.py", "import txsink.paths", "import typing"),
        ("txsink/unheard_of.py", "x = 1", ""),
    ],
    a_package_opens_with_one_sentence_and_holds_nothing_else: [
        ("txsink/log/__init__.py", "", '"""A log."""'),
        ("txsink/publish/delta/__init__.py", '"""A log."""\n\nx = 1', ""),
        ("txsink/log/__init__.py", '"""A log"""', '"""A log.\n\nAnd more.\n"""'),
    ],
    stores_never_import_each_other: [
        (
            "txsink/store/s3/store.py",
            "from txsink.store.local.store import LocalStore",
            "from txsink.store.s3 import x",
        ),
        ("txsink/store/memory.py", "from txsink.store.local import store", "from txsink.store.protocol import x"),
        ("txsink/store/s3/calls.py", "from txsink.store import memory", "from txsink.errors import x"),
    ],
    disk_clock_chance_and_clients_are_used_only_where_they_belong: [
        ("txsink/log/log.py", "import os", "import io"),
        ("txsink/log/log.py", "from os.path import join", "import posixpath"),
        ("txsink/store/local/store.py", "from time import sleep", "import os"),
        ("txsink/protocol/recovery.py", "import uuid", "import json"),
        ("txsink/environment.py", "import deltalake", "import time, uuid, random"),
        ("txsink/reading/table.py", "def f():\n    import rich", "import pyarrow"),
        ("txsink/writing/opening.py", "import pyspark", "import pyarrow"),
        ("txsink/testing/faults.py", "import pytest", "import random"),
        ("txsink/testing/faults.py", "import time", "import os"),
        ("formats/pyspark_txsink/x.py", "import time", "import pyspark, os"),
    ],
    only_the_environment_asks_for_the_date: [
        ("txsink/log/log.py", "datetime.datetime.now()", "datetime.fromtimestamp(0)"),
    ],
    only_the_cli_prints: [
        ("txsink/log/log.py", "print(1)", "repr(1)"),
        ("txsink/log/log.py", "sys.stderr.write('x')", "x.write('x')"),
    ],
    no_module_has_a_vague_name: [
        ("txsink/utils.py", "", ""),
        ("txsink/common/x.py", "", ""),
    ],
    no_assert_outside_tests: [
        ("txsink/log/log.py", "assert x", "check(x)"),
        ("benchmarks/run.py", "def f():\n    assert x", "check(x)"),
    ],
    files_and_functions_fit_in_the_head: [
        ("txsink/log/log.py", "\n" * 401, "\n" * 400),
        ("txsink/log/log.py", "def f():\n" + "    x()\n" * 60, "def f():\n" + "    x()\n" * 59),
    ],
    every_module_says_what_it_promises_relies_on_and_does_not_promise: [
        ("txsink/log/log.py", "x = 1", ESSAY),
        ("txsink/log/log.py", ESSAY.replace("Relies on", "Uses"), ESSAY),
    ],
    order_comments_have_their_one_form: [
        ("txsink/log/log.py", "# ORDER: a then b (I3).", "# ORDER: a before b, else c (I3)."),
        ("txsink/log/log.py", "# ORDER: a before b, else c.", "# ORDER: a before b, else\n# c (I13)."),
        ("txsink/log/log.py", "# ORDER: a before b, else c (I17).", "# ORDER: a before b, else c (I16)."),
        ("txsink/log/log.py", "# ORDER: a before b,\n# else c\n# (I3).", "# a comment"),
    ],
    whatever_takes_something_away_says_what_and_by_which_proof: [
        ("txsink/log/log.py", "self.store.delete(x)", "# DELETES: x; proof: the log (I8).\nself.store.delete(x)"),
        ("txsink/log/log.py", "# DELETES: x.\ndelta.prune(x, y)", "delta.prune(x, y)  # DELETES: x; proof: y (I8)."),
        (
            "txsink/store/x.py",
            "def drop():\n    os.unlink(x)",
            "def delete():\n    os.unlink(x)",
        ),
        (
            "txsink/conversion.py",
            "# DELETES: x; proof: y (I8).\n\ntable.cleanup_metadata()",
            "# DELETES: x; proof: y, or it\n# was z (I8).\ntable.cleanup_metadata()",
        ),
    ],
    a_layout_has_exactly_one_commit_point: [
        ("txsink/protocol/resolving.py", "x = 1", "x = 1  # COMMIT POINT (parquet)"),
        ("txsink/protocol/resolving.py", "x = 1  # COMMIT POINT (delta)", "'COMMIT'  # COMMIT POINT (parquet)"),
        ("txsink/delta/log.py", "# COMMIT POINT (delta)\n# COMMIT POINT (delta)", "x = 1  # COMMIT POINT (delta)"),
        ("txsink/log/log.py", "# COMMIT POINT (parquet)", "x = 1"),
    ],
    entries_are_appended_and_files_deleted_only_where_the_order_rules_stand: [
        ("txsink/writing/writer.py", "self._log.append(x)", "names.append(x)"),
        ("txsink/staging/epoch_stager.py", "log.store.delete(x)", "x.discard()"),
        ("txsink/log/log.py", "self.store.delete(x)", "self.append(x)"),
    ],
    no_file_names_a_machine_or_a_registry: [
        ("README.md", "see /" + "home/me/data", "see /data/home"),
        ("docs/x.md", "`/" + "work`", "hdfs://host/work, a/work"),
        ("docs/x.md", "https://py" + "pi.org/simple", "uv comes from PyPI"),
        ("uv.lock", "version = 1", ""),
    ],
    requirements_are_pinned_with_hashes_and_name_no_index: [
        ("requirements/x.txt", "--index-url x", "# a comment"),
        ("requirements/x.txt", "a @ https://x/a.whl", ""),
        ("requirements/x.txt", "a>=1", "a==1 \\\n    --hash=sha256:00\n    # via b"),
        ("requirements/x.txt", "a==1\n", ""),
    ],
}


@pytest.mark.parametrize("promise", RULES, ids=lambda promise: promise.__name__)
def test_the_rule_reports_what_breaks_it_and_nothing_else(promise: Rule) -> None:
    for path, bad, good in TRIALS[promise]:
        assert list(promise(Source(path, bad))), (path, bad)
        assert not list(promise(Source(path, good) if good else Source("README.md", ""))), (path, good)


def test_a_missing_citation_is_seen() -> None:
    assert uncited(["I1 I2, (I3). I4 I5 I6 I7 I8 I9", "I10 I11 I12"]) == ["I13"]
    assert "I1" in uncited(["I11 and PI1"])
