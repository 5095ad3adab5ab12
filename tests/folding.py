"""A stand-in for `os` on a file system that folds names, as APFS does on macOS: made by their first spelling.

Promises: names that differ by case or by Unicode normal form are one name below `root`; a listing gives the spelling
that came first.
Relies on: a real file system that keeps names apart.
Does not promise: anything else of macOS. `fsync` is the real one.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

_OF_ONE_PATH = ("open", "unlink", "mkdir", "rmdir", "stat", "lstat", "listdir")
_OF_TWO_PATHS = ("link", "replace", "rename")


class FoldingSystem(ModuleType):
    def __init__(self, root: Path) -> None:
        super().__init__("folding")
        self._root = str(root)
        self.folded = 0  # paths that were reached by another spelling

    def __getattr__(self, name: str) -> Any:
        act = getattr(os, name)
        if name in _OF_ONE_PATH:
            return lambda path, *rest: act(self._spelled(path), *rest)
        if name in _OF_TWO_PATHS:
            return lambda source, target: act(self._spelled(source), self._spelled(target))
        return act

    def _spelled(self, path: str) -> str:
        """The path by the names that are there."""
        if not path.startswith(f"{self._root}/"):
            return path
        found = self._root
        for part in path[len(self._root) + 1 :].split("/"):
            names = os.listdir(found) if os.path.isdir(found) else []  # noqa: PTH112, PTH208
            same = part if part in names else next((name for name in names if _folded(name) == _folded(part)), part)
            self.folded += same != part
            found = f"{found}/{same}"
        return found


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
