"""What the documents say is true: their programs run, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def test_the_programs_of_the_readme_run_in_their_order(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(blocks) >= 4
    for block in blocks:
        program = block.replace("/tmp/shop", str(tmp_path))
        exec(compile(program, "README.md", "exec"), {"__name__": "readme"})


def test_the_programs_of_the_guide_to_delta_run(tmp_path: Path) -> None:
    for block in BLOCK.findall((ROOT / "docs/delta.md").read_text()):
        exec(compile(block.replace("/tmp/shop", str(tmp_path)), "delta.md", "exec"), {"__name__": "guide"})


def test_the_programs_of_the_testing_guide_run_in_their_order() -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "testing.md").read_text())
    assert len(blocks) >= 3
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "testing.md", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_every_page_of_the_documents_is_reached_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    pages = [page for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text]
    assert pages == []
