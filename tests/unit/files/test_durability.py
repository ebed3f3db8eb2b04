"""What a commit names outlasts a power cut before the commit is written."""

from pathlib import Path

from rebaser_server.compute.results import SCHEMA, RunStore, UnitResult
from rebaser_server.files import BatchFiles, SharedFiles
from tests.helpers.sync_recorder import SyncRecorder

RUN = "ab" * 32


def test_a_batch_is_on_the_disk_with_all_directories_above_it(tmp_path: Path) -> None:
    recorder = SyncRecorder()
    with recorder.recording():
        batches = BatchFiles(SharedFiles(str(tmp_path / "not" / "there" / "yet")))
        batches.put("key", b"one")
        assert recorder.lost(tmp_path) == []

        batches.put("key", b"another")
        batches.put(f"{RUN}.{RUN}", b"and one beside the results of a run")

        assert recorder.lost(tmp_path) == []


def test_a_directory_that_was_deleted_and_made_anew_is_synced_anew(tmp_path: Path) -> None:
    """Another attempt at an update begins where the one before it was cleared away."""
    recorder, run = SyncRecorder(), RunStore(SharedFiles(str(tmp_path)), RUN)
    with recorder.recording():
        for _ in range(2):
            run.put_part("0", 0, 0, UnitResult(0, SCHEMA.empty_table()))
            assert recorder.lost(tmp_path) == []
            run.clear()


def test_what_tells_how_far_a_run_is_need_not_outlast_it(tmp_path: Path) -> None:
    """It is written often."""
    recorder, run = SyncRecorder(), RunStore(SharedFiles(str(tmp_path)), RUN)
    with recorder.recording():
        run.put_costs({})
        assert recorder.lost(tmp_path) == []

        run.put_progress("run", "0", 7)

    assert run.progress("run") == {"0": 7}
    assert len(recorder.lost(tmp_path)) == 1
