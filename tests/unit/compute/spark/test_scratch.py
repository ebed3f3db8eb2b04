"""What Spark leaves lying about is in one place, and goes with the process that left it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rebaser_server.compute.spark.options import ScratchDirectory

KILLED = """
import os, sys
from pathlib import Path
from rebaser_server.compute.spark.options import ScratchDirectory
scratch = ScratchDirectory(Path(sys.argv[1]))
(scratch.directory / "left").write_text("behind")
print(scratch.sockets, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_closed_scratch_directory_is_gone(tmp_path: Path) -> None:
    scratch = ScratchDirectory(tmp_path)
    (scratch.directory / "inner").mkdir()

    scratch.close()

    assert list(tmp_path.iterdir()) == []


def test_a_killed_processes_directory_is_removed_by_the_next(tmp_path: Path) -> None:
    far = tmp_path / ("x" * 80)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, far], check=False, capture_output=True, text=True
    )
    assert list(far.rglob("left"))
    assert Path(ran.stdout.strip()).is_dir()

    ScratchDirectory(far).close()

    assert list(far.iterdir()) == []
    assert not Path(ran.stdout.strip()).exists()


def test_a_living_processes_directory_stays(tmp_path: Path) -> None:
    first = ScratchDirectory(tmp_path)

    ScratchDirectory(tmp_path).close()

    assert first.directory.is_dir()
    first.close()


def test_sockets_are_where_their_path_is_short_enough(tmp_path: Path) -> None:
    """An address has 108 octets; more is an error, at which Spark would not start."""
    near = ScratchDirectory(Path(tempfile.mkdtemp(prefix="near-")))
    far = ScratchDirectory(tmp_path / ("x" * 80))

    assert near.sockets == near.directory
    assert len(str(far.sockets)) < 60
    far.close()
    assert not far.sockets.exists()
    near.close()
    near.directory.parent.rmdir()


def test_sockets_are_where_spark_reads_their_path_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's scripts break an emoji, and its settings take several folders with commas."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    odd = ScratchDirectory(tmp_path / "a, b \N{GRINNING FACE}")

    assert str(odd.sockets).isascii()
    assert not {" ", ","} & {*str(odd.sockets)}
    assert odd.listable == odd.sockets
    odd.close()
    assert not odd.sockets.exists()
