"""What the Delta layout promises of a publish, on every store: `PublishContract`, told of files that never move.

Promises: a store that passes carries tables of the Delta layout: files staged under their final names, seen by nobody
until one commit of Delta's log names them.
Relies on: `opened`, which opens a store on the same bytes, in another process too unless it lies in memory.
Does not promise: anything about requests and faults of one store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from contract_publish import PublishContract, Site, _fields, staged
from txsink.delta.log import DeltaLog
from txsink.environment import stamps
from txsink.errors import CorruptError
from txsink.log.entry import Prepare
from txsink.log.log import Log
from txsink.protocol import blank
from txsink.publish.delta.publisher import DeltaPublisher
from txsink.records import DataFile
from txsink.store.protocol import Store

READ_BYTES_MAX = 1 << 20
Opened = Callable[[], Store]


class DeltaSite(Site):
    """A table of the Delta layout at `root`, which deltalake knows as `uri`."""

    def __init__(self, opened: Opened, root: str, uri: str) -> None:
        self.opened, self.root, self.uri = opened, root, uri
        self.store = opened()
        log = Log(self.store, root, stamps())
        log.load()
        if not log.exists:
            blank.create(log, "delta", (), None, "a-table")
        self.delta = DeltaLog(self.store, root, stamps(), uri)
        self.delta.load()
        self.publisher = DeltaPublisher(log, self.delta)

    def __reduce__(self) -> tuple[type[DeltaSite], tuple[Opened, str, str]]:
        return DeltaSite, (self.opened, self.root, self.uri)

    def again(self) -> DeltaSite:
        return DeltaSite(self.opened, self.root, self.uri)

    def visible(self) -> set[str]:
        """What Delta's log names, read from its first commit on."""
        log = DeltaLog(self.opened(), self.root, stamps(), self.uri)
        log.load()
        return set(log.files()) if log.exists else set()

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        return None if file.path in self.visible() else self.bytes_of(file)

    def target(self, file: DataFile) -> bytes | None:
        return self.bytes_of(file) if file.path in self.visible() else None

    def bytes_of(self, file: DataFile) -> bytes | None:
        return self.store.read(f"{self.root}/{file.path}", READ_BYTES_MAX)

    def put_target(self, file: DataFile, data: bytes) -> None:
        self.store.replace(f"{self.root}/{file.path}", data, "another")

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        assert self.store.delete(f"{self.root}/{file.path}")


def changed(prepare: Prepare, **fields: Any) -> Prepare:
    return Prepare(**{**_fields(prepare), **fields})


class DeltaContract(PublishContract):
    """The suite, where one name holds a file before and after."""

    @pytest.fixture
    def site(self) -> DeltaSite:
        raise NotImplementedError

    def test_another_files_bytes_under_the_name_are_kept_and_so_is_the_staged_file(self, site: Site) -> None:
        """F14, I6: nothing of the transaction becomes visible."""
        prepare = staged(site, 1, [1], [2])
        first, second = prepare.files
        for other in (b"not parquet", site.staged(prepare, first) or b"", b""):
            site.put_target(second, other)
            with pytest.raises(CorruptError) as caught:
                site.publisher.publish(prepare)
            assert caught.value.context["path"] == second.path
            assert [site.target(file) for file in prepare.files] == [None, None]
            assert site.staged(prepare, second) == other

    def test_the_same_bytes_under_the_name_are_success_and_the_staged_file_goes(self, site: Site) -> None:
        """F14: another run published it first."""
        prepare = staged(site, 1, [1])
        mine, other = site.again(), site.again()
        published = other.publisher.publish(prepare)
        assert published.is_visible
        assert mine.publisher.publish(prepare) == site.publisher.publish(prepare) == published
        assert site.target(prepare.files[0]) is not None

    def test_a_publish_that_stopped_half_way_is_finished_by_another(self, site: Site) -> None:
        """S30: there is no half: what stops before the commit is unseen."""
        prepare = staged(site, 1, *[[number] for number in range(12)])
        expected = [site.staged(prepare, file) for file in prepare.files]
        site.drop_staged(prepare, prepare.files[-1])
        with pytest.raises(CorruptError):
            site.publisher.publish(prepare)
        assert {site.target(file) for file in prepare.files} == {None}
        site.put_target(prepare.files[-1], expected[-1] or b"")
        site.again().publisher.publish(prepare)
        assert [site.target(file) for file in prepare.files] == expected

    def test_replaced_files_go_and_can_be_replaced_again(self, site: Site) -> None:
        """I8: by the commit that brings the new ones; their bytes stay, for older versions."""
        old = staged(site, 1, [1], [2])
        published = site.publisher.publish(old)
        new = changed(staged(site, 2, [3]), version=9, mode="overwrite", base=published.delta)
        kept = [site.target(file) for file in old.files]
        for one in (site, site.again(), site):
            one.publisher.replace(new)
            assert one.publisher.publish(new).is_visible
            assert [site.target(file) for file in old.files] == [None, None]
            assert site.target(new.files[0]) is not None
        assert [site.staged(old, file) for file in old.files] == kept
        assert None not in kept

    @pytest.mark.parametrize("published", [0, 1, 2])
    def test_a_withdrawn_transaction_leaves_nothing_however_far_it_was_published(
        self, site: Site, published: int
    ) -> None:
        """F20: it is forbidden first, which is refused to one that is published; twice is no failure."""
        prepare = staged(site, 1, [1], [2])
        if published == 2:
            site.publisher.publish(prepare)
            assert site.publisher.forbid(prepare).is_visible
            assert site.again().publisher.forbid(prepare).is_visible
            assert None not in [site.target(file) for file in prepare.files]
            return
        for one in (site, site, site.again()):
            assert not one.publisher.forbid(prepare).is_visible
            one.publisher.withdraw(prepare)
            assert [site.staged(prepare, file) for file in prepare.files] == [None, None]

    def test_a_withdrawn_transaction_leaves_another_files_bytes_alone(self, site: Site) -> None:
        """I15: those of another transaction, whose files lie in the same directory."""
        prepare, other = staged(site, 1, [1]), staged(site, 2, [2])
        assert not site.publisher.forbid(prepare).is_visible
        site.publisher.withdraw(prepare)
        assert site.staged(other, other.files[0]) is not None
        site.publisher.publish(other)
        assert site.target(other.files[0]) is not None

    def test_what_was_withdrawn_cannot_be_published_by_a_run_that_was_only_slow(self, site: Site) -> None:
        """I10: also when its files are there still."""
        for epoch in (1, 2):
            prepare = staged(site, epoch, [epoch])
            slow = site.again()
            assert not site.publisher.forbid(prepare).is_visible
            if epoch == 1:
                site.publisher.withdraw(prepare)
            for one in (slow, site.again()):
                assert not one.publisher.publish(prepare).is_visible
            assert site.target(prepare.files[0]) is None


class ObjectContract:
    """`create_object`: a file under its final name, whole once it is sealed and not there before."""

    @pytest.fixture
    def opened(self) -> Opened:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    @pytest.mark.parametrize("size", [0, 1, 3 * READ_BYTES_MAX + 1, 17 * READ_BYTES_MAX])
    def test_it_is_whole_when_it_is_sealed_and_absent_before(self, opened: Opened, root: str, size: int) -> None:
        store, path = opened(), f"{root}/p=a%2Fb ü/part-1.parquet"
        data = bytes(itertools.islice(itertools.cycle(range(251)), size))
        output = store.create_object(path)  # type: ignore[attr-defined]
        for start in range(0, size, READ_BYTES_MAX):
            output.write(data[start : start + READ_BYTES_MAX])
            output.flush()
        assert opened().read(path, size) is None
        assert output.seal() is None
        assert output.closed
        assert opened().read(path, size) == data
        assert opened().list(root) == ["p=a%2Fb ü/part-1.parquet"]

    @pytest.mark.parametrize("is_sealed", [False, True])
    @pytest.mark.parametrize("size", [0, 9 * READ_BYTES_MAX])
    def test_what_is_discarded_is_gone_and_leaves_no_upload(
        self, opened: Opened, root: str, size: int, *, is_sealed: bool
    ) -> None:
        store, path = opened(), f"{root}/x.parquet"
        output = store.create_object(path)  # type: ignore[attr-defined]
        output.write(b"x" * size)
        if is_sealed:
            output.seal()
        output.discard()
        assert output.closed
        assert opened().list(root) == []
        assert store.uploads(root) == []  # type: ignore[attr-defined]
