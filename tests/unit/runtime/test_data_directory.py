"""One process at a time uses a data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rebaser_server.runtime.data_directory import (
    DirectoryInUse,
    DirectoryUnusable,
    address_of,
    data_directory,
)


def test_a_directory_in_use_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    with data_directory(tmp_path / "new") as directory:
        directory.describe("nats://127.0.0.1:7")

        with pytest.raises(DirectoryInUse) as refused, data_directory(tmp_path / "new"):
            pass

    for part in (str(tmp_path / "new"), f"pid {os.getpid()}", "nats://127.0.0.1:7", "--data"):
        assert part in str(refused.value)


def test_a_directory_that_takes_no_bytes_is_named(tmp_path: Path) -> None:
    """A full disk takes an empty file, and not what is written into it."""
    (tmp_path / "lock").symlink_to("/dev/full")

    with (
        pytest.raises(DirectoryUnusable, match=rf"^{tmp_path}: .*--data$"),
        data_directory(tmp_path),
    ):
        pass


def test_the_directory_is_free_once_its_holder_has_left(tmp_path: Path) -> None:
    with data_directory(tmp_path):
        pass

    with data_directory(tmp_path) as directory:
        directory.describe("nats://127.0.0.1:7")


def test_a_child_that_outlives_its_holder_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """As the NATS server of an `up` that was killed."""
    holder = f"""
import os, subprocess, sys
from pathlib import Path
from rebaser_server.runtime.data_directory import data_directory
with data_directory(Path({str(tmp_path)!r})) as directory:
    subprocess.Popen(["sleep", "0.5"],
                     pass_fds=[directory.file], stdout=subprocess.DEVNULL)
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", holder], check=True, timeout=60)

    with data_directory(tmp_path):
        pass


def test_the_address_is_known_for_as_long_as_the_directory_is_in_use(tmp_path: Path) -> None:
    before = address_of(tmp_path)
    with data_directory(tmp_path) as directory:
        early = address_of(tmp_path)
        directory.describe("nats://127.0.0.1:7")
        meanwhile = address_of(tmp_path)

    assert (before, early, meanwhile) == (None, None, "nats://127.0.0.1:7")
    assert address_of(tmp_path) is None
