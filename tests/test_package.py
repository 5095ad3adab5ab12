"""What a user installs: the wheel and the source package, built as a release is."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import txsink
from code_map import ROOT

TOP = ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "pyproject.toml")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both packages."""
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return directory


def test_the_wheel_says_its_version_and_licence_and_that_it_is_typed(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = f"txsink-{txsink.__version__}.dist-info"
        metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
        licence = wheel.read(f"{info}/licenses/LICENSE").decode()
    assert {"txsink/py.typed", "pyspark_txsink/py.typed"} <= names
    assert metadata["Version"] == txsink.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "the txsink authors"
    assert "Apache License" in licence
    assert "Copyright 2026 the txsink authors" in licence
    assert metadata["Project-URL"] is None  # there is none yet


def test_the_source_package_holds_what_a_contributor_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {*TOP, "Makefile", "tests/conftest.py", "docs/design.md", "txsink/py.typed"} <= names
