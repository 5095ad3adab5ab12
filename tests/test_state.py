"""`fold` is the law of the log: what may follow what, whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from txsink.errors import CorruptError, InvalidRequestError
from txsink.log.entry import (
    FORMAT,
    Abort,
    AnyEntry,
    Claim,
    Commit,
    Convert,
    Create,
    Maintenance,
    Prepare,
    Publishing,
    seal,
)
from txsink.log.state import REWIND, Pending, State, decode, encode, fold, union
from txsink.paths import data_name
from txsink.records import Column, DataFile

INT = Column("n", "int64", "aW50")
TEXT = Column("t", "string", "dGV4dA")


class Chain:
    """A log in memory, written entry by entry."""

    def __init__(self, *, is_created: bool = True) -> None:
        self.state = State()
        if is_created:
            self.create()

    def add(self, kind: type[Any], **fields: Any) -> State:
        version = fields.pop("version", self.state.version + 1)
        header = {"format": FORMAT, "version": version, "time_ms": 1000 + version, "write_id": "born", "previous": ""}
        header |= {"previous": self.state.digest, "table_id": "t", "birth": "born"}
        entry: AnyEntry = kind(**{**header, **fields})
        self.state = fold(self.state, entry, f"digest {version}")
        return self.state

    def create(self, **fields: Any) -> State:
        given = {"layout": "parquet", "partition_columns": ("p",), "staging": None}
        return self.add(Create, **{**given, **fields})

    def claim(self, run: str = "r1", generation: int = 1, writer: str = "w", retires: tuple[str, ...] = ()) -> State:
        return self.add(Claim, writer=writer, run=run, generation=generation, retires=retires)

    def prepare(self, epoch: int, **fields: Any) -> State:
        given = {"run": "r1", "generation": 1, "writer": "w", "claims": False, "mode": "append", "files": ()}
        more = {"removes": (), "columns": (), "metadata": {}, "epoch": epoch}
        return self.add(Prepare, **{**given, **more, **fields})

    def end(self, kind: type[Any], epoch: int, prepared: int, **fields: Any) -> State:
        given = {"run": "r1", "generation": 1, "writer": "w"}
        return self.add(kind, epoch=epoch, prepared=prepared, **{**given, **fields})

    def commit(self, epoch: int, **fields: Any) -> State:
        prepared = self.prepare(epoch, **fields).version
        return self.end(Commit, epoch, prepared)

    def clean(self, *cleaned: int, boundary: int | None = None) -> State:
        return self.add(Maintenance, action="cleaned", cleaned=cleaned, boundary=boundary)


def test_a_state_keeps_what_deltas_log_must_know_until_the_table_is_converted() -> None:
    chain = Chain()
    chain.claim()
    seen = []
    for epoch, delta in ((0, None), (1, 4), (2, None), (3, 3), (4, 9)):
        prepared = chain.prepare(epoch).version
        at = chain.end(Commit, epoch, prepared, delta=delta)
        seen.append((at.delta, at.writers["w"].in_delta))
    assert seen == [(None, None), (4, 4), (4, 4), (4, 8), (9, 10)]
    assert decode(encode(chain.state)) == chain.state
    after = chain.add(Convert, layout="parquet")
    assert (after.delta, after.writers["w"].in_delta, after.writers["w"].last_epoch) == (None, None, 4)
    assert chain.add(Convert, layout="delta", delta=12).delta == 12


@pytest.fixture
def chain() -> Chain:
    made = Chain()
    made.claim()
    return made


# -- what is folded -----------------------------------------------------------------------------------------


def test_creation_says_what_the_table_is() -> None:
    state = Chain().state
    assert (state.version, state.table_id, state.layout, state.partition_columns) == (0, "t", "parquet", ("p",))
    assert (state.digest, state.staging, state.writers, state.pending) == ("digest 0", None, {}, ())


def test_a_commit_moves_the_writer_on_and_ends_the_transaction(chain: Chain) -> None:
    chain.prepare(7, metadata={"offset": 3}, columns=(INT,))
    assert [item.epoch for item in chain.state.pending_of("w")] == [7]
    assert chain.state.last_epoch("w") is None
    assert (chain.state.columns, chain.state.known_columns()) == ((), (INT,))
    chain.end(Commit, 7, 2)
    writer = chain.state.writers["w"]
    assert (writer.last_epoch, writer.last_version, writer.last_metadata) == (7, 3, {"offset": 3})
    assert (chain.state.pending, chain.state.columns) == ((), (INT,))
    assert chain.state.last_epoch("nobody") is None


def test_an_abort_stays_listed_until_it_is_cleaned(chain: Chain) -> None:
    chain.prepare(7, columns=(INT,))
    chain.prepare(8)
    chain.end(Abort, 7, 2)
    assert [item.epoch for item in chain.state.pending] == [8]
    assert [item.prepared for item in chain.state.aborting] == [2]
    assert chain.state.columns == ()
    chain.clean(99)
    assert [item.prepared for item in chain.state.aborting] == [2]
    chain.clean(2)
    assert chain.state.aborting == ()


def test_the_boundary_only_grows(chain: Chain) -> None:
    """I7."""
    assert chain.clean(boundary=1).boundary == 1
    assert chain.clean().boundary == 1
    assert chain.clean(boundary=0).boundary == 1


def test_a_claim_takes_the_writer_over_and_keeps_its_epochs(chain: Chain) -> None:
    chain.commit(3, metadata={"a": 1})
    chain.claim("r2", 2)
    writer = chain.state.writers["w"]
    assert (writer.run, writer.generation, writer.claimed, writer.claimed_ms) == ("r2", 2, 4, 1004)
    assert (writer.last_epoch, writer.last_version, writer.last_metadata) == (3, 3, {"a": 1})


def test_a_claim_can_ride_in_a_prepare_entry() -> None:
    chain = Chain()
    chain.prepare(0, claims=True)
    assert chain.state.writers["w"].run == "r1"
    assert chain.state.pending[0].run == "r1"


def test_the_holder_may_retire_others_without_a_new_generation(chain: Chain) -> None:
    before = chain.state.writers
    chain.claim("r1", 1, retires=("r0",))
    assert chain.state.writers == before


def test_writers_do_not_see_each_other(chain: Chain) -> None:
    """I15."""
    chain.claim("other", 1, writer="v")
    chain.prepare(5)
    chain.prepare(2, writer="v", run="other")
    chain.end(Commit, 2, 4, writer="v", run="other")
    assert [item.epoch for item in chain.state.pending_of("w")] == [5]
    assert (chain.state.last_epoch("v"), chain.state.last_epoch("w")) == (2, None)


def test_publishing_marks_the_transaction_and_no_other(chain: Chain) -> None:
    chain.prepare(7)
    chain.prepare(8)
    chain.end(Publishing, 7, 2)
    assert [item.is_publishing for item in chain.state.pending] == [True, False]
    assert chain.end(Commit, 7, 2).last_epoch("w") == 7


def test_a_rewind_sets_the_epoch_back_and_it_can_be_written_again(chain: Chain) -> None:
    """I4."""
    for epoch in (1, 2, 3):
        chain.commit(epoch)
    chain.commit(1, mode=REWIND)
    assert chain.state.last_epoch("w") == 1
    assert chain.commit(2).last_epoch("w") == 2


# -- what is refused ----------------------------------------------------------------------------------------


def test_a_table_without_columns_can_be_laid_out_anew() -> None:
    chain = Chain()
    chain.add(Convert, layout="delta", partition_columns=("q", "r"))
    assert (chain.state.layout, chain.state.partition_columns) == ("delta", ("q", "r"))
    chain.claim()
    chain.commit(1)
    chain.add(Convert, layout="parquet", partition_columns=())
    assert (chain.state.layout, chain.state.partition_columns) == ("parquet", ())


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_table_that_has_files_or_may_get_them_keeps_its_partition_columns(chain: Chain, is_pending: bool) -> None:
    """I6: a file lies where its partition says."""
    file = DataFile(f"p=1/{data_name(1, 0, 32 * 'a')}", 9, "ab", 1, {"p": "1"})
    (chain.prepare if is_pending else chain.commit)(1, files=(file,), columns=(INT,))
    with pytest.raises(CorruptError, match="are pending" if is_pending else "of a table that has columns"):
        chain.add(Convert, layout="parquet", partition_columns=())


def test_files_without_columns_are_refused(chain: Chain) -> None:
    file = DataFile(f"p=1/{data_name(1, 0, 32 * 'a')}", 9, "ab", 1, {"p": "1"})
    with pytest.raises(CorruptError, match="names files of a table that has no columns"):
        chain.prepare(1, files=(file,))


def test_a_broken_chain_is_refused(chain: Chain) -> None:
    """I7, I13."""
    for fields in ({"version": 5}, {"version": 1}, {"previous": "another"}):
        with pytest.raises(CorruptError, match="the chain is broken"):
            chain.prepare(1, **fields)


def test_an_entry_of_another_log_is_refused_by_its_birth_and_its_table(chain: Chain) -> None:
    """I7, I15: a table made anew, under the same id or not; a table restored beside another."""
    for name in ("birth", "table_id"):
        with pytest.raises(CorruptError, match="it is of another log"):
            chain.prepare(1, **{name: "another"})
    with pytest.raises(CorruptError, match="its birth is not its own write id"):
        Chain(is_created=False).create(birth="another")


def test_a_table_is_created_once_and_first(chain: Chain) -> None:
    with pytest.raises(CorruptError, match="created by version 0"):
        chain.create()
    with pytest.raises(CorruptError, match="created by version 0"):
        Chain(is_created=False).claim()


def test_an_epoch_that_does_not_grow_is_refused(chain: Chain) -> None:
    """I4."""
    chain.commit(3)
    chain.prepare(5)
    for epoch in (0, 3, 4, 5):
        with pytest.raises(CorruptError, match=f"epoch {epoch} does not grow"):
            chain.prepare(epoch)


def test_a_second_commit_of_an_epoch_is_refused(chain: Chain) -> None:
    """I5."""
    chain.commit(3)
    with pytest.raises(CorruptError, match="no transaction of 'w' for epoch 3 is pending"):
        chain.end(Commit, 3, 2)


@pytest.mark.parametrize("kind", [Commit, Abort, Publishing])
def test_what_was_not_prepared_cannot_end(chain: Chain, kind: type[Any]) -> None:
    chain.prepare(3)
    for epoch, prepared in ((3, 1), (4, 2)):
        with pytest.raises(CorruptError, match="is pending"):
            chain.end(kind, epoch, prepared)


def test_a_commit_out_of_order_is_refused(chain: Chain) -> None:
    chain.prepare(3)
    chain.prepare(4)
    with pytest.raises(CorruptError, match="an earlier transaction of this writer is still pending"):
        chain.end(Commit, 4, 3)


@pytest.mark.parametrize("kind", [Commit, Abort, Publishing])
def test_a_retired_run_ends_nothing(chain: Chain, kind: type[Any]) -> None:
    """I10."""
    chain.prepare(3)
    chain.claim("r2", 2)
    for run, generation in (("r1", 1), ("r1", 2), ("r2", 1)):
        with pytest.raises(CorruptError, match="does not hold the writer"):
            chain.end(kind, 3, 2, run=run, generation=generation)
    chain.end(kind, 3, 2, run="r2", generation=2)


def test_a_retired_run_and_a_run_that_never_claimed_prepare_nothing(chain: Chain) -> None:
    """I10."""
    chain.claim("r2", 2)
    for fields in ({}, {"run": "r3"}, {"writer": "unknown"}):
        with pytest.raises(CorruptError, match="does not hold the writer"):
            chain.prepare(3, **fields)


def test_a_generation_that_is_not_the_next_one_is_refused(chain: Chain) -> None:
    for generation in (0, 1, 3):
        with pytest.raises(CorruptError, match="the next one is 2"):
            chain.claim("r2", generation)
        with pytest.raises(CorruptError, match="the next one is 2"):
            chain.prepare(3, claims=True, run="r2", generation=generation)
    with pytest.raises(CorruptError, match="the next one is 1"):
        chain.claim("r2", 2, writer="v")


def test_what_began_to_remove_files_is_not_aborted(chain: Chain) -> None:
    """I8."""
    chain.prepare(3)
    chain.end(Publishing, 3, 2)
    with pytest.raises(CorruptError, match="roll forward"):
        chain.end(Abort, 3, 2)


def test_a_rewind_goes_back_and_only_when_nothing_is_pending(chain: Chain) -> None:
    with pytest.raises(CorruptError, match="it rewinds to epoch 1"):
        chain.prepare(1, mode=REWIND)
    chain.commit(3)
    with pytest.raises(CorruptError, match="the last committed one is 3"):
        chain.prepare(4, mode=REWIND)
    chain.prepare(5)
    with pytest.raises(CorruptError, match="it rewinds to epoch 1"):
        chain.prepare(1, mode=REWIND)


def test_the_last_epoch_that_a_rewind_ever_took_back_is_remembered(chain: Chain) -> None:
    """Where another program brings its files back, a replay is refused, until they are taken away by one more."""
    told: list[int | None] = []
    for epoch, mode in ((1, "append"), (5, "append"), (1, REWIND), (1, REWIND), (2, "append"), (1, REWIND)):
        prepared = chain.prepare(epoch, mode=mode).version
        chain.end(Commit, epoch, prepared)
        told.append(chain.state.writers["w"].rewound)
    assert told == [None, None, 5, 5, 5, 5]
    assert chain.state.writers["w"].last_epoch == 1


# -- columns ------------------------------------------------------------------------------------------------


def test_new_columns_come_last_and_known_ones_stay() -> None:
    other = Column("n", "string", "x")
    assert union((INT,), (TEXT, other)) == (INT, TEXT)
    assert union((), ()) == ()


def test_a_column_without_a_type_takes_one_in_its_place() -> None:
    untyped = Column("n", "null", "bg")
    assert union((untyped, TEXT), (INT,)) == (INT, TEXT)
    assert union((untyped, TEXT), ()) == (untyped, TEXT)


# -- summaries ----------------------------------------------------------------------------------------------


def test_a_summary_gives_the_state_back(chain: Chain) -> None:
    chain.commit(1, columns=(INT, TEXT), metadata={"a": [1, {"b": None}]})
    chain.prepare(2)
    chain.prepare(3, metadata={"ü": 1.5})
    chain.end(Abort, 2, 4)
    assert decode(encode(chain.state)) == chain.state


def test_a_damaged_summary_is_none_since_entries_say_the_same(chain: Chain) -> None:
    data = encode(chain.state)
    for damaged in (b"", b"{}", data[:-1], data[:40], data.replace(b"parquet", b"parquez"), b"\x00" * 200):
        assert decode(damaged) is None
    assert decode(seal(b'{"version":1,"unknown":2}')) is None
    assert decode(seal(b'{"version":-1,"boundary":-1}')) is None
    assert decode(seal(b'{"pending":' + b"[" * 100_000 + b"]" * 100_000 + b"}")) is None


def test_a_state_does_not_grow_with_epochs(chain: Chain) -> None:
    chain.commit(0)
    small = len(encode(chain.state))
    for epoch in range(1, 200):
        chain.commit(epoch)
    assert len(encode(chain.state)) <= small + 20


# -- any order of entries -----------------------------------------------------------------------------------

STEPS = st.tuples(
    st.sampled_from(["claim", "prepare", "rewind", "publishing", "commit", "abort", "clean"]),
    st.sampled_from(["w", "v"]),
    st.integers(0, 4),
)


@given(st.lists(STEPS, max_size=40))
def test_no_order_of_entries_gets_past_the_law(steps: list[tuple[str, str, int]]) -> None:
    """I4, I5, I10: what fold accepts keeps the invariants, and what it refuses changes nothing."""
    chain = Chain()
    committed: set[tuple[str, int]] = set()
    for kind, writer, number in steps:
        before = chain.state
        known = before.writers.get(writer)
        held = {"writer": writer, "run": known.run if known else "r0", "generation": known.generation if known else 1}
        mine: list[Pending] = [item for item in before.pending if item.prepared % 5 == number] or [*before.pending]
        prepared = mine[0].prepared if mine else 0
        epoch = mine[0].epoch if mine else number
        try:
            match kind:
                case "claim":
                    chain.claim(f"r{number}", (known.generation if known else 0) + 1, writer)
                case "prepare" | "rewind":
                    mode = REWIND if kind == "rewind" else "append"
                    chain.prepare(number, mode=mode, **held)
                case "clean":
                    chain.clean(prepared)
                case _:
                    ends = {"publishing": Publishing, "commit": Commit, "abort": Abort}
                    chain.end(ends[kind], epoch, prepared, **held)
        except CorruptError:
            assert chain.state is before
            continue
        after = chain.state
        assert after.version == before.version + 1
        if kind == "commit":
            was_rewind = mine[0].mode == REWIND
            last = before.last_epoch(writer)
            if was_rewind:
                committed -= {(writer, epoch) for epoch in range(mine[0].epoch, 10)}
            else:
                assert last is None or epoch > last
                assert (writer, epoch) not in committed
            committed.add((writer, epoch))
        assert {(item.writer, item.prepared) for item in after.pending}.isdisjoint(
            {(item.writer, item.prepared) for item in after.aborting}
        )
        assert decode(encode(after)) == after


def test_a_summary_of_a_later_format_is_no_damaged_one() -> None:
    """F24: else the log would be read from before it, or taken for an empty one."""
    later = seal(b'{"format":2,"something":"new"}')
    with pytest.raises(InvalidRequestError, match="format 2, this txsink reads format 1"):
        decode(later)
