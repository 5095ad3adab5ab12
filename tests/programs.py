"""The programs in the documents: which test runs those of a page, and that there are some.

Promises: `programs_of` fails for a page with fewer programs than it is known to have, so that a test which runs all
of them cannot pass with none. `RUN_BY` names every page with a program; a test holds it to that.
Relies on: fences of three backticks with the word `python`.
Does not promise: that a program shows what its page says. The test that runs it does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Page(NamedTuple):
    """How many programs a page has, the test that runs them, and the one that runs those on Spark, if it is another."""

    programs: int
    test: str
    test_on_spark: str = ""


RUN_BY: dict[str, Page] = {
    "README.md": Page(
        3,
        "test_docs.py::test_the_programs_of_the_readme_run_in_their_order",
        "test_examples.py::test_the_programs_of_the_readme_on_spark_run",
    ),
    "docs/delta.md": Page(1, "test_docs.py::test_the_programs_of_the_guide_to_delta_run"),
    "docs/python.md": Page(4, "test_docs.py::test_the_programs_of_the_guide_to_python_run_in_their_order"),
    "docs/spark.md": Page(4, "test_examples.py::test_the_programs_of_the_guide_run_in_their_order"),
    "docs/stores.md": Page(1, "test_table_s3.py::test_the_programs_of_the_guide_to_stores_run"),
    "docs/testing.md": Page(3, "test_docs.py::test_the_programs_of_the_testing_guide_run_in_their_order"),
    "docs/tutorial.md": Page(7, "test_docs.py::test_the_programs_of_the_tutorial_run_in_their_order"),
    "docs/two-phase.md": Page(2, "test_two_phase.py::test_the_programs_in_the_guide_run"),
}


def blocks_of(page: str) -> list[str]:
    """Whatever programs a page has."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def programs_of(page: str) -> list[str]:
    """The programs of a page, as many as are known."""
    found = blocks_of(page)
    if len(found) != RUN_BY[page].programs:
        message = f"{page} has {len(found)} programs, RUN_BY says {RUN_BY[page].programs}"
        raise AssertionError(message)
    return found


def is_on_spark(program: str) -> bool:
    """Whether a program needs Spark, and so Java."""
    return "import pyspark_txsink" in program
