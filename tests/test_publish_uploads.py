"""The multipart strategy: the contract on a bucket in memory, and what only uploads can go wrong in."""

from __future__ import annotations

import itertools

import pytest

from contract_publish import PublishContract, _publish, staged
from txsink import paths
from txsink.choices import Mode
from txsink.environment import Stamps
from txsink.errors import CorruptError, FencedError, InvalidRequestError, OutcomeUnknownError, UnavailableError
from txsink.log import entry as entries
from txsink.publish.decision import Action, End
from txsink.reading.table import open_log
from txsink.records import Upload
from txsink.testing.objects import Objects, ObjectStore
from txsink.writing import opening
from txsink.writing.writer import Writer
from upload_site import UploadSite

ROOT = "/bucket/table"


class Bucket:
    """A table in a bucket."""

    def __init__(self) -> None:
        self.objects = Objects()
        ids, clock = itertools.count(1), itertools.count(1_760_000_000_000)
        self.stamps = Stamps(lambda: next(clock), lambda: f"{next(ids):032x}", lambda attempt: None)

    def opened(self) -> ObjectStore:
        return ObjectStore(self.objects)

    def sink(self, writer: str = "w", *, is_one_shot: bool = False, **options: object) -> Writer:
        given = {"layout": "parquet", **options}
        return opening.open_sink(self.opened(), self.stamps, ROOT, writer, given, is_one_shot=is_one_shot)

    def rows(self) -> list[int]:
        return sorted(open_log(self.opened(), self.stamps, ROOT).to_arrow()["id"].to_pylist())

    def pending(self) -> list[str]:
        return sorted(upload for _, upload in self.objects.pending)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Workers open the bucket by its path."""
    made = Bucket()
    monkeypatch.setattr("txsink.staging.stager.open_store", lambda uri, options: made.opened())
    return made


@pytest.fixture
def site(bucket: Bucket) -> UploadSite:
    return UploadSite(bucket.opened, ROOT)


class TestMultipart(PublishContract):
    looks_first = False

    @pytest.fixture
    def site(self, bucket: Bucket) -> UploadSite:
        return UploadSite(bucket.opened, ROOT)

    def test_a_new_process_publishes_what_this_one_staged(self, site: UploadSite) -> None:  # type: ignore[override]
        """F11: the bucket is in memory, so the other process is another store on it."""
        prepare = staged(site, 1, [1, 2])
        before = site.staged(prepare, prepare.files[0])
        _publish(site, entries.encode(prepare), prepare.version)
        assert site.target(prepare.files[0]) == before


def write(sink: Writer, epoch: int, *ids: int, mode: Mode = "append") -> None:
    with sink.begin(epoch, mode=mode) as txn:
        txn.write({"id": list(ids)})


# -- publish ----------------------------------------------------------------------------------------------


def test_an_upload_whose_parts_were_replaced_is_found_at_publish(site: UploadSite, bucket: Bucket) -> None:
    """F19: nobody can read an upload back, but the store checks its tags."""
    prepare = staged(site, 1, [1])
    key = (f"{ROOT}/{prepare.files[0].path}", prepare.uploads[0].id)
    bucket.objects.pending[key] = {"another tag": b"another part"}
    with pytest.raises(CorruptError, match="its staged file is other, the file under its name in the table is absent"):
        site.publisher.publish(prepare)
    assert bucket.pending() == [prepare.uploads[0].id]


def test_a_store_that_refuses_to_complete_a_whole_upload_is_unavailable(site: UploadSite) -> None:
    prepare = staged(site, 1, [1])
    site.plain.complete = lambda path, upload: False  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="refused to complete its upload, which is there whole"):
        site.publisher.publish(prepare)
    site.plain.complete = lambda path, upload: True  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="said that its upload is complete, but there is no such object"):
        site.publisher.publish(prepare)
    assert site.publisher.ends(prepare, prepare.files[0]) == (End.SAME, End.ABSENT)


def test_a_completion_that_was_tried_before_is_believed_only_when_the_file_is_there(
    site: UploadSite, bucket: Bucket
) -> None:
    """I6: a server that was killed in the middle of it may know the upload as complete, and have no object."""
    prepare, real = staged(site, 1, [1]), site.plain.complete

    def dies(path: str, upload: Upload) -> bool:
        bucket.objects.pending.clear()
        raise OutcomeUnknownError("publish", "the answer was lost", "Recover")

    site.plain.complete = dies  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError):
        site.publisher.publish(prepare)
    again = site.again()
    for one in (site, again):
        one.plain.complete = lambda path, upload: True  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="said that its upload is complete, but there is no such object"):
            one.publisher.publish(prepare)
    other = staged(again, 2, [2])
    again.plain.complete = real  # type: ignore[method-assign]
    again.publisher.publish(other)
    again.plain.complete = lambda path, upload: True  # type: ignore[method-assign]
    again.publisher.publish(other)


def test_a_file_without_an_upload_is_not_prepared(bucket: Bucket) -> None:
    with bucket.sink() as sink:
        txn = sink.begin(0)
        (one,) = txn.stager().stage({"id": [1]})
        txn.add([{**one.to_dict(), "upload": None}])
        with pytest.raises(CorruptError, match="is no pending upload"):
            txn.prepare()


# -- whole epochs -----------------------------------------------------------------------------------------


def test_an_epoch_is_unseen_until_it_is_committed_and_its_prepare_entry_holds_the_uploads(bucket: Bucket) -> None:
    sink = bucket.sink(partition_by=["day"])
    txn = sink.begin(0)
    txn.write({"id": [1, 2], "day": ["a", "b"]})
    txn.prepare()
    (item,) = sink.log.state.pending
    prepare = sink.log.prepare_entry(item.prepared)
    assert [upload.id for upload in prepare.uploads] == bucket.pending()
    assert not [path for path in bucket.objects.objects if path.endswith(".parquet")]
    txn.commit()
    assert bucket.rows() == [1, 2]
    assert bucket.pending() == []
    assert entries.decode(entries.encode(prepare), prepare.version) == prepare


def test_a_crash_after_prepare_is_committed_by_the_next_run(bucket: Bucket) -> None:
    txn = bucket.sink().begin(0)
    txn.write({"id": [1]})
    txn.prepare()
    assert bucket.sink().recovered == ([0], [], None)
    assert bucket.rows() == [1]


def test_a_pending_upload_that_is_gone_names_its_epoch_which_can_be_written_again_after_an_abort(
    bucket: Bucket,
) -> None:
    """A life-cycle rule aborted it: nothing is committed, nothing else is deleted."""
    dead = bucket.sink().begin(7)
    dead.write({"id": [1]})
    dead.prepare()
    bucket.objects.pending.clear()
    with pytest.raises(CorruptError, match=r"epoch 7 of 'w': its staged file is absent") as caught:
        bucket.sink()
    assert caught.value.context["epoch"] == 7
    again = bucket.sink(recover=False)
    again.abort(7)
    write(again, 7, 2)
    assert bucket.rows() == [2]


def test_an_overwrite_deletes_what_it_replaces(bucket: Bucket) -> None:
    sink = bucket.sink()
    write(sink, 0, 1, 2)
    (old,) = [path for path in bucket.objects.objects if path.endswith(".parquet")]
    write(sink, 1, 3, mode="overwrite")
    assert bucket.rows() == [3]
    assert old not in bucket.objects.objects


def test_a_version_whose_files_were_replaced_says_that_they_are_gone(bucket: Bucket) -> None:
    sink = bucket.sink()
    write(sink, 0, 1, 2)
    before = sink.log.state.version
    write(sink, 1, 3, mode="overwrite")
    table = open_log(bucket.opened(), bucket.stamps, ROOT)
    with pytest.raises(InvalidRequestError, match="this store cannot keep replaced files"):
        table.to_arrow(version=before)
    assert table.verify() == []


# -- opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["the same", "another"])
def test_a_hint_that_is_behind_hides_no_epoch_from_a_run_that_opens(bucket: Bucket, run: str) -> None:
    """What came after it is found by the claim, or by a look when the run has claimed before."""
    sink = bucket.sink(run="the same")
    write(sink, 0, 1)
    head = f"{ROOT}/{paths.HEAD_PATH}"
    behind = bucket.objects.objects[head]
    write(sink, 1, 2)
    bucket.objects.objects[head] = behind
    again = bucket.sink(run=run)
    assert again.last_epoch == 1
    assert again.begin(1).outcome == "already-committed"
    write(again, 2, 3)
    assert bucket.rows() == [1, 2, 3]


# -- sweep ------------------------------------------------------------------------------------------------


def test_the_next_run_drops_what_the_last_one_staged_and_never_prepared(bucket: Bucket) -> None:
    """F16, and I15: other writers' uploads, and uploads of other programs, stay."""
    other = bucket.sink("v").begin(0)
    other.stager().stage({"id": [5]})
    bucket.objects.pending[f"{ROOT}/part-0-0-abcd.parquet", "foreign"] = {}
    bucket.objects.pending["/bucket/elsewhere/x.parquet", "elsewhere"] = {}
    kept = bucket.pending()
    dead = bucket.sink()
    write(dead, 0, 1)
    dead.begin(1).stager().stage({"id": [2]})
    assert len(bucket.pending()) == len(kept) + 1
    bucket.sink()
    assert bucket.pending() == kept
    assert bucket.rows() == [1]


def test_a_live_runs_uploads_are_kept_by_its_own_sweep(bucket: Bucket) -> None:
    sink = bucket.sink()
    txn = sink.begin(0)
    staged_files = txn.stager().stage({"id": [1]})
    assert [one.action for one in sink.sweep()] == [Action.KEEP]
    txn.add(staged_files)
    txn.commit()
    assert bucket.rows() == [1]


def test_a_second_upload_to_a_published_name_is_dropped(bucket: Bucket) -> None:
    """A client that asked twice for an upload knows of one only."""
    sink = bucket.sink()
    write(sink, 0, 1)
    (path,) = [path for path in bucket.objects.objects if path.endswith(".parquet")]
    bucket.objects.pending[path, "twin"] = {}
    bucket.sink()
    assert bucket.pending() == []
    assert bucket.rows() == [1]


def test_what_one_write_leaves_is_dropped_by_the_next(bucket: Bucket) -> None:
    """A run that stages by upload claims first, also when it writes one epoch only."""
    dead = bucket.sink(is_one_shot=True)
    dead.begin(0).stager().stage({"id": [1]})
    write(bucket.sink(is_one_shot=True), 0, 2)
    assert bucket.pending() == []
    with pytest.raises(FencedError):
        write(dead, 0, 1)
    assert bucket.rows() == [2]


def test_an_aborted_transaction_drops_its_uploads(bucket: Bucket) -> None:
    sink = bucket.sink()
    txn = sink.begin(0)
    txn.write({"id": [1]})
    records = txn.stager().stage({"id": [2]})
    assert records[0].upload is not None
    txn.abort()
    assert bucket.pending() == []


# -- names ------------------------------------------------------------------------------------------------


def test_an_uploads_name_tells_its_writer_and_run_by_tags(site: UploadSite) -> None:
    prepare = staged(site, 3, [1])
    (name,) = site.publisher.left("w", ())
    assert (name.writer, name.epoch, name.path) == ("w", 3, prepare.files[0].path)
    assert name.is_of("r")
    assert not name.is_of("another")
    assert site.publisher.left(None, ["v", "w"]) == [name]
    assert site.publisher.left("v", ()) == []


@pytest.mark.parametrize(
    "path", ["part-1-0-abcd.parquet", "x.parquet", f"part-1-0-{paths.tag('w')}.parquet", "_txsink/log/0.json"]
)
def test_names_that_no_run_made_are_nobodys(path: str) -> None:
    assert paths.parse_upload(path, "id", "w") is None


def test_an_uploads_record_travels_as_json(bucket: Bucket) -> None:
    (one,) = bucket.sink().begin(0).stager().stage({"id": [1]})
    assert one.from_dict(one.to_dict()) == one
    assert one.upload == Upload(bucket.pending()[0], one.upload.parts if one.upload else ())


def test_a_staging_path_is_refused(bucket: Bucket) -> None:
    with pytest.raises(InvalidRequestError, match="staged under their final names"):
        bucket.sink(staging_path="/bucket/elsewhere")


def test_a_prepare_entry_names_an_upload_for_each_file_or_for_none(site: UploadSite) -> None:
    prepare = staged(site, 1, [1], [2])
    fields = {name: getattr(prepare, name) for name in type(prepare).__struct_fields__}
    with pytest.raises(ValueError, match="it names 1 uploads of 2 files"):
        type(prepare)(**{**fields, "uploads": prepare.uploads[:1]})
