"""What a checkpoint is made of outlasts a power cut before anything relies on it (S-7)."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rebaser_core.updates import PutValue
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store import checkpoints as store_checkpoints
from rebaser_server.store import compaction, table_files
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, graph_of, saved, ulid
from tests.helpers.sync_recorder import SyncRecorder


def save_on(checkpoints: Checkpoints, graph: Graph, first: int, last: int) -> None:
    for commit in range(first, last + 1):
        rebase(graph, commit, [PutValue(value_id=ulid(1), value=commit)])
        saved(checkpoints, graph, commit)


def test_every_file_of_a_checkpoint_is_synced_before_it_counts(tmp_path: Path) -> None:
    recorder, root = SyncRecorder(), tmp_path / "a" / "store"
    with recorder.recording():
        graph = graph_of(1)
        for commit in range(1, 5):
            save_on(Checkpoints(str(root)), graph, commit, commit)
            assert recorder.lost(tmp_path) == []


def test_what_another_process_wrote_and_did_not_sync_is_synced_as_well(tmp_path: Path) -> None:
    """It may have been killed between the two, or be of a release that never synced."""
    save_on(Checkpoints(str(tmp_path)), graph_of(1), 1, 4)
    recorder, checkpoints = SyncRecorder(), Checkpoints(str(tmp_path))
    assert recorder.lost(tmp_path)

    with recorder.recording():
        save_on(checkpoints, graph_of(4), 5, 5)
        assert recorder.lost(tmp_path) == []
        save_on(checkpoints, graph_of(5), 6, 6)
        assert recorder.lost(tmp_path) == []


def test_the_sum_of_the_log_is_synced_before_its_entries_may_go(tmp_path: Path) -> None:
    """Delta writes one with each hundredth entry."""
    recorder, checkpoints, graph = SyncRecorder(), Checkpoints(str(tmp_path)), graph_of(1)
    with recorder.recording():
        save_on(checkpoints, graph, 1, 2)
        DeltaTable(checkpoints.uri(CHANGE_SET)).create_checkpoint()
        assert recorder.lost(tmp_path)

        save_on(checkpoints, graph, 3, 3)

        assert list(tmp_path.rglob("*.checkpoint.parquet"))
        assert recorder.lost(tmp_path) == []


def test_a_compacted_table_is_synced_before_the_replaced_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_FILES", 3)
    recorder, checkpoints = SyncRecorder(), Checkpoints(str(tmp_path))
    with recorder.recording():
        save_on(checkpoints, graph_of(1), 1, 5)
        real, lost = compaction.vacuum, []

        def vacuum(delta: DeltaTable, retention: float) -> list[str]:
            lost.append(recorder.lost(tmp_path))
            return real(delta, retention)

        monkeypatch.setattr(compaction, "vacuum", vacuum)

        assert compaction.compact(checkpoints, CHANGE_SET, 0, 0) == "small files merged"
        assert lost == [[]]


def test_a_second_checkpoint_syncs_its_own_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkpoint of a few values costs what the whole table does."""
    checkpoints = Checkpoints(str(tmp_path))
    save_on(checkpoints, graph_of(1), 1, 8)
    synced: list[str] = []
    monkeypatch.setattr(
        table_files.SharedFiles, "sync", lambda _, paths: synced.extend(map(str, paths))
    )

    save_on(checkpoints, graph_of(8), 9, 9)

    assert sorted(Path(path).suffix for path in synced) == [".json", ".parquet"]


@pytest.mark.parametrize("how", ["cut", "empty", "overwritten", "gone"])
def test_a_checkpoint_that_reads_back_otherwise_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    checkpoints, real = Checkpoints(str(tmp_path)), store_checkpoints.write_deltalake
    save_on(checkpoints, graph_of(1), 1, 1)
    before = set(tmp_path.rglob("*.parquet"))

    def write(*arguments: object, **named: object) -> None:
        real(*arguments, **named)
        [file] = set(tmp_path.rglob("*.parquet")) - before
        match how:
            case "cut":
                file.write_bytes(file.read_bytes()[:-9])
            case "empty":
                file.write_bytes(b"")
            case "overwritten":
                file.write_bytes(bytes(file.stat().st_size))
            case _:
                file.unlink()

    monkeypatch.setattr(store_checkpoints, "write_deltalake", write)

    with pytest.raises(StoreDamaged):
        save_on(checkpoints, graph_of(1), 2, 2)


def test_want_of_memory_is_no_damage() -> None:
    """Another checkpoint would be taken in its place."""
    with pytest.raises(StoreFailed) as failed, table_files.translate_store_errors("a file"):
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    assert not isinstance(failed.value, StoreDamaged)


def test_a_table_is_read_where_no_thread_may_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a container's limit of processes."""
    save_on(Checkpoints(str(tmp_path)), graph_of(1), 1, 4)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loaded = Checkpoints(str(tmp_path)).load(CHANGE_SET)

    assert loaded is not None
    assert (loaded.commit, loaded.damage) == (4, "")
