"""The Delta layout on S3 under faults of the network and of the server: the matrix of test_faults_s3, on its requests.

What must hold after each: a call that succeeded told the truth; one that failed says UnavailableError only when
nothing had happened; a program that opens the writer again and finishes its work has every row once, by our log and
by deltalake (I1), and no file or mark is left that no entry names (I9). A read is broken in two ways only: it changes
nothing, and the matrix of the parquet layout breaks it in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from killed_s3 import TWO_FILES
from s3_proxy import Proxy, proxied
from s3_servers import Server
from test_delta_s3 import DeltaLake
from test_faults_s3 import READS, SERVERS, STEPS, Case, Ground, Step, is_all_one, run_all

pytestmark = pytest.mark.stores
READS_BREAK = {"answer lost", "503 before", "answers lost"}


class DeltaGround(Ground, DeltaLake):
    """A table of the Delta layout."""

    files: ClassVar[dict[str, Any]] = {**TWO_FILES, "layout": "delta"}

    def check(self) -> None:
        # A mark stays for one run more where files were found.
        self.quiet().close()
        super().check()
        assert self.unnamed() == []
        # Two of three epochs are published by whoever the faults left to do it, and each by one commit.
        assert self.by_deltalake().transaction_version("w") == 2


class DeltaCase(Case):
    """Its table has the Delta layout."""

    ground_kind = DeltaGround

    def abort(self) -> None:
        assert self.txn is not None
        self.txn.abort()


DELTA_STEPS = {**STEPS, "abort": Step(Case.prepared, DeltaCase.abort, (0, []))}  # type: ignore[arg-type]


def is_left_out(method: str, kind: str) -> bool:
    return is_all_one(method, kind) or (method in READS and kind not in READS_BREAK)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, s3_server: Callable[[str], Server]) -> Server:
    return s3_server(request.param)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as made:
        yield made


@pytest.mark.parametrize("is_once", [True, False])
@pytest.mark.parametrize("name", DELTA_STEPS)
def test_any_request_of_a_step_may_fail_once_or_for_ever(
    server: Server, proxy: Proxy, name: str, capsys: pytest.CaptureFixture[str], *, is_once: bool
) -> None:
    """F22, I1, I3, I5, I9, I11, I14: what fails once is asked again, and what fails for ever says what is known."""
    given: dict[str, Any] = {"kind_of_case": DeltaCase, "steps": DELTA_STEPS, "skipped": is_left_out, "store": "Delta"}
    with capsys.disabled():
        failed = run_all(server, proxy, name, is_once=is_once, **given)
    assert bool(failed) is not is_once
