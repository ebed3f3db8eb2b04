"""A file system of its own in a file, and what a power cut leaves of it.

What programs wrote lies in the page cache until they, or the kernel, sync it: only then is it in
the file. A copy of the file is the disk of a machine that lost its power at that moment.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

OCTETS: Final = 384 << 20
"""Of a volume. The file has holes: it takes as much room as was written."""

_ATTEMPTS: Final = 200
"""Copies until one is taken during which the kernel wrote nothing."""

_PROGRAMS: Final = {"mkfs.ext4": "e2fsprogs", "mount": "mount", "unshare": "util-linux"}
"""With the package of each."""

_MAY_MOUNT: Final = ("unshare", "--mount", "true")


class NotAtomic(Exception):
    """The kernel wrote into the file during each attempt to copy it."""


def lacked() -> tuple[str, str] | None:
    """What this machine lacks for volumes, and what helps; None if nothing."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return program, f"apt-get install {package}"
    if os.geteuid() != 0 or subprocess.run(_MAY_MOUNT, check=False, capture_output=True).returncode:
        return "the right to mount", "run the test as root"
    if not Path("/dev/loop-control").exists():
        return "loop devices", "modprobe loop"
    return None


class Volume:
    """A mounted ext4 file system, and the file that it is in."""

    def __init__(self, image: Path, directory: Path) -> None:
        self.image = image
        self.directory = directory

    @property
    def _device(self) -> str:
        for line in Path("/proc/mounts").read_text().splitlines():
            device, directory, *_ = line.split()
            if directory == str(self.directory):
                return device.removeprefix("/dev/")
        raise LookupError(self.directory)

    def sync(self) -> None:
        """Have the kernel write what it has cached, as it does when its time has come."""
        _run("sync", "--file-system", self.directory)

    def copy(self, to: Path) -> None:
        """Copy the file as it is at one moment. Nobody may write into the volume meanwhile.

        The kernel may write what it has cached at any time; a copy during which it did is made
        again.

        Raises:
            NotAtomic: it never paused.
        """
        statistics = Path(f"/sys/block/{self._device}/stat")
        for _ in range(_ATTEMPTS):
            before = _writes(statistics)
            copy_image(self.image, to)
            if before == _writes(statistics) and not before[1]:
                return
        raise NotAtomic(self.image)

    def go_back(self, image: Path) -> None:
        """Mount that copy instead. No process may use the volume."""
        _unmount(self.directory)
        image.replace(self.image)
        _mount(self.image, self.directory)


def _writes(statistics: Path) -> tuple[int, int]:
    """Writes that the device completed, and calls that it has in hand."""
    fields = statistics.read_text().split()
    return int(fields[4]), int(fields[8])


def copy_image(image: Path, to: Path) -> None:
    """Copy the file, holes and all."""
    _run("cp", "--sparse=always", "--reflink=auto", image, to)


@contextmanager
def new_volume(image: Path, directory: Path) -> Iterator[Volume]:
    """Make one, and mount it there for the time of the body."""
    with image.open("wb") as file:
        file.truncate(OCTETS)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    with mounted(image, directory) as volume:
        yield volume


@contextmanager
def mounted(image: Path, directory: Path) -> Iterator[Volume]:
    """Mount the file there for the time of the body, as a machine does that starts again.

    The loop device goes away with the mount. Whoever still uses the volume then is left with it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _mount(image, directory)
    with ExitStack() as stack:
        stack.callback(_unmount, directory)
        yield Volume(image, directory)


def _mount(image: Path, directory: Path) -> None:
    _run("mount", "-o", "loop", image, directory)


def _unmount(directory: Path) -> None:
    _run("umount", "--lazy", directory)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
