"""The mutants of the protocol: the list is whole, and is that of the last whole run; some of its killers kill again.

The whole run takes long and is a part of `make faults`: `python tests/mutation.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import code_map
from code_map import ROOT
from mutation import MODULES, SEEN, SURVIVES, explained, mutants, pairs_of

RUN_IT = "run tests/mutation.py"
SAMPLE = 25  # mutants that are killed once more here


def test_every_module_of_the_protocol_has_mutants_and_each_changes_it() -> None:
    found = list(mutants())
    assert len(found) > 100
    assert len({mutant.name for mutant in found}) == len(found)
    assert {mutant.module for mutant in found} | {"publish.protocol"} == set(MODULES)
    for mutant in found:
        assert mutant.source != code_map.path_of(mutant.module).read_text(encoding="utf-8"), mutant.name


def test_the_last_whole_run_saw_these_mutants_and_no_others() -> None:
    assert sorted(pairs_of(SEEN)) == sorted(mutant.name for mutant in mutants()), RUN_IT


def test_the_mutants_that_survived_are_those_explained_and_each_has_a_reason() -> None:
    assert {name for name, killer in pairs_of(SEEN).items() if killer == SURVIVES} == explained().keys(), RUN_IT
    for name, reason in explained().items():
        assert len(reason) > 40, name


def test_the_tests_that_killed_are_there() -> None:
    for killer in set(pairs_of(SEEN).values()) - {SURVIVES}:
        file, *_, test = killer.split("::")
        sources = [ROOT / file, ROOT / "tests" / "contract_publish.py"]
        name = test.partition("[")[0]
        assert any(f"def {name}(" in source.read_text(encoding="utf-8") for source in sources), (killer, RUN_IT)


def test_mutants_die_by_the_tests_that_killed_them_before() -> None:
    """Which pass, without a mutant, in the same run."""
    killed = {name: killer for name, killer in pairs_of(SEEN).items() if killer != SURVIVES}
    chosen = list(killed)[:: len(killed) // SAMPLE]
    program = Path(__file__).with_name("mutation.py")
    done = subprocess.run([sys.executable, program, *chosen], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in chosen:
        assert f"{name}  ->  {killed[name]}\n" in done.stdout, RUN_IT
