"""The table of who deletes what says what the code says."""

from __future__ import annotations

import re

import deletes
from made import ROOT, problem

ONE = """
class A:
    def taken(self):
        # Something else.
        # DELETES: a thing; proof: the log, which has been looked at
        # before (I8).
        self.store.delete(x)
        store.prune(y)  # DELETES: a directory; proof: it is empty (I8).
        store.prune(z)  # which is another

    def listed(self):
        # DELETES: nothing, it lists; proof: `dry_run` (I8).
        vacuum()
"""


def test_a_row_says_what_goes_the_proof_and_the_function() -> None:
    assert deletes.rows([("txsink/publish/protocol.py", ONE)]) == [
        ["a thing", "the log, which has been looked at before", "`publish.protocol.taken`"],
        ["a directory", "it is empty", "`publish.protocol.taken`"],
    ]


def test_the_table_of_the_page_has_every_comment_of_the_code() -> None:
    found = "".join(text for _, text in deletes.sources())
    spoken = len(re.findall("# DELETES: ", found)) - len(re.findall("# DELETES: nothing", found))
    assert len(deletes.rows(deletes.sources())) == spoken > 30
    assert problem(deletes.PAGE, deletes.shown) is None


def test_a_page_without_its_table_or_with_an_old_one_is_seen() -> None:
    assert problem("README.md", deletes.shown) == "README.md has no made part"
    assert "run tests/made.py" in str(problem(deletes.PAGE, lambda _: "| old |\n"))


def test_the_command_that_writes_the_table_is_named_where_contributors_look() -> None:
    assert "python tests/made.py" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
