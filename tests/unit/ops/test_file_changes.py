"""A file that was written, replaced, lost or found again has changed, once."""

from pathlib import Path

from rebaser_server.ops.auth import FileChanges


def test_each_change_of_a_file_is_found_once(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("one")
    changes = FileChanges([file, None])
    assert not changes.found()

    file.write_text("three")
    assert [changes.found(), changes.found()] == [True, False]
    other.write_text("three")
    other.replace(file)
    assert [changes.found(), changes.found()] == [True, False]
    file.unlink()
    assert [changes.found(), changes.found()] == [True, False]
    file.write_text("three")
    assert [changes.found(), changes.found()] == [True, False]
