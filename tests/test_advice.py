"""Every advice of every error asks for one of six things; which of them a test follows is written down and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from advice import ELSEWHERE, FOLLOWED, LOG_MODULES, kind_of, sites

SITES_MIN = 216


def test_every_advice_asks_for_one_of_six_things(capsys: pytest.CaptureFixture[str]) -> None:
    found = [*sites()]
    unknown = [(site, text) for site in found for text in site.advice if kind_of(text) is None]
    assert unknown == []
    silent = Counter(site.module for site in found if not site.advice)
    assert all(count <= ELSEWHERE.get(module, 0) for module, count in silent.items()), silent
    kinds = Counter(kind_of(text) for site in found for text in site.advice)
    with capsys.disabled():
        print(f"\nadvice: {len(found)} places, {dict(kinds)}")
    assert len(found) >= SITES_MIN


def test_what_the_errors_of_the_log_advise_is_followed_by_a_test_or_counted(capsys: pytest.CaptureFixture[str]) -> None:
    mine = [(site.module, text) for site in sites() if site.module in LOG_MODULES for text in site.advice]
    followed = [one for one in mine if any(one[0] == at and one[1].startswith(words) for at, words in FOLLOWED)]
    with capsys.disabled():
        print(f"\nadvice of the log: {len(followed)} of {len(mine)} followed; not yet: {sorted({*mine} - {*followed})}")
    assert len(followed) >= 24
    for at, words in FOLLOWED:
        assert any(module == at and text.startswith(words) for module, text in mine), (at, words)
    for test in FOLLOWED.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in Path(__file__).with_name(file).read_text(encoding="utf-8")


def test_an_advice_that_asks_for_nothing_known_is_seen() -> None:
    assert kind_of("Hope for the best") is None
    assert kind_of("Restore the newest state") != kind_of("Restore it from a copy")
