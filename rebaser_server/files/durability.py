"""What outlasts a power cut: a local file or directory does once it was synced, and not before."""

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

_REMEMBERED: Final = 10_000
"""Directories; each is synced anew once it is forgotten, which costs a few milliseconds."""


def sync_file(path: Path) -> None:
    """Return once the bytes of the file, from any process, are on the disk; not yet its name.

    Of a directory, these are the names in it.

    Raises:
        OSError: they may not be; `FileNotFoundError` if there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(paths: Iterable[Path]) -> None:
    """Return once the names of these files are on the disk, and of all directories above them.

    Any directory may have been made a moment ago, also by a process that has not synced it. So
    the name of each is synced once by each process, and again after
    `forget_directories`.

    Raises:
        OSError: a name may not be on the disk.
    """
    for directory in {path.parent for path in paths}:
        sync_file(directory)
        _sync_name_of(directory)


def forget_directories() -> None:
    """Sync the names of all directories anew: some may be made anew."""
    _sync_name_of.cache_clear()


@lru_cache(_REMEMBERED)
def _sync_name_of(directory: Path) -> None:
    above = directory.parent
    if above != directory and os.access(above, os.R_OK):  # else this process cannot have made it
        sync_file(above)
        _sync_name_of(above)
