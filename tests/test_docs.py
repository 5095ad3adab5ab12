"""What the documents say is true: their programs run, their links lead somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from programs import RUN_BY, Page, is_on_spark, programs_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def test_the_programs_of_the_readme_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in programs_of("README.md"):
        if not is_on_spark(block):
            exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert sorted(one.name for one in tmp_path.glob("*/[a-z]*")) == ["events", "orders"]


def test_the_programs_of_the_tutorial_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    names: dict[str, object] = {"__name__": "tutorial"}
    for block in programs_of("docs/tutorial.md"):
        exec(compile(block, "tutorial.md", "exec"), names)


def test_the_programs_of_the_guide_to_python_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    for block in programs_of("docs/python.md"):
        exec(compile(block, "python.md", "exec"), names)


def test_the_programs_of_the_guide_to_delta_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in programs_of("docs/delta.md"):
        exec(compile(block, "delta.md", "exec"), {"__name__": "guide"})


@pytest.mark.parametrize("page", ["README.md", "docs/delta.md", "docs/python.md", "docs/spark.md", "docs/tutorial.md"])
def test_the_programs_of_two_users_of_one_machine_do_not_meet(page: str) -> None:
    """Seen: README wrote to one fixed path, which the second user may not write to."""
    fixed = [line for block in programs_of(page) for line in block.splitlines() if re.search(r"""["']/""", line)]
    assert fixed == []


def test_the_programs_of_the_testing_guide_run_in_their_order() -> None:
    names: dict[str, object] = {"__name__": "guide"}
    for block in programs_of("docs/testing.md"):
        exec(compile(block, "testing.md", "exec"), names)


def test_every_program_in_the_documents_is_run_by_a_test_that_is_there() -> None:
    with_programs = {path.relative_to(ROOT).as_posix() for path in PAGES if "```python" in path.read_text()}
    assert with_programs == {*RUN_BY}
    for page, (_, *tests) in RUN_BY.items():
        for test in filter(None, tests):
            file, _, name = test.partition("::")
            source = Path(__file__).with_name(file).read_text()
            assert f"def {name}(" in source
            assert f'programs_of("{page}")' in source.partition(f"def {name}(")[2].partition("\n\n\n")[0], page
        assert bool(tests[1]) is (page == "README.md"), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_fence_says_what_it_holds_and_none_holds_a_program_that_no_test_runs(page: Path) -> None:
    """`py`, `Python` or a fence that is set in would be a program that nobody finds."""
    opened = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")][::2]
    assert [line for line in opened if line not in {"```", "```console", "```json", "```python", "```text"}] == []


def test_a_page_says_that_its_blocks_are_run_only_when_it_has_some() -> None:
    claims = [
        page.relative_to(ROOT).as_posix()
        for page in PAGES
        if re.search(r"block.{0,20} run by\sa test", page.read_text())
    ]
    assert {"docs/python.md", "docs/tutorial.md"} <= {*claims} <= {*RUN_BY}


def test_a_page_that_lost_its_programs_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUN_BY, "docs/design.md", Page(1, ""))
    with pytest.raises(AssertionError, match=r"docs/design.md has 0 programs"):
        programs_of("docs/design.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_every_page_of_the_documents_has_its_question_and_is_reached_from_the_readme() -> None:
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()
    rows = [line for line in (ROOT / "docs" / "README.md").read_text().splitlines() if line.startswith("| [")]
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    listed = [LINK.findall(line)[0] for line in rows]
    assert pages <= {*listed}
    assert len(listed) == len({*listed})
    assert [line for line in rows if "?" not in line] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "decisions"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_file_of_the_tree_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:txsink|tests|formats|examples|benchmarks)/[\w/.-]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


WIDE = {
    "cli",
    "delta",
    "faults",
    "model",
    "performance",
    "security",
    "spark",
    "status",
    "stores",
    "testing",
    "two-phase",
}
WIDE |= {"types", "CHANGELOG", "CONTRIBUTING", "SECURITY"}  # until they are rewritten


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in WIDE and page.parent.name != "decisions"])
def test_prose_has_at_most_100_columns(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_the_readme_can_be_read_in_one_go() -> None:
    assert (ROOT / "README.md").read_text().count("\n") < 150


HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_a_heading_find_it(page: Path) -> None:
    """Spelled as GitHub does: small letters, blanks as "-", everything but letters, digits and "-" left out."""
    for name, anchor in ANCHOR.findall(page.read_text()):
        target = (page.parent / name) if name else page
        headings = [
            re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in HEADING.findall(target.read_text())
        ]
        assert anchor in headings, (name, anchor)
