"""What every test runs under: the same examples each time, whatever the machine's speed."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Suites that test modules import keep pytest's account of a failed assert.
pytest.register_assert_rewrite("contract_store", "contract_publish")

settings.register_profile("txsink", derandomize=True, deadline=None, database=None)
settings.load_profile("txsink")
