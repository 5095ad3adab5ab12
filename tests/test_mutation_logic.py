"""The mutants of logic: what they are, that the record is of mutants that were tried, and that killers kill again.

The whole run takes hours and is a part of `make faults`: `python tests/mutation_logic.py`.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

import mutation_logic
from code_map import MODULES, ROOT, path_of
from mutation_logic import SEEN, SURVIVES, SURVIVORS, drawn, mutants, pairs_of

RUN_IT = "run tests/mutation_logic.py with the name of the module"
DRAWN, MODULES_DRAWN = 60, 6  # what about 90 seconds of a busy machine hold
OPEN = "open: "

TRIED_MIN = 500  # or the record has rotted, and what is drawn from it proves little


def changes(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What mutants there are of a module with this source, as one changed line each."""
    (tmp_path / "module.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(mutation_logic, "path_of", lambda name: tmp_path / "module.py")
    text = (tmp_path / "module.py").read_text().splitlines()
    found = []
    for mutant in mutants("log"):
        lines = mutant.source.splitlines()
        found += [line.strip() for line, before in zip(lines, text, strict=True) if line != before]
    return found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return a < b", ["return (a <= b)"]),
        ("return a == b", ["return (a != b)"]),
        ("return a not in b", ["return (a in b)"]),
        ("return a is None", ["return (a is not None)"]),
        ("return a and b", ["return (a or b)"]),
        ("return not a", ["return (a)"]),
        ("return f(7)", ["return f((8))", "return f((6))"]),
        ("return f(True)", ["return f((False))"]),
        ("x = a if b else c", ["x = a if (not b) else c"]),
        ("return [x for x in a if x]", ["return [x for x in a if (not x)]"]),
        ("return f'{a < 1}'", []),
        ("'a docstring of 3'", []),
        ("x: Literal[1] = a", []),
        ("return (a <\n        b)", ["return ((a <=", ")"]),
    ],
)
def test_what_is_mutated(statement: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = changes(f"def f(a, b, c):\n    {statement}\n", monkeypatch, tmp_path)
    if "\n" in statement:
        assert len(found) >= 1, found
    else:
        assert found == expected


def test_conditions_and_what_they_compare_are_mutated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = changes(
        "SIZE = 4\ndef f(a=1):\n    if a > SIZE:\n        pass\n    while a:\n        pass\n", monkeypatch, tmp_path
    )
    assert found == ["SIZE = (5)", "SIZE = (3)", "if (a >= SIZE):", "if (not a > SIZE):", "while (not a):"]


@cache
def there() -> dict[str, set[str]]:
    """The names of all mutants, by module."""
    found = {}
    for module in MODULES:
        text = path_of(module).read_text(encoding="utf-8")
        made = [*mutants(module)]
        assert all(one.source != text for one in made), module
        found[module] = {one.name for one in made}
        assert len(found[module]) == len(made), "two of one name"
    return found


def test_every_mutant_has_a_name_of_its_own_and_changes_its_module() -> None:
    assert sum(map(len, there().values())) > 3000


def test_the_survivors_are_listed_and_each_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    survived = {name for name, killer in pairs_of(SEEN).items() if killer == SURVIVES}
    listed = pairs_of(SURVIVORS)
    assert survived == listed.keys(), RUN_IT
    assert all(len(reason) > 20 for reason in listed.values())
    now = survived & set().union(*there().values())
    still_open = sum(listed[name].startswith(OPEN) for name in now)
    with capsys.disabled():
        print(f"\nmutants of logic: {len(now)} survive, {still_open} of them without a reason yet")


def test_what_was_tried_and_which_modules_were_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutants of code that has changed since its module was tried are counted as not tried."""
    known = pairs_of(SEEN)
    tried = {module: len(names & known.keys()) for module, names in there().items()}
    untried = sorted(module for module, names in there().items() if names and not tried[module])
    count = sum(map(len, there().values()))
    with capsys.disabled():
        print(f"\nmutants of logic: {sum(tried.values()):,} of {count:,} tried; none of {', '.join(untried) or 'none'}")
    assert sum(tried.values()) >= TRIED_MIN, RUN_IT


def test_mutants_drawn_from_the_sources_die_by_the_tests_that_killed_them_before() -> None:
    """Which pass, without a mutant, in the same run."""
    known = pairs_of(SEEN)
    chosen = drawn(DRAWN, MODULES_DRAWN, there())
    assert sum(map(len, chosen.values())) >= DRAWN // 2, RUN_IT
    program = Path(__file__).with_name("mutation_logic.py")
    names = "\n".join(name for of_module in chosen.values() for name in of_module)
    done = subprocess.run(
        [sys.executable, program, "--again"], input=names, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names.splitlines():
        assert f"{name}  ->  {known[name]}\n" in done.stdout, (name, RUN_IT)
