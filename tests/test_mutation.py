"""The mutants of the protocol: the list is whole, what is explained exists, and the tool kills what it must.

The run over all of them takes long and is a part of `make faults`: `python tests/mutation.py`.
"""

from __future__ import annotations

from mutation import MODULES, ROOT, Mutant, explained, mutants, run


def test_every_module_of_the_protocol_has_mutants_and_each_changes_it() -> None:
    found = list(mutants())
    assert len(found) > 100
    assert len({mutant.name for mutant in found}) == len(found)
    assert {mutant.module for mutant in found} | {"publish/__init__.py"} == set(MODULES)
    for mutant in found:
        assert mutant.source != (ROOT / "txsink" / mutant.module).read_text(encoding="utf-8"), mutant.name


def test_only_mutants_that_exist_are_explained_and_each_has_a_reason() -> None:
    names = {mutant.name for mutant in mutants()}
    for name, reason in explained().items():
        assert name in names
        assert len(reason) > 10, name


def named(end: str) -> Mutant:
    return next(mutant for mutant in mutants() if mutant.name.endswith(end))


def test_a_mutant_that_commits_nothing_is_killed() -> None:
    killer = run(named("roll_forward: leave out «log.append(_resolving(log, run, pending, Commit, **published.told))»"))
    assert killer.startswith("FAILED tests/test_transaction.py::")
