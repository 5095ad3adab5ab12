"""The formal model of the protocol, checked by TLC: what holds on small bounds, and each rule that it needs (I1-I14).

A model that holds proves something only when each rule that is taken out breaks it, and when what it is about happens
in it at all; both are asserted. `make model` checks the large bounds. What is modelled, and what not: `docs/model.md`.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

import formal
from formal import BROKEN, LARGE, LARGE_BROKEN, SEEN_IN, SMALL, Case, Checked

ROOT = Path(__file__).parents[1]
MODULES = ("Protocol", "Slots", "Delta")
STATES_MIN = 1_000_000

needs_tlc = pytest.mark.skipif(bool(formal.missing()), reason=formal.missing() or "it is there")


@needs_tlc
def test_every_promise_holds_on_the_small_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    found = [formal.check(case, workers=2) for case in SMALL]
    with capsys.disabled():
        for case, one in zip(SMALL, found, strict=True):
            print(f"\nmodel: {case.module} {case.constants} {one}", end="")
        print(f"\nmodel: {sum(one.distinct for one in found):,} distinct states", end="")
    assert [one.violated for one in found] == [None] * len(SMALL)
    assert [one.left for one in found] == [0] * len(SMALL)
    assert sum(one.distinct for one in found) >= STATES_MIN


@cache
def checked(cases: tuple[int, ...]) -> list[Checked]:
    """Broken variants, two at a time: with one worker each, the first violation found is always the same."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda at: formal.check(BROKEN[at][0]), cases))


@needs_tlc
def test_each_rule_that_is_switched_off_breaks_the_promise_it_is_there_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(tuple(range(len(BROKEN))))
    with capsys.disabled():
        for (case, _), one in zip(BROKEN, found, strict=True):
            print(f"\nmodel: {case.module} without «{case.broken}» {one}", end="")
    assert [one.violated for one in found] == [promise for _, promise in BROKEN]


@needs_tlc
def test_what_the_model_is_about_happens_in_it() -> None:
    cases = [Case(module, SEEN_IN[name], seen=name) for module in MODULES for name in formal.sights(module)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(formal.check, cases))
    assert [one.violated for one in found] == [case.seen for case in cases]


def test_every_rule_of_the_model_has_a_variant_without_it() -> None:
    for module in MODULES:
        switched_off = [case.broken for case, _ in [*BROKEN, *LARGE_BROKEN] if case.module == module]
        assert sorted(switched_off) == sorted(formal.rules(module))
        assert set(formal.sights(module)), module
        assert {promise for case, promise in BROKEN if case.module == module} <= set(formal.promises(module))


def test_the_large_bounds_are_larger() -> None:
    for module in MODULES:
        assert any(case.module == module for case in LARGE)
        assert not any(case in SMALL for case in LARGE)


# -- the page that maps steps to functions ----------------------------------------------------------------

PAGE = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")


NAMED = re.findall(r"`([a-z_]+\.[\w.]+)`", PAGE)


def steps_of(module: str) -> set[str]:
    """The actions of a module of the model, as its next step lists them."""
    text = (formal.MODELS / f"{module}.tla").read_text(encoding="utf-8")
    body = text[text.index("\nStep(r) ==" if "\nStep(r) ==" in text else "\nNext ==") : text.index("\nSpec ==")]
    return set(re.findall(r"(?:\\/|:)\s+([A-Z]\w+)", body)) - {"Step"}


def section(module: str) -> str:
    return PAGE.partition(f"## {module}")[2].partition("\n## ")[0]


@pytest.mark.parametrize("module", MODULES)
def test_the_page_maps_every_step_of_the_model(module: str) -> None:
    mapped = {
        name
        for row in section(module).split("\n")
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert mapped == steps_of(module)


def test_every_promise_of_the_model_is_on_the_page() -> None:
    for module in MODULES:
        for name in formal.promises(module):
            assert f"`{name}`" in section(module), name
