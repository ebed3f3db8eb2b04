"""A PostgreSQL for one round of benchmarks, if the machine has one installed."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SYNCED = {"default": "off", "sync always": "on"}
"""`synchronous_commit`: whether a commit is on the disk before it is acknowledged. Off, it is
within a second, where nats-server takes up to two minutes by default."""

_STARTED_WITHIN = 30.0  # seconds


def installed() -> Path | None:
    """The directory of its programs; None if there is none."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@contextmanager
def postgres(programs: Path, directory: Path, durability: str) -> Iterator[tuple[str, int]]:
    """Run one whose files are in `directory`: where to connect, by a socket, and its process id."""
    directory.mkdir(parents=True)
    user = _owner(directory)
    data = directory / "data"
    create = [programs / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-N"]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL, user=user, cwd=directory)
    options = ["-c", "listen_addresses=", "-c", f"synchronous_commit={SYNCED[durability]}"]
    command = [programs / "postgres", "-D", data, "-k", directory, *options]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, user=user, cwd=directory, stdout=log, stderr=log) as process,
    ):
        try:
            where = f"host={directory} user=bench dbname=postgres"
            _await(programs, directory)
            yield where, process.pid
        finally:
            process.terminate()


def _owner(directory: Path) -> str | None:
    """Another user, whom the files are given to, where we are one that it refuses to run as."""
    if os.geteuid() != 0:
        return None
    shutil.chown(directory, "nobody")
    for parent in directory.parents:  # it must be let in
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o011)
    return "nobody"


def _await(programs: Path, directory: Path) -> None:
    end = time.monotonic() + _STARTED_WITHIN
    asked = [programs / "pg_isready", "-q", "-h", directory]
    while subprocess.run(asked, check=False).returncode:
        if time.monotonic() > end:
            raise RuntimeError("PostgreSQL did not start")
        time.sleep(0.05)
