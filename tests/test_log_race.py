"""The contract of the log on the local disk; F21: many processes append to one log at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract_log import LogContract, LogRaces, Opened
from txsink.store.local.store import LocalStore


class TestLocal(LogContract, LogRaces):
    @pytest.fixture
    def opened(self) -> Opened:
        return LocalStore

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path / "T")
