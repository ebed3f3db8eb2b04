"""The stores of a deployment, opened as its settings say. Makes no request."""

from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.files import BatchFiles, SharedFiles
from rebaser_server.settings.settings import Settings, StoreSettings


def open_shared_files(store: StoreSettings) -> SharedFiles:
    """Return the files under the store's root."""
    return SharedFiles(store.root, store.options)


def open_batch_store(js: JetStream, subjects: Subjects, settings: Settings) -> BatchStore:
    """Return the store of batches."""
    return BatchStore(
        ObjectStore(js, subjects.batches_bucket),
        BatchFiles(open_shared_files(settings.store)),
        settings.limits.batch_bytes,
    )
