"""Files of a store by Arrow: those in object stores, and parts and maps of any file.

Only `files` imports it, where it is needed first.
"""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
from pyarrow import NativeFile
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    LocalFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)

_SECRETS: Final = re.compile(r"(?<=://)[^/\s'\"\\]+@|\?[^\s'\")\\]+")
"""Parts of a URL in a text that may be secret: user and password, and all parameters."""

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


_HTTP: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
)
"""Options of Delta's client that are not the store's."""


def _open_filesystem(
    root: str, local: Path | None, options: Mapping[str, str]
) -> tuple[FileSystem, PurePosixPath]:
    """The file system, and the root's path on it.

    The client of a store that is neither local nor S3, such as Google's and Azure's, reads the
    environment.

    Raises:
        ValueError: the root's kind has no file system.
    """
    if local is not None:
        return LocalFileSystem(), PurePosixPath(local)
    scheme, _, path = root.partition("://")
    if scheme not in ("s3", "s3a"):
        filesystem, place = FileSystem.from_uri(root)
        return filesystem, PurePosixPath(place)
    parameters = {_S3[name]: value for name, value in _named_for_s3(options).items()}
    # What is small is one request, and not three.
    return S3FileSystem(**parameters, allow_delayed_open=True), PurePosixPath(path)


def _named_for_s3(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that both clients of S3 know, by the names in `_S3`."""
    named = {}
    for name, value in options.items():
        lower = name.lower()
        named[lower if lower.startswith("aws_") else f"aws_{lower}"] = value
    return {name: value for name, value in named.items() if name in _S3}


def _open_objects(root: str, options: Mapping[str, str]) -> Any:
    """Open the object store by another client, that of Delta."""
    from obstore import store  # noqa: PLC0415 - for object stores alone

    client = {name: options[name] for name in options if name.lower().removeprefix("aws_") in _HTTP}
    if root.startswith(("s3://", "s3a://")):
        config = _named_for_s3(options)
        if config.get("aws_endpoint_url", config.get("aws_endpoint", "")).startswith("http://"):
            client["allow_http"] = "true"  # as for Arrow's
    else:
        config = {name: value for name, value in options.items() if name not in client}
    client = {name.lower().removeprefix("aws_"): value for name, value in client.items()}
    open_store: Any = store.from_url  # typed for options that are known
    return open_store(root, config=config, client_options=client)


@contextmanager
def _reaching_store() -> Iterator[None]:
    """Raise `OSError` in place of the errors of `_open_objects`' client."""
    from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415 - as above

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(error)) from error
    except BaseError as error:
        raise OSError(errno.EIO, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Return what an error says, without the secrets of the URL that it names."""
    return _SECRETS.sub("", str(error).partition("\n")[0])


class ArrowFiles:
    """Files below a root, by path relative to it."""

    def __init__(self, root: str, local: Path | None, options: Mapping[str, str]) -> None:
        """Open the root, which is `local` if it is on this machine."""
        self._uri, self._options = root, options
        self._files, self._root = _open_filesystem(root, local, options)

    def writing(self, path: str) -> NativeFile:
        """Open a file to be written in place; an object is there once the file is closed."""
        return self._files.open_output_stream(self._at(path))

    def open(self, path: str) -> NativeFile:
        """Open the file for reading parts of it. Raises `FileNotFoundError`."""
        return self._files.open_input_file(self._at(path))

    def read(self, path: str) -> pa.Buffer:
        """Return the bytes; a local file is mapped, not read. Raises `FileNotFoundError`."""
        if isinstance(self._files, LocalFileSystem):
            with pa.memory_map(self._at(path)) as mapped:
                return mapped.read_buffer()
        with self.open(path) as file:
            return file.read_buffer()

    def below(self, directory: str) -> FileSystem:
        return SubTreeFileSystem(self._at(directory), self._files)

    def infos(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """Names, kinds and times of what is in a directory; empty for a missing directory."""
        selector = FileSelector(self._at(directory), allow_not_found=True, recursive=recursive)
        return list(self._files.get_file_info(selector))

    def info(self, path: str) -> FileInfo:
        return self._files.get_file_info(self._at(path))

    def relative(self, info: FileInfo) -> str:
        """Return the path of a file that was listed."""
        return str(PurePosixPath(info.path).relative_to(self._root))

    # Objects, by Delta's client: Arrow's asks for an object's size before it reads it, puts none
    # once only, and leaves an empty object in place of a directory whose last file it deletes.

    def get(self, path: str) -> bytes:
        """Return the bytes of an object. Raises `FileNotFoundError`."""
        import obstore  # noqa: PLC0415 - for object stores alone

        with _reaching_store():
            return bytes(obstore.get(self._objects, path).bytes())

    def put_once(self, path: str, payload: bytes) -> None:
        """Put an object unless there is one."""
        import obstore  # noqa: PLC0415 - for object stores alone

        with _reaching_store(), suppress(obstore.exceptions.AlreadyExistsError):
            obstore.put(self._objects, path, payload, mode="create")

    def copy(self, path: str, new_path: str) -> None:
        """Copy an object. Replaces one."""
        import obstore  # noqa: PLC0415 - for object stores alone

        with _reaching_store():
            obstore.copy(self._objects, path, new_path)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; a missing one is no error."""
        import obstore  # noqa: PLC0415 - for object stores alone

        if paths:
            with _reaching_store(), suppress(FileNotFoundError):
                obstore.delete(self._objects, paths)

    @cached_property
    def _objects(self) -> Any:
        return _open_objects(self._uri, self._options)

    def _at(self, path: str) -> str:
        return str(self._root / path)
