"""Large batches as files under the store's root, which all Rebasers read."""

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
        """Delete it; a missing one is no error."""
        self.files.delete(_path(key))


def run_of_key(key: str) -> str | None:
    """The run in whose directory the batch of this key lies beside its results, if in any."""
    match = re.fullmatch(r"([0-9a-f]{64})\.[0-9a-f]{64}", key)
    return match[1] if match else None


def _path(key: str) -> str:
    """The path of a key, never outside the directory: keys come from clients."""
    if run_of_key(key):
        return f"{RESULTS}/{key.replace('.', '/')}{SUFFIX}"
    if "/" in key:
        raise ValueError(f"{key!r} is no key")
    return f"{RESULTS}/{key}{SUFFIX}"
