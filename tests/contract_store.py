"""What every store promises, as a suite: subclass `StoreContract` and give it the fixtures `store` and `root`.

Promises: a store that passes can carry the log, the staged files and the publish of a table, with `MoveContract` by
giving staged files their names, with `UploadContract` by completing uploads.
Relies on: `root`, a fresh absolute path that need not exist; `other`, a second store on the same bytes, as another
process has it. `StoreRaces` needs stores that several processes can open, and `opened`, which opens one there.
Does not promise: durability (a power cut needs a simulated disk) nor error mapping: those are each store's own.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import ClassVar, cast

import pytest

from txsink.errors import InternalError
from txsink.records import Upload
from txsink.store.protocol import Output, Store, Uploads

MIB = 1 << 20
NAMES = ["plain", "with space", "day=2026-01-31", "Grüße/日本語", "a%20b", "x+y&z;'q'", "🜁", "dots.in.name", "-dash"]

Contents = dict[str, bytes]


def stage(store: Store, path: str, data: bytes) -> None:
    """A file of that name, durable; InternalError when the name is taken."""
    output = store.create(path)
    output.write(data)
    finish(store, path, output)


def finish(store: Store, path: str, output: Output) -> None:
    """Seal the file, and give it its name where sealing does not."""
    upload = output.seal()
    if upload is not None and not cast("Uploads", store).complete(path, upload):
        raise InternalError(f"create {path}", "the name is taken", "")
    store.settle([path])


def pending(store: Store, path: str, data: bytes) -> Upload:
    """A sealed file that has no name yet."""
    output = store.create(path)
    output.write(data)
    upload = output.seal()
    assert upload is not None
    return upload


def contents(store: Store, root: str) -> Contents:
    """Every file below the root."""
    return {name: store.read(f"{root}/{name}", 64 * MIB) or b"" for name in store.list(root)}


class StoreContract:
    """One test for each promise of `txsink.store.Store`."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def other(self) -> Store:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    # -- put_if_absent ----------------------------------------------------------------------------------

    def test_put_if_absent_creates_once_and_keeps_the_first_content(self, store: Store, root: str) -> None:
        assert store.put_if_absent(f"{root}/log/0", b"first", "a") is True
        assert store.put_if_absent(f"{root}/log/0", b"second", "b") is False
        assert store.put_if_absent(f"{root}/log/0", b"first", "c") is False
        assert contents(store, root) == {"log/0": b"first"}

    def test_put_if_absent_by_the_same_token_again_is_taken_and_keeps_the_content(
        self, store: Store, root: str
    ) -> None:
        assert store.put_if_absent(f"{root}/0", b"first", "a") is True
        assert store.put_if_absent(f"{root}/0", b"first", "a") in {False, None}
        assert contents(store, root) == {"0": b"first"}

    @pytest.mark.parametrize("size", [0, 1, 3 * MIB + 1])
    def test_put_if_absent_keeps_every_byte(self, store: Store, other: Store, root: str, size: int) -> None:
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert store.put_if_absent(f"{root}/0", data, "a") is True
        assert other.read(f"{root}/0", size) == data

    def test_what_one_store_put_is_taken_for_the_other(self, store: Store, other: Store, root: str) -> None:
        assert store.put_if_absent(f"{root}/0", b"mine", "a") is True
        assert other.put_if_absent(f"{root}/0", b"theirs", "b") is False
        assert other.read(f"{root}/0", 99) == b"mine"

    @pytest.mark.parametrize("name", NAMES)
    def test_any_name_can_be_written_listed_staged_and_deleted(self, store: Store, root: str, name: str) -> None:
        place = f"{root}/a b/ü"
        assert store.put_if_absent(f"{place}/{name}", b"x", "a") is True
        assert store.list(place) == [name]
        assert store.read(f"{place}/{name}", 9) == b"x"
        stage(store, f"{root}/staged/{name}", b"y")
        assert contents(store, root) == {f"a b/ü/{name}": b"x", f"staged/{name}": b"y"}
        assert store.delete(f"{place}/{name}") is True
        assert contents(store, root) == {f"staged/{name}": b"y"}

    # -- reading ----------------------------------------------------------------------------------------

    def test_read_of_nothing_is_none(self, store: Store, root: str) -> None:
        assert store.read(f"{root}/none", 9) is None
        store.put_if_absent(f"{root}/some", b"x", "a")
        assert store.read(f"{root}/none", 9) is None

    def test_read_gives_at_most_one_byte_more_than_the_limit(self, store: Store, root: str) -> None:
        store.put_if_absent(f"{root}/0", b"0123456789", "a")
        assert [store.read(f"{root}/0", limit) for limit in (0, 5, 9, 10, 99)] == [
            b"0",
            b"012345",
            b"0123456789",
            b"0123456789",
            b"0123456789",
        ]

    def test_tail_gives_the_size_and_the_last_bytes(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"0123456789")
        for count, expected in ((0, b""), (3, b"789"), (10, b"0123456789"), (99, b"0123456789")):
            tail = store.tail(f"{root}/f", count)
            assert tail is not None
            assert (tail.bytes, tail.data) == (10, expected)
        assert store.tail(f"{root}/none", 3) is None

    def test_tail_of_an_empty_file_is_empty(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"")
        tail = store.tail(f"{root}/f", 8)
        assert tail is not None
        assert (tail.bytes, tail.data) == (0, b"")

    def test_the_stamp_stays_while_a_file_is_read_or_left_alone(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"1")
        before = store.tail(f"{root}/f", 1)
        store.read(f"{root}/f", 9)
        assert store.tail(f"{root}/f", 1) == before
        stage(store, f"{root}/g", b"1")
        other = store.tail(f"{root}/g", 1)
        assert before is not None
        assert other is not None
        assert before.stamp != other.stamp or not before.stamp

    def test_list_is_all_files_below_sorted_and_empty_for_nothing(self, store: Store, root: str) -> None:
        assert store.list(f"{root}/none") == []
        for name in ("b", "a/x", "a.b", "a/d/y", ".hidden/z"):
            store.put_if_absent(f"{root}/{name}", b"", name.replace("/", "-"))
        assert store.list(root) == [".hidden/z", "a.b", "a/d/y", "a/x", "b"]
        assert store.list(f"{root}/a") == ["d/y", "x"]

    def test_a_list_with_a_limit_is_a_part_of_the_whole_and_no_longer(self, store: Store, root: str) -> None:
        names = ["a/x", "b", "c/d/e/y", "d"]
        for number, name in enumerate(names):
            store.put_if_absent(f"{root}/{name}", b"", f"{number}")
        assert store.list(f"{root}/none", 5) == []
        assert store.list(root, 100) == names
        for limit in (1, 2, 5):
            found = store.list(root, limit)
            assert found == sorted(found)
            assert {*found} <= {*names}
            assert len(found) <= limit
        assert store.list(root, 5)  # names of directories may count

    # -- replace and put_hint ---------------------------------------------------------------------------

    def test_present_tells_which_of_the_names_are_there_and_none_that_is_not(self, store: Store, root: str) -> None:
        names = [f"{root}/T/{number:03d}.json" for number in range(10)]
        assert store.present(names) == []
        for at in (0, 3, 9):
            store.put_if_absent(names[at], b"x", "ff")
        store.put_if_absent(f"{root}/T/.ff.tmp", b"x", "ff")
        store.put_if_absent(f"{root}/U/005.json", b"x", "ff")
        for first in range(10):
            found = store.present(names[first : first + 3])
            there = [names[at] for at in (0, 3, 9) if at >= first]
            # Of what comes after them a store may tell, and then tells all.
            assert found in (there, [name for name in there if name in names[first : first + 3]])

    @pytest.mark.parametrize("verb", ["replace", "put_hint"])
    def test_a_replaced_object_is_the_new_one_whole(self, store: Store, other: Store, root: str, verb: str) -> None:
        for number, data in enumerate((b"one", b"longer than before", b"", b"last")):
            getattr(store, verb)(f"{root}/d/head", data, f"{number}")
            assert other.read(f"{root}/d/head", 99) == data
        assert store.list(root) == ["d/head"]

    # -- staging ----------------------------------------------------------------------------------------

    def test_a_sealed_file_holds_what_was_written_in_order(self, store: Store, other: Store, root: str) -> None:
        output = store.create(f"{root}/s/f")
        parts = [b"a" * 10, b"", b"b" * (MIB - 5), b"c" * (2 * MIB), bytes(bytearray(b"d")), b"e" * 100]
        assert [output.write(part) for part in parts] == [len(part) for part in parts]
        output.flush()
        assert not output.closed
        finish(store, f"{root}/s/f", output)
        assert output.closed
        assert other.read(f"{root}/s/f", 64 * MIB) == b"".join(parts)

    def test_a_staged_file_takes_any_buffer_of_bytes(self, store: Store, root: str) -> None:
        output = store.create(f"{root}/f")
        output.write(memoryview(b"view"))  # type: ignore[arg-type]  # pyarrow hands over buffers
        output.write(bytearray(b"array"))  # type: ignore[arg-type]
        finish(store, f"{root}/f", output)
        assert store.read(f"{root}/f", 99) == b"viewarray"

    def test_a_taken_name_is_not_created_and_keeps_its_content(self, store: Store, root: str) -> None:
        stage(store, f"{root}/f", b"1")
        with pytest.raises(InternalError):
            stage(store, f"{root}/f", b"2")
        assert contents(store, root) == {"f": b"1"}

    def test_a_discarded_file_leaves_nothing_whenever_it_is_discarded(self, store: Store, root: str) -> None:
        for seals in (False, True):
            output = store.create(f"{root}/s/f")
            output.write(b"x" * 2 * MIB)
            if seals:
                output.seal()
            output.discard()
            output.discard()
            assert output.closed
            assert store.list(root) == []

    # -- delete, prune, same_place ----------------------------------------------------------------------

    def test_delete_is_true_then_false(self, store: Store, root: str) -> None:
        """F20."""
        stage(store, f"{root}/a/f", b"1")
        assert store.delete(f"{root}/a/f") is True
        assert store.delete(f"{root}/a/f") is False
        assert store.delete(f"{root}/none/f") is False
        assert store.list(root) == []

    def test_settling_names_that_are_gone_is_no_failure(self, store: Store, root: str) -> None:
        stage(store, f"{root}/keep", b"")
        stage(store, f"{root}/w/r/1/f", b"1")
        store.delete(f"{root}/w/r/1/f")
        store.settle([f"{root}/w/r/1/f", f"{root}/never/was/f"])
        store.prune(f"{root}/w/r/1", root)
        store.settle([f"{root}/w/r/1/f"])
        assert store.list(root) == ["keep"]

    def test_prune_keeps_what_holds_something(self, store: Store, root: str) -> None:
        stage(store, f"{root}/w/r/1/f", b"1")
        stage(store, f"{root}/w/r/2/k=v/f", b"2")
        store.prune(f"{root}/w/r/1", root)
        assert contents(store, root) == {"w/r/1/f": b"1", "w/r/2/k=v/f": b"2"}

    def test_prune_twice_or_of_nothing_is_no_failure(self, store: Store, root: str) -> None:
        stage(store, f"{root}/keep", b"")
        stage(store, f"{root}/w/r/1/f", b"1")
        store.delete(f"{root}/w/r/1/f")
        for _ in range(2):
            store.prune(f"{root}/w/r/1", root)
        store.prune(f"{root}/never/was", root)
        assert store.list(root) == ["keep"]
        stage(store, f"{root}/w/r/1/f", b"again")
        assert store.list(root) == ["keep", "w/r/1/f"]

    def test_directories_side_by_side_are_one_place_also_before_they_exist(self, store: Store, root: str) -> None:
        assert store.same_place(f"{root}/a", f"{root}/b/c")
        stage(store, f"{root}/a/f", b"1")
        assert store.same_place(f"{root}/a", f"{root}/b/c")

    def test_resolving_twice_is_resolving_once(self, store: Store, root: str) -> None:
        path = store.resolve(root)
        assert store.resolve(path) == path
        assert not path.endswith("/")


class MoveContract(StoreContract):
    """One more test for each promise of a store whose staged files have names."""

    @pytest.mark.parametrize("name", NAMES)
    def test_any_name_can_be_moved_to(self, store: Store, root: str, name: str) -> None:
        stage(store, f"{root}/a b/{name}", b"x")
        assert store.move([(f"{root}/a b/{name}", f"{root}/moved/{name}")]) == []
        assert contents(store, root) == {f"moved/{name}": b"x"}

    def test_a_moved_file_was_not_there_before_and_is_identical_after(
        self, store: Store, other: Store, root: str
    ) -> None:
        """F13, F11: another process publishes what this one staged."""
        stage(store, f"{root}/s/f", b"data")
        assert store.read(f"{root}/t/k=v/f", 9) is None
        assert other.move([(f"{root}/s/f", f"{root}/t/k=v/f")]) == []
        assert contents(store, root) == {"t/k=v/f": b"data"}

    def test_a_move_made_twice_is_reported_the_second_time_and_leaves_one_file(
        self, store: Store, other: Store, root: str
    ) -> None:
        """F12: the caller looks at the target and finds its file."""
        stage(store, f"{root}/s/f", b"data")
        move = (f"{root}/s/f", f"{root}/t/f")
        assert store.move([move]) == []
        assert store.move([move]) == [move]
        assert other.move([move]) == [move]
        assert contents(store, root) == {"t/f": b"data"}

    @pytest.mark.parametrize("theirs", [b"theirs", b"mine"])
    def test_a_taken_target_is_reported_and_both_files_are_kept(self, store: Store, root: str, theirs: bytes) -> None:
        """F14: whether the bytes are the same is the caller's question."""
        stage(store, f"{root}/s/f", b"mine")
        stage(store, f"{root}/t/f", theirs)
        move = (f"{root}/s/f", f"{root}/t/f")
        assert store.move([move]) == [move]
        assert contents(store, root) == {"s/f": b"mine", "t/f": theirs}

    @pytest.mark.parametrize("target", ["t/f", "nowhere/k=v/f"])
    def test_a_missing_source_is_reported_and_nothing_else_is_touched(
        self, store: Store, root: str, target: str
    ) -> None:
        """F15."""
        stage(store, f"{root}/t/other", b"1")
        move = (f"{root}/s/f", f"{root}/{target}")
        assert store.move([move]) == [move]
        assert contents(store, root) == {"t/other": b"1"}

    def test_an_adopted_file_is_the_staged_one_whole_and_its_old_name_is_gone(
        self, store: Store, other: Store, root: str
    ) -> None:
        stage(store, f"{root}/g/k=v/f", b"data")
        other.adopt(f"{root}/g/k=v/f", f"{root}/s/k=v/new")
        store.settle([f"{root}/s/k=v/new"])
        assert contents(store, root) == {"s/k=v/new": b"data"}
        stage(store, f"{root}/g/f", b"more")
        with pytest.raises(InternalError):
            store.adopt(f"{root}/g/f", f"{root}/s/k=v/new")
        assert contents(store, root) == {"s/k=v/new": b"data", "g/f": b"more"}

    def test_a_batch_of_moves_does_what_can_be_done_and_reports_the_rest(self, store: Store, root: str) -> None:
        for name in ("s/a", "s/b", "t/b", "s/c"):
            stage(store, f"{root}/{name}", name.encode())
        moves = [(f"{root}/s/{name}", f"{root}/t/{name}") for name in "abcd"]
        assert store.move(moves) == [moves[1], moves[3]]
        assert contents(store, root) == {"s/b": b"s/b", "t/a": b"s/a", "t/b": b"t/b", "t/c": b"s/c"}
        assert store.move([]) == []


class UploadContract(StoreContract):
    """One more test for each promise of `txsink.store.Uploads`."""

    @pytest.fixture
    def uploads(self, store: Store) -> Uploads:
        return cast("Uploads", store)

    @pytest.fixture
    def other_uploads(self, other: Store) -> Uploads:
        return cast("Uploads", other)

    def test_an_upload_is_unseen_until_any_process_completes_it(
        self, uploads: Uploads, other_uploads: Uploads, root: str
    ) -> None:
        """F11, F13."""
        upload = pending(uploads, f"{root}/k=v/f", b"data")
        assert contents(uploads, root) == {}
        assert uploads.tail(f"{root}/k=v/f", 9) is None
        assert other_uploads.complete(f"{root}/k=v/f", upload) is True
        assert contents(uploads, root) == {"k=v/f": b"data"}
        assert uploads.uploads(root) == []

    @pytest.mark.parametrize("name", NAMES)
    def test_any_name_can_be_uploaded_to(self, uploads: Uploads, root: str, name: str) -> None:
        upload = pending(uploads, f"{root}/a b/{name}", b"x")
        assert uploads.parts(f"{root}/a b/{name}", upload.id) == upload.parts
        assert uploads.uploads(root) == [(f"a b/{name}", upload.id)]
        assert uploads.complete(f"{root}/a b/{name}", upload) is True
        assert contents(uploads, root) == {f"a b/{name}": b"x"}

    def test_completing_twice_leaves_the_one_file(self, uploads: Uploads, other_uploads: Uploads, root: str) -> None:
        """F12: the caller looks at the name and finds its file."""
        upload = pending(uploads, f"{root}/f", b"data")
        assert uploads.complete(f"{root}/f", upload) is True
        assert uploads.complete(f"{root}/f", upload) in {True, False}
        assert other_uploads.complete(f"{root}/f", upload) in {True, False}
        assert contents(uploads, root) == {"f": b"data"}

    @pytest.mark.parametrize("theirs", [b"theirs", b"mine"])
    def test_a_taken_name_is_reported_and_both_files_are_kept(self, uploads: Uploads, root: str, theirs: bytes) -> None:
        """F14: whether the bytes are the same is the caller's question."""
        upload = pending(uploads, f"{root}/f", b"mine")
        uploads.put_if_absent(f"{root}/f", theirs, "a")
        assert uploads.complete(f"{root}/f", upload) is False
        assert contents(uploads, root) == {"f": theirs}
        assert uploads.parts(f"{root}/f", upload.id) == upload.parts

    def test_a_cancelled_upload_cannot_be_completed(self, uploads: Uploads, other_uploads: Uploads, root: str) -> None:
        """I10: a stalled run finds nothing to publish."""
        upload = pending(uploads, f"{root}/f", b"data")
        assert other_uploads.cancel(f"{root}/f", upload.id) is True
        assert uploads.complete(f"{root}/f", upload) is False
        assert uploads.parts(f"{root}/f", upload.id) is None
        assert contents(uploads, root) == {}
        assert uploads.uploads(root) == []

    def test_cancel_is_true_then_false(self, uploads: Uploads, root: str) -> None:
        """F20."""
        upload = pending(uploads, f"{root}/f", b"data")
        assert [uploads.cancel(f"{root}/f", upload.id) for _ in range(3)] == [True, False, False]

    def test_a_completed_upload_is_gone_and_cancelling_it_keeps_its_file(self, uploads: Uploads, root: str) -> None:
        """I8."""
        upload = pending(uploads, f"{root}/f", b"data")
        assert uploads.complete(f"{root}/f", upload) is True
        assert uploads.parts(f"{root}/f", upload.id) is None
        assert uploads.cancel(f"{root}/f", upload.id) is False
        assert contents(uploads, root) == {"f": b"data"}

    def test_an_upload_that_lacks_a_part_is_not_made(self, uploads: Uploads, root: str) -> None:
        upload = pending(uploads, f"{root}/f", b"data")
        assert uploads.complete(f"{root}/f", Upload(upload.id, ("0" * 32,))) is False
        assert contents(uploads, root) == {}

    def test_the_pending_uploads_below_a_directory_are_listed_sorted(self, uploads: Uploads, root: str) -> None:
        """I15: those beside it are not."""
        assert uploads.uploads(root) == []
        names = ["t/b", "t/a/x", "t/a/x", "t.b/c", "t", "u/d"]
        ids = [(name, pending(uploads, f"{root}/{name}", b"1").id) for name in names]
        assert uploads.uploads(f"{root}/t") == sorted((name[2:], id_) for name, id_ in ids if name.startswith("t/"))
        assert uploads.uploads(root) == sorted(ids)

    def test_a_discarded_file_leaves_no_upload_whenever_it_is_discarded(self, uploads: Uploads, root: str) -> None:
        for seals in (False, True):
            output = uploads.create(f"{root}/f")
            output.write(b"x" * 17 * MIB)
            if seals:
                output.seal()
            output.discard()
            output.discard()
            assert uploads.uploads(root) == []
            assert uploads.list(root) == []

    def test_a_file_of_many_parts_holds_every_byte_in_order(
        self, uploads: Uploads, other_uploads: Uploads, root: str
    ) -> None:
        data = b"".join(number.to_bytes(4, "big") for number in range(5 * MIB))
        output = uploads.create(f"{root}/f")
        for start in range(0, len(data), 3 * MIB + 1):
            output.write(data[start : start + 3 * MIB + 1])
        upload = output.seal()
        assert upload is not None
        assert len(upload.parts) == 3
        assert uploads.parts(f"{root}/f", upload.id) == upload.parts
        assert other_uploads.complete(f"{root}/f", upload) is True
        assert uploads.read(f"{root}/f", len(data)) == data


class StoreRaces:
    """What only several processes can show. What `opened` gives is called in each of them, so it can be pickled."""

    race_processes: ClassVar[int] = 16
    race_names: ClassVar[int] = 200

    @pytest.fixture
    def opened(self) -> Callable[[], Store]:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def test_each_name_has_one_winner_and_holds_what_the_winner_wrote(
        self, opened: Callable[[], Store], root: str
    ) -> None:
        """F21."""
        winners = race(opened, self.race_processes, self.race_names, root)
        assert sorted(name for won in winners for name in won) == list(range(self.race_names))
        store = opened()
        expected = {f"log/{name}": f"{who} {name}".encode() for who, won in enumerate(winners) for name in won}
        assert contents(store, root) == expected
        # Without a real race nothing was shown.
        assert sum(bool(won) for won in winners) > 1


def race(opened: Callable[[], Store], processes: int, names: int, root: str, padding: int = 0) -> list[list[int]]:
    """The names that each process won, with objects larger by `padding` bytes."""
    # Fresh processes, forked from a server that shares nothing with this one: sixteen interpreters cost seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "txsink.store.local.store", "txsink.store.s3.store"])
    barrier = context.Barrier(processes)
    running, answers = [], []
    for who in range(processes):
        answer, question = context.Pipe(duplex=False)
        given = {"who": who, "names": names, "root": root, "padding": padding}
        process = context.Process(target=_race_for_names, args=(opened, barrier, question), kwargs=given)
        process.start()
        question.close()  # so that a process that dies ends the wait for its answer
        running.append(process)
        answers.append(answer)
    try:
        return [answer.recv() for answer in answers]
    finally:
        for process, answer in zip(running, answers, strict=True):
            answer.close()
            process.join()


_RACED_AT_ONCE = 5


def _race_for_names(
    opened: Callable[[], Store],
    barrier: Barrier,
    question: Connection,
    *,
    who: int,
    names: int,
    root: str,
    padding: int,
) -> None:
    store = opened()
    store.read(f"{root}/log/0", 0)  # connected
    won = []
    for name in range(names):
        if name % _RACED_AT_ONCE == 0:  # else who is ahead once wins all the rest
            barrier.wait(timeout=120)
        data = f"{who} {name}".encode() + bytes(padding)
        created = store.put_if_absent(f"{root}/log/{name}", data, f"{who}-{name}")
        # Unknown, or there already: perhaps by an attempt of our own whose answer was lost.
        if created or store.read(f"{root}/log/{name}", len(data)) == data:
            won.append(name)
    question.send(won)
