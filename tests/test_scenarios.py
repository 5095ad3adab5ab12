"""Each scenario that peers' own suites require is named in the docstring of a test here.

F1 to F33 and S1 to S33: the ids of a list of setups and expected results that were read out of the test suites of
Flink, Spark, Delta, Iceberg, Hudi, Hadoop, Kafka Connect, RisingWave, Beam and Paimon. `pytest -k` does not know them;
this prints where each stands:

    python tests/test_scenarios.py
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SCENARIOS = [*(f"F{number}" for number in range(1, 34)), *(f"S{number}" for number in range(1, 34))]
_ID = re.compile(r"\b([FS])([1-9][0-9]?)\b(?: to \1([1-9][0-9]?)\b)?")

# Those that stand under another form, and where; each is looked for there.
ELSEWHERE: dict[str, str] = {}


def ids_in(text: str) -> set[str]:
    """The scenarios that a docstring names; `F1 to F9` are nine."""
    found: set[str] = set()
    for kind, first, last in _ID.findall(text):
        found |= {f"{kind}{number}" for number in range(int(first), int(last or first) + 1)}
    return found & {*SCENARIOS}


def docstrings_of(text: str) -> Iterator[tuple[str, str]]:
    """Name and docstring of every test, and of what tests run in other processes."""
    for node in ast.walk(ast.parse(text)):
        is_test = isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ClassDef) and "Contract" in node.name)
        if is_test and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, ast.get_docstring(node) or ""


def named() -> dict[str, list[str]]:
    """Where each scenario is named."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.glob("*.py")):
        # Contracts and the drivers of other processes hold tests too; of other modules, only what is called a test.
        is_whole = path.name.startswith(("contract_", "spark_cluster_driver"))
        for name, docstring in docstrings_of(path.read_text()):
            if is_whole or name.startswith(("test_", "Test")) or "Contract" in name:
                for one in ids_in(docstring):
                    found[one].append(f"{path.name}: {name}")
    return found


def test_every_scenario_is_named_by_a_test() -> None:
    found = named()
    missing = [one for one in SCENARIOS if one not in found and one not in ELSEWHERE]
    assert missing == []
    assert [one for one in ELSEWHERE if one in found] == [], "it needs no exception any more"
    for one, where in ELSEWHERE.items():
        assert (TESTS / where).exists(), f"{one} stood in {where}"


def test_ids_are_found_alone_in_rows_and_in_ranges() -> None:
    assert ids_in("F1, F2 and S33: it is so.") == {"F1", "F2", "S33"}
    assert ids_in("F11 to F13, and F20") == {"F11", "F12", "F13", "F20"}
    assert ids_in("I1, S3Store, xF1, F034, S99, F0") == set()


def test_only_docstrings_of_tests_count() -> None:
    text = '"""F1"""\n# F2\ndef test_a() -> None:\n    """F3."""\n    x = "F4"\n\nclass A:\n    """F5"""\n'
    assert dict(docstrings_of(text)) == {"test_a": "F3."}


if __name__ == "__main__":
    for one, tests in sorted(named().items(), key=lambda item: (item[0][0], int(item[0][1:]))):
        print(one, *tests, sep="\n    ")
