"""Runs tests on changed sources, each time in a child forked from a process that has imported what takes long.

Promises: a trial sees a copy of the tree, in memory where there is such a disk, in which some modules of txsink are
others; nothing of txsink is imported before the fork. It ends at the first test that fails, and says which; a test that
hangs counts as failed. `reach` says which tests pass a statement, and how long each takes.
Relies on: `os.fork`; compiled files that are checked by the hash of their source, as trials follow one another within
one tick of the clock.
Does not promise: that a statement passed in another process of a test is seen.
"""

from __future__ import annotations

import builtins
import compileall
import importlib
import json
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import pytest

import code_map
from code_map import ROOT

MEMORY = Path("/dev/shm")
TEST_SECONDS_MAX, TRIAL_SECONDS_MAX = 120, 1800

# What the tests import besides this project, as far as it takes long. That which is not there is not needed either.
WARM = (
    "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.pandas_compat", "pandas", "duckdb", "msgspec",
    "hypothesis", "fsspec", "botocore.session", "aiobotocore.session", "s3fs", "deltalake", "hdfs_native",
    "multiprocessing.connection", "xml.sax.saxutils", "urllib.request",
)  # fmt: skip
PYTEST = ("-x", "-q", "-p", "pytest_timeout", "-p", "pytest_cov.plugin", "-p", "no:cacheprovider", "--tb=short")


class Outcome(NamedTuple):
    """What a trial showed: the first test that failed (""; none), what passed which marks, what each test took."""

    failed: str
    exit_code: int
    reached: dict[str, list[str]]
    seconds: dict[str, float]


class Watch:
    """A plugin of pytest that notes the outcome."""

    def __init__(self) -> None:
        self.failed = ""
        self.test = ""
        self.reached: dict[str, dict[str, None]] = {}
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pass_mark(self, mark: str) -> None:
        self.reached.setdefault(mark, {})[self.test] = None

    def outcome(self, exit_code: int) -> Outcome:
        reached = {mark: [test for test in tests if test] for mark, tests in self.reached.items()}
        return Outcome(self.failed, exit_code, reached, self.seconds)


class Trials:
    """The copy of the tree, and the trials made there, one after the other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.output = place / "output"
        for name in ("txsink", "formats", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "model"))
        shutil.copy(ROOT / "pyproject.toml", place)
        compileall.compile_dir(place / "txsink", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def run(self, tests: Iterable[str], changed: Mapping[str, str]) -> Outcome | None:
        """Run the tests in this order with these modules changed; None when that does not come to an end."""
        told = self.place / "told.json"
        told.unlink(missing_ok=True)
        sources = {self.place / code_map.MODULES[module].path: source for module, source in changed.items()}
        former = {path: path.read_text(encoding="utf-8") for path in sources}
        for path, source in sources.items():
            path.write_text(source, encoding="utf-8")
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            self._child(list(tests), told)
        timer = threading.Timer(TRIAL_SECONDS_MAX, _end, [process])
        timer.start()
        os.waitpid(process, 0)
        timer.cancel()
        _end(process)  # what it started
        for path, source in former.items():
            path.write_text(source, encoding="utf-8")
        shutil.rmtree(self.place / "temporary", ignore_errors=True)
        return Outcome(**json.loads(told.read_text())) if told.exists() else None

    def _child(self, tests: list[str], told: Path) -> NoReturn:
        try:
            os.setsid()
            os.chdir(self.place)
            output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.pop("FAULTS_SCALE", None)  # the tests are those of `make test`
            os.environ.update(PYTHONPATH=f"{self.place}:{self.place / 'formats'}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
            ours = Path(__file__).parent
            sys.path[:] = [
                str(self.place),
                str(self.place / "formats"),
                *(one for one in sys.path if Path(one) != ours),
            ]
            sys.modules["__main__"] = ModuleType("__main__")  # what a test spawns is not to run ours
            watch = Watch()
            builtins.passed = watch.pass_mark  # type: ignore[attr-defined]
            options = ["-o", f"timeout={TEST_SECONDS_MAX}", f"--basetemp={self.place / 'temporary'}"]
            code = pytest.main([*PYTEST, *options, *tests], plugins=[watch])
            half = told.with_suffix(".half")
            half.write_text(json.dumps(watch.outcome(int(code))._asdict()))
            half.rename(told)
        except BaseException:  # noqa: BLE001 -- whatever it is, it is told and the child ends here
            traceback.print_exc()
        os._exit(0)


def marked(text: str, marks: Mapping[int, str]) -> str:
    """The source with a call before each of these lines, at which a statement begins, that tells the mark."""
    lines = text.splitlines(keepends=True)
    for line in sorted(marks, reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        # In a process that a test starts there is nobody to tell.
        lines.insert(line - 1, f'{indent}getattr(__import__("builtins"), "passed", id)({marks[line]!r})\n')
    return "".join(lines)


@contextmanager
def trials() -> Iterator[Trials]:
    """A copy of the tree, and what takes long imported."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    found = [name for name in sys.modules if name.partition(".")[0] in {"txsink", "pyspark_txsink"}]
    if found:
        message = f"imported before the fork: {found[0]}"
        raise RuntimeError(message)
    with tempfile.TemporaryDirectory(prefix="txsink-mutants-", dir=MEMORY if MEMORY.exists() else None) as place:
        yield Trials(Path(place))


def _end(process: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
