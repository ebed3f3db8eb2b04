"""The file system that a store's root is on, by the same options that Delta takes for it."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

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


def open_filesystem(root: str, options: Mapping[str, str]) -> tuple[FileSystem, PurePosixPath]:
    """The file system, and the root's path on it.

    Of a store that is neither local nor S3 its client learns from the environment, as
    Google's and Azure's do.

    Raises:
        ValueError: a root of a kind that there is no file system for.
    """
    scheme, has_scheme, path = root.partition("://")
    if not has_scheme:
        return LocalFileSystem(), PurePosixPath(root)
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
