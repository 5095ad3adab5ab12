"""A log whose bytes are not what was written: an error with the version, and nothing on top of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logs import claim_by, grow, opened
from place import Place
from seen import by_directory, entry_file, rows_of, small_blocks
from txsink import paths
from txsink.errors import CorruptError, InvalidRequestError
from txsink.log import entry as entries, log
from txsink.log.entry import FORMAT
from txsink.log.log import Log
from txsink.store.local.store import LocalStore
from txsink.testing.faults import FaultyStore, delay

__all__ = ["small_blocks"]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "torn at the end": lambda data: data[:-1],
    "altered": lambda data: data.replace(b'"kind"', b'"kinD"'),
    "another entry": lambda data: data.replace(b'"time_ms":1', b'"time_ms":2'),
    "zeroes": lambda data: b"\x00" * len(data),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("version", [1, 4])
def test_a_damaged_entry_is_corruption_with_its_version_and_nothing_is_appended(
    place: Place, damage: str, version: int
) -> None:
    """F23, I13: also the newest entry, and also for a writer that is open."""
    with place.sink() as sink, sink.begin(1) as txn:
        txn.write({"id": [1]})
    waiting = place.sink("other")
    file = entry_file(place.path, version)
    whole = file.read_bytes()
    file.write_bytes(DAMAGE[damage](whole))
    (place.path / paths.HEAD_PATH).unlink(missing_ok=True)  # else who opens has no reason to look at entry 1
    with pytest.raises(CorruptError) as caught:
        place.sink()
    assert caught.value.context["version"] == version
    if version == 4:
        with pytest.raises(CorruptError) as caught, waiting.begin(1) as txn:
            txn.write({"id": [9]})
        assert caught.value.context["version"] == version
        assert by_directory(place.path) == [1]
    file.write_bytes(whole)
    waiting.close()
    place.write(2, {"id": [2]})
    assert rows_of(place.path) == [1, 2]
    place.sink("other").close()
    assert rows_of(place.path) == [1, 2]  # the other one looked before it appended


def test_an_entry_of_another_chain_is_refused(place: Place) -> None:
    """I7."""
    other = Place(place.path.parent / "other")
    for writer, one in (("w", place), ("v", other)):
        grow(opened(one), 3, writer)
    entry_file(place.path, 2).write_bytes(entry_file(other.path, 2).read_bytes())
    entry_file(place.path, 3).unlink()
    with pytest.raises(CorruptError, match="the chain is broken"):
        opened(place)


def test_an_entry_of_a_future_format_says_both_versions(place: Place) -> None:
    """F24."""
    grow(opened(place), 1)
    body = b'{"kind":"commit","format":7,"version":2,"novel":true}'
    entry_file(place.path, 2).write_bytes(entries.seal(body))
    with pytest.raises(InvalidRequestError, match=f"format 7, this txsink reads format {FORMAT}"):
        opened(place)


@pytest.mark.usefixtures("small_blocks")
def test_a_hint_of_a_future_format_says_both_versions(place: Place) -> None:
    """F24: whoever wrote it may write entries that this release misreads."""
    grow(opened(place), 9)
    (place.path / paths.HEAD_PATH).write_bytes(entries.seal(b'{"format":7}'))
    with pytest.raises(InvalidRequestError, match="format 7"):
        opened(place)


def test_an_entry_in_the_middle_that_is_lost_is_never_the_end_of_the_log(place: Place) -> None:
    """I13: the hint remembers a longer log."""
    grow(opened(place), log.HINT_EVERY + 2)
    head = log.HINT_EVERY - 1
    for version in range(head, log.HINT_EVERY + 3):
        entry_file(place.path, version).unlink()
    with pytest.raises(CorruptError, match="yet it had been read before"):
        opened(place)
    (place.path / paths.HEAD_PATH).unlink()
    assert opened(place).state.version == head - 1


def test_a_lost_first_entry_is_not_an_empty_log(place: Place) -> None:
    """I13: a writer must not create the table anew."""
    grow(opened(place), 3)
    entry_file(place.path, 0).unlink()
    with pytest.raises(CorruptError, match="it is missing, yet later ones are there"):
        place.sink()
    assert not entry_file(place.path, 0).exists()


def test_a_table_created_while_it_is_looked_for_is_found(place: Place) -> None:
    base = FaultyStore(LocalStore())
    found = Log(base, str(place.path), place.stamps)
    found.load()
    calls = [verb for verb, _ in base.trace]
    base.plan.append(delay(base.calls + 1 + calls.index("list", 2), lambda: opened(place)))
    found.load()
    base.check_delivered()
    assert found.exists


def test_a_missing_or_wrong_entry_is_named(place: Place) -> None:
    found = opened(place)
    grow(found, 2)
    fresh = opened(place)
    with pytest.raises(CorruptError, match="it is missing"):
        fresh.entry(17)
    with pytest.raises(CorruptError, match="it is no prepare entry"):
        fresh.prepare_entry(1)


def test_the_newest_entry_altered_behind_an_open_log_is_noticed(place: Place) -> None:
    """I7, F23."""
    found = opened(place)
    grow(found, 2)
    file = entry_file(place.path, 2)
    file.write_bytes(b"\x00" * file.stat().st_size)
    for act in (found.refresh, lambda: found.append(claim_by("w"))):
        with pytest.raises(CorruptError, match="its checksum does not fit") as caught:
            act()
        assert caught.value.context["version"] == 2
    assert not entry_file(place.path, 3).exists()
