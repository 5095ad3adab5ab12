"""Spark's Delta reader, which skips files by statistics, finds every row: its answers are those of a twin table.

Promises: of files that were converted, staged and adopted; of every type, flat and in a struct; with NaN, infinities,
nulls and cut texts; counts, least and greatest values and limits too, which Spark answers from statistics alone.
Skipped, with the reason, as `test_delta_spark` is.
Relies on: `delta_spark_skipping_child`, one session for all questions.
Does not promise: Parquet's own filter inside a file, which Spark has switched off here: it loses -0.0 by itself.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from delta_skipping import KINDS, OPERATORS, Question, asked, made
from place import Place
from test_delta_skipping import GROUPS, PROPERTIES, lying
from test_delta_spark import told

pytestmark = pytest.mark.stores  # it downloads, and takes minutes

WORDS = {'"': "`", "timestamp(6) with time zone": "timestamp", "timestamp(6)": "timestamp_ntz"}
SPARKS = {**KINDS, "raw": KINDS["raw"]._replace(sql=lambda value: f"X'{value.hex()}'")}
# What Spark's reader turns into bounds besides a comparison.
FORMS = ("not ({0})", "not ({0}) or {1}", "{0} and {1}", "{0} or {1}", "{2} <=> {3}", "{2} <> {3}", "{2} in ({3}, {4})")
QUESTIONS, COMBINED = 17, 7  # of each table
WITH_TOTALS = {"long", "int", "byte", "double", "float", "date"}


def spelled(question: Question) -> str:
    condition = question.sql(SPARKS, dot="s.`{}`")
    assert condition is not None
    for old, new in WORDS.items():
        condition = condition.replace(old, new)
    return condition


def conditions_of(names: list[str], chance: random.Random) -> list[str]:
    """Drawn ones, with each column flat and nested among them, and some that are combined."""
    all_ = asked(names, chance)
    chance.shuffle(all_)
    first = {(one.column, one.is_nested): one for one in all_ if one.operator in OPERATORS}
    drawn = list(dict.fromkeys([*first.values(), *all_]))[:QUESTIONS]
    compared = [one for one in all_ if one.operator in OPERATORS]
    combined = []
    for at in range(COMBINED):
        one, other = chance.sample(compared, 2)
        name, literal = spelled(one).split(f" {one.operator} ", 1)
        second = spelled(one._replace(value=chance.choice(KINDS[one.column].values))).split(f" {one.operator} ", 1)[1]
        combined.append(FORMS[at % len(FORMS)].format(spelled(one), spelled(other), name, literal, second))
    prefixes = ["startswith(text, 'aaa')"] if "text" in names else []
    return [*map(spelled, drawn), *combined, *prefixes]


def totals_of(names: list[str]) -> list[str]:
    """What Spark answers without reading a file, where statistics say it; of other types it reads the files."""
    counted = "select count(*), min(id), max(id) from {}"
    columns = [f"select min(`{name}`), max(`{name}`) from {{}}" for name in names if name in WITH_TOTALS]
    return [counted, *columns, "select count(*) from (select id from {} limit 5)"]


def without_statistics(path: Path) -> Path:
    """A copy of a table of which the statistics lie."""
    twin = path.with_name(f"{path.name}-twin")
    shutil.copytree(path, twin)
    for log in (twin / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = None
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return twin


def test_sparks_delta_reader_that_skips_files_loses_no_row(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = []
    for seed, names in enumerate(GROUPS):
        chance, place = random.Random(200 + seed), Place(tmp_path / f"t{seed}")
        twin = made(place, names, chance, PROPERTIES[seed % len(PROPERTIES)])
        told_of = {"conditions": conditions_of(names, chance), "totals": totals_of(names)}
        tasks.append({"path": str(place.path), "twin": str(twin), **told_of})
    liar = lying(Place(tmp_path / "liar"))
    lies = {"conditions": ["id >= 0", "id is not null"], "totals": ["select max(id) m from {}"]}
    tasks.append({"path": str(liar), "twin": str(without_statistics(liar)), **lies})
    (tmp_path / "tasks").write_text(json.dumps(tasks))
    *answers, lied = told("delta_spark_skipping_child.py", str(tmp_path / "tasks"))
    assert len(answers) == len(GROUPS)
    lost = [
        (task["path"], asked_for, found, expected)
        for task, answer in zip(tasks, answers, strict=False)
        for asked_for, found, expected in zip(
            [*task["conditions"], *task["totals"]],
            [*answer["found"], *answer["totals"]],
            [*answer["expected"], *answer["expected_totals"]],
            strict=True,
        )
        if found != expected
    ]
    assert not lost
    # A table whose statistics lie loses rows, so the reader believes them.
    assert (lied["found"], lied["expected"]) == ([[], [1]], [[1], [1]])
    assert (lied["totals"], lied["expected_totals"]) == (["Row(m=-5)"], ["Row(m=1)"])
    assert any(any(answer["found"]) for answer in answers)
    print(f"\n{sum(len(answer['found']) + len(answer['totals']) for answer in answers)} answers of Spark")
