"""Large batches as files under the store's root, which all Rebasers read."""

from rebaser_server.files.paths import batch_file, run_directory
from rebaser_server.files.shared_files import SharedFiles


class BatchFiles:
    """Bytes by key, written once. All calls block; run them in a thread."""

    def __init__(self, files: SharedFiles) -> None:
        self.files = files

    def put(self, key: str, payload: bytes) -> None:
        """Store the bytes whole or not at all; the same key again replaces them."""
        self.files.put(batch_file(key), payload)

    def get(self, key: str) -> bytes:
        """Raises `FileNotFoundError`."""
        return bytes(self.files.get(batch_file(key)))

    def delete_run(self, run: str) -> None:
        """Delete the directory of a run, with all that is in it."""
        self.files.delete_directory(run_directory(run))
