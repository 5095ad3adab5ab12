"""The scenarios that the suites of Spark's other sinks require: each is a test here, named after its promise.

    id      what is required
    ------  -----------------------------------------------------------------------------------------
    S1      rows 1, 2, 3 are read as 1, 2, 3
    S2      partitions by one and by two columns: columns, pruning
    S3      awkward paths and partition values come back through every reader
    S4      update mode and save modes that are not offered: a clear error before data is written
    S5      a task fails for good: nothing staged is left
    S6      of many tasks one fails late: nothing is visible
    S7      fewer rows than tasks make fewer files than tasks
    S8      a foreign file is invisible to the log's reader
    S9      a relative path is resolved once, on the driver
    S10     names that differ by case only are refused
    S11     tasks, executors and drivers die again and again: every row once
    S12     the latest committed epoch is found without opening old entries
    S13     a restart on the same checkpoint: the same writer, nothing new, then the next epoch
    S14     complete mode: replaced by each batch
    S15     another partitioning, another type: refused
    S16     every column a partition column: refused
    S17     declared non-null, null in fact: a readable file
    S18     an application's version is written once; one of the two options alone is an error
    S19     a batch into two tables and a crash between them: each once
    S20     two live runs of one query: the loser stops
    S21     the commit lands and its answer is lost: once
    S22     Spark forgets that a batch was committed: the same rows
    S23     the commit lands and then raises: the rows stay
    S24     two streams into one table keep their own epochs
    S25     a new checkpoint writes its own batch 0
    S26     the same checkpoint, spelled with a slash, is the same writer
    S27     of two attempts of a task only the one that counts is published
    S28     a job that failed is written by its repetition
    S29     jobs to the same and to adjacent paths do not clean up for each other
    S30     a publish that stopped at one of many files is finished by recovery
    S31     a query is stopped in the middle of a commit, and starts again
    S32     the commit raises after its entry and Spark calls abort: the data stays
    S33     Spark Connect, and a cluster whose executors have to find the package

Promises: an id stands in the docstring of a test (or of what a cluster's driver tries), which uses the session or the
stream that it asks for, and those that are about a restart stand in tests of HDFS and of S3 as well.
Relies on: docstrings that begin with their ids.
Does not promise: that a docstring tells the truth.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
IDS = re.findall(r"^ {4}(S\d+) ", __doc__ or "", re.MULTILINE)
SPARK = ("test_spark", "spark_cluster_driver", "spark_connect_driver")
# The state of what was begun, and of the checkpoint, meets a new start.
RESTARTS = {
    "hdfs": ("S13", "S21", "S22", "S23", "S28", "S30", "S31", "S32"),
    "s3": ("S13", "S21", "S22", "S23", "S28", "S30", "S31", "S32"),
}


def scenarios() -> Iterator[tuple[str, str, str]]:
    """Ids, modules and functions."""
    for path in sorted(TESTS.glob("*.py")):
        if path.name == Path(__file__).name:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (node.name.startswith("test_") or path.stem.endswith("_driver")):
                told = re.match(r"(?:[A-Z]\d+(?:, | and |[:.]))+", ast.get_docstring(node) or "")
                for found in re.findall(r"S\d+", told.group() if told else ""):
                    yield found, path.stem, node.name


FOUND = list(scenarios())


def test_the_list_is_whole() -> None:
    assert [f"S{number}" for number in range(1, 34)] == IDS


@pytest.mark.parametrize("scenario", IDS)
def test_a_scenario_is_a_test(scenario: str) -> None:
    assert [name for found, _, name in FOUND if found == scenario], f"{scenario} is in no test's docstring"
    if scenario != "S12":  # which is about the log alone
        assert [name for found, module, name in FOUND if found == scenario and module.startswith(SPARK)]


@pytest.mark.parametrize(("store", "scenario"), [(store, one) for store, ids in RESTARTS.items() for one in ids])
def test_a_restart_is_tried_on_other_stores(store: str, scenario: str) -> None:
    names = [name for found, module, name in FOUND if found == scenario and module.startswith("test_spark")]
    assert [name for name in names if f"_on_{store}_" in name], f"{scenario} has no test of Spark on {store}"


def test_what_a_test_of_spark_asks_for_it_uses() -> None:
    """A session, a stream or a site in the head of a test, and not in its body, is a test that runs none."""
    seen = 0
    for path in sorted(TESTS.glob("test_spark*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            asked = {argument.arg for argument in node.args.args} & {"spark", "stream", "site", "killing", "lake"}
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            assert asked <= used, f"{path.name}: {node.name} does not use {asked - used}"
            seen += bool(asked)
    assert seen > 50


def test_no_test_names_a_scenario_that_is_not_listed() -> None:
    assert {found for found, _, _ in FOUND} <= {*IDS}
