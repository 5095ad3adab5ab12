"""What the errors of the log advise, done word for word: a green end, or the state that the advice describes."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import msgspec
import pytest

from advice import advised
from logs import opened
from place import Place, commit, prepared, rows, staged_files
from seen import entry_file, rows_of, small_blocks, staging
from txsink import paths
from txsink.choices import OnNewer
from txsink.cli import main as cli
from txsink.log import entry, expiry
from txsink.log.entry import Commit

__all__ = ["small_blocks"]


@pytest.mark.parametrize("wrong", [{"at": float("nan")}, {"at": (1, 2)}, {1: 2}])
def test_plainer_metadata_is_taken_by_the_same_writer(place: Place, wrong: dict[Any, Any]) -> None:
    sink = place.sink()
    with advised("writing.writer._metadata", "Give less, or plainer, metadata"):
        sink.begin(1, metadata=wrong)
    assert (sink.pending, rows_of(place.path)) == ([], [])
    with sink.begin(1, metadata={"at": [1, 2]}) as txn:
        txn.write(rows(1))
    assert (sink.last_metadata, rows_of(place.path)) == ({"at": [1, 2]}, [1])


def test_fewer_files_per_epoch_are_written_by_the_same_writer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    monkeypatch.setattr(entry, "ENTRY_BYTES_MAX", 6_000)

    def write(files: int) -> None:
        with sink.begin(1) as txn:
            for number in range(files):
                txn.add(txn.stager().stage(rows(number)))

    with advised("log.entry.encode", "Write fewer files per epoch (a larger target_file_bytes) or less metadata"):
        write(40)
    assert (sink.pending, rows_of(place.path)) == ([], [])
    write(2)
    assert rows_of(place.path) == [0, 1]


@pytest.mark.usefixtures("small_blocks")
def test_a_later_version_is_there_where_an_earlier_one_has_expired(place: Place) -> None:
    sink = place.sink()
    commit(sink, *range(30))
    boundary = expiry.expire(sink.log, sink.log.state.version)
    with advised("log.log.entry", "Name a later version"):
        opened(place).entry(1)  # those just below are kept, as segments are made of them
    found = opened(place)
    found.load()
    assert found.entry(boundary).version == boundary
    with advised("reading.versions.require_retained", "Name one of them"):
        place.table().to_arrow(boundary - 1)
    assert place.table().to_arrow(boundary).num_rows


@pytest.mark.parametrize(("choice", "left"), [("skip", [1, 2]), ("rewind", [1])])
def test_either_choice_leads_on_where_later_epochs_are_committed(
    place: Place, choice: OnNewer, left: list[int]
) -> None:
    sink = place.sink()
    commit(sink, 1, 2)
    with advised("protocol.recovery._newer", "Choose on_newer='skip' {} or on_newer='rewind'"):
        sink.recover(1)
    with advised("choices.require_choice", "Give one of these"):
        sink.recover(1, "replay")  # type: ignore[arg-type]
    sink.recover(1, choice)
    assert rows_of(place.path) == left
    if choice == "skip":
        assert sink.begin(2).outcome == "already-committed"  # as it says: their replay writes nothing
    else:
        commit(sink, 2)
    assert rows_of(place.path) == [1, 2]


def test_the_only_copy_of_a_committed_file_is_kept_and_put_back_by_hand_the_table_is_whole(place: Place) -> None:
    """The file is gone from the table, and its staged copy is there: as after a restore of a part."""
    sink = place.sink()
    prepare = prepared(sink, 1, rows(1))
    (name,) = staged_files(place)
    staged, published = staging(place.path) / name, place.path / prepare.files[0].path
    copy = staged.read_bytes()
    sink.commit(1)
    published.unlink()
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(copy)
    with advised("protocol.sweeping._swept", "Inspect it: this may be the only copy. Nothing was deleted"):
        sink.sweep()
    assert staged.read_bytes() == copy
    staged.rename(published)
    assert sink.sweep() == []
    assert rows_of(place.path) == [1]
    assert place.table().verify() == []


def test_an_entry_that_is_missing_in_the_middle_is_restored_from_a_copy(place: Place, capsys: Any) -> None:
    sink = place.sink()
    commit(sink, *range(6))
    lost = entry_file(place.path, 4)
    copy = lost.read_bytes()
    lost.unlink()
    with advised("log.gaps.hole", "Restore it from a copy, or {}"):
        opened(place).load()
    lost.write_bytes(copy)
    assert opened(place).load().version == sink.log.state.version
    assert rows_of(place.path) == [*range(6)]
    assert cli.main(["verify", str(place.path)]) == 0
    assert capsys.readouterr().out


def test_a_later_release_is_what_reads_a_later_format(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    later = entry.FORMAT + 1
    with monkeypatch.context() as release:
        release.setattr(entry, "FORMAT", later)
        commit(place.sink(), 1)
    for act in (lambda: rows_of(place.path), place.sink):
        with advised("log.entry.refuse_later_format", "Upgrade txsink to a release that reads format {}"):
            act()
    monkeypatch.setattr(entry, "FORMAT", later)
    assert rows_of(place.path) == [1]


class CommitOfLater(Commit, frozen=True, kw_only=True, tag="commit", omit_defaults=True):
    """A commit entry of a release that gives a reserved key its meaning."""

    watermark: int | None = None


def test_a_later_release_is_what_reads_an_entry_with_a_key_of_its_own(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink()
    commit(sink, 1)
    last = sink.log.entry(sink.log.state.version)
    sink.close()
    (place.path / paths.HEAD_PATH).unlink(missing_ok=True)
    kinds = tuple(CommitOfLater if kind is Commit else kind for kind in entry.AnyEntry.__args__)

    def upgrade() -> None:
        monkeypatch.setattr(entry, "RESERVED", ())
        monkeypatch.setattr(entry, "_decoder", msgspec.json.Decoder(reduce(operator.or_, kinds)))

    upgrade()
    given = {name: getattr(last, name) for name in last.__struct_fields__}
    entry_file(place.path, last.version).write_bytes(entry.encode(CommitOfLater(**given, watermark=7)))
    monkeypatch.undo()
    for act in (lambda: rows_of(place.path), place.sink):
        with advised("log.entry.refuse_later_format", "Upgrade txsink to a release that reads it"):
            act()
    upgrade()
    assert rows_of(place.path) == [1]
