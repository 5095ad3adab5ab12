"""Bugs that were planted and that every suite let live: off by one in expiry, `verify`, the plan of `recover`, history.

Each test tries every version or epoch there is, and compares with what the table itself said before.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from place import Place, copied, prepared, rows
from seen import names, small_blocks
from txsink import paths
from txsink.choices import OnNewer
from txsink.cli import commands
from txsink.errors import ConflictError, InvalidRequestError
from txsink.log import expiry, segment
from txsink.writing.writer import Writer

__all__ = ["small_blocks"]


@pytest.fixture
def aged(place: Place, small_blocks: None) -> Writer:
    """A writer whose table has some 25 entries: overwrites, and a column more with every fourth epoch."""
    sink = place.sink(merge_schema=True)
    for epoch in range(11):
        with sink.begin(epoch, mode="overwrite" if epoch in {3, 7} else "append") as txn:
            txn.write({"id": [epoch], f"c{epoch // 4}": [epoch]})
    return sink


def shown(place: Place, versions: range) -> dict[int, tuple[list[int], list[str], list[str]]]:
    """Rows, columns and files at each version."""
    table = place.table()
    return {
        version: (
            sorted(table.to_arrow(version)["id"].to_pylist()) if table.columns(version) else [],
            [column.name for column in table.columns(version)],
            sorted(file.path for file in table.files(version)),
        )
        for version in versions
    }


def numbers(directory: Path) -> list[int]:
    return sorted(version for name in names(directory) if (version := paths.parse_version(name)) is not None)


def test_expiry_reaches_the_newest_summary_asked_for_and_not_one_version_more(place: Place, aged: Writer) -> None:
    """Planted: `<` for `<=` and back, in the boundary, the summaries, the entries and the removed files."""
    head = aged.log.state.version
    before = shown(place, range(head + 1))
    summaries = numbers(place.path / paths.STATE_DIRECTORY)
    reached = set()
    for asked in range(head + 1):
        there = copied(place, asked)
        boundary = expiry.expire(there.table().log, asked)
        assert boundary == max([0, *(at for at in summaries if at <= asked)])
        reached.add(boundary)
        kept = numbers(there.path / paths.LOG_DIRECTORY)
        assert kept == list(range(boundary, head + (1 if boundary == 0 else 2)))
        assert shown(there, range(boundary, head + 1)) == {at: before[at] for at in range(boundary, head + 1)}
        needed = {path for at in range(boundary, head + 1) for path in before[at][2]} - {*before[head][2]}
        removed = {
            name.split("/", 1)[1].removesuffix(".removed") for name in names(there.path / paths.REMOVED_DIRECTORY)
        }
        assert removed == needed
        for gone in range(boundary):
            with pytest.raises(InvalidRequestError, match="older ones have expired"):
                there.table().to_arrow(gone)
        assert there.table().verify(deep=True) == []
    assert len(reached) > 3


def test_history_tells_the_content_of_each_epoch_whose_preparation_is_retained(place: Place, aged: Writer) -> None:
    told = {one.version: one for one in place.table().history()}
    head = aged.log.state.version
    assert [one.version for one in place.table().history(3)] == [head, head - 1, head - 2]
    assert place.table().history(0) == []
    cut = 0
    for boundary in numbers(place.path / paths.STATE_DIRECTORY):
        there = copied(place, boundary)
        assert expiry.expire(there.table().log, boundary) == boundary
        for one in there.table().history()[1:]:
            is_cut = one.kind == "commit" and (one.prepared or 0) < boundary
            cut += is_cut
            assert (one.files is None) is (is_cut or told[one.version].files is None)
            assert is_cut or one == told[one.version]
        assert there.table().history()[-1].version == boundary
    assert cut


def test_every_altered_fact_of_every_segment_is_found(place: Place, aged: Writer) -> None:
    """Planted: the first or the last version was not compared. Seen: a fact beyond the range was believed."""
    aged.log.ensure_segments()
    assert place.table().verify() == []
    directory = place.path / paths.SEGMENT_DIRECTORY
    tried = 0
    for path in sorted(directory.iterdir()):
        whole = path.read_bytes()
        pair = paths.parse_segment(path.name)
        assert pair is not None
        facts = segment.decode(whole, path.name)
        for at, row in enumerate(facts.to_pylist()):
            others = [*range(at), *range(at + 1, facts.num_rows)]
            altered = {**row, "time_ms": row["time_ms"] + 1}
            moved = {**row, "version": pair[1] + 1}
            for change in (None, altered, moved):
                kept = facts.take(others).to_pylist() + ([] if change is None else [change])
                content = segment.table(
                    [segment.Fact(**one) for one in sorted(kept, key=lambda one: int(one["version"]))]
                )
                path.write_bytes(segment.encode(content))
                found = [problem.where for problem in place.table().verify()]
                assert f"{paths.SEGMENT_DIRECTORY}/{path.name}" in found, (row, change)
                tried += 1
        extra = {**row, "version": pair[1] + 1}
        path.write_bytes(segment.encode(segment.table([segment.Fact(**one) for one in [*facts.to_pylist(), extra]])))
        assert f"{paths.SEGMENT_DIRECTORY}/{path.name}" in [problem.where for problem in place.table().verify()]
        path.write_bytes(whole)
    assert tried > 30


@pytest.mark.parametrize(("up_to", "on_newer"), [*product(range(7), ["skip", "rewind"]), (None, "fail"), (1, "fail")])
def test_what_recover_plans_is_what_it_does(place: Place, up_to: int | None, on_newer: OnNewer) -> None:
    """Planted: the plan drew the line one epoch too early or too late, and counted other files than were removed."""
    sink = place.sink()
    for epoch in (1, 2, 3):
        with sink.begin(epoch) as txn:
            txn.write(rows(epoch, epoch + 100))
    for epoch in (4, 6):
        prepared(sink, epoch, rows(epoch))

    def run(*, yes: bool) -> dict[str, list[dict[str, object]]]:
        data = commands.recover(str(place.path), "w", up_to, on_newer, yes=yes).data
        return json.loads(json.dumps(data, default=str))

    if on_newer == "fail" and up_to is not None:
        with pytest.raises(ConflictError):
            run(yes=False)
        return
    if on_newer == "rewind" and up_to == 0:
        return  # there is no epoch 0 to go back to: refused at the doing
    planned = run(yes=False)["plan"]
    before = place.table().to_arrow().num_rows
    done = run(yes=True)["done"][0]
    for verb, key in (("commit", "committed"), ("abort", "aborted")):
        assert [step["epoch"] for step in planned if step["action"] == verb] == done[key]
    rewinds = [step for step in planned if str(step["action"]).startswith("rewind")]
    assert [step["epoch"] for step in rewinds] == ([up_to] if done["rewound_from"] is not None else [])
    after = place.table().to_arrow().num_rows
    brought = sum(int(str(step["rows"])) for step in planned if step["action"] == "commit")
    assert before + brought - sum(int(str(step["rows"])) for step in rewinds) == after
