"""The file system that a store's root is on, by the same options that Delta takes for it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem

_S3: Final = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "aws_default_region": "region",
    "aws_endpoint_url": "endpoint_override",
    "aws_endpoint": "endpoint_override",
}
"""Option of Delta's client for S3, in lower case and with its prefix → parameter of Arrow's."""


_IS_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\[\\\]^|]")
"""Characters of a path that Delta's client for local files misreads."""


def local_path(root: str) -> Path | None:
    """The path of a root on this machine; None for an object store's URI."""
    if not _IS_URI.match(root):
        return Path(root).absolute()
    return Path(url2pathname(urlsplit(root).path)) if root.startswith("file://") else None


def delta_root(root: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The root for Delta, which takes it for a URI, and the options to open tables below it with.

    A path that Delta misreads, it gets as an option of another of its clients. That one, too,
    creates an entry of a table's log once, but writes it in place: a process that dies meanwhile
    leaves an empty entry, as a power cut does.
    """
    local = local_path(root)
    if local is None:
        return root.rstrip("/"), dict(options)
    real = os.path.realpath(local)
    if _NOT_FOR_DELTA.search(real):
        return "fs://", {**options, "opendal.root": real}
    return str(local), dict(options)


def open_filesystem(root: str, options: Mapping[str, str]) -> tuple[FileSystem, PurePosixPath]:
    """The file system, and the root's path on it.

    Of a store that is neither local nor S3 its client learns from the environment, as
    Google's and Azure's do.

    Raises:
        ValueError: a root of a kind that there is no file system for.
    """
    local = local_path(root)
    if local is not None:
        return LocalFileSystem(), PurePosixPath(local)
    scheme, _, path = root.partition("://")
    if scheme not in ("s3", "s3a"):
        filesystem, place = FileSystem.from_uri(root)
        return filesystem, PurePosixPath(place)
    parameters: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        parameter = _S3.get(lower if lower.startswith("aws_") else f"aws_{lower}")
        if parameter is not None:
            parameters[parameter] = value
    return S3FileSystem(**parameters), PurePosixPath(path)
