"""What a power cut leaves of a volume: what was synced, and nothing that was not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.machine_requirements import lacking
from tests.powercut.volume import Volume, lacked, mounted, new_volume


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if missing := lacked():
        lacking(*missing)
    with new_volume(tmp_path / "image", tmp_path / "disk") as made:
        yield made


def test_what_was_synced_is_there_and_nothing_else(volume: Volume, tmp_path: Path) -> None:
    write(volume.directory / "before", b"old", sync=True)
    write(volume.directory / "synced", b"new", sync=True)
    write(volume.directory / "cached", b"new", sync=False)
    volume.copy(tmp_path / "copy")

    with mounted(tmp_path / "copy", tmp_path / "again") as left:
        found = {name: read(left.directory / name) for name in ("before", "synced", "cached")}

    assert found == {"before": b"old", "synced": b"new", "cached": b""}


def test_a_volume_goes_back_to_a_copy(volume: Volume, tmp_path: Path) -> None:
    write(volume.directory / "file", b"old", sync=True)
    volume.copy(tmp_path / "copy")
    write(volume.directory / "file", b"new", sync=True)

    volume.go_back(tmp_path / "copy")

    assert read(volume.directory / "file") == b"old"


def test_nothing_is_left_mounted(volume: Volume, tmp_path: Path) -> None:
    volume.copy(tmp_path / "copy")
    with mounted(tmp_path / "copy", tmp_path / "again") as left:
        pass

    assert str(left.directory) not in Path("/proc/mounts").read_text()
    assert not any((tmp_path / "again").iterdir())


def write(path: Path, octets: bytes, *, sync: bool) -> None:
    """Its directory is synced with it."""
    with path.open("wb") as file:
        file.write(octets)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def read(path: Path) -> bytes:
    """Nothing, if it is not there."""
    return path.read_bytes() if path.exists() else b""
