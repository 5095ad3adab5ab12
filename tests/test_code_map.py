"""The one map from names to code is whole, and variants, mutants, the model's page and the coverage gate go by it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import code_map
import coverage_sum
import mutation
import test_controls
import test_formal
import test_schedules
import test_swarm
from code_map import DOORS, GATED, MODULES, MOVED, ROOT, Module, function, name_of, path_of, split


def test_every_module_of_the_engine_and_of_the_plug_in_is_in_the_map_once() -> None:
    found = {path.relative_to(ROOT).as_posix() for top in ("txsink", "formats") for path in (ROOT / top).rglob("*.py")}
    expected = {path for path in found if not path.startswith("txsink/testing/")} - DOORS
    assert sorted(module.path for module in MODULES.values()) == sorted(expected)


def test_a_module_without_a_row_is_in_the_map_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("log.log", "store.local.store", "spark.fast"):
        rest = {other: row for other, row in MODULES.items() if other != name}
        monkeypatch.setattr(code_map, "MODULES", rest)
        assert code_map.unlisted() == {name: Module(MODULES[name].name, "")}


def test_the_tests_of_every_module_are_there() -> None:
    for name, module in MODULES.items():
        for test in module.tests.split():
            assert Path(__file__).with_name(f"test_{test}.py").exists(), (name, test)


def test_every_name_that_moved_is_found_where_it_is_said_to_be() -> None:
    for name in MOVED:
        assert function(name) is not None


@pytest.mark.parametrize(
    ("module", "targets"),
    [
        (test_controls, [target for one in test_controls.VARIANTS.values() for target, _ in one.broken]),
        (test_swarm, [target for one in test_swarm.PLANTED.values() for target, _ in one.broken]),
        (test_schedules, [target for target, *_ in test_schedules.PLANTED.values()]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_every_broken_variant_goes_by_the_map(module: object, targets: list[str]) -> None:
    assert len(targets) >= 5
    for target in targets:
        assert isinstance(target, str), target
        assert callable(function(target)), target


def test_what_rewrites_the_engine_names_it_by_the_map() -> None:
    """A function that is handed over itself would have to be renamed in every variant."""
    seen = 0
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"rewrite", "variant"}:
                seen += 1
                target = node.args[1 if getattr(node.func, "id", "") == "rewrite" else 0]
                assert not isinstance(target, ast.Attribute), (path.name, ast.unparse(target))
    assert seen > 30


def test_mutants_are_made_of_the_modules_of_the_map_and_named_by_it() -> None:
    assert set(mutation.MODULES) == {name for name, module in MODULES.items() if module.is_cut}
    for mutant in mutation.mutants():
        name, _, _ = mutant.name.partition(": ")
        assert path_of(mutant.module).exists()
        assert split(name.replace(".py ", ".").replace("/", "."))[1], name


def test_the_page_of_the_model_names_code_by_the_map() -> None:
    assert len(test_formal.NAMED) > 20
    for name in test_formal.NAMED:
        assert function(name) is not None, name


def test_the_coverage_gate_is_that_of_the_map() -> None:
    assert {"log.entry", "paths", "log.log", "protocol.resolving", "protocol.recovery"} <= set(GATED)
    assert [MODULES[name].path for name in GATED] == coverage_sum.GATE
    assert "include" not in (ROOT / "pyproject.toml").read_text().partition("[tool.coverage.report]")[2]


def test_a_rename_is_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "old", MODULES["paths"]._replace(name="txsink.log.slots"))
    monkeypatch.setitem(MOVED, "protocol.fencing.take_over", "protocol.fencing.claim")
    assert function("old.Slots") is function("log.slots.Slots")
    assert function("protocol.fencing.take_over") is function("protocol.fencing.claim")
    assert name_of("protocol.fencing", "claim") == "protocol.fencing.take_over"
    assert name_of("protocol.fencing", "claim.make") == "protocol.fencing.take_over.make"
    assert name_of("protocol.fencing", "claims") == "protocol.fencing.claims"
    with pytest.raises(LookupError, match="nowhere"):
        function("nowhere.claim")


def test_the_map_imports_nothing_of_the_engine() -> None:
    program = "import code_map, sys; sys.exit(any(name.startswith('txsink') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0
