"""What every publish strategy promises, as one suite: a strategy subclasses it and says where its bytes lie.

Worked example: `class TestRename(PublishContract)` with the fixtures `site` and, for the tests with two processes, a
`Site.opened` that another process finds by name.
"""

from __future__ import annotations

import itertools
import multiprocessing
from typing import Any, ClassVar

import pytest

from txsink.errors import CorruptError
from txsink.log import entry as entries
from txsink.log.entry import FORMAT, Prepare
from txsink.publish.protocol import Publisher
from txsink.records import DataFile
from txsink.staging.epoch_stager import EpochStager, StageOptions
from txsink.store.protocol import Store


class Site:
    """A place to publish to, as one process has it."""

    store: Store
    publisher: Publisher

    def staged(self, prepare: Prepare, file: DataFile) -> bytes | None:
        """The bytes under the staged name."""
        raise NotImplementedError

    def target(self, file: DataFile) -> bytes | None:
        """The bytes under the name in the table."""
        raise NotImplementedError

    def put_target(self, file: DataFile, data: bytes) -> None:
        """Somebody else's file takes the name."""
        raise NotImplementedError

    def drop_staged(self, prepare: Prepare, file: DataFile) -> None:
        """The staged file is lost."""
        raise NotImplementedError

    def again(self) -> Site:
        """The same place, as another process has it; this must also work in a spawned one."""
        raise NotImplementedError


class PublishContract:
    """F11 to F17 and F20, F28 of the scenarios, for one strategy.

    `looks_first`: a publish looks at all files before it makes the first one visible, which costs requests on S3.
    """

    looks_first: ClassVar[bool] = True

    @pytest.fixture
    def site(self) -> Site:
        raise NotImplementedError

    # -- publish ----------------------------------------------------------------------------------------

    def test_a_file_is_absent_until_it_is_published_and_the_same_after(self, site: Site) -> None:
        """F13."""
        prepare = staged(site, 1, [1, 2], [3])
        before = [site.staged(prepare, file) for file in prepare.files]
        assert all(before)
        assert [site.target(file) for file in prepare.files] == [None, None]
        site.publisher.publish(prepare)
        assert [site.target(file) for file in prepare.files] == before
        assert [site.staged(prepare, file) for file in prepare.files] == [None, None]

    def test_a_new_process_publishes_what_this_one_staged(self, site: Site) -> None:
        """F11: all it needs is the prepare entry."""
        prepare = staged(site, 1, [1, 2])
        before = site.staged(prepare, prepare.files[0])
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_publish, args=(site, entries.encode(prepare), prepare.version))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert site.target(prepare.files[0]) == before
        assert site.staged(prepare, prepare.files[0]) is None

    def test_publishing_twice_also_from_another_process_leaves_one_file(self, site: Site) -> None:
        """F12, F28."""
        prepare = staged(site, 1, [1])
        site.publisher.publish(prepare)
        published = site.target(prepare.files[0])
        site.publisher.publish(prepare)
        site.again().publisher.publish(prepare)
        assert site.target(prepare.files[0]) == published

    def test_another_files_bytes_under_the_name_are_kept_and_so_is_the_staged_file(self, site: Site) -> None:
        """F14, I6."""
        prepare = staged(site, 1, [1], [2])
        first, second = prepare.files
        before = site.staged(prepare, second)
        for other in (b"not parquet", site.staged(prepare, first) or b"", b""):
            site.put_target(second, other)
            with pytest.raises(CorruptError) as caught:
                site.publisher.publish(prepare)
            assert caught.value.context["path"] == second.path
            assert site.target(second) == other
            assert site.staged(prepare, second) == before
            assert not self.looks_first or site.target(first) is None

    def test_the_same_bytes_under_the_name_are_success_and_the_staged_file_goes(self, site: Site) -> None:
        """F14."""
        prepare = staged(site, 1, [1])
        file = prepare.files[0]
        site.put_target(file, site.staged(prepare, file) or b"")
        site.publisher.publish(prepare)
        assert site.target(file) is not None
        assert site.staged(prepare, file) is None

    def test_a_file_that_is_nowhere_is_named_and_nothing_else_is_touched(self, site: Site) -> None:
        """F15, F28."""
        prepare = staged(site, 1, [1], [2], [3])
        site.drop_staged(prepare, prepare.files[1])
        with pytest.raises(CorruptError, match="its staged file is absent, the file under its name") as caught:
            site.publisher.publish(prepare)
        assert caught.value.context["path"] == prepare.files[1].path
        for file in (prepare.files[0], prepare.files[2]):
            assert not self.looks_first or site.staged(prepare, file) is not None
            assert not self.looks_first or site.target(file) is None

    def test_a_publish_that_stopped_half_way_is_finished_by_another(self, site: Site) -> None:
        """S30: roll forward."""
        prepare = staged(site, 1, *[[number] for number in range(12)])
        expected = [site.staged(prepare, file) for file in prepare.files]
        half = Prepare(**{**_fields(prepare), "files": prepare.files[:5], "uploads": prepare.uploads[:5]})
        site.publisher.publish(half)
        site.again().publisher.publish(prepare)
        assert [site.target(file) for file in prepare.files] == expected

    def test_only_the_files_of_the_published_transaction_are_visible(self, site: Site) -> None:
        """F17."""
        one, two = staged(site, 1, [1]), staged(site, 2, [2])
        site.publisher.publish(one)
        assert site.target(one.files[0]) is not None
        assert site.target(two.files[0]) is None
        site.publisher.publish(two)
        assert None not in {site.target(one.files[0]), site.target(two.files[0])}

    def test_a_transaction_without_files_is_published_by_doing_nothing(self, site: Site) -> None:
        """F10."""
        prepare = staged(site, 1)
        for act in (site.publisher.publish, site.publisher.replace, site.publisher.withdraw):
            act(prepare)
        assert site.publisher.left("w", ()) == []

    # -- replace ----------------------------------------------------------------------------------------

    def test_replaced_files_go_and_can_be_replaced_again(self, site: Site) -> None:
        """I8, I12: a repetition changes nothing, and what is kept of them is their bytes."""
        old = staged(site, 1, [1], [2])
        site.publisher.publish(old)
        new = Prepare(**{**_fields(staged(site, 2, [3])), "version": 9, "removes": old.files})
        site.publisher.replace(new)
        assert [site.target(file) for file in old.files] == [None, None]
        site.again().publisher.replace(new)
        site.publisher.publish(new)
        site.publisher.replace(new)
        assert site.target(new.files[0]) is not None

    # -- withdraw ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("published", [0, 1, 2])
    def test_a_withdrawn_transaction_leaves_nothing_however_far_it_was_published(
        self, site: Site, published: int
    ) -> None:
        """F20: twice is no failure."""
        prepare = staged(site, 1, [1], [2])
        done = {"files": prepare.files[:published], "uploads": prepare.uploads[:published]}
        site.publisher.publish(Prepare(**{**_fields(prepare), **done}))
        for one in (site, site, site.again()):
            one.publisher.withdraw(prepare)
            for file in prepare.files:
                assert (site.staged(prepare, file), site.target(file)) == (None, None)

    def test_a_withdrawn_transaction_leaves_another_files_bytes_alone(self, site: Site) -> None:
        prepare = staged(site, 1, [1])
        site.put_target(prepare.files[0], b"another")
        site.publisher.withdraw(prepare)
        assert site.target(prepare.files[0]) == b"another"
        assert site.staged(prepare, prepare.files[0]) is None

    def test_what_was_withdrawn_cannot_be_published_by_a_run_that_was_only_slow(self, site: Site) -> None:
        """I10."""
        prepare = staged(site, 1, [1])
        site.publisher.withdraw(prepare)
        with pytest.raises(CorruptError):
            site.again().publisher.publish(prepare)
        assert site.target(prepare.files[0]) is None


def staged(site: Site, epoch: int, *parts: list[int], partition: tuple[str, ...] = ()) -> Prepare:
    """One staged file for each list of ids, and the entry that would seal them."""
    ids = itertools.count(1)
    directory, prefix, _ = site.publisher.place("w", "r")
    records = []
    for part in parts:
        stager = EpochStager(
            site.store,
            directory,
            writer="w",
            run="r",
            epoch=epoch,
            partition_columns=partition,
            columns=(),
            merge_schema=False,
            options=StageOptions(),
            new_id=lambda: f"{prefix}{next(ids):08x}",
            is_in_place=site.publisher.is_in_place,
        )
        stager.write({"id": part, **{name: [f"v{value}" for value in part] for name in partition}})
        records += stager.finish()
    site.publisher.settle(records)
    return Prepare(
        format=FORMAT,
        version=epoch,
        time_ms=1,
        write_id="1",
        previous="2",
        table_id="t",
        birth="b",
        writer="w",
        run="r",
        generation=1,
        epoch=epoch,
        claims=False,
        mode="append",
        files=tuple(one.file for one in records),
        removes=(),
        columns=records[0].columns if records else (),
        metadata={},
        uploads=tuple(one.upload for one in records if one.upload),
    )


def _fields(prepare: Prepare) -> dict[str, Any]:
    return {name: getattr(prepare, name) for name in Prepare.__struct_fields__}


def _publish(site: Site, data: bytes, version: int) -> None:
    """A spawned process."""
    prepare = entries.decode(data, version)
    if not isinstance(prepare, Prepare):
        raise TypeError(prepare)
    site.again().publisher.publish(prepare)
