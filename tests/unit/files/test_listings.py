"""Listings of directories that other processes make and remove meanwhile."""

import subprocess
import sys
from pathlib import Path

from rebaser_server.files import SharedFiles

COMES_AND_GOES = """
import os, sys
while True:
    os.makedirs(f"{sys.argv[1]}/store/one")
    os.rmdir(f"{sys.argv[1]}/store/one")
    os.rmdir(f"{sys.argv[1]}/store")
"""


def test_a_directory_that_comes_and_goes_can_always_be_listed(tmp_path: Path) -> None:
    """It has what it had at one moment of the listing, or nothing."""
    files = SharedFiles(str(tmp_path))

    with subprocess.Popen([sys.executable, "-c", COMES_AND_GOES, str(tmp_path)]) as process:
        try:
            for _ in range(2_000):
                assert files.list_names("store") in ([], ["one"])
                files.list_infos("store", recursive=True)
        finally:
            process.kill()
