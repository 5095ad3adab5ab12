"""What the documents say is true: their programs run, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs import RUN_BY, Page, programs_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def test_the_programs_of_the_readme_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in programs_of("README.md"):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert sorted(one.name for one in tmp_path.glob("*/[a-z]*")) == ["audit", "events", "orders"]


def test_the_programs_of_the_guide_to_delta_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in programs_of("docs/delta.md"):
        exec(compile(block, "delta.md", "exec"), {"__name__": "guide"})


@pytest.mark.parametrize("page", ["README.md", "docs/delta.md", "docs/spark.md"])
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
    for page, (_, test) in RUN_BY.items():
        file, _, name = test.partition("::")
        source = Path(__file__).with_name(file).read_text()
        assert f"def {name}(" in source
        assert f'programs_of("{page}")' in source.partition(f"def {name}(")[2].partition("\n\n\n")[0], page


def test_a_page_that_lost_its_programs_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUN_BY, "docs/design.md", Page(1, ""))
    with pytest.raises(AssertionError, match=r"docs/design.md has 0 programs"):
        programs_of("docs/design.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_every_page_of_the_documents_is_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    pages = [page for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text]
    assert pages == []
