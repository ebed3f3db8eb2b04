"""Whole files as objects in a bucket of NATS, for a deployment that has neither folder nor S3.

The directories of a path are parts of the bucket, so that one is listed by its subjects without a
look at the others: `a/b/c` is the object `c` in the part `a.b`. A file is there once its
description is, which replaces that of another version; its chunks are there before.
"""

import asyncio
import base64
import concurrent.futures
import errno
import re
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import nats.errors

from rebaser_core.jetstream import (
    Delivery,
    JetStreamError,
    ObjectDamaged,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ordered_reader,
)
from rebaser_core.streams import Streams
from rebaser_server.files import IN_NATS, TEMP_DIR, FileInfo

T = TypeVar("T")

_is_directory: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_is_chunks: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,64}\.)*[A-Za-z0-9_-]{1,64}").fullmatch


class NatsFiles:
    """Files of a deployment, as `StoreFiles`. To be made on the event loop that has its NATS.

    All calls block until that loop has done the work. So they are for threads, and are refused on
    the loop itself, which would wait for itself without end.
    """

    root: Final = IN_NATS

    def __init__(self, streams: Streams) -> None:
        self._js = streams.js
        self._loop = asyncio.get_running_loop()
        # The callers may have taken all threads of the loop, and each waits for a hash.
        hashing = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._bucket = streams.store_bucket
        self._stream = f"OBJ_{self._bucket}"
        self._objects = ObjectStore(self._js, self._bucket, hashing=hashing)

    def put(self, path: str, payload: bytes, *, durable: bool = True) -> None:
        del durable  # NATS has what it has confirmed, as for requests and commits
        objects, name = self._at(path)
        self._wait(objects.put(name, bytes(payload)))

    def put_if_absent(self, path: str, payload: bytes) -> None:
        objects, name = self._at(path)
        self._wait(objects.put_if_absent(name, bytes(payload)))

    def get(self, path: str) -> bytes:
        objects, name = self._at(path)
        return self._wait(objects.get(name))

    def has(self, path: str) -> bool:
        """Whether there is a file or a directory; there are no empty ones."""
        objects, name = self._at(path)
        try:
            self._wait(objects.info(name))
        except FileNotFoundError:
            return bool(self.list_names(path))
        return True

    def list_names(self, directory: str) -> list[str]:
        prefix = self._subjects(directory)
        subjects = self._wait(self._js.stream_subjects(self._stream, f"{prefix}>"))
        return sorted({_first_name(subject.removeprefix(prefix)) for subject in subjects})

    def list_infos(self, directory: str) -> list[FileInfo]:
        """Files and directories in a directory; empty for a missing directory.

        The time of a directory is that of its newest file. Chunks that a `put` left when it was cut
        off are listed among the unfinished files.
        """
        found: dict[str, FileInfo] = {}
        for path, info in self._wait(self._infos(directory)):
            name, is_inside, _ = path.partition("/")
            size = None if is_inside else info.size
            newest = max(info.mtime_ns or 0, (found[name].mtime_ns or 0) if name in found else 0)
            found[name] = FileInfo(f"{directory}/{name}", size, newest, bool(is_inside))
        infos = list(found.values())
        return infos + self._wait(self._unfinished()) if directory == TEMP_DIR else infos

    def delete(self, path: str) -> None:
        objects, name = self._at(path)
        self._wait(objects.remove(name))
        directory, _, chunks = path.rpartition("/")
        if directory == TEMP_DIR and _is_chunks(chunks):
            self._wait(self._js.purge(self._stream, subject=f"$O.{self._bucket}.C.{chunks}"))

    def delete_directory(self, directory: str) -> None:
        for path, _ in self._wait(self._infos(directory)):
            self.delete(f"{directory}/{path}")

    def _at(self, path: str) -> tuple[ObjectStore, str]:
        """Return the part of the bucket with the file, and its name there."""
        directory, _, name = path.rpartition("/")
        part = _part_of(directory)
        return self._objects.part(part) if part else self._objects, name

    def _subjects(self, directory: str) -> str:
        """Return the beginning of the subjects of files in a directory, and of those below it."""
        part = _part_of(directory)
        return f"$O.{self._bucket}.M.{part}." if part else f"$O.{self._bucket}.M."

    async def _descriptions(self, prefix: str) -> list[tuple[ObjectInfo, Delivery]]:
        """Read the descriptions of files; those that cannot be read are left out."""
        found = []
        reader = ordered_reader(
            self._js, self._stream, f"{prefix}>", deliver_policy="last_per_subject"
        )
        async with reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                try:
                    found.append((ObjectInfo.parse(message.payload, message.subject), message))
                except ObjectDamaged:
                    continue
        return found

    async def _infos(self, directory: str) -> list[tuple[str, FileInfo]]:
        """Return all files below a directory, with their paths relative to it."""
        prefix, found = self._subjects(directory), []
        for info, message in await self._descriptions(prefix):
            above = message.subject.removeprefix(prefix).split(".")[:-1]
            path = "/".join([*above, info.name])
            whole = f"{directory}/{path}" if directory else path
            found.append((path, FileInfo(whole, info.size, _nanoseconds(message))))
        return found

    async def _unfinished(self) -> list[FileInfo]:
        """Return the chunks that belong to no file: of puts that go on, or were cut off."""
        prefix = f"$O.{self._bucket}.C."
        subjects = await self._js.stream_subjects(self._stream, f"{prefix}>")
        descriptions = await self._descriptions(self._subjects(""))
        known = {f"{i.part}.{i.nuid}" if i.part else i.nuid for i, _ in descriptions}
        found = []
        for chunks in {subject.removeprefix(prefix) for subject in subjects} - known:
            last = await self._js.get_message(self._stream, last_by_subject=f"{prefix}{chunks}")
            if last is not None:
                written = int(last.time.timestamp() * 1e9)
                found.append(FileInfo(f"{TEMP_DIR}/{chunks}", None, written))
        return found

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on the loop, and return its result.

        Raises:
            FileNotFoundError: there is no such object.
            OSError: NATS did not do it, or the loop has ended.
            RuntimeError: called on the loop itself; nothing was done.
        """
        if _running_loop() is self._loop:
            work.close()
            raise RuntimeError(
                "files in NATS cannot be waited for on the event loop that fetches them: call "
                "this in a thread, as with asyncio.to_thread"
            )
        with _as_errors_of_files():
            try:
                doing = asyncio.run_coroutine_threadsafe(work, self._loop)
            except RuntimeError as error:
                work.close()
                raise OSError(errno.ECANCELED, "the process ends") from error
            return doing.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@contextmanager
def _as_errors_of_files() -> Iterator[None]:
    try:
        yield
    except ObjectNotFound as error:
        raise FileNotFoundError(errno.ENOENT, str(error)) from error
    except (JetStreamError, nats.errors.Error) as error:
        raise OSError(errno.EIO, str(error)) from error
    except concurrent.futures.CancelledError as error:
        raise OSError(errno.ECANCELED, "the process ends") from error


def _part_of(directory: str) -> str:
    """Return the part of the bucket that is the directory; empty for the root.

    Raises:
        OSError: no directory has that name.
    """
    names = directory.split("/") if directory else []
    if not all(map(_is_directory, names)):
        raise OSError(errno.EINVAL, f"no name of a directory in NATS: {directory[:200]!a}")
    return ".".join(names)


def _first_name(tokens: str) -> str:
    """Return the name of the file that the last part of a subject names, or of its directory."""
    first, is_inside, _ = tokens.partition(".")
    if is_inside:
        return first
    return base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)).decode()


def _nanoseconds(message: Delivery) -> int:
    return int(message.timestamp.timestamp() * 1e9)
