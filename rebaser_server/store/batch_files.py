"""Large batches that Rebasers leave for one another: files under the store's root."""

import re
from collections.abc import Mapping
from typing import Final

from rebaser_server.files.shared_files import SharedFiles

RESULTS: Final = "results"
SUFFIX: Final = ".batch"


class BatchFiles:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.files = SharedFiles(root, options)

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; the same key again replaces them."""
        self.files.put(_path(key), payload)

    def get(self, key: str) -> bytes:
        """Raises `FileNotFoundError`."""
        return bytes(self.files.get(_path(key)))

    def delete(self, key: str) -> None:
        """Have it gone; that it is gone already is success."""
        self.files.delete(_path(key))


def run_of_key(key: str) -> str | None:
    """Of the key of a batch that lies on a shelf with the results that it names, the shelf's."""
    match = re.fullmatch(r"([0-9a-f]{64})\.[0-9a-f]{64}", key)
    return match[1] if match else None


def _path(key: str) -> str:
    """Never outside of the directory: keys come from clients, and `..` looks like one."""
    if run_of_key(key):
        return f"{RESULTS}/{key.replace('.', '/')}{SUFFIX}"
    if "/" in key:
        raise ValueError(f"{key!r} is no key")
    return f"{RESULTS}/{key}{SUFFIX}"
