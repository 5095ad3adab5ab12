"""What `file_rows_max` promises, however rows come in: no file holds more, and no row is lost."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given, settings, strategies as st

from txsink.staging.epoch_stager import EpochStager, StageOptions
from txsink.store.local.store import LocalStore


def staged(root: Path, sizes: list[int], options: StageOptions, by: tuple[str, ...]) -> list[int]:
    """The rows of each file, after writes of these sizes."""
    ids = map("{:032x}".format, itertools.count(1))
    stager = EpochStager(
        LocalStore(), str(root), writer="w", run="r", epoch=0, partition_columns=by, columns=(), merge_schema=False,
        options=options, new_id=lambda: next(ids),
    )  # fmt: skip
    rows = itertools.count()
    for size in sizes:
        numbers = list(itertools.islice(rows, size))
        # Wide and narrow rows, so that row groups of few and of many rows follow each other.
        stager.write(
            pa.table({"id": numbers, "k": [n % 3 for n in numbers], "x": ["x" * (n % 7 * 40) for n in numbers]})
        )
    files = [root / one.file.path for one in stager.finish()]
    found = sorted(number for file in files for number in pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    assert found == list(range(sum(sizes)))
    return [pq.read_metadata(file).num_rows for file in files]


@settings(max_examples=100, deadline=None, derandomize=True)
@example(sizes=[9, 2, 4, 4], most=10, group=1 << 20, sized=(600, 1 << 20), by=())
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    most=st.integers(1, 25),
    group=st.integers(1, 30),
    sized=st.tuples(st.integers(1, 4000), st.integers(1, 20_000)),
    by=st.sampled_from([(), ("k",)]),
)
def test_no_file_holds_more_rows_than_it_may(
    sizes: list[int], most: int, group: int, sized: tuple[int, int], by: tuple[str, ...]
) -> None:
    """Seen: files of 12 rows where 10 were allowed: row groups differ from one flush of the buffer to the next."""
    options = StageOptions(
        file_rows_max=most, row_group_rows=group, row_group_bytes=sized[0], target_file_bytes=sized[1]
    )
    with tempfile.TemporaryDirectory() as root:
        assert max(staged(Path(root), sizes, options, by)) <= most


def test_as_few_files_as_the_limit_allows_are_made(tmp_path: Path) -> None:
    assert staged(tmp_path / "one", [10], StageOptions(file_rows_max=10), ()) == [10]
    assert sorted(staged(tmp_path / "two", [10, 11], StageOptions(file_rows_max=10), ())) == [1, 10, 10]
    assert sorted(staged(tmp_path / "by", [30], StageOptions(file_rows_max=10), ("k",))) == [10, 10, 10]
